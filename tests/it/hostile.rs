//! What a breaker once broke: each was seen to go wrong, and is held to go right.

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
fn nothing_of_ours_is_written_into_a_tunnel_however_long_it_is_silent() {
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
fn a_101_that_nobody_asked_for_is_a_bad_answer() {
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
fn a_batch_in_a_charset_that_hides_items_is_refused() {
    let world = World::new();
    let hidden = format!("[\"{}\"]", "+ACIALAAi-".repeat(150));
    let request = Request::post("/v1/workspaces/ws_acme/tenants:batch", hidden)
        .field("Content-Type", "application/json; charset=utf-7");
    world.call(&request).expect_problem(415);
    world.control.assert_untouched();
}

#[test]
fn a_name_in_disguise_does_not_pass() {
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
