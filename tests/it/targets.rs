//! Spellings of targets and hosts: each is refused, or forwarded byte for byte and charged
//! accordingly.
//!
//! A row has the bytes that are sent and the expected outcome. The outcome `400` is a refusal
//! before any upstream is reached, `workspace@control` is forwarded to `control` and charged to
//! the limit `workspace`, `exempt@data` is forwarded and charged to nothing.

mod control;
mod data;
mod heads;
mod hosts;
mod open;

use weir_tests::config::{Config, DIRECTORY};
use weir_tests::request::CONTROL;
use weir_tests::response::Response;
use weir_tests::upstream::Upstream;
use weir_tests::world::World;

/// Method and target as sent, and the outcome.
pub(crate) type Target = (&'static [u8], &'static str);

/// Everything sent to the control host.
pub(crate) const CONTROL_TARGETS: &[&[Target]] =
    &[control::ROUTES, control::EXEMPT, control::SPELLINGS];
/// Everything sent to an instance.
pub(crate) const DATA_TARGETS: &[&[Target]] = &[data::ROUTES, data::SPELLINGS];

/// Everything sent to another host.
pub(crate) const HOSTS: &[(&[u8], &str, &str)] = hosts::HOSTS;

#[test]
fn targets_on_the_control_plane() {
    check_targets(CONTROL, CONTROL_TARGETS);
}

#[test]
fn targets_on_the_data_plane() {
    check_targets("in_acme.auth.localhost", DATA_TARGETS);
}

#[test]
fn hosts_choose_the_plane_and_nothing_else() {
    let table = Table::new();
    for (host, target, outcome) in hosts::HOSTS {
        let start = [b"GET ", target.as_bytes()].concat();
        table.check(&start, host, outcome);
    }
    table.finish();
}

#[test]
fn heads_that_two_parsers_could_read_differently() {
    let table = Table::new();
    for (bytes, outcome) in heads::HEADS {
        let start = bytes.split(|byte| *byte == b'\r' || *byte == b'\n').next().unwrap();
        let start = start.strip_suffix(b" HTTP/1.1").unwrap_or(start);
        let start = start.strip_suffix(b" HTTP/1.0").unwrap_or(start);
        table.check_raw(bytes, start, None, outcome);
    }
    table.finish();
}

#[test]
fn a_malformed_body_is_refused_and_its_connection_ends() {
    // In a separate world: whether the head has been forwarded at this time is a race.
    let world = World::new();
    let mut client = world.client();
    let broken = "POST /v1/me HTTP/1.1\r\nHost: api.localhost\r\nTransfer-Encoding: chunked\r\n\r\n\
        zz\r\nabc\r\n0\r\n\r\n";
    client.exchange(broken).expect_problem(400);
    client.expect_end();
    assert!(world.control.requests().iter().all(|request| request.body.is_empty()));
}

#[test]
fn a_connection_field_that_names_what_a_server_needs_is_charged_to_no_tenant() {
    let world = World::new();
    for connection in ["Host", "close, X-Forwarded-For", "\"Host\"", "a,b,c,d,e,f,g,h,i,j"] {
        let mut client = world.client();
        let line = "GET /v1/workspaces/ws_acme HTTP/1.1\r\nHost: api.localhost\r\n";
        let answer = client.exchange(format!("{line}Connection: {connection}\r\n\r\n"));
        let problem = answer.expect_problem(400);
        assert_eq!(problem["type"], "urn:weir:problem:malformed-request", "{connection}");
    }
    assert_eq!(world.gateway.used("workspace", "ws_acme"), 0);
    world.control.assert_untouched();
}

#[test]
fn the_corpus_keeps_its_size() {
    let count: usize = [CONTROL_TARGETS, DATA_TARGETS].concat().iter().map(|rows| rows.len()).sum();
    assert!(count + hosts::HOSTS.len() + heads::HEADS.len() >= 250);
}

#[test]
fn a_platform_may_name_its_workspaces_otherwise() {
    let directory = DIRECTORY.replace("ws_", "shop_");
    let world = World::of(
        |config| config.with("[identifiers]", "workspace_prefix = \"shop_\""),
        &directory,
    );
    world.get("/v1/workspaces/shop_acme/users").expect(200);
    assert_eq!(world.gateway.used("workspace", "shop_acme"), 1);
    let problem = world.get("/v1/workspaces/ws_acme/users").expect_problem(400);
    assert!(problem["detail"].as_str().unwrap().contains("prefix"), "{problem}");
}

#[test]
fn another_spelling_of_a_host_shares_its_allowance() {
    let world = World::with(|config| config.with("[limits.instance]", "rate = 1\nburst = 1000"));
    let mut remaining = 1000;
    for host in ["in_acme.auth.localhost", "IN_ACME.auth.localhost", "In_Acme.AUTH.LocalHost:80"] {
        for _ in 0..10 {
            let request = format!("GET /login HTTP/1.1\r\nHost: {host}\r\n\r\n");
            let left = world.client().exchange(request).expect(200).allowance().remaining;
            // The bucket refills a little during the test, always less than it has spent.
            assert!(left < remaining + 5, "{host} has {left} left after {remaining}");
            remaining = remaining.min(left);
        }
    }
    assert!(remaining < 980, "{remaining} left of 1000 after 30 requests");
}

#[test]
fn a_pipelined_request_is_charged_like_any_other_or_not_forwarded() {
    let world = World::new();
    let mut client = world.client();
    let one = "GET /v1/workspaces/ws_acme/a HTTP/1.1\r\nHost: api.localhost\r\n\r\n";
    let two = "GET /v1/workspaces/ws_acme/b HTTP/1.1\r\nHost: api.localhost\r\n\r\n";
    let first = client.exchange([one, two].concat()).expect(200);
    assert_eq!(first.allowance().remaining, 59);
    let forwarded = match client.try_read() {
        Ok(second) => {
            assert_eq!(second.expect(200).allowance().remaining, 58);
            2
        }
        Err(_) => 1,
    };
    assert_eq!(world.control.requests().len(), forwarded);
    assert_eq!(world.gateway.used("workspace", "ws_acme"), forwarded as u64);
}

#[test]
fn a_target_of_the_greatest_length_is_forwarded_whole() {
    let world = World::new();
    let target = format!("/v1/workspaces/ws_acme/{}?{}", "a".repeat(8_000), "b".repeat(16_000));
    world.get(&target).expect(200);
    assert_eq!(world.control.only().target(), target.as_bytes());
}

fn check_targets(host: &str, tables: &[&[Target]]) {
    let table = Table::new();
    for (start, outcome) in tables.iter().copied().flatten() {
        table.check(start, host.as_bytes(), outcome);
    }
    table.finish();
}

/// One gateway for many rows, with more allowance than the rows can use.
struct Table {
    world: World,
    wrong: std::cell::RefCell<Vec<String>>,
}

impl Table {
    fn new() -> Self {
        Self::with(|config| config)
    }

    fn with(change: impl FnOnce(Config) -> Config) -> Self {
        let world = World::with(|config| {
            change(config)
                .with("[limits.workspace]", "requests = 1000")
                .with("[plans.enterprise]", "limits.workspace = { requests = 1001 }")
                .with("[limits.organisation]", "requests = 4000")
                .with("[limits.instance]", "rate = 1000\nburst = 4000")
                .with("[limits.batch]", "requests = 500")
                .with("[limits.address]", "requests = 1000")
        });
        Self { world, wrong: Default::default() }
    }

    /// Sends one request, with a body if its method begins with `P`.
    fn check(&self, start: &[u8], host: &[u8], outcome: &str) {
        let body: &[u8] = if start.starts_with(b"P") {
            b"Content-Type: application/json\r\nContent-Length: 2\r\n\r\n[]"
        } else {
            b"\r\n"
        };
        let bytes = [start, b" HTTP/1.1\r\nHost: ", host, b"\r\n", body].concat();
        self.check_raw(&bytes, start, Some(host), outcome);
    }

    /// Sends raw bytes and compares the outcome with the expected one.
    fn check_raw(&self, bytes: &[u8], start: &[u8], host: Option<&[u8]>, expected: &str) {
        let before = self.forwarded();
        let mut client = self.world.client();
        // The gateway may have refused and closed the connection before the last byte.
        let _ = client.try_send(bytes);
        let answer = if start.starts_with(b"HEAD ") {
            client.try_read_head_only()
        } else {
            client.try_read()
        };
        let found = match answer {
            Err(error) => format!("no answer: {error}"),
            Ok(answer) => self.outcome(&answer, &before, start, host),
        };
        if found != expected {
            let sent = bytes.escape_ascii();
            self.wrong.borrow_mut().push(format!("{expected} expected, {found} found: {sent}"));
        }
    }

    fn outcome(
        &self,
        answer: &Response,
        before: &[usize; 3],
        start: &[u8],
        host: Option<&[u8]>,
    ) -> String {
        let upstreams = self.upstreams();
        let reached: Vec<_> = (0..3).filter(|at| self.forwarded()[*at] != before[*at]).collect();
        let Some(at) = reached.first() else {
            return refusal(answer);
        };
        let (name, upstream) = upstreams[*at];
        let received = upstream.last();
        let line = [&origin_form(start), b" HTTP/1.1\r\n".as_slice()].concat();
        if !received.head.raw.starts_with(&line) {
            return format!("{name} received {:?}", received.head.start);
        }
        if host.is_some_and(|host| received.head.field("host") != trimmed(host).as_deref()) {
            return format!("{name} received host {:?}", received.head.all("host"));
        }
        if answer.status != 200 {
            return format!("{} after {name} was reached", answer.status);
        }
        let resources = answer.head.all("x-ratelimit-resource");
        format!("{}@{name}", resources.first().unwrap_or(&"exempt"))
    }

    fn upstreams(&self) -> [(&'static str, &Upstream); 3] {
        let World { control, data, dispatcher, .. } = &self.world;
        [("control", control), ("data", data), ("dispatcher", dispatcher)]
    }

    fn forwarded(&self) -> [usize; 3] {
        self.upstreams().map(|(_, upstream)| upstream.requests().len())
    }

    #[track_caller]
    fn finish(&self) {
        let wrong = self.wrong.borrow();
        assert!(wrong.is_empty(), "{} rows differ:\n{}", wrong.len(), wrong.join("\n"));
    }
}

/// An absolute-form target repeats the host; the upstream gets only its path and query.
fn origin_form(start: &[u8]) -> Vec<u8> {
    let text = String::from_utf8_lossy(start);
    match text
        .split_once(" http://")
        .and_then(|(method, rest)| Some((method, rest.split_once('/')?)))
    {
        Some((method, (_, path))) => format!("{method} /{path}").into_bytes(),
        None => start.to_vec(),
    }
}

/// Checks that a refusal is the gateway's problem document without a `Server` field; returns the
/// status.
fn refusal(answer: &Response) -> String {
    let kind = answer.field("content-type").unwrap_or_default();
    if !kind.starts_with("application/problem+json") {
        return format!("{} as {kind:?}", answer.status);
    }
    match answer.field("server") {
        Some(server) => format!("{} naming {server}", answer.status),
        None => answer.status.to_string(),
    }
}

fn trimmed(host: &[u8]) -> Option<String> {
    Some(String::from_utf8_lossy(host).trim().to_owned())
}
