//! Slow clients are closed at their deadlines and leak nothing; clients that send ahead take turns.

use std::io::Write;
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use weir_common::rlimit;
use weir_tests::authority::Authority;
use weir_tests::wait;
use weir_tests::world::World;

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

#[test]
fn requests_that_are_sent_ahead_take_turns_with_those_of_others() {
    const AHEAD: usize = 500;
    const CALLS: u64 = 50;
    let world = World::with(|config| config.with("[server]", "threads = 1"));
    let (stop, answered) = (AtomicBool::new(false), AtomicU64::new(0));
    let send_ahead = || {
        while !stop.load(Ordering::Relaxed) {
            let mut client = world.client();
            client.send("GET /nowhere HTTP/1.1\r\nHost: api.localhost\r\n\r\n".repeat(AHEAD));
            for _ in 0..AHEAD {
                client.read().expect(404);
                answered.fetch_add(1, Ordering::Relaxed);
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..10 {
            scope.spawn(send_ahead);
        }
        let mut client = world.client();
        wait::until("the others are served", || {
            (answered.load(Ordering::Relaxed) > 1_000).then_some(())
        });
        let before = answered.load(Ordering::Relaxed);
        for _ in 0..CALLS {
            client.get("/healthz").expect(200);
        }
        let meanwhile = (answered.load(Ordering::Relaxed) - before) / CALLS;
        stop.store(true, Ordering::Relaxed);
        assert!(meanwhile < 500, "{meanwhile} other requests during one");
    });
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
