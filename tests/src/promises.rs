//! What the dispatcher promises of its deliveries, judged from outside: what was acknowledged is
//! taken, in time, at its pace, and a second time only for a cause.
//!
//! The simulation and the survival runs report what they did and what endpoints saw. A report is
//! judged at once, and what is owed at the end.
//!
//! # Invariants
//!
//! 1. No clock, no IO, and no statement of the dispatcher but that it gave a delivery up, which is
//!    judged too.
//! 2. Instants are intervals. What they leave in doubt counts for the dispatcher.
//! 3. Attempts of one event at one endpoint are reported in their order, each with its end before
//!    the next.
//!
//! Not here: what one observer alone can know: exact due times, turns and slots (the simulation),
//! how long a slow machine hides an outcome (`survival`).

pub mod pace;
pub mod same;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{self, Debug};

/// An instant between two, both included, in microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct When {
    /// It is not before.
    pub earliest: u64,
    /// It is not after.
    pub latest: u64,
}

impl When {
    /// An instant that is known.
    #[inline]
    pub fn exactly(at: u64) -> Self {
        Self { earliest: at, latest: at }
    }
}

/// What is promised.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Promise {
    /// What was acknowledged is taken, or given up, or its webhook is deleted.
    NothingLost,
    /// What was refused never arrives.
    Refused,
    /// Of a call without an answer all arrives, or nothing.
    CutOff,
    /// An event has one id and the same bytes each time.
    Same,
    /// No window holds more starts at an endpoint than its pace allows.
    Pace,
    /// What was taken arrives again only for a cause.
    TakenOnce,
    /// After a failure the next attempt waits for its delay.
    RetryDelay,
    /// No delivery is given up before its time.
    GiveUp,
}

impl Promise {
    /// Whether it is promised of a wall clock that is not set.
    pub fn needs_the_clock(self) -> bool {
        matches!(self, Self::RetryDelay | Self::GiveUp)
    }
}

impl fmt::Display for Promise {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::NothingLost => "lost",
            Self::Refused => "refused",
            Self::CutOff => "cut off",
            Self::Same => "same bytes",
            Self::Pace => "pace",
            Self::TakenOnce => "taken once",
            Self::RetryDelay => "retry delay",
            Self::GiveUp => "give up",
        })
    }
}

/// A promise that was not kept, and how.
#[derive(Clone, Debug)]
pub struct Broken {
    /// Which.
    pub promise: Promise,
    /// How.
    pub story: String,
}

impl fmt::Display for Broken {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}: {}", self.promise, self.story)
    }
}

fn broken<T>(promise: Promise, story: String) -> Result<T, Broken> {
    Err(Broken { promise, story })
}

/// Why an event came again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Cause {
    /// The process was killed, or ended by itself, before it must have recorded the answer.
    Ended,
    /// The answer came after the deadline.
    Late,
    /// The answer was in time for its endpoint, and the process says that it was not: a machine
    /// with too much to do.
    TimedOut,
    /// The process stood still until the deadline was over.
    Frozen,
    /// Its owner asked for it.
    Redelivered,
}

/// An attempt, as its endpoint saw it begin.
#[derive(Clone, Copy, Debug)]
pub struct Attempt {
    /// When it started.
    pub start: When,
    /// Whether others had come on its connection before.
    pub reused: bool,
}

/// What an endpoint did with an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// It took it.
    Taken,
    /// It failed; the next attempt comes so many microseconds later at the soonest.
    Failed {
        /// How many.
        delay: u64,
    },
    /// The same, without a byte of an answer: where the connection was reused, one attempt on a
    /// fresh one may follow at once.
    Closed {
        /// How many.
        delay: u64,
    },
}

/// The end of an attempt.
#[derive(Clone, Copy, Debug)]
pub struct End {
    /// How it ended.
    pub ending: Ending,
    /// When, at the soonest.
    pub at: u64,
    /// Why the answer need not count.
    pub cause: Option<Cause>,
    /// A process that ends then, or later, has recorded it.
    pub recorded: u64,
}

/// What is known of an event and an endpoint.
#[derive(Debug, Default)]
struct Pair {
    /// Since when it is owed.
    owed: Option<u64>,
    /// When it was last taken or given up.
    settled: Option<u64>,
    /// The start of the first attempt since it is owed.
    first: Option<u64>,
    last: Option<(Attempt, Option<End>)>,
    /// Its owner has asked for it since.
    asked: bool,
}

impl Pair {
    fn settle(&mut self, at: u64) {
        self.settled = self.settled.max(Some(at));
    }
}

/// The promises, and what was reported: of events `E`, each for one or more endpoints `L`.
#[derive(Debug)]
pub struct Promises<E, L> {
    /// From the first attempt to the last, in microseconds, pauses apart.
    pub give_up_after: u64,
    pairs: BTreeMap<(E, L), Pair>,
    refused: BTreeSet<E>,
    cut_off: Vec<Vec<(E, L)>>,
    ends: Vec<When>,
}

impl<E: Ord + Clone + Debug, L: Ord + Clone + Debug> Promises<E, L> {
    /// Nothing was reported yet.
    pub fn new(give_up_after: u64) -> Self {
        let (pairs, refused) = (BTreeMap::new(), BTreeSet::new());
        Self { give_up_after, pairs, refused, cut_off: Vec::new(), ends: Vec::new() }
    }

    fn pair(&mut self, pair: (E, L)) -> &mut Pair {
        self.pairs.entry(pair).or_default()
    }

    /// A call was answered 202: this is owed.
    pub fn acknowledged(&mut self, pair: (E, L)) {
        self.pair(pair).owed.get_or_insert(0);
    }

    /// No call with this event was answered 202, and each was answered or never sent.
    pub fn refused(&mut self, event: E) {
        self.refused.insert(event);
    }

    /// A call was never answered that asked for these.
    pub fn cut_off(&mut self, pairs: Vec<(E, L)>) {
        self.cut_off.push(pairs);
    }

    /// An owner asked for it once more; where that was acknowledged it is owed anew.
    pub fn redelivered(&mut self, pair: (E, L), at: u64, acknowledged: bool) {
        let known = self.pair(pair);
        known.asked = true;
        if acknowledged {
            (known.owed, known.first) = (known.owed.max(Some(at)), None);
        }
    }

    /// The process ended other than in order; reported in the order of time.
    pub fn process_ended(&mut self, when: When) {
        self.ends.push(when);
    }

    /// An event arrives anywhere.
    pub fn arrives(&self, event: &E) -> Result<(), Broken> {
        match self.refused.contains(event) {
            true => broken(Promise::Refused, format!("{event:?} arrives, and was refused")),
            false => Ok(()),
        }
    }

    /// An attempt begins at an endpoint. Gives what explains it, where that is needed.
    pub fn started(&mut self, pair: (E, L), next: Attempt) -> Result<Option<Cause>, Broken> {
        let (ends, give_up_after) = (&self.ends, self.give_up_after);
        let named = || format!("{:?} at {:?}", pair.0, pair.1);
        let known = self.pairs.entry(pair.clone()).or_default();
        let before = known.last.replace((next, None));
        let asked = std::mem::take(&mut known.asked);
        let first = *known.first.get_or_insert(next.start.earliest);
        let Some((one, end)) = before else { return Ok(None) };
        let recorded = end.map_or(u64::MAX, |end| end.recorded);
        // The first that can have ended it.
        let killed = ends.get(ends.partition_point(|end| end.latest < one.start.earliest));
        let killed = killed.is_some_and(|killed| {
            killed.earliest < recorded && killed.earliest <= next.start.latest
        });
        let cause = end.and_then(|end| end.cause);
        let cause = cause.or(asked.then_some(Cause::Redelivered));
        let cause = cause.or(killed.then_some(Cause::Ended));
        let (at, delay) = match end {
            _ if cause.is_some() => return Ok(cause),
            None | Some(End { ending: Ending::Taken, .. }) => {
                let story = format!("{} came again: {one:?}, {end:?}, {next:?}", named());
                return broken(Promise::TakenOnce, story);
            }
            Some(End { ending: Ending::Closed { .. }, .. }) if one.reused && !next.reused => {
                return Ok(None);
            }
            Some(End {
                ending: Ending::Failed { delay } | Ending::Closed { delay }, at, ..
            }) => (at, delay),
        };
        // The last comes when it is time for it, whatever the delay.
        let is_last = next.start.latest >= first.saturating_add(give_up_after);
        if next.start.latest < at.saturating_add(delay) && !is_last {
            let story = format!("{} came too early: {one:?}, {end:?}, {next:?}", named());
            return broken(Promise::RetryDelay, story);
        }
        Ok(None)
    }

    /// The latest attempt has ended.
    pub fn ended(&mut self, pair: (E, L), end: End) {
        let known = self.pair(pair);
        if let Some((_, last)) = &mut known.last {
            *last = Some(end);
        }
        if end.ending == Ending::Taken {
            known.settle(end.at);
        }
    }

    /// An endpoint took it from a process that is no more.
    pub fn taken(&mut self, pair: (E, L), at: u64) {
        self.pair(pair).settle(at);
    }

    /// The outcome of the latest attempt is on disk.
    pub fn recorded(&mut self, pair: (E, L), at: u64) {
        if let Some((_, Some(end))) = &mut self.pair(pair).last {
            end.recorded = end.recorded.min(at);
        }
    }

    /// A failure before now delays no attempt: the webhook was reactivated.
    pub fn needs_no_delay(&mut self, pair: (E, L)) {
        if let Some((_, Some(end))) = &mut self.pair(pair).last
            && end.ending != Ending::Taken
        {
            end.ending = Ending::Failed { delay: 0 };
        }
    }

    /// It is given up, then at the latest.
    pub fn given_up(&mut self, pair: (E, L), at: u64) -> Result<(), Broken> {
        let least = self.give_up_after;
        let known = self.pairs.entry(pair.clone()).or_default();
        known.settle(at);
        match known.first {
            Some(first) if at >= first.saturating_add(least) => Ok(()),
            first => {
                let story = format!("{pair:?} was given up at {at}, first tried at {first:?}");
                broken(Promise::GiveUp, story)
            }
        }
    }

    /// Whether it was taken or given up since it is owed.
    pub fn is_settled(&self, pair: &(E, L)) -> bool {
        self.pairs.get(pair).is_some_and(|one| one.settled.is_some() && one.settled >= one.owed)
    }

    /// What is owed at the end, but for what is `excused`: it waits, or its webhook is deleted.
    pub fn at_the_end(&self, excused: impl Fn(&(E, L)) -> bool) -> Vec<Broken> {
        let owed = self.pairs.iter().filter(|(_, one)| one.owed.is_some());
        let lost = owed.filter(|(pair, _)| !self.is_settled(pair) && !excused(pair));
        let lost = lost.map(|(pair, one)| Broken {
            promise: Promise::NothingLost,
            story: format!("{pair:?} is owed, and was not taken: {one:?}"),
        });
        let came = |pair: &&(E, L)| self.pairs.get(pair).is_some_and(|one| one.last.is_some());
        let halves = self.cut_off.iter().filter_map(|pairs| {
            let pairs: Vec<_> = pairs.iter().filter(|pair| came(pair) || !excused(pair)).collect();
            let arrived = pairs.iter().copied().filter(came).count();
            (arrived != 0 && arrived != pairs.len()).then(|| Broken {
                promise: Promise::CutOff,
                story: format!("{arrived} of {} arrived: {pairs:?}", pairs.len()),
            })
        });
        lost.chain(halves).collect()
    }
}
