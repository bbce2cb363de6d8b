//! The bounds on what one connection can make the gateway do.

use std::time::Duration;

use weir_tests::answer::{Answer, Gate};
use weir_tests::frames::{Frame, PREFACE, block, kind};
use weir_tests::http2::{End, Http2};
use weir_tests::request::Request;
use weir_tests::wait;

use super::{Edge, outcome};

const GET: [(&str, &str); 4] = [
    (":method", "GET"),
    (":scheme", "https"),
    (":authority", "api.localhost"),
    (":path", "/healthz"),
];

#[test]
fn requests_that_are_reset_at_once_are_never_more_than_may_be_open() {
    let edge = Edge::with(|config| config.with("[server]", "streams_max = 10"));
    let gate = Gate::new();
    edge.world.control.always(Answer::script().wait(&gate).and(Answer::ok("late")));
    let mut client = edge.client();
    // CVE-2023-44487 (rapid reset): a reset stream no longer counts as open, but still costs the
    // gateway work.
    let attack: Vec<Frame> = (0..2_000)
        .flat_map(|_| {
            let id = client.id();
            [Frame::headers(id, &GET, true), Frame::reset(id, 8)]
        })
        .collect();
    client.frames(&attack);
    check_cut_off(&mut client);
    gate.open();
    let seen = edge.world.control.requests().len();
    assert!(seen < 100, "{seen} of 2000 went upstream");
    edge.wait_until_idle();
    edge.client().get("/healthz").expect(200);
}

#[test]
fn requests_that_are_reset_after_they_were_sent_on_are_bounded_by_the_connections_life() {
    let edge = Edge::with(|config| {
        config.with("[server]", "requests_per_connection_max = 50\nstreams_max = 10")
    });
    // A request in flight keeps the connection from being closed as idle.
    let gate = Gate::new();
    edge.world.dispatcher.always(Answer::script().wait(&gate).and(Answer::ok("late")));
    let mut client = edge.client();
    client.head(&Request::get("/assets/held"), true);
    edge.world.dispatcher.wait_for_requests(1);
    client.polite = false;
    for _ in 0..200 {
        let id = client.head(&Request::post("/healthz", "x"), false);
        client.frames(&[Frame::reset(id, 8)]);
        let id = client.id();
        client.frames(&[Frame::headers(id, &GET, true), Frame::reset(id, 8)]);
        if !client.try_settle() {
            break;
        }
    }
    assert_eq!(client.await_close(), Some("ENHANCE_YOUR_CALM"), "it stayed open after GOAWAY");
    gate.open();
    edge.wait_until_idle();
}

#[test]
fn a_client_that_provokes_resets_is_disconnected() {
    let edge = Edge::new();
    let mut client = edge.client();
    // CVE-2025-8671 (MadeYouReset): each makes the server reset a stream in progress.
    for _ in 0..20 {
        let attack: Vec<Frame> = (0..80)
            .flat_map(|_| {
                let id = client.id();
                [Frame::headers(id, &GET, true), Frame::window(id, 0x7fff_ffff)]
            })
            .collect();
        client.frames(&attack);
    }
    check_cut_off(&mut client);
    edge.wait_until_idle();
    edge.client().get("/healthz").expect(200);
}

#[test]
fn malformed_requests_are_counted_and_end_the_connection() {
    let edge = Edge::new();
    let mut client = edge.client();
    let no_host = [GET[0], GET[1], GET[3]];
    for _ in 0..100 {
        client.open(&no_host, true);
    }
    check_cut_off(&mut client);
    assert_eq!(edge.metric("weir_gateway_refusals_total{reason=\"malformed-request\"}"), 32.0);
}

#[test]
fn floods_of_frames_that_cost_nothing_to_send_end_the_connection_or_are_nothing() {
    let edge = Edge::new();
    // CONTINUATION frames without END_HEADERS.
    let mut client = edge.client();
    let id = client.id();
    client.frames(&[Frame::new(kind::HEADERS, 1, id, block(&GET))]);
    for _ in 0..1_000 {
        client.frames(&[Frame::new(kind::CONTINUATION, 0, id, block(&[("x", "y")]))]);
    }
    check_cut_off(&mut client);
    // The same with empty frames.
    let mut client = edge.client();
    client.frames(&[Frame::new(kind::HEADERS, 1, 1, block(&GET))]);
    client.frames(&vec![Frame::new(kind::CONTINUATION, 0, 1, []); 10_000]);
    check_cut_off(&mut client);
    // Empty DATA frames, and frames of one byte that no upstream reads.
    for piece in ["", "x"] {
        let gate = Gate::new();
        edge.world.control.always(Answer::script().at_head().wait(&gate).and(Answer::ok("x")));
        let mut client = edge.client();
        let id = client.head(&Request::post("/v1/me", "").chunks(&["x"]), false);
        for _ in 0..20 {
            client.frames(&vec![Frame::data(id, piece, false); 1_000]);
        }
        gate.open();
        // Either the connection is closed, or the request has been served.
        let end = outcome(client.end(id));
        assert!(["goaway ENHANCE_YOUR_CALM", "gone", "200"].contains(&end.as_str()), "{end}");
    }
    edge.wait_until_idle();
}

/// Checks that the connection ends. The GOAWAY may be lost: bytes that the client still sends make
/// the closed socket answer with RST.
#[track_caller]
fn check_cut_off(client: &mut Http2) {
    let reason = client.await_close();
    assert!([None, Some("ENHANCE_YOUR_CALM")].contains(&reason), "{reason:?}");
}

#[test]
fn pings_and_settings_are_answered_one_by_one_and_kept_nowhere() {
    let edge = Edge::with(|config| config.with("[server]", "body_timeout = \"500ms\""));
    edge.client().get("/healthz").expect(200);
    let before = edge.world.gateway.resident_bytes();
    // The client does not read the replies: the gateway must not buffer them without limit.
    let mut client = edge.client();
    let flood =
        [Frame::ping([7; 8]), Frame::settings(&[(3, 1)])].map(|frame| frame.bytes()).concat();
    let flood = flood.repeat(10_000);
    let cut_off = wait::within(wait::PATIENCE, || client.try_send(&flood).is_err().then_some(()));
    assert!(cut_off.is_some(), "the gateway reads without limit");
    let grown = edge.world.gateway.resident_bytes().saturating_sub(before);
    assert!(grown < 8 << 20, "{grown} bytes more");
}

#[test]
fn a_head_that_decompresses_beyond_its_limit_is_refused() {
    let edge = Edge::new();
    let mut client = edge.client();
    let before = edge.world.gateway.resident_bytes();
    // One long field in the dynamic table, and then one-byte references to it (CVE-2016-6581).
    let long = vec![b'v'; 3_900];
    let mut bomb = block(&GET);
    bomb.push(0x40);
    bomb.extend(&block(&[(b"x".as_slice(), long.as_slice())])[1..]);
    bomb.extend([0xbe; 10_000]);
    for _ in 0..50 {
        let id = client.id();
        client.frames(&[Frame::new(kind::HEADERS, 5, id, bomb.clone())]);
        let end = outcome(client.end(id));
        assert!(
            ["431", "goaway ENHANCE_YOUR_CALM", "goaway PROTOCOL_ERROR"].contains(&&*end),
            "{end}"
        );
        if client.goaway.is_some() {
            client = edge.client();
        }
    }
    let grown = edge.world.gateway.resident_bytes().saturating_sub(before);
    assert!(grown < 16 << 20, "{grown} bytes more");
    edge.world.control.assert_untouched();
}

#[test]
fn a_connection_ends_after_its_requests_and_none_of_them_fails() {
    let edge = Edge::with(|config| config.with("[server]", "requests_per_connection_max = 20"));
    let mut client = edge.client();
    let ids: Vec<u32> = (0..60).map(|_| client.id()).collect();
    let heads: Vec<Frame> = ids.iter().map(|id| Frame::headers(*id, &GET, true)).collect();
    client.frames(&heads);
    let ends: Vec<String> = ids.iter().map(|id| outcome(client.end(*id))).collect();
    assert_eq!(ends, vec!["200"; 60], "the last of them were on their way by then");
    assert_eq!((client.await_close(), client.goaway), (Some("NO_ERROR"), Some((119, "NO_ERROR"))));
    assert_eq!(edge.world.control.requests().len(), 60);
    edge.client().get("/healthz").expect(200);
}

#[test]
fn an_invalid_preface_closes_the_connection() {
    let edge = Edge::new();
    let mut client = Http2::raw(&edge.address, &edge.authority);
    client.send(b"GET / HTTP/1.1\r\nHost: api.localhost\r\n\r\n");
    // RFC 9113, 3.4, allows a server to close here without GOAWAY.
    assert!([None, Some("PROTOCOL_ERROR")].contains(&client.await_close()));
    // The RFC also requires SETTINGS first; a client without them is served nevertheless.
    let mut client = Http2::raw(&edge.address, &edge.authority);
    client.send(PREFACE);
    client.frames(&[Frame::headers(1, &GET, true)]);
    client.answer(1).expect(200);
}

#[test]
fn a_client_that_sends_no_preface_is_closed() {
    let edge = Edge::with(|config| config.with("[server]", "head_timeout = \"300ms\""));
    let mut silent = Http2::raw(&edge.address, &edge.authority);
    silent.polite = false;
    assert_eq!(silent.await_close(), None);
    let mut slow = Http2::raw(&edge.address, &edge.authority);
    slow.polite = false;
    let bytes = PREFACE.iter().cycle();
    for byte in bytes.take(PREFACE.len() - 1) {
        wait::pass(Duration::from_millis(20));
        if slow.try_send(&[*byte]).is_err() {
            break;
        }
    }
    assert_eq!(slow.await_close(), None);
    edge.wait_until_empty();
}

#[test]
fn an_idle_connection_gets_a_goaway_and_is_closed() {
    let edge = Edge::with(|config| config.with("[server]", "idle_timeout = \"300ms\""));
    // A client that acknowledges, one that does not, and one that has sent half of a head.
    let mut polite = edge.client();
    polite.get("/healthz").expect(200);
    let mut silent = edge.client();
    silent.polite = false;
    let mut half = edge.client();
    half.polite = false;
    half.frames(&[Frame::new(kind::HEADERS, 1, 1, block(&GET))]);
    for client in [&mut polite, &mut silent, &mut half] {
        assert_eq!(client.await_close(), Some("NO_ERROR"));
    }
    let mut pinging = edge.client();
    let gone = wait::within(wait::PATIENCE, || {
        wait::pass(Duration::from_millis(50));
        pinging.try_send(&Frame::ping([1; 8]).bytes()).is_err().then_some(())
    });
    assert!(gone.is_some());
    edge.wait_until_empty();
}

#[test]
fn a_connection_with_a_request_in_flight_is_not_idle() {
    let edge = Edge::with(|config| config.with("[server]", "idle_timeout = \"200ms\""));
    let gate = Gate::new();
    edge.world.control.always(Answer::script().wait(&gate).and(Answer::ok("late")));
    let mut client = edge.client();
    let id = client.open(&GET, true);
    edge.world.control.wait_for_requests(1);
    wait::pass(Duration::from_millis(500));
    gate.open();
    assert_eq!(client.answer(id).expect(200).text(), "late");
}

#[test]
fn a_stream_that_is_not_read_is_reset_and_the_others_continue() {
    let edge = Edge::with(|config| config.with("[server]", "body_timeout = \"400ms\""));
    edge.world.control.always(Answer::ok(vec![b'x'; 400_000]));
    // The initial window is 0; then it is opened for one stream.
    let mut client = Http2::connect_with(&edge.address, &edge.authority, &[(4, 0)]);
    let [stalled, read] = [(); 2].map(|()| client.open(&GET, true));
    client.frames(&[Frame::window(read, 1 << 20), Frame::window(0, 1 << 20)]);
    assert_eq!(client.answer(read).expect(200).body.len(), 400_000);
    let End::Reset(_) = client.end(stalled) else { panic!("it is not reset") };
    assert_eq!(client.body_so_far(stalled), 0);
    edge.wait_until_idle();
    // A slow reader is not reset: each piece restarts the deadline.
    edge.world.control.always(Answer::ok(vec![b'x'; 60_000]));
    let slow = client.open(&GET, true);
    client.polite = false;
    for _ in 0..6 {
        wait::pass(Duration::from_millis(150));
        client.frames(&[Frame::window(slow, 10_000)]);
    }
    assert_eq!(client.answer(slow).expect(200).body.len(), 60_000);
}

#[test]
fn a_connection_that_is_not_read_is_closed() {
    let edge = Edge::with(|config| config.with("[server]", "body_timeout = \"500ms\""));
    let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", 64 << 20);
    edge.world.control.always(Answer::script().send(head).flood(64 << 20));
    let windows = [(4, 0x7fff_ffff)];
    let mut client = Http2::connect_with(&edge.address, &edge.authority, &windows);
    client.frames(&[Frame::window(0, 0x7fff_0000 - 65_535)]);
    for _ in 0..10 {
        client.open(&GET, true);
    }
    // All windows are open, but the client does not read its socket.
    edge.wait_until_empty();
}

/// Connections with 100 stalled streams each.
const STALLED: usize = 3;

/// Opens the connections with these settings, and sends a hundred requests for 1 MiB on each.
fn stalled(edge: &Edge, settings: &[(u16, u32)]) -> Vec<Http2> {
    let client = |_| {
        let mut client = Http2::connect_with(&edge.address, &edge.authority, settings);
        for _ in 0..100 {
            client.open(&GET, true);
        }
        client
    };
    (0..STALLED).map(client).collect()
}

/// Checks that other clients are served promptly meanwhile.
#[track_caller]
fn check_others(edge: &Edge) {
    for _ in 0..10 {
        let before = wait::now();
        assert_eq!(edge.client().get("/healthz").expect(200).body.len(), 1 << 20);
        edge.world.get("/healthz").expect(200);
        assert!(before.elapsed() < Duration::from_secs(5), "{:?}", before.elapsed());
    }
}

/// Measures a documented figure: the memory of responses that wait for their clients.
#[test]
fn hundreds_of_stalled_streams_use_bounded_memory_and_end_at_their_deadline() {
    const IN_FLIGHT: &str = "weir_gateway_requests_in_flight";
    const CONNECTIONS: &str = "weir_gateway_connections";
    const SERVED: &str = "weir_gateway_requests_total{code=\"200\",plane=\"control\"}";
    let edge = Edge::with(|config| config.with("[server]", "body_timeout = \"8s\""));
    edge.world.control.always(Answer::ok(vec![b'x'; 1 << 20]));
    edge.client().get("/healthz").expect(200);
    let before = edge.world.gateway.resident_bytes();
    let grown = || edge.world.gateway.resident_bytes().saturating_sub(before);
    // An initial window of 0: no body can be sent.
    let mut clients = stalled(&edge, &[(4, 0)]);
    let all = || (edge.metric(IN_FLIGHT) == 300.0).then_some(());
    wait::until("300 requests in flight", all);
    edge.world.control.wait_for_requests(301);
    check_others(&edge);
    let without_window = grown();
    // Each stream is reset at its deadline; its connection stays open.
    let over = || (edge.metric(IN_FLIGHT) == 0.0).then_some(());
    wait::within(wait::PATIENCE * 3, over).expect("the deadlines of 300 streams");
    wait::until("the others to close", || (edge.metric(CONNECTIONS) == 3.0).then_some(()));
    assert_eq!(edge.metric(SERVED), 321.0);
    for client in &mut clients {
        let resets = (0..100).filter(|nth| matches!(client.end(2 * nth + 1), End::Reset(_)));
        assert_eq!(resets.count(), 100);
        client.call(&Request::new("HEAD", "/healthz")).expect(200);
    }
    // Now with the largest windows and clients that do not read: the connections end.
    let mut unreading = stalled(&edge, &[(4, 0x7fff_ffff)]);
    for client in &mut unreading {
        client.frames(&[Frame::window(0, 0x7fff_0000 - 65_535)]);
    }
    edge.world.control.wait_for_requests(601);
    check_others(&edge);
    let unread = grown();
    println!("300 streams stalled: {without_window} bytes without a window, {unread} unread");
    // Pingora buffers up to nine pieces of 64 KiB for each client.
    assert!(without_window < 210 << 20, "{without_window}");
    assert!(unread < 240 << 20, "{unread}");
    drop(clients);
    // After one deadline, not after one for each of the four frames that are buffered in TLS.
    wait::until("connections that take nothing to end", || {
        (edge.metric(CONNECTIONS) == 0.0).then_some(())
    });
    edge.wait_until_idle();
    edge.client().get("/healthz").expect(200);
    drop(unreading);
}
