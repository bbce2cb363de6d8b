//! Slow uploads: a server's timeout starts at the end of the request.

use std::time::Duration;

use weir_tests::answer::{Answer, Gate};
use weir_tests::frames::Frame;
use weir_tests::http2_server::{Http2Server, Step, head};
use weir_tests::request::{Request, chunk};
use weir_tests::upstream::Upstream;
use weir_tests::wait;

use crate::http2::{Edge, outcome};

/// The server's response timeout in these tests.
const READ_TIMEOUT: Duration = Duration::from_millis(600);

/// A client's pause between pieces of a body: two pauses exceed the timeout.
const PIECE: Duration = Duration::from_millis(400);

/// A gateway before `server`, which speaks the HTTP of `lines`.
fn edge_before(server: &str, lines: &str, body_timeout: &str) -> Edge {
    let upstream = format!("servers = [\"{server}\"]\n{lines}\nread_timeout = \"600ms\"");
    let body_timeout = format!("body_timeout = \"{body_timeout}\"");
    Edge::with(|config| {
        config.with("[upstreams.control]", &upstream).with("[server]", &body_timeout)
    })
}

/// The response to an HTTP/1.1 client that sends a head, this number of pieces of a body, and
/// optionally its end.
fn by_http1(edge: &Edge, pieces: u32, ends: bool) -> u16 {
    let mut client = edge.world.gateway.client();
    client.send(Request::post("/v1/me", "").chunks(&["x"]).head_bytes());
    for _ in 0..pieces {
        client.send(chunk("piece"));
        wait::pass(PIECE);
    }
    if ends {
        client.send("0\r\n\r\n");
    }
    client.read().status
}

/// The same for an HTTP/2 client.
fn by_http2(edge: &Edge, pieces: u32, ends: bool) -> String {
    let mut client = edge.client();
    let id = client.head(&Request::new("POST", "/v1/me"), false);
    for _ in 0..pieces {
        client.frames(&[Frame::data(id, "piece", false)]);
        wait::pass(PIECE);
    }
    if ends {
        client.frames(&[Frame::data(id, [], true)]);
    }
    outcome(client.end(id))
}

/// Checks the status for clients of both HTTP versions, with upstreams of both.
#[track_caller]
fn check(answers: bool, body_timeout: &str, pieces: u32, ends: bool, expected: u16) {
    let http1 = Upstream::start();
    let never = Gate::new();
    if !answers {
        http1.always(Answer::script().wait(&never));
    }
    let http2 = Http2Server::start(move |_| match answers {
        true => vec![Step::AwaitEnd, Step::Head(head(200, &[])), Step::LastBody(b"x".to_vec())],
        false => Vec::new(),
    });
    // In parallel: they mostly wait.
    std::thread::scope(|scope| {
        for (address, lines) in
            [(http1.address(), "http = \"1.1\""), (http2.address(), "http = \"2\"")]
        {
            scope.spawn(move || {
                let edge = edge_before(&address, lines, body_timeout);
                let expected_of_2 = expected.to_string();
                std::thread::scope(|scope| {
                    scope.spawn(|| {
                        assert_eq!(by_http1(&edge, pieces, ends), expected, "HTTP/1.1 to {lines}");
                    });
                    scope.spawn(|| {
                        assert_eq!(
                            by_http2(&edge, pieces, ends),
                            expected_of_2,
                            "HTTP/2 to {lines}"
                        );
                    });
                });
            });
        }
    });
    never.open();
}

#[test]
fn a_steady_upload_may_take_longer_than_its_server_may_to_answer() {
    check(true, "30s", 4, true, 200);
}

#[test]
fn a_paused_request_body_is_a_408_and_no_failure_of_its_server() {
    check(true, "1500ms", 1, false, 408);
}

#[test]
fn a_server_is_timed_from_the_end_of_the_request() {
    let before = wait::now();
    check(false, "30s", 3, true, 504);
    assert!(before.elapsed() < Duration::from_secs(24), "body_timeout has no part in it");
}

#[test]
fn a_server_that_sends_no_100_continue_times_out() {
    let server = Upstream::start();
    let never = Gate::new();
    server.always(Answer::script().wait(&never).at_head());
    let edge = edge_before(&server.address(), "", "30s");
    let mut client = edge.world.gateway.client();
    let expecting = Request::post("/v1/me", "held back").field("Expect", "100-continue");
    client.send(expecting.head_bytes());
    client.read().expect_problem(504);
    never.open();
}

#[test]
fn a_stream_with_an_early_response_lives_as_long_as_its_client_sends() {
    let server = Http2Server::start(|_| {
        let first = [Step::Head(head(200, &[])), Step::Body(b"first, ".to_vec())];
        first.into_iter().chain([Step::AwaitEnd, Step::LastBody(b"last".to_vec())]).collect()
    });
    let edge = edge_before(&server.address(), "http = \"2\"", "30s");
    let mut client = edge.client();
    let id = client.head(&Request::new("POST", "/v1/me"), false);
    while client.body_so_far(id) == 0 {
        client.step();
    }
    for _ in 0..4 {
        wait::pass(PIECE);
        client.frames(&[Frame::data(id, "piece", false)]);
    }
    wait::pass(READ_TIMEOUT / 2);
    client.frames(&[Frame::data(id, [], true)]);
    assert_eq!(client.answer(id).text(), "first, last");
}
