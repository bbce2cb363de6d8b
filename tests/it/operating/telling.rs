//! What is told of requests, and what never is.

use weir_tests::answer::{Answer, Gate};
use weir_tests::request::Request;
use weir_tests::wait;
use weir_tests::world::World;

#[test]
fn a_line_of_the_access_log_says_whose_request_it_was_and_what_each_limit_said() {
    let world = World::with(|config| config.with("[limits.workspace]", "requests = 1"));
    world.get("/v1/workspaces/ws_acme/users").expect(200);
    world.get("/v1/workspaces/ws_acme/users").expect(429);
    let line = world.gateway.access_log().wait("the refused one", |line| line["status"] == 429);
    for (field, value) in [
        ("workspace", "ws_acme"),
        ("organisation", "org_acme"),
        ("plane", "control"),
        ("route", "/v1/workspaces/{workspace}/{*rest}"),
        ("refusal", "rate-limited"),
        ("method", "GET"),
    ] {
        assert_eq!(line[field], value, "{field} of {line}");
    }
    let said = |nth: usize, field: &str| line["limits"][nth][field].clone();
    assert_eq!((said(0, "limit"), said(0, "said")), ("workspace".into(), "refuse".into()));
    assert_eq!((said(1, "limit"), said(1, "said")), ("organisation".into(), "admit".into()));
    assert_eq!(said(1, "remaining"), 599, "the refused request cost nothing");
}

#[test]
fn no_query_token_cookie_or_body_is_ever_logged() {
    let mut world = World::with(|config| config.with("[log]", "level = \"debug\""));
    let request = Request::post("/v1/me?code=hidden-code", "{\"password\":\"hidden-body\"}")
        .field("Authorization", "Bearer hidden-token")
        .field("Cookie", "session=hidden-cookie");
    world.call(&request).expect(200);
    // A failure on the way is where such things slip out.
    world.control.stop();
    world.call(&request).expect_problem(502);
    world.gateway.access_log().wait("the failure", |line| line["status"] == 502);
    world.gateway.signal("TERM");
    world.gateway.wait_for_exit();
    for text in [world.gateway.access_log().to_end(), world.gateway.log().to_end()] {
        assert!(!text.contains("hidden-"), "{text}");
    }
}

#[test]
fn what_is_in_flight_is_counted_until_it_is_over() {
    let world = World::new();
    let gate = Gate::new();
    world.control.always(Answer::script().wait(&gate).and(Answer::ok("done")));
    let in_flight = |number: &str| {
        let metrics = world.gateway.ask(&Request::get("/metrics")).expect(200).text();
        let line = format!("\nweir_gateway_requests_in_flight {number}\n");
        metrics.contains(&line).then_some(())
    };
    let mut client = world.client();
    client.send(Request::get("/v1/me").head_bytes());
    world.control.wait_for_requests(1);
    wait::until("one in flight", || in_flight("1"));
    gate.open();
    client.read().expect(200);
    wait::until("none in flight", || in_flight("0"));
}
