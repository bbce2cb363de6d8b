//! A circuit breaker: after a few requests in a row without a response it sends only probes, so
//! that other requests need not wait for a timeout.
//!
//! # Invariants
//!
//! 1. While open, at most one request is sent in each [`PAUSE`].
//! 2. One response, whatever its content, closes it.
//! 3. A name that stays without a response while others get theirs opens it no more, and delays no
//!    probe of another name.
//! 4. Nor does a caller whose names stay without a response, however many they are.
//!
//! # Not here
//!
//! Sending them (`server`).

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::time::Tick;

/// Replacing a server loses one or two requests; three in a row without a response are an outage.
const FAILURES_MAX: usize = 3;

/// Names and callers that are remembered to have failed: more than a directory that responds to
/// others has.
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
    /// The names whose last request had no response, and [`Self::responses`] when that began.
    failing: HashMap<Box<str>, u64>,
    /// The callers whose last request had no response, and the same.
    failing_callers: HashMap<u128, u64>,
    /// How many responses there have been.
    responses: u64,
    /// How many requests had none since, [`FAILURES_MAX`] at most. Of a name or a caller that began
    /// to fail before, while others had theirs, none counts.
    failures: usize,
    /// While open, no request is sent before this time.
    again_at: Tick,
}

impl Breaker {
    /// Whether a request of `caller` for `name` may be sent at `now`. If true, it must be sent. A
    /// name or a caller that has failed leaves the probe to others for a [`PAUSE`].
    pub(super) fn may_send(&self, name: &str, caller: Option<u128>, now: Tick) -> bool {
        let mut state = self.state();
        if !state.is_open() {
            return true;
        }
        let has_failed = state.failing.contains_key(name)
            || caller.is_some_and(|caller| state.failing_callers.contains_key(&caller));
        let yields = if has_failed { PAUSE } else { Duration::ZERO };
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

    /// Whether it is open: [`FAILURES_MAX`] requests in a row had no response.
    #[must_use]
    pub(super) fn is_open(&self) -> bool {
        self.state().is_open()
    }

    /// Records a response to `caller` for `name`; true if it is the first after an outage.
    pub(super) fn answered(&self, name: &str, caller: Option<u128>) -> bool {
        let mut state = self.state();
        let was_open = state.is_open();
        state.failures = 0;
        state.responses += 1;
        state.failing.remove(name);
        if let Some(caller) = caller {
            state.failing_callers.remove(&caller);
        }
        was_open
    }

    /// Records a request of `caller` for `name` that has failed at `now` without a response; true
    /// if an outage starts.
    pub(super) fn unanswered(&self, name: &str, caller: Option<u128>, now: Tick) -> bool {
        let mut state = self.state();
        if state.failing.len() >= FAILING_MAX {
            state.failing.clear();
        }
        if state.failing_callers.len() >= FAILING_MAX {
            state.failing_callers.clear();
        }
        let responses = state.responses;
        let of_caller =
            caller.map(|caller| *state.failing_callers.entry(caller).or_insert(responses));
        let (is_open, mut is_new) = (state.is_open(), false);
        let of_name = *state.failing.entry(name.into()).or_insert_with(|| {
            is_new = true;
            responses
        });
        // Where others have had responses since either began to fail, or the name fails on in an
        // outage, nothing new is known of the directory: others need not wait once more.
        let fails_alone = of_name != responses || of_caller.is_some_and(|of| of != responses);
        if fails_alone || is_open && !is_new {
            return false;
        }
        state.again_at = state.again_at.max(now.plus(PAUSE));
        if is_open {
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
        assert!(!breaker.unanswered("a", None, at) && !breaker.unanswered("b", None, at));
        assert!(!breaker.is_open() && breaker.may_send("a", None, at));
        assert!(breaker.unanswered("c", None, at), "the third begins an outage");
        breaker
    }

    #[test]
    fn an_open_breaker_admits_one_probe_in_each_pause() {
        let breaker = open(Tick(0));
        assert!(
            !breaker.may_send("d", None, Tick(SECOND - 1)) && breaker.is_paused(Tick(SECOND - 1))
        );
        assert!(!breaker.is_paused(Tick(SECOND)));
        assert!(breaker.may_send("d", None, Tick(SECOND)));
        assert!(!breaker.may_send("e", None, Tick(SECOND)), "one is asking already");
        assert!(!breaker.unanswered("d", None, Tick(SECOND)), "it is the same outage");
        assert!(!breaker.may_send("e", None, Tick(2 * SECOND - 1)));
        assert!(breaker.may_send("e", None, Tick(2 * SECOND)));
    }

    #[test]
    fn one_answer_ends_an_outage() {
        let breaker = open(Tick(0));
        assert!(breaker.answered("a", None));
        assert!(!breaker.answered("a", None), "it was over already");
        assert!(breaker.may_send("a", None, Tick(0)) && breaker.may_send("b", None, Tick(0)));
    }

    #[test]
    fn an_answer_in_between_is_no_outage() {
        let breaker = Breaker::default();
        for n in 0..100 {
            breaker.unanswered(&format!("a{n}"), None, Tick(0));
            breaker.unanswered(&format!("b{n}"), None, Tick(0));
            assert!(!breaker.answered("c", None));
        }
        assert!(!breaker.is_open());
    }

    #[test]
    fn names_that_fail_while_others_have_answers_are_no_outage() {
        let breaker = Breaker::default();
        for n in 0..200 {
            assert!(
                !["a", "b"].map(|name| breaker.unanswered(name, None, Tick(0))).contains(&true)
            );
            if n < 100 {
                breaker.answered("c", None);
            }
        }
        let others = ["c", "d", "e"].map(|name| breaker.unanswered(name, None, Tick(0)));
        assert_eq!(others, [false, false, true]);
    }

    #[test]
    fn one_name_that_fails_again_and_again_while_none_is_answered_is_an_outage() {
        for names in [["a", "a", "a"], ["a", "b", "a"]] {
            let breaker = Breaker::default();
            breaker.answered("a", None);
            let opened = names.map(|name| breaker.unanswered(name, None, Tick(0)));
            assert_eq!(opened, [false, false, true], "{names:?}");
            assert!(!breaker.may_send("c", None, Tick(SECOND - 1)));
        }
    }

    #[test]
    fn a_caller_whose_names_have_failed_leaves_the_probe_to_others() {
        let (stranger, tenant) = (Some(1), Some(2));
        let breaker = Breaker::default();
        for n in 0..3 {
            breaker.unanswered(&format!("invented{n}"), stranger, Tick(0));
        }
        assert!(!breaker.may_send("invented", stranger, Tick(2 * SECOND - 1)));
        assert!(breaker.may_send("a", tenant, Tick(2 * SECOND - 1)));
        assert!(breaker.answered("a", tenant));
        for n in 3..6 {
            let opens = breaker.unanswered(&format!("invented{n}"), stranger, Tick(3 * SECOND));
            assert!(!opens, "others have answers");
        }
        breaker.answered("b", stranger);
        for name in ["c", "d", "e"] {
            breaker.unanswered(name, stranger, Tick(5 * SECOND));
        }
        assert!(breaker.is_open(), "it is as any caller again");
        assert!(breaker.may_send("invented", stranger, Tick(7 * SECOND)), "no other has come");
    }

    #[test]
    fn a_name_that_has_failed_leaves_the_probe_to_others() {
        let breaker = open(Tick(0));
        assert!(!breaker.may_send("a", None, Tick(2 * SECOND - 1)), "another may still come");
        assert!(breaker.may_send("d", None, Tick(2 * SECOND - 1)));
        let breaker = open(Tick(0));
        assert!(breaker.may_send("a", None, Tick(2 * SECOND)), "none has come");
        assert!(!breaker.unanswered("a", None, Tick(3 * SECOND)));
        assert!(breaker.may_send("d", None, Tick(3 * SECOND)), "at once");
    }

    #[test]
    fn the_names_that_are_remembered_are_bounded() {
        let breaker = Breaker::default();
        for n in 0..10 * FAILING_MAX {
            breaker.unanswered(&n.to_string(), None, Tick(0));
        }
        assert!(breaker.state().failing.len() <= FAILING_MAX && breaker.is_open());
    }
}
