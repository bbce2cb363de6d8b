//! Limits how many lookups of names that do not exist an address can cause.
//!
//! Each name that is not cached costs the directory a request. A name that does not exist is
//! charged to the address that sent it; one that exists is not, so an address with requests for
//! many tenants is never refused for them. A lookup that the directory fails is no evidence that
//! its name is invented: it is charged to the address apart, the first of a name and those that
//! repeat it apart, too.
//!
//! # Invariants
//!
//! 1. Names that the directory has no entry of leave half of the burst to others: however often an
//!    address sends them, they keep out no new tenant.
//! 2. Names whose lookups fail leave all others theirs, and are looked up again as if they were
//!    new as soon as the directory answers, whatever their address has invented.

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
use crate::request::client_address::prefix_48;
use crate::rules::tenant::Subject;

/// Lookups of names that do not exist, per address, in a burst: enough for a script with a wrong
/// list to see its error, too few to enumerate names.
const UNKNOWN_MAX: u32 = 60;

/// Lookups of names that do not exist, per address and second, after the burst.
const UNKNOWN_PER_SECOND: u32 = 1;

/// The names of the limits, in the order of [`Fruitless`]: no configured limit has a space in its
/// name.
const LIMITS: [&str; 3] = ["unknown names", "failed lookups", "repeated failed lookups"];

const UNKNOWN_QUOTA: Quota =
    Quota::Bucket(BucketQuota { rate: Rate::per_second(UNKNOWN_PER_SECOND), burst: UNKNOWN_MAX });

/// What a lookup was that found no entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fruitless {
    /// The directory has no such entry.
    Absent,
    /// The first of a name, which the directory failed.
    Failed,
    /// Another of a name, which the directory failed.
    FailedAgain,
}

impl Fruitless {
    /// A lookup that the directory failed.
    pub(super) fn failed(is_first: bool) -> Self {
        if is_first { Self::Failed } else { Self::FailedAgain }
    }
}

/// The remaining lookups that one request may cause.
pub struct UnknownBudget<'s> {
    /// `None` for the operator, who is not limited.
    limit: Option<(&'s Arc<Limiter>, [LimitCheck; 3], IpAddr)>,
    /// When the request arrived.
    pub(super) now: Tick,
}

impl<'s> UnknownBudget<'s> {
    /// The budget of an address.
    #[must_use]
    pub fn of(address: IpAddr, seed: &Seed, limiter: &'s Arc<Limiter>, now: Tick) -> Self {
        let owner = Subject::address(seed, address).owner;
        let checks = LIMITS.map(|name| {
            let tag = seed.limit(name);
            LimitCheck::new(Key::new(owner, tag), tag, UNKNOWN_QUOTA)
        });
        Self { limit: Some((limiter, checks, address)), now }
    }

    /// A budget without a limit, for the operator.
    #[must_use]
    pub fn unlimited(now: Tick) -> Self {
        Self { limit: None, now }
    }

    /// The key of the address that is charged, if one is, and the network of the address.
    pub(super) fn caller(&self) -> Option<(Key, IpAddr)> {
        let of = self.limit.as_ref();
        of.map(|(_, [unknown, ..], address)| (unknown.key, prefix_48(*address)))
    }

    /// Whether a name of which nothing is cached may be looked up at `now`.
    pub(super) fn allows(&self, now: Tick) -> bool {
        self.has_more_than(0, Fruitless::Failed, now)
    }

    /// Whether a name may be looked up at `now` whose lookups have all failed.
    pub(super) fn allows_after_failure(&self, now: Tick) -> bool {
        self.has_more_than(0, Fruitless::FailedAgain, now)
    }

    /// Whether a name may be looked up at `now` of which the directory has reported no entry.
    pub(super) fn allows_again(&self, now: Tick) -> bool {
        self.has_more_than(UNKNOWN_MAX / 2, Fruitless::FailedAgain, now)
    }

    /// Whether more than so many `unknown` names are left, and a lookup that ends as `failed`.
    fn has_more_than(&self, unknown: u32, failed: Fruitless, now: Tick) -> bool {
        let of = self.limit.as_ref();
        of.is_none_or(|(limiter, checks, _)| {
            limiter.has_local_room(of_lookup(checks, Fruitless::Absent), unknown, now)
                && limiter.has_local_room(of_lookup(checks, failed), 0, now)
        })
    }

    /// Charges a lookup that ended at `now`.
    pub(super) fn charge(&self, lookup: Fruitless, now: Tick) {
        if let Some((limiter, checks, _)) = &self.limit {
            limiter.charge_local(of_lookup(checks, lookup), now);
        }
    }

    /// Logs that a lookup is refused.
    pub(super) fn log_refusal(&self, log: &LogLimiter<Key>, now: Tick) {
        if let Some((_, [unknown, ..], address)) = &self.limit
            && let Some(count) = log.due(unknown.key, now)
        {
            let fields = [("address", json!(address.to_string())), ("count", json!(count))];
            events::event(Level::Warn, "lookups of unknown names refused", &fields);
        }
    }
}

/// Logs that a lookup of this network had no turn in time, and that its request is refused.
pub(super) fn log_queue(log: &LogLimiter<IpAddr>, network: IpAddr, now: Tick) {
    if let Some(count) = log.due(network, now) {
        let fields = [("network", json!(network.to_string())), ("count", json!(count))];
        events::event(Level::Warn, "lookups refused after waiting for a turn", &fields);
    }
}

/// What a lookup is charged to.
fn of_lookup([absent, failed, again]: &[LimitCheck; 3], lookup: Fruitless) -> &LimitCheck {
    match lookup {
        Fruitless::Absent => absent,
        Fruitless::Failed => failed,
        Fruitless::FailedAgain => again,
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;
    use std::time::Duration;

    use weir_common::time::{Clock, UnixTime};

    use super::*;

    /// What an address may look up after so many lookups of each kind, and `seconds` later: a name
    /// that had no entry, one whose lookups failed, and a new one.
    fn check(charges: [(u32, Fruitless); 3], seconds: u64, expected: [bool; 3]) {
        let clock = Clock::manual(UnixTime(1_700_000_000_000_000));
        let limiter = Arc::new(Limiter::new(clock.clone(), 10));
        let (now, seed) = (clock.now().tick, Seed::new([7; 16]));
        let budget = UnknownBudget::of(Ipv4Addr::LOCALHOST.into(), &seed, &limiter, now);
        for (count, lookup) in charges {
            (0..count).for_each(|_| budget.charge(lookup, now));
        }
        let now = now.plus(Duration::from_secs(seconds));
        let allowed =
            [budget.allows_again(now), budget.allows_after_failure(now), budget.allows(now)];
        assert_eq!(allowed, expected, "{charges:?} {seconds} s later");
    }

    fn charges(absent: u32, failed: u32, again: u32) -> [(u32, Fruitless); 3] {
        use Fruitless::{Absent, Failed, FailedAgain};
        [(absent, Absent), (failed, Failed), (again, FailedAgain)]
    }

    #[test]
    fn names_without_an_entry_leave_half_to_others() {
        check(charges(29, 0, 0), 0, [true, true, true]);
        check(charges(30, 0, 0), 0, [false, true, true]);
        check(charges(59, 0, 0), 0, [false, true, true]);
        check(charges(60, 0, 0), 0, [false, false, false]);
    }

    #[test]
    fn a_tenant_whose_lookup_failed_is_behind_no_invented_name() {
        check(charges(59, 59, 59), 0, [false, true, true]);
        check(charges(60, 1, 0), 1, [false, true, true]);
    }

    #[test]
    fn names_whose_lookups_fail_leave_new_ones_theirs_and_are_back_in_a_second() {
        check(charges(0, 0, 60), 0, [false, false, true]);
        check(charges(0, 60, 0), 0, [true, true, false]);
        check(charges(0, 60, 60), 1, [true, true, true]);
    }
}
