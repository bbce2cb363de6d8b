//! Bodies stream through: the gateway delays no part and buffers little.

use std::fs;

use weir_tests::answer::{Answer, Gate};
use weir_tests::request::{Request, chunk};
use weir_tests::world::World;

const MEBIBYTE: u64 = 1024 * 1024;

#[test]
fn the_first_part_of_a_response_arrives_before_the_next_is_sent() {
    let world = World::new();
    let gate = Gate::new();
    let chunked = Answer::script()
        .send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        .send(chunk("first"))
        .wait(&gate)
        .send(chunk("second"))
        .send(chunk(""));
    world.control.always(chunked);
    let mut client = world.client();
    client.send(Request::get("/v1/me").head_bytes());
    client.read_until("first");
    gate.open();
    client.read_until("second\r\n0\r\n\r\n");

    let gate = Gate::new();
    let fixed = Answer::script().send("HTTP/1.1 200 OK\r\nContent-Length: 11\r\n\r\nfirst");
    world.control.always(fixed.wait(&gate).send("second"));
    client.send(Request::get("/v1/me").head_bytes());
    client.read_until("first");
    gate.open();
    client.read_until("second");
}

#[test]
fn the_head_of_an_answer_arrives_before_any_of_its_body() {
    let world = World::new();
    let gate = Gate::new();
    let head = Answer::script().send("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n");
    world.control.always(head.wait(&gate).send("ok"));
    let mut client = world.client();
    client.send(Request::get("/v1/me").head_bytes());
    client.read_head_only().expect(200);
    gate.open();
    client.read_until("ok");
}

#[test]
fn the_first_part_of_a_request_arrives_before_the_next_is_sent() {
    let world = World::new();
    let mut client = world.client();
    client.send(Request::post("/v1/me", "").chunks(&["x"]).head_bytes());
    client.send(chunk("first"));
    let so_far = world.control.wait("the first chunk", |seen| {
        seen.requests.first().filter(|request| request.body == b"first").cloned()
    });
    assert!(!so_far.complete);
    client.send(chunk("second"));
    client.send(chunk(""));
    client.read().expect(200);
    assert_eq!(world.control.only().body, b"firstsecond");

    client.send(Request::post("/v1/me", "firstsecond").head_bytes());
    client.send("first");
    world.control.wait("the first half", |seen| {
        seen.requests.get(1).filter(|request| request.body == b"first").cloned()
    });
    client.send("second");
    client.read().expect(200);
}

#[test]
fn both_directions_flow_at_once() {
    let world = World::new();
    let begun = Answer::script()
        .send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        .send(chunk("already"))
        .at_head();
    world.control.always(begun);
    let mut client = world.client();
    client.send(Request::post("/v1/me", "").chunks(&["x"]).head_bytes());
    client.read_until("already");
    client.send(chunk("still"));
    world.control.wait("what was sent after the answer began", |seen| {
        seen.requests.first().filter(|request| request.body == b"still").cloned()
    });
}

#[test]
fn an_answer_before_the_end_of_the_request_reaches_the_client() {
    let world = World::new();
    let early = Answer::status(403).field("Connection", "close").body("no").at_head();
    world.control.always(early.close());
    let mut client = world.client();
    client.send(Request::post("/v1/me", "").chunks(&["x"]).head_bytes());
    client.send(chunk("unwanted"));
    let answer = client.read().expect(403);
    assert_eq!(answer.body, b"no");
}

#[test]
fn large_bodies_pass_whole_without_piling_up() {
    let world = World::new();
    world.get("/healthz").expect(200);
    let before = peak_bytes(world.gateway.id());

    let down = 96 * MEBIBYTE;
    world.control.always(
        Answer::script()
            .send(format!("HTTP/1.1 200 OK\r\nContent-Length: {down}\r\n\r\n"))
            .flood(down),
    );
    let answer = world.get("/v1/me").expect(200);
    assert_eq!(answer.body.len() as u64, down);
    drop(answer);

    world.control.always(Answer::ok("hello"));
    let up = vec![b'~'; usize::try_from(48 * MEBIBYTE).unwrap()];
    world.call(&Request::post("/v1/me", up.clone())).expect(200);
    assert!(world.control.last().body == up);

    let grown = peak_bytes(world.gateway.id()).saturating_sub(before);
    assert!(grown < 24 * MEBIBYTE, "{grown} bytes more for bodies that only pass through");
}

/// The peak resident memory of a process.
fn peak_bytes(process: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    let kilobytes: u64 = line.trim().trim_end_matches(" kB").trim().parse().unwrap();
    kilobytes * 1024
}
