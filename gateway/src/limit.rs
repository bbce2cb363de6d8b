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
#[path = "limit/held.rs"]
pub mod held;
#[path = "limit/key.rs"]
pub mod key;
#[path = "limit/limiter.rs"]
pub mod limiter;
#[path = "limit/memory.rs"]
pub mod memory;
#[path = "limit/report.rs"]
pub mod report;
#[path = "limit/shard.rs"]
pub mod shard;
#[path = "limit/shared.rs"]
pub mod shared;
#[path = "limit/snapshot.rs"]
pub mod snapshot;
#[path = "limit/warnings.rs"]
pub mod warnings;

use arrayvec::ArrayVec;
use weir_common::limit::decision::{Decision, Usage};
pub use weir_common::limit::quota::{Horizon, Quota};
pub use weir_common::limit::state::State;

use self::held::Held;
use self::key::{Key, LimitTag};

/// The most limits of one request: the lock of each is held while the others are checked.
pub const CHECKS_MAX: usize = 8;

/// Checks whether a request of a key fits one limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LimitCheck {
    /// The key of the state.
    pub key: Key,
    /// The limit: the shared entries of unknown keys are derived from it.
    pub limit: LimitTag,
    /// How much the key may use now.
    pub quota: Quota,
    /// How much the key may use without a boost.
    pub lasting: Quota,
    /// How long a charge can matter under every quota that the limit may have.
    pub horizon: Horizon,
    /// What the request costs.
    pub cost: u32,
    /// Whether the limit refuses, or only reports what it would have refused.
    pub enforced: bool,
    /// Whether the headers of responses may show the limit.
    pub shown: bool,
    /// Whether the directory knows the key. The number of entries for unknown keys is bounded.
    pub known: bool,
    /// What decides while the shared store is away.
    pub on_failure: StoreFailure,
    /// Keys of one decision have the same slot in a shared store: a keyed hash of the organisation,
    /// or of the owner itself.
    pub slot: u64,
}

/// What decides a check while the store that gateways share is away.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum StoreFailure {
    /// This gateway's share of the allowance.
    #[default]
    LocalShare,
    /// The request is refused.
    Refuse,
    /// The check is not made.
    Allow,
}

impl LimitCheck {
    /// A check of an enforced and shown limit that has only this quota, for a request that costs 1,
    /// of a key that the directory does not know.
    #[must_use]
    pub fn new(key: Key, limit: LimitTag, quota: Quota) -> Self {
        Self {
            key,
            limit,
            quota,
            lasting: quota,
            horizon: Horizon::of_one(&quota),
            cost: 1,
            enforced: true,
            shown: true,
            known: false,
            on_failure: StoreFailure::LocalShare,
            slot: 0,
        }
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
#[derive(Debug)]
pub struct Verdict {
    answers: ArrayVec<CheckResult, CHECKS_MAX>,
    admitted: bool,
    /// Counts the request as in flight until dropped, where a limit counts that.
    pub held: Option<Box<Held>>,
}

impl Verdict {
    pub(crate) fn new(answers: ArrayVec<CheckResult, CHECKS_MAX>, admitted: bool) -> Self {
        Self { answers, admitted, held: None }
    }

    /// The keys among `checks` that count the request as in flight.
    pub(crate) fn keys_in_flight<'v>(
        &'v self,
        checks: &'v [LimitCheck],
    ) -> impl Iterator<Item = Key> + 'v {
        let charged = checks.iter().zip(&self.answers).filter(|(check, answer)| {
            let counts = matches!(check.quota, Quota::Concurrency(_));
            counts && self.admitted && answer.decision == Decision::Admit
        });
        charged.map(|(check, _)| check.key)
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
