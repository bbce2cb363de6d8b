//! What this gateway may spend of one bucket without a call, and how much it wants next. (core)
//!
//! # Invariants
//!
//! 1. A token of a lease is spent once, before the lease can have ended by the store's clock, and
//!    under the quota that it was granted for.
//! 2. A call takes the lease out, so what it returns is not spent any more.
//! 3. A lease that was granted before its key was forgotten is never spent.
//!
//! # Not here
//!
//! What the store grants (`decide.lua`), who waits for a lease (`shared::token_leasing`).

use weir_common::limit::decision::Usage;
use weir_common::time::{Tick, UnixTime};

use super::super::LimitCheck;
use super::call::ReturnedLease;
use super::reply::Lease;

/// How finely demand is counted, in microseconds: it is known for the last two to three of these.
/// A busy key then gets what it spends until its lease ends.
const DEMAND_SLOT: u64 = 500_000;

/// For how long an unused lease stays here, in microseconds.
const IDLE_AFTER: u64 = 250_000;

/// What is known of one key. Times are the store's.
#[derive(Debug, Default)]
pub(super) struct KeyLease {
    held: Option<HeldLease>,
    demand: Demand,
    /// The call that is to bring the next lease.
    renewal: Option<u64>,
    /// Tokens of requests that wait for it.
    waiting: u32,
    /// No lease is wanted before: the key was reset, and the store may not have deleted it yet.
    barred_until: Tick,
}

/// A lease that was granted.
#[derive(Debug)]
struct HeldLease {
    check: Box<LimitCheck>,
    left: u32,
    ends: Tick,
    /// What the store had left beside it.
    usage: Usage,
    spent_at: Tick,
}

/// Tokens of a lease that were spent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Spent {
    /// The key's usage: what the store had left, and what is left of the lease.
    pub(super) usage: Usage,
    /// When the lease ends: this names it.
    pub(super) ends: Tick,
}

/// Tokens that were spent lately.
#[derive(Debug, Default)]
struct Demand {
    /// The newest slot of [`DEMAND_SLOT`].
    slot: u64,
    /// Of the newest slot, and of those before it.
    spent: [u32; 3],
}

impl KeyLease {
    /// Spends what a check costs at `latest`, the latest time that the store can have; none where
    /// that needs a call.
    pub(super) fn spend(&mut self, check: &LimitCheck, latest: Tick) -> Option<Spent> {
        let held = self.held.as_mut().filter(|held| latest < held.ends)?;
        let left = held.left.checked_sub(check.cost)?;
        if held.check.quota != check.quota {
            return None;
        }
        (held.left, held.spent_at) = (left, latest);
        self.demand.add(check.cost, latest);
        let usage = Usage { remaining: held.usage.remaining.saturating_add(left), ..held.usage };
        Some(Spent { usage, ends: held.ends })
    }

    /// Takes back what was spent for a request that another limit did not admit.
    pub(super) fn refund(&mut self, cost: u32, spent: Spent) {
        if let Some(held) = self.held.as_mut().filter(|held| held.ends == spent.ends) {
            held.left += cost;
        }
    }

    /// Takes the lease out, so that a call can return it.
    pub(super) fn take(&mut self) -> Option<ReturnedLease> {
        let held = self.held.take()?;
        Some(ReturnedLease { ends: UnixTime(held.ends.0), unspent: held.left })
    }

    /// Makes the call of this number the one that brings the next lease, and returns how many
    /// tokens it wants; none where there is such a call already.
    pub(super) fn renew(&mut self, number: u64, now: Tick) -> u32 {
        if self.renewal.is_some() {
            return 0;
        }
        self.renewal = Some(number);
        self.wanted(now)
    }

    /// How many tokens a call should bring: what was spent lately, or what requests wait for.
    pub(super) fn wanted(&mut self, now: Tick) -> u32 {
        if now < self.barred_until { 0 } else { self.demand.recent(now).max(self.waiting) }
    }

    /// Records that the store has charged a request that could have been decided here.
    pub(super) fn charged(&mut self, cost: u32, now: Tick) {
        self.demand.add(cost, now);
    }

    /// Ends the call of this number, with the lease that it brought and what is left beside it.
    pub(super) fn renewed(
        &mut self,
        number: u64,
        brought: Option<(Lease, Usage, &LimitCheck)>,
        now: Tick,
    ) {
        if self.renewal != Some(number) {
            return;
        }
        self.renewal = None;
        if let Some((lease, usage, check)) = brought {
            let (left, ends) = (lease.tokens, Tick(lease.ends.0));
            let check = Box::new(*check);
            self.held = Some(HeldLease { check, left, ends, usage, spent_at: now });
        }
    }

    /// The call that is to bring the next lease.
    pub(super) fn renewal(&self) -> Option<u64> {
        self.renewal
    }

    /// Counts tokens that a request waits for.
    pub(super) fn wait(&mut self, cost: u32) {
        self.waiting = self.waiting.saturating_add(cost);
    }

    /// The request waits no more.
    pub(super) fn stop_waiting(&mut self, cost: u32) {
        self.waiting = self.waiting.saturating_sub(cost);
    }

    /// Drops the lease, and that of a call under way; there is none before `barred_until`.
    pub(super) fn forget(&mut self, barred_until: Tick) {
        (self.held, self.renewal) = (None, None);
        self.barred_until = self.barred_until.max(barred_until);
    }

    /// Takes the lease out if it has not been used lately, or whatever its use if `all`; none where
    /// it has nothing left, or has ended.
    pub(super) fn take_idle(
        &mut self,
        now: Tick,
        all: bool,
    ) -> Option<(LimitCheck, ReturnedLease)> {
        let held = self.held.as_ref().filter(|held| held.left > 0 && now < held.ends)?;
        if !all && now.0 < held.spent_at.0.saturating_add(IDLE_AFTER) {
            return None;
        }
        let check = *held.check;
        self.take().map(|returned| (check, returned))
    }

    /// The check that its lease was granted for.
    pub(super) fn check(&self) -> Option<&LimitCheck> {
        self.held.as_ref().map(|held| &*held.check)
    }

    /// The tokens that may still be spent.
    pub(super) fn unspent(&self, now: Tick) -> u32 {
        self.held.as_ref().filter(|held| now < held.ends).map_or(0, |held| held.left)
    }

    /// Whether a new one would be another.
    pub(super) fn matters(&mut self, now: Tick) -> bool {
        self.renewal.is_some()
            || self.waiting > 0
            || now < self.barred_until
            || self.unspent(now) > 0
            || self.demand.recent(now) > 0
    }
}

impl Demand {
    fn add(&mut self, cost: u32, now: Tick) {
        self.pass(now);
        let [newest, ..] = &mut self.spent;
        *newest = newest.saturating_add(cost);
    }

    fn recent(&mut self, now: Tick) -> u32 {
        self.pass(now);
        self.spent.iter().fold(0, |sum, spent| sum.saturating_add(*spent))
    }

    fn pass(&mut self, now: Tick) {
        let slot = now.0 / DEMAND_SLOT;
        let [newest, middle, _] = self.spent;
        self.spent = match slot.saturating_sub(self.slot) {
            0 => return,
            1 => [0, newest, middle],
            2 => [0, 0, newest],
            _ => [0; 3],
        };
        self.slot = slot;
    }
}

#[cfg(test)]
mod tests {
    use weir_common::limit::token_bucket::{BucketQuota, Rate};

    use super::super::super::Quota;
    use super::super::super::key::{Key, LimitTag};
    use super::*;

    fn check(rate: u32, cost: u32) -> LimitCheck {
        let quota = Quota::Bucket(BucketQuota { rate: Rate::per_second(rate), burst: 100 });
        LimitCheck { cost, ..LimitCheck::new(Key::from_bits(7), LimitTag::from_bits(1), quota) }
    }

    /// A key with a lease of ten tokens from 0 to 1 s.
    fn leased() -> KeyLease {
        let mut own = KeyLease::default();
        grant(&mut own, 1, 10, Tick(0));
        own
    }

    fn grant(own: &mut KeyLease, number: u64, tokens: u32, now: Tick) {
        let _ = own.renew(number, now);
        let usage = Usage { limit: 100, remaining: 40, full_at: Tick(9_000_000) };
        let lease = Lease { tokens, ends: UnixTime(now.0 + 1_000_000) };
        own.renewed(number, Some((lease, usage, &check(50, 1))), now);
    }

    fn spends(own: &mut KeyLease, cost: u32, latest: u64) -> Option<u32> {
        own.spend(&check(50, cost), Tick(latest)).map(|spent| spent.usage.remaining)
    }

    #[test]
    fn a_lease_is_spent_once_and_not_from_its_end_on() {
        let mut own = leased();
        assert_eq!(spends(&mut own, 4, 1), Some(46));
        assert_eq!(spends(&mut own, 7, 2), None, "six are left");
        assert_eq!(spends(&mut own, 1, 1_000_000), None, "it has ended");
        assert_eq!(spends(&mut own, 6, 999_999), Some(40));
        assert_eq!(spends(&mut own, 1, 999_999), None);
    }

    #[test]
    fn a_lease_is_of_no_use_to_another_quota() {
        let mut own = leased();
        assert_eq!(own.spend(&check(51, 1), Tick(1)), None);
        assert_eq!(spends(&mut own, 1, 1), Some(49));
    }

    #[test]
    fn what_a_call_returns_is_spent_no_more() {
        let mut own = leased();
        let spent = own.spend(&check(50, 4), Tick(1)).unwrap();
        own.refund(4, spent);
        assert_eq!(spends(&mut own, 3, 1), Some(47));
        let ends = UnixTime(1_000_000);
        assert_eq!(own.take(), Some(ReturnedLease { ends, unspent: 7 }));
        assert_eq!((own.take(), spends(&mut own, 1, 1)), (None, None));
        own.refund(3, Spent { ends: Tick(1_000_000), ..spent });
        assert_eq!(own.unspent(Tick(1)), 0);
        grant(&mut own, 2, 5, Tick(10));
        own.refund(3, spent);
        assert_eq!(own.unspent(Tick(11)), 5, "it is another lease");
    }

    #[test]
    fn a_forgotten_key_has_no_lease_not_even_that_of_a_call_under_way() {
        let mut own = leased();
        own.charged(9, Tick(1));
        assert_eq!(own.renew(5, Tick(1)), 9);
        own.forget(Tick(2_000));
        assert_eq!(spends(&mut own, 1, 1), None);
        let usage = Usage { limit: 100, remaining: 40, full_at: Tick(9_000_000) };
        let lease = Lease { tokens: 9, ends: UnixTime(1_000_000) };
        own.renewed(5, Some((lease, usage, &check(50, 1))), Tick(2));
        assert_eq!(own.unspent(Tick(2)), 0);
        assert_eq!(own.renew(6, Tick(1_999)), 0, "the store deletes the key once more");
        own.renewed(6, None, Tick(2_000));
        assert_eq!(own.renew(7, Tick(2_000)), 9);
    }

    #[test]
    fn a_key_wants_what_was_spent_lately_or_what_requests_wait_for() {
        let mut own = KeyLease::default();
        let start = 40 * DEMAND_SLOT;
        assert_eq!(own.wanted(Tick(start)), 0, "the first request leases nothing");
        for slot in 0..4 {
            own.charged(10, Tick(start + slot * DEMAND_SLOT));
        }
        assert_eq!(own.wanted(Tick(start + 4 * DEMAND_SLOT - 1)), 30);
        assert_eq!(own.wanted(Tick(start + 5 * DEMAND_SLOT)), 10);
        assert_eq!(own.wanted(Tick(start + 6 * DEMAND_SLOT)), 0);
        assert!(!own.matters(Tick(start + 6 * DEMAND_SLOT)));
        own.wait(99);
        assert_eq!(own.renew(1, Tick(start)), 99);
        assert_eq!(own.renew(2, Tick(start)), 0, "one call is enough");
        own.stop_waiting(99);
        assert_eq!(own.wanted(Tick(start + 6 * DEMAND_SLOT)), 0);
    }

    #[test]
    fn an_idle_lease_is_returned_and_a_used_one_is_not() {
        let mut own = leased();
        assert!(spends(&mut own, 1, 100_000).is_some());
        assert!(own.take_idle(Tick(349_999), false).is_none());
        let (_, returned) = own.take_idle(Tick(350_000), false).unwrap();
        assert_eq!(returned.unspent, 9);
        assert!(leased().take_idle(Tick(1), true).is_some());
        assert!(leased().take_idle(Tick(1_000_000), true).is_none(), "it has ended");
    }
}
