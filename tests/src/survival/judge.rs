//! What came of it: reports the history to the promises, with what explains that something arrived
//! more than once, and adds up figures.
//!
//! Nothing is read here but the history. What a second, a window or a pause leaves in doubt counts
//! for the dispatcher: what is called a violation is one.

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

/// A first attempt may have started so much earlier than it arrived, on a slow machine.
const DOUBT: u64 = 2 * SECOND;

/// What came of a run.
#[derive(Clone, Debug, Default)]
pub struct Verdict {
    /// Named figures, in the order in which they are told.
    pub figures: Vec<(&'static str, u64)>,
    /// Duplicates, by what explains them; nothing may be unexplained.
    pub duplicates: BTreeMap<Option<Cause>, u64>,
    /// What must not be.
    pub violations: Vec<String>,
}

impl Verdict {
    /// A figure by its name.
    pub fn figure(&self, name: &str) -> u64 {
        let found = self.figures.iter().find(|(known, _)| *known == name);
        found.unwrap_or_else(|| panic!("there is no figure {name}")).1
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

/// Judges a run that has come to its end: everybody well, nothing waiting. `clock_holds` where the
/// wall clock was not set.
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
    fn tell(&mut self, name: &'static str, figure: u64) {
        self.verdict.figures.push((name, figure));
    }

    fn violation(&mut self, what: String) {
        self.verdict.violations.push(what);
    }

    fn faults(&mut self) {
        let State { ends, orderly, stops, fulls, sets, .. } = self.state;
        self.tell("kills", ends.len() as u64);
        self.tell("stops in order", orderly.len() as u64);
        self.tell("frozen", stops.len() as u64);
        self.tell("frozen, seconds", stops.iter().map(|span| span.length()).sum::<u64>() / SECOND);
        self.tell("disk full", fulls.len() as u64);
        self.tell(
            "disk full, seconds",
            fulls.iter().map(|span| span.length()).sum::<u64>() / SECOND,
        );
        self.tell("starts that the full disk refused", self.state.failed_starts);
        let [known, taken, refused] = self.state.while_full;
        self.tell("calls made while it was full, and refused", refused);
        self.tell("calls made while it was full, and taken", taken);
        self.tell("calls made while it was full, for what was stored already", known);
        self.tell("clock set", sets.len() as u64);
    }

    /// What calls asked for, and how they were answered.
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
        self.tell("events acknowledged", taken);
        self.tell("deliveries owed for them", owed);
        self.tell("calls made again under the same ids", again);
        self.tell("events refused and not sent again", refused);
        self.tell("events of calls that were cut off and not made again", cut_off);
        self.tell("deliveries of these", arrived);
    }

    /// The pairs of an event and an endpoint that a call is to reach.
    fn pairs(&self, number: u64, call: &Call) -> Vec<(Mark, usize)> {
        let marks = (0..call.count).map(|nth| Mark { call: number, nth });
        let pairs = marks.flat_map(|mark| {
            let event = Event::new(self.seed, mark);
            cast::reached(event.workspace, event.kind).map(move |endpoint| (mark, endpoint))
        });
        pairs.collect()
    }

    /// What was given up before the end, and redelivered then; of tests, whether they came.
    fn given_up(&mut self, given_up: &[GivenUp]) {
        let [mut early, mut events] = [0_u64; 2];
        for one in given_up.iter().filter(|one| !one.is_ping) {
            events += 1;
            let Some(mark) = self.state.marks.get(&one.event) else {
                self.violation(format!("{one:?} was given up, and is not known"));
                continue;
            };
            let pair = (*mark, one.endpoint);
            // What came after it was given up was asked for anew.
            let tries = self.state.arrivals.get(&pair).map(Vec::as_slice).unwrap_or_default();
            let failed = tries.iter().filter(|one| !one.is_taken()).map(|one| one.answered).max();
            let failed = failed.unwrap_or(0);
            let judged = self.promises.given_up(pair, failed);
            self.promises.redelivered(pair, failed, true);
            early += u64::from(self.heed(judged).is_none());
        }
        self.tell("deliveries given up, and sent again at the end", events);
        self.tell("of these given up too early", early);
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
        self.tell("tests asked for", pings.clone().filter(|ping| ping.taken).count() as u64);
        self.tell("tests that came", pings.map(|ping| ping.arrived.len() as u64).sum());
    }

    /// Nothing more comes: what is owed is lost.
    fn lost(&mut self) {
        let broken = self.promises.at_the_end(|_| false);
        let lost = broken.iter().filter(|one| one.promise == Promise::NothingLost).count();
        self.tell("lost", lost as u64);
        self.at_the_end(broken);
    }

    fn at_the_end(&mut self, broken: Vec<Broken>) {
        self.verdict.violations.extend(broken.iter().map(Broken::to_string));
    }

    /// Takes in a judgement; `None` where it is not kept. What needs the wall clock is no violation
    /// where that was set.
    fn heed<T>(&mut self, judged: Result<T, Broken>) -> Option<T> {
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

    /// An attempt started between the second that it was signed in and its arrival, which a process
    /// that stood still, or a slow machine, may have put off.
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
        self.tell("attempts", self.state.starts.iter().map(|all| all.len() as u64).sum());
        self.tell("most that surely started at an endpoint within its window", sure as u64);
        self.tell("most that arrived within it", seen as u64);
    }

    /// What only the dispatcher can tell.
    fn said(&mut self) {
        self.tell("attempts that the log tells of", self.said.attempts);
        let second = &self.said.second;
        self.tell("second deliveries of one event and webhook", second.len() as u64);
        self.verdict.violations.extend(second.iter().cloned());
    }
}
