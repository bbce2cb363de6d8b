//! Reports the arrivals to the promises: when an attempt started, how its endpoint ended it, and
//! why the dispatcher may not have received the response.

use super::{Judge, SECOND};
use crate::promises::{Attempt, Cause, End, Ending, Promise, When};
use crate::survival::cast::{DEADLINE, FIRST_DELAY};
use crate::survival::events::Mark;
use crate::survival::history::{Arrival, Redelivered, Span, State};

/// A known result is on disk within this time, unless the process is suspended or the disk is full:
/// hundreds of times the usual time.
const RECORDED_WITHIN: u64 = SECOND;

/// Kills explain many duplicates: for these times after the response, those with a kill within it
/// are counted.
const SOON: [(u64, &str); 2] = [
    (SECOND / 10, "duplicates with a kill within 100 ms of the response"),
    (SECOND, "duplicates with a kill within 1 s of the response"),
];

/// After the disk has space again: the worker's pause after a failed write (500 ms), and a margin.
const RECORDED_AFTER_FULL: u64 = 2 * SECOND;

/// The longest delay from sending to receiving, in both directions.
const LAG: u64 = SECOND / 4;

impl Judge<'_> {
    /// Reports all arrivals, in the order of time for each event and endpoint.
    pub(super) fn arrivals(&mut self) {
        let state = self.state;
        for end in &state.ends {
            self.promises.process_ended(When { earliest: end.from, latest: end.to });
        }
        let [mut arrivals, mut retries, mut early, mut refused] = [0_u64; 4];
        let mut soon = [0; 2];
        let mut pairs: Vec<_> = state.arrivals.iter().collect();
        pairs.sort_by_key(|(pair, _)| **pair);
        self.verdict.duplicates.entry(None).or_default();
        for (pair, all) in pairs {
            arrivals += all.len() as u64;
            let judged = self.promises.arrives(&pair.0);
            refused += u64::from(self.record(judged).is_none());
            let mut all = all.clone();
            all.sort_by_key(|one| one.at);
            let asked = state.redelivered.get(pair).map(Vec::as_slice).unwrap_or_default();
            let mut asked = asked.iter().peekable();
            let mut before: Option<&Arrival> = None;
            for one in &all {
                while let Some(asked) = asked.next_if(|asked| asked.at <= one.at) {
                    self.redelivered(*pair, asked);
                }
                let start = When { earliest: one.at.saturating_sub(LAG), latest: one.at };
                let judged = self.promises.started(*pair, Attempt { start, reused: one.reused });
                let is_early = judged.as_ref().is_err_and(|it| it.promise == Promise::RetryDelay);
                early += u64::from(is_early && self.clock_holds);
                let cause = self.record(judged).flatten();
                if let Some(before) = before.filter(|before| before.is_taken()) {
                    *self.verdict.duplicates.entry(cause).or_default() += 1;
                    if cause == Some(Cause::Ended) {
                        self.count_soon(before, &mut soon);
                    }
                } else {
                    retries += u64::from(before.is_some());
                }
                self.promises.ended(*pair, self.end(*pair, one));
                before = Some(one);
            }
            asked.for_each(|asked| self.redelivered(*pair, asked));
        }
        self.count("arrivals", arrivals);
        self.count("arrivals of refused events", refused);
        self.count("retries after a failure", retries);
        self.count("retries that start too early", early);
        let asked = state.redelivered.values().flatten().filter(|asked| asked.taken).count();
        self.count("redeliveries acknowledged", asked as u64);
        for (count, (_, name)) in soon.into_iter().zip(SOON) {
            self.count(name, count);
        }
    }

    fn redelivered(&mut self, pair: (Mark, usize), asked: &Redelivered) {
        self.promises.redelivered(pair, asked.at, asked.taken);
    }

    fn count_soon(&self, one: &Arrival, soon: &mut [u64; 2]) {
        let end = self.state.ends.iter().find(|end| end.to.saturating_add(LAG) >= one.at);
        for (count, (within, _)) in soon.iter_mut().zip(SOON) {
            *count += u64::from(end.is_some_and(|end| end.from <= one.answered + within));
        }
    }

    fn end(&self, pair: (Mark, usize), one: &Arrival) -> End {
        let delay = FIRST_DELAY.as_micros() as u64;
        let ending = match one.status {
            _ if one.is_taken() => Ending::Taken,
            Some(_) => Ending::Failed { delay },
            None => Ending::Closed { delay },
        };
        // The dispatcher knows the result at the deadline of the attempt at the latest.
        let known = one.answered.max(one.at + DEADLINE.as_micros() as u64);
        let recorded = self.recorded_by(known);
        End { ending, at: one.answered, cause: self.cause(pair, one), recorded }
    }

    /// Why the dispatcher may not have received the response in time.
    fn cause(&self, pair: (Mark, usize), one: &Arrival) -> Option<Cause> {
        let deadline = DEADLINE.as_micros() as u64;
        let took = one.answered.saturating_sub(one.at);
        if took + LAG >= deadline {
            return Some(Cause::Late);
        }
        let froze = |span: &Span| {
            span.from <= one.answered + LAG
                && span.to.saturating_add(deadline) >= one.at
                && span.length() + took + LAG >= deadline
        };
        if self.state.stops.iter().any(froze) {
            return Some(Cause::Frozen);
        }
        let known = self.state.ids.of(&pair.0).map(|id| (id.clone(), pair.1));
        let timeouts = known.and_then(|known| self.said.timeouts.get(&known));
        let timed_out = timeouts.is_some_and(|seconds| seconds.contains(&one.signed));
        timed_out.then_some(Cause::TimedOut)
    }

    /// The latest time at which a result that is known at `known` is on disk.
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
}
