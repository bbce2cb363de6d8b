//! Limits how many lookups of names that do not exist an address can cause.
//!
//! Each name that is not cached costs the directory a request. A name that does not exist is
//! charged to the address that sent it; one that exists is not, so an address with requests for
//! many tenants is never refused for them.

use std::net::IpAddr;
use std::sync::Arc;

use weir_common::limit::token_bucket::{BucketQuota, Rate};
use weir_common::time::Tick;

use crate::limit::key::{Key, Seed};
use crate::limit::limiter::Limiter;
use crate::limit::{LimitCheck, Quota};
use crate::rules::tenant::Subject;

/// Lookups of names that do not exist, per address, in a burst: enough for a script with a wrong
/// list to see its error, too few to enumerate names.
const UNKNOWN_MAX: u32 = 60;

/// Lookups of names that do not exist, per address and second, after the burst.
const UNKNOWN_PER_SECOND: u32 = 1;

/// The name of the limit: no configured limit has a space in its name.
const UNKNOWN_LIMIT: &str = "unknown names";

const UNKNOWN_QUOTA: Quota =
    Quota::Bucket(BucketQuota { rate: Rate::per_second(UNKNOWN_PER_SECOND), burst: UNKNOWN_MAX });

/// The remaining lookups that one request may cause.
pub struct UnknownBudget<'s> {
    /// `None` for the operator, who is not limited.
    limit: Option<(&'s Arc<Limiter>, LimitCheck)>,
    /// When the request arrived.
    pub(super) now: Tick,
}

impl<'s> UnknownBudget<'s> {
    /// The budget of an address.
    #[must_use]
    pub fn of(address: IpAddr, seed: &Seed, limiter: &'s Arc<Limiter>, now: Tick) -> Self {
        let tag = seed.limit(UNKNOWN_LIMIT);
        let key = Key::new(Subject::address(seed, address).owner, tag);
        let check = LimitCheck::new(key, tag, UNKNOWN_QUOTA);
        Self { limit: Some((limiter, check)), now }
    }

    /// A budget without a limit, for the operator.
    #[must_use]
    pub fn unlimited(now: Tick) -> Self {
        Self { limit: None, now }
    }

    /// The key of the address that is charged, if one is.
    pub(super) fn key(&self) -> Option<Key> {
        self.limit.as_ref().map(|(_, check)| check.key)
    }

    /// Whether a name that is not cached may be looked up.
    pub(super) fn allows(&self) -> bool {
        let Some((limiter, check)) = &self.limit else { return true };
        let (store, now) = limiter.own(self.now);
        !store.usage(check, now).is_ok_and(|usage| usage.remaining == 0)
    }

    /// Charges the lookup of a name that does not exist.
    pub(super) fn charge(&self) {
        if let Some((limiter, check)) = &self.limit {
            // `allows` has checked that it fits; of concurrent lookups the last may not fit.
            let (store, now) = limiter.own(self.now);
            let _ = store.judge(&[*check], now);
        }
    }
}
