//! Slow, silent and oversized clients: each is disconnected at its deadline, and no other
//! client is.

use std::time::Duration;

use weir_tests::answer::{Answer, Gate};
use weir_tests::client::Client;
use weir_tests::request::{Request, chunk};
use weir_tests::wait::{self, PATIENCE};

use super::World;

/// Long enough to differ from an immediate close, short enough to wait for.
const SHORT: Duration = Duration::from_millis(300);

#[test]
fn a_head_that_never_ends_times_out() {
    let world = impatient();
    for beginning in ["G", "GET /healthz HTTP/1.1\r\n", "GET /healthz HTTP/1.1\r\nHost: api.lo"] {
        let before = wait::now();
        let mut client = world.client();
        client.send(beginning);
        expect_closed(&mut client);
        assert!(before.elapsed() >= SHORT, "given up on after {:?}", before.elapsed());
    }
    world.control.assert_untouched();
}

#[test]
fn a_head_that_arrives_byte_by_byte_times_out() {
    let world = impatient();
    let mut client = world.client();
    client.send("GET /healthz HTTP/1.1\r\nHost: api.localhost\r\nX-Long: ");
    let before = wait::now();
    let ended = wait::within(PATIENCE, || {
        wait::pass(Duration::from_millis(30));
        client.try_send("x").err()
    });
    assert!(ended.is_some(), "30 ms between two bytes keep a connection open");
    assert!(before.elapsed() < Duration::from_secs(10), "{:?}", before.elapsed());
    world.control.assert_untouched();
}

#[test]
fn the_next_head_on_a_connection_has_the_same_deadline() {
    let world = World::with(|config| {
        config.with("[server]", "head_timeout = \"300ms\"\nidle_timeout = \"60s\"")
    });
    let mut client = world.client();
    client.get("/healthz").expect(200);
    client.send("GET /healthz HTTP/1.1\r\nHo");
    expect_closed(&mut client);
    assert_eq!(world.control.requests().len(), 1);
}

#[test]
fn a_body_that_stops_arriving_times_out() {
    let world = impatient();
    let mut client = world.client();
    client.send(Request::post("/v1/me", "ten bytes.").head_bytes());
    client.send("ten");
    expect_closed(&mut client);
    let mut client = world.client();
    client.send(Request::post("/v1/me", "").chunks(&["x"]).head_bytes());
    client.send(chunk("some"));
    expect_closed(&mut client);
    assert!(world.control.requests().iter().all(|request| !request.complete));
    world.get("/healthz").expect(200);
}

#[test]
fn a_batch_that_stops_arriving_times_out_and_reaches_no_upstream() {
    let world = impatient();
    let mut client = world.client();
    let batch = Request::post("/v1/workspaces/ws_acme/tenants:batch", "[1,2,3]");
    client.send(batch.head_bytes());
    client.send("[1,2");
    let refused = client.read();
    assert_eq!(refused.allowance().resource, "batch");
    refused.expect_problem(408);
    client.expect_end();
    assert!(world.control.requests().iter().all(|request| request.body.is_empty()));
}

#[test]
fn a_steady_body_may_outlast_the_read_timeout_and_a_batch_may_not() {
    let world = World::with(|config| config.with("[server]", "body_timeout = \"1s\""));
    let drip = |request: Request| {
        let mut client = world.client();
        client.send(request.head_bytes());
        for byte in request.body_bytes() {
            wait::pass(Duration::from_millis(400));
            // A batch times out before its end.
            if client.try_send([byte]).is_err() {
                break;
            }
        }
        client.read()
    };
    drip(Request::post("/v1/me", "abcd")).expect(200);
    // The gateway must close the connection now, not when the client has read everything.
    let batch = Request::post("/v1/workspaces/ws_acme/tenants:batch", "[12]");
    drip(batch).expect_problem(408);
}

#[test]
fn a_connection_without_a_request_is_closed() {
    let world = World::with(|config| config.with("[server]", "idle_timeout = \"300ms\""));
    let mut client = world.client();
    client.get("/healthz").expect(200);
    let before = wait::now();
    client.expect_end();
    assert!(before.elapsed() >= SHORT / 2, "closed after {:?}", before.elapsed());
}

#[test]
fn a_connection_that_sends_no_byte_is_closed() {
    let world = impatient();
    let mut client = world.client();
    expect_closed(&mut client);
}

#[test]
fn a_connection_in_use_is_not_idle() {
    let world = World::with(|config| {
        config.with("[server]", "idle_timeout = \"1s\"\nhead_timeout = \"1s\"")
    });
    let mut client = world.client();
    for _ in 0..5 {
        client.get("/healthz").expect(200);
        wait::pass(Duration::from_millis(400));
    }
    client.get("/healthz").expect(200);
}

#[test]
fn a_request_in_progress_outlives_the_deadlines_of_connections() {
    let world = impatient();
    let gate = Gate::new();
    world.control.always(Answer::script().wait(&gate).and(Answer::ok("late")));
    let mut client = world.client();
    client.send(Request::get("/v1/me").head_bytes());
    world.control.wait_for_requests(1);
    wait::pass(SHORT * 3);
    gate.open();
    assert_eq!(client.read().expect(200).body, b"late");
}

#[test]
fn a_client_that_stops_reading_is_disconnected() {
    let world = impatient();
    let large = 64 * 1024 * 1024;
    let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {large}\r\n\r\n");
    world.control.always(Answer::script().send(head).flood(large));
    let mut client = world.client();
    client.send(Request::get("/v1/me/large").head_bytes());
    client.read_head_only().expect(200);
    let over = |line: &serde_json::Value| line.to_string().contains("/v1/me/large");
    world.gateway.access_log().wait("that the request is over", over);
}

#[test]
fn a_head_of_32_kibibytes_is_the_largest() {
    let world = World::new();
    let most = "x".repeat(31 * 1024);
    world.call(&Request::get("/healthz").field("X-Long", &most)).expect(200);
    assert_eq!(world.control.only().head.field("x-long"), Some(most.as_str()));

    for too_long in [33 * 1024, 200 * 1024, 2 * 1024 * 1024] {
        let request = Request::get("/healthz").field("X-Long", &"x".repeat(too_long));
        world.call(&request).expect_problem(431);
    }
    let many = (0..600).fold(Request::get("/healthz"), |request, number| {
        request.field(&format!("X-Field-{number}"), &"x".repeat(60))
    });
    world.call(&many).expect_problem(431);
    assert_eq!(world.control.requests().len(), 1);
}

#[test]
fn a_line_without_end_is_refused_when_it_is_too_long() {
    let world = World::new();
    for beginning in ["GET /", "GET / HTTP/1.1\r\nX-Long: ", ""] {
        let mut client = world.client();
        // The gateway may refuse and close the connection while the test still sends.
        let _ = client.try_send([beginning.as_bytes(), &[b'a'; 100 * 1024]].concat());
        match client.try_read() {
            Ok(answer) => assert!([400, 414, 431].contains(&answer.status), "{}", answer.status),
            Err(error) => assert_ne!(error.kind(), std::io::ErrorKind::WouldBlock, "stays open"),
        }
    }
    world.control.assert_untouched();
}

#[test]
fn connections_beyond_the_limit_wait_or_are_closed_until_others_leave() {
    let world = World::with(|config| config.with("[server]", "connections_max = 3"));
    let mut open: Vec<Client> = (0..3).map(|_| world.client()).collect();
    for client in &mut open {
        client.get("/healthz").expect(200);
    }
    let served = || world.try_client()?.try_exchange(Request::get("/healthz").head_bytes());
    let answer = served();
    assert!(answer.is_err(), "a fourth connection was served: {answer:?}");
    for client in &mut open {
        client.get("/healthz").expect(200);
    }
    open.pop();
    wait::until("room for another", || served().ok()).expect(200);
}

#[test]
fn many_slow_clients_delay_no_other_client() {
    let world = World::new();
    let slow: Vec<Client> = (0..200)
        .map(|_| {
            let mut client = world.client();
            client.send("GET /healthz HTTP/1.1\r\nHost: api");
            client
        })
        .collect();
    for _ in 0..20 {
        world.get("/healthz").expect(200);
    }
    drop(slow);
}

/// A world in which all client timeouts are short.
fn impatient() -> World {
    World::with(|config| {
        config.with(
            "[server]",
            "head_timeout = \"300ms\"\nbody_timeout = \"300ms\"\nidle_timeout = \"300ms\"",
        )
    })
}

/// Checks that the server ends the connection, with a 408 or without a response.
#[track_caller]
fn expect_closed(client: &mut Client) {
    let rest = client.read_to_end();
    let text = String::from_utf8_lossy(&rest).into_owned();
    assert!(rest.is_empty() || text.starts_with("HTTP/1.1 408"), "{text}");
}
