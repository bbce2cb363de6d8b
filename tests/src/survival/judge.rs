//! What came of it: compares what was acknowledged with what arrived, and explains whatever
//! arrived more than once by what was done to the process, or by what its receiver had answered.
//!
//! Nothing is read here but the books. What a second, a window or a pause leaves in doubt counts
//! for the dispatcher: what is called a fault is one.

use std::collections::{BTreeMap, HashSet};
use std::fmt;

use super::books::{Answered, Arrival, Books, Call, Span, State};
use super::cast::{self, DEADLINE, FIRST_DELAY, GIVE_UP_AFTER, REQUESTS, WINDOW};
use super::clients::GivenUp;
use super::events::{Event, Mark};
use super::logs::Said;

const SECOND: u64 = 1_000_000;

/// Within so long an outcome is on disk once it is known, where the process stands still no moment
/// and the disk has room: hundreds of times what it takes.
const RECORDED_WITHIN: u64 = SECOND;

/// Kills explain much: it is told how many of what they explain came within these of the answer.
const SOON: [(u64, &str); 2] = [
    (SECOND / 10, "duplicates by a kill within 100 ms of the answer"),
    (SECOND, "duplicates by a kill within 1 s of the answer"),
];

/// After the disk has room again: the worker's pause after a failure, and the same again.
const RECORDED_AFTER_FULL: u64 = 2 * SECOND;

/// A receiver may notice so much later what was sent, and the dispatcher what was answered.
const LAG: u64 = SECOND / 4;

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
        self.tell("calls refused while it was full", self.state.while_full[1]);
        self.tell("calls taken while it was full", self.state.while_full[0]);
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
                Some(Answered::Taken) => {
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

    /// Whatever came more than once.
    fn repeats(&mut self) {
        let [mut arrivals, mut retries, mut early] = [0_u64; 3];
        let mut pairs: Vec<_> = self.state.arrivals.iter().collect();
        pairs.sort_by_key(|(pair, _)| **pair);
        for (pair, all) in pairs {
            arrivals += all.len() as u64;
            let mut all = all.clone();
            all.sort_by_key(|one| one.at);
            let last_try =
                all.first().map_or(0, |first| first.at) + GIVE_UP_AFTER.as_micros() as u64;
            for (one, next) in all.iter().zip(all.iter().skip(1)) {
                let cause = self.cause(*pair, one, next);
                if one.is_taken() {
                    *self.verdict.duplicates.entry(cause).or_default() += 1;
                    if cause == Cause::Unexplained {
                        self.fault(format!(
                            "{} came again to e{}: {one:?}, {next:?}",
                            pair.0, pair.1
                        ));
                    }
                    continue;
                }
                retries += 1;
                let gap = next.at.saturating_sub(one.answered);
                // The last try comes when it is time for it.
                let soon = gap < FIRST_DELAY.as_micros() as u64 && next.at + DOUBT < last_try;
                if soon && cause == Cause::Unexplained && self.clock_holds {
                    early += 1;
                    self.fault(format!(
                        "{} came to e{} too early: {one:?}, {next:?}",
                        pair.0, pair.1
                    ));
                }
            }
        }
        self.tell("arrivals", arrivals);
        self.tell("tried again after a failure", retries);
        self.tell("of these too early", early);
        for (count, (_, name)) in self.soon.into_iter().zip(SOON) {
            self.tell(name, count);
        }
        self.verdict.duplicates.entry(Cause::Unexplained).or_default();
    }

    /// What explains that `next` came, whatever was answered to `one`. A kill explains only what
    /// nothing else does.
    fn cause(&mut self, pair: (Mark, usize), one: &Arrival, next: &Arrival) -> Cause {
        let deadline = DEADLINE.as_micros() as u64;
        let took = one.answered.saturating_sub(one.at);
        if took + LAG >= deadline {
            return Cause::Late;
        }
        let asked = self.state.redelivered.get(&pair).map(Vec::as_slice).unwrap_or_default();
        if asked.iter().any(|asked| asked.at >= one.at && asked.at <= next.at) {
            return Cause::Redelivered;
        }
        let froze = |span: &&Span| {
            span.from <= one.answered + LAG
                && span.to.saturating_add(deadline) >= one.at
                && span.length() + took + LAG >= deadline
        };
        if self.state.stops.iter().any(|span| froze(&span)) {
            return Cause::Frozen;
        }
        let known = self.state.bodies.get(&pair.0).map(|(id, _)| (id.clone(), pair.1));
        let timeouts = known.and_then(|known| self.said.timeouts.get(&known));
        if timeouts.is_some_and(|seconds| seconds.contains(&one.signed)) {
            return Cause::TimedOut;
        }
        // What was answered in time is known by the deadline.
        let recorded = self.recorded_by(one.answered.max(one.at + deadline));
        let ended = self.state.ends.iter().find(|end| {
            end.to.saturating_add(LAG) >= one.at && end.from <= recorded && end.from <= next.at
        });
        let Some(end) = ended else { return Cause::Unexplained };
        if one.is_taken() {
            for (count, (within, _)) in self.soon.iter_mut().zip(SOON) {
                *count += u64::from(end.from <= one.answered + within);
            }
        }
        Cause::Ended
    }

    /// When an outcome that was known then is on disk, at the latest.
    fn recorded_by(&self, known: u64) -> u64 {
        let mut by = known.saturating_add(RECORDED_WITHIN);
        let State { stops, fulls, .. } = self.state;
        loop {
            let before = by;
            for (spans, more) in [(stops, RECORDED_WITHIN), (fulls, RECORDED_AFTER_FULL)] {
                let meanwhile = spans.iter().filter(|span| span.from <= before && span.to >= known);
                let until = meanwhile.map(|span| span.to.saturating_add(more)).max();
                by = by.max(until.unwrap_or(0));
            }
            if by == before {
                return by;
            }
        }
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

    /// An attempt started between the second that it was signed in and its arrival. A stretch of
    /// the window that begins with a second and surely holds more starts than may be is a fault.
    fn pace(&mut self) {
        let window = WINDOW.as_micros() as u64;
        let [mut sure, mut seen] = [0_usize; 2];
        for endpoint in 0..self.state.starts.len() {
            let mut starts = self.state.starts[endpoint].clone();
            starts.sort_by_key(|start| start.at);
            let at: Vec<u64> = starts.iter().map(|start| start.at).collect();
            seen = seen.max(most_within(&at, window));
            if !self.clock_holds {
                continue;
            }
            // Sorted by when they were signed, each with the latest that it can have started.
            let mut bounds: Vec<(u64, u64)> = starts
                .iter()
                .map(|start| {
                    let from = (start.signed * SECOND).saturating_sub(self.unix_began);
                    (from, start.at.min(from + SECOND))
                })
                .collect();
            bounds.sort_unstable();
            let mut first = 0;
            while let Some((from, _)) = bounds.get(first).copied() {
                let within = bounds[first..].iter().take_while(|one| one.0 < from + window);
                let count = within.filter(|one| one.1 < from + window).count();
                sure = sure.max(count);
                if count > REQUESTS as usize {
                    self.fault(format!(
                        "e{endpoint}: {count} starts within {WINDOW:?} from {from}"
                    ));
                }
                first += bounds[first..].iter().take_while(|one| one.0 == from).count();
            }
        }
        self.tell("attempts", self.state.starts.iter().map(|all| all.len() as u64).sum());
        self.tell("most that surely started at an endpoint within its window", sure as u64);
        self.tell("most that arrived within it", seen as u64);
    }
}

fn taken_by(all: &[Arrival]) -> bool {
    all.iter().any(Arrival::is_taken)
}

/// The most of these sorted times that any stretch of so long holds.
fn most_within(times: &[u64], window: u64) -> usize {
    let mut first = 0;
    let mut most = 0;
    for (last, time) in times.iter().enumerate() {
        while times[first] + window <= *time {
            first += 1;
        }
        most = most.max(last + 1 - first);
    }
    most
}
