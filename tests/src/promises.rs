//! The dispatcher's promises about deliveries, checked from outside: an acknowledged event is
//! delivered (its endpoint answers 2xx: it "takes" the event), on schedule, within the rate limit,
//! and again only for a known cause.
//!
//! The simulation and the survival runs report their own actions and what endpoints saw. Each
//! report is checked at once; missing deliveries are found at the end.
//!
//! # Invariants
//!
//! 1. No clock and no IO. Of the dispatcher's own statements only "given up" is used, and that is
//!    checked too.
//! 2. Instants are intervals; where an interval leaves a doubt, the dispatcher gets the benefit.
//! 3. Attempts of one event at one endpoint are reported in order; the end of each is reported
//!    before the next starts.
//!
//! Not here: checks that only one observer can make: exact due times, round-robin order and slots
//! (the simulation), how long a slow machine delays the recording of an outcome (`survival`).

pub mod pace;
pub mod same;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{self, Debug};

/// An instant known to lie in an interval, both ends included, in microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct When {
    /// The earliest that it can be.
    pub earliest: u64,
    /// The latest that it can be.
    pub latest: u64,
}

impl When {
    /// An instant that is known.
    #[inline]
    pub fn exactly(at: u64) -> Self {
        Self { earliest: at, latest: at }
    }
}

/// One promise of the dispatcher.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Promise {
    /// An acknowledged event is taken or given up, unless its webhook is deleted.
    NothingLost,
    /// A refused event never arrives.
    Refused,
    /// Of an unanswered call, all events arrive or none.
    CutOff,
    /// An event has the same id and the same bytes each time.
    Same,
    /// No window has more attempts at an endpoint than its rate limit allows.
    Pace,
    /// An event that was taken arrives again only for a [`Cause`].
    TakenOnce,
    /// After a failure the next attempt waits for the retry delay.
    RetryDelay,
    /// No delivery is given up before `give_up_after`.
    GiveUp,
}

impl Promise {
    /// Whether it holds only while the wall clock is not set.
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

/// A broken promise, with a description.
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

/// Why an event that was taken may arrive again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Cause {
    /// The process was killed or crashed before the result had to be on disk.
    Ended,
    /// The response was sent after the deadline.
    Late,
    /// The endpoint responded in time, but the process logged a timeout: an overloaded machine.
    TimedOut,
    /// The process was suspended until the deadline had passed.
    Frozen,
    /// Its owner requested a redelivery.
    Redelivered,
}

/// The start of an attempt, as its endpoint saw it.
#[derive(Clone, Copy, Debug)]
pub struct Attempt {
    /// When it started.
    pub start: When,
    /// Whether its connection had carried an earlier request.
    pub reused: bool,
}

/// How an endpoint ended an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// It answered 2xx.
    Taken,
    /// It failed; the next attempt starts after `delay` at the earliest.
    Failed {
        /// In microseconds.
        delay: u64,
    },
    /// The connection was closed without a byte of a response: if it was a reused connection, one
    /// attempt on a new connection may follow at once.
    Closed {
        /// In microseconds.
        delay: u64,
    },
}

/// The end of an attempt.
#[derive(Clone, Copy, Debug)]
pub struct End {
    /// How it ended.
    pub ending: Ending,
    /// When it ended, at the earliest.
    pub at: u64,
    /// Why the dispatcher may not have received or recorded the response, if so.
    pub cause: Option<Cause>,
    /// From this time on the result is on disk: a later crash does not lose it.
    pub recorded: u64,
}

/// The known state of one event at one endpoint.
#[derive(Debug, Default)]
struct Pair {
    /// Since when its delivery is required.
    owed: Option<u64>,
    /// When it was last taken or given up.
    settled: Option<u64>,
    /// The start of the first attempt since its delivery was last required.
    first: Option<u64>,
    last: Option<(Attempt, Option<End>)>,
    /// Whether its owner requested a redelivery since the last attempt started.
    asked: bool,
}

impl Pair {
    fn settle(&mut self, at: u64) {
        self.settled = self.settled.max(Some(at));
    }
}

/// Checks the promises against the reports about events `E`, each for one or more endpoints `L`.
#[derive(Debug)]
pub struct Promises<E, L> {
    /// From the first attempt to the last, in microseconds, without pauses of the webhook.
    pub give_up_after: u64,
    pairs: BTreeMap<(E, L), Pair>,
    refused: BTreeSet<E>,
    cut_off: Vec<Vec<(E, L)>>,
    ends: Vec<When>,
}

impl<E: Ord + Clone + Debug, L: Ord + Clone + Debug> Promises<E, L> {
    /// A checker without any report.
    pub fn new(give_up_after: u64) -> Self {
        let (pairs, refused) = (BTreeMap::new(), BTreeSet::new());
        Self { give_up_after, pairs, refused, cut_off: Vec::new(), ends: Vec::new() }
    }

    fn pair(&mut self, pair: (E, L)) -> &mut Pair {
        self.pairs.entry(pair).or_default()
    }

    /// Reports that a call was answered 202: this delivery is required.
    pub fn acknowledged(&mut self, pair: (E, L)) {
        self.pair(pair).owed.get_or_insert(0);
    }

    /// Reports that no call with this event was answered 202, and that each was answered or never
    /// sent.
    pub fn refused(&mut self, event: E) {
        self.refused.insert(event);
    }

    /// Reports a call with these deliveries that was never answered.
    pub fn cut_off(&mut self, pairs: Vec<(E, L)>) {
        self.cut_off.push(pairs);
    }

    /// Reports that an owner requested a redelivery; if it was `acknowledged`, delivery is required
    /// again.
    pub fn redelivered(&mut self, pair: (E, L), at: u64, acknowledged: bool) {
        let known = self.pair(pair);
        known.asked = true;
        if acknowledged {
            (known.owed, known.first) = (known.owed.max(Some(at)), None);
        }
    }

    /// Reports a crash or a kill of the process; reports must be in order of time.
    pub fn process_ended(&mut self, when: When) {
        self.ends.push(when);
    }

    /// Checks an event that arrives at any endpoint.
    pub fn arrives(&self, event: &E) -> Result<(), Broken> {
        match self.refused.contains(event) {
            true => {
                broken(Promise::Refused, format!("{event:?} is delivered after it was refused"))
            }
            false => Ok(()),
        }
    }

    /// Reports that an attempt starts at an endpoint. Returns the cause if the attempt needs one.
    pub fn started(&mut self, pair: (E, L), next: Attempt) -> Result<Option<Cause>, Broken> {
        let (ends, give_up_after) = (&self.ends, self.give_up_after);
        let named = || format!("{:?} at {:?}", pair.0, pair.1);
        let known = self.pairs.entry(pair.clone()).or_default();
        let before = known.last.replace((next, None));
        let asked = std::mem::take(&mut known.asked);
        let first = *known.first.get_or_insert(next.start.earliest);
        let Some((one, end)) = before else { return Ok(None) };
        let recorded = end.map_or(u64::MAX, |end| end.recorded);
        // The first crash that can have interrupted the previous attempt.
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
                let story = format!(
                    "{} has a second attempt without a cause: {one:?}, {end:?}, {next:?}",
                    named()
                );
                return broken(Promise::TakenOnce, story);
            }
            Some(End { ending: Ending::Closed { .. }, .. }) if one.reused && !next.reused => {
                return Ok(None);
            }
            Some(End {
                ending: Ending::Failed { delay } | Ending::Closed { delay }, at, ..
            }) => (at, delay),
        };
        // The last attempt starts at `give_up_after`, whatever the delay.
        let is_last = next.start.latest >= first.saturating_add(give_up_after);
        if next.start.latest < at.saturating_add(delay) && !is_last {
            let story = format!(
                "{} has an attempt before its retry delay: {one:?}, {end:?}, {next:?}",
                named()
            );
            return broken(Promise::RetryDelay, story);
        }
        Ok(None)
    }

    /// Reports the end of the latest attempt.
    pub fn ended(&mut self, pair: (E, L), end: End) {
        let known = self.pair(pair);
        if let Some((_, last)) = &mut known.last {
            *last = Some(end);
        }
        if end.ending == Ending::Taken {
            known.settle(end.at);
        }
    }

    /// Reports that an endpoint took it from a process that has since ended.
    pub fn taken(&mut self, pair: (E, L), at: u64) {
        self.pair(pair).settle(at);
    }

    /// Reports that the result of the latest attempt is on disk.
    pub fn recorded(&mut self, pair: (E, L), at: u64) {
        if let Some((_, Some(end))) = &mut self.pair(pair).last {
            end.recorded = end.recorded.min(at);
        }
    }

    /// Cancels the retry delay of an earlier failure: the webhook was reactivated.
    pub fn needs_no_delay(&mut self, pair: (E, L)) {
        if let Some((_, Some(end))) = &mut self.pair(pair).last
            && end.ending != Ending::Taken
        {
            end.ending = Ending::Failed { delay: 0 };
        }
    }

    /// Reports that it was given up, at `at` at the latest.
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

    /// Whether it was taken or given up since its delivery was last required.
    pub fn is_settled(&self, pair: &(E, L)) -> bool {
        self.pairs.get(pair).is_some_and(|one| one.settled.is_some() && one.settled >= one.owed)
    }

    /// What is missing at the end, except the `excused`: still waiting, or its webhook is deleted.
    pub fn at_the_end(&self, excused: impl Fn(&(E, L)) -> bool) -> Vec<Broken> {
        let owed = self.pairs.iter().filter(|(_, one)| one.owed.is_some());
        let lost = owed.filter(|(pair, _)| !self.is_settled(pair) && !excused(pair));
        let lost = lost.map(|(pair, one)| Broken {
            promise: Promise::NothingLost,
            story: format!("{pair:?} is acknowledged, and neither delivered nor given up: {one:?}"),
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
