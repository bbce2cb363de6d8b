//! What every store of limits promises: each promise once, for each store.
//!
//! The stores are a gateway's memory, one that a gateway has alone, and one that two gateways
//! share, where requests come to them in turn. All of it is what ships, in virtual time.
//!
//! Not here: faults (`runs`), what the store's script alone promises (the gateway's own tests).

mod model;
mod resets;
mod subject;

use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::sleep;
use weir_common::directory::values::Values;
use weir_common::limit::calendar::{Calendar, CalendarQuota, CalendarUnit, parse_zone};
use weir_common::limit::concurrency::ConcurrencyQuota;
use weir_common::limit::decision::Decision;
use weir_common::limit::quota::Horizon;
use weir_common::limit::rolling::RollingQuota;
use weir_common::limit::token_bucket::{BucketQuota, Rate};
use weir_common::time::{Moment, Tick, UnixTime};
use weir_gateway::limit::boost::Boost;
use weir_gateway::limit::key::{Key, LimitTag};
use weir_gateway::limit::memory::Fill;
use weir_gateway::limit::{CheckResult, LimitCheck, Quota, Verdict};
use weir_tests::rng::SeededRng;

use self::model::Model;
use self::subject::{Kind, SETTLES, Subject};
use super::gateway::{Gateway, decide};
use super::virtual_time::{self, BOOTED, Clocks};

/// The start of a day in UTC, in microseconds since 1970.
const DAY: u64 = 20_791 * 86_400_000_000;

const SECOND: Duration = Duration::from_secs(1);
const HOUR: Duration = Duration::from_secs(3_600);

/// Keeps a promise for each store.
fn for_each_store(promise: impl AsyncFn(&Subject)) {
    for_each_store_from(DAY, promise);
}

/// The same, from this time on.
fn for_each_store_from(start: u64, promise: impl AsyncFn(&Subject)) {
    for kind in [Kind::Memory, Kind::SharedByOne, Kind::SharedByTwo] {
        println!("{kind:?}");
        let clocks = Clocks::default();
        virtual_time::run(&clocks.clone(), async {
            promise(&Subject::start(kind, &clocks, start).await).await;
        });
    }
}

/// A check of the key of this number, in a shard of its own.
fn check(nth: u128, quota: Quota) -> LimitCheck {
    let key = Key::from_bits(nth << 96 | nth);
    LimitCheck { known: true, slot: 1, ..LimitCheck::new(key, LimitTag::from_bits(nth), quota) }
}

fn window(requests: u32, window: Duration) -> Quota {
    Quota::Rolling(RollingQuota { requests, window })
}

fn bucket(rate: &str, burst: u32) -> Quota {
    Quota::Bucket(BucketQuota { rate: Rate::parse(rate).unwrap(), burst })
}

/// A quota of a day, for a request at `now`.
fn day(requests: u32, now: Tick) -> Quota {
    let calendar = Calendar { unit: CalendarUnit::Day, zone: parse_zone("UTC").unwrap() };
    let now = Moment { tick: now, unix: UnixTime(now.0 + BOOTED) };
    Quota::Calendar(CalendarQuota::new(requests, calendar)).at(now)
}

fn in_flight(requests: u32) -> Quota {
    Quota::Concurrency(ConcurrencyQuota { requests })
}

/// What allows so many requests, and nothing more for as long as a promise lasts.
fn each_of(requests: u32) -> [Quota; 3] {
    [window(requests, HOUR), bucket("1/d", requests), day(requests, Tick(DAY - BOOTED))]
}

fn only(verdict: &Verdict) -> CheckResult {
    *verdict.answers().next().unwrap()
}

/// The quotas of one limit: it has one or another from request to request.
fn quotas(rng: &mut SeededRng, now: Tick) -> [Vec<Quota>; 3] {
    // No sum of whole milliseconds is as long as the window.
    let length = rng.millis(400, 4_000) + Duration::from_micros(500);
    let mut three = || [0; 3].map(|_| 4 + rng.below(30) as u32);
    let windows = three().map(|requests| window(requests, length));
    let buckets = three().map(|burst| bucket("3/s", burst));
    let days = three().map(|requests| day(8 * requests, now));
    [windows, buckets, days].map(Vec::from)
}

#[test]
fn requests_are_decided_as_by_counting_their_charges() {
    for seed in 1..=12 {
        // A day ends meanwhile.
        for_each_store_from(DAY - 15_000_000, async |store| {
            let mut rng = SeededRng::new(seed);
            let mut models: [Model; 3] = Default::default();
            for _ in 0..120 {
                sleep(rng.millis(1, 900)).await;
                let quotas = quotas(&mut SeededRng::new(seed), store.now());
                let cost = if rng.chance(5) { 300 } else { 1 + rng.below(3) as u32 };
                let enforced = rng.below(4) as usize;
                let checks: Vec<LimitCheck> = (1..)
                    .zip(&quotas)
                    .map(|(nth, these)| LimitCheck {
                        cost,
                        enforced: enforced != nth as usize - 1,
                        horizon: Horizon::of(these.iter().copied()),
                        ..check(nth, *rng.pick(these).unwrap())
                    })
                    .collect();
                let now = store.now();
                let verdict = store.decide(&checks).await;
                let mut judged = checks.iter().zip(verdict.answers());
                let admits = judged
                    .all(|(check, answer)| !check.enforced || answer.decision == Decision::Admit);
                assert_eq!(verdict.is_admitted(), admits);
                // Of a request that is refused without a call, the other limits are not known.
                let known = |found: &CheckResult| admits || found.decision != Decision::Admit;
                let all = models.iter_mut().zip(&checks).zip(verdict.answers());
                for ((model, check), found) in all.filter(|(_, found)| known(found)) {
                    if found.decision == Decision::Admit {
                        model.0.push((now.0, check.cost, check.quota.limit()));
                    }
                    model.compare(check, *found, (now.0, store.gateways.len() == 1));
                }
            }
        });
    }
}

#[test]
fn a_day_begins_with_its_whole_allowance() {
    for_each_store_from(DAY - 15_000_000, async |store| {
        for _ in 0..2 {
            assert_eq!(store.admitted(&[check(1, day(10, store.now()))], 12).await, 10);
            sleep(20 * SECOND).await;
        }
    });
}

#[test]
fn a_refused_request_costs_nothing_in_any_limit() {
    for_each_store(async |store| {
        for (small, large) in (1..).step_by(2).zip(each_of(3)).zip(each_of(10)) {
            let (nth, small) = small;
            let (small, large) = (check(nth, small), check(nth + 1, large));
            assert_eq!(store.admitted(&[small, large], 10).await, 3);
            assert_eq!(store.left(&large).await, 7);
            assert_eq!(store.admitted(&[large, small], 10).await, 0);
            assert_eq!(store.left(&large).await, 7);
        }
    });
}

#[test]
fn an_observed_limit_counts_and_never_refuses() {
    for_each_store(async |store| {
        for (nth, quota) in (1..).step_by(2).zip(each_of(2)) {
            let observed = LimitCheck { enforced: false, ..check(nth, quota) };
            let enforced = check(nth + 1, window(5, HOUR));
            assert_eq!(store.admitted(&[observed, enforced], 10).await, 5);
            assert_eq!(store.left(&observed).await, 0);
            let verdict = store.decide(&[observed]).await;
            assert!(verdict.is_admitted());
            assert!(matches!(only(&verdict).decision, Decision::Refuse { .. }));
        }
    });
}

#[test]
fn what_a_request_costs_is_charged_whole_or_not_at_all() {
    for_each_store(async |store| {
        for (nth, quota) in (1..).zip(each_of(10)) {
            let of = |cost| [LimitCheck { cost, ..check(nth, quota) }];
            for (cost, admitted, left) in [(7, 1, 3), (4, 0, 3), (11, 0, 3), (3, 1, 0), (1, 0, 0)] {
                assert_eq!(store.admitted(&of(cost), 1).await, admitted, "{cost} of {quota:?}");
                assert_eq!(store.left(&check(nth, quota)).await, left, "{cost} of {quota:?}");
            }
            let calls = store.calls();
            assert_eq!(only(&store.decide(&of(11)).await).decision, Decision::TooLarge);
            assert_eq!(store.calls(), calls, "no call is needed to refuse it");
        }
    });
}

#[test]
fn a_changed_quota_applies_at_once_to_what_was_used() {
    for_each_store(async |store| {
        for nth in 0..3 {
            let of = |requests| [check(nth as u128 + 1, each_of(requests)[nth])];
            assert_eq!(store.admitted(&of(10), 6).await, 6);
            assert_eq!(store.admitted(&of(4), 1).await, 0, "lowered");
            assert_eq!(store.left(&of(4)[0]).await, 0);
            assert_eq!(store.admitted(&of(8), 5).await, 2, "raised");
            assert_eq!(store.admitted(&of(10), 5).await, 2);
        }
    });
}

#[test]
fn an_algorithm_counts_what_the_one_before_it_did_although_its_limit_has_no_other() {
    for_each_store(async |store| {
        let pairs = (0..3).flat_map(|from| (0..3).map(move |to| (from, to)));
        for (nth, (from, to)) in (1..).zip(pairs) {
            let [from, to] = [from, to].map(|quota| check(nth, each_of(10)[quota]));
            assert_eq!(store.admitted(&[from], 6).await, 6);
            sleep(SETTLES).await;
            assert_eq!(store.admitted(&[to], 6).await, 4, "{from:?} {to:?}");
        }
    });
}

#[test]
fn a_boost_raises_an_allowance_until_it_ends() {
    for_each_store(async |store| {
        let limiter = &store.gateways[0].limiter;
        for (nth, quota) in (1..).zip(each_of(3)) {
            let (checks, key) = ([check(nth, quota)], check(nth, quota).key);
            assert_eq!(store.admitted(&checks, 4).await, 3);
            let raised = Values { requests: Some(5), burst: Some(5), ..Values::default() };
            let until = store.now().plus(30 * SECOND);
            limiter.boost(key, Boost { raised, until }, store.now()).await.unwrap();
            sleep(SETTLES).await;
            assert_eq!(store.admitted(&checks, 4).await, 2);
            limiter.unboost(key).await.unwrap();
            sleep(SETTLES).await;
            assert_eq!(store.decide(&checks).await.answers().next().unwrap().usage.limit, 3);
            let until = store.now().plus(2 * SECOND);
            let raised = Values { requests: Some(9), burst: Some(9), ..Values::default() };
            limiter.boost(key, Boost { raised, until }, store.now()).await.unwrap();
            sleep(SETTLES).await;
            assert_eq!(store.admitted(&checks, 2).await, 2);
            sleep(SETTLES + Duration::from_millis(10)).await;
            assert_eq!(store.admitted(&checks, 2).await, 0, "it has ended by itself");
        }
    });
}

#[test]
fn unknown_keys_beyond_the_maximum_share_entries_and_known_keys_do_not() {
    for_each_store(async |store| {
        // All of them in one shard of a memory store, which has room for four.
        let unknown = |low: u128| LimitCheck {
            known: false,
            ..LimitCheck::new(
                Key::from_bits(7 << 96 | low),
                LimitTag::from_bits(9),
                window(5, HOUR),
            )
        };
        let mut admitted = 0;
        for low in 1..=200 {
            admitted += store.admitted(&[unknown(low)], 5).await;
        }
        // Four of their own in each gateway, and sixteen that are the same for all.
        let most = 5 * (4 * store.gateways.len() + 16);
        assert!((5 * (4 + 16)..=most).contains(&admitted), "{admitted} of {most}");
        assert_eq!(store.admitted(&[check(7, window(5, HOUR))], 9).await, 5);
        for Gateway { limiter, .. } in &store.gateways {
            let Fill { keys, unknown_keys, .. } = limiter.store.fill();
            assert!(unknown_keys <= 4 && keys <= 4 + 16 + 1, "{unknown_keys} of {keys}");
        }
        assert_eq!(store.left(&unknown(1)).await, 0, "the first is not forgotten");
    });
}

#[test]
fn requests_at_once_get_one_allowance() {
    for_each_store(async |store| {
        for (nth, quota) in (1..).step_by(2).zip(each_of(12)) {
            let (own, large) = (check(nth, quota), check(nth + 1, window(100, HOUR)));
            let mut all = JoinSet::new();
            for _ in 0..40 {
                let (limiter, now) = (store.next().clone(), store.now());
                all.spawn_local(async move {
                    let verdict = decide(&limiter, &mut [own, large], now).await.unwrap();
                    usize::from(verdict.is_admitted())
                });
            }
            assert_eq!(all.join_all().await.into_iter().sum::<usize>(), 12, "{quota:?}");
            assert_eq!((store.left(&own).await, store.left(&large).await), (0, 88), "{quota:?}");
        }
    });
}

#[test]
fn requests_in_flight_count_until_they_end_and_a_reset_ends_none() {
    for_each_store(async |store| {
        let own = check(1, in_flight(3));
        let other = check(2, window(100, HOUR));
        let mut held = Vec::new();
        for _ in 0..3 {
            held.push(store.decide(&[own, other]).await);
        }
        assert!(held.iter().all(Verdict::is_admitted));
        assert_eq!(store.admitted(&[own, other], 2).await, 0);
        store.gateways[0].limiter.reset(&[&own]).await.unwrap();
        sleep(3 * SETTLES).await;
        assert_eq!(store.admitted(&[own, other], 2).await, 0);
        assert_eq!(store.left(&other).await, 97, "a refused request is charged nowhere");
        held.truncate(2);
        sleep(SETTLES).await;
        held.push(store.decide(&[own, other]).await);
        assert!(held[2].is_admitted());
        assert_eq!(store.admitted(&[own], 2).await, 0);
        // A request that another limit refuses is not in flight.
        held.truncate(2);
        sleep(SETTLES).await;
        let full = LimitCheck { cost: 101, ..other };
        assert_eq!(store.admitted(&[own, full], 5).await, 0);
        sleep(SETTLES).await;
        assert!(store.decide(&[own]).await.is_admitted());
    });
}
