//! What the store has forgotten, the gateways tell it again.

use weir_tests::redis::{Redis, Reply};
use weir_tests::request::{Request, data_host};
use weir_tests::wait;

use super::{Fleet, TARGET, count};

/// Both gateways admit 15 of 60 in turn, the store forgets, and both continue in turn.
#[track_caller]
fn check(forget: impl FnOnce(&mut Redis)) {
    let mut fleet = Fleet::with(|config| config);
    let admit = |fleet: &Fleet, times: std::ops::Range<usize>| {
        for nth in times {
            let allowance = fleet.get(nth % 2, TARGET).expect(200).allowance();
            assert!(allowance.remaining >= 59 - nth as u64, "{allowance:?}");
        }
    };
    admit(&fleet, 0..30);
    forget(&mut fleet.redis);
    admit(&fleet, 30..60);
    for nth in [0, 1, 0, 1] {
        fleet.get(nth, TARGET).expect(429);
    }
    assert_eq!(fleet.upstream.requests().len(), 60);
}

#[test]
fn a_flushed_store_admits_no_more() {
    check(|redis| drop(redis.run("FLUSHALL")));
}

#[test]
fn a_store_without_its_scripts_admits_no_more() {
    check(|redis| {
        assert_eq!(redis.run("SCRIPT FLUSH"), Reply::Text("OK".to_owned()));
    });
}

#[test]
fn a_store_that_restarts_without_its_data_admits_no_more() {
    let mut fleet = Fleet::with(|config| config);
    assert_eq!(count(&fleet.at_once(1, 20, &Request::get(TARGET)), 200), 40);
    fleet.redis.kill();
    fleet.redis.start_again();
    fleet.wait_for_return();
    // Both replay before the allowance can be exceeded.
    assert_eq!(count(&fleet.at_once(1, 1, &Request::get(TARGET)), 200), 2);
    assert_eq!(count(&fleet.at_once(2, 20, &Request::get(TARGET)), 200), 18);
    assert_eq!(fleet.upstream.requests().len(), 60);
}

#[test]
fn a_gateway_with_many_admissions_replays_them_in_pieces() {
    let fleet = Fleet::with(|config| {
        config
            .with("[limits.workspace]", "requests = 3_000")
            .with("[limits.organisation]", "requests = 100_000")
    });
    assert_eq!(count(&fleet.at_once(4, 300, &Request::get(TARGET)), 200), 2_400);
    fleet.redis.run("FLUSHALL");
    // The other one may have told some of its own by now, with a heartbeat.
    let left = fleet.get(0, TARGET).expect(200).allowance().remaining;
    assert!((3_000 - 2_401..=3_000 - 1_201).contains(&left), "{left}");
    assert_eq!(fleet.get(1, TARGET).expect(200).allowance().remaining, 3_000 - 2_402);
}

#[test]
fn a_bucket_that_the_store_has_forgotten_has_the_debt_that_a_gateway_knows() {
    let fleet = Fleet::of(Redis::start(&[]), 1, |config| {
        config.with("[limits.instance]", "rate = \"1/h\"\nburst = 30")
    });
    let request = Request::get("/login").host(&data_host("in_acme"));
    assert_eq!(count(&fleet.at_once(1, 20, &request), 200), 20);
    fleet.redis.run("FLUSHALL");
    let answers = fleet.at_once(1, 20, &request);
    assert_eq!((count(&answers, 200), count(&answers, 429)), (10, 10));
}

#[test]
fn a_calendar_that_the_store_has_forgotten_has_what_a_gateway_used() {
    let lines = "key = \"workspace\"\nalgorithm = \"calendar_month\"\nrequests = 9\n\
                 time_zone = \"UTC\"";
    let fleet = Fleet::of(Redis::start(&[]), 1, |config| {
        config
            .without("[limits.workspace]")
            .with("[limits.workspace]", lines)
            .without("[plans.enterprise]")
            .with("[plans.enterprise]", "per_instance_limits = true")
    });
    assert_eq!(count(&fleet.at_once(1, 6, &Request::get(TARGET)), 200), 6);
    fleet.redis.run("FLUSHALL");
    assert_eq!(count(&fleet.at_once(1, 6, &Request::get(TARGET)), 200), 3);
}

#[test]
fn what_other_gateways_admitted_counts_again_after_a_heartbeat() {
    let fleet = Fleet::with(|config| config);
    assert_eq!(count(&fleet.at_once(1, 20, &Request::get(TARGET)), 200), 40);
    fleet.redis.run("FLUSHALL");
    wait::until("both gateways to tell what they admitted", || {
        (fleet.gateways[0].used("workspace", "ws_acme") == 40).then_some(())
    });
    let mut client = fleet.gateways[0].client();
    let more = (0..60).filter(|_| client.get(TARGET).status == 200).count();
    assert_eq!(more, 20);
}

#[test]
fn what_was_admitted_at_once_counts_once_after_a_new_connection() {
    let fleet = Fleet::with(|config| config);
    assert_eq!(count(&fleet.at_once(6, 4, &Request::get(TARGET)), 200), 48);
    fleet.redis.run("CLIENT KILL TYPE normal");
    for gateway in &fleet.gateways {
        gateway.log().wait("the return", |line| line["message"] == "shared store available");
    }
    assert_eq!(fleet.gateways[0].used("workspace", "ws_acme"), 48);
    assert_eq!(count(&fleet.at_once(1, 20, &Request::get(TARGET)), 200), 12);
}

#[test]
fn a_key_that_cannot_be_read_harms_no_other_and_a_reset_mends_it() {
    let fleet = Fleet::with(|config| {
        config.with("[limits.workspace]", "requests = 20\non_store_failure = \"refuse\"")
    });
    fleet.get(0, TARGET).expect(200);
    let Reply::List(keys) = fleet.redis.run("KEYS weir1:{????????????????}*") else {
        panic!("no list")
    };
    for key in &keys {
        let Reply::Text(key) = key else { panic!("no text") };
        fleet.redis.run(&format!("SET {key} garbage"));
    }
    for _ in 0..10 {
        fleet.get(0, TARGET).expect(503);
        fleet.get(0, "/v1/workspaces/ws_other/x").expect(200);
    }
    assert_eq!(fleet.gateways[0].metric("weir_gateway_store_up"), 1.0);
    for key in ["workspace/ws_acme", "organisation/org_acme"] {
        let reset = Request::new("DELETE", &format!("/limits/{key}"));
        fleet.gateways[0].call_admin(&reset).expect(200);
    }
    assert_eq!(fleet.get(0, TARGET).expect(200).allowance().remaining, 19);
}
