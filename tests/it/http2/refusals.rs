//! The gateway's own responses: over HTTP/2 they equal those of HTTP/1.1, and the connection
//! stays open.

use std::collections::BTreeMap;

use serde_json::Value;
use weir_tests::answer::Answer;
use weir_tests::frames::Frame;
use weir_tests::request::Request;
use weir_tests::response::Response;

use super::Edge;

const PATH: &str = "/v1/workspaces/ws_acme";
const BATCH: &str = "/v1/workspaces/ws_acme/tenants:batch";

#[test]
fn every_refusal_is_the_same_as_over_http_1_1() {
    let items = |count: usize| format!("[{}]", vec!["1"; count].join(","));
    let long = "v".repeat(33_000);
    let in_no_host = Request::get("/login").host("elsewhere.example");
    let shared = Edge::new();
    for (request, status) in [
        (Request::get("/nowhere"), 404),
        (in_no_host, 404),
        (Request::new("DELETE", "/healthz"), 405),
        (Request::get("/v1//me"), 400),
        (Request::get(PATH).field("X-Long", &long), 431),
        (Request::new("get", PATH), 400),
        (Request::post(BATCH, items(101)), 422),
        (Request::post(BATCH, "{}"), 400),
        (Request::post(BATCH, items(1)).field("Content-Encoding", "gzip"), 415),
        (Request::post(BATCH, vec![b' '; 1_100_000]), 413),
        (Request::post(BATCH, "").chunks(&[vec![b' '; 1_100_000]]), 413),
        (Request::get("/v1/workspaces/ws_special/x"), 429),
        (Request::new("HEAD", "/v1/workspaces/ws_special/x"), 429),
        (Request::new("HEAD", "/nowhere"), 404),
        (Request::post("/v1/workspaces/ws_special/x", "ab"), 429),
    ] {
        let head = String::from_utf8_lossy(&request.head_bytes()).into_owned();
        let exhausted = head.contains("ws_special");
        let [old, new] = [false, true].map(|h2| {
            let own;
            // A response that shows a count needs a new gateway each time.
            let edge = if exhausted || head.contains(BATCH) {
                own = Edge::new();
                &own
            } else {
                &shared
            };
            // Uses up the allowance of this workspace in the directory.
            for _ in 0..if exhausted { 7 } else { 0 } {
                edge.world.get("/v1/workspaces/ws_special/x").expect(200);
            }
            if !h2 {
                return edge.world.call(&request);
            }
            let mut client = edge.client();
            let answer = client.call(&request);
            client.get(PATH).expect(200);
            answer
        });
        assert_eq!(new.status, status, "{request:?}: {}", new.head_text());
        assert_eq!(summary(&new), summary(&old), "{request:?}");
    }
}

#[test]
fn a_failing_upstream_gets_the_same_answer_as_over_http_1_1() {
    for (answer, status) in
        [(Answer::script().send("nonsense\r\n\r\n").close(), 502), (Answer::script().close(), 502)]
    {
        let edge = Edge::new();
        edge.world.control.always(answer);
        let old = edge.world.get(PATH);
        let mut client = edge.client();
        let new = client.get(PATH);
        assert_eq!((new.status, summary(&new)), (status, summary(&old)));
        assert_eq!(client.get("/nowhere").status, 404, "the connection stays");
    }
    let mut edge = Edge::new();
    edge.world.control.stop();
    let old = edge.world.get(PATH);
    let mut client = edge.client();
    let new = client.get(PATH);
    assert_eq!((new.status, summary(&new)), (502, summary(&old)));
}

/// A whole response, except for fields that differ in every response or belong to the connection.
fn summary(answer: &Response) -> (u16, BTreeMap<String, String>, Value) {
    let mut fields = BTreeMap::new();
    for (name, value) in &answer.head.fields {
        let name = name.to_ascii_lowercase();
        let value = match name.as_str() {
            "connection" | ":status" => continue,
            "date"
            | "x-request-id"
            | "x-ratelimit-reset"
            | "x-ratelimit-remaining"
            | "retry-after" => "some".to_owned(),
            _ => value.clone(),
        };
        assert_eq!(fields.insert(name, value), None, "twice in {}", answer.head_text());
    }
    let mut body = serde_json::from_slice(&answer.body).unwrap_or(Value::Null);
    if body["retry_after"].is_u64() {
        body["retry_after"] = 1.into();
        body["detail"] = Value::Null;
    }
    (answer.status, fields, body)
}

#[test]
fn an_early_429_reaches_a_client_that_is_still_sending() {
    let edge = Edge::with(|config| config.with("[limits.workspace]", "requests = 1"));
    let mut client = edge.client();
    client.get(PATH).expect(200);
    for round in 0..3 {
        // Three rounds exceed the number of closed streams that h2 remembers.
        let ids: Vec<_> =
            (0..90).map(|_| client.head(&Request::post(PATH, "").chunks(&["x"]), false)).collect();
        for id in &ids {
            client.data(*id, &[b'x'; 5_000], false);
        }
        client.data(ids[0], &[b'x'; 1_000_000], true);
        for id in &ids {
            client.answer(*id).expect_problem(429);
        }
        // A stream that its client never ends is open until the gateway resets it.
        for id in &ids {
            while client.reset_of(*id).is_none() {
                assert!(client.step(), "round {round}: {:?}", client.goaway);
            }
        }
        assert_eq!(client.goaway, None, "round {round}");
    }
    assert_eq!(client.get("/nowhere").status, 404);
    assert_eq!(edge.world.control.requests().len(), 1);
    let sent = client.request(&Request::post(PATH, vec![b'x'; 1_000_000]));
    client.answer(sent).expect_problem(429);
}

#[test]
fn a_batch_is_buffered_with_and_without_a_length() {
    let edge = Edge::new();
    let mut client = edge.client();
    let items = |count: usize| format!("[{}]", vec![r#"{"name":"a b"}"#; count].join(","));
    let mut forwarded = 0;
    for (count, status) in [(100, 200), (101, 422)] {
        for has_length in [true, false] {
            let body = items(count);
            let request = match has_length {
                true => Request::post(BATCH, body.clone()),
                false => Request::post(BATCH, "").chunks(&[&body]),
            };
            let id = client.head(&request, false);
            let (begin, end) = body.as_bytes().split_at(700);
            client.data(id, begin, false);
            client.settle();
            assert_eq!(edge.world.control.requests().len(), forwarded, "before the body's end");
            client.data(id, end, true);
            assert_eq!(client.answer(id).status, status, "{count} items");
            if status == 200 {
                forwarded += 1;
                let request = edge.world.control.last();
                assert_eq!(request.body, body.as_bytes());
                let length = body.len().to_string();
                assert_eq!(request.head.all("content-length"), [length.as_str()]);
                assert_eq!(request.head.field("transfer-encoding"), None);
            }
        }
    }
    assert_eq!(edge.world.control.requests().len(), 2);
    assert_eq!(edge.world.gateway.used("batch", "ws_acme"), 4, "a batch is charged when it begins");
}

#[test]
fn of_a_batch_whose_client_disconnects_the_upstream_sees_nothing_over_http2() {
    let edge = Edge::new();
    let mut client = edge.client();
    let id = client.head(&Request::post(BATCH, "[1,2]"), false);
    client.frames(&[Frame::data(id, "[1,", false), Frame::reset(id, 8)]);
    client.get("/v1/me").expect(200);
    let line = edge.world.gateway.access_log().wait("the batch", |line| line["path"] == BATCH);
    assert_eq!(line["status"], Value::Null, "{line}");
    assert_eq!(edge.world.control.only().target(), b"/v1/me");
}

#[test]
fn three_hundred_streams_at_once_on_a_limit_of_sixty_admit_exactly_sixty() {
    let edge = Edge::with(|config| config.with("[server]", "streams_max = 300"));
    let mut client = edge.client();
    assert_eq!(client.settings.get(&3), Some(&300));
    let fields = [
        (":method", "GET"),
        (":scheme", "https"),
        (":authority", "api.localhost"),
        (":path", PATH),
    ];
    let ids: Vec<u32> = (0..300).map(|_| client.id()).collect();
    let heads: Vec<Frame> = ids.iter().map(|id| Frame::headers(*id, &fields, true)).collect();
    client.frames(&heads);
    let mut left: Vec<u64> = Vec::new();
    let mut refused = 0;
    for id in ids {
        match client.answer(id) {
            answer if answer.status == 200 => left.push(answer.allowance().remaining),
            answer => {
                answer.expect_problem(429);
                refused += 1;
            }
        }
    }
    left.sort_unstable();
    assert_eq!((left, refused), ((0..60).collect(), 240));
    assert_eq!(edge.world.control.requests().len(), 60);
}

#[test]
fn a_body_that_does_not_arrive_is_refused_and_the_connection_stays() {
    let edge = Edge::with(|config| config.with("[server]", "body_timeout = \"300ms\""));
    let mut client = edge.client();
    for (path, sent) in [(PATH, ""), (PATH, "abc"), (BATCH, ""), (BATCH, "[1,")] {
        let id = client.head(&Request::post(path, "[1,2,3]"), false);
        if !sent.is_empty() {
            client.frames(&[Frame::data(id, sent, false)]);
        }
        let answer = client.answer(id);
        assert_eq!(answer.expect_problem(408)["type"], "urn:weir:problem:body-timeout", "{path}");
    }
    let id = client.head(&Request::post(PATH, "").chunks(&["x"]), false);
    for _ in 0..5 {
        // Slow, but never silent for as long as the timeout.
        weir_tests::wait::pass(std::time::Duration::from_millis(120));
        client.frames(&[Frame::data(id, "x", false)]);
    }
    client.frames(&[Frame::data(id, "", true)]);
    client.answer(id).expect(200);
}
