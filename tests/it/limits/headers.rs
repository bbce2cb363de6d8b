//! The rate limit headers of every response that a limit governs.

use weir_tests::answer::Answer;
use weir_tests::request::{Request, data_host};
use weir_tests::upstream::Upstream;
use weir_tests::wait;
use weir_tests::world::World;

#[test]
fn every_status_of_an_upstream_carries_the_allowance() {
    let world = World::new();
    let statuses = [200, 201, 204, 301, 304, 400, 401, 403, 404, 409, 422, 429, 500, 502, 503];
    for (spent, status) in (1..).zip(statuses) {
        world.control.always(Answer::status(status).body("x"));
        let allowance = world.get("/v1/workspaces/ws_acme").expect(status).allowance();
        assert_eq!(allowance.resource, "workspace");
        assert_eq!((allowance.limit, allowance.remaining), (60, 60 - spent));
    }
}

#[test]
fn refusals_of_the_gateway_carry_the_allowance_too() {
    let mut world = World::with(|config| config.with("[limits.workspace]", "requests = 2"));
    world.control.stop();
    let down = world.get("/v1/workspaces/ws_acme");
    assert_eq!((down.allowance().limit, down.allowance().remaining), (2, 1));
    let problem = down.expect_problem(502);
    assert!(problem["detail"].is_string());
    world.control.start_again();
    world.get("/v1/workspaces/ws_acme").expect(200);

    let refused = world.get("/v1/workspaces/ws_acme");
    let allowance = refused.allowance();
    assert_eq!((allowance.resource.as_str(), allowance.limit), ("workspace", 2));
    let problem = refused.expect_problem(429);
    assert_eq!((&problem["resource"], &problem["limit"]), (&"workspace".into(), &2.into()));
}

#[test]
fn the_answer_to_head_carries_them_and_no_body() {
    let world = World::with(|config| config.with("[limits.workspace]", "requests = 1"));
    let head = Request::new("HEAD", "/v1/workspaces/ws_acme");
    let mut client = world.client();
    assert_eq!(client.call(&head).expect(200).allowance().remaining, 0);
    let refused = client.call(&head).expect(429);
    assert_eq!(refused.allowance().remaining, 0);
    // A body would precede the next status line.
    assert_eq!(client.get("/healthz").expect(200).body, b"hello");
}

#[test]
fn exempt_calls_carry_none_even_where_the_upstream_sends_some() {
    let world = World::new();
    for upstream in [&world.control, &world.data, &world.dispatcher] {
        upstream.always(with_foreign_allowance());
    }
    world.get("/healthz").expect(200).assert_no_allowance();
    world.get("/assets/app.js").expect(200).assert_no_allowance();
    for document in ["/oauth/v2/keys", "/.well-known/openid-configuration"] {
        world.get_from("in_acme", document).expect(200).assert_no_allowance();
    }
}

#[test]
fn limit_headers_of_an_upstream_are_replaced() {
    let world = World::new();
    world.control.always(with_foreign_allowance());
    let answer = world.get("/v1/workspaces/ws_acme").expect(200);
    let allowance = answer.allowance();
    assert_eq!((allowance.resource.as_str(), allowance.limit), ("workspace", 60));
    assert_eq!(allowance.remaining, 59);
}

#[test]
fn limit_headers_of_earlier_forms_stop_at_the_gateway() {
    let world = World::new();
    let names = ["RateLimit", "X-Rate-Limit"]
        .map(|form| ["Limit", "Remaining", "Reset"].map(|end| format!("{form}-{end}")));
    let names: Vec<String> = names.concat();
    let foreign = |answer: Answer, name: &String| answer.field(name, "9999");
    world.control.always(names.iter().fold(Answer::ok("x"), foreign));
    let answer = world.get("/v1/workspaces/ws_acme").expect(200);
    for name in &names {
        assert_eq!(answer.head.field(&name.to_lowercase()), None, "{name}");
    }
}

#[test]
fn a_retry_after_of_an_upstream_passes() {
    let world = World::new();
    world.control.always(Answer::status(503).field("Retry-After", "7"));
    assert_eq!(world.get("/v1/workspaces/ws_acme").expect(503).retry_after(), 7);
}

#[test]
fn limit_headers_of_a_client_reach_no_upstream() {
    let world = World::new();
    let request = Request::get("/v1/workspaces/ws_acme")
        .field("X-RateLimit-Limit", "9999")
        .field("x-ratelimit-remaining", "9999");
    world.call(&request).expect(200);
    let head = world.control.only().head;
    assert_eq!(head.field("x-ratelimit-limit"), None, "{}", head.start);
    assert_eq!(head.field("x-ratelimit-remaining"), None);
}

#[test]
fn the_binding_limit_is_the_one_with_the_least_left() {
    let world = World::with(|config| {
        config
            .with("[limits.workspace]", "requests = 4")
            .with("[limits.organisation]", "requests = 6")
    });
    let resource = |workspace: &str| {
        let answer = world.get(&format!("/v1/workspaces/{workspace}"));
        let allowance = answer.allowance();
        (answer.status, allowance.resource, allowance.limit, allowance.remaining)
    };
    assert_eq!(resource("ws_acme"), (200, "workspace".to_owned(), 4, 3));
    for left in [2, 1, 0] {
        assert_eq!(resource("ws_acme"), (200, "workspace".to_owned(), 4, left));
    }
    assert_eq!(resource("ws_quiet"), (200, "organisation".to_owned(), 6, 1));
    assert_eq!(resource("ws_quiet"), (200, "organisation".to_owned(), 6, 0));
    assert_eq!(resource("ws_quiet"), (429, "organisation".to_owned(), 6, 0));
    // Both limits would refuse; the response names one of them.
    assert_eq!(resource("ws_acme").0, 429);
}

#[test]
fn reset_is_the_second_at_which_the_whole_allowance_is_back() {
    let world = World::new();
    let mut client = world.client();
    for _ in 0..3 {
        let before = wait::unix_seconds();
        let reset = client.get("/v1/workspaces/ws_acme").expect(200).allowance().reset;
        let after = wait::unix_seconds();
        assert!((before + 60..=after + 61).contains(&reset), "{before} {reset} {after}");
    }
}

#[test]
fn the_reset_of_a_bucket_is_when_it_is_full_again() {
    let world = World::with(|config| config.with("[limits.instance]", "rate = 1\nburst = 30"));
    let request = Request::get("/login").host(&data_host("in_acme"));
    let mut client = world.client();
    let before = wait::unix_seconds();
    for _ in 0..20 {
        client.call(&request).expect(200);
    }
    let allowance = client.call(&request).expect(200).allowance();
    let after = wait::unix_seconds();
    assert!((before + 21..=after + 22).contains(&allowance.reset), "{allowance:?} at {before}");
    assert!((9..12 + after - before).contains(&allowance.remaining), "{allowance:?}");
}

#[test]
fn a_refusal_has_the_same_values_in_headers_and_body_and_keeps_the_connection() {
    let world = World::with(|config| config.with("[limits.workspace]", "requests = 1"));
    let mut client = world.client();
    client.get("/v1/workspaces/ws_acme").expect(200);
    for _ in 0..3 {
        let refused = client.get("/v1/workspaces/ws_acme");
        assert!((59..=60).contains(&refused.retry_after()), "{}", refused.head_text());
        assert_ne!(refused.field("connection"), Some("close"));
        refused.expect_problem(429);
    }
    client.get("/healthz").expect(200);
    assert_eq!(client.call(&Request::post("/v1/workspaces/ws_acme", "{}")).status, 429);
    client.get("/healthz").expect(200);
    assert_eq!(world.control.requests().len(), 3);
}

#[test]
fn several_servers_share_one_allowance() {
    let others = [Upstream::start(), Upstream::start()];
    let servers = format!("servers = [\"{}\", \"{}\"]", others[0].address(), others[1].address());
    let world = World::with(|config| {
        config.with("[upstreams.control]", &servers).with("[limits.workspace]", "requests = 6")
    });
    let answers = super::at_once(&world, 5, 4, &Request::get("/v1/workspaces/ws_acme"));
    assert_eq!(super::count(&answers, 200), 6);
    assert_eq!(others[0].requests().len() + others[1].requests().len(), 6);
}

/// A response of an upstream with its own rate limit headers, in several spellings.
fn with_foreign_allowance() -> Answer {
    Answer::ok("hello")
        .field("X-RateLimit-Limit", "5000")
        .field("x-ratelimit-limit", "5001")
        .field("X-Ratelimit-Remaining", "4999")
        .field("X-RATELIMIT-RESET", "1")
        .field("X-RateLimit-Resource", "core")
}
