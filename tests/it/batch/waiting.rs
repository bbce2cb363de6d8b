//! A batch while its body arrives: what the upstream sees meanwhile, and how `Expect:
//! 100-continue` is answered.

use weir_tests::client::Client;
use weir_tests::request::Request;
use weir_tests::wait;
use weir_tests::world::World;

use super::{BATCH, assert_no_body_since, items, items_of};

#[test]
fn until_the_last_byte_the_upstream_sees_nothing_of_the_body() {
    let world = World::new();
    for body in [items(100), items_of(100, 8_000)] {
        let known = world.control.requests().len();
        let request = Request::post(BATCH, body.clone());
        let mut client = world.client();
        client.send(request.head_bytes());
        let (most, last) = body.split_at(body.len() - 1);
        client.send(most);
        // Other requests are served meanwhile, so the gateway has had time to process the bytes.
        for _ in 0..3 {
            world.get("/healthz").expect(200);
        }
        let seen = world.control.requests();
        let batches = seen.iter().skip(known).filter(|seen| seen.method() == "POST");
        assert!(batches.clone().all(|seen| seen.body.is_empty()), "{batches:?}");
        client.send(last);
        client.read().expect(200);
        assert_eq!(world.control.last().body, body);
    }
}

#[test]
fn a_client_that_expects_100_continue_gets_it() {
    let world = World::new();
    let body = items(100);
    let mut client = expecting(&world, body.len());
    assert!(client.read_interim().start.starts_with("HTTP/1.1 100"));
    client.send(&body);
    client.read().expect(200);
    assert_eq!(world.control.only().body, body);
    client.get("/healthz").expect(200);
}

#[test]
fn an_expected_body_that_is_too_large_is_refused_at_once() {
    let world = World::new();
    let mut client = expecting(&world, 2 * 1024 * 1024);
    let refused = client.read();
    assert!(refused.interim.is_empty(), "100 Continue for a refused body");
    refused.expect_problem(413);
    assert_no_body_since(&world.control, 0);
}

#[test]
fn an_expected_sixth_batch_is_refused_at_once() {
    let world = World::with(|config| config.with("[limits.batch]", "requests = 1"));
    world.call(&Request::post(BATCH, items(1))).expect(200);
    let mut client = expecting(&world, 100);
    let refused = client.read();
    assert!(refused.interim.is_empty(), "100 Continue for a refused body");
    refused.expect_problem(429);
}

#[test]
fn an_expected_batch_with_too_many_items_is_refused_after_its_body() {
    let world = World::new();
    let body = items(101);
    let mut client = expecting(&world, body.len());
    client.read_interim();
    client.send(&body);
    client.read().expect_problem(422);
    assert_no_body_since(&world.control, 0);
    client.get("/healthz").expect(200);
}

#[test]
fn a_refused_batch_leaves_the_connection_in_order() {
    let world = World::new();
    let mut client = world.client();
    let requests = [
        Request::post(BATCH, items(101)),
        Request::post(BATCH, items_of(150, 300)),
        Request::post(BATCH, "").chunks(&[items(150)]),
        Request::post(BATCH, "{}"),
    ];
    for request in requests {
        let status = client.call(&request).status;
        assert!([400, 422].contains(&status), "{status}");
        assert_eq!(client.get("/healthz").expect(200).body, b"hello");
    }
}

#[test]
fn a_429_to_an_unread_batch_leaves_the_connection_in_order() {
    let world = World::with(|config| config.with("[limits.batch]", "requests = 1"));
    let mut client = world.client();
    client.call(&Request::post(BATCH, "[]")).expect(200);
    for _ in 0..3 {
        client.call(&Request::post(BATCH, items(100))).expect_problem(429);
        client.get("/healthz").expect(200);
    }
}

#[test]
fn a_429_to_a_large_unread_batch_is_still_read_by_its_sender() {
    let world = World::with(|config| config.with("[limits.batch]", "requests = 1"));
    world.call(&Request::post(BATCH, "[]")).expect(200);
    for _ in 0..5 {
        let large = Request::post(BATCH, items_of(100, 10_000));
        world.call(&large).expect_problem(429);
    }
}

#[test]
fn an_announced_body_that_is_not_sent_uses_no_buffer_budget() {
    let world = World::with(|config| config.with("[server]", "held_bytes_max = \"1MiB\""));
    let mut idler = world.client();
    idler.send(format!(
        "POST {BATCH} HTTP/1.1\r\nHost: api.localhost\r\nContent-Length: 1048576\r\n\r\n["
    ));
    wait::until("the idle batch to be charged", || {
        (world.gateway.used("batch", "ws_acme") == 1).then_some(())
    });
    let other = Request::post(&BATCH.replace("ws_acme", "ws_quiet"), items(100));
    world.call(&other).expect(200);
}

#[test]
fn without_buffer_budget_a_batch_is_refused_and_the_budget_is_returned() {
    let world = World::with(|config| {
        config
            .with("[server]", "held_bytes_max = \"1MiB\"")
            .with("[limits.batch]", "requests = 4000")
    });
    let large = items_of(100, 6_000);
    let mut first = world.client();
    let request = Request::post(BATCH, large.clone());
    first.send(request.head_bytes());
    first.send(&large[..large.len() - 1]);
    wait::until("all of the first to be held but its last byte", || {
        let metrics = world.gateway.call_admin(&Request::get("/metrics")).expect(200).text();
        let buffered = format!("\nweir_gateway_batch_buffered_bytes {}\n", large.len() - 1);
        metrics.contains(&buffered).then_some(())
    });
    let second = Request::post(&BATCH.replace("ws_acme", "ws_quiet"), large.clone());
    let refused = world.call(&second);
    assert!(refused.retry_after() >= 1);
    refused.expect_problem(503);
    first.send(&large[large.len() - 1..]);
    first.read().expect(200);
    // The buffer budget is released when the first request ends, which is after its response.
    wait::until("the room to come back", || {
        Some(world.call(&second)).filter(|answer| answer.status == 200)
    });
}

#[test]
fn a_workspace_that_sends_its_batches_slowly_leaves_room_for_others() {
    let world = World::with(|config| {
        config
            .with("[server]", "held_bytes_max = \"1MiB\"")
            .with("[limits.batch]", "requests = 4000")
    });
    let large = items_of(100, 2_000);
    let start = || {
        let mut client = world.client();
        client.send(Request::post(BATCH, large.clone()).head_bytes());
        client.send(&large[..large.len() - 1]);
        client
    };
    let mut slow = [start(), start()];
    wait::until("all of both to be held but their last byte", || {
        let metrics = world.gateway.call_admin(&Request::get("/metrics")).expect(200).text();
        let held = 2 * (large.len() - 1);
        metrics.contains(&format!("\nweir_gateway_batch_buffered_bytes {held}\n")).then_some(())
    });
    start().read().expect_problem(503);
    let quiet = Request::post(&BATCH.replace("ws_acme", "ws_quiet"), large.clone());
    world.call(&quiet).expect(200);
    for client in &mut slow {
        client.send(&large[large.len() - 1..]);
        client.read().expect(200);
    }
}

/// A connection on which the head of a batch was sent, with `Expect: 100-continue` and no body.
fn expecting(world: &World, length: usize) -> Client {
    let mut client = world.client();
    client.send(format!(
        "POST {BATCH} HTTP/1.1\r\nHost: api.localhost\r\nContent-Type: application/json\r\n\
         Expect: 100-continue\r\nContent-Length: {length}\r\n\r\n"
    ));
    client
}
