//! How many requests of one key this gateway may have in flight without a call. (core)
//!
//! # Invariants
//!
//! 1. The slots that are used here are at most those that the store counts for this gateway: they
//!    become fewer here before the call is sent that returns them.
//! 2. A slot is used before its lease can have ended by the store's clock; a request that has it
//!    then goes on, and counts as in use.
//!
//! # Not here
//!
//! What the store grants (`decide.lua`), how many requests are in flight (`limit::memory`), calls
//! (`shared::slot_leasing`).

use weir_common::limit::decision::{Decision, Usage};
use weir_common::limit::quota::Quota;
use weir_common::time::Tick;

use super::super::{CheckResult, LimitCheck};
use super::call::SlotRequest;
use super::reply::{SharedDecision, SharedResult};

/// For how long a refusal is remembered, in microseconds: slots that others return wait for it.
const REFUSED_FOR: u64 = 50_000;

/// The part of the quota that a heartbeat may keep unused, where so much was used lately.
const SPARE_PART: u32 = 4;

/// What is known of one key. Times are the store's.
#[derive(Debug)]
pub(super) struct KeySlots {
    check: Box<LimitCheck>,
    held: u32,
    ends: Tick,
    /// What the store had left beside them.
    remaining: u32,
    /// Requests that count as in flight and wait for a call.
    waiting: u32,
    /// Replies to this call and to earlier ones bring nothing any more.
    settled: u64,
    /// The most in flight since the last heartbeat, and between that and the one before.
    peaks: [u32; 2],
    refusal: Option<Refusal>,
}

/// A refusal that holds until its end.
#[derive(Debug)]
struct Refusal {
    quota: Quota,
    retry_at: Tick,
    until: Tick,
}

impl KeySlots {
    /// No slots of a check's key.
    pub(super) fn of(check: &LimitCheck) -> Self {
        Self {
            check: Box::new(*check),
            held: 0,
            ends: Tick(0),
            remaining: 0,
            waiting: 0,
            settled: 0,
            peaks: [0; 2],
            refusal: None,
        }
    }

    /// The last check of the key.
    pub(super) fn check(&self) -> &LimitCheck {
        &self.check
    }

    /// When its lease ends.
    pub(super) fn ends(&self) -> Tick {
        self.ends
    }

    /// How many requests may be in flight without a call, at the latest time that the store can
    /// have.
    pub(super) fn usable(&self, latest: Tick) -> u32 {
        if latest < self.ends { self.held } else { 0 }
    }

    /// Records that a request of this check was admitted here, as one of `in_flight`, and returns
    /// the key's usage.
    pub(super) fn admitted(&mut self, check: &LimitCheck, in_flight: u32, now: Tick) -> Usage {
        *self.check = *check;
        self.peaked(in_flight);
        let left = self.remaining.saturating_add(self.held.saturating_sub(in_flight));
        let limit = check.quota.limit();
        Usage { limit, remaining: left.min(limit.saturating_sub(in_flight)), full_at: now }
    }

    /// The refusal of a check that holds at `latest` while so many are in flight.
    pub(super) fn refusal(
        &self,
        check: &LimitCheck,
        in_flight: u32,
        latest: Tick,
    ) -> Option<CheckResult> {
        let refusal = self.refusal.as_ref()?;
        let holds = latest < refusal.until
            && refusal.quota == check.quota
            && in_flight >= self.usable(latest);
        let limit = check.quota.limit();
        let usage = Usage { limit, remaining: 0, full_at: latest };
        let decision = Decision::Refuse { retry_at: refusal.retry_at };
        holds.then_some(CheckResult { decision, usage })
    }

    /// Starts the call of this number for a request that is one of `in_flight`.
    pub(super) fn begin(
        &mut self,
        check: &LimitCheck,
        in_flight: u32,
        (gateway, sequence): (u64, u64),
    ) -> SlotRequest {
        *self.check = *check;
        self.peaked(in_flight);
        self.waiting += 1;
        let in_use = in_flight.saturating_sub(self.waiting);
        SlotRequest { gateway, sequence, in_use, needed: in_flight, wanted: in_flight }
    }

    /// Ends the wait of a request for its call.
    pub(super) fn stop_waiting(&mut self) {
        self.waiting = self.waiting.saturating_sub(1);
    }

    /// What a preview asks: whether one more than `in_flight` would be admitted.
    pub(super) fn preview(&self, in_flight: u32, gateway: u64) -> SlotRequest {
        let in_use = in_flight.saturating_sub(self.waiting);
        let needed = in_flight.saturating_add(1);
        SlotRequest { gateway, sequence: 0, in_use, needed, wanted: needed }
    }

    /// Records the reply to the call of this number at the store's time `now`; `granted` where no
    /// limit has refused the request.
    pub(super) fn replied(
        &mut self,
        sequence: u64,
        (found, granted): (&SharedResult, bool),
        now: Tick,
    ) {
        if sequence <= self.settled {
            return;
        }
        match found.decision {
            // A request that waits may not be admitted: then there is room sooner.
            SharedDecision::Refuse { retry_at } if self.waiting == 0 => {
                let (quota, until) = (self.check.quota, Tick(now.0.saturating_add(REFUSED_FOR)));
                self.refusal = Some(Refusal { quota, retry_at: Tick(retry_at.0), until });
            }
            SharedDecision::Admit if granted => {
                let slots = found.lease.map_or((0, Tick(0)), |own| (own.tokens, Tick(own.ends.0)));
                (self.held, self.ends) = slots;
                (self.remaining, self.settled) = (found.remaining, sequence);
                self.refusal = None;
            }
            _ => {}
        }
    }

    /// Starts the call of this number, which renews what is in use, and returns what was not used
    /// lately. None where there is nothing to renew or to return.
    pub(super) fn renew(
        &mut self,
        in_flight: u32,
        (gateway, sequence): (u64, u64),
        now: Tick,
    ) -> Option<SlotRequest> {
        let [newest, before] = self.peaks;
        self.peaks = [in_flight, newest];
        let spare = self.check.quota.limit() / SPARE_PART;
        let wanted = newest.max(before).min(in_flight.saturating_add(spare)).max(in_flight);
        if wanted == 0 && self.usable(now) == 0 {
            return None;
        }
        // The reply to this very call counts.
        self.settled = sequence.saturating_sub(1);
        self.held = self.held.min(wanted);
        let in_use = in_flight.saturating_sub(self.waiting);
        Some(SlotRequest { gateway, sequence, in_use, needed: 0, wanted })
    }

    /// Starts the call of this number, which returns all slots; none where there are none.
    pub(super) fn end(&mut self, numbers: (u64, u64), now: Tick) -> Option<SlotRequest> {
        self.peaks = [0; 2];
        self.renew(0, numbers, now)
    }

    /// Drops its slots, and those of calls up to this number: the store may have lost them.
    pub(super) fn forget(&mut self, sequence: u64) {
        (self.held, self.ends, self.settled, self.refusal) = (0, Tick(0), sequence, None);
    }

    /// Whether a new one would be another, while none is in flight.
    pub(super) fn matters(&self, now: Tick) -> bool {
        self.waiting > 0
            || self.usable(now) > 0
            || self.peaks != [0; 2]
            || self.refusal.as_ref().is_some_and(|refusal| now < refusal.until)
    }

    fn peaked(&mut self, in_flight: u32) {
        let [newest, _] = &mut self.peaks;
        *newest = in_flight.max(*newest);
    }
}

#[cfg(test)]
mod tests {
    use weir_common::limit::concurrency::ConcurrencyQuota;
    use weir_common::time::UnixTime;

    use super::super::super::key::{Key, LimitTag};
    use super::super::reply::Lease;
    use super::*;

    fn check(requests: u32) -> LimitCheck {
        let quota = Quota::Concurrency(ConcurrencyQuota { requests });
        LimitCheck::new(Key::from_bits(7), LimitTag::from_bits(1), quota)
    }

    /// A reply that grants so many slots until a second after `now`.
    fn granted(slots: u32, now: u64) -> SharedResult {
        let lease = Lease { tokens: slots, ends: UnixTime(now + 1_000_000) };
        SharedResult {
            decision: SharedDecision::Admit,
            forgot: false,
            remaining: 2,
            full_at: UnixTime(now),
            receipt: None,
            lease: (slots > 0).then_some(lease),
            ask_again_at: None,
        }
    }

    /// A key of 16 whose call brought so many slots at 0, all of them in use.
    fn leased(slots: u32) -> KeySlots {
        let mut own = KeySlots::of(&check(16));
        let request = own.begin(&check(16), slots, (1, 1));
        own.stop_waiting();
        own.replied(request.sequence, (&granted(slots, 0), true), Tick(0));
        own
    }

    #[test]
    fn slots_are_usable_until_their_lease_can_have_ended() {
        let own = leased(3);
        assert_eq!([999_999, 1_000_000].map(|now| own.usable(Tick(now))), [3, 0]);
    }

    #[test]
    fn requests_that_wait_are_needed_but_not_in_use() {
        let mut own = leased(3);
        let asked = [4, 5].map(|in_flight| own.begin(&check(16), in_flight, (1, 2)));
        assert_eq!(asked.map(|asked| (asked.in_use, asked.needed)), [(3, 4), (3, 5)]);
        own.stop_waiting();
        assert_eq!(own.renew(4, (1, 4), Tick(0)).unwrap().in_use, 3);
    }

    #[test]
    fn a_heartbeat_returns_slots_here_before_it_does_in_the_store() {
        let mut own = leased(8);
        let first = own.renew(2, (1, 5), Tick(1)).unwrap();
        assert_eq!((first.in_use, first.wanted), (2, 6), "a quarter of the quota is spare");
        assert_eq!(own.usable(Tick(1)), 6);
        // Calls that were sent before it bring nothing any more, and it does.
        own.replied(4, (&granted(8, 1), true), Tick(1));
        assert_eq!(own.usable(Tick(1)), 6);
        own.replied(5, (&granted(5, 1), true), Tick(1));
        assert_eq!(own.usable(Tick(1)), 5);
        assert_eq!(own.renew(2, (1, 6), Tick(2)).unwrap().wanted, 6, "there were eight lately");
        assert_eq!(own.renew(2, (1, 7), Tick(2)).unwrap().wanted, 2, "and now two");
    }

    #[test]
    fn a_small_quota_has_no_spare_slots_and_an_idle_key_needs_no_call() {
        let mut own = KeySlots::of(&check(3));
        let _ = own.begin(&check(3), 1, (1, 1));
        own.stop_waiting();
        own.replied(1, (&granted(1, 0), true), Tick(0));
        assert_eq!(own.renew(0, (1, 2), Tick(1)).unwrap().wanted, 0);
        own.replied(2, (&granted(0, 1), true), Tick(1));
        assert_eq!(own.renew(0, (1, 3), Tick(1)), None);
        assert_eq!(own.renew(0, (1, 4), Tick(1)), None);
        assert!(!own.matters(Tick(1)));
    }

    #[test]
    fn what_is_in_use_is_claimed_where_the_store_has_forgotten_it() {
        let mut own = leased(3);
        own.forget(1);
        own.replied(1, (&granted(3, 0), true), Tick(0));
        assert_eq!(own.usable(Tick(0)), 0);
        let claim = own.renew(3, (1, 2), Tick(0)).unwrap();
        assert_eq!((claim.in_use, claim.wanted), (3, 3));
        // There is no room for any of them: none is used again.
        own.replied(2, (&granted(0, 0), true), Tick(0));
        assert_eq!(own.usable(Tick(0)), 0);
    }

    #[test]
    fn a_refusal_is_remembered_briefly_unless_a_request_waits_or_a_slot_is_free() {
        let retry_at = UnixTime(1_000_000);
        let refused =
            SharedResult { decision: SharedDecision::Refuse { retry_at }, ..granted(0, 0) };
        let mut own = leased(3);
        let refuses = |own: &KeySlots, requests, in_flight, now| {
            own.refusal(&check(requests), in_flight, Tick(now)).is_some()
        };
        let _ = [4, 5].map(|in_flight| own.begin(&check(16), in_flight, (1, 2)));
        own.stop_waiting();
        own.replied(2, (&refused, false), Tick(0));
        assert!(!refuses(&own, 16, 3, 0), "another waits");
        own.stop_waiting();
        own.replied(3, (&refused, false), Tick(0));
        assert_eq!([49_999, 50_000].map(|now| refuses(&own, 16, 3, now)), [true, false]);
        assert!(!refuses(&own, 16, 2, 0), "a slot is free");
        assert!(!refuses(&own, 17, 3, 0), "of another quota");
    }

    #[test]
    fn an_end_returns_all_slots() {
        let mut own = leased(3);
        let request = own.end((1, 2), Tick(1)).unwrap();
        assert_eq!((request.in_use, request.wanted, own.usable(Tick(1))), (0, 0, 0));
    }
}
