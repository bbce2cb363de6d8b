//! Invalid frames, and the reactions that RFC 9113 demands.
//!
//! Each row's name begins with the RFC's section. `goaway` is a connection error, `reset` a
//! stream error; a number is the status of a response on stream 1, and `nothing` no response at
//! all. Unless the connection ends, another request on it is answered as usual. Where the
//! gateway differs from the RFC, the row says `instead of`: h2 uses fewer codes in a GOAWAY,
//! and treats connection errors as stream errors, which 5.4.2 allows.

use weir_tests::frames::{Frame, block, kind};
use weir_tests::http2::End;

use super::{Edge, outcome};

/// A name that begins with the section, the frames that are sent after the preface, and the
/// outcome.
type Row = (&'static str, Vec<Frame>, &'static str);

const GET: [(&str, &str); 4] = [
    (":method", "GET"),
    (":scheme", "https"),
    (":authority", "api.localhost"),
    (":path", "/healthz"),
];

const POST: [(&str, &str); 4] = [
    (":method", "POST"),
    (":scheme", "https"),
    (":authority", "api.localhost"),
    (":path", "/v1/me"),
];

/// A stream that stays open without a response, because its body is missing.
fn open(stream: u32) -> Frame {
    Frame::headers(stream, &POST, false)
}

fn get(stream: u32) -> Frame {
    Frame::headers(stream, &GET, true)
}

/// A GET with another list of fields.
fn fields(fields: &[(&str, &str)]) -> Vec<Frame> {
    vec![Frame::headers(1, fields, true)]
}

fn with(more: &[(&str, &str)]) -> Vec<Frame> {
    fields(&[GET.as_slice(), more].concat())
}

fn without(name: &str) -> Vec<Frame> {
    let rest: Vec<_> = GET.into_iter().filter(|(known, _)| *known != name).collect();
    fields(&rest)
}

fn settings(number: u16, value: u32) -> Vec<Frame> {
    vec![Frame::settings(&[(number, value)])]
}

fn raw(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<Frame> {
    vec![Frame::new(kind, flags, stream, payload)]
}

#[test]
fn frames_and_their_sizes() {
    check(vec![
        ("4.1 a frame of an unknown kind is ignored", raw(0xee, 0xff, 0, b"12345678"), "nothing"),
        ("4.1 so is one on a stream", [raw(0xee, 0, 1, b"x"), vec![get(1)]].concat(), "200"),
        ("4.1 an unknown flag is ignored", vec![get(1).flags(0x45 | 0x80 | 0x10)], "200"),
        ("4.1 the reserved bit is ignored", vec![Frame::headers(1 | 1 << 31, &GET, true)], "200"),
        (
            "4.2 DATA beyond the largest frame",
            vec![open(1), Frame::data(1, [0; 16_385], true)],
            "goaway FRAME_SIZE_ERROR",
        ),
        (
            "4.2 HEADERS beyond the largest frame",
            raw(kind::HEADERS, 5, 1, &[0; 16_385]),
            "goaway FRAME_SIZE_ERROR",
        ),
        (
            "4.2 PING of 7 bytes",
            raw(kind::PING, 0, 0, &[0; 7]),
            "goaway PROTOCOL_ERROR instead of goaway FRAME_SIZE_ERROR",
        ),
        (
            "4.3 a block that does not decode",
            raw(kind::HEADERS, 5, 1, &[0xff; 20]),
            "goaway PROTOCOL_ERROR instead of goaway COMPRESSION_ERROR",
        ),
        (
            "4.3 a block with a size update at its end",
            vec![Frame::new(kind::HEADERS, 5, 1, [block(&GET), vec![0x20]].concat())],
            "goaway PROTOCOL_ERROR instead of goaway COMPRESSION_ERROR",
        ),
        (
            "4.3 a size update beyond the setting",
            vec![Frame::new(kind::HEADERS, 5, 1, [vec![0x3f, 0xe2, 0x1f], block(&GET)].concat())],
            "goaway PROTOCOL_ERROR instead of goaway COMPRESSION_ERROR",
        ),
    ]);
}

#[test]
fn streams_and_their_states() {
    let idle = |frame: Frame| vec![frame];
    let after_end = |frame: Frame| vec![open(1), Frame::data(1, "", true), frame];
    check(vec![
        ("5.1 DATA on an idle stream", idle(Frame::data(1, "x", true)), "goaway PROTOCOL_ERROR"),
        ("5.1 RST_STREAM on an idle stream", idle(Frame::reset(1, 8)), "goaway PROTOCOL_ERROR"),
        ("5.1 WINDOW_UPDATE on an idle stream", idle(Frame::window(1, 1)), "goaway PROTOCOL_ERROR"),
        (
            "5.1 CONTINUATION on an idle stream",
            raw(kind::CONTINUATION, 4, 1, &[]),
            "goaway PROTOCOL_ERROR",
        ),
        (
            "5.1 DATA on a stream that the client has ended",
            after_end(Frame::data(1, "x", true)),
            "goaway PROTOCOL_ERROR instead of reset STREAM_CLOSED",
        ),
        (
            "5.1 HEADERS on a stream that the client has ended",
            after_end(get(1)),
            "goaway PROTOCOL_ERROR instead of reset STREAM_CLOSED",
        ),
        ("5.1 WINDOW_UPDATE after the end is taken", after_end(Frame::window(1, 1)), "200"),
        ("5.1.1 a stream with an even number", vec![get(2)], "goaway PROTOCOL_ERROR"),
        (
            "5.1.1 a stream with a lower number than the last",
            vec![open(5), get(3)],
            "goaway PROTOCOL_ERROR",
        ),
        (
            "5.1.2 one more stream than is allowed",
            (0..100).map(|n| open(2 * n + 1)).collect(),
            "reset REFUSED_STREAM of the next request",
        ),
        (
            "5.3.1 PRIORITY is taken on any stream",
            raw(kind::PRIORITY, 0, 1, &[0, 0, 0, 0, 1]),
            "nothing",
        ),
        (
            "5.3.1 a stream that depends on itself is a matter of RFC 7540",
            [raw(kind::PRIORITY, 0, 1, &[0, 0, 0, 1, 1]), vec![get(1)]].concat(),
            "reset PROTOCOL_ERROR instead of goaway PROTOCOL_ERROR",
        ),
    ]);
}

#[test]
fn definitions_of_frames() {
    let padded = |pad: u8| [vec![pad], b"ab".to_vec()].concat();
    let mut split = block(&GET);
    split.truncate(10);
    let begin = || Frame::new(kind::HEADERS, 1, 1, split.clone());
    check(vec![
        ("6.1 DATA on the connection", raw(kind::DATA, 0, 0, b"x"), "goaway PROTOCOL_ERROR"),
        (
            "6.1 DATA with more padding than payload",
            vec![open(1), Frame::new(kind::DATA, 9, 1, padded(3))],
            "goaway PROTOCOL_ERROR",
        ),
        ("6.1 DATA with padding", vec![open(1), Frame::new(kind::DATA, 9, 1, padded(1))], "200"),
        ("6.2 HEADERS on the connection", vec![get(0)], "goaway PROTOCOL_ERROR"),
        (
            "6.2 HEADERS with more padding than payload",
            raw(kind::HEADERS, 13, 1, &padded(9)),
            "goaway PROTOCOL_ERROR",
        ),
        (
            "6.2 another frame between HEADERS and CONTINUATION",
            vec![begin(), Frame::ping([0; 8])],
            "goaway PROTOCOL_ERROR",
        ),
        ("6.2 HEADERS of another stream there", vec![begin(), get(3)], "goaway PROTOCOL_ERROR"),
        (
            "6.3 PRIORITY of 4 bytes",
            [vec![open(1)], raw(kind::PRIORITY, 0, 1, &[0; 4])].concat(),
            "goaway PROTOCOL_ERROR instead of goaway FRAME_SIZE_ERROR",
        ),
        (
            "6.3 PRIORITY on the connection",
            raw(kind::PRIORITY, 0, 0, &[0; 5]),
            "goaway PROTOCOL_ERROR",
        ),
        ("6.4 RST_STREAM on the connection", vec![Frame::reset(0, 8)], "goaway PROTOCOL_ERROR"),
        (
            "6.4 RST_STREAM of 3 bytes",
            [vec![open(1)], raw(kind::RST_STREAM, 0, 1, &[0; 3])].concat(),
            "goaway PROTOCOL_ERROR instead of goaway FRAME_SIZE_ERROR",
        ),
    ]);
}

#[test]
fn frames_of_a_connection() {
    check(vec![
        (
            "6.5 SETTINGS that acknowledge and say more",
            raw(kind::SETTINGS, 1, 0, &[0; 6]),
            "goaway PROTOCOL_ERROR instead of goaway FRAME_SIZE_ERROR",
        ),
        ("6.5 SETTINGS on a stream", raw(kind::SETTINGS, 0, 1, &[0; 6]), "goaway PROTOCOL_ERROR"),
        (
            "6.5 SETTINGS of 5 bytes",
            raw(kind::SETTINGS, 0, 0, &[0; 5]),
            "goaway PROTOCOL_ERROR instead of goaway FRAME_SIZE_ERROR",
        ),
        ("6.5.2 ENABLE_PUSH of 2", settings(2, 2), "goaway PROTOCOL_ERROR"),
        (
            "6.5.2 a window beyond 2^31-1",
            settings(4, 1 << 31),
            "goaway PROTOCOL_ERROR instead of goaway FLOW_CONTROL_ERROR",
        ),
        ("6.5.2 a frame size below the least", settings(5, 16_383), "goaway PROTOCOL_ERROR"),
        ("6.5.2 a frame size beyond the most", settings(5, 1 << 24), "goaway PROTOCOL_ERROR"),
        ("6.5.2 an unknown setting is ignored", settings(0xff, 7), "nothing"),
        (
            "6.6 PUSH_PROMISE from a client",
            vec![
                open(1),
                Frame::new(kind::PUSH_PROMISE, 4, 1, [vec![0, 0, 0, 2], block(&GET)].concat()),
            ],
            "goaway PROTOCOL_ERROR",
        ),
        ("6.7 PING on a stream", raw(kind::PING, 0, 1, &[0; 8]), "goaway PROTOCOL_ERROR"),
        (
            "6.7 PING of 9 bytes",
            raw(kind::PING, 0, 0, &[0; 9]),
            "goaway PROTOCOL_ERROR instead of goaway FRAME_SIZE_ERROR",
        ),
        ("6.7 an unrequested acknowledgement", raw(kind::PING, 1, 0, &[0; 8]), "nothing"),
        ("6.8 GOAWAY on a stream", raw(kind::GOAWAY, 0, 1, &[0; 8]), "goaway PROTOCOL_ERROR"),
    ]);
}

#[test]
fn windows_and_continued_heads() {
    let mut split = block(&GET);
    let rest = split.split_off(10);
    let begin = Frame::new(kind::HEADERS, 1, 1, split);
    let more = |stream| Frame::new(kind::CONTINUATION, 4, stream, rest.clone());
    check(vec![
        (
            "6.9 WINDOW_UPDATE of 0 on the connection",
            vec![Frame::window(0, 0)],
            "goaway PROTOCOL_ERROR",
        ),
        (
            "6.9 WINDOW_UPDATE of 0 on a stream",
            vec![open(1), Frame::window(1, 0)],
            "goaway PROTOCOL_ERROR instead of reset PROTOCOL_ERROR",
        ),
        (
            "6.9 WINDOW_UPDATE of 3 bytes",
            raw(kind::WINDOW_UPDATE, 0, 0, &[0; 3]),
            "goaway PROTOCOL_ERROR instead of goaway FRAME_SIZE_ERROR",
        ),
        (
            "6.9.1 a connection's window beyond 2^31-1",
            vec![Frame::window(0, 0x7fff_ffff)],
            "goaway FLOW_CONTROL_ERROR",
        ),
        (
            "6.9.1 a stream's window beyond 2^31-1",
            vec![open(1), Frame::window(1, 0x7fff_ffff)],
            "reset FLOW_CONTROL_ERROR",
        ),
        ("6.10 HEADERS and CONTINUATION", vec![begin.clone(), more(1)], "200"),
        (
            "6.10 CONTINUATION of another stream",
            vec![begin.clone(), more(3)],
            "goaway PROTOCOL_ERROR",
        ),
        (
            "6.10 CONTINUATION after the end of the block",
            [vec![open(1)], vec![more(1)]].concat(),
            "goaway PROTOCOL_ERROR",
        ),
    ]);
}

#[test]
fn requests_in_frames() {
    let length = |length, sent: &str| {
        let head = [POST.as_slice(), &[("content-length", length)]].concat();
        vec![Frame::headers(1, &head, false), Frame::data(1, sent, true)]
    };
    let trailer = |fields: &[(&str, &str)], end| {
        vec![open(1), Frame::data(1, "x", false), Frame::headers(1, fields, end)]
    };
    let reset = "reset PROTOCOL_ERROR";
    check(vec![
        ("8.1 a second HEADERS that does not end the stream", trailer(&[("x", "y")], false), reset),
        ("8.1 trailers", trailer(&[("x", "y")], true), "200"),
        (
            "8.1 a pseudo-field in trailers",
            trailer(&[(":path", "/")], true),
            "200 instead of reset PROTOCOL_ERROR",
        ),
        ("8.1.1 fewer bytes than announced", length("5", "abc"), reset),
        ("8.1.1 more bytes than announced", length("2", "abc"), reset),
        (
            "8.2 a name with a capital",
            with(&[("X-a", "b")]),
            "goaway PROTOCOL_ERROR instead of reset PROTOCOL_ERROR",
        ),
        (
            "8.2.1 a name with a space",
            with(&[("x a", "b")]),
            "goaway PROTOCOL_ERROR instead of reset PROTOCOL_ERROR",
        ),
        (
            "8.2.1 a name of nothing",
            with(&[("", "b")]),
            "goaway PROTOCOL_ERROR instead of reset PROTOCOL_ERROR",
        ),
        (
            "8.2.1 a value with a line end",
            with(&[("x", "a\r\nb: c")]),
            "goaway PROTOCOL_ERROR instead of reset PROTOCOL_ERROR",
        ),
        (
            "8.2.1 a value with a NUL",
            with(&[("x", "a\0b")]),
            "goaway PROTOCOL_ERROR instead of reset PROTOCOL_ERROR",
        ),
        ("8.2.2 connection", with(&[("connection", "close")]), reset),
        ("8.2.2 transfer-encoding", with(&[("transfer-encoding", "chunked")]), reset),
        ("8.2.2 te that is not trailers", with(&[("te", "gzip")]), reset),
        ("8.2.2 te: trailers", with(&[("te", "trailers")]), "200"),
    ]);
}

#[test]
fn pseudo_fields() {
    let reset = "reset PROTOCOL_ERROR";
    check(vec![
        (
            "8.3 an unknown pseudo-field",
            with(&[(":x", "y")]),
            "goaway PROTOCOL_ERROR instead of reset PROTOCOL_ERROR",
        ),
        ("8.3 a pseudo-field of answers", with(&[(":status", "200")]), reset),
        (
            "8.3 a pseudo-field after another field",
            fields(&[GET[0], GET[1], GET[2], ("a", "b"), GET[3]]),
            reset,
        ),
        ("8.3 a pseudo-field twice", with(&[(":path", "/healthz")]), reset),
        ("8.3.1 no method", without(":method"), reset),
        ("8.3.1 no scheme", without(":scheme"), reset),
        ("8.3.1 no path", without(":path"), reset),
        ("8.3.1 an empty path", fields(&[GET[0], GET[1], GET[2], (":path", "")]), reset),
        (
            "8.3.1 a path without a slash",
            fields(&[GET[0], GET[1], GET[2], (":path", "healthz")]),
            reset,
        ),
        (
            "8.5 CONNECT with a scheme and a path",
            fields(&[(":method", "CONNECT"), GET[1], GET[2], GET[3]]),
            reset,
        ),
    ]);
}

/// Sends each row's frames on a new connection, with another request after them.
fn check(rows: Vec<Row>) {
    let edge = Edge::with(|config| config.with("[limits.address]", "requests = 4000"));
    let mut wrong = Vec::new();
    for (name, frames, expected) in rows {
        let mut client = edge.client();
        client.frames(&frames);
        client.frames(&[get(20_001)]);
        let next = client.end(20_001);
        let found = match next {
            End::Gone(_) => outcome(next),
            End::Answer(answer) if answer.status == 200 => match expected {
                "nothing" => "nothing".to_owned(),
                _ => outcome(client.end(1)),
            },
            other => format!("{} of the next request", outcome(other)),
        };
        let expected = expected.split(" instead of ").next().unwrap();
        if found != expected {
            wrong.push(format!("{name}: {expected} expected, {found} found"));
        }
    }
    assert!(wrong.is_empty(), "{} rows differ:\n{}", wrong.len(), wrong.join("\n"));
}
