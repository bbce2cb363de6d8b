//! Leases of a bucket's tokens: no more is spent than one bucket allows, counted when it is spent,
//! and what is returned is as if it had never been leased.

use proptest::prelude::*;
use weir_common::limit::state::State;

use super::changes::bucket;
use super::windows::in_memory;
use super::*;

const SECOND: u64 = 1_000_000;

/// A gateway, and what it holds of the key.
#[derive(Clone, Copy, Default)]
struct Holder {
    id: u64,
    held: Option<Lease>,
}

impl Holder {
    /// A check that returns what the gateway holds, and wants as many tokens.
    fn check(&self, key: &[u8], quota: Quota, cost: u32, wanted: u32) -> SharedCheck {
        let own = |lease: Lease| ReturnedLease { ends: lease.ends, unspent: lease.tokens };
        let returned = self.held.map(own);
        let lease = Some(LeaseRequest { gateway: self.id, returned, wanted });
        SharedCheck { lease, ..check(key, quota, cost) }
    }

    fn call(&mut self, store: &mut Store, asked: &SharedCheck, mode: CallMode) -> SharedReply {
        let reply = store.call_as(std::slice::from_ref(asked), mode, None);
        self.held = reply.results[0].lease;
        reply
    }
}

#[derive(Clone, Debug)]
enum Act {
    /// A call of so much, which wants so much; what is lost of it.
    Call { cost: u32, wanted: u32, lost: Lost },
    /// So many tokens are spent without a call.
    Spend(u32),
    /// The lease is returned by a call that charges nothing.
    Return,
    /// The gateway is killed, and another one starts.
    Kill,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Lost {
    Nothing,
    Call,
    Reply,
}

fn acts() -> impl Strategy<Value = Vec<(i64, usize, Act)>> {
    let lost = prop_oneof![8 => Just(Lost::Nothing), 1 => Just(Lost::Call), 1 => Just(Lost::Reply)];
    let call = (1..4_u32, 0..40_u32, lost);
    let act = prop_oneof![
        6 => call.prop_map(|(cost, wanted, lost)| Act::Call { cost, wanted, lost }),
        8 => (1..12_u32).prop_map(Act::Spend),
        1 => Just(Act::Return),
        1 => Just(Act::Kill),
    ];
    // A negative wait sets the clock of the store back.
    let wait = prop_oneof![
        6 => 0..40_000_i64, 2 => 0..1_500_000_i64, 1 => 0..5_000_000_i64, 1 => -300_000..0_i64,
    ];
    prop::collection::vec((wait, 0..3_usize, act), 1..150)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    #[test]
    fn no_stretch_spends_more_than_the_burst_and_the_flow(
        rate in 1..60_u32, burst in 1..60_u32, acts in acts(),
    ) {
        let (mut store, key) = (Store::open(), fresh_key());
        let quota = bucket(&format!("{rate}/s"), burst);
        let mut gateways = [1, 2, 3].map(|id| Holder { id, held: None });
        let (mut now, mut spent): (u64, Vec<(u64, u32)>) = (0, Vec::new());
        for (wait, nth, act) in acts {
            store.now = store.now.saturating_add_signed(wait);
            now += wait.max(0).unsigned_abs();
            let gateway = &mut gateways[nth];
            match act {
                Act::Call { lost: Lost::Call, .. } => gateway.held = None,
                Act::Call { cost, wanted, lost } => {
                    let asked = gateway.check(&key, quota, cost, wanted);
                    let reply = gateway.call(&mut store, &asked, CallMode::Charge);
                    if reply.outcome == SharedOutcome::Admitted {
                        spent.push((now, cost));
                    }
                    if lost == Lost::Reply {
                        gateway.held = None;
                    }
                }
                Act::Spend(count) => {
                    if let Some(held) = &mut gateway.held
                        && held.tokens >= count
                        && store.now < held.ends.0
                    {
                        held.tokens -= count;
                        spent.push((now, count));
                    }
                }
                Act::Return => {
                    let asked = gateway.check(&key, quota, 1, 9);
                    let _ = gateway.call(&mut store, &asked, CallMode::Preview);
                    prop_assert_eq!(gateway.held, None);
                }
                Act::Kill => *gateway = Holder { id: gateway.id + 3, held: None },
            }
        }
        for (first, (start, _)) in spent.iter().enumerate() {
            let mut sum = 0;
            for (end, count) in &spent[first..] {
                sum += u64::from(*count) * SECOND;
                let allowed = u64::from(burst) * SECOND + (end - start) * u64::from(rate);
                prop_assert!(sum <= allowed, "{sum} of {allowed} from {start} to {end}");
            }
        }
    }

    #[test]
    fn a_lease_that_is_returned_unspent_leaves_no_trace(
        rate in 1..60_u32,
        burst in 1..60_u32,
        calls in prop::collection::vec((0..900_000_u64, 0..2_usize, 1..9_u32, 0..40_u32), 1..60),
    ) {
        let (mut store, key) = (Store::open(), fresh_key());
        let quota = bucket(&format!("{rate}/s"), burst);
        let mut gateways = [1, 2].map(|id| Holder { id, held: None });
        let mut states = [State::fresh(quota)];
        for (wait, nth, cost, wanted) in calls {
            store.now += wait;
            for gateway in &mut gateways {
                let asked = gateway.check(&key, quota, 1, 0);
                let _ = gateway.call(&mut store, &asked, CallMode::Preview);
            }
            let asked = gateways[nth].check(&key, quota, cost, wanted);
            let reply = gateways[nth].call(&mut store, &asked, CallMode::Charge);
            let (admitted, expected) = in_memory(&mut states, &[asked], store.now);
            prop_assert_eq!(reply.outcome == SharedOutcome::Admitted, admitted);
            let leased = gateways[nth].held.map_or(0, |lease| lease.tokens);
            prop_assert_eq!(reply.results[0].remaining + leased, expected[0].remaining);
            // What is left of others' is at least as much.
            prop_assert!(leased <= reply.results[0].remaining + 1 && leased <= wanted);
        }
    }
}

/// A store, a key, and a gateway with a lease of 20 of 100 tokens that come back 10 a second.
fn leased() -> (Store, Vec<u8>, Quota, Holder) {
    let (mut store, key) = (Store::open(), fresh_key());
    let quota = bucket("10/s", 100);
    let mut gateway = Holder { id: 7, held: None };
    let asked = gateway.check(&key, quota, 20, 20);
    let reply = gateway.call(&mut store, &asked, CallMode::Charge);
    let ends = UnixTime(START + SECOND);
    assert_eq!(gateway.held, Some(Lease { tokens: 20, ends }));
    assert_eq!(reply.results[0].remaining, 60);
    // Twenty come back until its end but one, and then twenty that were leased.
    assert_eq!(reply.results[0].full_at, UnixTime(START + 4 * SECOND));
    (store, key, quota, gateway)
}

/// What is left at a time after the lease was granted.
fn left(store: &mut Store, key: &[u8], quota: Quota, at: u64) -> u32 {
    store.now = START + at;
    store.call_as(&[check(key, quota, 1)], CallMode::Preview, None).results[0].remaining
}

#[test]
fn leased_tokens_do_not_come_back_before_their_lease_ends() {
    let (store, key, quota, mut gateway) = leased();
    let mut store = store;
    assert_eq!(left(&mut store, &key, quota, SECOND), 70);
    assert_eq!(left(&mut store, &key, quota, 4 * SECOND - 1), 99);
    assert_eq!(left(&mut store, &key, quota, 4 * SECOND), 100);
    // All but the lease is back when it is granted: its tokens wait for its end.
    store.now = START + 8 * SECOND;
    let asked = gateway.check(&key, quota, 1, 40);
    let _ = gateway.call(&mut store, &asked, CallMode::Charge);
    assert_eq!(gateway.held.map(|lease| lease.tokens), Some(40));
    assert_eq!(left(&mut store, &key, quota, 9 * SECOND - 1), 60);
    assert_eq!(left(&mut store, &key, quota, 9 * SECOND), 60);
    assert_eq!(left(&mut store, &key, quota, 10 * SECOND), 70);
}

#[test]
fn leases_that_end_between_two_calls_end_one_after_the_other() {
    let (mut store, key) = (Store::open(), fresh_key());
    let quota = bucket("10/s", 100);
    for (id, wait) in [(1, 0), (2, 500_000)] {
        store.now += wait;
        let asked = Holder { id, held: None }.check(&key, quota, 1, 30);
        let _ = store.call(&[asked]);
    }
    // At 1.5 s the second ends: 30 of the debt of 60 had to stay, and 5 have come back.
    assert_eq!(left(&mut store, &key, quota, SECOND), 40);
    assert_eq!(left(&mut store, &key, quota, 1_500_000), 45);
    assert_eq!(left(&mut store, &key, quota, 7 * SECOND), 100);
}

#[test]
fn a_lease_is_returned_once_and_only_as_it_was_granted() {
    let (mut store, key, quota, gateway) = leased();
    let mut remaining = |holder: Holder, unspent, ends| {
        let returned = Some(ReturnedLease { ends: UnixTime(ends), unspent });
        let lease = Some(LeaseRequest { gateway: holder.id, returned, wanted: 0 });
        let asked = SharedCheck { lease, ..check(&key, quota, 1) };
        store.call_as(&[asked], CallMode::Preview, None).results[0].remaining
    };
    let ends = START + SECOND;
    assert_eq!(remaining(gateway, 5, ends + 1), 60, "not its end");
    assert_eq!(remaining(Holder { id: 8, held: None }, 5, ends), 60, "not its gateway");
    assert_eq!(remaining(gateway, 5, ends), 65);
    assert_eq!(remaining(gateway, 5, ends), 65, "for the second time");
    let (mut store, key, quota, mut gateway) = leased();
    store.now = ends;
    let asked = gateway.check(&key, quota, 1, 0);
    let reply = gateway.call(&mut store, &asked, CallMode::Preview);
    assert_eq!(reply.results[0].remaining, 70, "it has ended");
    let (mut store, key, quota, mut gateway) = leased();
    gateway.held = gateway.held.map(|lease| Lease { tokens: 90, ..lease });
    let asked = gateway.check(&key, quota, 1, 0);
    let reply = gateway.call(&mut store, &asked, CallMode::Preview);
    assert_eq!(reply.results[0].remaining, 80, "more than was granted");
}

#[test]
fn a_gateway_has_one_lease_and_a_refusal_or_a_preview_grants_none() {
    let (mut store, key, quota, gateway) = leased();
    let another = Holder { held: None, ..gateway }.check(&key, quota, 1, 9);
    assert_eq!(store.call(&[another]).results[0].lease, None);
    let other = Holder { id: 8, held: None };
    let asked = other.check(&key, quota, 1, 9);
    let preview = store.call_as(&[asked], CallMode::Preview, None);
    assert_eq!(preview.results[0].lease, None);
    let reply = store.call(&[other.check(&key, quota, 60, 9)]);
    let refused = &reply.results[0];
    assert_eq!((reply.outcome, refused.lease), (SharedOutcome::Refused, None));
    // One comes back in a tenth of a second; the lease may be returned before it ends.
    assert_eq!(refused.decision, SharedDecision::Refuse { retry_at: UnixTime(START + 100_000) });
    assert_eq!(refused.ask_again_at, Some(UnixTime(START + SECOND)));
    let SharedDecision::Refuse { retry_at } =
        store.call(&[check(&key, quota, 95)]).results[0].decision
    else {
        panic!()
    };
    assert_eq!(retry_at, UnixTime(START + 3_600_000), "41 and 95 are 36 too many");
}

#[test]
fn a_request_that_another_limit_refuses_returns_its_lease_all_the_same() {
    let (mut store, key, quota, gateway) = leased();
    let full = check(&fresh_key(), bucket("1/s", 1), 2);
    let reply = store.call(&[gateway.check(&key, quota, 1, 9), full]);
    assert_eq!(reply.outcome, SharedOutcome::Refused);
    assert_eq!((reply.results[0].remaining, reply.results[0].lease), (80, None));
    assert_eq!(left(&mut store, &key, quota, 0), 80);
}

#[test]
fn the_number_of_leases_of_a_key_is_bounded_and_what_has_them_is_read_again() {
    let (mut store, key) = (Store::open(), fresh_key());
    let quota = bucket("1/h", 100_000);
    let granted = (0..40).filter(|id| {
        let asked = Holder { id: *id, held: None }.check(&key, quota, 1, 10);
        store.call(&[asked]).results[0].lease.is_some()
    });
    assert_eq!(granted.count(), 24);
    // Another algorithm counts what is leased at the last end.
    let quota = rolling(100_000, Duration::from_secs(60));
    assert_eq!(left(&mut store, &key, quota, 0), 100_000 - 40 - 240);
    assert_eq!(left(&mut store, &key, quota, 60 * SECOND), 100_000 - 40 - 240);
    assert_eq!(left(&mut store, &key, quota, 62 * SECOND), 100_000);
}

#[test]
fn a_bucket_in_debt_waits_for_the_leases_of_others_and_grants_none() {
    let (mut store, key, wide, gateway) = leased();
    let tight = bucket("10/s", 15);
    let other = Holder { id: 8, held: None };
    let refused = |reply: SharedReply| match reply.results[0].decision {
        SharedDecision::Refuse { retry_at } => retry_at.0 - START,
        other => panic!("{other:?}"),
    };
    // One comes back a tenth of a second after the lease, whatever the debt is.
    assert_eq!(refused(store.call(&[other.check(&key, tight, 1, 9)])), 1_100_000);
    store.now = START + 1_100_000;
    let reply = store.call(&[other.check(&key, tight, 1, 9)]);
    assert_eq!((reply.outcome, reply.results[0].remaining), (SharedOutcome::Admitted, 0));
    assert_eq!(reply.results[0].lease, None);
    assert_eq!(left(&mut store, &key, wide, 1_100_000), 70, "30 were owed a tenth before");
    // Idle, it saves up the burst; the debt goes on to come back.
    assert_eq!(left(&mut store, &key, tight, 2_000_000), 9);
    assert_eq!(left(&mut store, &key, tight, 2_600_000), 15);
    assert_eq!(left(&mut store, &key, wide, 2_000_000), 79);
    let (mut store, key, ..) = leased();
    let reply = store.call(&[gateway.check(&key, tight, 1, 9)]);
    assert_eq!(refused(reply), 100_000, "its own lease is returned");
}
