//! Every algorithm, alone and after another: as in memory, and as by counting.

use proptest::prelude::*;
use weir_common::limit::calendar::{Calendar, CalendarUnit, parse_zone};
use weir_common::limit::state::State;
use weir_common::limit::token_bucket::{BucketQuota, Rate};
use weir_common::time::{Moment, Tick};

use super::model::{Model, judge};
use super::windows::in_memory;
use super::*;

const HOUR: Duration = Duration::from_secs(3_600);

pub(super) fn bucket(rate: &str, burst: u32) -> Quota {
    Quota::Bucket(BucketQuota { rate: Rate::parse(rate).unwrap(), burst })
}

/// A quota of a calendar with the period of `now`.
pub(super) fn calendar(unit: CalendarUnit, requests: u32, now: u64) -> Quota {
    let calendar = Calendar { unit, zone: parse_zone("Europe/Zurich").unwrap() };
    let now = Moment { tick: Tick(now), unix: UnixTime(now) };
    Quota::Calendar(CalendarQuota::new(requests, calendar)).at(now)
}

#[derive(Clone, Debug)]
struct Step {
    wait: i64,
    cost: u32,
    quotas: [usize; 2],
    enforced: bool,
    /// How far the gateway's clock is ahead.
    ahead: i64,
}

fn steps(quotas: usize, back: i64) -> impl Strategy<Value = Vec<Step>> {
    let wait = prop_oneof![
        4 => 0..2_000_000_i64,
        3 => 0..100_000_000_i64,
        2 => 0..2_000_000_000_i64,
        1 => 0..60_000_000_000_i64,
        1 => -back..=0_i64,
    ];
    let cost = prop_oneof![5 => 1..4_u32, 3 => 1..40_u32, 1 => 1..40_000_u32];
    let ahead = prop_oneof![3 => Just(0), 1 => -50_000_000_000..50_000_000_000_i64];
    let step = (wait, cost, [0..quotas, 0..quotas], prop::bool::weighted(0.9), ahead).prop_map(
        |(wait, cost, quotas, enforced, ahead)| Step { wait, cost, quotas, enforced, ahead },
    );
    prop::collection::vec(step, 1..120)
}

/// The store decides two limits of each step as the models do. Each limit has these quotas, or, as
/// after a reload, a step's quota alone.
fn agrees(quotas: &[Quota], steps: &[Step], alone: bool) -> Result<(), TestCaseError> {
    let mut store = Store::open();
    let keys = [fresh_key(), fresh_key()];
    let mut models = [Model::new(), Model::new()];
    let all = Horizon::of(quotas.iter().copied());
    for step in steps {
        store.now = store.now.saturating_add_signed(step.wait);
        let gateway = store.now.saturating_add_signed(step.ahead);
        let gateway = Moment { tick: Tick(gateway), unix: UnixTime(gateway) };
        let checks = [0, 1].map(|limit| {
            let own = check(&keys[limit], quotas[step.quotas[limit]].at(gateway), step.cost);
            let horizon = if alone { own.horizon } else { all };
            SharedCheck { enforced: step.enforced || limit == 1, horizon, ..own }
        });
        let reply = store.call(&checks);
        let (outcome, expected) = judge(&mut models, &checks, store.now);
        let replied: Vec<Expected> = reply.results.iter().map(Expected::replied).collect();
        prop_assert_eq!((&replied, reply.outcome), (&expected, outcome), "{:?} {:?}", step, models);
    }
    Ok(())
}

/// The units spent of a bucket in the store, and those of a token.
fn spent(store: &mut Store, key: &[u8]) -> (u64, u64) {
    let state = store.connection.call(&[b"GET", key]).text();
    let [whole, rest, size] = [0, 8, 16]
        .map(|at| f64::from_be_bytes(state[at..at + 8].try_into().unwrap()))
        .map(|number| number as u64);
    (whole * size + rest, size)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn buckets_of_any_rate_are_decided_as_in_memory(
        rates in prop::collection::vec(0..7_usize, 3),
        bursts in prop::collection::vec(prop_oneof![1..20_u32, 1..=1_000_000_u32], 3),
        steps in steps(3, 0),
    ) {
        let known = ["7/15m", "50/s", "5000/h", "3/250ms", "1000000/31d", "999983/d", "1/31d"];
        let quotas: Vec<Quota> =
            rates.iter().zip(bursts).map(|(rate, burst)| bucket(known[*rate], burst)).collect();
        let (mut store, key) = (Store::open(), fresh_key());
        let mut states = [State::fresh(quotas[0])];
        for step in steps {
            store.now += step.wait.unsigned_abs();
            let checks = [check(&key, quotas[step.quotas[0]], step.cost)];
            let reply = store.call(&checks);
            let (_, expected) = in_memory(&mut states, &checks, store.now);
            prop_assert_eq!(&Expected::replied(&reply.results[0]), &expected[0], "{:?}", step);
            if let (State::Bucket(own), SharedOutcome::Admitted) = (&states[0], reply.outcome) {
                prop_assert_eq!(spent(&mut store, &key), (own.spent(), own.token()));
            }
        }
    }

    #[test]
    fn calendars_are_decided_as_in_memory(steps in steps(2, 0)) {
        let (mut store, key) = (Store::open(), fresh_key());
        let quota = |nth, now| calendar(
            [CalendarUnit::Day, CalendarUnit::Month][nth], [300, 90][nth], now);
        let mut states = [State::fresh(quota(0, START))];
        for step in steps {
            store.now += 40 * step.wait.unsigned_abs();
            let gateway = store.now.saturating_add_signed(step.ahead);
            let asked = check(&key, quota(step.quotas[0], gateway), step.cost);
            let reply = store.call(std::slice::from_ref(&asked));
            let checks = [SharedCheck { quota: quota(step.quotas[0], store.now), ..asked }];
            let (_, expected) = in_memory(&mut states, &checks, store.now);
            prop_assert_eq!(&Expected::replied(&reply.results[0]), &expected[0], "{:?}", step);
        }
    }

    #[test]
    fn calendars_of_a_clock_that_is_set_back_are_decided_as_by_counting(
        steps in steps(2, 100_000_000_000),
    ) {
        let units = [CalendarUnit::Day, CalendarUnit::Month];
        agrees(&units.map(|unit| calendar(unit, 300, START)), &steps, false)?;
    }

    #[test]
    fn windows_of_any_length_are_decided_as_by_counting(
        steps in steps(4, 5_000_000), hours in prop_oneof![Just(0), 1..700_u32], alone: bool,
    ) {
        // A window of a month has units of 4 ms.
        let second = Duration::from_secs(1);
        let long = hours * HOUR + second;
        let quotas =
            [rolling(60, HOUR), rolling(5, second), rolling(90_000, HOUR), rolling(200, long)];
        agrees(&quotas, &steps, alone)?;
    }

    #[test]
    fn a_change_of_the_algorithm_loses_and_doubles_nothing(
        steps in steps(7, 5_000_000), alone: bool,
    ) {
        let quotas = [
            rolling(60, HOUR),
            rolling(90_000, HOUR),
            calendar(CalendarUnit::Day, 90_000, START),
            calendar(CalendarUnit::Month, 300_000, START),
            bucket("5000/h", 20_000),
            bucket("7/15m", 500),
            bucket("90000/d", 100_000),
        ];
        agrees(&quotas, &steps, alone)?;
    }
}

#[test]
fn a_bucket_that_is_alone_counts_what_the_window_before_it_did() {
    let minute = Duration::from_secs(60);
    for (requests, window) in [(600, 10 * minute), (100_000, 10 * minute)] {
        for (later, left) in [(0, 300), (9, 309), (15, 315)] {
            let (mut store, key) = (Store::open(), fresh_key());
            let mut charged = |cost, minutes: u64| {
                let reply = store.call(&[check(&key, rolling(requests, window), cost)]);
                assert_eq!(reply.outcome, SharedOutcome::Admitted);
                store.now += minutes * 60_000_000;
            };
            // The first has left the window when the others are charged.
            charged(250, 11);
            charged(200, 0);
            charged(100, later);
            let asked = check(&key, bucket("60/h", 600), 1);
            let reply = store.call_as(&[asked], CallMode::Preview, None);
            assert_eq!(reply.results[0].remaining, left, "{requests} {later}");
        }
    }
}

#[test]
fn a_horizon_that_grows_or_shrinks_loses_nothing_and_keeps_claims() {
    let minute = Duration::from_secs(60);
    for requests in [1_000, 100_000] {
        let (mut store, key) = (Store::open(), fresh_key());
        // Some of them are within 32 microseconds.
        let mut replayed: Vec<ReplayedAdmission> = Vec::new();
        let mut newest = None;
        for wait in [1, 1, 1, 9_000, 2, 90_000, 1, 1] {
            store.now += wait;
            let charged = check(&key, rolling(requests, minute), 3);
            newest = store.call(&[charged]).results[0].receipt;
            let stamp = newest.unwrap().stamp;
            match replayed.last_mut().filter(|last| last.stamp == stamp) {
                Some(last) => last.count += 3,
                None => replayed.push(ReplayedAdmission { stamp, count: 3 }),
            }
        }
        let Receipt { stamp, sequence } = newest.unwrap();
        let claim = Some(WitnessClaim::Admission { sequence, stamp, count: 3 });
        for seconds in [60, 2_678_400, 60, 40_000, 2_678_400] {
            let horizon = Horizon { window: seconds * 1_000_000, token: 0 };
            let asked = SharedCheck { horizon, ..check(&key, rolling(requests, minute), 1) };
            for replayed in [Vec::new(), replayed.clone(), replayed[2..].to_vec()] {
                let claimed = SharedCheck { claim, replayed, ..asked.clone() };
                let reply = store.call_as(&[claimed], CallMode::Preview, None);
                assert_eq!(reply.outcome, SharedOutcome::Admitted);
                assert_eq!(reply.results[0].remaining, requests - 24, "{seconds}");
                let later = reply.results[0].full_at.0 - stamp.0 - 60_000_000;
                assert!(later < 4_096, "{later} later");
            }
        }
        // Two of its stamps are in one unit.
        store.connection.call(&[b"DEL", &key[..]]);
        let horizon = Horizon { window: 2_678_400_000_000, token: 0 };
        let lost = check(&key, rolling(requests, minute), 1);
        let reply = store.call(&[SharedCheck { horizon, replayed, ..lost }]);
        assert_eq!(reply.results[0].remaining, requests - 25);
    }
}

#[test]
fn the_clock_of_the_server_decides_which_period_it_is() {
    let (mut store, key) = (Store::open(), fresh_key());
    let quota = calendar(CalendarUnit::Day, 10, START);
    let Quota::Calendar(CalendarQuota { period, .. }) = quota else { panic!() };
    let mut remaining = |now: u64| {
        store.now = now;
        store.call(&[check(&key, quota, 1)]).results[0].remaining
    };
    assert_eq!(remaining(period.starts.0 - 1), 9);
    assert_eq!(remaining(period.starts.0), 9);
    assert_eq!(remaining(period.stops.0 - 1), 8);
    assert_eq!(remaining(period.stops.0), 9);
    // It is set back, and forward again.
    assert_eq!(remaining(period.stops.0 - 1), 7);
    assert_eq!(remaining(period.stops.0 + 1), 7);
    store.now = period.stops.0 + 86_400_000_000;
    let reply = store.reply(&[check(&key, quota, 1)], CallMode::Charge, None);
    assert!(matches!(&reply, Value::Error(error) if error.contains("the clocks differ")));
}

#[test]
fn a_clock_that_was_ahead_over_midnight_forgets_nothing_of_the_day() {
    let (mut store, key) = (Store::open(), fresh_key());
    let quota = calendar(CalendarUnit::Day, 100, START);
    let Quota::Calendar(CalendarQuota { period, .. }) = quota else { panic!() };
    let mut admitted = |now: u64, tried: u32| {
        store.now = now;
        let checks = [check(&key, quota, 1)];
        let is_admitted = |_: &u32| store.call(&checks).outcome == SharedOutcome::Admitted;
        (0..tried).filter(is_admitted).count()
    };
    assert_eq!(admitted(START, 60), 60);
    assert_eq!(admitted(period.stops.0, 30), 30);
    assert_eq!(admitted(period.stops.0 - 2, 5), 5, "it is set right");
    assert_eq!(admitted(period.stops.0, 10), 10);
    assert_eq!(admitted(period.stops.0 - 1, 100), 35, "none but those of the next day are more");
    assert_eq!(admitted(period.stops.0, 100), 20, "wherever the clock was wrong");
}

#[test]
fn what_a_gateway_used_in_a_period_to_come_counts_in_that_of_a_clock_that_was_set_back() {
    let (mut store, key) = (Store::open(), fresh_key());
    let quota = calendar(CalendarUnit::Day, 100, START);
    let Quota::Calendar(CalendarQuota { period, .. }) = quota else { panic!() };
    for (starts, left) in [(period.stops, 19), (period.starts, 19), (UnixTime(0), 99)] {
        store.connection.call(&[b"DEL", &key[..]]);
        let claim = Some(WitnessClaim::Used { starts, count: 80 });
        let reply = store.call(&[SharedCheck { claim, ..check(&key, quota, 1) }]);
        assert_eq!(reply.results[0].remaining, left, "{starts:?}");
    }
}

#[test]
fn a_bucket_is_exact_to_the_unit_although_its_products_exceed_53_bits() {
    let (mut store, key) = (Store::open(), fresh_key());
    let rates = ["999983/31d", "999983/31d", "999979/744h", "999961/30d"];
    let mut states = [State::fresh(bucket(rates[0], 1_000_000))];
    for nth in 0..80 {
        store.now += 30_000_000_001 + 2 * nth as u64;
        let checks = [check(&key, bucket(rates[nth % 4], 1_000_000), 20_000)];
        let reply = store.call(&checks);
        let (_, expected) = in_memory(&mut states, &checks, store.now);
        assert_eq!(Expected::replied(&reply.results[0]), expected[0], "{nth}");
        let State::Bucket(own) = &states[0] else { panic!() };
        assert_eq!(spent(&mut store, &key), (own.spent(), own.token()), "{nth}");
    }
}
