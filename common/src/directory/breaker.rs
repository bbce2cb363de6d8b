//! A circuit breaker: after a few requests in a row without a response it sends only probes, so
//! that other requests need not wait for a timeout.
//!
//! # Invariants
//!
//! 1. While open, at most one request is sent in each [`PAUSE`].
//! 2. One response, whatever its content, closes it.
//!
//! # Not here
//!
//! Sending them (`server`).

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use crate::time::Tick;

/// Replacing a server loses one or two requests; three in a row without a response are an outage.
const FAILURES_MAX: u32 = 3;

/// Time without requests after one had no response: short enough to notice soon that an outage has
/// ended, and only one request in each such time waits for a probe.
pub(super) const PAUSE: Duration = Duration::from_secs(1);

/// The state of a directory's circuit breaker.
#[derive(Debug, Default)]
pub(super) struct Breaker {
    /// Requests in a row without a response.
    failures: AtomicU32,
    /// While open, no request is sent before this time, in ticks.
    again_at: AtomicU64,
}

impl Breaker {
    /// Whether a request may be sent at `now`. If true, the caller must send one.
    pub(super) fn may_send(&self, now: Tick) -> bool {
        if !self.is_open() {
            return true;
        }
        let again_at = self.again_at.load(Ordering::Relaxed);
        let next = now.plus(PAUSE).0;
        now.0 >= again_at
            && self
                .again_at
                .compare_exchange(again_at, next, Ordering::Relaxed, Ordering::Relaxed)
                .is_ok()
    }

    /// Whether no caller may send a request at `now`.
    #[must_use]
    pub(super) fn is_paused(&self, now: Tick) -> bool {
        self.is_open() && now.0 < self.again_at.load(Ordering::Relaxed)
    }

    /// Whether it is open: [`FAILURES_MAX`] requests in a row had no response.
    #[must_use]
    pub(super) fn is_open(&self) -> bool {
        self.failures.load(Ordering::Relaxed) >= FAILURES_MAX
    }

    /// Records a response; true if it is the first after an outage.
    pub(super) fn answered(&self) -> bool {
        self.failures.swap(0, Ordering::Relaxed) >= FAILURES_MAX
    }

    /// Records a request that has failed at `now` without a response; true if an outage starts.
    pub(super) fn unanswered(&self, now: Tick) -> bool {
        self.again_at.fetch_max(now.plus(PAUSE).0, Ordering::Relaxed);
        // Counts no further: only whether the maximum is reached matters.
        let failures = self.failures.fetch_add(1, Ordering::Relaxed).saturating_add(1);
        if failures > FAILURES_MAX {
            self.failures.fetch_min(FAILURES_MAX, Ordering::Relaxed);
        }
        failures == FAILURES_MAX
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000;

    fn open(at: Tick) -> Breaker {
        let breaker = Breaker::default();
        assert!(!breaker.unanswered(at) && !breaker.unanswered(at));
        assert!(!breaker.is_open() && breaker.may_send(at));
        assert!(breaker.unanswered(at), "the third begins an outage");
        breaker
    }

    #[test]
    fn an_open_breaker_admits_one_probe_in_each_pause() {
        let breaker = open(Tick(0));
        assert!(!breaker.may_send(Tick(SECOND - 1)) && breaker.is_paused(Tick(SECOND - 1)));
        assert!(!breaker.is_paused(Tick(SECOND)));
        assert!(breaker.may_send(Tick(SECOND)));
        assert!(!breaker.may_send(Tick(SECOND)), "one is asking already");
        assert!(!breaker.unanswered(Tick(SECOND)), "it is the same outage");
        assert!(!breaker.may_send(Tick(2 * SECOND - 1)));
        assert!(breaker.may_send(Tick(2 * SECOND)));
    }

    #[test]
    fn one_answer_ends_an_outage() {
        let breaker = open(Tick(0));
        assert!(breaker.answered());
        assert!(!breaker.answered(), "it was over already");
        assert!(breaker.may_send(Tick(0)) && breaker.may_send(Tick(0)));
    }

    #[test]
    fn an_answer_in_between_is_no_outage() {
        let breaker = Breaker::default();
        for _ in 0..100 {
            breaker.unanswered(Tick(0));
            breaker.unanswered(Tick(0));
            assert!(!breaker.answered());
        }
        assert!(!breaker.is_open());
    }
}
