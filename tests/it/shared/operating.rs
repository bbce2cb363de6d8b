//! What an operator changes and sees at one gateway holds for all that share its store.

use std::time::Duration;

use serde_json::json;
use weir_tests::redis::Reply;
use weir_tests::relay::Replies;
use weir_tests::request::Request;
use weir_tests::response::Response;
use weir_tests::wait;

use super::exact::relayed;
use super::{Fleet, TARGET, count};

/// A call of the admin listener about ws_acme's limit.
#[track_caller]
fn change(fleet: &Fleet, nth: usize, method: &str, path: &str, body: &str) -> Response {
    let path = format!("/limits/workspace/ws_acme{path}");
    fleet.gateways[nth].call_admin(&Request::new(method, &path).body(body))
}

/// Waits until a gateway admits a request, and checks that this took at most a second.
#[track_caller]
fn admitted_soon(fleet: &Fleet, nth: usize) -> Response {
    let began = wait::now();
    let admitted = wait::until("a request to be admitted", || {
        Some(fleet.get(nth, TARGET)).filter(|answer| answer.status == 200)
    });
    assert!(began.elapsed().as_millis() < 1_000, "{:?}", began.elapsed());
    admitted
}

#[test]
fn each_gateway_shows_what_all_have_admitted() {
    let fleet = Fleet::with(|config| config);
    assert_eq!(count(&fleet.at_once(1, 10, &Request::get(TARGET)), 200), 20);
    for gateway in &fleet.gateways {
        assert_eq!(gateway.used("workspace", "ws_acme"), 20);
        assert_eq!(gateway.used("organisation", "org_acme"), 20);
        assert_eq!(gateway.used("workspace", "ws_quiet"), 0);
        assert_eq!(gateway.metric("weir_gateway_store_up"), 1.0);
    }
}

#[test]
fn a_reset_at_one_gateway_reaches_the_other_and_is_not_replayed_away() {
    let fleet = Fleet::with(|config| config.with("[limits.workspace]", "requests = 20"));
    assert_eq!(count(&fleet.at_once(1, 15, &Request::get(TARGET)), 200), 20);
    change(&fleet, 0, "DELETE", "", "").expect(200);
    assert_eq!(admitted_soon(&fleet, 1).allowance().remaining, 19);
    assert_eq!(admitted_soon(&fleet, 0).allowance().remaining, 18);
    let answers = fleet.at_once(1, 15, &Request::get(TARGET));
    assert_eq!(count(&answers, 200), 18);
}

#[test]
fn a_boost_at_one_gateway_reaches_the_other_within_a_second_and_so_does_its_end() {
    let fleet = Fleet::with(|config| config.with("[limits.workspace]", "requests = 4"));
    assert_eq!(count(&fleet.at_once(1, 5, &Request::get(TARGET)), 200), 4);
    change(&fleet, 0, "POST", "/boost", r#"{"requests":20,"ttl":"10m"}"#).expect(200);
    let boosted = admitted_soon(&fleet, 1).allowance();
    assert_eq!((boosted.limit, boosted.remaining), (20, 15));
    assert_eq!(fleet.get(0, TARGET).expect(200).allowance().remaining, 14);
    assert_ne!(fleet.gateways[1].limit("workspace", "ws_acme")["boosted_until"], json!(null));
    change(&fleet, 1, "DELETE", "/boost", "").expect(200);
    let began = wait::now();
    wait::until("the end of the boost", || (fleet.get(0, TARGET).status == 429).then_some(()));
    assert!(began.elapsed().as_millis() < 1_000, "{:?}", began.elapsed());
}

#[test]
fn a_gateway_that_starts_later_has_the_boosts_of_the_others() {
    let mut fleet = Fleet::with(|config| config.with("[limits.workspace]", "requests = 4"));
    change(&fleet, 0, "POST", "/boost", r#"{"requests":20,"ttl":"10m"}"#).expect(200);
    fleet.start_again(1, "KILL");
    wait::until("the boost", || (fleet.get(1, TARGET).allowance().limit == 20).then_some(()));
}

#[test]
fn a_boost_outlives_a_store_that_forgets() {
    let fleet = Fleet::with(|config| config.with("[limits.workspace]", "requests = 4"));
    change(&fleet, 0, "POST", "/boost", r#"{"requests":20,"ttl":"10m"}"#).expect(200);
    wait::until("the boost", || (fleet.get(1, TARGET).allowance().limit == 20).then_some(()));
    fleet.redis.run("FLUSHALL");
    wait::until("the boost to be published again", || {
        let found = fleet.redis.run("HLEN weir1:{gateways}boosts");
        (found == Reply::Number(1)).then_some(())
    });
    for nth in [0, 1] {
        assert_eq!(fleet.get(nth, TARGET).expect(200).allowance().limit, 20);
    }
}

#[test]
fn what_is_admitted_after_a_reset_is_replayed_while_boosts_are_set_without_a_pause() {
    let fleet = Fleet::with(|config| config.with("[limits.workspace]", "requests = 6"));
    let boost = Request::new("POST", "/limits/workspace/ws_quiet/boost")
        .body(r#"{"requests":20,"ttl":"10m"}"#);
    let admitted_of = |times| (0..times).filter(|_| fleet.get(0, TARGET).status == 200).count();
    let heard = || match fleet.redis.run("HVALS weir1:{gateways}") {
        Reply::List(times) => times,
        other => panic!("{other:?}"),
    };
    std::thread::scope(|scope| {
        let admitted = scope.spawn(|| {
            [(); 3].map(|()| {
                change(&fleet, 0, "DELETE", "", "").expect(200);
                let earlier = heard();
                let is_newer = |now: Vec<Reply>| now.iter().zip(&earlier).all(|(a, b)| a != b);
                wait::until("a heartbeat of each", || is_newer(heard()).then_some(()));
                // It reads the reset, the next two read boosts.
                wait::pass(Duration::from_millis(100));
                let before = admitted_of(3);
                wait::pass(Duration::from_millis(600));
                fleet.redis.run("FLUSHALL");
                before + admitted_of(9)
            })
        });
        while !admitted.is_finished() {
            fleet.gateways[0].call_admin(&boost).expect(200);
        }
        assert_eq!(admitted.join().unwrap(), [6; 3]);
    });
}

#[test]
fn a_change_that_the_store_does_not_answer_is_a_503() {
    let fleet = Fleet::with(|config| config);
    fleet.get(0, TARGET).expect(200);
    fleet.redis.pause();
    for (method, path, body) in
        [("DELETE", "", ""), ("POST", "/boost", r#"{"requests":90,"ttl":"10m"}"#)]
    {
        change(&fleet, 0, method, path, body).expect(503);
    }
    fleet.redis.resume();
}

#[test]
fn a_gateway_finds_the_store_again_after_replies_to_its_heartbeats_were_lost() {
    let (fleet, relay) =
        relayed("100ms", |config| config.with("[limits.workspace]", "requests = 4"));
    fleet.wait_until_known();
    // The next heartbeat is answered, and what the gateway then reads of the change is not.
    change(&fleet, 1, "POST", "/boost", r#"{"requests":20,"ttl":"10m"}"#).expect(200);
    relay.set(Replies::SwallowAfterNext);
    wait::pass(Duration::from_millis(400));
    relay.set(Replies::Pass);
    wait::until("the boost", || (fleet.get(0, TARGET).allowance().limit == 20).then_some(()));
    let is_up = || fleet.gateways[0].metric("weir_gateway_store_up") == 1.0;
    wait::until("the store to be used", || is_up().then_some(()));
}
