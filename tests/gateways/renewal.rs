//! Slots of requests in flight stay leased while their requests run, however many keys have some.

use std::time::Duration;

use tokio::time::sleep;
use weir_common::limit::concurrency::ConcurrencyQuota;
use weir_common::limit::rolling::RollingQuota;
use weir_common::time::Tick;
use weir_gateway::limit::key::{Key, LimitTag};
use weir_gateway::limit::{LimitCheck, Quota};
use weir_tests::rng::SeededRng;

use super::gateway::{Gateway, config, decide};
use super::network::Network;
use super::runs::START;
use super::virtual_time::{self, Clocks};

/// More than four heartbeats, which a lease outlives, renew of 512 keys each.
const KEYS: u64 = 2_600;

/// A check of one request in flight, for the tenant of this number.
fn check_of(nth: u64) -> LimitCheck {
    let quota = Quota::Concurrency(ConcurrencyQuota { requests: 1 });
    let bits = u128::from(nth + 1);
    let own = LimitCheck::new(Key::from_bits(bits << 96 | bits), LimitTag::from_bits(1), quota);
    LimitCheck { known: true, slot: nth + 1, ..own }
}

/// How many requests of every tenth key a gateway admits while another one has the only slot of
/// each key in use.
async fn admitted_beside(clocks: &Clocks) -> usize {
    let clock = virtual_time::clock_at(START);
    clocks.lock().unwrap().push(clock.clone());
    let network = Network::start(SeededRng::new(1), START, (0, 0), None);
    let gateways =
        [0, 1].map(|nth| Gateway::start(&clock, Some((config(nth, 2), network.way(nth)))));
    sleep(Duration::from_secs(1)).await;
    let mut in_flight = Vec::new();
    for nth in 0..KEYS {
        let now = clock.now().tick;
        let verdict = decide(&gateways[0].limiter, &mut [check_of(nth)], now).await.unwrap();
        assert!(verdict.is_admitted(), "{nth}");
        in_flight.push(verdict);
    }
    sleep(Duration::from_secs(2)).await;
    let mut admitted = 0;
    for nth in (0..KEYS).step_by(10) {
        let now = clock.now().tick;
        let verdict = decide(&gateways[1].limiter, &mut [check_of(nth)], now).await.unwrap();
        admitted += usize::from(verdict.is_admitted());
    }
    admitted
}

#[test]
fn slots_of_thousands_of_keys_stay_leased_while_their_requests_run() {
    let clocks = Clocks::default();
    assert_eq!(virtual_time::run(&clocks.clone(), admitted_beside(&clocks)), 0);
}

/// Windows of which a gateway tells the store, each with so many stamps: calls of several seconds.
const WINDOWS: u64 = 24;
const STAMPS: u64 = 20 * 1_024;

/// A check of a window of many requests, for the tenant of this number.
fn window_of(nth: u64) -> LimitCheck {
    let window = Duration::from_secs(1_800);
    let quota = Quota::Rolling(RollingQuota { requests: 65_536, window });
    let key = check_of(KEYS + nth).key;
    LimitCheck {
        known: true,
        slot: KEYS + nth,
        ..LimitCheck::new(key, LimitTag::from_bits(2), quota)
    }
}

/// How many requests a gateway admits while another one has the only slot in use and tells the
/// store of many stamps, and what the store then leaves of each window.
async fn admitted_while_told(clocks: &Clocks) -> (usize, Vec<u32>) {
    let clock = virtual_time::clock_at(START);
    clocks.lock().unwrap().push(clock.clone());
    let network = Network::start(SeededRng::new(1), START, (5, 6), None);
    let gateways =
        [0, 1].map(|nth| Gateway::start(&clock, Some((config(nth, 2), network.way(nth)))));
    sleep(Duration::from_secs(1)).await;
    let now = clock.now();
    let in_flight = decide(&gateways[0].limiter, &mut [check_of(0)], now.tick).await.unwrap();
    assert!(in_flight.is_admitted());
    for nth in 0..WINDOWS {
        let own = window_of(nth);
        for before in (1..=STAMPS).rev() {
            // As the store would have stamped them.
            let at = Tick(now.unix.0 / 4 * 4 - 4 * before);
            gateways[0].limiter.store.record(&own, at).unwrap();
        }
        let verdict = decide(&gateways[0].limiter, &mut [own], clock.now().tick).await.unwrap();
        assert!(verdict.is_admitted());
    }
    let mut admitted = 0;
    for _ in 0..120 {
        sleep(Duration::from_millis(60)).await;
        let now = clock.now().tick;
        let verdict = decide(&gateways[1].limiter, &mut [check_of(0)], now).await.unwrap();
        admitted += usize::from(verdict.is_admitted());
    }
    let mut left = Vec::new();
    for nth in 0..WINDOWS {
        let own = window_of(nth);
        let now = clock.now().tick;
        let verdict = decide(&gateways[1].limiter, &mut [own], now).await.unwrap();
        left.push(verdict.answers().next().unwrap().usage.remaining);
    }
    (admitted, left)
}

#[test]
fn slots_stay_leased_while_a_gateway_tells_the_store_many_stamps() {
    let clocks = Clocks::default();
    let (admitted, left) = virtual_time::run(&clocks.clone(), admitted_while_told(&clocks));
    assert_eq!(admitted, 0);
    // One was admitted when the store lacked the others, and one now.
    assert_eq!(left, [65_536 - 20 * 1_024 - 2; 24]);
}
