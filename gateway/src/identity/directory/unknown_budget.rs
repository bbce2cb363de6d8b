//! Limits how many lookups of names that do not exist an address can cause.
//!
//! Each name that is not cached costs the directory a request. A name that does not exist is
//! charged to the address that sent it, and so is one that the directory fails to answer; one that
//! exists is not, so an address with requests for many tenants is never refused for them.
//!
//! Invariant: lookups of names that had no entry before leave half of the burst to other names, and
//! those of names whose lookups failed a quarter: names that an address sends again and again keep
//! out no new tenant, and those without an entry none whose lookup failed.

use std::net::IpAddr;
use std::sync::Arc;

use log::Level;
use serde_json::json;
use weir_common::limit::token_bucket::{BucketQuota, Rate};
use weir_common::log::events;
use weir_common::log::limiter::LogLimiter;
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
    limit: Option<(&'s Arc<Limiter>, LimitCheck, IpAddr)>,
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
        Self { limit: Some((limiter, check, address)), now }
    }

    /// A budget without a limit, for the operator.
    #[must_use]
    pub fn unlimited(now: Tick) -> Self {
        Self { limit: None, now }
    }

    /// The key of the address that is charged, if one is.
    pub(super) fn key(&self) -> Option<Key> {
        self.limit.as_ref().map(|(_, check, _)| check.key)
    }

    /// Whether a name of which nothing is cached may be looked up at `now`.
    pub(super) fn allows(&self, now: Tick) -> bool {
        self.has_more_than(0, now)
    }

    /// Whether a name may be looked up at `now` whose lookups have all failed.
    pub(super) fn allows_after_failure(&self, now: Tick) -> bool {
        self.has_more_than(UNKNOWN_MAX / 4, now)
    }

    /// Whether a name may be looked up at `now` of which the directory has reported no entry.
    pub(super) fn allows_again(&self, now: Tick) -> bool {
        self.has_more_than(UNKNOWN_MAX / 2, now)
    }

    fn has_more_than(&self, lookups: u32, now: Tick) -> bool {
        let of = self.limit.as_ref();
        of.is_none_or(|(limiter, check, _)| limiter.has_local_room(check, lookups, now))
    }

    /// Charges a lookup at `now` that found no entry.
    pub(super) fn charge(&self, now: Tick) {
        if let Some((limiter, check, _)) = &self.limit {
            limiter.charge_local(check, now);
        }
    }

    /// Logs that a lookup is refused.
    pub(super) fn log_refusal(&self, log: &LogLimiter<Key>, now: Tick) {
        if let Some((_, check, address)) = &self.limit
            && let Some(count) = log.due(check.key, now)
        {
            let fields = [("address", json!(address.to_string())), ("count", json!(count))];
            events::event(Level::Warn, "lookups of unknown names refused", &fields);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use weir_common::time::{Clock, UnixTime};

    use super::*;

    #[test]
    fn what_an_address_sends_again_leaves_room_for_what_it_sends_first() {
        let clock = Clock::manual(UnixTime(1_700_000_000_000_000));
        let limiter = Arc::new(Limiter::new(clock.clone(), 10));
        let (now, seed) = (clock.now().tick, Seed::new([7; 16]));
        let budget = UnknownBudget::of(Ipv4Addr::LOCALHOST.into(), &seed, &limiter, now);
        let allowed = |charges: u32| {
            (0..charges).for_each(|_| budget.charge(now));
            [budget.allows_again(now), budget.allows_after_failure(now), budget.allows(now)]
        };
        assert_eq!(allowed(29), [true, true, true]);
        assert_eq!(allowed(1), [false, true, true], "half is left");
        assert_eq!(allowed(14), [false, true, true]);
        assert_eq!(allowed(1), [false, false, true], "a quarter is left");
        assert_eq!(allowed(14), [false, false, true]);
        assert_eq!(allowed(1), [false, false, false]);
    }
}
