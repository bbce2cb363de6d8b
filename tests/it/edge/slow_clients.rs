//! Thousands of slow clients: each is closed at its deadline and leaks nothing.

use std::io::Write;
use std::net::TcpStream;
use std::time::Duration;

use weir_common::rlimit;
use weir_tests::authority::Authority;
use weir_tests::wait;

use super::{NAMES, secured, world_of};

const MANY: usize = 1_000;
const LOTS: usize = 4;

#[test]
fn thousands_of_slow_clients_are_closed_at_their_deadlines_and_leak_nothing() {
    let authority = Authority::new();
    let world = world_of(&authority, &[("server", NAMES)], "", |config| {
        let lines = "head_timeout = \"2s\"\nhandshake_timeout = \"2s\"\n\
            connections_per_address_max = 100000";
        config.with("[server]", lines)
    });
    // The default limit may be a thousand descriptors; the process may raise it.
    let _ = rlimit::raise_descriptors(2 * MANY as u64);
    // An allocator keeps some freed memory, now more, now less; a leak shows in every later lot.
    let mut resident = Vec::new();
    for _ in 0..LOTS {
        drip(&[world.gateway.http().to_owned(), world.gateway.https()]);
        wait::until("all of them closed", || {
            (world.gateway.metric("weir_gateway_connections") == 0.0).then_some(())
        });
        secured(&world, &authority).get("/healthz").expect(200);
        resident.push(world.gateway.resident_bytes() >> 20);
    }
    let (earlier, later) = resident.split_at(LOTS / 2);
    let most = earlier.iter().max().unwrap() + 8;
    assert!(later.iter().min().unwrap() <= &most, "MiB after each lot: {resident:?}");
    let late = "weir_gateway_handshake_failures_total{reason=\"timeout\"}";
    assert_eq!(world.gateway.metric(late), (LOTS * MANY / 2) as f64);
    let late = "weir_gateway_refusals_total{reason=\"head-timeout\"}";
    assert_eq!(world.gateway.metric(late), (LOTS * MANY / 2) as f64);
}

/// Opens many connections to either address, and sends each a byte a second until all are closed.
#[track_caller]
fn drip(addresses: &[String; 2]) {
    let open = |nth: usize| {
        let mut socket = TcpStream::connect(&addresses[nth % 2]).unwrap();
        socket.set_nonblocking(true).unwrap();
        // The beginning of a request, or of a TLS record of 512 bytes.
        let beginning: &[u8] =
            if nth.is_multiple_of(2) { b"GET /" } else { &[22, 3, 1, 2, 0, 1, 0, 1, 252] };
        socket.write_all(beginning).unwrap();
        Some(socket)
    };
    let mut sockets: Vec<Option<TcpStream>> = (0..MANY).map(open).collect();
    wait::until("every connection to be closed", || {
        wait::pass(Duration::from_millis(500));
        for slot in &mut sockets {
            if slot.as_mut().is_some_and(|socket| socket.write_all(b"3").is_err()) {
                *slot = None;
            }
        }
        sockets.iter().all(Option::is_none).then_some(())
    });
}
