//! A limit of requests in flight counts each from its admission to its end, however it ends.

mod upgrades;

use weir_tests::answer::{Answer, Gate};
use weir_tests::client::Client;
use weir_tests::config::{Config, DIRECTORY};
use weir_tests::frames::Frame;
use weir_tests::gateway::Gateway;
use weir_tests::request::Request;
use weir_tests::upstream::Upstream;
use weir_tests::wait;
use weir_tests::world::World;

use crate::http2::Edge;

const TARGET: &str = "/v1/workspaces/ws_acme";
const KEY: &str = "ws_acme";

/// The limits of workspaces and of batches allow so many requests in flight.
fn in_flight(config: Config, requests: u32) -> Config {
    let lines = format!("key = \"workspace\"\nalgorithm = \"concurrency\"\nrequests = {requests}");
    let limits = ["[limits.workspace]", "[limits.batch]"];
    limits.iter().fold(config, |config, limit| config.without(limit).with(limit, &lines))
}

/// Two requests of each workspace may be in flight.
fn world() -> World {
    World::with(|config| in_flight(config, 2))
}

/// Answers that wait for a gate.
fn gated(upstream: &Upstream) -> Gate {
    let gate = Gate::new();
    upstream.always(Answer::script().wait(&gate).and(Answer::ok("finished")));
    gate
}

/// A client whose request has been sent, and is now one of `count` in flight.
#[track_caller]
fn holding(gateway: &Gateway, count: u64) -> Client {
    let mut client = gateway.client();
    client.send(Request::get(TARGET).head_bytes());
    wait_for(gateway, count);
    client
}

/// Waits until so many requests are in flight.
#[track_caller]
fn wait_for(gateway: &Gateway, count: u64) {
    wait_for_limit(gateway, "workspace", count);
}

#[track_caller]
fn wait_for_limit(gateway: &Gateway, limit: &str, count: u64) {
    let used = wait::within(wait::PATIENCE, || (gateway.used(limit, KEY) == count).then_some(()));
    assert!(used.is_some(), "{} in flight, not {count}", gateway.used(limit, KEY));
}

/// Checks that none is in flight, and that two may be, and no third.
#[track_caller]
fn expect_two_free(gateway: &Gateway, upstream: &Upstream) {
    wait_for(gateway, 0);
    let gate = gated(upstream);
    let clients = [1, 2].map(|count| holding(gateway, count));
    gateway.client().get(TARGET).expect_problem(429);
    assert_eq!(gateway.used("workspace", KEY), 2);
    gate.open();
    for mut client in clients {
        client.read().expect(200);
    }
    wait_for(gateway, 0);
}

#[test]
fn a_third_request_is_refused_until_one_of_two_has_ended() {
    let world = world();
    let (first, second) = (Gate::new(), Gate::new());
    world.control.always(Answer::script().wait(&first).and(Answer::ok("first")));
    let mut early = holding(&world.gateway, 1);
    world.control.wait_for_requests(1);
    world.control.always(Answer::script().wait(&second).and(Answer::ok("second")));
    let mut late = holding(&world.gateway, 2);
    world.control.wait_for_requests(2);
    for _ in 0..3 {
        let refused = world.get(TARGET);
        assert_eq!(refused.retry_after(), 1);
        let allowance = refused.allowance();
        assert_eq!((allowance.limit, allowance.remaining), (2, 0));
        assert_eq!(allowance.resource, "workspace");
        refused.expect_problem(429);
    }
    assert_eq!(world.gateway.used("organisation", "org_acme"), 2, "a refusal was charged");
    first.open();
    assert_eq!(early.read().expect(200).allowance().remaining, 1);
    wait_for(&world.gateway, 1);
    world.control.always(Answer::ok("third"));
    assert_eq!(world.get(TARGET).expect(200).allowance().remaining, 0);
    world.get("/v1/workspaces/ws_quiet").expect(200);
    second.open();
    assert_eq!(late.read().expect(200).allowance().remaining, 0);
    expect_two_free(&world.gateway, &world.control);
}

#[test]
fn a_response_counts_until_its_last_byte_and_until_its_client_has_gone() {
    let world = world();
    let gate = Gate::new();
    let head = "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhello";
    world.control.always(Answer::script().send(head).wait(&gate).send("world"));
    let mut clients = [1, 2].map(|count| holding(&world.gateway, count));
    for client in &mut clients {
        client.read_until("hello");
    }
    world.get(TARGET).expect(429);
    let [left, mut stays] = clients;
    drop(left);
    wait_for(&world.gateway, 1);
    gate.open();
    stays.read_until("world");
    expect_two_free(&world.gateway, &world.control);
}

#[test]
fn a_client_that_hangs_up_before_the_answer_releases_its_request() {
    let world = world();
    let gate = gated(&world.control);
    let clients = [1, 2].map(|count| holding(&world.gateway, count));
    world.control.wait_for_requests(2);
    drop(clients);
    wait_for(&world.gateway, 0);
    gate.open();
    expect_two_free(&world.gateway, &world.control);
}

#[test]
fn a_client_that_hangs_up_during_its_body_releases_its_request() {
    let world = world();
    for path in [TARGET, "/v1/workspaces/ws_acme/tenants:batch"] {
        let limit = if path == TARGET { "workspace" } else { "batch" };
        let mut client = world.client();
        client.send(Request::post(path, "[1, 2, 3]").head_bytes());
        client.send("[1, ");
        wait_for_limit(&world.gateway, limit, 1);
        drop(client);
        wait_for_limit(&world.gateway, limit, 0);
    }
    expect_two_free(&world.gateway, &world.control);
}

#[test]
fn a_whole_response_releases_a_request_whose_body_is_still_to_come() {
    let edge = Edge::with(|config| in_flight(config, 2).with("[server]", "body_timeout = \"10m\""));
    let world = &edge.world;
    for answer in [
        "HTTP/1.1 403 Forbidden\r\nContent-Length: 2\r\n\r\nno",
        "HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n",
        "HTTP/1.1 403 Forbidden\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nno\r\n0\r\n\r\n",
    ] {
        world.control.always(Answer::script().at_head().send(answer));
        let mut client = world.client();
        client.send(Request::post(TARGET, "a body").head_bytes());
        client.read_until("403");
        wait_for(&world.gateway, 0);
        let mut tls = edge.client();
        let stream = tls.head(&Request::post(TARGET, "a body"), false);
        assert_eq!(tls.answer(stream).status, 403);
        wait_for(&world.gateway, 0);
    }
}

#[test]
fn requests_that_the_upstream_fails_are_released() {
    let mut world = World::with(|config| {
        in_flight(config, 2).with("[upstreams.control]", "read_timeout = \"300ms\"")
    });
    let gate = Gate::new();
    let answers = [
        (Answer::script().close(), 502),
        (Answer::script().reset(), 502),
        (Answer::script().send("HTTP/1.1 what\r\n\r\n").close(), 502),
        (Answer::script().wait(&gate), 504),
        (Answer::status(500), 500),
    ];
    for (answer, status) in answers {
        world.control.always(answer);
        // More than may be in flight at once.
        for _ in 0..3 {
            world.get(TARGET).expect(status);
            wait_for(&world.gateway, 0);
        }
    }
    gate.open();
    world.control.stop();
    for _ in 0..3 {
        let status = world.get(TARGET).status;
        assert!([502, 503].contains(&status), "{status}");
        wait_for(&world.gateway, 0);
    }
    world.control.start_again();
    let recovered = || (world.get(TARGET).status == 500).then_some(());
    wait::until("the upstream to be back", recovered);
    let slow = world.config().with("[upstreams.control]", "read_timeout = \"60s\"");
    world.gateway.write_config(&slow.to_string());
    world.gateway.reload().expect(200);
    expect_two_free(&world.gateway, &world.control);
}

#[test]
fn a_websocket_is_in_flight_until_it_closes() {
    let world = world();
    let gate = Gate::new();
    let switch = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\n\
        Upgrade: websocket\r\n\r\nhello";
    let open = || {
        world.control.always(Answer::script().send(switch).wait(&gate).close().at_head());
        let mut client = world.client();
        client.send(
            Request::get(TARGET)
                .field("Connection", "Upgrade")
                .field("Upgrade", "websocket")
                .field("Sec-WebSocket-Version", "13")
                .field("Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ==")
                .head_bytes(),
        );
        client.read_head_only().expect(101);
        client.read_until("hello");
        client
    };
    let first = open();
    let mut second = open();
    assert_eq!(world.gateway.used("workspace", KEY), 2);
    world.get(TARGET).expect(429);
    drop(first);
    wait_for(&world.gateway, 1);
    gate.open();
    second.expect_end();
    expect_two_free(&world.gateway, &world.control);
}

#[test]
fn a_reset_stream_and_a_closed_http2_connection_release_their_requests() {
    let edge = Edge::with(|config| in_flight(config, 2));
    let world = &edge.world;
    let gate = gated(&world.control);
    let mut client = edge.client();
    let streams = [1, 2].map(|count| {
        let id = client.request(&Request::get(TARGET));
        wait_for(&world.gateway, count);
        id
    });
    client.get(TARGET).expect(429);
    world.control.wait_for_requests(2);
    client.frames(&[Frame::reset(streams[0], 8)]);
    wait_for(&world.gateway, 1);
    client.request(&Request::get(TARGET));
    wait_for(&world.gateway, 2);
    drop(client);
    wait_for(&world.gateway, 0);
    gate.open();
    expect_two_free(&world.gateway, &world.control);
}

#[test]
fn the_draft_headers_name_the_unit_of_requests_in_flight() {
    let world = World::with(|config| in_flight(config, 2).with("[headers]", "ratelimit = true"));
    let answer = world.get(TARGET).expect(200);
    let [policy, usage] = ["RateLimit-Policy", "RateLimit"].map(|name| answer.field(name).unwrap());
    assert!(policy.starts_with("\"workspace\";q=2;qu=\"concurrent-requests\", "), "{policy}");
    assert!(usage.starts_with("\"workspace\";r=1, \"organisation\";r=599"), "{usage}");
}

#[test]
fn a_request_that_another_limit_refuses_is_not_in_flight() {
    let world =
        World::with(|config| in_flight(config, 2).with("[limits.organisation]", "requests = 1"));
    let gate = gated(&world.control);
    let mut client = holding(&world.gateway, 1);
    for _ in 0..3 {
        let refused = world.get(TARGET);
        assert_eq!(refused.allowance().resource, "organisation");
        refused.expect_problem(429);
        assert_eq!(world.gateway.used("workspace", KEY), 1);
    }
    gate.open();
    client.read().expect(200);
    wait_for(&world.gateway, 0);
}

#[test]
fn a_refused_batch_is_released() {
    let world = world();
    let items = |count: usize| format!("[{}]", vec!["1"; count].join(","));
    let path = "/v1/workspaces/ws_acme/tenants:batch";
    let mut client = world.client();
    for (body, status) in [(items(101), 422), ("{}".to_owned(), 400), (items(100), 200)] {
        for _ in 0..3 {
            client.call(&Request::post(path, body.clone())).expect(status);
            wait_for_limit(&world.gateway, "batch", 0);
        }
    }
    client.call(&Request::post(path, items(700_000))).expect(413);
    wait_for_limit(&world.gateway, "batch", 0);
}

#[test]
fn a_client_that_sends_one_request_after_another_is_never_refused() {
    let edge = Edge::with(|config| {
        in_flight(config, 1).with("[limits.organisation]", "requests = 1000000")
    });
    let world = &edge.world;
    let chunked = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n";
    let answers = [
        Answer::ok("hello"),
        Answer::ok(""),
        Answer::status(204),
        Answer::script().send(chunked),
        Answer::script().send("HTTP/1.1 200 OK\r\n\r\nuntil its end").close(),
        Answer::script().close(),
    ];
    let mut refused = Vec::new();
    for (nth, answer) in answers.into_iter().enumerate() {
        world.control.always(answer);
        let mut tls = edge.client();
        for count in 0..100 {
            let mut client = world.client();
            for request in [Request::get(TARGET), Request::new("HEAD", TARGET)] {
                if client.call(&request).status == 429 {
                    refused.push((nth, count, "HTTP/1.1"));
                }
                client = world.client();
                if tls.call(&request).status == 429 {
                    refused.push((nth, count, "HTTP/2"));
                }
            }
        }
    }
    let batch = "/v1/workspaces/ws_acme/tenants:batch";
    for count in 0..100 {
        if world.call(&Request::post(batch, "{}")).status == 429 {
            refused.push((9, count, "a refusal"));
        }
    }
    assert!(refused.is_empty(), "{refused:?}");
}

#[test]
fn a_limit_of_requests_in_flight_that_only_observes_refuses_none() {
    let world =
        World::with(|config| in_flight(config, 1).with("[limits.workspace]", "mode = \"observe\""));
    let gate = gated(&world.control);
    let mut clients = [(); 3].map(|()| {
        let mut client = world.client();
        client.send(Request::get(TARGET).head_bytes());
        client
    });
    world.control.wait_for_requests(3);
    assert_eq!(world.gateway.used("workspace", KEY), 1, "what it would have admitted");
    gate.open();
    for client in &mut clients {
        client.read().expect(200);
    }
    wait_for(&world.gateway, 0);
}

#[test]
fn a_reset_and_a_change_of_the_algorithm_release_nothing() {
    let world = world();
    let gate = gated(&world.control);
    let mut clients = [1, 2].map(|count| holding(&world.gateway, count));
    let reset = Request::new("DELETE", &format!("/limits/workspace/{KEY}"));
    world.gateway.call_admin(&reset).expect(200);
    assert_eq!(world.gateway.used("workspace", KEY), 2);
    world.get(TARGET).expect(429);
    let other = "key = \"workspace\"\nalgorithm = \"token_bucket\"\nrate = 1\nburst = 9";
    let rated = world.config().without("[limits.workspace]").with("[limits.workspace]", other);
    let rated = rated
        .replacing("limits.workspace = { requests = 600 }", "limits.workspace = { burst = 600 }");
    let directory = DIRECTORY.replace("{ requests = 7 }", "{ burst = 7 }");
    world.gateway.write_directory(&directory);
    world.gateway.write_config(&rated.to_string());
    world.gateway.reload().expect(200);
    assert_eq!(world.gateway.used("workspace", KEY), 0);
    world.gateway.write_directory(DIRECTORY);
    world.gateway.write_config(&world.config().to_string());
    world.gateway.reload().expect(200);
    assert_eq!(world.gateway.used("workspace", KEY), 2);
    world.get(TARGET).expect(429);
    gate.open();
    for client in &mut clients {
        client.read().expect(200);
    }
    expect_two_free(&world.gateway, &world.control);
}
