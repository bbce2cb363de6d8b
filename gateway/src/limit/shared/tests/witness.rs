//! What the store has lost comes back from the gateways that were given it, and nothing twice.

use proptest::prelude::*;
use weir_common::limit::calendar::CalendarUnit;
use weir_common::time::Tick;

use super::super::super::super::key::{Key, LimitTag};
use super::super::super::super::{LimitCheck, memory};
use super::super::super::remote;
use super::super::super::share::FleetPosition;
use super::changes::{bucket, calendar};
use super::*;

const MINUTE: Duration = Duration::from_secs(60);

impl Store {
    fn dump(&mut self, key: &[u8]) -> Option<Vec<u8>> {
        match self.connection.call(&[b"DUMP", key]) {
            Value::Text(text) => Some(text),
            Value::Nothing => None,
            other => panic!("{other:?}"),
        }
    }

    fn restore(&mut self, key: &[u8], dump: Option<&[u8]>) {
        self.connection.call(&[b"DEL", key]);
        if let Some(dump) = dump {
            let restored = self.connection.call(&[b"RESTORE", key, b"0", dump]);
            assert_eq!(restored, Value::Text(b"OK".to_vec()));
        }
    }

    /// The entries of a window, without what describes them.
    fn entries(&mut self, key: &[u8]) -> Vec<u8> {
        let mut text = self.connection.call(&[b"GET", key]).text();
        text.truncate(text.len() - 58);
        text
    }
}

/// One gateway's admissions in one window.
#[derive(Clone, Default)]
struct Witness(Vec<(Receipt, u32)>);

impl Witness {
    fn note(&mut self, reply: &SharedReply, cost: u32) {
        let Some(receipt) = reply.results[0].receipt else { return };
        match self.0.last_mut().filter(|(last, _)| last.stamp == receipt.stamp) {
            Some((_, count)) => *count += cost,
            None => self.0.push((receipt, cost)),
        }
    }

    fn claim(&self) -> Option<WitnessClaim> {
        self.0.last().map(|(receipt, count)| WitnessClaim::Admission {
            sequence: receipt.sequence,
            stamp: receipt.stamp,
            count: *count,
        })
    }

    fn replayed(&self) -> Vec<ReplayedAdmission> {
        let one = |(receipt, count): &(Receipt, u32)| ReplayedAdmission {
            stamp: receipt.stamp,
            count: *count,
        };
        self.0.iter().map(one).collect()
    }
}

fn history() -> impl Strategy<Value = Vec<(u64, usize, u32)>> {
    prop::collection::vec((1..400_000_u64, 0..2_usize, 1..4_u32), 1..150)
}

/// Charges what two gateways send, each with its claim, which holds each time.
fn charge(
    store: &mut Store,
    key: &[u8],
    quota: Quota,
    gateways: &mut [Witness; 2],
    history: &[(u64, usize, u32)],
) -> Result<(), TestCaseError> {
    for (wait, gateway, cost) in history {
        store.now += wait;
        let claim = gateways[*gateway].claim();
        let reply = store.call(&[SharedCheck { claim, ..check(key, quota, *cost) }]);
        prop_assert_eq!(reply.outcome, SharedOutcome::Admitted);
        gateways[*gateway].note(&reply, *cost);
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn what_a_store_has_lost_is_noticed_and_restored_exactly(
        kept in prop::option::of(history()),
        lost in history(),
        window in prop::sample::select(vec![MINUTE, 60 * MINUTE, 744 * 60 * MINUTE]),
        first in 0..2_usize,
        pause in 0..2_000_000_u64,
    ) {
        let (mut store, key) = (Store::open(), fresh_key());
        let quota = rolling(10_000, window);
        let mut gateways = [Witness::default(), Witness::default()];
        if let Some(kept) = &kept {
            charge(&mut store, &key, quota, &mut gateways, kept)?;
        }
        let older = store.dump(&key);
        let known = gateways.clone();
        charge(&mut store, &key, quota, &mut gateways, &lost)?;
        let (entries, newer) = (store.entries(&key), store.dump(&key));
        let before = store.call_as(&[check(&key, quota, 1)], CallMode::Preview, None);

        store.restore(&key, older.as_deref());
        store.now += pause;
        for nth in [first, 1 - first] {
            let claim = gateways[nth].claim();
            let claimed = SharedCheck { claim, ..check(&key, quota, 1) };
            let has_lost = gateways[nth].0.len() > known[nth].0.len();
            let state = store.dump(&key);
            if has_lost {
                let reply = store.call(std::slice::from_ref(&claimed));
                prop_assert_eq!(reply.outcome, SharedOutcome::Forgot);
                prop_assert!(reply.results[0].forgot);
                prop_assert_eq!(store.dump(&key), state, "a forgotten call changed the state");
            }
            let replayed = gateways[nth].replayed();
            let replayed = SharedCheck { replayed, ..claimed.clone() };
            for _ in 0..2 {
                let checks = std::slice::from_ref(&replayed);
                let reply = store.call_as(checks, CallMode::Preview, None);
                prop_assert_eq!(reply.outcome, SharedOutcome::Admitted);
            }
            let reply = store.call_as(&[claimed], CallMode::Preview, None);
            prop_assert_eq!(reply.outcome, SharedOutcome::Admitted, "the claim holds again");
        }
        prop_assert_eq!(store.entries(&key), entries, "not the same admissions");
        let after = store.call_as(&[check(&key, quota, 1)], CallMode::Preview, None);
        store.restore(&key, newer.as_deref());
        let never_lost = store.call_as(&[check(&key, quota, 1)], CallMode::Preview, None);
        prop_assert_eq!(&after.results, &never_lost.results);
        prop_assert!(pause > 0 || after.results == before.results);
    }

    #[test]
    fn replayed_in_pieces_and_in_any_order_counts_once(
        history in history(), pieces in prop::collection::vec((0..150_usize, 1..40_usize), 1..12),
    ) {
        let (mut store, key) = (Store::open(), fresh_key());
        let quota = rolling(10_000, MINUTE);
        let mut gateways = [Witness::default(), Witness::default()];
        charge(&mut store, &key, quota, &mut gateways, &history)?;
        let entries = store.entries(&key);
        let mut all = [gateways[0].replayed(), gateways[1].replayed()].concat();
        store.restore(&key, None);
        let mut replay = |replayed: &[ReplayedAdmission]| {
            let replayed = SharedCheck { replayed: replayed.to_vec(), ..check(&key, quota, 1) };
            store.call_as(&[replayed], CallMode::Preview, None)
        };
        for (from, length) in pieces {
            let from = from % all.len();
            let _ = replay(&all[from..all.len().min(from + length)]);
        }
        all.reverse();
        let reply = replay(&all);
        let used: u32 = all.iter().map(|one| one.count).sum();
        prop_assert_eq!(reply.results[0].remaining, 10_000 - used);
        prop_assert_eq!(store.entries(&key), entries);
    }

    #[test]
    fn a_claim_holds_while_others_charge_and_until_its_admission_no_longer_matters(
        history in history(), wait in 0..70_000_000_u64,
    ) {
        let (mut store, key) = (Store::open(), fresh_key());
        let quota = rolling(10_000, MINUTE);
        let mut witness = Witness::default();
        let reply = store.call(&[check(&key, quota, 3)]);
        witness.note(&reply, 3);
        let admitted_at = store.now;
        for (wait, _, cost) in history.into_iter().chain([(wait, 0, 1)]) {
            store.now += wait;
            let claimed = SharedCheck { claim: witness.claim(), ..check(&key, quota, cost) };
            prop_assert_eq!(store.call(&[claimed]).outcome, SharedOutcome::Admitted);
        }
        store.restore(&key, None);
        let claimed = SharedCheck { claim: witness.claim(), ..check(&key, quota, 1) };
        let matters = store.now < admitted_at + 60_000_000;
        let expected = if matters { SharedOutcome::Forgot } else { SharedOutcome::Admitted };
        prop_assert_eq!(store.call(&[claimed]).outcome, expected);
    }
}

#[test]
fn slots_that_were_lost_are_restored_to_what_each_gateway_charged() {
    let (mut store, key) = (Store::open(), fresh_key());
    let quota = rolling(1_000_000, MINUTE);
    let mut witness = Witness::default();
    for wait in [1, 1, 50_000, 70_000, 1, 900_000] {
        store.now += wait;
        let reply = store.call(&[SharedCheck { claim: witness.claim(), ..check(&key, quota, 7) }]);
        assert_eq!(reply.outcome, SharedOutcome::Admitted);
        witness.note(&reply, 7);
    }
    assert!(witness.0.len() < 6, "some share a slot");
    let entries = store.entries(&key);
    store.restore(&key, None);
    let claimed = SharedCheck { claim: witness.claim(), ..check(&key, quota, 1) };
    assert_eq!(store.call(std::slice::from_ref(&claimed)).outcome, SharedOutcome::Forgot);
    let replayed = SharedCheck { replayed: witness.replayed(), ..claimed };
    let reply = store.call_as(&[replayed], CallMode::Preview, None);
    assert_eq!(reply.results[0].remaining, 1_000_000 - 42);
    assert_eq!(store.entries(&key), entries);
}

#[test]
fn a_check_that_has_lost_its_claim_charges_none_of_the_call() {
    let (mut store, keys) = (Store::open(), [fresh_key(), fresh_key()]);
    let quota = rolling(5, MINUTE);
    let mut witness = Witness::default();
    witness.note(&store.call(&[check(&keys[1], quota, 1)]), 1);
    store.restore(&keys[1], None);
    store.now += 1;
    for order in [[0, 1], [1, 0]] {
        // Even if it is only observed.
        let checks = order.map(|nth| SharedCheck {
            claim: if nth == 1 { witness.claim() } else { None },
            enforced: nth == 0,
            ..check(&keys[nth], quota, 1)
        });
        let reply = store.call(&checks);
        assert_eq!(reply.outcome, SharedOutcome::Forgot);
        assert_eq!([0, 1].map(|at| reply.results[at].forgot), order.map(|nth| nth == 1));
        assert_eq!([0, 1].map(|nth| store.dump(&keys[nth])), [None, None]);
    }
}

#[test]
fn a_replay_counts_even_if_the_request_is_refused_and_one_that_is_too_old_does_not() {
    let (mut store, key) = (Store::open(), fresh_key());
    let quota = rolling(3, MINUTE);
    let at = |ago: u64| ReplayedAdmission { stamp: UnixTime(START - ago), count: 2 };
    let replayed =
        vec![at(59_999_999), at(60_000_000), at(5), at(90_000_000_000), at((1 << 32) + 7)];
    let reply = store.call(&[SharedCheck { replayed, ..check(&key, quota, 1) }]);
    assert_eq!(reply.outcome, SharedOutcome::Refused);
    let reply = store.call(&[check(&key, rolling(10, MINUTE), 1)]);
    assert_eq!(reply.results[0].remaining, 10 - 2 - 2 - 1);
}

#[test]
fn a_bucket_that_was_lost_has_the_larger_debt() {
    let (mut store, key) = (Store::open(), fresh_key());
    let quota = bucket("7/15m", 100);
    let debt = |tokens, at| Some(WitnessClaim::Debt { tokens, units: 5, at: UnixTime(at) });
    let mut remaining = |claim, wait: u64| {
        store.now += wait;
        let checks = [SharedCheck { claim, ..check(&key, quota, 1) }];
        let reply = store.call(&checks);
        assert_eq!(reply.outcome, SharedOutcome::Admitted);
        (reply.results[0].remaining, reply.results[0].forgot)
    };
    assert_eq!(remaining(None, 0), (99, false));
    assert_eq!(remaining(debt(1, START), 0), (97, true), "five units more than the store had");
    assert_eq!(remaining(debt(50, START), 0), (48, true));
    assert_eq!(remaining(debt(30, START), 0), (47, false));
    // Seven of 53 tokens came back since, and seven of 60.
    assert_eq!(remaining(debt(60, START), 900_000_000), (45, true));
}

#[test]
fn what_a_share_has_spent_of_a_bucket_is_claimed_of_the_whole() {
    let (mut store, memory) = (Store::open(), memory::MemoryStore::new(16));
    let whole = bucket("1/h", 10);
    let share = FleetPosition { nth: 0, of: 2 }.share(whole).unwrap();
    let made = |quota| LimitCheck::new(Key::from_bits(7), LimitTag::from_bits(1), quota);
    for _ in 0..5 {
        assert!(memory.judge(&[made(share)], Tick(START)).unwrap().is_admitted());
    }
    let claimed = remote::shared(&memory, &made(whole), None, Tick(START));
    let reply = store.call(&[SharedCheck { key: fresh_key(), ..claimed }]);
    assert_eq!((reply.results[0].remaining, reply.results[0].forgot), (4, true));
}

#[test]
fn a_window_that_was_replayed_counts_under_another_algorithm() {
    let day = 86_400_000_000;
    let Quota::Calendar(today) = calendar(CalendarUnit::Day, 10, START) else { panic!() };
    let midnight = today.period.stops.0;
    // What is charged first is of the day before, or there is nothing.
    for charged in [false, true] {
        for (to, left) in
            [(calendar(CalendarUnit::Day, 10, midnight + 60_000_000), 6), (bucket("60/h", 10), 7)]
        {
            let (mut store, key) = (Store::open(), fresh_key());
            let window = rolling(10, 2 * Duration::from_micros(day));
            store.now = midnight - 7_200_000_000;
            if charged {
                let _ = store.call(&[check(&key, window, 1)]);
            }
            store.now = midnight + 60_000_000;
            let replayed = vec![ReplayedAdmission { stamp: UnixTime(midnight), count: 4 }];
            let told = SharedCheck { replayed, ..check(&key, window, 1) };
            let _ = store.call_as(&[told], CallMode::Preview, None);
            let reply = store.call_as(&[check(&key, to, 1)], CallMode::Preview, None);
            assert_eq!(reply.results[0].remaining, left, "{charged} {to:?}");
        }
    }
}

#[test]
fn what_was_given_of_an_algorithm_is_claimed_of_the_one_after_it() {
    let made = |quota| LimitCheck::new(Key::from_bits(7), LimitTag::from_bits(1), quota);
    let Quota::Calendar(today) = calendar(CalendarUnit::Day, 10, START) else { panic!() };
    let yesterday = today.period.starts.0 - 90_000_000;
    let windows = [10, 100_000].map(|requests| rolling(requests, 1_440 * MINUTE));
    let others = [bucket("1/d", 10), Quota::Calendar(today)];
    for from in windows.into_iter().chain(others) {
        for to in others {
            let (mut store, memory) = (Store::open(), memory::MemoryStore::new(16));
            // Of a window it is known what was of the day before.
            let left = if windows.contains(&from) && to == others[1] { 6 } else { 5 };
            for at in [yesterday, START, START, START, START] {
                memory.record(&made(from), Tick(at)).unwrap();
            }
            let claimed = remote::shared(&memory, &made(to), None, Tick(START));
            let claimed = SharedCheck { key: fresh_key(), ..claimed };
            let reply = store.call_as(&[claimed], CallMode::Preview, None);
            let found = (reply.results[0].remaining, reply.results[0].forgot);
            assert_eq!(found, (left, true), "{from:?} {to:?}");
            assert!(reply.results[0].full_at.0 <= START + 5 * 86_400_000_000, "{from:?} {to:?}");
        }
    }
}

#[test]
fn a_count_that_was_lost_is_the_larger_one_of_the_same_period() {
    let (mut store, key) = (Store::open(), fresh_key());
    let mut remaining = |count, day: u64| {
        store.now = START + day * 86_400_000_000;
        let Quota::Calendar(first) = calendar(CalendarUnit::Day, 10, START) else { panic!() };
        let claim = Some(WitnessClaim::Used { starts: first.period.starts, count });
        let quota = calendar(CalendarUnit::Day, 10, store.now);
        let reply = store.call(&[SharedCheck { claim, ..check(&key, quota, 1) }]);
        (reply.results[0].remaining, reply.results[0].forgot)
    };
    assert_eq!(remaining(4, 0), (5, true));
    assert_eq!(remaining(3, 0), (4, false));
    assert_eq!(remaining(9, 0), (0, true));
    assert_eq!(remaining(9, 1), (9, false));
}

#[test]
fn a_slot_that_has_lost_a_part_of_its_count_is_forgotten() {
    let (mut store, key) = (Store::open(), fresh_key());
    let quota = rolling(1_000_000, MINUTE);
    let mut witness = Witness::default();
    witness.note(&store.call(&[check(&key, quota, 7)]), 7);
    let older = store.dump(&key);
    witness.note(&store.call(&[check(&key, quota, 2)]), 2);
    store.restore(&key, older.as_deref());
    let claimed = SharedCheck { claim: witness.claim(), ..check(&key, quota, 1) };
    assert_eq!(store.call(&[claimed]).outcome, SharedOutcome::Forgot);
}

#[test]
fn a_call_that_brings_a_part_is_forgotten_where_the_store_lacks_what_it_claims() {
    let (mut store, key) = (Store::open(), fresh_key());
    let replayed = vec![ReplayedAdmission { stamp: UnixTime(START - 9), count: 1 }];
    let mut outcome = |stamp| {
        let claim = Some(WitnessClaim::Admission { sequence: 9, stamp: UnixTime(stamp), count: 1 });
        let replayed = replayed.clone();
        let told = SharedCheck { claim, replayed, ..check(&key, rolling(5, MINUTE), 1) };
        let reply = store.call(&[told]);
        (reply.outcome, reply.results[0].remaining)
    };
    assert_eq!(outcome(START), (SharedOutcome::Forgot, 4));
    assert_eq!(outcome(START - 9), (SharedOutcome::Admitted, 3));
}
