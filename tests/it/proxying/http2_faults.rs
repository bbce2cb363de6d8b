//! HTTP/2 upstreams that break the protocol, stall or flood: clients get a definite response in
//! time, and never a truncated one as complete.

use std::sync::{Arc, Mutex};

use weir_tests::config::Config;
use weir_tests::frames::{Frame, block, flag, kind};
use weir_tests::http2::{End, Http2};
use weir_tests::http2_server::{Http2Server, Step, head};
use weir_tests::request::Request;

use crate::http2::{Edge, outcome};

/// A server's steps for a stream with this id.
type Lie = fn(u32) -> Vec<Step>;

/// The complete response of a correct server.
fn truth(_: u32) -> Vec<Step> {
    vec![Step::Head(head(200, &[])), Step::LastBody(b"hello".to_vec())]
}

fn raw(frame: Frame) -> Step {
    Step::Raw(frame.bytes())
}

/// A head with exactly these fields: without a status, or with more than one.
fn fields(stream: u32, fields: &[(&str, &str)]) -> Vec<Step> {
    vec![raw(Frame::headers(stream, fields, false)), Step::LastBody(b"hello".to_vec())]
}

/// A response that has begun, followed by these steps.
fn begun(then: impl IntoIterator<Item = Step>) -> Vec<Step> {
    let begun = [Step::Head(head(200, &[])), Step::Body(b"half".to_vec())];
    begun.into_iter().chain(then).collect()
}

/// The version of HTTP that a client speaks.
#[derive(Clone, Copy, Debug)]
enum Version {
    Http1,
    Http2,
}

/// A read timeout that the faults of a test wait for.
const SHORT: &str = "1500ms";

/// A read timeout that no fault of a test reaches, however busy the machine is.
const LONG: &str = "30s";

/// A gateway in front of a server that plays one fault, which the test sets.
struct Liar {
    edge: Edge,
    lie: Arc<Mutex<Lie>>,
    server: Http2Server,
}

impl Liar {
    fn new(settings: &[(u16, u32)], read_timeout: &str) -> Self {
        let lie = Arc::new(Mutex::new(truth as Lie));
        let names = lie.clone();
        let server = Http2Server::start_with(settings, move |begun| {
            // Each fault happens once.
            let lie = std::mem::replace(&mut *names.lock().unwrap(), truth);
            lie(begun.stream)
        });
        let lines = format!(
            "servers = [\"{}\"]\nhttp = \"2\"\nread_timeout = \"{read_timeout}\"\n\
             write_timeout = \"1s\"",
            server.address()
        );
        // With one thread all requests share a connection.
        let change = |config: Config| {
            let config = config.with("[upstreams.control]", &lines);
            config.with("[limits.address]", "requests = 4000").with("[server]", "threads = 1")
        };
        Self { edge: Edge::with(change), lie, server }
    }

    /// The outcome of a request while the server plays `lie`, as a short text.
    fn outcome(&self, version: Version, lie: Lie, request: &Request) -> String {
        *self.lie.lock().unwrap() = lie;
        let outcome = match version {
            Version::Http1 => by_http1(&self.edge, request),
            Version::Http2 => by_http2(&self.edge, request),
        };
        *self.lie.lock().unwrap() = truth;
        outcome
    }

    /// Checks that the next request is served, and that no task of the gateway has failed.
    fn check_healthy(&self, of: &str) {
        self.edge.wait_until_idle();
        self.edge.world.get("/healthz").expect(200);
        let log = self.edge.world.gateway.log().text();
        assert!(!log.contains("panicked") && !log.contains("task failed"), "{of}: {log}");
    }
}

fn by_http1(edge: &Edge, request: &Request) -> String {
    let mut client = edge.world.gateway.client();
    client.send(request.head_bytes());
    let _ = client.try_send(request.body_bytes());
    match client.try_read() {
        Ok(answer) if answer.status == 200 => format!("200 {}", answer.body.len()),
        Ok(answer) => answer.status.to_string(),
        Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => "nothing".to_owned(),
        Err(_) => "cut".to_owned(),
    }
}

fn by_http2(edge: &Edge, request: &Request) -> String {
    let mut client = edge.client();
    let id = client.request(request);
    match client.end(id) {
        End::Answer(answer) if answer.status == 200 => format!("200 {}", answer.text().len()),
        End::Reset(_) => "cut".to_owned(),
        other => outcome(other),
    }
}

/// Runs `check` for clients of both versions at once, each with a gateway and a server of its own:
/// most of the time goes into waiting for deadlines.
#[track_caller]
fn for_each_version(
    settings: &[(u16, u32)],
    read_timeout: &str,
    check: impl Fn(&Liar, Version) + Sync,
) {
    std::thread::scope(|scope| {
        for version in [Version::Http1, Version::Http2] {
            let check = &check;
            scope.spawn(move || check(&Liar::new(settings, read_timeout), version));
        }
    });
}

/// Checks faults that end a response at once.
#[track_caller]
fn check(lies: &[(&str, &str, Lie)]) {
    check_within(LONG, lies);
}

/// Checks faults that only the read timeout ends.
#[track_caller]
fn check_deadlines(lies: &[(&str, &str, Lie)]) {
    check_within(SHORT, lies);
}

/// Plays each fault for clients of both versions; `allowed` are the outcomes that they may see.
#[track_caller]
fn check_within(read_timeout: &str, lies: &[(&str, &str, Lie)]) {
    let request = Request::post("/v1/me", "x");
    for_each_version(&[], read_timeout, |liar, version| {
        let mut wrong = Vec::new();
        for (name, allowed, lie) in lies {
            let outcome = liar.outcome(version, *lie, &request);
            if !allowed.split(", ").any(|allowed| allowed == outcome) {
                wrong.push(format!("{name}: {outcome}, not of {allowed}"));
            }
            liar.check_healthy(name);
        }
        assert!(wrong.is_empty(), "{version:?}: {wrong:#?}");
    });
}

#[test]
fn a_malformed_head_is_a_502() {
    check(&[
        ("no status", "502", |s| fields(s, &[("x", "y")])),
        ("two statuses", "502", |s| fields(s, &[(":status", "200"), (":status", "404")])),
        ("a word", "502", |s| fields(s, &[(":status", "fine")])),
        ("a long number", "502", |s| fields(s, &[(":status", "0200")])),
        // h2 accepts it without an error.
        ("a request's field", "502, 200 5", |s| fields(s, &[(":status", "200"), (":path", "/")])),
        ("an unknown pseudo-header", "502", |s| fields(s, &[(":status", "200"), (":x", "y")])),
        ("one that comes late", "502", |s| fields(s, &[("x", "y"), (":status", "200")])),
        ("upper case", "502", |s| fields(s, &[(":status", "200"), ("X-Y", "z")])),
        ("a name with a space", "502", |s| fields(s, &[(":status", "200"), ("x y", "z")])),
        ("a name with a colon", "502", |s| fields(s, &[(":status", "200"), ("x:", "z")])),
        ("a line end", "502", |s| fields(s, &[(":status", "200"), ("x", "y\r\nset-cookie: a")])),
        ("a zero", "502", |s| fields(s, &[(":status", "200"), ("x", "y\0")])),
        ("a connection", "502", |s| fields(s, &[(":status", "200"), ("connection", "close")])),
        ("chunks", "502", |s| fields(s, &[(":status", "200"), ("transfer-encoding", "chunked")])),
        ("lengths", "502", |s| {
            fields(s, &[(":status", "200"), ("content-length", "5"), ("content-length", "6")])
        }),
        ("a length with a sign", "502", |s| {
            fields(s, &[(":status", "200"), ("content-length", "+5")])
        }),
        ("a length in words", "502", |s| {
            fields(s, &[(":status", "200"), ("content-length", "five")])
        }),
        ("no HPACK", "502", |s| vec![raw(Frame::new(kind::HEADERS, 4, s, [0xff; 40]))]),
        ("on no stream", "502", |_| vec![raw(Frame::headers(0, &head(200, &[]), true))]),
        ("on a stream of its own", "502", |_| vec![raw(Frame::headers(2, &head(200, &[]), true))]),
        ("on another stream", "502", |s| vec![raw(Frame::headers(s + 200, &head(200, &[]), true))]),
        ("a body first", "502", |s| vec![raw(Frame::data(s, "early", false))]),
        ("a promise", "502", |s| {
            let promised = [&2_u32.to_be_bytes()[..], &block(&[(":path", "/")])].concat();
            let promise = Frame::new(kind::PUSH_PROMISE, flag::END_HEADERS, s, promised);
            std::iter::once(raw(promise)).chain(truth(s)).collect()
        }),
    ]);
}

#[test]
fn a_head_is_as_large_as_over_http_1_1_and_no_larger() {
    fn large(stream: u32, bytes: usize) -> Vec<Step> {
        let long = "y".repeat(bytes);
        let frames = Frame::head(stream, &[(":status", "200"), ("x", &long)], true);
        frames.into_iter().map(raw).collect()
    }
    check(&[
        ("of 10 KB", "200 0", |s| large(s, 10_000)),
        ("of 2 MB", "502", |s| large(s, 2_000_000)),
        ("of 20 MB", "502", |s| large(s, 20_000_000)),
        ("of many fields", "502", |s| {
            let many: Vec<String> = (0..30_000).map(|nth| format!("x{nth}")).collect();
            let fields = many.iter().map(|name| (name.as_str(), "y"));
            let fields: Vec<_> = [(":status", "200")].into_iter().chain(fields).collect();
            Frame::head(s, &fields, true).into_iter().map(raw).collect()
        }),
        ("that unfolds", "502", |s| {
            let mut bomb = block(&[(":status", "200")]);
            bomb.push(0x40);
            bomb.extend(&block(&[("x", "y".repeat(3_900))])[1..]);
            bomb.extend([0xbe; 10_000]);
            vec![raw(Frame::new(kind::HEADERS, 5, s, bomb))]
        }),
        ("that never ends", "502", |s| {
            let more = Frame::new(kind::CONTINUATION, 0, s, block(&[("x", "y")]));
            let first = Frame::new(kind::HEADERS, 0, s, block(&[(":status", "200")]));
            vec![raw(first), Step::Forever(more.bytes())]
        }),
        ("that goes on with nothing", "502", |s| {
            let first = Frame::new(kind::HEADERS, 0, s, block(&[(":status", "200")]));
            vec![raw(first), Step::Forever(Frame::new(kind::CONTINUATION, 0, s, []).bytes())]
        }),
        ("that goes on elsewhere", "502", |s| {
            let first = Frame::new(kind::HEADERS, 0, s, block(&[(":status", "200")]));
            vec![raw(first), raw(Frame::new(kind::CONTINUATION, 4, s + 2, []))]
        }),
    ]);
}

#[test]
fn a_truncated_http2_response_is_not_passed_as_complete() {
    check_deadlines(&[
        ("a longer length", "cut, 502", |_| {
            vec![Step::Head(head(200, &[("content-length", "10")])), Step::LastBody(vec![b'x'; 5])]
        }),
        ("a shorter length", "cut, 502", |_| {
            vec![Step::Head(head(200, &[("content-length", "5")])), Step::LastBody(vec![b'x'; 10])]
        }),
        ("a length of nothing", "cut, 502", |_| {
            vec![Step::LastHead(head(200, &[("content-length", "5")]))]
        }),
        ("a reset without an error", "cut, 502", |_| begun([Step::Reset(0)])),
        ("a reset for a fault", "cut, 502", |_| begun([Step::Reset(1)])),
        ("a reset to be repeated", "cut, 502", |_| begun([Step::Reset(7)])),
        ("a cancelled one", "cut, 502", |_| begun([Step::Reset(8)])),
        ("a goodbye to earlier ones", "cut, 502", |_| begun([Step::GoAway { before: 1, code: 0 }])),
        ("a goodbye and the end", "cut, 502", |_| {
            begun([Step::GoAway { before: 0, code: 0 }, Step::Close])
        }),
        ("the end", "cut, 502", |_| begun([Step::Close])),
        ("trailers that are not the last", "cut, 502", |_| {
            begun([Step::Head(vec![("x-last", "word".to_owned())]), Step::Close])
        }),
        ("interim answers in the middle", "cut, 502", |_| {
            begun([Step::Head(head(103, &[])), Step::LastBody(b"half".to_vec())])
        }),
        ("a frame that is too large", "cut, 502", |s| {
            begun([raw(Frame::data(s, vec![b'x'; 1 << 20], true))])
        }),
        ("more padding than there is", "cut, 502", |s| {
            begun([raw(Frame::new(kind::DATA, 9, s, [200, 0, 0]))])
        }),
        ("no more window", "cut, 502", |s| begun([raw(Frame::window(s, 0))])),
        ("too much window", "cut, 502", |s| {
            begun([raw(Frame::window(s, 0x7fff_ffff)), raw(Frame::window(s, 0x7fff_ffff))])
        }),
        ("settings that cannot be", "cut, 502", |_| {
            begun([raw(Frame::settings(&[(4, 0x8000_0000)]))])
        }),
        ("nothing more", "cut, 504", |_| begun([])),
        ("frames of nothing", "cut, 502, 504", |s| {
            begun([Step::Forever(Frame::data(s, [], false).bytes())])
        }),
    ]);
}

#[test]
fn frames_after_a_complete_response_never_alter_it() {
    check(&[
        ("a body", "200 5, cut, 502", |s| {
            truth(s).into_iter().chain([raw(Frame::data(s, "more", true))]).collect()
        }),
        ("a head", "200 5, cut, 502", |s| {
            truth(s).into_iter().chain([raw(Frame::headers(s, &head(500, &[]), true))]).collect()
        }),
        ("a status after the body", "200 5, cut, 502", |_| {
            let body = Step::Body(b"hello".to_vec());
            vec![Step::Head(head(200, &[])), body, Step::LastHead(head(500, &[]))]
        }),
        ("a length after the body", "200 5, cut, 502", |_| {
            let body = Step::Body(b"hello".to_vec());
            let last = vec![("content-length", "9".to_owned())];
            vec![Step::Head(head(200, &[])), body, Step::LastHead(last)]
        }),
    ]);
}

#[test]
fn floods_end_at_the_response_deadline() {
    check_deadlines(&[
        ("interim answers", "502, 504", |s| {
            vec![Step::Forever(Frame::headers(s, &head(103, &[("link", "</a>")]), false).bytes())]
        }),
        ("a last interim answer", "502", |_| vec![Step::LastHead(head(103, &[]))]),
        ("a switch of protocols", "502, 504", |_| vec![Step::Head(head(101, &[]))]),
        ("settings", "502, 504", |_| vec![Step::Forever(Frame::settings(&[(3, 1)]).bytes())]),
        ("pings", "502, 504", |_| vec![Step::Forever(Frame::ping([1; 8]).bytes())]),
        ("windows", "502, 504", |_| vec![Step::Forever(Frame::window(0, 1).bytes())]),
        ("priorities", "502, 504", |s| {
            vec![Step::Forever(Frame::new(kind::PRIORITY, 0, s, [0; 5]).bytes())]
        }),
        ("unknown frames", "502, 504", |s| {
            vec![Step::Forever(Frame::new(77, 0, s, [0; 100]).bytes())]
        }),
        ("nothing", "504", |_| Vec::new()),
    ]);
}

#[test]
fn a_request_body_that_the_server_does_not_read_ends_at_its_deadline() {
    // The server never opens a window for a body: SETTINGS_INITIAL_WINDOW_SIZE is 0.
    let request = |length| Request::post("/v1/me", vec![b'x'; length]);
    for_each_version(&[(4, 0)], SHORT, |liar, version| {
        for length in [1, 100_000, 1_000_000] {
            let outcome = liar.outcome(version, |_| Vec::new(), &request(length));
            assert_eq!(outcome, "504", "{length} bytes, {version:?}");
            liar.check_healthy("no window");
        }
        // The response of a server that has not read the body is forwarded.
        assert_eq!(liar.outcome(version, truth, &request(100_000)), "200 5", "{version:?}");
    });
}

#[test]
fn limit_fields_in_a_servers_trailers_reach_no_client() {
    let liar = Liar::new(&[], LONG);
    *liar.lie.lock().unwrap() = |_| {
        let last = [("x-ratelimit-limit", "7"), ("ratelimit", "a"), ("grpc-status", "0")];
        let last = last.map(|(name, value)| (name, value.to_owned())).to_vec();
        begun([Step::LastHead(last)])
    };
    let answer = liar.edge.client().get("/v1/me").expect(200);
    assert_eq!(answer.text(), "half");
    let names: Vec<&str> = answer.trailers.fields.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["grpc-status"]);
}

#[test]
fn unread_responses_in_small_pieces_end_no_other() {
    const STALLED: usize = 40;
    let liar = Liar::new(&[], LONG);
    let flood = |stream| {
        // As much as a window holds.
        let event = Frame::data(stream, [b'x'; 24], false).bytes();
        vec![Step::Head(head(200, &[])), Step::Raw(event.repeat((256 << 10) / 24))]
    };
    // An initial window of 0: no body can be sent.
    let mut client = Http2::connect_with(&liar.edge.address, &liar.edge.authority, &[(4, 0)]);
    for nth in 0..STALLED {
        *liar.lie.lock().unwrap() = flood;
        client.request(&Request::get("/v1/me"));
        liar.server.wait_for(nth + 1);
    }
    let outcome = liar.outcome(Version::Http1, truth, &Request::post("/v1/me", "x"));
    assert_eq!(outcome, "200 5");
    let connections: Vec<_> = liar.server.seen().iter().map(|begun| begun.connection).collect();
    assert_eq!(connections, [0; STALLED + 1]);
}
