//! While the store is away, each limit does what its configuration says, and soon.

use std::thread;
use std::time::Duration;

use serde_json::Value;
use weir_tests::redis::Redis;
use weir_tests::relay::Replies;
use weir_tests::request::Request;
use weir_tests::response::Response;
use weir_tests::wait;

use super::exact::relayed;
use super::{Fleet, TARGET, count};

#[test]
fn two_gateways_admit_half_each_by_local_share() {
    let mut fleet = Fleet::with(|config| config);
    fleet.wait_until_known();
    fleet.redis.kill();
    let answers = fleet.at_once(2, 20, &Request::get(TARGET));
    let (first, second) = answers.split_at(40);
    assert_eq!((count(first, 200), count(second, 200)), (30, 30));
    assert_eq!((count(first, 429), count(second, 429)), (10, 10));
    for gateway in &fleet.gateways {
        let is_lost = |line: &Value| line["message"] == "shared store unavailable";
        gateway.log().wait("the loss", is_lost);
        // Further heartbeats fail as well.
        wait::pass(Duration::from_millis(600));
        let lines = gateway.log().json();
        assert_eq!(lines.iter().filter(|line| is_lost(line)).count(), 1, "logged once");
    }
}

#[test]
fn a_gateway_without_a_share_admits_nothing() {
    let mut fleet =
        Fleet::of(Redis::start(&[]), 3, |config| config.with("[limits.workspace]", "requests = 2"));
    fleet.wait_until_known();
    fleet.redis.kill();
    let answers = fleet.at_once(1, 3, &Request::get(TARGET));
    assert_eq!((count(&answers, 200), count(&answers, 429)), (2, 7));
    answers.into_iter().filter(|answer| answer.status == 429).for_each(|refused| {
        // The store's clock may be a little behind what the gateway takes it for.
        assert!((1..=61).contains(&refused.retry_after()), "{}", refused.head_text());
        refused.expect_problem(429);
    });
}

#[test]
fn what_was_admitted_before_counts_in_a_local_share() {
    let mut fleet = Fleet::with(|config| config);
    fleet.wait_until_known();
    assert_eq!(count(&fleet.at_once(1, 10, &Request::get(TARGET)), 200), 20);
    fleet.redis.kill();
    assert_eq!(count(&fleet.at_once(1, 30, &Request::get(TARGET)), 200), 40);
    assert_eq!(fleet.upstream.requests().len(), 60);
}

#[test]
fn what_was_admitted_by_local_shares_counts_when_the_store_is_back() {
    let mut fleet = Fleet::with(|config| config);
    fleet.wait_until_known();
    fleet.redis.kill();
    assert_eq!(count(&fleet.in_turn(40), 200), 40);
    fleet.redis.start_again();
    fleet.wait_for_return();
    let mut client = fleet.gateways[0].client();
    let admitted = (0..40).filter(|_| client.get(TARGET).status == 200).count();
    assert_eq!(admitted, 20, "it knows what the other has admitted");
    fleet.get(1, TARGET).expect(429);
}

#[test]
fn nothing_is_admitted_over_the_allowance_after_all_shares_are_used_up() {
    let mut fleet = Fleet::with(|config| config);
    fleet.wait_until_known();
    fleet.redis.kill();
    assert_eq!(count(&fleet.in_turn(60), 200), 60);
    fleet.redis.start_again();
    fleet.wait_for_return();
    assert_eq!(count(&fleet.at_once(1, 20, &Request::get(TARGET)), 200), 0);
}

#[test]
fn what_two_gateways_admit_alone_in_the_same_microsecond_counts_twice() {
    let mut fleet = Fleet::with(|config| {
        config
            .with("[limits.workspace]", "requests = 3_000")
            .with("[limits.organisation]", "requests = 100_000")
    });
    fleet.wait_until_known();
    fleet.redis.kill();
    assert_eq!(count(&fleet.at_once(4, 380, &Request::get(TARGET)), 200), 3_000);
    fleet.redis.start_again();
    fleet.wait_for_return();
    assert_eq!(count(&fleet.at_once(1, 20, &Request::get(TARGET)), 200), 0);
}

#[test]
fn a_limit_that_refuses_is_a_503_and_nothing_else_until_the_store_is_back() {
    let mut fleet =
        Fleet::with(|config| config.with("[limits.workspace]", "on_store_failure = \"refuse\""));
    fleet.get(0, TARGET).expect(200);
    fleet.redis.kill();
    for nth in [0, 1, 0, 1] {
        let answer = fleet.get(nth, TARGET);
        assert_eq!(answer.allowance().resource, "refused");
        let problem = answer.expect_problem(503);
        assert_eq!(problem["type"], "urn:weir:problem:limits-unavailable");
        let detail = "Try again shortly; if that fails, on a new connection.";
        assert_eq!(problem["detail"], detail);
    }
    assert_eq!(fleet.upstream.requests().len(), 1);
    fleet.get(0, "/healthz").expect(200);
    fleet.get(0, "/v1/organisations/org_acme").expect(200);
    fleet.redis.start_again();
    fleet.wait_for_return();
    assert_eq!(fleet.get(0, TARGET).expect(200).allowance().remaining, 58);
    fleet.get(1, TARGET).expect(200);
}

#[test]
fn after_an_upgrade_a_request_that_needs_the_store_fails_alone() {
    let mut fleet =
        Fleet::with(|config| config.with("[limits.workspace]", "on_store_failure = \"refuse\""));
    let mut clients = [(); 2].map(|()| fleet.gateways[0].client());
    for client in &mut clients {
        client.get("/v1/organisations/org_acme").expect(200);
    }
    fleet.redis.kill();
    fleet.gateways[0].upgrade();
    // The earlier process serves both, and its successor decides.
    let [first, second] = &mut clients;
    first.get(TARGET).expect_problem(503);
    second.get("/v1/organisations/org_acme").expect(200);
}

#[test]
fn a_limit_that_allows_is_not_checked_until_the_store_is_back() {
    let mut fleet = Fleet::with(|config| {
        config.with("[limits.workspace]", "requests = 5\non_store_failure = \"allow\"")
    });
    fleet.redis.kill();
    assert_eq!(count(&fleet.at_once(1, 20, &Request::get(TARGET)), 200), 40);
    fleet.redis.start_again();
    fleet.wait_for_return();
    assert_eq!(count(&fleet.at_once(1, 20, &Request::get("/v1/workspaces/ws_quiet")), 200), 5);
}

/// Stops the store, and sends requests of four workspaces. `meanwhile` passes while they wait.
fn while_four_wait(fleet: &Fleet, meanwhile: impl FnOnce()) -> Vec<Response> {
    let gateway = &fleet.gateways[0];
    let others = ["ws_acme", "ws_beta", "ws_gamma", "ws_delta"];
    fleet.redis.pause();
    thread::scope(|scope| {
        let get = |workspace| fleet.get(0, &format!("/v1/workspaces/{workspace}/users"));
        let running = others.map(|workspace| scope.spawn(move || get(workspace)));
        wait::until("all calls to be under way", || {
            (gateway.metric("weir_gateway_requests_in_flight") == 4.0).then_some(())
        });
        meanwhile();
        running.map(|one| one.join().unwrap()).into()
    })
}

/// The same, while the gateway stands still, too. `meanwhile` ends after the time that a call may
/// take.
fn while_the_gateway_stands_still(fleet: &Fleet, meanwhile: impl FnOnce()) -> Vec<Response> {
    while_four_wait(fleet, || {
        fleet.gateways[0].signal("STOP");
        meanwhile();
        fleet.gateways[0].signal("CONT");
    })
}

#[test]
fn a_store_that_stands_still_for_a_moment_is_asked_by_the_next_request() {
    let fleet =
        Fleet::of(Redis::start(&[]), 1, |config| config.with("[store]", "timeout = \"1s\""));
    fleet.get(0, TARGET).expect(200);
    let decided = |kind| {
        let name = format!("weir_gateway_store_decisions_total{{kind=\"{kind}\"}}");
        fleet.gateways[0].metric(&name)
    };
    let answers = while_four_wait(&fleet, || {});
    fleet.redis.resume();
    assert_eq!((count(&answers, 200), decided("alone")), (4, 4.0));
    let before = decided("call");
    fleet.get(0, TARGET).expect(200);
    assert_eq!(decided("call"), before + 1.0);
}

#[test]
fn replies_that_a_busy_gateway_reads_too_late_have_come_in_time() {
    let fleet =
        Fleet::of(Redis::start(&[]), 1, |config| config.with("[store]", "timeout = \"1s\""));
    // The store has the script from now on.
    fleet.get(0, TARGET).expect(200);
    let before = fleet.redis.calls("getrange");
    let answers = while_the_gateway_stands_still(&fleet, || {
        fleet.redis.resume();
        // Each reads what it knows of two keys.
        wait::until("the calls to be answered", || {
            (fleet.redis.calls("getrange") >= before + 8).then_some(())
        });
        wait::pass(Duration::from_millis(1_500));
    });
    assert_eq!(count(&answers, 200), 4);
    let alone = "weir_gateway_store_decisions_total{kind=\"alone\"}";
    assert_eq!(fleet.gateways[0].metric(alone), 0.0);
}

#[test]
fn a_gateway_that_was_too_busy_for_replies_does_not_blame_the_store() {
    let fleet =
        Fleet::of(Redis::start(&[]), 1, |config| config.with("[store]", "timeout = \"1s\""));
    let stopped = Duration::from_millis(1_500);
    let answers = while_the_gateway_stands_still(&fleet, || wait::pass(stopped));
    fleet.redis.resume();
    assert_eq!(count(&answers, 200), 4, "decided alone");
    assert!(!fleet.gateways[0].log().text().contains("it did not answer in time"));
}

#[test]
fn requests_do_not_wait_for_a_store_that_stands_still() {
    const TIMEOUT: Duration = Duration::from_millis(300);
    let fleet = Fleet::of(Redis::start(&[]), 1, |config| {
        config.with("[store]", "timeout = \"300ms\"").with("[limits.workspace]", "requests = 20")
    });
    fleet.get(0, TARGET).expect(200);
    fleet.redis.pause();
    let mut client = fleet.gateways[0].client();
    let mut slow = 0;
    for _ in 0..12 {
        let began = wait::now();
        client.get(TARGET).expect(200);
        let took = began.elapsed();
        assert!(took < 3 * TIMEOUT, "{took:?}");
        slow += usize::from(took >= TIMEOUT / 2);
    }
    assert!(slow <= 3, "{slow} requests waited");
    // From now on the last call is too late, too.
    wait::pass(TIMEOUT);
    fleet.redis.resume();
    fleet.wait_for_return();
    // Calls that arrived late have charged nothing, and what was admitted meanwhile counts.
    let answers = fleet.at_once(1, 20, &Request::get(TARGET));
    assert_eq!((count(&answers, 200), count(&answers, 429)), (7, 13));
}

#[test]
fn two_gateways_admit_no_more_across_a_store_that_stands_still() {
    let fleet = Fleet::with(|config| {
        config.with("[store]", "timeout = \"200ms\"").with("[limits.workspace]", "requests = 40")
    });
    fleet.wait_until_known();
    assert_eq!(count(&fleet.at_once(1, 5, &Request::get(TARGET)), 200), 10);
    fleet.redis.pause();
    assert_eq!(count(&fleet.in_turn(20), 200), 20);
    fleet.redis.resume();
    fleet.wait_for_return();
    assert_eq!(count(&fleet.at_once(1, 20, &Request::get(TARGET)), 200), 10);
    assert_eq!(fleet.upstream.requests().len(), 40);
}

#[test]
fn a_store_slower_than_the_timeout_delays_few_requests() {
    const TIMEOUT: Duration = Duration::from_millis(60);
    let (fleet, relay) = relayed("60ms", |config| {
        config
            .with("[limits.workspace]", "requests = 4_000")
            .with("[limits.organisation]", "requests = 100_000")
    });
    fleet.wait_until_known();
    relay.set(Replies::Delay(Duration::from_millis(120)));
    let (mut client, mut slow, mut all) = (fleet.gateways[0].client(), 0, 0);
    let began = wait::now();
    while began.elapsed() < Duration::from_secs(2) {
        let sent = wait::now();
        client.get(TARGET).expect(200);
        slow += usize::from(sent.elapsed() >= TIMEOUT / 2);
        all += 1;
        wait::pass(Duration::from_millis(2));
    }
    assert!(slow * 10 < all, "{slow} of {all} requests waited");
    let log = fleet.gateways[0].log().text();
    assert!(!log.contains("shared store available"), "{log}");
}

#[test]
fn a_store_slower_than_a_heartbeat_is_used_where_the_timeout_allows_it() {
    let (fleet, relay) = relayed("1s", |config| config);
    fleet.wait_until_known();
    fleet.get(0, TARGET).expect(200);
    relay.set(Replies::Delay(Duration::from_millis(300)));
    wait::pass(Duration::from_secs(1));
    fleet.get(0, TARGET).expect(200);
    assert_eq!(fleet.gateways[0].metric("weir_gateway_store_up"), 1.0);
    assert_eq!(fleet.get(1, TARGET).expect(200).allowance().remaining, 57);
}
