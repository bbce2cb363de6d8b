//! The framing of the gateway's own responses: to HEAD, to an upgrade, before a request body
//! and to HTTP/1.0 clients; and the state of the connection afterwards.

use std::process::Command;
use std::time::Duration;

use weir_tests::answer::Answer;
use weir_tests::real;
use weir_tests::request::{CONTROL, Request};
use weir_tests::wait;
use weir_tests::world::World;

use super::{House, PROTOCOLS, Protocol};

const TARGET: &str = "/v1/workspaces/ws_acme/users";

/// A world whose workspace has used its one request a minute.
#[track_caller]
fn used_up() -> House {
    let house = House::with(|config| config.with("[limits.workspace]", "requests = 1"));
    house.world.get(TARGET).expect(200);
    house
}

#[test]
fn a_refusal_of_head_has_the_length_of_one_of_get_and_no_body() {
    let house = used_up();
    for protocol in PROTOCOLS {
        let get = house.call(protocol, &[], TARGET);
        let head = house.call(protocol, &["-I"], TARGET).expect(429);
        assert_eq!(head.field("content-length"), get.field("content-length"), "{protocol:?}");
        assert_eq!(head.field("content-length"), Some(get.body.len().to_string().as_str()));
        assert_eq!(head.field("content-type"), Some("application/problem+json"));
        assert!(head.body.is_empty(), "{protocol:?}: {}", head.text());
        assert_eq!(head.allowance().remaining, 0);
        head.retry_after();
        get.expect_problem(429);
        // The connection stays open after the response to HEAD.
        let url = house.url(protocol, TARGET);
        let output = house.curl(
            protocol,
            &["-I", "-w", "%{num_connects} ", "-o", "none", &url, "-o", "none", &url],
        );
        assert_eq!(output.trim(), "1 0", "{protocol:?}");
    }
    // The next bytes on the connection are the next response: HEAD got no body.
    let mut client = house.world.client();
    for _ in 0..2 {
        client.call(&Request::new("HEAD", TARGET)).expect(429);
        client.get(TARGET).expect_problem(429);
    }
    assert_eq!(house.world.gateway.used("workspace", "ws_acme"), 1);
}

#[test]
fn an_answer_of_not_modified_shows_the_allowance_and_has_no_body() {
    let house = House::with(|config| config);
    house.world.control.answer(|request| match request.head.field("if-none-match") {
        Some("\"tag\"") => Answer::status(304).field("ETag", "\"tag\""),
        _ => Answer::ok("hello").field("ETag", "\"tag\""),
    });
    for protocol in PROTOCOLS {
        let answer = house.call(protocol, &["-H", "If-None-Match: \"tag\""], TARGET).expect(304);
        assert_eq!(answer.allowance().limit, 60, "{protocol:?}");
        assert!(answer.body.is_empty());
        assert_eq!(answer.field("content-length"), None, "{protocol:?}");
        assert_eq!(answer.field("transfer-encoding"), None, "{protocol:?}");
        let url = house.url(protocol, TARGET);
        let tag = "If-None-Match: \"tag\"";
        let output = house.curl(
            protocol,
            &[
                "-H",
                tag,
                "-w",
                "%{http_code} %{num_connects} ",
                "-o",
                "none",
                &url,
                "-o",
                "none",
                &url,
            ],
        );
        assert_eq!(output.trim(), "304 1 304 0", "{protocol:?}");
    }
}

#[test]
fn a_websocket_beyond_its_limit_gets_a_plain_refusal_and_keeps_its_connection() {
    let house = used_up();
    let upgrade = Request::get(TARGET)
        .field("Connection", "Upgrade")
        .field("Upgrade", "websocket")
        .field("Sec-WebSocket-Version", "13")
        .field("Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ==");
    let mut client = house.world.client();
    for _ in 0..3 {
        let answer = client.call(&upgrade);
        assert_eq!(answer.field("upgrade"), None);
        assert_eq!(answer.field("connection"), Some("keep-alive"));
        answer.expect_problem(429);
    }
    assert_eq!(house.world.control.requests().len(), 1, "a refused request was forwarded");
    client.get("/healthz").expect(200);
    let fields = ["-H", "Connection: Upgrade", "-H", "Upgrade: websocket"];
    house.call(Protocol::Http1OverTls, &fields, TARGET).expect_problem(429);
    assert_eq!(house.world.gateway.used("workspace", "ws_acme"), 1);
}

#[test]
fn a_websocket_is_counted_once() {
    let world = World::new();
    let upgraded = Answer::script()
        .send(
            "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n",
        )
        .close();
    world.control.always(upgraded);
    let upgrade = Request::get(TARGET)
        .field("Connection", "Upgrade")
        .field("Upgrade", "websocket")
        .field("Sec-WebSocket-Version", "13")
        .field("Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ==");
    let answer = world.call(&upgrade).expect(101);
    assert_eq!(answer.allowance().remaining, 59);
    assert_eq!(world.gateway.used("workspace", "ws_acme"), 1);
}

#[test]
fn a_refused_request_gets_no_100_continue() {
    let house = used_up();
    house.authority.write("large", &"x".repeat(300_000));
    for protocol in PROTOCOLS {
        let arguments = ["-H", "Expect: 100-continue", "--data-binary", "@large"];
        let answer = house.call(protocol, &arguments, TARGET);
        assert!(answer.interim.is_empty(), "{protocol:?}: {:?}", answer.interim);
        answer.expect_problem(429);
    }
    // A raw client that waits for 100 Continue gets the refusal with `Connection: close`.
    let mut client = house.world.client();
    client.send(format!(
        "POST {TARGET} HTTP/1.1\r\nHost: api.localhost\r\nContent-Length: 5\r\n\
         Expect: 100-continue\r\n\r\n"
    ));
    let answer = client.read();
    assert!(answer.interim.is_empty());
    assert_eq!(answer.field("connection"), Some("close"));
    answer.expect_problem(429);
    let answered = wait::now();
    client.expect_end();
    let waited = answered.elapsed();
    assert!(waited < Duration::from_secs(4), "we linger for 5 s, our side is closed at once");
}

#[test]
fn clients_of_http_1_0_are_refused_as_they_expect_it() {
    let house = used_up();
    let plain = format!("GET {TARGET} HTTP/1.0\r\nHost: api.localhost\r\n\r\n");
    let kept = plain.replace("\r\n\r\n", "\r\nConnection: keep-alive\r\n\r\n");
    let mut client = house.world.client();
    for _ in 0..2 {
        let answer = client.exchange(&kept);
        assert_eq!(answer.field("connection"), Some("keep-alive"));
        assert_eq!(answer.field("transfer-encoding"), None);
        answer.expect_problem(429);
    }
    let answer = client.exchange(&plain);
    assert_eq!(answer.field("connection"), Some("close"));
    answer.expect_problem(429);
    client.expect_end();
    let answer = house.call(Protocol::Http1OverTls, &["--http1.0"], TARGET);
    assert_eq!(answer.field("connection"), Some("close"));
    answer.expect_problem(429);
}

#[test]
fn a_refusal_is_read_while_the_request_body_is_still_arriving() {
    let house = used_up();
    house.authority.write("small", &"x".repeat(30_000));
    house.authority.write("large", &"x".repeat(3_000_000));
    for protocol in PROTOCOLS {
        for (body, connects) in [("@small", "1 0"), ("@large", "1 1")] {
            let arguments = ["-H", "Expect:", "--data-binary", body];
            house.call(protocol, &arguments, TARGET).expect_problem(429);
            let chunked = ["-H", "Transfer-Encoding: chunked"];
            if protocol != Protocol::Http2 {
                let arguments = [&arguments[..], &chunked].concat();
                house.call(protocol, &arguments, TARGET).expect_problem(429);
            }
            let url = house.url(protocol, TARGET);
            let twice = ["-w", "%{num_connects} ", "-o", "none", &url, "-o", "none", &url];
            let output = house.curl(protocol, &[&arguments[..], &twice].concat());
            // HTTP/2 ends only the stream; an HTTP/1.1 connection with an unread body must close.
            let expected = if protocol == Protocol::Http2 { "1 0" } else { connects };
            assert_eq!(output.trim(), expected, "{protocol:?} {body}");
        }
    }
    let url = format!("https://{}{TARGET}", house.https);
    let host = format!(":authority: {CONTROL}");
    let mut nghttp = Command::new("nghttp");
    nghttp.args(["-v", "-d", "large", "-H", &host, &url]).current_dir(house.authority.root());
    let output = real::run(&mut nghttp).expect(0).stdout;
    let at = |what: &str| output.find(what).unwrap_or_else(|| panic!("no {what} in {output}"));
    // RFC 9113, 8.1: the whole response, and then a reset with NO_ERROR, which tells the client to
    // stop sending.
    assert!(at(":status: 429") < at("urn:weir:problem:rate-limited"), "{output}");
    assert!(at("urn:weir:problem:rate-limited") < at("recv RST_STREAM"), "{output}");
    assert!(at("recv RST_STREAM") < at("error_code=NO_ERROR"), "{output}");
    assert_eq!(house.world.control.requests().len(), 1);
    assert_eq!(house.world.gateway.used("workspace", "ws_acme"), 1);
}

#[test]
fn an_early_response_is_read_before_the_request_body_is_sent() {
    let house =
        House::with(|config| config.with("[upstreams.dispatcher]", "servers = [\"127.0.0.1:9\"]"));
    house.authority.write("large", &"x".repeat(3_000_000));
    let early = Answer::status(413).field("Connection", "close").body("no").at_head().close();
    house.world.control.always(early);
    for protocol in PROTOCOLS {
        for (target, status) in [(TARGET, 413), ("/v1/workspaces/ws_acme/webhooks", 502)] {
            // Several times, to catch a response that is lost by chance.
            for _ in 0..5 {
                let arguments = ["-H", "Expect:", "--data-binary", "@large"];
                let answer = house.call(protocol, &arguments, target);
                assert_eq!(answer.status, status, "{protocol:?}: {}", answer.text());
            }
        }
    }
}
