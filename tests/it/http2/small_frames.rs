//! Bodies in small frames: they are read, and cost bounded memory while they wait.

use weir_tests::answer::{Answer, Gate};
use weir_tests::directory::Directory;
use weir_tests::frames::{Frame, kind};
use weir_tests::http2::Http2;
use weir_tests::request::Request;

use super::Edge;

#[test]
fn a_body_in_small_pieces_that_come_at_once_is_read() {
    let edge = Edge::new();
    let mut client = edge.client();
    let id = client.head(&Request::new("POST", "/v1/me").field("content-length", "64000"), false);
    let pieces = (1..=3_200).map(|nth| Frame::data(id, [b'x'; 20], nth == 3_200).bytes());
    client.send(&pieces.collect::<Vec<_>>().concat());
    client.answer(id).expect(200);
    assert_eq!(edge.world.control.requests()[0].body.len(), 64_000);
}

#[test]
fn bodies_in_small_pieces_that_no_server_reads_cost_little_memory() {
    const CONNECTIONS: u64 = 20;
    let directory = Directory::start();
    let edge = Edge::with(|config| directory.within(config, "timeout = \"60s\""));
    let gate = Gate::new();
    directory.server.always(Answer::script().wait(&gate).and(Answer::ok("{}")));
    let request = Request::post("/v1/workspaces/ws_new/users", "").chunks(&["x"]);
    // A window of 64 KiB in the smallest frames, and one of 256 KiB, which is more than is open.
    for pieces in [4_096, 16_384] {
        let before = edge.world.gateway.resident_bytes();
        let send = |_| {
            let mut client = edge.client();
            let id = client.head(&request, false);
            let piece = Frame::data(id, [b'x'; 16], false).bytes();
            let ping = Frame::ping(*b"settled?").bytes();
            // It answers the ping after them, or closes the connection.
            drop(client.try_send(&[piece.repeat(pieces), ping].concat()));
            while client.read().is_some_and(|frame| frame.kind != kind::PING) {}
            client
        };
        let clients: Vec<Http2> = (0..CONNECTIONS).map(send).collect();
        let cost = edge.world.gateway.resident_bytes().saturating_sub(before) / CONNECTIONS;
        println!("{pieces} pieces of 16 bytes cost {cost} bytes");
        assert!(cost < 4 << 20, "{cost}");
        drop(clients);
    }
    gate.open();
    edge.wait_until_idle();
}
