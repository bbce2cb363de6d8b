//! Bounds how many names that do not exist an address may have the directory look up.
//!
//! Each unknown name costs the directory a request. A name that does not exist is charged to the
//! address that sent it; one that exists costs nothing, so that an address with requests for many
//! tenants is never refused for it.

use std::net::IpAddr;

use weir_common::limit::token_bucket;
use weir_common::time::Tick;

use crate::limit::key::{Key, Seed};
use crate::limit::limiter::Limiter;
use crate::limit::{LimitCheck, Quota};
use crate::rules::tenant::Subject;

/// Lookups of names that do not exist, per address, at once: a script with the wrong list finds
/// out, and a search through all names does not get far.
const UNKNOWN_MAX: u32 = 60;

/// The same, each second from then on.
const UNKNOWN_PER_SECOND: u32 = 1;

/// What the state is found by: no limit's name has a space in it.
const UNKNOWN_LIMIT: &str = "unknown names";

const UNKNOWN_QUOTA: Quota =
    Quota::Bucket(token_bucket::BucketQuota { rate: UNKNOWN_PER_SECOND, burst: UNKNOWN_MAX });

/// What one request may still have the directory look up.
pub struct UnknownBudget<'s> {
    /// The operator has none.
    limit: Option<(&'s Limiter, LimitCheck)>,
    /// When the request came.
    pub(super) now: Tick,
}

impl<'s> UnknownBudget<'s> {
    /// The budget of an address.
    #[must_use]
    pub fn of(address: IpAddr, seed: &Seed, limiter: &'s Limiter, now: Tick) -> Self {
        let tag = seed.limit(UNKNOWN_LIMIT);
        let check = LimitCheck {
            key: Key::new(Subject::address(seed, address).owner, tag),
            limit: tag,
            quota: UNKNOWN_QUOTA,
            lasting: UNKNOWN_QUOTA,
            enforced: true,
            known: false,
        };
        Self { limit: Some((limiter, check)), now }
    }

    /// The operator's: any name may be looked up.
    #[must_use]
    pub fn unlimited(now: Tick) -> Self {
        Self { limit: None, now }
    }

    /// The address that is charged, where one is.
    pub(super) fn key(&self) -> Option<Key> {
        self.limit.as_ref().map(|(_, check)| check.key)
    }

    /// Whether a name that is not cached may be looked up.
    pub(super) fn allows(&self) -> bool {
        let Some((limiter, check)) = &self.limit else { return true };
        !limiter.is_used_up(&mut [*check], self.now)
    }

    /// Charges the lookup of a name that does not exist.
    pub(super) fn charge(&self) {
        if let Some((limiter, check)) = &self.limit {
            // Whether it fits was checked before; of a few at one time, the last may not.
            let _ = limiter.check(&mut [*check], self.now);
        }
    }
}
