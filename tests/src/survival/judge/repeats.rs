//! Why an event came again to an endpoint: after a failure in its time, or after it was taken for a
//! reason that is in the books.

use super::{Cause, DOUBT, Judge, SECOND};
use crate::survival::books::{Arrival, Span, State};
use crate::survival::cast::{DEADLINE, FIRST_DELAY, GIVE_UP_AFTER};
use crate::survival::events::Mark;

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

impl Judge<'_> {
    /// Whatever came more than once.
    pub(super) fn repeats(&mut self) {
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
                if one.is_sent_once_more_as(next) {
                    continue;
                }
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
}
