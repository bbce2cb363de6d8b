//! Requests that are no deliveries count in the rate limits of their receiver.

use std::time::Duration;

use url::Url;
use weir_common::limit::rolling::RollingQuota;
use weir_common::time::Tick;

use crate::scheduler::checks::CheckedUrl;
use crate::scheduler::tests::world::ws;
use crate::scheduler::tests::*;

fn check(endpoint: Option<i64>, workspace: i64, url: &str) -> CheckedUrl {
    let url = Url::parse(url).expect("a URL");
    CheckedUrl { endpoint: endpoint.map(EndpointId), workspace: ws(workspace), url }
}

/// The URL of every webhook of the tests.
const URL: &str = "https://hooks.example/in";

fn second() -> Limits {
    limits(3, 1_000, 100, 100)
}

#[test]
fn a_check_counts_in_its_endpoints_limit_with_the_deliveries() {
    let mut world = World::new(second(), &[(1, 1)]);
    (0..2).for_each(|_| world.arrive(1, 0, true));
    world.run(1);
    let of = check(Some(1), 1, URL);
    assert_eq!(world.endpoints.charge_check(&of, at(10).tick), Ok(()));
    assert_eq!(world.endpoints.charge_check(&of, at(20).tick), Err(at(1_000).tick));
    world.endpoints.end_check(&of, at(10).tick, at(10).tick);
    world.now = 999;
    world.end(None);
    let charged = world.endpoints.charge_check(&of, at(1_000).tick);
    assert_eq!(charged, Ok(()), "what was refused does not count");
    world.endpoints.end_check(&of, at(1_000).tick, at(1_000).tick);
    world.now = 1_001;
    (0..3).for_each(|_| world.arrive(1, 0, true));
    world.drain();
    let starts: Vec<u64> = world.starts.iter().map(|(when, ..)| *when).collect();
    assert_eq!(starts, [0, 0, 1_001, 1_010, 2_000]);
}

#[test]
fn a_check_of_a_new_url_counts_in_the_endpoint_that_it_becomes() {
    let mut world = World::new(second(), &[]);
    for ms in [100, 200, 300] {
        let of = check(None, ms as i64 * 10_000, URL);
        assert_eq!(world.endpoints.charge_check(&of, at(ms).tick), Ok(()), "any workspace");
        world.endpoints.end_check(&of, at(ms).tick, at(ms).tick);
    }
    let fourth = world.endpoints.charge_check(&check(None, 1, URL), at(400).tick);
    assert_eq!(fourth, Err(at(1_100).tick));
    let other = check(None, 1, "https://hooks.example/other");
    assert_eq!(world.endpoints.charge_check(&other, at(400).tick), Ok(()));
    world.now = 500;
    world.on.insert(WebhookId(1), EndpointId(1));
    world.endpoints.restored(hook(1, 1, Flow::Open), None, at(500).tick);
    world.arrive(1, 0, true);
    world.drain();
    assert_eq!(world.starts[0].0, 1_100);
}

#[test]
fn a_check_in_flight_to_a_url_that_becomes_an_endpoints_counts_from_its_request_on() {
    let mut world = World::new(second(), &[]);
    let of = check(None, 1, URL);
    for ms in [0, 100] {
        assert_eq!(world.endpoints.charge_check(&of, at(ms).tick), Ok(()));
    }
    world.endpoints.end_check(&of, at(0).tick, at(200).tick);
    world.on.insert(WebhookId(1), EndpointId(1));
    let third = check(Some(1), 1, URL);
    let charged = world.endpoints.charge_check(&third, at(400).tick);
    assert_eq!(charged, Ok(()), "the webhook was made, and no event arrived");
    assert!(world.endpoints.charge_check(&third, at(401).tick).is_err(), "three count");
    world.endpoints.end_check(&third, at(400).tick, at(400).tick);
    // It is read twice, and counts each check once.
    for ms in [500, 600] {
        world.endpoints.restored(hook(1, 1, Flow::Open), None, at(ms).tick);
    }
    // The next is of a caller who read the store before the webhook was made.
    assert_eq!(world.endpoints.charge_check(&of, at(700).tick), Err(at(1_100).tick));
    assert_eq!(world.endpoints.charge_check(&of, at(1_201).tick), Ok(()));
    world.now = 1_300;
    (0..6).for_each(|_| world.arrive(1, 0, true));
    world.run(1);
    assert!(world.starts.is_empty(), "three checks count");
    // Both handshakes take longer than the window.
    world.now = 5_000;
    world.endpoints.handle(Input::Tidy, at(5_000));
    world.run(1);
    world.answer();
    world.run(1);
    assert_eq!(world.starts.len(), 1, "two are in flight");
    world.now = 5_500;
    for started in [100, 1_201] {
        world.endpoints.end_check(&of, at(started).tick, at(5_500).tick);
    }
    world.drain();
    let starts: Vec<u64> = world.starts.iter().map(|(when, ..)| *when).collect();
    assert_eq!(starts, [5_000, 6_000, 6_500, 6_500, 7_000, 7_500]);
}

#[test]
fn a_check_counts_in_a_workspaces_limit_at_the_host() {
    let mut limits = second();
    limits.per_host = RollingQuota { requests: 1, ..limits.quota };
    let mut scheduler = scheduler(limits);
    assert_eq!(scheduler.charge_check(&check(None, 1, URL), at(0).tick), Ok(()));
    let other = check(None, 1, "https://hooks.example/other");
    assert_eq!(scheduler.charge_check(&other, at(1).tick), Err(at(1_000).tick));
    let elsewhere = check(None, 10_000, "https://hooks.example/other");
    assert_eq!(scheduler.charge_check(&elsewhere, at(1).tick), Ok(()));
}

#[test]
fn a_check_in_flight_counts_and_one_that_has_ended_counts_from_its_end() {
    let mut scheduler = scheduler(limits(1, 1_000, 100, 100));
    let of = check(None, 1, URL);
    assert_eq!(scheduler.charge_check(&of, at(0).tick), Ok(()));
    assert!(scheduler.charge_check(&of, at(5_000).tick).is_err(), "one is in flight");
    scheduler.end_check(&of, at(0).tick, at(5_000).tick);
    assert_eq!(scheduler.charge_check(&of, at(5_999).tick), Err(at(6_000).tick));
    assert_eq!(scheduler.charge_check(&of, at(6_000).tick), Ok(()));
}

#[test]
fn checks_that_no_longer_count_are_forgotten() {
    let mut scheduler = scheduler(second());
    for nth in 0..1_000_u64 {
        let of = check(None, 1, &format!("https://hooks.example/{nth}"));
        let now = at(10 * nth);
        assert_eq!(scheduler.charge_check(&of, now.tick), Ok(()));
        scheduler.end_check(&of, now.tick, now.tick);
        scheduler.handle(Input::Tidy, now);
    }
    let later = Tick(at(10_000).tick.0 + Duration::from_secs(60).as_micros() as u64);
    scheduler.handle(Input::Tidy, Moment { tick: later, unix: UnixTime(later.0) });
    for nth in 0..1_000 {
        let url = Url::parse(&format!("https://hooks.example/{nth}")).expect("a URL");
        assert!(scheduler.paces.becomes(EndpointId(1), &url).is_none());
    }
}
