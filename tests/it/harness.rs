//! The harness itself: what it claims to send and to have seen is what crossed the wire.

use weir_tests::answer::{Answer, Gate};
use weir_tests::client::Client;
use weir_tests::config::Config;
use weir_tests::request::Request;
use weir_tests::upstream::Upstream;

#[test]
fn an_upstream_keeps_every_byte_and_the_connection() {
    let upstream = Upstream::start();
    let mut client = Client::connect(&upstream.address());
    assert_eq!(client.exchange("GET /%2F  HTTP/1.1\r\nhOST:  x \r\n\r\n").body, b"hello");
    let chunked = Request::post("/b", "").chunks(&["ab", "cde"]);
    assert_eq!(client.call(&chunked).status, 200);

    let seen = upstream.seen();
    assert_eq!(seen.connections.len(), 1);
    assert!(seen.connections[0].starts_with(b"GET /%2F  HTTP/1.1\r\nhOST:  x \r\n\r\nPOST"));
    assert_eq!(seen.requests[0].target(), b"/%2F ");
    assert_eq!(seen.requests[1].body, b"abcde");
    assert!(seen.requests[1].complete);
}

#[test]
fn an_upstream_waits_at_a_gate_and_shows_what_came_so_far() {
    let upstream = Upstream::start();
    let gate = Gate::new();
    let begun = Answer::script().send("HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nab");
    upstream.always(begun.wait(&gate).send("cd"));
    let mut client = Client::connect(&upstream.address());
    client.send("POST / HTTP/1.1\r\nContent-Length: 2\r\n\r\nx");
    let so_far = upstream.wait("a byte of the body", |seen| {
        seen.requests.first().filter(|request| !request.body.is_empty()).cloned()
    });
    assert_eq!((so_far.body.as_slice(), so_far.complete), (b"x".as_slice(), false));
    client.send("y");
    assert!(client.read_until("ab").starts_with(b"HTTP/1.1 200"));
    gate.open();
    client.read_until("cd");
}

#[test]
fn an_upstream_hangs_up_resets_stops_and_comes_back_on_its_port() {
    let mut upstream = Upstream::start();
    let address = upstream.address();
    upstream.always(Answer::script().close());
    let mut client = Client::connect(&address);
    client.send("GET / HTTP/1.1\r\n\r\n");
    client.expect_end();

    upstream.always(Answer::script().reset());
    let mut client = Client::connect(&address);
    client.send("GET / HTTP/1.1\r\n\r\n");
    assert_eq!(client.try_read().unwrap_err().kind(), std::io::ErrorKind::ConnectionReset);

    upstream.stop();
    assert!(Client::try_connect(&address).is_err());
    upstream.start_again();
    upstream.always(Answer::status(204));
    assert_eq!(Client::connect(&address).get("/").status, 204);
}

#[test]
fn a_client_reads_one_answer_at_a_time_however_it_is_framed() {
    let upstream = Upstream::start();
    upstream.answer(|request| match request.target().as_slice() {
        b"/interim" => Answer::status(103).field("Link", "</a>").and(Answer::ok("late")),
        b"/chunked" => Answer::script()
            .send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n"),
        b"/close" => Answer::script().send("HTTP/1.1 200 OK\r\n\r\nto the end").close(),
        _ => Answer::status(404),
    });
    let mut client = Client::connect(&upstream.address());
    let interim = client.get("/interim");
    assert_eq!((interim.interim.len(), interim.body.as_slice()), (1, b"late".as_slice()));
    assert_eq!(client.call(&Request::new("HEAD", "/x")).status, 404);
    assert_eq!(client.get("/chunked").body, b"abc");
    assert_eq!(client.get("/close").body, b"to the end");
    client.expect_end();
}

#[test]
fn a_configuration_is_changed_line_by_line() {
    let config = Config::default()
        .with("[limits.workspace]", "requests = 3\nmode = \"observe\"")
        .with("[limits.extra]", "key = \"address\"")
        .without("[identity]");
    let text = config.to_string();
    let section = "[limits.workspace]\nkey = \"workspace\"\nalgorithm = \"rolling_window\"\n\
        requests = 3\nwindow = \"1m\"\nmode = \"observe\"\n[limits.organisation]";
    assert!(text.contains(section), "{text}");
    assert!(text.ends_with("[limits.extra]\nkey = \"address\"\n"), "{text}");
    assert!(!text.contains("[identity]"), "{text}");
}
