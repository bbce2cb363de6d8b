//! Tenant batches: five a minute with at most a hundred items each, counted before the upstream
//! sees a byte.

mod bodies;
mod waiting;

use weir_tests::request::Request;
use weir_tests::response::Response;
use weir_tests::upstream::Upstream;
use weir_tests::world::World;

use crate::limits::{at_once, count};

const BATCH: &str = "/v1/workspaces/ws_acme/tenants:batch";

#[test]
fn a_hundred_items_pass_byte_for_byte_and_one_more_is_refused() {
    let world = World::new();
    let mut client = world.client();
    let full = items(100);
    let passed = client.call(&Request::post(BATCH, full.clone())).expect(200);
    assert_eq!(passed.allowance().resource, "batch");
    assert_eq!((passed.allowance().limit, passed.allowance().remaining), (5, 4));
    let received = world.control.only();
    assert_eq!(received.target(), BATCH.as_bytes());
    assert_eq!(received.body, full);
    assert_eq!(received.head.field("content-type"), Some("application/json"));

    let refused = client.call(&Request::post(BATCH, items(101)));
    assert_eq!(refused.allowance().remaining, 3, "a refused body has cost one of the five");
    refused.expect_problem(422);
    assert_no_body_since(&world.control, 1);
    client.get("/healthz").expect(200);
}

#[test]
fn chunks_are_judged_like_a_body_of_known_length() {
    let world = World::new();
    let mut client = world.client();
    let full = items(100);
    let pieces: Vec<&[u8]> = full.chunks(97).collect();
    client.call(&Request::post(BATCH, "").chunks(&pieces)).expect(200);
    assert_eq!(world.control.only().body, full);

    let long = items(101);
    let pieces: Vec<&[u8]> = long.chunks(97).collect();
    client.call(&Request::post(BATCH, "").chunks(&pieces)).expect_problem(422);
    assert_no_body_since(&world.control, 1);
    client.get("/healthz").expect(200);
}

#[test]
fn a_body_near_a_mebibyte_passes_whole() {
    let world = World::new();
    let full = items_of(100, 10_000);
    assert!(full.len() < 1024 * 1024 && full.len() > 900_000);
    let mut client = world.client();
    client.call(&Request::post(BATCH, full.clone())).expect(200);
    let pieces: Vec<&[u8]> = full.chunks(65_537).collect();
    client.call(&Request::post(BATCH, "").chunks(&pieces)).expect(200);
    for received in world.control.requests() {
        assert!(received.body == full, "{} of {} bytes", received.body.len(), full.len());
        assert!(received.complete);
    }
    client.get("/healthz").expect(200);
}

#[test]
fn too_many_bytes_are_413_whether_announced_or_not() {
    let world = World::new();
    let large = items_of(100, 11_000);
    assert!(large.len() > 1024 * 1024);
    let announced = world.call(&Request::post(BATCH, large.clone()));
    assert_eq!(announced.allowance().remaining, 4);
    announced.expect_problem(413);

    let pieces: Vec<&[u8]> = large.chunks(65_536).collect();
    let found_out = world.call(&Request::post(BATCH, "").chunks(&pieces));
    assert_eq!(found_out.allowance().remaining, 3);
    found_out.expect_problem(413);
    assert_no_body_since(&world.control, 0);
}

#[test]
fn a_body_that_is_encoded_cannot_be_counted() {
    let world = World::new();
    let zipped = Request::post(BATCH, "\x1f\u{8b}").field("Content-Encoding", "gzip");
    let refused = world.call(&zipped);
    assert_eq!(refused.allowance().resource, "batch");
    refused.expect_problem(415);
    let twice = Request::post(BATCH, "[]")
        .field("Content-Encoding", "identity")
        .field("Content-Encoding", "br");
    world.call(&twice).expect_problem(415);
    assert_no_body_since(&world.control, 0);
}

#[test]
fn the_sixth_batch_is_refused_and_workspace_and_organisation_pay_for_none() {
    let world = World::new();
    let answers = at_once(&world, 10, 5, &Request::post(BATCH, items(3)));
    assert_eq!((count(&answers, 200), count(&answers, 429)), (5, 45));
    assert_eq!(world.control.requests().len(), 5);
    let refused = answers.into_iter().find(|answer| answer.status == 429).unwrap();
    assert_eq!(refused.allowance().resource, "batch");
    refused.expect_problem(429);

    assert_eq!(world.gateway.used("batch", "ws_acme"), 5);
    assert_eq!(world.gateway.used("workspace", "ws_acme"), 0);
    assert_eq!(world.gateway.used("organisation", "org_acme"), 0);
    let users = world.get("/v1/workspaces/ws_acme/users").expect(200).allowance();
    assert_eq!((users.resource.as_str(), users.remaining), ("workspace", 59));
    world.call(&Request::post(&BATCH.replace("ws_acme", "ws_quiet"), "[]")).expect(200);
}

#[test]
fn refused_bodies_use_up_the_five_and_nothing_else() {
    let world = World::new();
    let mut client = world.client();
    for body in [items(101), b"{}".to_vec(), b"[1,".to_vec(), items(500), b"x".to_vec()] {
        let status = client.call(&Request::post(BATCH, body)).status;
        assert!([400, 422].contains(&status), "{status}");
    }
    client.call(&Request::post(BATCH, "[]")).expect_problem(429);
    assert_eq!(world.gateway.used("workspace", "ws_acme"), 0);
    assert_eq!(world.gateway.used("organisation", "org_acme"), 0);
    assert_no_body_since(&world.control, 0);
}

#[test]
fn an_exhausted_workspace_can_still_send_batches() {
    let world = World::with(|config| config.with("[limits.workspace]", "requests = 1"));
    world.get("/v1/workspaces/ws_acme").expect(200);
    world.get("/v1/workspaces/ws_acme").expect(429);
    world.call(&Request::post(BATCH, items(2))).expect(200);
}

#[test]
fn a_server_that_refuses_the_connection_costs_a_batch_nothing() {
    let down = Upstream::refusing();
    let up = Upstream::start();
    let servers = format!("servers = [\"{}\", \"{}\"]", down.address(), up.address());
    let world = World::with(|config| config.with("[upstreams.control]", &servers));
    let body = items_of(100, 5_000);
    for _ in 0..4 {
        world.call(&Request::post(BATCH, body.clone())).expect(200);
    }
    assert_eq!(up.requests().len(), 4);
    assert!(up.requests().iter().all(|received| received.body == body));
    assert_eq!(world.gateway.used("batch", "ws_acme"), 4);
}

#[test]
fn a_batch_that_no_server_accepts_is_a_502_with_its_headers() {
    let mut world = World::new();
    world.control.stop();
    let lost = world.call(&Request::post(BATCH, items(2)));
    assert_eq!(lost.allowance().resource, "batch");
    lost.expect_problem(502);
}

/// A JSON array of `count` small objects.
fn items(count: usize) -> Vec<u8> {
    items_of(count, 10)
}

/// A JSON array of `count` objects, each with a name of `name_bytes` bytes.
fn items_of(count: usize, name_bytes: usize) -> Vec<u8> {
    let name = "x".repeat(name_bytes);
    let items: Vec<String> =
        (0..count).map(|at| format!(r#"{{"n":{at},"name":"{name}"}}"#)).collect();
    format!("[{}]", items.join(",")).into_bytes()
}

/// Checks that the upstream received no body byte of any request after the first `known`.
#[track_caller]
fn assert_no_body_since(upstream: &Upstream, known: usize) {
    for received in upstream.requests().iter().skip(known) {
        let seen = String::from_utf8_lossy(&received.body).into_owned();
        assert!(received.body.is_empty(), "the upstream was shown {seen:?}");
    }
}

/// Sends one batch with this body, on a new connection.
fn post(world: &World, body: &[u8]) -> Response {
    world.call(&Request::post(BATCH, body))
}
