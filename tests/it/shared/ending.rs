//! However gateways end, nothing that was admitted is admitted again.

use std::time::Duration;

use weir_tests::redis::Redis;
use weir_tests::request::Request;
use weir_tests::wait;

use super::{Fleet, TARGET, check_windows, count};

/// So many requests to each gateway are admitted.
#[track_caller]
fn admit(fleet: &Fleet, each: usize) {
    let all = each * fleet.gateways.len();
    assert_eq!(count(&fleet.at_once(1, each, &Request::get(TARGET)), 200), all);
}

#[test]
fn a_killed_gateway_takes_nothing_of_the_allowance_with_it() {
    let mut fleet = Fleet::of(Redis::start(&[]), 3, |config| config);
    admit(&fleet, 8);
    fleet.start_again(0, "KILL");
    let answers = fleet.at_once(2, 10, &Request::get(TARGET));
    assert_eq!(count(&answers, 200), 60 - 24);
    assert_eq!(fleet.upstream.requests().len(), 60);
}

#[test]
fn a_gateway_that_restarts_with_its_snapshot_is_a_witness_of_what_it_admitted() {
    let mut fleet = Fleet::with(|config| config.with("[store]", "snapshot = \"limits.snapshot\""));
    admit(&fleet, 20);
    fleet.start_again(0, "TERM");
    fleet.start_again(1, "TERM");
    fleet.redis.run("FLUSHALL");
    // Both replay before the allowance can be exceeded.
    admit(&fleet, 1);
    let answers = fleet.at_once(2, 20, &Request::get(TARGET));
    assert_eq!(count(&answers, 200), 18);
    assert_eq!(fleet.upstream.requests().len(), 60);
}

#[test]
fn an_upgraded_gateway_is_a_witness_of_what_it_admitted() {
    let fleet = Fleet::with(|config| config);
    let mut old = fleet.gateways[0].client();
    old.get(TARGET).expect(200);
    admit(&fleet, 20);
    fleet.gateways[0].upgrade();
    old.get(TARGET).expect(200);
    fleet.redis.run("FLUSHALL");
    admit(&fleet, 1);
    let answers = fleet.at_once(2, 20, &Request::get(TARGET));
    assert_eq!(count(&answers, 200), 60 - 44);
    assert_eq!(fleet.upstream.requests().len(), 60);
}

#[test]
fn a_store_that_forgets_gets_what_earlier_processes_of_gateways_admitted() {
    let mut fleet = Fleet::with(|config| config.with("[store]", "snapshot = \"limits.snapshot\""));
    reset(&fleet, 1);
    // A reset of before the start of a process changes nothing for it.
    wait::pass(Duration::from_millis(600));
    (0..20).for_each(|_| drop(fleet.get(0, TARGET).expect(200)));
    let forget = |fleet: &Fleet| {
        fleet.redis.run("FLUSHALL");
        wait::until("the gateway to tell what an earlier process admitted", || {
            (fleet.gateways[1].used("workspace", "ws_acme") == 20).then_some(())
        });
    };
    fleet.start_again(0, "TERM");
    forget(&fleet);
    fleet.gateways[0].upgrade();
    forget(&fleet);
}

#[test]
fn a_key_that_was_reset_while_a_gateway_was_down_stays_reset() {
    let mut fleet = Fleet::with(|config| config.with("[store]", "snapshot = \"limits.snapshot\""));
    (0..20).for_each(|_| drop(fleet.get(0, TARGET).expect(200)));
    fleet.start_again_after(0, "TERM", |others| reset(others, 0));
    assert_eq!(fleet.get(0, TARGET).expect(200).allowance().remaining, 59);
    wait::pass(Duration::from_millis(600));
    assert_eq!(fleet.gateways[1].used("workspace", "ws_acme"), 1);
}

/// Resets the workspace over one gateway.
fn reset(fleet: &Fleet, nth: usize) {
    let request = Request::new("DELETE", "/limits/workspace/ws_acme");
    fleet.gateways[nth].call_admin(&request).expect(200);
}

#[test]
fn a_reload_keeps_what_was_counted_and_changes_what_is_allowed() {
    let fleet = Fleet::with(|config| config.with("[limits.workspace]", "requests = 20"));
    let answers = fleet.at_once(1, 15, &Request::get(TARGET));
    assert_eq!(count(&answers, 200), 20);
    let raised = fleet.config.clone().with("[limits.workspace]", "requests = 30");
    for gateway in &fleet.gateways {
        gateway.write_config(&raised.to_string());
        gateway.reload().expect(200);
    }
    let answers = fleet.at_once(1, 10, &Request::get(TARGET));
    assert_eq!(count(&answers, 200), 10, "refusals of the smaller limit are not remembered");
    assert_eq!(fleet.get(0, TARGET).expect(429).allowance().limit, 30);
    assert_eq!(fleet.upstream.requests().len(), 30);
}

#[test]
fn no_window_admits_more_while_gateways_are_upgraded_and_reloaded() {
    const WINDOW: Duration = Duration::from_millis(1_500);
    let fleet = Fleet::with(|config| {
        config
            .with("[limits.workspace]", "requests = 60\nwindow = \"1500ms\"")
            .with("[limits.organisation]", "requests = 100_000")
    });
    let admitted = fleet.under_load(|| {
        for nth in [0, 1, 0] {
            fleet.gateways[nth].upgrade();
            wait::pass(Duration::from_millis(300));
            fleet.gateways[1 - nth].reload().expect(200);
        }
        wait::pass(WINDOW);
    });
    check_windows(&admitted, 60, WINDOW);
}

#[test]
fn a_gateway_that_stops_is_not_counted_any_more() {
    let mut fleet = Fleet::with(|config| config);
    fleet.wait_until_known();
    let second = fleet.gateways.remove(1);
    second.signal("TERM");
    drop(second.into_folder());
    fleet.wait_until_known();
    fleet.redis.kill();
    let answers = fleet.at_once(1, 70, &Request::get(TARGET));
    assert_eq!(count(&answers, 200), 60, "the whole allowance is this gateway's");
}

#[test]
fn a_change_of_algorithm_keeps_the_store_in_use() {
    const LIMIT: &str = "[limits.organisation]";
    let quick = "requests = 9\nwindow = \"1s\"";
    let fleet = Fleet::with(|config| config.with(LIMIT, quick));
    fleet.get(0, TARGET).expect(200);
    let bucket = "key = \"organisation\"\nalgorithm = \"token_bucket\"\nrate = 50\nburst = 1000";
    let bucket = fleet.config.clone().without(LIMIT).with(LIMIT, bucket).to_string();
    for gateway in &fleet.gateways {
        gateway.write_config(&bucket);
        gateway.reload().expect(200);
    }
    for nth in 0..10 {
        fleet.get(nth % 2, TARGET).expect(200);
    }
    assert_eq!(fleet.gateways[0].metric("weir_gateway_store_up"), 1.0);
    let alone = "weir_gateway_store_decisions_total{kind=\"alone\"}";
    assert_eq!(fleet.gateways[0].metric(alone), 0.0);
}
