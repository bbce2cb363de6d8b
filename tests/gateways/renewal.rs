//! Slots of requests in flight stay leased while their requests run, however many keys have some.

use std::time::Duration;

use tokio::time::sleep;
use weir_common::limit::concurrency::ConcurrencyQuota;
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
