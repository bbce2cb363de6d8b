//! HTTP/2 upstreams, frame by frame: refused streams, broken connections, and responses for
//! HTTP/1.1 clients.

use weir_tests::http2_server::{Begun, Http2Server, Step, head};
use weir_tests::request::Request;
use weir_tests::world::World;

const REFUSED_STREAM: u32 = 7;
const INTERNAL_ERROR: u32 = 2;

fn ok() -> Vec<Step> {
    vec![Step::Head(head(200, &[])), Step::LastBody(b"hello".to_vec())]
}

fn world_before(servers: &[&Http2Server]) -> World {
    let servers: Vec<String> = servers.iter().map(|s| format!("\"{}\"", s.address())).collect();
    let lines = format!("servers = [{}]\nhttp = \"2\"", servers.join(", "));
    let read = format!("{lines}\nread_timeout = \"2s\"");
    World::with(|config| config.with("[upstreams.control]", &read).with("[server]", "threads = 1"))
}

/// Checks, for each method, the response to one request and how many streams the server saw; the
/// server plays `first` on the first stream and serves the others.
fn check(first: fn() -> Vec<Step>, expected: &[(&str, u16, usize)]) {
    for (method, status, begun) in expected {
        let fails = std::sync::atomic::AtomicBool::new(true);
        let server = Http2Server::start(move |_| {
            let now = fails.swap(false, std::sync::atomic::Ordering::SeqCst);
            if now { first() } else { ok() }
        });
        let world = world_before(&[&server]);
        let request = Request::new(method, "/v1/workspaces/ws_acme").body("once");
        let answer = world.call(&request);
        assert_eq!(answer.status, *status, "{method} after {:?}", first());
        assert_eq!(server.seen().len(), *begun, "{method} after {:?}", first());
        assert_eq!(world.gateway.used("workspace", "ws_acme"), 1, "charged once");
    }
}

#[test]
fn a_stream_refused_unprocessed_is_retried_with_any_method() {
    check(|| vec![Step::Reset(REFUSED_STREAM)], &[("GET", 200, 2), ("POST", 200, 2)]);
}

#[test]
fn a_server_that_refuses_every_stream_gets_no_more_than_the_allowed_attempts() {
    let server = Http2Server::start(|_| vec![Step::Reset(REFUSED_STREAM)]);
    let world = world_before(&[&server]);
    world.call(&Request::post("/v1/workspaces/ws_acme", "x")).expect_problem(502);
    assert_eq!(server.seen().len(), 3);
    assert_eq!(world.gateway.used("workspace", "ws_acme"), 1);
}

#[test]
fn a_stream_after_the_goaways_last_is_retried_with_any_method() {
    let away = || vec![Step::GoAway { before: 1, code: 0 }, Step::Close];
    check(away, &[("GET", 200, 2), ("POST", 200, 2)]);
}

#[test]
fn a_stream_that_the_goaway_accepted_is_not_retried() {
    let reset = || vec![Step::Reset(INTERNAL_ERROR)];
    check(reset, &[("POST", 502, 1), ("GET", 502, 1)]);
    check(|| vec![Step::Close], &[("POST", 502, 1)]);
    let accepted = || vec![Step::GoAway { before: 0, code: 0 }, Step::Close];
    check(accepted, &[("POST", 502, 1)]);
}

#[test]
fn nonsense_is_a_502_and_a_request_that_was_sent_is_not_repeated() {
    // cloudflare/pingora#979: such an error is marked as retryable, although the request was sent.
    let no_frame = || vec![Step::Raw(b"HTTP/1.1 400 Bad Request\r\n\r\n".to_vec()), Step::Close];
    check(no_frame, &[("POST", 502, 1)]);
    let no_status = || vec![Step::LastHead(vec![("x-status", "200".to_owned())])];
    check(no_status, &[("POST", 502, 1)]);
}

#[test]
fn a_request_is_not_retried_once_its_response_has_begun_over_http2() {
    for end in [Step::Reset(REFUSED_STREAM), Step::GoAway { before: 1, code: 0 }, Step::Close] {
        let server = Http2Server::start(move |_| {
            let begun = [Step::Head(head(200, &[])), Step::Body(b"begun".to_vec())];
            begun.into_iter().chain([end.clone(), Step::Close]).collect()
        });
        let world = world_before(&[&server]);
        let mut client = world.client();
        client.send(Request::get("/healthz").head_bytes());
        // The response is truncated, or a 502 if nothing was forwarded yet.
        if let Ok(answer) = client.try_read() {
            answer.expect_problem(502);
        }
        assert_eq!(server.seen().len(), 1);
    }
}

#[test]
fn answers_reach_a_client_that_speaks_http1() {
    let server = Http2Server::start(|begun: Begun| match begun.nth {
        0 => vec![
            Step::Head(head(103, &[("link", "</a.css>")])),
            Step::Head(head(200, &[("content-length", "5"), ("server", "two")])),
            Step::LastBody(b"hello".to_vec()),
        ],
        1 => vec![Step::LastHead(head(304, &[("etag", "\"a\"")]))],
        2 => vec![Step::LastHead(head(204, &[]))],
        3 => vec![
            Step::Head(head(200, &[])),
            Step::Body(b"with ".to_vec()),
            Step::Body(b"trailers".to_vec()),
            Step::LastHead(vec![("x-last", "word".to_owned())]),
        ],
        4 => vec![Step::LastHead(head(200, &[("content-length", "700")]))],
        _ => ok(),
    });
    let world = world_before(&[&server]);
    let mut client = world.client();
    // Pingora does not get early hints over HTTP/2; the final response arrives.
    let whole = client.get("/healthz").expect(200);
    assert_eq!((&*whole.body, whole.field("server")), (b"hello".as_slice(), Some("two")));
    assert_eq!(client.get("/healthz").expect(304).field("etag"), Some("\"a\""));
    client.get("/healthz").expect(204);
    // Pingora does not write trailers to HTTP/1.1 clients; the body is complete.
    assert_eq!(client.get("/healthz").expect(200).body, b"with trailers");
    let head = client.call(&Request::new("HEAD", "/healthz")).expect(200);
    assert_eq!((&*head.body, head.field("content-length")), (b"".as_slice(), Some("700")));
    client.get("/healthz").expect(200);
    assert_eq!(server.seen().len(), 6);
    assert!(server.seen().iter().all(|begun| begun.connection == 0), "one connection");
}

#[test]
fn a_body_of_the_wrong_length_is_not_passed_as_complete() {
    for (output, sent) in [("10", 5), ("5", 10)] {
        let server = Http2Server::start(move |_| {
            vec![
                Step::Head(head(200, &[("content-length", output)])),
                Step::LastBody(vec![b'x'; sent]),
            ]
        });
        let world = world_before(&[&server]);
        let mut client = world.client();
        client.send(Request::get("/healthz").head_bytes());
        if let Ok(answer) = client.try_read() {
            answer.expect_problem(502);
        }
    }
}

#[test]
fn a_closed_pooled_connection_is_replaced() {
    let server = Http2Server::start(|_| ok().into_iter().chain([Step::Close]).collect());
    let world = world_before(&[&server]);
    for _ in 0..10 {
        world.get("/healthz").expect(200);
    }
}
