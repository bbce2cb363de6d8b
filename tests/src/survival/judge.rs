//! Checks the history of a run: reports it to the promises, with the causes that explain
//! duplicates, and counts figures.
//!
//! It reads only the history and the attempt log (`logs`). Where seconds, windows or pauses leave a
//! doubt, the dispatcher gets the benefit: a reported violation is a real one.

mod repeats;

use std::collections::BTreeMap;
use std::fmt;

use super::cast::{self, GIVE_UP_AFTER, REQUESTS, WINDOW};
use super::clients::GivenUp;
use super::events::{Event, Mark};
use super::history::{Answered, Call, History, State};
use super::logs::Said;
use crate::promises::pace::Pace;
use crate::promises::{Broken, Cause, Promise, Promises, When};

const SECOND: u64 = 1_000_000;

/// On a slow machine a first attempt may start this much earlier than it arrives.
const DOUBT: u64 = 2 * SECOND;

/// The result of a run.
#[derive(Clone, Debug, Default)]
pub struct Verdict {
    /// Named figures, in the order in which they are printed.
    pub figures: Vec<(&'static str, u64)>,
    /// Duplicates, by their cause; `None` is a violation.
    pub duplicates: BTreeMap<Option<Cause>, u64>,
    /// The violations, in words.
    pub violations: Vec<String>,
}

impl Verdict {
    /// A figure by its name.
    pub fn figure(&self, name: &str) -> u64 {
        let found = self.figures.iter().find(|(known, _)| *known == name);
        found.unwrap_or_else(|| panic!("unknown figure {name}")).1
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, figure) in &self.figures {
            writeln!(out, "| {name} | {figure} |")?;
        }
        for (cause, count) in &self.duplicates {
            let cause = cause.map_or("unexplained".to_owned(), |cause| format!("{cause:?}"));
            writeln!(out, "| duplicates: {cause} | {count} |")?;
        }
        writeln!(out, "| violations | {} |", self.violations.len())
    }
}

/// Checks a finished run, in which all receivers are healthy and no delivery waits. `clock_holds`
/// if the wall clock was never set.
pub fn judge(history: &History, given_up: &[GivenUp], said: &Said, clock_holds: bool) -> Verdict {
    let state = &*history.state();
    let mut judge = Judge {
        state,
        seed: history.seed,
        unix_began: history.unix_began,
        clock_holds,
        said,
        promises: Promises::new(GIVE_UP_AFTER.as_micros() as u64 - DOUBT),
        verdict: Verdict { violations: state.violations.clone(), ..Verdict::default() },
    };
    judge.faults();
    judge.calls();
    judge.arrivals();
    judge.given_up(given_up);
    judge.lost();
    judge.pace();
    judge.said();
    judge.verdict
}

struct Judge<'a> {
    state: &'a State,
    seed: u64,
    unix_began: u64,
    clock_holds: bool,
    said: &'a Said,
    promises: Promises<Mark, usize>,
    verdict: Verdict,
}

impl Judge<'_> {
    fn count(&mut self, name: &'static str, figure: u64) {
        self.verdict.figures.push((name, figure));
    }

    fn violation(&mut self, what: String) {
        self.verdict.violations.push(what);
    }

    fn faults(&mut self) {
        let State { ends, orderly, stops, fulls, sets, .. } = self.state;
        self.count("kills", ends.len() as u64);
        self.count("graceful stops", orderly.len() as u64);
        self.count("suspended", stops.len() as u64);
        self.count(
            "suspended, seconds",
            stops.iter().map(|span| span.length()).sum::<u64>() / SECOND,
        );
        self.count("disk full", fulls.len() as u64);
        self.count(
            "disk full, seconds",
            fulls.iter().map(|span| span.length()).sum::<u64>() / SECOND,
        );
        self.count("starts that failed on a full disk", self.state.failed_starts);
        let [known, taken, refused] = self.state.while_full;
        self.count("calls refused while the disk was full", refused);
        self.count("calls acknowledged while the disk was full, with new events", taken);
        self.count("calls acknowledged while the disk was full, without new events", known);
        self.count("clock set", sets.len() as u64);
    }

    /// Reports the calls and how they were answered.
    fn calls(&mut self) {
        let [mut taken, mut again, mut refused, mut cut_off, mut owed] = [0_u64; 5];
        let mut arrived = 0;
        for (number, call) in &self.state.calls {
            again += u64::from(call.sent.saturating_sub(1));
            let pairs = self.pairs(*number, call);
            match call.answered {
                Some(Answered::Taken { .. }) => {
                    taken += call.count;
                    owed += pairs.len() as u64;
                    pairs.into_iter().for_each(|pair| self.promises.acknowledged(pair));
                }
                None | Some(Answered::Refused(_)) => {
                    refused += call.count * u64::from(call.answered.is_some());
                    pairs.into_iter().for_each(|(mark, _)| self.promises.refused(mark));
                }
                Some(Answered::CutOff) => {
                    cut_off += call.count;
                    let came = pairs.iter().filter(|pair| self.state.arrivals.contains_key(pair));
                    arrived += came.count() as u64;
                    self.promises.cut_off(pairs);
                }
            }
        }
        self.count("events acknowledged", taken);
        self.count("deliveries expected for acknowledged events", owed);
        self.count("calls repeated with the same event ids", again);
        self.count("events refused and not repeated", refused);
        self.count("events of calls without a response", cut_off);
        self.count("deliveries that arrived for calls without a response", arrived);
    }

    /// The pairs of an event and an endpoint that a call must be delivered to.
    fn pairs(&self, number: u64, call: &Call) -> Vec<(Mark, usize)> {
        let marks = (0..call.count).map(|nth| Mark { call: number, nth });
        let pairs = marks.flat_map(|mark| {
            let event = Event::new(self.seed, mark);
            cast::reached(event.workspace, event.kind).map(move |endpoint| (mark, endpoint))
        });
        pairs.collect()
    }

    /// Checks the deliveries that were given up, which were redelivered at the end, and that each
    /// ping arrived or was given up.
    fn given_up(&mut self, given_up: &[GivenUp]) {
        let [mut early, mut events] = [0_u64; 2];
        for one in given_up.iter().filter(|one| !one.is_ping) {
            events += 1;
            let Some(mark) = self.state.marks.get(&one.event) else {
                self.violation(format!("{one:?} is given up, and the history lacks its event"));
                continue;
            };
            let pair = (*mark, one.endpoint);
            // Arrivals after the delivery was given up belong to its redelivery.
            let tries = self.state.arrivals.get(&pair).map(Vec::as_slice).unwrap_or_default();
            let failed = tries.iter().filter(|one| !one.is_taken()).map(|one| one.answered).max();
            let failed = failed.unwrap_or(0);
            let judged = self.promises.given_up(pair, failed);
            self.promises.redelivered(pair, failed, true);
            early += u64::from(self.record(judged).is_none());
        }
        self.count("deliveries given up and redelivered at the end", events);
        self.count("deliveries given up too early", early);
        let mut tests = Promises::new(0);
        for (id, ping) in &self.state.pings {
            if ping.taken {
                tests.acknowledged((id, ()));
            }
            ping.arrived.iter().for_each(|at| tests.taken((id, ()), *at));
        }
        for one in given_up.iter().filter(|one| one.is_ping) {
            tests.taken((&one.event, ()), 0);
        }
        self.at_the_end(tests.at_the_end(|_| false));
        let pings = self.state.pings.values();
        self.count("pings acknowledged", pings.clone().filter(|ping| ping.taken).count() as u64);
        self.count("pings that arrived", pings.map(|ping| ping.arrived.len() as u64).sum());
    }

    /// Checks that no delivery is missing at the end.
    fn lost(&mut self) {
        let broken = self.promises.at_the_end(|_| false);
        let lost = broken.iter().filter(|one| one.promise == Promise::NothingLost).count();
        self.count("lost", lost as u64);
        self.at_the_end(broken);
    }

    fn at_the_end(&mut self, broken: Vec<Broken>) {
        self.verdict.violations.extend(broken.iter().map(Broken::to_string));
    }

    /// Records a broken promise as a violation, and returns `None` for it. A promise that depends
    /// on the wall clock is not checked in a run that sets it.
    fn record<T>(&mut self, judged: Result<T, Broken>) -> Option<T> {
        match judged {
            Ok(judged) => Some(judged),
            Err(broken) => {
                if self.clock_holds || !broken.promise.needs_the_clock() {
                    self.violation(broken.to_string());
                }
                None
            }
        }
    }

    /// Checks the rate limit. An attempt starts between the second of its signature and its
    /// arrival, which a suspended process or a slow machine may delay.
    fn pace(&mut self) {
        let window = WINDOW.as_micros() as u64;
        let [mut sure, mut seen] = [0; 2];
        for endpoint in 0..self.state.starts.len() {
            let starts = &self.state.starts[endpoint];
            let mut arrived: Vec<When> = starts.iter().map(|one| When::exactly(one.at)).collect();
            arrived.sort_unstable_by_key(|when| when.latest);
            let mut pace = Pace::default();
            for when in arrived {
                let _ = pace.started(when, true, window, usize::MAX);
            }
            seen = seen.max(pace.most);
            if !self.clock_holds {
                continue;
            }
            let signed = starts.iter().map(|start| {
                let earliest = (start.signed * SECOND).saturating_sub(self.unix_began);
                When { earliest, latest: start.at.min(earliest + SECOND) }
            });
            let mut signed: Vec<When> = signed.collect();
            signed.sort_unstable_by_key(|when| when.latest);
            let mut pace = Pace::default();
            for when in signed {
                if let Err(broken) = pace.started(when, true, window, REQUESTS as usize) {
                    self.violation(format!("e{endpoint}: {broken}"));
                }
            }
            sure = sure.max(pace.most);
        }
        self.count("attempts", self.state.starts.iter().map(|all| all.len() as u64).sum());
        self.count("most proven starts at an endpoint in one window", sure as u64);
        self.count("most arrivals at an endpoint in one window", seen as u64);
    }

    /// Checks what only the dispatcher's log shows.
    fn said(&mut self) {
        self.count("attempts in the attempt log", self.said.attempts);
        let second = &self.said.second;
        self.count("second deliveries of one event and webhook", second.len() as u64);
        self.verdict.violations.extend(second.iter().cloned());
    }
}
