//! Slots of requests in flight: as by a list of who has how many until when.

use proptest::prelude::*;
use weir_common::limit::concurrency::ConcurrencyQuota;

use super::changes::bucket;
use super::*;

const SECOND: u64 = 1_000_000;

fn quota(requests: u32) -> Quota {
    Quota::Concurrency(ConcurrencyQuota { requests })
}

/// A check of a gateway that has `in_use`, and needs as many slots for its request.
fn request(key: &[u8], requests: u32, slots: SlotRequest) -> SharedCheck {
    SharedCheck { slots: Some(slots), ..check(key, quota(requests), 1) }
}

/// What the gateway of this number asks for one more request.
fn one_more(gateway: u64, sequence: u64, in_use: u32) -> SlotRequest {
    SlotRequest { gateway, sequence, in_use, needed: in_use + 1, wanted: in_use + 1 }
}

/// What a heartbeat of the gateway asks: to have so many.
fn renewal(key: &[u8], requests: u32, slots: SlotRequest) -> SharedCheck {
    SharedCheck { cost: 0, ..request(key, requests, slots) }
}

/// The slots of a reply that can be used without a call.
fn usable(reply: &SharedReply) -> u32 {
    reply.results[0].lease.map_or(0, |lease| lease.tokens)
}

/// The dumbest store: gateway, slots, newest call, end.
#[derive(Default)]
struct Model(Vec<(u64, u32, u64, u64)>);

impl Model {
    /// Whether a call is admitted, what can be used without another, and what is left.
    fn call(
        &mut self,
        (requests, cost, charge): (u32, u32, bool),
        asked: SlotRequest,
        now: u64,
    ) -> (bool, u32, u32) {
        self.0.retain(|(.., ends)| *ends > now);
        let own = self.0.iter().find(|own| own.0 == asked.gateway).copied();
        let (_, had, newest, _) = own.unwrap_or_default();
        let others: u32 = self.0.iter().filter(|own| own.0 != asked.gateway).map(|own| own.1).sum();
        let room = requests.saturating_sub(others);
        let admitted = cost == 0 || asked.needed <= room;
        if !admitted || !charge {
            return (admitted, 0, room.saturating_sub(had));
        }
        let kept = if cost > 0 || asked.sequence < newest { had } else { 0 };
        let granted = kept.max(asked.in_use).max(asked.wanted.min(room));
        self.0.retain(|own| own.0 != asked.gateway);
        if granted > 0 {
            let newest = newest.max(asked.sequence);
            self.0.push((asked.gateway, granted, newest, now + SECOND));
        }
        (true, granted.min(room), room.saturating_sub(granted))
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    #[test]
    fn slots_are_granted_as_by_a_list(
        calls in prop::collection::vec(
            (0..700_000_u64, 0..4_u64, 1..12_u32, 0..2_u32, 0..6_u32, 0..4_u32, -3..3_i64, 0..9_u8),
            1..120,
        ),
    ) {
        let (mut store, key, mut model) = (Store::open(), fresh_key(), Model::default());
        for (nth, call) in (10..).zip(calls) {
            let (wait, gateway, requests, cost, in_use, more, older, mode) = call;
            store.now += wait;
            let (needed, sequence) = (in_use + 1, nth + older);
            let sequence = u64::try_from(sequence).unwrap();
            let asked =
                SlotRequest { gateway, sequence, in_use, needed, wanted: in_use + more };
            let charge = mode > 0;
            let checked = SharedCheck { cost, ..request(&key, requests, asked) };
            let mode = if charge { CallMode::Charge } else { CallMode::Preview };
            let reply = store.call_as(&[checked], mode, None);
            let (admitted, free, left) = model.call((requests, cost, charge), asked, store.now);
            prop_assert_eq!(reply.outcome == SharedOutcome::Admitted, admitted);
            prop_assert_eq!((usable(&reply), reply.results[0].remaining), (free, left));
            let ends = reply.results[0].lease.map(|lease| lease.ends);
            prop_assert!(ends.is_none_or(|ends| ends == UnixTime(store.now + SECOND)));
            prop_assert_eq!(reply.results[0].receipt, None);
        }
    }
}

#[test]
fn all_gateways_together_have_the_slots_of_one_quota() {
    let (mut store, key) = (Store::open(), fresh_key());
    for in_use in 0..5 {
        let reply = store.call(&[request(&key, 9, one_more(1, 1, in_use))]);
        assert_eq!((usable(&reply), reply.results[0].remaining), (in_use + 1, 8 - in_use));
    }
    for in_use in 0..4 {
        assert_eq!(usable(&store.call(&[request(&key, 9, one_more(2, 1, in_use))])), in_use + 1);
    }
    let reply = store.call(&[request(&key, 9, one_more(3, 1, 0))]);
    let retry_at = UnixTime(START + SECOND);
    assert_eq!(reply.outcome, SharedOutcome::Refused);
    assert_eq!(reply.results[0].decision, SharedDecision::Refuse { retry_at });
    // The second gateway returns two of its four.
    let kept = SlotRequest { needed: 0, wanted: 2, ..one_more(2, 2, 2) };
    assert_eq!(usable(&store.call(&[renewal(&key, 9, kept)])), 2);
    assert_eq!(usable(&store.call(&[request(&key, 9, one_more(3, 1, 0))])), 1);
}

#[test]
fn slots_are_another_gateways_when_their_lease_has_ended_and_not_before() {
    let (mut store, key) = (Store::open(), fresh_key());
    let _ = store.call(&[request(&key, 1, one_more(1, 1, 0))]);
    store.now += SECOND - 1;
    let refused = store.call(&[request(&key, 1, one_more(2, 1, 0))]);
    assert_eq!(refused.outcome, SharedOutcome::Refused);
    store.now += 1;
    assert_eq!(usable(&store.call(&[request(&key, 1, one_more(2, 1, 0))])), 1);
    // What is in use counts where there is no room for it, and is not used again.
    let claim = SlotRequest { needed: 0, wanted: 1, ..one_more(1, 2, 1) };
    assert_eq!(usable(&store.call(&[renewal(&key, 1, claim)])), 0);
    let refused = store.call(&[request(&key, 1, one_more(2, 2, 0))]);
    assert_eq!(refused.outcome, SharedOutcome::Refused);
}

#[test]
fn what_something_else_wrote_has_no_slots_and_is_replaced() {
    for write in [[&b"SET"[..], b"5"], [b"LPUSH", b"5"]] {
        let (mut store, key) = (Store::open(), fresh_key());
        let [command, value] = write;
        store.connection.call(&[command, &key[..], value]);
        assert_eq!(usable(&store.call(&[request(&key, 2, one_more(1, 1, 0))])), 1);
        assert_eq!(usable(&store.call(&[request(&key, 2, one_more(2, 1, 0))])), 1);
        let refused = store.call(&[request(&key, 2, one_more(3, 1, 0))]);
        assert_eq!(refused.outcome, SharedOutcome::Refused);
    }
}

#[test]
fn an_older_call_takes_back_nothing_that_a_newer_one_got() {
    let (mut store, key) = (Store::open(), fresh_key());
    let _ = store.call(&[request(&key, 5, one_more(1, 8, 3))]);
    let older = SlotRequest { needed: 0, wanted: 1, ..one_more(1, 7, 1) };
    let _ = store.call(&[renewal(&key, 5, older)]);
    let refused = store.call(&[request(&key, 5, one_more(2, 1, 1))]);
    assert_eq!(refused.outcome, SharedOutcome::Refused, "the first has four");
    let newer = SlotRequest { sequence: 9, ..older };
    let _ = store.call(&[renewal(&key, 5, newer)]);
    assert_eq!(usable(&store.call(&[request(&key, 5, one_more(2, 1, 1))])), 2);
}

#[test]
fn no_slot_is_granted_where_another_limit_refuses_and_none_is_charged_where_no_slot_is_left() {
    let (mut store, key, tokens) = (Store::open(), fresh_key(), fresh_key());
    let full = check(&fresh_key(), bucket("1/h", 1), 2);
    let reply = store.call(&[request(&key, 1, one_more(1, 1, 0)), full]);
    assert_eq!((reply.outcome, usable(&reply)), (SharedOutcome::Refused, 0));
    let spend = || check(&tokens, bucket("1/h", 2), 1);
    let reply = store.call(&[spend(), request(&key, 1, one_more(2, 1, 0))]);
    assert_eq!(reply.outcome, SharedOutcome::Admitted);
    let reply = store.call(&[spend(), request(&key, 1, one_more(1, 2, 0))]);
    assert_eq!((reply.outcome, reply.results[0].remaining), (SharedOutcome::Refused, 1));
    // A limit that only observes refuses nothing, and grants nothing.
    let observed = SharedCheck { enforced: false, ..request(&key, 1, one_more(1, 3, 0)) };
    let reply = store.call(&[observed, spend()]);
    assert_eq!((reply.outcome, usable(&reply)), (SharedOutcome::Admitted, 0));
    assert!(matches!(reply.results[0].decision, SharedDecision::Refuse { .. }));
}
