//! The gateway's own answers carry the headers of limits, and charge one that refuses no request.

use weir_tests::answer::Answer;
use weir_tests::client::Client;
use weir_tests::config::Config;
use weir_tests::request::Request;
use weir_tests::response::Response;
use weir_tests::world::World;

const TARGET: &str = "/v1/workspaces/ws_acme";

/// Sends `bytes` on a connection of their own.
fn raw(world: &World, bytes: &str) -> Response {
    let mut client = Client::connect(world.gateway.http());
    client.send(bytes);
    client.read()
}

#[track_caller]
fn assert_shows(answer: &Response, status: u16, remaining: u64) {
    assert_eq!(answer.status, status, "{}", answer.text());
    let allowance = answer.allowance();
    assert_eq!((allowance.resource.as_str(), allowance.limit), ("refused", 4));
    assert_eq!(allowance.remaining, remaining, "{}", answer.head_text());
    assert_eq!(answer.field("retry-after"), None, "waiting does not help");
}

fn four(config: Config) -> Config {
    config.with("[limits.refused]", "requests = 4")
}

#[test]
fn every_refusal_shows_an_allowance_and_keeps_its_status_when_it_is_used_up() {
    let unknown_host = "GET / HTTP/1.1\r\nHost: nowhere.test\r\n\r\n";
    let two_hosts = "GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n";
    let large = format!("GET / HTTP/1.1\r\nHost: a\r\nX: {}\r\n\r\n", "x".repeat(40_000));
    let encoded = "GET /v1/%2e%2e/x HTTP/1.1\r\nHost: api.localhost\r\n\r\n";
    let delete = "DELETE /healthz HTTP/1.1\r\nHost: api.localhost\r\n\r\n";
    let no_path = "GET /nothing HTTP/1.1\r\nHost: api.localhost\r\n\r\n";
    let connect = "CONNECT a:1 HTTP/1.1\r\nHost: a:1\r\n\r\n";
    for (bytes, status) in [
        (unknown_host, 404),
        (two_hosts, 400),
        ("NONSENSE\r\n\r\n", 400),
        (&large, 431),
        (encoded, 400),
        (delete, 405),
        (no_path, 404),
        (connect, 405),
    ] {
        let world = World::with(four);
        for left in [3, 2, 1, 0, 0, 0] {
            assert_shows(&raw(&world, bytes), status, left);
        }
        // Neither a neighbour's requests nor those of a tenant are refused for it.
        assert_eq!(world.get(TARGET).expect(200).allowance().resource, "workspace");
        world.get("/v1/me").expect(200);
        assert_eq!(world.gateway.used("refused", "127.0.0.1"), 4);
    }
}

#[test]
fn a_head_that_is_too_slow_shows_an_allowance() {
    let world = World::with(|config| four(config).with("[server]", "head_timeout = \"100ms\""));
    assert_shows(&raw(&world, "GET / HTTP/1.1\r\nHost:"), 408, 3);
}

#[test]
fn refusals_on_a_route_show_the_limits_of_the_route() {
    let world = World::with(four);
    let batch = Request::new("POST", "/v1/workspaces/ws_acme/tenants:batch").body("{}");
    assert_eq!(world.call(&batch).expect(400).allowance().resource, "batch");
    assert_eq!(world.gateway.used("refused", "127.0.0.1"), 0);
}

#[test]
fn an_exempt_route_shows_none_even_when_it_fails() {
    let mut world = World::with(four);
    world.control.stop();
    world.get("/healthz").expect(502).assert_no_allowance();
    assert_eq!(world.gateway.used("refused", "127.0.0.1"), 0);
}

#[test]
fn a_file_without_the_limit_has_six_hundred_a_minute() {
    let world = World::with(|config| config.without("[limits.refused]"));
    let allowance = world.get("/nothing").expect(404).allowance();
    assert_eq!((allowance.resource.as_str(), allowance.limit), ("refused", 600));
}

#[test]
fn without_a_limit_to_show_there_are_no_ratelimit_fields() {
    let world = World::with(|config| {
        let config = config.with("[headers]", "ratelimit = true");
        let config = config.with("[limits.workspace]", "headers = false");
        config.with("[limits.organisation]", "mode = \"observe\"")
    });
    world.control.always(Answer::ok("x"));
    let answer = world.get(TARGET).expect(200);
    assert_eq!([answer.field("ratelimit"), answer.field("ratelimit-policy")], [None, None]);
}

#[test]
fn a_limit_without_headers_refuses_and_shows_nothing() {
    let world =
        World::with(|config| config.with("[limits.workspace]", "requests = 1\nheaders = false"));
    world.control.always(Answer::ok("x"));
    assert_eq!(world.get(TARGET).expect(200).allowance().resource, "organisation");
    let refused = world.get(TARGET);
    assert_eq!(refused.status, 429);
    assert_eq!(refused.allowance().resource, "organisation");
    assert!((1..=60).contains(&refused.retry_after()));
    let problem = refused.json();
    assert_eq!(problem.get("resource"), None, "{problem}");
    assert!(!refused.text().contains("workspace`"), "{}", refused.text());
    assert_eq!(world.gateway.used("organisation", "org_acme"), 1);
}
