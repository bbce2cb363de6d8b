//! A store that forgets, at whatever moment: gateways soon agree on boosts and their ends, and a
//! server that starts again is told what was admitted with the next heartbeat.

use std::time::Duration;

use tokio::time::sleep;
use weir_common::directory::values::Values;
use weir_common::limit::calendar::{Calendar, CalendarQuota, CalendarUnit, parse_zone};
use weir_common::limit::rolling::RollingQuota;
use weir_common::limit::token_bucket::{BucketQuota, Rate};
use weir_common::time::Clock;
use weir_gateway::limit::boost::Boost;
use weir_gateway::limit::key::{Key, LimitTag, Seed};
use weir_gateway::limit::shared::BEAT_EVERY;
use weir_gateway::limit::{LimitCheck, Quota, snapshot};
use weir_tests::rng::SeededRng;

use super::gateway::{Gateway, config, decide};
use super::network::Network;
use super::runs::START;
use super::virtual_time::{self, Clocks};

/// What happens to a boost, with moments in between.
#[derive(Clone, Copy, Debug)]
enum Act {
    /// The first gateway is told of it.
    Boost,
    /// The second gateway is told to end it.
    End,
    /// The store forgets all.
    Forget,
    /// All gateways have heard of what was before.
    Settle,
    /// Some time passes: less than a heartbeat and what follows it.
    Pass,
}

/// Lets this happen, with each of many times for `Pass`, and checks whether the key is boosted.
#[track_caller]
fn check(acts: &[Act], is_boosted: bool) {
    for millis in (0..300).step_by(5) {
        let clocks = Clocks::default();
        let limits = virtual_time::run(&clocks.clone(), shown(acts, millis, &clocks));
        let limit = if is_boosted { 9 } else { 4 };
        assert_eq!(limits, [limit; 2], "{acts:?}, {millis} ms");
    }
}

/// A check of a key that may use so much in a minute.
fn check_of(requests: u32) -> LimitCheck {
    let quota = Quota::Rolling(RollingQuota { requests, window: Duration::from_secs(60) });
    let (key, tag) = (Key::from_bits(1 << 96 | 1), LimitTag::from_bits(1));
    LimitCheck { known: true, slot: 1, ..LimitCheck::new(key, tag, quota) }
}

/// The limit that each gateway then shows.
async fn shown(acts: &[Act], millis: u64, clocks: &Clocks) -> [u32; 2] {
    let clock = virtual_time::clock_at(START);
    clocks.lock().unwrap().push(clock.clone());
    let network = Network::start(SeededRng::new(millis), START, (1, 5), None);
    let mut gateways = Vec::new();
    for nth in 0..2 {
        gateways.push(Gateway::start(&clock, Some((config(nth, 2), network.way(nth)))));
        // Their heartbeats come one after the other.
        sleep(Duration::from_millis(120)).await;
    }
    let own = check_of(4);
    let key = own.key;
    let raised = Values { requests: Some(9), ..Values::default() };
    for act in acts {
        let now = clock.now().tick;
        match act {
            Act::Boost => {
                let boost = Boost { raised, until: now.plus(Duration::from_secs(60)) };
                gateways[0].limiter.boost(key, boost, now).await.unwrap();
            }
            Act::End => gateways[1].limiter.unboost(key).await.unwrap(),
            Act::Forget => network.servers[0].data.borrow_mut().flush(),
            Act::Settle => sleep(Duration::from_secs(1)).await,
            Act::Pass => sleep(Duration::from_millis(millis)).await,
        }
    }
    sleep(Duration::from_millis(1_200)).await;
    let mut limits = [0; 2];
    for (limit, gateway) in limits.iter_mut().zip(&gateways) {
        let verdict = decide(&gateway.limiter, &mut [own], clock.now().tick).await.unwrap();
        *limit = verdict.answers().next().unwrap().usage.limit;
    }
    limits
}

#[test]
fn a_boost_reaches_all_gateways_whenever_the_store_forgets() {
    use Act::{Boost, Forget, Pass, Settle};
    check(&[Settle, Boost, Pass, Forget], true);
    check(&[Settle, Boost, Settle, Forget], true);
    check(&[Settle, Forget, Pass, Boost], true);
    check(&[Settle, Boost, Pass, Forget, Pass, Forget], true);
}

#[test]
fn the_end_of_a_boost_reaches_all_gateways_although_the_store_has_just_forgotten_it() {
    use Act::{Boost, End, Forget, Pass, Settle};
    check(&[Settle, Boost, Settle, Forget, Pass, End], false);
    check(&[Settle, Boost, Settle, End, Settle, Forget], false);
    check(&[Settle, Boost, Settle, End, Settle, Boost, Pass, Forget], true);
    check(&[Settle, Boost, Settle, End, Boost, Pass], true);
}

/// What is left of four requests for a gateway that starts after a server has started again, of
/// which another gateway, idle since, has admitted three.
async fn left_after_restart(millis: u64, clocks: &Clocks) -> u32 {
    let clock = virtual_time::clock_at(START);
    clocks.lock().unwrap().push(clock.clone());
    let network = Network::start(SeededRng::new(millis), START, (0, 0), None);
    let first = Gateway::start(&clock, Some((config(0, 2), network.way(0))));
    sleep(Duration::from_secs(1)).await;
    let own = check_of(4);
    for _ in 0..3 {
        let _ = decide(&first.limiter, &mut [own], clock.now().tick).await.unwrap();
    }
    sleep(Duration::from_millis(500 + millis)).await;
    network.kill(0);
    network.servers[0].is_alive.set(true);
    sleep(BEAT_EVERY + Duration::from_millis(5)).await;
    let second = Gateway::start(&clock, Some((config(1, 2), network.way(1))));
    second.started.notified().await;
    let verdict = decide(&second.limiter, &mut [own], clock.now().tick).await.unwrap();
    verdict.answers().next().unwrap().usage.remaining
}

#[test]
fn a_server_that_starts_again_is_told_all_with_the_next_heartbeat() {
    for millis in (0..260).step_by(10) {
        let clocks = Clocks::default();
        let left = virtual_time::run(&clocks.clone(), left_after_restart(millis, &clocks));
        assert_eq!(left, 0, "{millis} ms");
    }
}

/// What is left of four requests of some quotas for another gateway, after a gateway that has
/// admitted three has started again with its snapshot and without a request, and the store has lost
/// all before or after that.
async fn left_after_own_restart(loses_first: bool, clocks: &Clocks) -> Vec<u32> {
    let clock = virtual_time::clock_at(START);
    clocks.lock().unwrap().push(clock.clone());
    let network = Network::start(SeededRng::new(1), START, (1, 5), None);
    let first = Gateway::start(&clock, Some((config(0, 2), network.way(0))));
    let second = Gateway::start(&clock, Some((config(1, 2), network.way(1))));
    sleep(Duration::from_secs(1)).await;
    let checks = checks(&clock);
    admit_three(&first, &checks, &clock).await;
    let saved = stop(first, &clock);
    let lose = || network.servers[0].data.borrow_mut().flush();
    if loses_first {
        lose();
    }
    let _again = start_again(&saved, &network, &clock);
    sleep(Duration::from_secs(1)).await;
    if !loses_first {
        lose();
        sleep(Duration::from_secs(1)).await;
    }
    left(&second, &checks, &clock).await
}

/// Checks of four requests of some quotas.
fn checks(clock: &Clock) -> Vec<LimitCheck> {
    let rate = Rate::new(1, Duration::from_secs(24 * 3_600)).unwrap();
    let calendar = Calendar { unit: CalendarUnit::Month, zone: parse_zone("UTC").unwrap() };
    let quotas = [
        Quota::Rolling(RollingQuota { requests: 4, window: Duration::from_secs(31 * 24 * 3_600) }),
        Quota::Rolling(RollingQuota { requests: 4, window: Duration::from_secs(48 * 3_600) }),
        Quota::Bucket(BucketQuota { rate, burst: 4 }),
        Quota::Calendar(CalendarQuota::new(4, calendar)),
    ];
    let check = |(nth, quota): (u128, Quota)| {
        let (key, tag) = (Key::from_bits(nth << 96 | nth), LimitTag::from_bits(nth));
        let made = LimitCheck::new(key, tag, quota.at(clock.now()));
        LimitCheck { known: true, slot: nth as u64, ..made }
    };
    (1..).zip(quotas).map(check).collect()
}

async fn admit_three(gateway: &Gateway, checks: &[LimitCheck], clock: &Clock) {
    for check in checks {
        for _ in 0..3 {
            let now = clock.now().tick;
            assert!(decide(&gateway.limiter, &mut [*check], now).await.unwrap().is_admitted());
        }
    }
}

/// Stops a gateway. Returns its snapshot.
fn stop(gateway: Gateway, clock: &Clock) -> Vec<u8> {
    let (limiter, mut tasks) = (gateway.limiter, gateway.tasks);
    tasks.abort_all();
    let kept = (&limiter.store, limiter.synced());
    snapshot::write(kept, Seed::new([0; 16]), b"", limiter.earliest(clock.now()))
}

/// Starts the first gateway with a snapshot.
fn start_again(saved: &[u8], network: &Network, clock: &Clock) -> Gateway {
    let again = Gateway::start(clock, Some((config(0, 2), network.way(0))));
    let earlier = snapshot::read(saved, again.limiter.moment(clock.now())).unwrap();
    again.limiter.restore_synced(&earlier.synced);
    assert!(earlier.restore(&again.limiter.store) > 0, "it keeps what it has counted");
    again
}

/// What is left of each check after a request at a gateway.
async fn left(gateway: &Gateway, checks: &[LimitCheck], clock: &Clock) -> Vec<u32> {
    let mut left = Vec::new();
    for check in checks {
        let now = clock.now().tick;
        let verdict = decide(&gateway.limiter, &mut [*check], now).await.unwrap();
        assert!(verdict.is_admitted());
        left.push(verdict.answers().next().unwrap().usage.remaining);
    }
    left
}

/// What becomes of the store and of another gateway while a gateway is stopped, of whose keys the
/// other one resets all meanwhile.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Meanwhile {
    /// The store loses all after the resets.
    Lost,
    /// It does, and the other gateway starts again before that.
    LostAfterUpgrade,
    /// The store loses all, and the other gateway starts without a snapshot, before the resets.
    LostBefore,
    /// More than a day passes after the resets.
    LongAgo,
}

/// What is left at the other gateway after the stopped one has started again with its snapshot.
async fn left_after_missed_resets(meanwhile: Meanwhile, clocks: &Clocks) -> Vec<u32> {
    let clock = virtual_time::clock_at(START);
    clocks.lock().unwrap().push(clock.clone());
    let network = Network::start(SeededRng::new(1), START, (1, 5), None);
    let first = Gateway::start(&clock, Some((config(0, 2), network.way(0))));
    let mut second = Gateway::start(&clock, Some((config(1, 2), network.way(1))));
    sleep(Duration::from_secs(1)).await;
    let checks = checks(&clock);
    // Resets that the first gateway knows.
    second.limiter.reset(&checks.iter().collect::<Vec<_>>()).await.unwrap();
    sleep(Duration::from_secs(1)).await;
    admit_three(&first, &checks, &clock).await;
    let saved = stop(first, &clock);
    let lose = async || {
        network.servers[0].data.borrow_mut().flush();
        sleep(Duration::from_secs(1)).await;
    };
    let restart = async |gateway: Gateway| {
        drop(gateway);
        let started = Gateway::start(&clock, Some((config(1, 2), network.way(1))));
        sleep(Duration::from_secs(1)).await;
        started
    };
    if meanwhile == Meanwhile::LostBefore {
        second.tasks.abort_all();
        lose().await;
        second = restart(second).await;
    }
    second.limiter.reset(&checks.iter().collect::<Vec<_>>()).await.unwrap();
    match meanwhile {
        Meanwhile::LostBefore => {}
        Meanwhile::Lost => {
            sleep(Duration::from_secs(1)).await;
            lose().await;
        }
        Meanwhile::LostAfterUpgrade => {
            second = restart(second).await;
            lose().await;
        }
        Meanwhile::LongAgo => {
            drop(second);
            sleep(Duration::from_secs(25 * 3_600)).await;
            second = Gateway::start(&clock, Some((config(1, 2), network.way(1))));
        }
    }
    let _again = start_again(&saved, &network, &clock);
    sleep(Duration::from_secs(2)).await;
    left(&second, &checks, &clock).await
}

#[test]
fn a_gateway_that_was_stopped_applies_resets_although_the_store_has_lost_them() {
    use Meanwhile::{LongAgo, Lost, LostAfterUpgrade, LostBefore};
    let left = [Lost, LostAfterUpgrade, LostBefore, LongAgo].map(|meanwhile| {
        let clocks = Clocks::default();
        virtual_time::run(&clocks.clone(), left_after_missed_resets(meanwhile, &clocks))
    });
    assert_eq!(left, [[3; 4]; 4].map(Vec::from));
}

#[test]
fn a_gateway_that_starts_again_tells_the_store_of_keys_without_a_request_of_them() {
    for loses_first in [true, false] {
        let clocks = Clocks::default();
        let left = virtual_time::run(&clocks.clone(), left_after_own_restart(loses_first, &clocks));
        assert_eq!(left, [0; 4], "{loses_first}");
    }
}

/// So many keys take a gateway two seconds, one call after the other.
const KEYS: u64 = 1_500;

/// How much of four requests is left of some of many keys, of each of which a gateway has admitted
/// one, when another one has admitted the next, soon after the store has lost all.
async fn left_after_loss(clocks: &Clocks) -> Vec<u32> {
    let clock = virtual_time::clock_at(START);
    clocks.lock().unwrap().push(clock.clone());
    let network = Network::start(SeededRng::new(1), START, (5, 6), None);
    let gateways =
        [0, 1].map(|nth| Gateway::start(&clock, Some((config(nth, 2), network.way(nth)))));
    sleep(Duration::from_secs(1)).await;
    let quota = Quota::Rolling(RollingQuota { requests: 4, window: Duration::from_secs(600) });
    let own = |nth: u64| {
        let bits = u128::from(nth + 1);
        let key = Key::from_bits(bits << 96 | bits);
        let check = LimitCheck::new(key, LimitTag::from_bits(1), quota);
        LimitCheck { known: true, slot: nth + 1, ..check }
    };
    for nth in 0..KEYS {
        let _ = decide(&gateways[0].limiter, &mut [own(nth)], clock.now().tick).await.unwrap();
    }
    network.servers[0].data.borrow_mut().flush();
    sleep(Duration::from_millis(900)).await;
    let mut left = Vec::new();
    for nth in (0..KEYS).step_by(100) {
        let now = clock.now().tick;
        let verdict = decide(&gateways[1].limiter, &mut [own(nth)], now).await.unwrap();
        left.push(verdict.answers().next().unwrap().usage.remaining);
    }
    left
}

#[test]
fn a_store_is_told_of_many_keys_by_several_calls_at_once() {
    let clocks = Clocks::default();
    assert_eq!(virtual_time::run(&clocks.clone(), left_after_loss(&clocks)), [2; 15]);
}

/// What is left of four requests for another gateway after a gateway has started while it could not
/// reach the store, and has admitted its share of a key that was reset before.
async fn left_after_start_alone(clocks: &Clocks) -> u32 {
    let clock = virtual_time::clock_at(START);
    clocks.lock().unwrap().push(clock.clone());
    let network = Network::start(SeededRng::new(1), START, (1, 5), None);
    let second = Gateway::start(&clock, Some((config(1, 2), network.way(1))));
    sleep(Duration::from_secs(1)).await;
    let own = check_of(4);
    second.limiter.reset(&[&own]).await.unwrap();
    sleep(Duration::from_secs(1)).await;
    let link = network.link(0, Network::port(0));
    link.is_down.set(true);
    let first = Gateway::start(&clock, Some((config(0, 2), network.way(0))));
    sleep(Duration::from_secs(1)).await;
    let mut admitted = 0;
    for _ in 0..4 {
        let verdict = decide(&first.limiter, &mut [own], clock.now().tick).await.unwrap();
        admitted += u32::from(verdict.is_admitted());
    }
    assert_eq!(admitted, 2, "its share");
    link.is_down.set(false);
    sleep(Duration::from_secs(2)).await;
    let verdict = decide(&second.limiter, &mut [own], clock.now().tick).await.unwrap();
    verdict.answers().next().unwrap().usage.remaining
}

#[test]
fn a_reset_of_before_the_start_of_a_gateway_forgets_nothing_that_it_has_admitted() {
    let clocks = Clocks::default();
    assert_eq!(virtual_time::run(&clocks.clone(), left_after_start_alone(&clocks)), 1);
}
