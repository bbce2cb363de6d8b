//! A circuit breaker: after requests for a few names in a row without a response it sends only
//! probes, so that other requests need not wait for a timeout.
//!
//! # Invariants
//!
//! 1. While open, at most one request is sent in each [`PAUSE`].
//! 2. One response, whatever its content, closes it.
//! 3. A name that stays without a response while others get theirs opens it no more, and delays no
//!    probe of another name.
//!
//! # Not here
//!
//! Sending them (`server`).

use std::collections::HashSet;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::time::Tick;

/// Replacing a server loses one or two requests; three in a row without a response are an outage.
const FAILURES_MAX: usize = 3;

/// Names that are remembered to have failed: more than a directory that responds to others has.
const FAILING_MAX: usize = 1_000;

/// Time without requests after one had no response: short enough to notice soon that an outage has
/// ended, and only one request in each such time waits for a probe.
pub(super) const PAUSE: Duration = Duration::from_secs(1);

/// A directory's circuit breaker.
#[derive(Debug, Default)]
pub(super) struct Breaker {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// The names whose last request had no response.
    failing: HashSet<Box<str>>,
    /// How many of them began to fail since the last response, [`FAILURES_MAX`] at most.
    failures: usize,
    /// While open, no request is sent before this time.
    again_at: Tick,
}

impl Breaker {
    /// Whether a request for `name` may be sent at `now`. If true, the caller must send one. A name
    /// that has failed leaves the probe to others for a [`PAUSE`].
    pub(super) fn may_send(&self, name: &str, now: Tick) -> bool {
        let mut state = self.state();
        if !state.is_open() {
            return true;
        }
        let yields = if state.failing.contains(name) { PAUSE } else { Duration::ZERO };
        if now < state.again_at.plus(yields) {
            return false;
        }
        state.again_at = now.plus(PAUSE);
        true
    }

    /// Whether no caller may send a request at `now`.
    #[must_use]
    pub(super) fn is_paused(&self, now: Tick) -> bool {
        let state = self.state();
        state.is_open() && now < state.again_at
    }

    /// Whether it is open: requests for [`FAILURES_MAX`] names in a row had no response.
    #[must_use]
    pub(super) fn is_open(&self) -> bool {
        self.state().is_open()
    }

    /// Records a response for `name`; true if it is the first after an outage.
    pub(super) fn answered(&self, name: &str) -> bool {
        let mut state = self.state();
        let was_open = state.is_open();
        state.failures = 0;
        state.failing.remove(name);
        was_open
    }

    /// Records a request for `name` that has failed at `now` without a response; true if an outage
    /// starts.
    pub(super) fn unanswered(&self, name: &str, now: Tick) -> bool {
        let mut state = self.state();
        if state.failing.len() >= FAILING_MAX {
            state.failing.clear();
        }
        if !state.failing.insert(name.into()) {
            // Nothing new is known of the directory: others need not wait once more.
            return false;
        }
        state.again_at = state.again_at.max(now.plus(PAUSE));
        if state.is_open() {
            return false;
        }
        state.failures += 1;
        state.is_open()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn is_open(&self) -> bool {
        self.failures >= FAILURES_MAX
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000;

    fn open(at: Tick) -> Breaker {
        let breaker = Breaker::default();
        assert!(!breaker.unanswered("a", at) && !breaker.unanswered("b", at));
        assert!(!breaker.is_open() && breaker.may_send("a", at));
        assert!(breaker.unanswered("c", at), "the third begins an outage");
        breaker
    }

    #[test]
    fn an_open_breaker_admits_one_probe_in_each_pause() {
        let breaker = open(Tick(0));
        assert!(!breaker.may_send("d", Tick(SECOND - 1)) && breaker.is_paused(Tick(SECOND - 1)));
        assert!(!breaker.is_paused(Tick(SECOND)));
        assert!(breaker.may_send("d", Tick(SECOND)));
        assert!(!breaker.may_send("e", Tick(SECOND)), "one is asking already");
        assert!(!breaker.unanswered("d", Tick(SECOND)), "it is the same outage");
        assert!(!breaker.may_send("e", Tick(2 * SECOND - 1)));
        assert!(breaker.may_send("e", Tick(2 * SECOND)));
    }

    #[test]
    fn one_answer_ends_an_outage() {
        let breaker = open(Tick(0));
        assert!(breaker.answered("a"));
        assert!(!breaker.answered("a"), "it was over already");
        assert!(breaker.may_send("a", Tick(0)) && breaker.may_send("b", Tick(0)));
    }

    #[test]
    fn an_answer_in_between_is_no_outage() {
        let breaker = Breaker::default();
        for n in 0..100 {
            breaker.unanswered(&format!("a{n}"), Tick(0));
            breaker.unanswered(&format!("b{n}"), Tick(0));
            assert!(!breaker.answered("c"));
        }
        assert!(!breaker.is_open());
    }

    #[test]
    fn one_name_that_fails_is_no_outage_nor_are_a_few_while_others_have_answers() {
        let breaker = Breaker::default();
        for _ in 0..100 {
            assert!(!breaker.unanswered("a", Tick(0)) && !breaker.unanswered("b", Tick(0)));
        }
        breaker.answered("c");
        for _ in 0..100 {
            assert!(!["a", "b", "d"].map(|name| breaker.unanswered(name, Tick(0))).contains(&true));
        }
        assert!(!breaker.unanswered("c", Tick(0)) && breaker.unanswered("e", Tick(0)), "others");
    }

    #[test]
    fn a_name_that_has_failed_leaves_the_probe_to_others() {
        let breaker = open(Tick(0));
        assert!(!breaker.may_send("a", Tick(2 * SECOND - 1)), "another may still come");
        assert!(breaker.may_send("d", Tick(2 * SECOND - 1)));
        let breaker = open(Tick(0));
        assert!(breaker.may_send("a", Tick(2 * SECOND)), "none has come");
        assert!(!breaker.unanswered("a", Tick(3 * SECOND)));
        assert!(breaker.may_send("d", Tick(3 * SECOND)), "at once");
    }

    #[test]
    fn the_names_that_are_remembered_are_bounded() {
        let breaker = Breaker::default();
        for n in 0..10 * FAILING_MAX {
            breaker.unanswered(&n.to_string(), Tick(0));
        }
        assert!(breaker.state().failing.len() <= FAILING_MAX && breaker.is_open());
    }
}
