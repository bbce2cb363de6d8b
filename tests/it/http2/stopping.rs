//! A stop and a reload, as clients with streams in flight see them.

use weir_tests::answer::{Answer, Gate};
use weir_tests::request::Request;
use weir_tests::wait;

use super::{Edge, outcome};

const PATH: &str = "/v1/workspaces/ws_acme";

#[test]
fn a_stop_lets_streams_in_flight_finish_and_accepts_no_more() {
    let mut edge = Edge::new();
    let gate = Gate::new();
    edge.world.control.always(Answer::script().wait(&gate).and(Answer::ok("late")));
    let mut client = edge.client();
    let mut ids: Vec<u32> = (0..20).map(|_| client.head(&Request::get(PATH), true)).collect();
    // A request whose body is still arriving.
    let upload = client.head(&Request::post(PATH, "").chunks(&["x"]), false);
    edge.world.control.wait_for_requests(21);
    assert_eq!(edge.metric("weir_gateway_requests_in_flight"), 21.0);
    edge.world.gateway.signal("TERM");
    edge.world.gateway.log().wait("that it stops", |line| line["message"] == "stopping");
    while client.goaway.is_none() {
        assert!(client.step());
    }
    assert_eq!(client.goaway.unwrap().1, "NO_ERROR");
    client.data(upload, b"abc", true);
    ids.push(upload);
    gate.open();
    for id in ids {
        assert_eq!(client.answer(id).expect(200).text(), "late");
    }
    assert_eq!(client.await_close(), Some("NO_ERROR"));
    assert_eq!(edge.world.gateway.wait_for_exit(), Some(0));
    let stopped = edge.world.gateway.log().wait("that it stopped", |l| l["message"] == "stopped");
    assert_eq!(stopped["drained"], true, "{stopped}");
    // Every request has its log line: no request's task was aborted before it could log.
    let lines = edge.world.gateway.access_log().to_end();
    let is_whole = |line: &&str| line.contains(PATH) && line.contains("\"status\":200");
    assert_eq!(lines.lines().filter(is_whole).count(), 21, "{lines}");
}

#[test]
fn a_stop_does_not_wait_for_connections_without_a_request() {
    let mut edge = Edge::new();
    let mut polite = edge.client();
    polite.get(PATH).expect(200);
    // A client that never acknowledges the PING of a graceful shutdown, and so never ends its
    // connection.
    let mut silent = edge.client();
    silent.polite = false;
    silent.get(PATH).expect(200);
    let began = wait::now();
    edge.world.gateway.signal("TERM");
    assert_eq!(polite.await_close(), Some("NO_ERROR"));
    assert_eq!(silent.await_close(), Some("NO_ERROR"));
    assert_eq!(edge.world.gateway.wait_for_exit(), Some(0));
    assert!(began.elapsed().as_secs() < 10, "{:?}", began.elapsed());
}

#[test]
fn a_reload_drops_no_stream_and_the_next_one_follows_the_new_rules() {
    let edge = Edge::new();
    let gate = Gate::new();
    edge.world.control.always(Answer::script().wait(&gate).and(Answer::ok("late")));
    let mut client = edge.client();
    let id = client.head(&Request::get(PATH), true);
    edge.world.control.wait_for_requests(1);
    let config = edge.world.config().with("[limits.workspace]", "requests = 1");
    edge.world.gateway.write_config(&config.to_string());
    edge.world.gateway.reload().expect(200);
    gate.open();
    let answer = client.answer(id).expect(200);
    assert_eq!((answer.text().as_str(), answer.allowance().limit), ("late", 60));
    client.get(PATH).expect_problem(429);
    assert_eq!(client.goaway, None);
}

#[test]
fn a_stream_that_its_client_resets_ends_at_once() {
    let edge = Edge::new();
    let gate = Gate::new();
    edge.world.control.always(Answer::script().wait(&gate).and(Answer::ok("late")));
    let mut client = edge.client();
    let [kept, left] = [(); 2].map(|()| client.head(&Request::get(PATH), true));
    edge.world.control.wait_for_requests(2);
    assert_eq!(edge.metric("weir_gateway_requests_in_flight"), 2.0);
    client.frames(&[weir_tests::frames::Frame::reset(left, 8)]);
    wait::until("one request in flight", || {
        (edge.metric("weir_gateway_requests_in_flight") == 1.0).then_some(())
    });
    gate.open();
    assert_eq!(outcome(client.end(kept)), "200");
    let lines = edge.world.gateway.access_log();
    let line = lines.wait("the reset stream", |line| line["status"].is_null());
    assert_eq!(
        (&line["path"], &line["refusal"]),
        (&PATH.into(), &serde_json::Value::Null),
        "{line}"
    );
    drop(client);
    edge.wait_until_empty();
}
