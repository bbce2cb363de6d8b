//! Regressions: hostile requests and responses that an earlier version handled wrongly.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use weir_tests::answer::{Answer, Gate};
use weir_tests::request::Request;
use weir_tests::wait;

use super::World;

const UPGRADE: &str = "GET /v1/workspaces/ws_acme/sock HTTP/1.1\r\nHost: api.localhost\r\n\
    Connection: Upgrade\r\nUpgrade: websocket\r\n\r\n";

const SWITCHED: &str = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\n\
    Upgrade: websocket\r\n\r\nfirst";

#[test]
fn the_gateway_writes_nothing_into_a_silent_tunnel() {
    let world = World::with(|config| config.with("[server]", "body_timeout = \"300ms\""));
    let gate = Gate::new();
    world.control.always(Answer::script().send(SWITCHED).wait(&gate).send("second").close());
    let mut client = world.client();
    client.send(UPGRADE);
    client.read_until("first");
    wait::pass(Duration::from_millis(900));
    gate.open();
    assert_eq!(client.read_to_end(), b"second");
}

#[test]
fn an_unrequested_101_is_a_502() {
    let world = World::new();
    world.control.always(Answer::script().send(SWITCHED).close());
    world.get("/v1/me").expect_problem(502);
}

#[test]
fn a_request_that_is_sent_early_waits_for_the_answer_before_it() {
    let world = World::new();
    let gate = Gate::new();
    world.control.always(Answer::script().wait(&gate).and(Answer::ok("done")));
    let mut client = world.client();
    client.send(Request::get("/v1/me").head_bytes());
    world.control.wait_for_requests(1);
    client.send(Request::get("/v1/plans").head_bytes());
    gate.open();
    client.read().expect(200);
    client.read().expect(200);
    let targets: Vec<_> = world.control.requests().iter().map(|one| one.target()).collect();
    assert_eq!(targets, [b"/v1/me".to_vec(), b"/v1/plans".to_vec()]);
}

#[test]
fn a_client_of_http_1_0_is_sent_no_interim_answer() {
    let world = World::new();
    let mut client = world.client();
    let answer = client.exchange(
        "POST /v1/workspaces/ws_acme/tenants:batch HTTP/1.0\r\nHost: api.localhost\r\n\
         Expect: 100-continue\r\nContent-Length: 2\r\n\r\n[]",
    );
    answer.expect(200);
    client.expect_end();
}

#[test]
fn a_batch_in_another_charset_is_refused() {
    let world = World::new();
    let hidden = format!("[\"{}\"]", "+ACIALAAi-".repeat(150));
    let request = Request::post("/v1/workspaces/ws_acme/tenants:batch", hidden)
        .field("Content-Type", "application/json; charset=utf-7");
    world.call(&request).expect_problem(415);
    world.control.assert_untouched();
}

#[test]
fn a_header_name_in_another_spelling_does_not_pass() {
    let world = World::new();
    let request = Request::get("/v1/me")
        .field("X_Forwarded_For", "203.0.113.9")
        .field("Proxy", "http://203.0.113.9")
        .field("X_Custom", "kept");
    world.call(&request).expect(200);
    let head = world.control.only().head;
    assert_eq!((head.field("x_forwarded_for"), head.field("proxy")), (None, None));
    assert_eq!(head.field("x_custom"), Some("kept"));
}

/// Chunked bodies whose end two parsers could find at different places.
const BROKEN: &[&str] = &[
    // A size has at least one digit.
    "\r\nabcd\r\n0\r\n\r\n",
    "4\r\nabcd\r\n\r\n\r\n",
    ";a=b\r\nabcd\r\n0\r\n\r\n",
    // A size has nothing but digits.
    "+4\r\nabcd\r\n0\r\n\r\n",
    "-4\r\nabcd\r\n0\r\n\r\n",
    "0x4\r\nabcd\r\n0\r\n\r\n",
    " 4\r\nabcd\r\n0\r\n\r\n",
    "4 \r\nabcd\r\n0\r\n\r\n",
    "4_\r\nabcd\r\n0\r\n\r\n",
    "00000000000000004\r\nabcd\r\n0\r\n\r\n",
    "ffffffffffffffff\r\nabcd\r\n0\r\n\r\n",
    // Only CRLF ends a line.
    "4\nabcd\n0\n\n",
    "4\rabcd\r0\r\r",
    "4\r\r\nabcd\r\n0\r\n\r\n",
    "4\r\nabcd\n0\r\n\r\n",
    "4\r\nabcd\r\n0\r\n\n",
    // Nor does an extension end a line otherwise, or contain control characters or an open quote.
    "4;a\nabcd\r\n0\r\n\r\n",
    "4;a\rb\r\nabcd\r\n0\r\n\r\n",
    "4;a=\"b\r\nabcd\r\n0\r\n\r\n",
    "4;\0\r\nabcd\r\n0\r\n\r\n",
    // Chunk data has exactly the announced length.
    "4\r\nabcde\r\n0\r\n\r\n",
    "4\r\nabcd0\r\n\r\n",
    "4\r\nabcdGET / HTTP/1.1\r\n\r\n",
    // Only fields follow the last chunk, one a line.
    "4\r\nabcd\r\n0\r\nnonsense\r\n\r\n",
    "4\r\nabcd\r\n0\r\nX: a\nY: b\r\n\r\n",
    "4\r\nabcd\r\n0\r\n X: a\r\n\r\n",
    "4\r\nabcd\r\n0\r\nGET / HTTP/1.1\r\nHost: api.localhost\r\n\r\n",
];

const CHUNKED: &str = " HTTP/1.1\r\nHost: api.localhost\r\nTransfer-Encoding: chunked\r\n\r\n";

#[test]
fn a_malformed_chunked_body_is_a_400_and_no_server_sees_its_end() {
    let world = World::with(|config| config.with("[limits.address]", "requests = 1000"));
    for body in BROKEN {
        for apart in [false, true] {
            let before = world.control.requests().len();
            let mut client = world.client();
            let head = format!("POST /v1/me{CHUNKED}");
            if apart {
                client.send(head);
                world.control.wait_for_requests(before + 1);
                client.send(body);
            } else {
                client.send(head + body);
            }
            let answer = client.read();
            assert_eq!(answer.status, 400, "{body:?}, apart: {apart}");
            assert_eq!(answer.field("Connection"), Some("close"), "{body:?}");
            client.expect_end();
        }
    }
    let complete = world.control.requests().into_iter().filter(|one| one.complete);
    assert_eq!(complete.map(|one| one.body).collect::<Vec<_>>(), Vec::<Vec<u8>>::new());
    world.get("/v1/me").expect(200);
}

#[test]
fn a_batch_in_malformed_chunks_is_a_400_that_no_server_sees() {
    let world = World::with(|config| config.with("[limits.batch]", "requests = 1000"));
    for body in ["\r\n[]\r\n0\r\n\r\n", "2\r\n[]\r\n\r\n\r\n", "2;a\n\r\n[]\r\n0\r\n\r\n"] {
        let mut client = world.client();
        client.send(format!("POST /v1/workspaces/ws_acme/tenants:batch{CHUNKED}{body}"));
        let answer = client.read();
        assert_eq!(answer.status, 400, "{body:?}");
        client.expect_end();
    }
    world.control.assert_untouched();
}

#[test]
fn a_malformed_chunked_body_ends_its_connection() {
    let world = World::new();
    for body in ["\r\n\r\n", "2\r\n{}\r\n\r\n\r\n", "2\r\n{}\r\n0\r\nnonsense\r\n\r\n"] {
        let mut client = world.client();
        client.send(format!("POST /nowhere{CHUNKED}{body}"));
        assert_eq!(client.read().field("Connection"), Some("close"), "{body:?}");
        client.expect_end();
    }
}

#[test]
fn a_chunked_body_with_extensions_and_trailers_passes_without_them() {
    let world = World::new();
    let mut client = world.client();
    for body in [
        "4\r\nabcd\r\n0\r\n\r\n",
        "004;name\r\nabcd\r\n0;last=yes\r\n\r\n",
        "2 ; a = \"b;c\\\"\"\r\nab\r\n2;d\r\ncd\r\n000\r\n\r\n",
        "4\r\nabcd\r\n0\r\nX-Sum: 1\r\nX-Empty:\r\n\r\n",
    ] {
        client.send(format!("POST /v1/me{CHUNKED}"));
        body.bytes().for_each(|byte| client.send([byte]));
        client.read().expect(200);
        let request = world.control.last();
        assert!(request.complete);
        assert_eq!(request.body, b"abcd", "{body:?}");
    }
}

#[test]
fn requests_that_are_sent_at_once_are_answered_in_order_however_their_bytes_arrive() {
    let world = World::new();
    let body = "4\r\nabcd\r\n0\r\n\r\n";
    let requests = [
        "GET /v1/me HTTP/1.1\r\nHost: api.localhost\r\n\r\n".to_owned(),
        format!("POST /v1/me{CHUNKED}{body}"),
        "POST /nowhere HTTP/1.1\r\nHost: api.localhost\r\nContent-Length: 3\r\n\r\nabc".to_owned(),
        "GET /v1/plans HTTP/1.1\r\nHost: api.localhost\r\nConnection: close\r\n\r\n".to_owned(),
    ];
    let bytes = requests.concat();
    for size in [1, 7, bytes.len()] {
        let before = world.control.requests().len();
        let mut client = world.client();
        bytes.as_bytes().chunks(size).for_each(|piece| client.send(piece));
        let statuses: Vec<u16> = (0..requests.len()).map(|_| client.read().status).collect();
        assert_eq!(statuses, [200, 200, 404, 200], "in pieces of {size}");
        client.expect_end();
        let requests = world.control.requests().split_off(before);
        let bodies: Vec<&[u8]> = requests.iter().map(|one| &one.body[..]).collect();
        assert_eq!(bodies, [&b""[..], b"abcd", b""]);
    }
}

#[test]
fn what_a_client_sends_after_its_last_request_is_no_request() {
    let world = World::new();
    let mut client = world.client();
    client.send(
        "GET /v1/me HTTP/1.1\r\nHost: api.localhost\r\nConnection: close\r\n\r\n\
         GET /v1/plans HTTP/1.1\r\nHost: api.localhost\r\n\r\n",
    );
    client.read().expect(200);
    client.expect_end();
    assert_eq!(world.control.only().target(), b"/v1/me");
}

#[test]
fn an_interim_response_reaches_no_client_of_http_1_0() {
    let world = World::new();
    world.control.always(Answer::status(103).and(Answer::ok("final")));
    let mut client = world.client();
    client.send("GET /v1/me HTTP/1.0\r\nHost: api.localhost\r\n\r\n");
    let text = String::from_utf8(client.read_to_end()).unwrap();
    assert!(text.starts_with("HTTP/1.1 200 ") && text.ends_with("final"), "{text}");
}

#[test]
fn a_date_of_the_servers_stays_and_its_connection_field_does_not() {
    let world = World::new();
    let date = "Mon, 01 Jan 2001 00:00:00 GMT";
    world.control.always(Answer::ok("x").field("Date", date).field("Connection", "close"));
    let answer = world.client().get("/v1/me").expect(200);
    assert_eq!(answer.field("Date"), Some(date));
    assert_eq!(answer.field("Connection"), Some("keep-alive"));
}

#[test]
fn a_malformed_head_is_answered_before_its_connection_ends() {
    let world = World::new();
    for (bytes, reason) in [
        ("GET /a b HTTP/1.1\r\nHost: api.localhost\r\n\r\n".to_owned(), 400),
        ("\u{16}\u{3}\u{1}\r\n\r\n".to_owned(), 400),
        (format!("GET / HTTP/1.1\r\nX: {}", "y".repeat(70_000)), 431),
    ] {
        let mut client = world.client();
        // More than fits the buffers of the sockets follows, which a reset would throw away with
        // the response.
        client.send(bytes);
        let _ = client.try_send(vec![b'z'; 1 << 20]);
        assert_eq!(client.read().status, reason);
        client.expect_end();
    }
    world.control.assert_untouched();
}

#[test]
fn an_empty_chunked_body_is_sent_again_whole() {
    let world = World::new();
    let count = AtomicUsize::new(0);
    // The kept connection ends with the second request, which is then sent on another one.
    world.control.answer(move |_| match count.fetch_add(1, Ordering::Relaxed) {
        1 => Answer::script().close(),
        _ => Answer::ok("done"),
    });
    let mut client = world.client();
    let request = format!("PUT /v1/me{CHUNKED}0\r\n\r\n");
    client.exchange(&request).expect(200);
    client.exchange(&request).expect(200);
    let requests = world.control.requests();
    assert_eq!(requests.len(), 3, "{requests:#?}");
    assert!(requests.iter().all(|one| one.body.is_empty() && one.complete), "{requests:#?}");
}

#[test]
fn a_switch_of_protocols_ends_http_whatever_the_method() {
    let world = World::new();
    world.control.always(Answer::script().send(SWITCHED).close());
    let mut client = world.client();
    client.send(UPGRADE.replace("GET", "HEAD"));
    client.send("GET /v1/me HTTP/1.1\r\nHost: api.localhost\r\n\r\n");
    let text = String::from_utf8(client.read_to_end()).unwrap();
    assert_eq!(text.matches("HTTP/1.1").count(), 1, "{text}");
}

#[test]
fn a_close_loses_nothing_of_the_response_whatever_its_client_still_sends() {
    let world = World::with(|config| config.with("[server]", "requests_per_connection_max = 1"));
    world.control.always(Answer::ok(vec![b'x'; 3_000_000]));
    let mut client = world.client();
    let request = "GET /v1/me HTTP/1.1\r\nHost: api.localhost\r\n\r\n";
    client.send(request.repeat(500));
    assert_eq!(client.read().body.len(), 3_000_000);
    client.expect_end();
}

#[test]
fn a_response_that_ends_with_its_connection_and_is_not_whole_ends_by_a_reset() {
    let world = World::new();
    let head = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nabc";
    world.control.always(Answer::script().send(head).close());
    let mut client = world.client();
    client.send("GET /v1/me HTTP/1.0\r\nHost: api.localhost\r\n\r\n");
    assert!(client.try_read().is_err(), "it looks whole");
}

#[test]
fn an_empty_line_between_requests_leaves_the_connection_idle() {
    let world = World::with(|config| config.with("[server]", "head_timeout = \"200ms\""));
    let mut client = world.client();
    client.get("/v1/me").expect(200);
    client.send("\r\n");
    wait::pass(Duration::from_millis(600));
    client.get("/v1/me").expect(200);
}
