//! WebSockets at the end of a process: each side gets a close frame, between two frames. And
//! through reloads, which they outlast.

use weir_tests::answer::{Answer, Gate};
use weir_tests::client::Client;
use weir_tests::config::DIRECTORY;
use weir_tests::upstream::Upstream;
use weir_tests::wait;
use weir_tests::world::World;

const UPGRADE: &str = "GET /socket HTTP/1.1\r\nHost: in_acme.auth.localhost\r\n\
    Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
    Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";

const SWITCH: &str =
    "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n";

/// A text frame of five bytes from a server, and from a client whose mask is 0.
const OF_SERVER: &[u8] = b"\x81\x05hello";
const OF_CLIENT: &[u8] = b"\x81\x85\0\0\0\0HELLO";

/// Close frames with 1001, going away, to the client and to the server.
const LEAVES_CLIENT: &[u8] = b"\x88\x02\x03\xe9";
const LEAVES_SERVER: &[u8] = b"\x88\x82\0\0\0\0\x03\xe9";

fn world() -> World {
    World::with(|config| config.with("[server]", "shutdown_grace = \"300ms\""))
}

#[track_caller]
fn open(world: &World) -> Client {
    let mut client = world.client();
    client.send(UPGRADE);
    client.read_head_only().expect(101);
    client
}

/// Waits until tunnels get their close frames.
fn wait_until_draining(world: &World) {
    world.gateway.log().wait("the close frames", |line| line["message"] == "closing tunnels");
}

/// Runs `check` for all cases in parallel: a stop takes seconds.
#[track_caller]
fn at_once<T: Sync>(cases: &[T], check: impl Fn(&T) + Sync) {
    std::thread::scope(|scope| {
        for case in cases {
            let check = &check;
            scope.spawn(move || check(case));
        }
    });
}

/// The bytes that the server has read after the request's head.
fn passed(server: &Upstream) -> Vec<u8> {
    let seen = server.seen().connections.remove(0);
    let end = seen.windows(4).position(|bytes| bytes == b"\r\n\r\n").unwrap() + 4;
    seen[end..].to_vec()
}

#[test]
fn a_silent_websocket_gets_a_close_frame_at_the_end_of_a_stop_and_of_an_upgrade() {
    at_once(&["TERM", "USR2"], |signal| {
        let mut world = world();
        world.data.always(Answer::script().send(SWITCH).send(OF_SERVER).at_head());
        let mut client = open(&world);
        client.read_until("hello");
        client.send(OF_CLIENT);
        wait::until("the frame to pass", || (passed(&world.data) == OF_CLIENT).then_some(()));
        world.gateway.signal(signal);
        assert_eq!(client.read_to_end(), LEAVES_CLIENT, "{signal}");
        assert_eq!(world.gateway.wait_for_exit(), Some(0), "{signal}");
        assert_eq!(passed(&world.data), [OF_CLIENT, LEAVES_SERVER].concat(), "{signal}");
    });
}

#[test]
fn a_close_frame_waits_for_the_end_of_a_frame_and_nothing_follows_it() {
    let mut world = world();
    let (gate, closed) = (Gate::new(), Gate::new());
    let answer = Answer::script().send(SWITCH).send(&OF_SERVER[..4]).wait(&gate);
    let answer = answer.send(&OF_SERVER[4..]).wait(&closed).send(OF_SERVER);
    world.data.always(answer.at_head());
    let mut client = open(&world);
    client.read_until("he");
    let (begun, end) = OF_CLIENT.split_at(8);
    client.send(begun);
    world.gateway.signal("TERM");
    wait_until_draining(&world);
    gate.open();
    assert_eq!(client.read_until(LEAVES_CLIENT), [&OF_SERVER[4..], LEAVES_CLIENT].concat());
    closed.open();
    client.send([end, OF_CLIENT].concat());
    let whole = [OF_CLIENT, LEAVES_SERVER].concat();
    wait::until("the close frame at the server", || (passed(&world.data) == whole).then_some(()));
    client.expect_end();
    assert_eq!(world.gateway.wait_for_exit(), Some(0));
    assert_eq!(passed(&world.data), whole);
}

#[test]
fn other_tunnels_and_closed_websockets_get_no_close_frame() {
    let cases = [
        ("websocket", &b"no frames at all"[..]),
        ("websocket", b"\x88\x02\x03\xe8"),
        ("websocket", b"\x81\x05hel"),
        // After a switch to another protocol the frames are not WebSocket frames.
        ("other", OF_SERVER),
    ];
    at_once(&cases, |(protocol, output)| {
        let mut world = world();
        let switch = SWITCH.replace("websocket", protocol);
        world.data.always(Answer::script().send(switch).send(*output).at_head());
        let mut client = open(&world);
        client.read_until(output);
        // Unmasked, and therefore not a valid client frame.
        client.send(OF_SERVER);
        wait::until("it to pass", || (passed(&world.data) == OF_SERVER).then_some(()));
        world.gateway.signal("TERM");
        client.expect_end();
        assert_eq!(world.gateway.wait_for_exit(), Some(0));
        assert_eq!(passed(&world.data), OF_SERVER);
    });
}

#[test]
fn a_tunnel_does_not_keep_the_directory_of_its_start_after_reloads() {
    let world = World::new();
    world.data.always(Answer::script().send(SWITCH).send(OF_SERVER).at_head());
    let workspaces = |nth: usize| -> String {
        let entry = |of| format!("[workspaces.ws_{nth}_{of:05}]\nplan = \"free\"\n");
        (0..25_000).map(entry).collect()
    };
    let reload = |nth| {
        world.gateway.write_directory(&[DIRECTORY, &workspaces(nth)].concat());
        world.gateway.reload().expect(200);
        world.gateway.resident_bytes()
    };
    // What allocators keep is in the first ones.
    let resident = (0..3).map(reload).max().unwrap();
    let mut tunnels = Vec::new();
    let with_a_tunnel_more = |nth| {
        let mut client = open(&world);
        client.read_until("hello");
        tunnels.push(client);
        reload(nth)
    };
    // One reading may be 25 MB too high, since allocators give memory back when they like. Twelve
    // directories take 70 MB, which no reading of the last four could be without.
    let readings: Vec<u64> = (3..18).map(with_a_tunnel_more).collect();
    let grown = readings[11..].iter().min().unwrap().saturating_sub(resident);
    assert!(grown < 45_000_000, "{grown} bytes for {} tunnels", tunnels.len());
}
