//! Warnings that a key has nearly used a limit.

use serde_json::Value;
use weir_tests::request::Request;
use weir_tests::upstream::Upstream;
use weir_tests::wait;
use weir_tests::world::World;

const WORDS: &str = "limit nearly used up";

fn world(hook: &Upstream) -> World {
    World::with(|config| {
        config
            .with("[limits.workspace]", "requests = 10\nwarn_at = 0.8")
            .with("[warnings]", &format!("url = \"http://{}/warn\"", hook.address()))
    })
}

fn warned(world: &World) -> Vec<Value> {
    let lines = world.gateway.log().json();
    lines.into_iter().filter(|line| line["message"] == WORDS).collect()
}

#[test]
fn the_request_that_reaches_the_share_warns_once() {
    let hook = Upstream::start();
    let world = world(&hook);
    (0..7).for_each(|_| drop(world.get("/v1/workspaces/ws_acme").expect(200)));
    assert_eq!(warned(&world).len(), 0);
    (0..3).for_each(|_| drop(world.get("/v1/workspaces/ws_acme").expect(200)));
    world.get("/v1/workspaces/ws_acme").expect(429);
    (0..8).for_each(|_| drop(world.get("/v1/workspaces/ws_quiet").expect(200)));
    let posted = hook.wait_for_requests(2);
    let body: Value = serde_json::from_slice(&posted[0].body).unwrap();
    assert_eq!((posted[0].target(), &body["limit"]), (b"/warn".to_vec(), &"workspace".into()));
    assert_eq!((&body["key"], &body["used"]), (&"ws_acme".into(), &8.into()), "{body}");
    assert_eq!((&body["allowance"], body["reset"].is_u64()), (&10.into(), true), "{body}");
    let lines = wait::until("both lines of the log", || {
        Some(warned(&world)).filter(|lines| lines.len() >= 2)
    });
    assert_eq!(lines.len(), 2, "{lines:?}");
    assert_eq!(lines[0]["key"], "ws_acme");
    let metrics = world.gateway.call_admin(&Request::get("/metrics")).text();
    assert!(metrics.contains("weir_gateway_limit_warnings_total{limit=\"workspace\"} 2"));
}

#[test]
fn a_url_that_does_not_answer_loses_a_warning_and_no_request() {
    let hook = Upstream::refusing();
    let world = world(&hook);
    (0..10).for_each(|_| drop(world.get("/v1/workspaces/ws_acme").expect(200)));
    let lost = "weir_gateway_limit_warnings_lost_total";
    wait::until("the loss to be counted", || (world.gateway.metric(lost) == 1.0).then_some(()));
    assert_eq!(warned(&world).len(), 1);
}
