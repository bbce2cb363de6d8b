//! Checks every limit that applies to a request: all admit it, or none is charged.
//!
//! A [`Quota`] is how much a limit allows, a [`Key`] names the counter; a [`LimitCheck`] checks one
//! limit for one request, and a [`Verdict`] has the results of all checks of the request.
//!
//! # Invariants
//!
//! 1. A request that an enforced limit refuses is charged to no limit.
//! 2. The decision and the numbers that a client receives come from one read of the states.
//!
//! # Not here
//!
//! Where states are stored (`memory`), which limits apply to a request (`rules`), the headers that
//! the client receives (`report`).

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

/// The most limits of one request: the lock of each is held while the others are checked.
pub const CHECKS_MAX: usize = 8;

/// How much a limit allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Quota {
    /// At most this many requests in any interval as long as the window.
    Rolling(rolling::Quota),
    /// A token bucket, refilled at a rate.
    Bucket(token_bucket::BucketQuota),
}

impl Quota {
    /// The allowance in the client's headers: requests per window, or the burst of a bucket.
    #[must_use]
    pub fn limit(&self) -> u32 {
        match self {
            Self::Rolling(quota) => quota.requests,
            Self::Bucket(quota) => quota.burst,
        }
    }

    /// Its numbers, in the form in which a plan or a tenant overrides them.
    #[must_use]
    pub fn values(&self) -> Values {
        match self {
            Self::Rolling(own) => Values { requests: Some(own.requests), ..Values::default() },
            Self::Bucket(own) => {
                Values { rate: Some(own.rate), burst: Some(own.burst), ..Values::default() }
            }
        }
    }

    /// How long an exhausted allowance takes to be available in full again.
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

    /// Makes the state one of `quota`'s algorithm. A limit whose algorithm has changed starts with
    /// a fresh state: the state of one algorithm cannot be converted to the other's.
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

    /// When the state becomes equal to a fresh one: for a log by the limit's window, for a bucket
    /// at any rate, because the next request of the key may have another rate.
    pub(crate) fn forgotten_at(&self, quota: Quota) -> Tick {
        match (self, quota) {
            (Self::Log(log), Quota::Rolling(quota)) => log.full_at(quota),
            (Self::Bucket(bucket), Quota::Bucket(_)) => bucket.forgotten_at(),
            _ => Tick(0),
        }
    }
}

/// Checks whether one more request of a key fits one limit.
#[derive(Clone, Copy, Debug)]
pub struct LimitCheck {
    /// The key of the state.
    pub key: Key,
    /// The limit: the shared entries of unknown keys are derived from it.
    pub limit: LimitTag,
    /// How much the key may use now.
    pub quota: Quota,
    /// How much the key may use without a boost.
    pub lasting: Quota,
    /// Whether the limit refuses, or only reports what it would have refused.
    pub enforced: bool,
    /// Whether the headers of responses may show the limit.
    pub shown: bool,
    /// Whether the directory knows the key. The number of entries for unknown keys is bounded.
    pub known: bool,
}

impl LimitCheck {
    /// A check of an enforced and shown limit, for a key that the directory does not know.
    #[must_use]
    pub fn new(key: Key, limit: LimitTag, quota: Quota) -> Self {
        Self { key, limit, quota, lasting: quota, enforced: true, shown: true, known: false }
    }
}

/// The result of one check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CheckResult {
    /// Whether the limit alone would admit the request.
    pub decision: Decision,
    /// The key's usage, after the charge if there was one.
    pub usage: Usage,
}

/// The results of all checks of a request, in their order.
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

    /// The result of each check, in the order of the checks.
    pub fn answers(&self) -> impl Iterator<Item = &CheckResult> {
        self.answers.iter()
    }
}
