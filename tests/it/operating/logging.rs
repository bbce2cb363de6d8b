//! What the access log, the error log and the metrics record of a request, and what they never
//! contain.

use weir_tests::answer::{Answer, Gate};
use weir_tests::request::Request;
use weir_tests::wait;
use weir_tests::world::World;

#[test]
fn an_access_log_line_names_the_tenant_and_each_limits_decision() {
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
    let output = |nth: usize, field: &str| line["limits"][nth][field].clone();
    assert_eq!((output(0, "limit"), output(0, "decision")), ("workspace".into(), "refuse".into()));
    assert_eq!(
        (output(1, "limit"), output(1, "decision")),
        ("organisation".into(), "admit".into())
    );
    assert_eq!(output(1, "remaining"), 599, "the refused request cost nothing");
}

#[test]
fn no_query_token_cookie_or_body_is_ever_logged() {
    let mut world = World::with(|config| config.with("[log]", "level = \"debug\""));
    let request = Request::post("/v1/me?code=hidden-code", "{\"password\":\"hidden-body\"}")
        .field("Authorization", "Bearer hidden-token")
        .field("Cookie", "session=hidden-cookie");
    world.call(&request).expect(200);
    // Failures are where secrets leak most easily.
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
fn requests_in_flight_are_counted_until_they_end() {
    let world = World::new();
    let gate = Gate::new();
    world.control.always(Answer::script().wait(&gate).and(Answer::ok("done")));
    let in_flight = |number: &str| {
        let metrics = world.gateway.call_admin(&Request::get("/metrics")).expect(200).text();
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

#[test]
fn an_access_log_line_has_client_bytes_and_upstream_time() {
    let world = World::new();
    let gate = Gate::new();
    world.control.always(Answer::script().wait(&gate).and(Answer::ok("answer")));
    let agent = "a".repeat(10_000);
    let request = Request::post("/v1/me", "12345").field("User-Agent", &agent);
    let mut client = world.client();
    client.send(request.head_bytes());
    client.send(request.body_bytes());
    world.control.wait_for_requests(1);
    let slow = std::time::Duration::from_millis(120);
    wait::pass(slow);
    gate.open();
    client.read().expect(200);
    let line = world.gateway.access_log().wait("the line", |line| line["status"] == 200);
    assert_eq!(line["user_agent"].as_str().unwrap().len(), 256, "bounded");
    assert_eq!((&line["bytes_received"], &line["bytes_sent"]), (&5.into(), &6.into()));
    let [upstream, whole] = ["upstream_ms", "duration_ms"].map(|name| line[name].as_f64().unwrap());
    assert!((120.0..=whole).contains(&upstream), "{line}");
    // The gateway buffers a batch and reads it itself; a refusal calls no server.
    let batch = Request::post("/v1/workspaces/ws_acme/tenants:batch", "[1]");
    world.call(&batch).expect(200);
    let line = world.gateway.access_log().wait("a batch", |line| line["bytes_received"] == 3);
    assert!(line.get("upstream_ms").is_some() && line.get("user_agent").is_none(), "{line}");
    world.get("/nowhere").expect(404);
    let line = world.gateway.access_log().wait("a refusal", |line| line["status"] == 404);
    assert!(line.get("upstream_ms").is_none(), "{line}");
}

#[test]
fn no_log_line_contains_a_clients_control_characters() {
    let world = World::new();
    let odd = "\u{9b}31m \u{85} \u{7f} \u{2028} \u{2029} \u{202e} é";
    let agent = Request::get("/v1/me").field("User-Agent", &odd.replace('\u{7f}', ""));
    world.call(&agent).expect(200);
    world.call(&Request::get("/\u{9b}31m\u{2028}")).expect_problem(404);
    let log = world.gateway.access_log();
    wait::until("two lines", || (log.json().len() == 2).then_some(()));
    let text = log.text();
    let steers = |c: char| (c.is_control() && c != '\n') || ('\u{2028}'..='\u{202e}').contains(&c);
    assert!(!text.contains(steers), "{text:?}");
    assert!(text.contains("\\u009b31m") && text.contains('é'), "{text}");
    // The program's own log, with a key that an operator's tool passed on.
    let key = "/limits/address/%C2%9B31m%7F";
    world.gateway.call_admin(&Request::new("DELETE", key));
    world.gateway.signal("TERM");
    assert!(!world.gateway.log().to_end().contains(steers));
}

#[test]
fn an_unreachable_upstream_is_reported_until_it_recovers() {
    let mut world = World::new();
    let ready =
        |world: &World| world.gateway.call_admin(&Request::get("/readyz")).expect(200).text();
    world.control.stop();
    for _ in 0..3 {
        world.get("/v1/me").expect_problem(502);
    }
    let failing = "failing: upstreams.control has no server that could be reached";
    assert!(ready(&world).contains(failing), "{}", ready(&world));
    let message = "upstream unreachable";
    let line = world.gateway.log().wait("why", |line| line["message"] == message);
    assert_eq!(
        (&line["upstream"], &line["error"]),
        (&"control".into(), &"connection refused".into())
    );
    let lines = world.gateway.log().json();
    assert_eq!(lines.iter().filter(|line| line["message"] == message).count(), 1);
    world.control.start_again();
    world.get("/v1/me").expect(200);
    assert!(!ready(&world).contains("failing"), "{}", ready(&world));
}
