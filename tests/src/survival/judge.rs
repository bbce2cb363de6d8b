//! What came of it: compares what was acknowledged with what arrived, and explains whatever
//! arrived more than once by what was done to the process, or by what its receiver had answered.
//!
//! Nothing is read here but the books. What a second, a window or a pause leaves in doubt counts
//! for the dispatcher: what is called a fault is one.

mod pace;
mod repeats;

use std::collections::{BTreeMap, HashSet};
use std::fmt;

use super::books::{Answered, Arrival, Books, Call, State};
use super::cast::{self, GIVE_UP_AFTER};
use super::clients::GivenUp;
use super::events::{Event, Mark};
use super::logs::Said;

const SECOND: u64 = 1_000_000;

/// A first attempt may have started so much earlier than it arrived, on a slow machine.
const DOUBT: u64 = 2 * SECOND;

/// Why an event came again to a receiver that had taken it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Cause {
    /// The process was killed, or ended by itself, before it can be said to have recorded it.
    Ended,
    /// The answer came after the deadline.
    Late,
    /// The answer was in time for its receiver, and the process says that it was not: a machine
    /// with too much to do.
    TimedOut,
    /// The process stood still until the deadline was over.
    Frozen,
    /// Its owner asked for it.
    Redelivered,
    /// None of these.
    Unexplained,
}

/// What came of a run.
#[derive(Clone, Debug, Default)]
pub struct Verdict {
    /// Named figures, in the order in which they are told.
    pub figures: Vec<(&'static str, u64)>,
    /// Duplicates, by what explains them.
    pub duplicates: BTreeMap<Cause, u64>,
    /// What must not be.
    pub faults: Vec<String>,
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
            writeln!(out, "| duplicates: {cause:?} | {count} |")?;
        }
        writeln!(out, "| faults | {} |", self.faults.len())
    }
}

/// Judges a run that has come to its end: everybody well, nothing waiting. `clock_holds` where the
/// wall clock was not set.
pub fn judge(books: &Books, given_up: &[GivenUp], said: &Said, clock_holds: bool) -> Verdict {
    let state = &*books.state();
    let mut judge = Judge {
        state,
        seed: books.seed,
        unix_began: books.unix_began,
        clock_holds,
        said,
        soon: [0; 2],
        verdict: Verdict { faults: state.faults.clone(), ..Verdict::default() },
    };
    judge.blows();
    judge.calls();
    judge.repeats();
    judge.owners();
    judge.given_up(given_up);
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
    /// Duplicates by a kill that came soon.
    soon: [u64; 2],
    verdict: Verdict,
}

impl Judge<'_> {
    fn tell(&mut self, name: &'static str, figure: u64) {
        self.verdict.figures.push((name, figure));
    }

    fn fault(&mut self, what: String) {
        self.verdict.faults.push(what);
    }

    fn blows(&mut self) {
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

    fn calls(&mut self) {
        let [mut taken, mut lost, mut again, mut refused, mut cut_off] = [0_u64; 5];
        let [mut refused_arrived, mut cut_off_arrived, mut pairs] = [0_u64; 3];
        for (number, call) in &self.state.calls {
            again += u64::from(call.sent.saturating_sub(1));
            match call.answered {
                None => {
                    if self.arrived(*number, call).0 > 0 {
                        self.fault(format!("call {number} was never sent, and arrived"));
                    }
                }
                Some(Answered::Taken { .. }) => {
                    taken += call.count;
                    for pair in self.pairs(*number, call) {
                        pairs += 1;
                        if !self.state.arrivals.get(&pair).is_some_and(|all| taken_by(all)) {
                            lost += 1;
                            let (mark, endpoint) = pair;
                            self.fault(format!("lost: {mark} was taken and not by e{endpoint}"));
                        }
                    }
                }
                Some(Answered::Refused(status)) => {
                    refused += call.count;
                    let (arrived, _) = self.arrived(*number, call);
                    refused_arrived += arrived;
                    if arrived > 0 {
                        self.fault(format!("call {number} was answered {status}, and arrived"));
                    }
                }
                Some(Answered::CutOff) => {
                    cut_off += call.count;
                    let (arrived, all) = self.arrived(*number, call);
                    cut_off_arrived += arrived;
                    if arrived != 0 && arrived != all {
                        self.fault(format!("of call {number} {arrived} of {all} arrived"));
                    }
                }
            }
        }
        self.tell("events acknowledged", taken);
        self.tell("deliveries owed for them", pairs);
        self.tell("lost", lost);
        self.tell("calls made again under the same ids", again);
        self.tell("events refused and not sent again", refused);
        self.tell("of these arrived", refused_arrived);
        self.tell("events of calls that were cut off and not made again", cut_off);
        self.tell("deliveries of these", cut_off_arrived);
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

    /// How many pairs of a call were taken, and how many there are.
    fn arrived(&self, number: u64, call: &Call) -> (u64, u64) {
        let pairs = self.pairs(number, call);
        let arrived = pairs.iter().filter(|pair| self.state.arrivals.contains_key(pair)).count();
        (arrived as u64, pairs.len() as u64)
    }

    /// What owners asked for.
    fn owners(&mut self) {
        let pings: Vec<_> = self.state.pings.iter().collect();
        self.tell("tests asked for", pings.iter().filter(|(_, ping)| ping.taken).count() as u64);
        self.tell("tests that came", pings.iter().map(|(_, ping)| ping.arrived.len() as u64).sum());
        let mut asked = 0;
        for ((mark, endpoint), all) in &self.state.redelivered {
            for one in all.iter().filter(|one| one.taken) {
                asked += 1;
                let arrivals = self.state.arrivals.get(&(*mark, *endpoint));
                if !arrivals.is_some_and(|all| all.iter().any(|came| came.answered >= one.at)) {
                    self.fault(format!("lost: {mark} was not sent again to e{endpoint}"));
                }
            }
        }
        self.tell("events sent again for their owners", asked);
    }

    /// What was given up before the end.
    fn given_up(&mut self, given_up: &[GivenUp]) {
        let patience = GIVE_UP_AFTER.as_micros() as u64 - DOUBT;
        let [mut early, mut events] = [0_u64; 2];
        let tests: HashSet<&str> =
            given_up.iter().filter(|one| one.is_ping).map(|one| one.event.as_str()).collect();
        for (id, ping) in &self.state.pings {
            if ping.taken && ping.arrived.is_empty() && !tests.contains(id.as_str()) {
                self.fault(format!(
                    "lost: the test {id} was taken, and neither came nor was given up"
                ));
            }
        }
        for one in given_up.iter().filter(|one| !one.is_ping) {
            events += 1;
            let mark = self.state.marks.get(&one.event);
            let arrivals = mark.and_then(|mark| self.state.arrivals.get(&(*mark, one.endpoint)));
            let first = arrivals.and_then(|all| all.iter().map(|one| one.at).min()).unwrap_or(0);
            // What came after it was given up was asked for anew.
            let tries = arrivals.map(Vec::as_slice).unwrap_or_default();
            let failed = tries.iter().filter(|one| !one.is_taken()).map(|one| one.answered).max();
            if failed.unwrap_or(0).saturating_sub(first) < patience {
                early += 1;
                if self.clock_holds {
                    self.fault(format!("{one:?} was given up too early: {tries:?}"));
                }
            }
        }
        self.tell("deliveries given up, and sent again at the end", events);
        self.tell("of these given up too early", early);
    }

    /// What only the dispatcher can tell.
    fn said(&mut self) {
        self.tell("attempts that the log tells of", self.said.attempts);
        let second = &self.said.second;
        self.tell("second deliveries of one event and webhook", second.len() as u64);
        self.verdict.faults.extend(second.iter().cloned());
    }
}

fn taken_by(all: &[Arrival]) -> bool {
    all.iter().any(Arrival::is_taken)
}
