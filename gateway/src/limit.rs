//! Asks every limit that applies; all admit, or none is charged.
//!
//! The nouns of limiting: a [`Quota`] says how much, a [`Key`] whose; a [`LimitCheck`] is one
//! limit's question about one request, a [`Verdict`] the answer to all of them.
//!
//! # Invariants
//!
//! 1. A request that a limit refuses costs nothing in any limit.
//! 2. What a client is told comes from the same look at the states as the decision.
//!
//! # Not here
//!
//! Where states are kept (`memory`), which limits a request meets (`route`, `rules`), what the
//! client is told (`report`).

// The paths are written out so that the tests can compile this file under a model checker.
#[path = "limit/boost.rs"]
pub mod boost;
#[path = "limit/heavy_hitters.rs"]
pub mod heavy_hitters;
#[path = "limit/key.rs"]
pub mod key;
#[path = "limit/limiter.rs"]
pub mod limiter;
#[path = "limit/memory.rs"]
pub mod memory;
#[path = "limit/report.rs"]
pub mod report;
#[path = "limit/snapshot.rs"]
pub mod snapshot;

use std::time::Duration;

use arrayvec::ArrayVec;
use weir_common::directory::Values;
use weir_common::limit::decision::{Decision, Usage};
use weir_common::limit::rolling::{self, Log};
use weir_common::limit::token_bucket::{self, Bucket};
use weir_common::time::Tick;

use self::key::{Key, LimitTag};

/// A route names at most so many limits; each is a lock held while the others are asked.
pub const CHECKS_MAX: usize = 8;

/// How much a limit allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Quota {
    /// So many requests in any stretch of the window.
    Rolling(rolling::Quota),
    /// So many tokens, flowing back at a rate.
    Bucket(token_bucket::BucketQuota),
}

impl Quota {
    /// The allowance as a client is shown it: requests per window, or the burst of a bucket.
    #[must_use]
    pub fn limit(&self) -> u32 {
        match self {
            Self::Rolling(quota) => quota.requests,
            Self::Bucket(quota) => quota.burst,
        }
    }

    /// Its numbers, as a plan or a tenant gives them.
    #[must_use]
    pub fn values(&self) -> Values {
        match self {
            Self::Rolling(own) => Values { requests: Some(own.requests), ..Values::default() },
            Self::Bucket(own) => {
                Values { rate: Some(own.rate), burst: Some(own.burst), ..Values::default() }
            }
        }
    }

    /// How long a wholly used allowance takes to come back.
    #[must_use]
    pub fn window(&self) -> Duration {
        match self {
            Self::Rolling(quota) => quota.window,
            Self::Bucket(quota) => Duration::from_micros(
                (u64::from(quota.burst) * 1_000_000).div_ceil(quota.rate.into()),
            ),
        }
    }
}

/// What one key has used of one limit.
#[derive(Clone, Debug)]
pub enum State {
    /// Of a rolling window.
    Log(Log),
    /// Of a token bucket.
    Bucket(Bucket),
}

impl State {
    /// The state of a key that has used nothing.
    #[must_use]
    pub fn fresh(quota: Quota) -> Self {
        match quota {
            Quota::Rolling(_) => Self::Log(Log::default()),
            Quota::Bucket(_) => Self::Bucket(Bucket::default()),
        }
    }

    /// Makes the state one of `quota`'s algorithm. A limit whose algorithm has been changed
    /// starts anew: the two keep different things and neither can be made of the other.
    pub(crate) fn fit(&mut self, quota: Quota, now: Tick) {
        match (self, quota) {
            (Self::Log(log), Quota::Rolling(quota)) => log.fit(quota, now),
            (Self::Bucket(_), Quota::Bucket(_)) => {}
            (state, _) => *state = Self::fresh(quota),
        }
    }

    pub(crate) fn decide(&self, quota: Quota, cost: u32, now: Tick) -> Decision {
        match (self, quota) {
            (Self::Log(log), Quota::Rolling(quota)) => log.decide(quota, cost, now),
            (Self::Bucket(bucket), Quota::Bucket(quota)) => bucket.decide(quota, cost, now),
            _ => Self::fresh(quota).decide(quota, cost, now),
        }
    }

    pub(crate) fn charge(&mut self, quota: Quota, cost: u32, now: Tick) -> Usage {
        match (&mut *self, quota) {
            (Self::Log(log), Quota::Rolling(quota)) => log.charge(quota, cost, now),
            (Self::Bucket(bucket), Quota::Bucket(quota)) => bucket.charge(quota, cost, now),
            _ => {
                *self = Self::fresh(quota);
                self.charge(quota, cost, now)
            }
        }
    }

    pub(crate) fn usage(&self, quota: Quota, now: Tick) -> Usage {
        match (self, quota) {
            (Self::Log(log), Quota::Rolling(quota)) => log.usage(quota, now),
            (Self::Bucket(bucket), Quota::Bucket(quota)) => bucket.usage(quota, now),
            _ => Self::fresh(quota).usage(quota, now),
        }
    }

    /// When the state can no longer be told from a fresh one: by the window, which is the limit's,
    /// or by any rate, which may be another with the next request.
    pub(crate) fn forgotten_at(&self, quota: Quota) -> Tick {
        match (self, quota) {
            (Self::Log(log), Quota::Rolling(quota)) => log.full_at(quota),
            (Self::Bucket(bucket), Quota::Bucket(_)) => bucket.forgotten_at(),
            _ => Tick(0),
        }
    }
}

/// One limit's question: does one more request of this key fit?
#[derive(Clone, Copy, Debug)]
pub struct LimitCheck {
    /// Whose state.
    pub key: Key,
    /// Of which limit: what the shared entries of unknown keys are found by.
    pub limit: LimitTag,
    /// How much it may use now.
    pub quota: Quota,
    /// How much it may use when a boost has ended; the same where there is none.
    pub lasting: Quota,
    /// Whether the limit refuses, or only says what it would have refused.
    pub enforced: bool,
    /// Whether the directory knows the key. Strangers share a bounded room.
    pub known: bool,
}

/// One limit's answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CheckResult {
    /// Whether the limit alone would admit the request.
    pub decision: Decision,
    /// Where the key stands: after the charge if there was one.
    pub usage: Usage,
}

/// The answer to all checks of a request, in their order.
#[derive(Clone, Debug)]
pub struct Verdict {
    answers: ArrayVec<CheckResult, CHECKS_MAX>,
    admitted: bool,
}

impl Verdict {
    pub(crate) fn new(answers: ArrayVec<CheckResult, CHECKS_MAX>, admitted: bool) -> Self {
        Self { answers, admitted }
    }

    /// Whether every enforced limit admitted the request, and all were charged.
    #[must_use]
    pub fn is_admitted(&self) -> bool {
        self.admitted
    }

    /// Each limit's answer, in the order they were asked.
    pub fn answers(&self) -> impl Iterator<Item = &CheckResult> {
        self.answers.iter()
    }
}
