//! How an HTTP/2 request is translated for an HTTP/1.1 upstream.

use httlib_hpack::Decoder;
use weir_tests::frames::{Frame, kind};
use weir_tests::http2::{End, Http2};
use weir_tests::request::Request;

use super::{Edge, outcome};
use crate::targets::{CONTROL_TARGETS, DATA_TARGETS, HOSTS};

const PATH: &str = "/v1/workspaces/ws_acme";

/// The pseudo-fields of an ordinary GET.
const GET: [(&str, &str); 4] =
    [(":method", "GET"), (":scheme", "https"), (":authority", "api.localhost"), (":path", PATH)];

#[test]
fn the_authority_is_the_host_for_rules_log_and_upstream() {
    let edge = Edge::new();
    let mut client = edge.client();
    let answer = client.get("/v1/workspaces/ws_acme").expect(200);
    assert_eq!((answer.text().as_str(), answer.allowance().remaining), ("hello", 59));
    let request = edge.world.control.only();
    assert_eq!(request.head.start, "GET /v1/workspaces/ws_acme HTTP/1.1");
    for (name, value) in [
        ("host", "api.localhost"),
        ("x-forwarded-host", "api.localhost"),
        ("x-forwarded-proto", "https"),
        ("x-forwarded-for", "127.0.0.1"),
        ("forwarded", "for=127.0.0.1;host=\"api.localhost\";proto=https"),
    ] {
        assert_eq!(request.head.all(name), [value], "{name}");
    }
    let line = edge.world.gateway.access_log().wait("the request", |_| true);
    assert_eq!(line["host"], "api.localhost", "{line}");
    assert_eq!(line["version"], "HTTP/2.0", "{line}");
    assert_eq!((&line["workspace"], &line["bytes_sent"]), (&"ws_acme".into(), &5.into()), "{line}");
}

#[test]
fn authority_and_host_agree_or_the_request_is_refused() {
    let same = [GET.as_slice(), &[("host", "api.localhost")]].concat();
    let other = [GET.as_slice(), &[("host", "in_acme.auth.localhost")]].concat();
    let twice = [GET.as_slice(), &[("host", "api.localhost"), ("host", "api.localhost")]].concat();
    let host = [GET[0], GET[1], GET[3], ("host", "api.localhost")];
    let no_host = [GET[0], GET[1], GET[3]];
    let user = [GET[0], GET[1], (":authority", "a@api.localhost"), GET[3]];
    let edge = Edge::new();
    for (fields, expected) in [
        (same.as_slice(), "200"),
        (&host, "200"),
        (&other, "400"),
        (&twice, "400"),
        (&no_host, "400"),
        (&user, "400"),
    ] {
        let mut client = edge.client();
        let id = client.open(fields, true);
        assert_eq!(outcome(client.end(id)), expected, "{fields:?}");
        client.get(PATH).expect(200);
    }
    assert!(
        edge.world
            .control
            .requests()
            .iter()
            .all(|request| { request.head.all("host") == ["api.localhost"] })
    );
    edge.world.data.assert_untouched();
}

/// The gateway ignores the scheme: a proxy before it may pass on its own client's. The upstream
/// learns the protocol of the gateway's connection.
#[test]
fn a_scheme_is_ignored_and_the_upstream_gets_the_gateways() {
    let edge = Edge::new();
    for scheme in ["http", "https"] {
        let mut client = edge.client();
        let id = client.open(&[GET[0], (":scheme", scheme), GET[2], GET[3]], true);
        client.answer(id).expect(200);
        let request = edge.world.control.last();
        assert_eq!(request.head.all("x-forwarded-proto"), ["https"]);
        assert!(request.head.start.starts_with("GET /v1/"));
    }
}

#[test]
fn connect_is_refused_and_the_connection_stays() {
    let edge = Edge::new();
    let mut client = edge.client();
    let id = client.open(&[(":method", "CONNECT"), (":authority", "api.localhost:443")], false);
    let answer = client.answer(id);
    assert!(answer.field("allow").is_some());
    assert_eq!(answer.expect_problem(405)["type"], "urn:weir:problem:connect");
    // Extended CONNECT (RFC 8441) was not offered.
    let websocket = [&[(":method", "CONNECT"), (":protocol", "websocket")], &GET[1..]].concat();
    let id = client.open(&websocket, false);
    assert_eq!(outcome(client.end(id)), "reset PROTOCOL_ERROR");
    assert_eq!(client.settings.get(&8), None, "it was offered");
    client.get(PATH).expect(200);
    assert_eq!(edge.world.control.requests().len(), 1);
}

#[test]
fn a_cookie_in_crumbs_arrives_whole() {
    let edge = Edge::new();
    let crumbs = [GET.as_slice(), &[("cookie", "a=1"), ("cookie", "b=2"), ("cookie", "c=3")]];
    let mut client = edge.client();
    let id = client.open(&crumbs.concat(), true);
    client.answer(id).expect(200);
    assert_eq!(edge.world.control.only().head.all("cookie"), ["a=1; b=2; c=3"]);
}

#[test]
fn connection_specific_fields_end_their_stream_and_no_other() {
    let edge = Edge::new();
    let mut client = edge.client();
    for (name, value) in [
        ("connection", "close"),
        ("connection", "x"),
        ("keep-alive", "timeout=5"),
        ("proxy-connection", "keep-alive"),
        ("transfer-encoding", "chunked"),
        ("upgrade", "websocket"),
        ("te", "gzip"),
    ] {
        let id = client.open(&[GET.as_slice(), &[(name, value)]].concat(), true);
        assert_eq!(outcome(client.end(id)), "reset PROTOCOL_ERROR", "{name}: {value}");
    }
    edge.world.control.assert_untouched();
    let id = client.open(&[GET.as_slice(), &[("te", "trailers")]].concat(), true);
    client.answer(id).expect(200);
}

#[test]
fn trailers_of_a_request_are_dropped_and_its_body_is_whole() {
    let edge = Edge::new();
    let mut client = edge.client();
    for _ in 0..2 {
        let id = client.head(&Request::post(PATH, "").chunks(&["abc"]), false);
        let trailers = Frame::headers(id, &[("x-checksum", "1")], true);
        client.frames(&[Frame::data(id, "abc", false), trailers]);
        client.answer(id).expect(200);
    }
    for request in edge.world.control.requests() {
        assert_eq!((request.body.as_slice(), request.complete), (b"abc".as_slice(), true));
        assert_eq!(request.head.field("x-checksum"), None);
    }
}

#[test]
fn a_body_of_another_length_than_announced_ends_its_stream_and_its_upstream_connection() {
    let edge = Edge::new();
    for (length, sent) in [("5", "abc"), ("2", "abc"), ("3", "")] {
        let mut client = edge.client();
        let head = [GET.as_slice(), &[("content-length", length)]].concat();
        let id = client.open(&[&[(":method", "POST")], &head[1..]].concat(), false);
        client.frames(&[Frame::data(id, sent, true)]);
        assert_eq!(outcome(client.end(id)), "reset PROTOCOL_ERROR", "{length} {sent}");
        // The gateway does not complete the missing body with bytes of the next request.
        client.get(PATH).expect(200);
        for request in edge.world.control.requests() {
            let [get, post] = ["GET", "POST"].map(|method| format!("{method} {PATH} HTTP/1.1"));
            let start = &request.head.start;
            assert!(*start == get || (*start == post && !request.complete), "{start}");
        }
    }
    let mut client = edge.client();
    for lengths in [["1", "2"], ["x", "x"]] {
        let lengths = lengths.map(|length| ("content-length", length));
        let head = [&[(":method", "POST")], &GET[1..], &lengths].concat();
        let id = client.open(&head, false);
        assert_eq!(outcome(client.end(id)), "reset PROTOCOL_ERROR", "{lengths:?}");
    }
}

#[test]
fn a_body_that_ends_with_an_empty_frame_leaves_its_upstream_connection_clean() {
    let edge = Edge::new();
    let mut client = edge.client();
    for nth in 0..4 {
        let id = client.head(&Request::post(PATH, "").chunks(&["x"]), false);
        client.frames(&[Frame::data(id, "abc", false)]);
        // The frame that ends the body arrives separately: cloudflare/pingora#935.
        edge.world.control.wait("the body", |seen| {
            (seen.requests.last()?.body == b"abc" && seen.requests.len() == 2 * nth + 1)
                .then_some(())
        });
        client.frames(&[Frame::data(id, "", true)]);
        client.answer(id).expect(200);
        let answer = client.get(&format!("{PATH}/{nth}")).expect(200);
        assert_eq!(answer.text(), "hello");
        let request = edge.world.control.last();
        assert_eq!(request.head.start, format!("GET {PATH}/{nth} HTTP/1.1"));
    }
    let seen = edge.world.control.seen();
    assert_eq!((seen.requests.len(), seen.connections.len()), (8, 1), "one connection, reused");
    let wire = String::from_utf8_lossy(&seen.connections[0]);
    assert_eq!(wire.matches("\r\n0\r\n\r\n").count(), 4, "{wire}");
}

#[test]
fn a_head_beyond_its_cap_is_refused_and_the_connection_stays() {
    let edge = Edge::with(|config| config.with("[server]", "head_bytes_max = \"8KiB\""));
    let mut client = edge.client();
    let with = |client: &mut Http2, count: usize, length: usize| {
        let value = "v".repeat(length);
        let more: Vec<_> = (0..count).map(|nth| (format!("x-{nth:04}"), value.clone())).collect();
        let more = more.iter().map(|(name, value)| (name.as_str(), value.as_str()));
        let fields: Vec<_> = GET.into_iter().chain(more).collect();
        let id = client.open(&fields, true);
        client.end(id)
    };
    // As large as HTTP/1.1 accepts, in few fields and in many.
    assert_eq!(outcome(with(&mut client, 1, 7_900)), "200");
    assert_eq!(outcome(with(&mut client, 220, 22)), "200");
    let End::Answer(refusal) = with(&mut client, 1, 8_300) else { panic!("no answer") };
    assert_eq!(refusal.expect_problem(431)["type"], "urn:weir:problem:head-too-large");
    assert_eq!(outcome(with(&mut client, 2, 4_200)), "431");
    // Beyond twice that the frame parser refuses without a body; far beyond, it closes the
    // connection.
    assert_eq!(outcome(with(&mut client, 1, 16_000)), "431");
    client.get(PATH).expect(200);
    assert_eq!(edge.world.control.requests().len(), 3);
}

#[test]
fn targets_and_hosts_follow_the_rules_of_http_1_1() {
    let edge = Edge::with(|config| {
        config
            .with("[limits.workspace]", "requests = 1000")
            .with("[plans.enterprise]", "limits.workspace = { requests = 1001 }")
            .with("[limits.organisation]", "requests = 4000")
            .with("[limits.instance]", "rate = 1000\nburst = 4000")
            .with("[limits.batch]", "requests = 500")
            .with("[limits.address]", "requests = 1000")
    });
    let rows = |tables: &[&[(&'static [u8], &'static str)]], host: &'static [u8]| {
        let rows = tables.concat().into_iter();
        rows.map(move |(start, outcome)| (start.to_vec(), host, outcome)).collect::<Vec<_>>()
    };
    let mut all = rows(CONTROL_TARGETS, b"api.localhost");
    all.extend(rows(DATA_TARGETS, b"in_acme.auth.localhost"));
    for (host, target, outcome) in HOSTS {
        all.push(([b"GET ", target.as_bytes()].concat(), host, outcome));
    }
    let (mut wrong, mut forwarded) = (Vec::new(), 0);
    for (start, host, expected) in &all {
        let mut words = start.splitn(2, |byte| *byte == b' ');
        let (method, target) = (words.next().unwrap(), words.next().unwrap_or_default());
        let found = exchange(&edge, method, target, host);
        forwarded += usize::from(found.contains('@'));
        // A malformed request gets no response. The absolute form is malformed in HTTP/2.
        let refused = ["400", "reset PROTOCOL_ERROR", "goaway PROTOCOL_ERROR"];
        let refused = refused.contains(&found.as_str());
        if target.contains(&b'#') {
            // The frame parser silently drops a fragment, before routes and limits see it.
            assert!(!found.contains('#'), "{found}");
            continue;
        }
        let as_refused =
            refused && (*expected == "400" || method == b"CONNECT" || !target.starts_with(b"/"));
        if found != *expected && !as_refused {
            let row = start.escape_ascii();
            wrong
                .push(format!("{expected} expected, {found} found: {row} {}", host.escape_ascii()));
        }
    }
    assert!(wrong.is_empty(), "{} rows differ:\n{}", wrong.len(), wrong.join("\n"));
    assert!(forwarded > 60, "only {forwarded} were forwarded");
}

/// The outcome of one request, in the notation of the tables.
fn exchange(edge: &Edge, method: &[u8], target: &[u8], host: &[u8]) -> String {
    let world = &edge.world;
    let upstreams =
        [("control", &world.control), ("data", &world.data), ("dispatcher", &world.dispatcher)];
    let before = upstreams.map(|(_, upstream)| upstream.requests().len());
    let mut client = edge.client();
    let host = host.trim_ascii();
    let mut fields: Vec<(&[u8], &[u8])> = vec![
        (b":method", method),
        (b":scheme", b"https"),
        (b":authority", host),
        (b":path", target),
    ];
    let has_body = method.starts_with(b"P");
    if has_body {
        fields
            .extend([(&b"content-type"[..], &b"application/json"[..]), (b"content-length", b"2")]);
    }
    let id = client.id();
    client.frames(&[Frame::headers(id, &fields, !has_body)]);
    if has_body {
        client.frames(&[Frame::data(id, "[]", true)]);
    }
    let answer = match client.end(id) {
        End::Answer(answer) => answer,
        other => return outcome(other),
    };
    let reached = (0..3).find(|at| upstreams[*at].1.requests().len() != before[*at]);
    let Some(at) = reached else { return answer.status.to_string() };
    let (name, upstream) = upstreams[at];
    let sent = target.split(|byte| *byte == b'#').next().unwrap();
    if upstream.last().target() != sent {
        return format!("{name} received {:?}", upstream.last().head.start);
    }
    let resources = answer.head.all("x-ratelimit-resource");
    format!("{}@{name}", resources.first().unwrap_or(&"exempt"))
}

#[test]
fn header_values_that_do_not_recur_are_not_indexed() {
    let edge = Edge::new();
    let mut client = edge.client();
    client.open(&GET, true);
    let mut block = loop {
        let frame = client.read().expect("an answer");
        if frame.kind == kind::HEADERS {
            break frame.payload;
        }
    };
    let mut fields = Vec::new();
    Decoder::default().decode(&mut block, &mut fields).unwrap();
    for (name, is_kept) in [
        ("x-request-id", false),
        ("x-ratelimit-remaining", false),
        ("x-ratelimit-limit", true),
        ("x-ratelimit-resource", true),
    ] {
        let field = fields.iter().find(|(field, ..)| field == name.as_bytes());
        let (.., flags) = field.unwrap_or_else(|| panic!("no {name}"));
        assert_eq!(flags & Decoder::WITH_INDEXING != 0, is_kept, "{name}");
    }
}
