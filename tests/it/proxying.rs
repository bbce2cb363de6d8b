//! Requests and responses pass through the gateway whole, unchanged and without delay.

mod ejection;
mod failing;
mod fields;
mod health_checks;
mod http2;
mod http2_faults;
mod streaming;
pub(crate) mod tls;
mod uploading;

use weir_tests::answer::Answer;
use weir_tests::client::Client;
use weir_tests::request::{Request, chunk};
use weir_tests::upstream::Upstream;
use weir_tests::world::World;

#[test]
fn status_fields_and_body_arrive_as_the_upstream_sent_them() {
    let world = World::new();
    world.control.always(
        Answer::status(418)
            .field("Content-Type", "text/x-tea; charset=utf-8")
            .field("Set-Cookie", "a=1")
            .field("Set-Cookie", "b=2; Path=/")
            .field("ETag", "\"leaf\"")
            .field("Server", "teapot")
            .body([0, 255, 13, 10, 0]),
    );
    let answer = world.get("/v1/workspaces/ws_acme").expect(418);
    assert_eq!(answer.body, [0, 255, 13, 10, 0]);
    assert_eq!(answer.field("content-type"), Some("text/x-tea; charset=utf-8"));
    assert_eq!(answer.head.all("set-cookie"), ["a=1", "b=2; Path=/"]);
    assert_eq!(answer.field("etag"), Some("\"leaf\""));
    assert_eq!(answer.field("server"), Some("teapot"));
}

#[test]
fn a_request_arrives_as_the_client_sent_it() {
    let world = World::new();
    let request = Request::new("PROPFIND", "/v1/workspaces/ws_acme/a?b=%2F&c")
        .field("Authorization", "Bearer abc.def")
        .field("Cookie", "a=1; b=2")
        .field("X-Custom", "one")
        .field("X-Custom", "two")
        .field("Accept", "*/*")
        .body([0, 1, 2, 254, 255]);
    world.call(&request).expect(200);
    let received = world.control.only();
    assert_eq!(received.head.start, "PROPFIND /v1/workspaces/ws_acme/a?b=%2F&c HTTP/1.1");
    assert_eq!(received.body, [0, 1, 2, 254, 255]);
    let head = received.head;
    assert_eq!(head.all("host"), ["api.localhost"]);
    assert_eq!(head.all("authorization"), ["Bearer abc.def"]);
    assert_eq!(head.all("cookie"), ["a=1; b=2"]);
    assert_eq!(head.all("x-custom"), ["one", "two"]);
    assert_eq!(head.all("content-length"), ["5"]);
    assert_eq!(head.all("user-agent"), Vec::<&str>::new());
}

#[test]
fn each_route_forwards_to_its_upstream() {
    let world = World::new();
    for (upstream, name) in
        [(&world.control, "control"), (&world.data, "data"), (&world.dispatcher, "dispatcher")]
    {
        upstream.always(Answer::ok(name));
    }
    assert_eq!(world.get("/v1/workspaces/ws_acme").body, b"control");
    assert_eq!(world.get("/v1/workspaces/ws_acme/webhooks").body, b"dispatcher");
    assert_eq!(world.get_from("in_acme", "/login").body, b"data");
}

#[test]
fn one_connection_serves_many_requests_on_either_side() {
    let world = World::new();
    let mut client = world.client();
    for _ in 0..30 {
        client.get("/v1/workspaces/ws_acme").expect(200);
        client.call(&Request::post("/v1/workspaces/ws_quiet", "{}")).expect(200);
        client.call(&Request::post("/v1/me", "").chunks(&["a", "b"])).expect(200);
    }
    let seen = world.control.seen();
    assert_eq!(seen.requests.len(), 90);
    // At most one per worker thread; the tests run two.
    assert!(seen.connections.len() <= 2, "{} connections upstream", seen.connections.len());
}

#[test]
fn other_clients_reuse_the_connection_upstream() {
    let world = World::new();
    for _ in 0..20 {
        world.get("/v1/workspaces/ws_acme").expect(200);
    }
    let connections = world.control.seen().connections.len();
    assert!(connections <= 4, "{connections} connections upstream for 20 requests in a row");
}

#[test]
fn connection_close_and_http_1_0_end_the_connection() {
    let world = World::new();
    let mut client = world.client();
    let answer = client.call(&Request::get("/healthz").field("Connection", "close"));
    answer.expect(200);
    client.expect_end();

    let mut client = world.client();
    client.exchange("GET /healthz HTTP/1.0\r\nHost: api.localhost\r\n\r\n").expect(200);
    client.expect_end();
}

#[test]
fn requests_are_spread_over_all_servers() {
    let servers = [(); 3].map(|()| Upstream::start());
    let world = World::with(|config| config.with("[upstreams.control]", &listed(&servers)));
    for _ in 0..60 {
        world.get("/v1/me").expect(200);
    }
    for server in &servers {
        let share = server.requests().len();
        assert!((10..=30).contains(&share), "one of three servers got {share} of 60");
    }
}

#[test]
fn responses_without_a_body_end_with_their_head() {
    let world = World::new();
    let mut client = world.client();
    for status in [204, 304] {
        world.control.always(Answer::status(status).field("ETag", "\"x\""));
        let answer = client.get("/healthz").expect(status);
        assert_eq!((answer.field("etag"), answer.body.len()), (Some("\"x\""), 0));
    }
    world.control.always(Answer::ok("twelve bytes"));
    let head = client.call(&Request::new("HEAD", "/healthz")).expect(200);
    assert_eq!(head.field("content-length"), Some("12"));
    assert_eq!(client.get("/healthz").expect(200).body, b"twelve bytes");
}

#[test]
fn an_answer_that_ends_with_its_connection_arrives_whole() {
    let world = World::new();
    world.control.always(Answer::script().send("HTTP/1.1 200 OK\r\n\r\nto the end").close());
    let mut client = world.client();
    assert_eq!(client.get("/v1/me").expect(200).body, b"to the end");
    assert_eq!(world.get("/v1/me").expect(200).body, b"to the end");
}

#[test]
fn a_chunked_response_reaches_an_http_1_0_client_unchunked() {
    let world = World::new();
    world.control.answer(|request| {
        let head = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
        let answer = Answer::script().send(head);
        if request.method() == "HEAD" { answer } else { answer.send("3\r\nabc\r\n0\r\n\r\n") }
    });
    let mut client = world.client();
    let old = client.exchange("GET /healthz HTTP/1.0\r\nHost: api.localhost\r\n\r\n").expect(200);
    assert_eq!((old.field("transfer-encoding"), old.body.as_slice()), (None, b"abc".as_slice()));
    client.expect_end();

    let mut client = world.client();
    client.call(&Request::new("HEAD", "/healthz")).expect(200);
    assert_eq!(client.get("/healthz").expect(200).body, b"abc");
}

#[test]
fn what_follows_a_refused_upgrade_is_no_tunnel() {
    let world = World::new();
    let mut client = world.client();
    let upgrade = "GET /socket HTTP/1.1\r\nHost: in_acme.auth.localhost\r\nConnection: Upgrade\r\n\
        Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
        Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";
    let smuggled = "GET /smuggled HTTP/1.1\r\nHost: in_acme.auth.localhost\r\n\r\n";
    client.send([upgrade, smuggled].concat());
    client.read().expect(200);
    // The gateway may serve it as a second request; then it charges it as well.
    let served = client.try_read().is_ok();
    let heads = world.data.requests();
    assert_eq!(heads.len(), if served { 2 } else { 1 }, "{heads:#?}");
    assert!(heads[0].body.is_empty(), "{heads:#?}");
    let spent = world.gateway.used("instance", "in_acme");
    assert!(served || spent <= 1, "{spent} charged");
}

#[test]
fn an_interim_response_is_not_the_final_response() {
    let world = World::new();
    let hints = Answer::status(103).field("Link", "</style.css>; rel=preload");
    world.control.always(hints.and(Answer::ok("final")));
    let mut client = world.client();
    for _ in 0..3 {
        let answer = client.get("/healthz").expect(200);
        assert_eq!(answer.body, b"final");
        assert!(answer.interim.iter().all(|head| head.start.contains(" 103")));
    }
}

#[test]
fn an_upstream_can_send_100_continue() {
    let world = World::new();
    let mut client = world.client();
    client.send(
        "POST /v1/me HTTP/1.1\r\nHost: api.localhost\r\nExpect: 100-continue\r\n\
         Content-Length: 4\r\n\r\n",
    );
    assert!(client.read_interim().start.starts_with("HTTP/1.1 100"));
    client.send("body");
    client.read().expect(200);
    assert_eq!(world.control.only().body, b"body");
}

#[test]
fn a_404_without_a_route_keeps_the_connection() {
    let world = World::new();
    let mut client = world.client();
    for _ in 0..2 {
        client.get("/nowhere").expect_problem(404);
        client.get("/a//b").expect_problem(400);
        client.call(&Request::get("/").host("unknown.example")).expect_problem(404);
        client.call(&Request::post("/nowhere", "{}")).expect_problem(404);
        let wrong_method = client.call(&Request::post("/healthz", "{}"));
        let allowed = wrong_method.field("allow").unwrap_or_default().to_owned();
        assert!(allowed.contains("GET") && allowed.contains("HEAD"), "Allow: {allowed}");
        wrong_method.expect_problem(405);
        client.get("/healthz").expect(200);
    }
}

#[test]
fn an_empty_last_chunk_leaves_the_connection_upstream_in_order() {
    let world = World::new();
    let mut client = world.client();
    for _ in 0..5 {
        client.send(
            "POST /v1/me HTTP/1.1\r\nHost: api.localhost\r\nTransfer-Encoding: chunked\r\n\r\n",
        );
        client.send(chunk("abc"));
        world.get("/healthz").expect(200);
        client.send(chunk(""));
        client.read().expect(200);
        assert_eq!(client.get("/healthz").expect(200).body, b"hello");
    }
    for raw in world.control.seen().connections {
        let text = String::from_utf8_lossy(&raw).into_owned();
        assert!(!text.contains("0\r\n\r\n0\r\n\r\n"), "a chunked body ended twice: {text}");
    }
}

#[test]
fn after_an_upgrade_bytes_pass_both_ways() {
    let world = World::new();
    world.data.always(Answer::script().send(
        "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n",
    ));
    assert!(tunnel(&world), "see `an_immediate_101_opens_the_tunnel`");
}

/// Whether bytes pass through a WebSocket's tunnel to the upstream and back.
fn tunnel(world: &World) -> bool {
    let mut client: Client = world.client();
    client.send(
        "GET /socket HTTP/1.1\r\nHost: in_acme.auth.localhost\r\nConnection: Upgrade\r\n\
         Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
         Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n",
    );
    let Ok(answer) = client.try_read_head_only() else { return false };
    assert_eq!(answer.expect(101).field("upgrade"), Some("websocket"));
    // The next bytes are not HTTP, but the upstream answers anything that ends like a head.
    client.try_send("PING\r\n\r\n").is_ok() && client.try_read_head_only().is_ok()
}

/// The configuration line with these servers.
fn listed(servers: &[Upstream]) -> String {
    let quoted: Vec<String> =
        servers.iter().map(|server| format!("\"{}\"", server.address())).collect();
    format!("servers = [{}]", quoted.join(", "))
}
