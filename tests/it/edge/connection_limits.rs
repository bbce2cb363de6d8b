//! One address cannot use all connections, and one connection cannot last forever.

use std::time::Duration;

use serde_json::Value;
use weir_tests::answer::{Answer, Gate};
use weir_tests::authority::Authority;
use weir_tests::client::Client;
use weir_tests::request::Request;
use weir_tests::wait;
use weir_tests::world::World;

use super::{NAMES, world_of};
use crate::http2::Edge;

const REFUSED: &str = "weir_gateway_connections_refused_total{reason=\"address\"}";

/// The connection, if it is served.
fn is_served(mut client: Client) -> Option<Client> {
    client.try_exchange(Request::get("/healthz").head_bytes()).ok().map(|_| client)
}

#[test]
fn an_address_has_its_own_connection_limit() {
    let world = World::with(|config| config.with("[server]", "connections_per_address_max = 3"));
    let http = world.gateway.http();
    let from = |address| is_served(Client::connect_from(address, http));
    let mut open: Vec<Client> = (0..3).map(|_| from("127.0.0.5").unwrap()).collect();
    assert!(from("127.0.0.5").is_none(), "a fourth connection of one address was served");
    assert!(from("127.0.0.6").is_some());
    assert_eq!(world.gateway.metric(REFUSED), 1.0);
    open.pop();
    wait::until("room for another", || from("127.0.0.5"));
}

#[test]
fn a_trusted_proxy_has_no_per_address_limit() {
    let world = World::with(|config| {
        let lines = "connections_per_address_max = 1\ntrusted_proxies = [\"127.0.0.5\"]";
        config.with("[server]", lines)
    });
    let from = |address| is_served(Client::connect_from(address, world.gateway.http()));
    let open: Vec<_> = (0..5).filter_map(|_| from("127.0.0.5")).collect();
    assert_eq!(open.len(), 5);
    let first = from("127.0.0.6");
    assert!(first.is_some() && from("127.0.0.6").is_none());
}

#[test]
fn unfinished_handshakes_count_against_the_limit() {
    let authority = Authority::new();
    let world = world_of(&authority, &[("server", NAMES)], "", |config| {
        config.with("[server]", "connections_per_address_max = 2\nconnections_max = 3")
    });
    let https = world.gateway.https();
    let silent = ["127.0.0.5", "127.0.0.5", "127.0.0.6"];
    let open: Vec<_> = silent.iter().map(|from| Client::connect_from(from, &https)).collect();
    wait::until("three connections", || {
        (world.gateway.metric("weir_gateway_connections") == 3.0).then_some(())
    });
    let mut refused = Client::connect_from("127.0.0.7", &https);
    assert_eq!(refused.read_to_end(), b"");
    let total = "weir_gateway_connections_refused_total{reason=\"total\"}";
    assert_eq!(world.gateway.metric(total), 1.0);
    drop(open);
    wait::until("every connection to close", || {
        (world.gateway.metric("weir_gateway_connections") == 0.0).then_some(())
    });
    let open = [(); 2].map(|()| Client::connect_from("127.0.0.5", &https));
    let mut refused = Client::connect_from("127.0.0.5", &https);
    assert_eq!(refused.read_to_end(), b"");
    assert_eq!(world.gateway.metric(REFUSED), 1.0);
    drop(open);
}

#[test]
fn the_last_request_of_a_connection_gets_connection_close() {
    let lines = "requests_per_connection_max = 3";
    let world = World::with(|config| config.with("[server]", lines));
    // The gateway's own responses count as well, and carry the same header.
    for target in ["/healthz", "/nowhere/../to/go"] {
        let mut client = world.client();
        for nth in 1..=3 {
            let answer = client.get(target);
            let closes = answer.head.field("connection") == Some("close");
            assert_eq!(closes, nth == 3, "{target}, answer {nth}: {:?}", answer.head);
        }
        client.expect_end();
    }
    let raised = world.config().with("[server]", "requests_per_connection_max = 5");
    world.gateway.write_config(&raised.to_string());
    world.gateway.reload().expect(200);
    let mut client = world.client();
    let closes =
        |answer: weir_tests::response::Response| answer.head.field("connection") == Some("close");
    let closing: Vec<bool> = (0..5).map(|_| closes(client.get("/healthz"))).collect();
    assert_eq!(closing, [false, false, false, false, true]);
}

#[test]
fn requests_of_one_client_leave_descriptors_to_others() {
    let lines = "connections_per_address_max = 5\nconnections_max = 7";
    let edge = Edge::with(|config| config.with("[server]", lines));
    let gate = Gate::new();
    edge.world.control.always(Answer::script().wait(&gate).and(Answer::ok("late")));
    // Two connections, and three requests that are not the first of theirs.
    let mut clients: Vec<_> = (0..2).map(|_| edge.client()).collect();
    for client in &mut clients {
        for _ in 0..40 {
            client.request(&Request::get("/healthz"));
        }
    }
    edge.world.control.wait_for_requests(5);
    let mut other = Client::connect_from("127.0.0.6", edge.world.gateway.http());
    other.get("/assets/other").expect(200);
    for client in &mut clients {
        client.settle();
    }
    assert_eq!(edge.world.control.requests().len(), 5);
    wait::pass(Duration::from_millis(300));
    gate.open();
    edge.world.control.wait_for_requests(80);
    edge.wait_until_idle();
    // The wait of a request is part of its duration.
    let lines = || edge.world.gateway.access_log().json();
    let of_clients = |lines: Vec<Value>| -> Vec<f64> {
        let own = lines.iter().filter(|line| line["path"] == "/healthz");
        own.map(|line| line["duration_ms"].as_f64().unwrap()).collect()
    };
    let durations = wait::until("a line of each request", || {
        Some(of_clients(lines())).filter(|durations| durations.len() == 80)
    });
    assert!(durations.iter().all(|duration| *duration >= 300.0), "{durations:?}");
}
