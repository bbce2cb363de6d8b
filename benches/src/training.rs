//! The requests that a gateway answers while its profile is recorded: the kinds of production, in
//! its shares.
//!
//! Counts are fixed, so that two runs record the same up to what threads and timers do. Every
//! response is checked to be the one its part is about; the first other one ends the process. A
//! gateway is stopped in order, for only then it writes what it counted.
//!
//! Not here: what becomes of the profile (`scripts/release`).

use std::net::SocketAddr;
use std::path::Path;

use serde_json::json;
use weir_tests::answer::Answer;
use weir_tests::client::Client;
use weir_tests::issuer::{AUDIENCE, ISSUER, Signer, published};
use weir_tests::request::Request;
use weir_tests::response::Response;
use weir_tests::upstream::Upstream;

use crate::flags::fail;
use crate::lab::{Folder, Process};
use crate::secure::{self, Pair, Version};
use crate::shared::{self, RedisServer};
use crate::targets::{
    BODY, Limits, Plane, Target, run_weir, upstream, upstream_with, weir, weir_with,
};

const SHIPPED: &str = include_str!("../../config/gateway.toml");
const DIRECTORY: &str = include_str!("../../config/directory.toml");

/// Connections that requests are sent on at one time.
const CONNECTIONS: usize = 32;
/// Requests on one connection: the gateway accepts and closes now and then, too.
const REQUESTS_PER_CONNECTION: usize = 200;
/// Of each part, so that the smallest still has one for each connection and kind.
const REQUESTS_MIN: usize = 80;
/// Handshakes by TLS come in as many turns, sixteen at a time.
const TURNS: usize = 5;

/// Requests to one workspace of the shipped configuration: none reaches a limit (60; 5 batches).
const PER_WORKSPACE: usize = 40;
/// Workspaces that ask in turn where limits are shared: hardly any two connections ask of one at
/// once.
const SHARED_WORKSPACES: usize = 2_000;
/// Far fewer than these workspaces need, and more than heartbeats are.
const SHARED_CALLS_MIN: f64 = 40.0;
const BODY_BYTES: usize = 4 * 1024;
const UPLOAD_BYTES: usize = 64 * 1024;
const PAGE_BYTES: usize = 32 * 1024;
/// A response whose length the head does not announce.
const CHUNKED: &str = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\
    Transfer-Encoding: chunked\r\n\r\n9\r\n{\"data\": \r\n3\r\n[]}\r\n0\r\n\r\n";
const CHUNKED_BYTES: usize = 12;
/// Bearers of tokens, which call in turn; every tenth request has a token that is not valid.
const BEARERS: usize = 20;

/// What clients commonly send, for `h2load`.
const FIELDS_H2: [&str; 6] =
    ["-H", "user-agent: acme-sdk/4.2", "-H", "accept: application/json", "-H", AUTHORIZATION_H2];
const AUTHORIZATION_H2: &str = "authorization: Bearer 0b5e8a1f7c9d4e62a3f0";

/// Trains the program `gateway` by about as many `requests`, and prints a line per part.
///
/// Ends the process if a response is not the expected one.
pub fn train(gateway: &Path, requests: usize) {
    let folder = Folder::new("train");
    let up = upstream(&folder);
    let share = |percent: usize| (requests * percent / 100).max(REQUESTS_MIN);
    let weir_row = |name: &str, row, count| {
        let folder = Folder::new(name);
        let target = weir(&folder, gateway, up.aim.address, row);
        send_row(name, &target, count);
        finish(name, count, target.process);
    };
    weir_row("control-logged", (Plane::Control, Limits::Admit, true), share(20));
    weir_row("control", (Plane::Control, Limits::Admit, false), share(8));
    weir_row("data-logged", (Plane::Data, Limits::Admit, true), share(9));
    weir_row("refused-logged", (Plane::Control, Limits::Refuse, true), share(7));
    weir_row("refused", (Plane::Control, Limits::Refuse, false), share(4));
    train_shipped(gateway, share(10));
    train_tokens(gateway, &up, share(6));
    train_shared(gateway, up.aim.address, &share);
    train_tls(gateway, &up, &share);
}

/// What a request should be answered by.
#[derive(Clone, Copy, Debug)]
enum Wanted {
    /// The upstream's 200 with so many bytes, whether or not a limit applied.
    Forwarded { bytes: usize, is_limited: bool },
    /// The gateway's own problem with this status.
    Refused(u16),
}

impl Wanted {
    const SHORT: Self = Self::Forwarded { bytes: BODY.len(), is_limited: true };

    fn is_met(self, response: &Response) -> bool {
        match self {
            Self::Forwarded { bytes, is_limited } => {
                response.status == 200
                    && response.body.len() == bytes
                    && response.field("x-ratelimit-remaining").is_some() == is_limited
            }
            Self::Refused(status) => {
                response.status == status
                    && response.field("content-type") == Some("application/problem+json")
            }
        }
    }
}

/// Sends `count` requests to the target of a row, all of which its limits admit or refuse.
fn send_row(name: &str, target: &Target, count: usize) {
    let request = common(Request::get(&target.aim.path).host(&target.aim.host));
    let mut wanted = Wanted::SHORT;
    if target.limits == Limits::Refuse {
        // A refusing limit admits the first request.
        send(name, target.aim.address, 1, |_| (request.clone(), wanted));
        wanted = Wanted::Refused(429);
    }
    send(name, target.aim.address, count, |_| (request.clone(), wanted));
}

/// The configuration that ships, several workers included: what its routes are for.
fn train_shipped(gateway: &Path, count: usize) {
    let name = "shipped";
    let folder = Folder::new(name);
    let page = folder.write("page.json", &"x".repeat(PAGE_BYTES));
    let up =
        upstream_with(&folder, &format!("location ~ /export$ {{ alias {}; }}", page.display()));
    let chunked = Upstream::start();
    chunked.forget();
    chunked.always(Answer::script().send(CHUNKED));
    let directory = folder.write("directory.toml", DIRECTORY).display().to_string();
    let mut text = SHIPPED.to_owned();
    for (shipped, ours) in [
        ("127.0.0.1:8080", "127.0.0.1:0"),
        ("127.0.0.1:8081", "127.0.0.1:0"),
        ("127.0.0.1:9001", &up.aim.address.to_string()),
        ("127.0.0.1:9002", &up.aim.address.to_string()),
        ("127.0.0.1:9003", &chunked.address()),
        ("config/directory.toml", &directory),
    ] {
        if !text.contains(shipped) {
            fail(&format!("config/gateway.toml no longer has {shipped}"));
        }
        text = text.replace(shipped, ours);
    }
    let (address, process) = run_weir(&folder, name, gateway, &text);
    send(name, address, count, call_of_workspace);
    finish(name, count, process);
}

/// The `nth` of the calls that workspaces make in turn, and what it should be answered by.
fn call_of_workspace(nth: usize) -> (Request, Wanted) {
    let workspace = nth / PER_WORKSPACE;
    let path = |rest: &str| format!("/v1/workspaces/ws_{workspace}/{rest}");
    let forwarded = |bytes| Wanted::Forwarded { bytes, is_limited: true };
    let item = r#"{"name":"Ada Lovelace","email":"ada@acme.example","roles":["owner"]}"#;
    let (request, wanted) = match nth % 20 {
        0..8 => (Request::get(&path("users?limit=50&cursor=b3JnXzAx")), Wanted::SHORT),
        8..11 => (Request::get(&path("reports/export")), forwarded(PAGE_BYTES)),
        11 | 12 => (Request::post(&path("users"), item), Wanted::SHORT),
        13 => (Request::post(&path("files"), vec![b'x'; UPLOAD_BYTES]), Wanted::SHORT),
        14 => (Request::post(&path("files"), "").chunks(&[item, item]), Wanted::SHORT),
        15 | 16 => {
            let items = [item; 20].join(",");
            (Request::post(&path("tenants:batch"), format!("[{items}]")), Wanted::SHORT)
        }
        17 => (Request::get(&path("webhooks")), forwarded(CHUNKED_BYTES)),
        18 => {
            let host = format!("in_{workspace}.auth.localhost");
            let form = "grant_type=authorization_code&code=SplxlOBeZQQYbYS6WxSbIA";
            (Request::post("/oauth/v2/token", form).host(&host), Wanted::SHORT)
        }
        _ => {
            let exempt = Wanted::Forwarded { bytes: BODY.len(), is_limited: false };
            (Request::get("/healthz"), exempt)
        }
    };
    (common(request), wanted)
}

/// Limits that are counted in Redis: windows of one workspace, whose requests share calls, and of
/// many, then a bucket, and a limit that refuses.
fn train_shared(gateway: &Path, upstream: SocketAddr, share: &dyn Fn(usize) -> usize) {
    let folder = Folder::new("shared");
    let redis = RedisServer::start(&folder);
    let target = |database, row| {
        shared::weir(&folder, gateway, (upstream, Some((redis.address, database))), row)
    };
    let name = "shared-windows";
    let windows = target(1, (Plane::Control, Limits::Admit));
    send_row(name, &windows, share(2));
    send(name, windows.aim.address, share(4), |nth| {
        let path = format!("/v1/workspaces/ws_{}/users", nth % SHARED_WORKSPACES);
        (common(Request::get(&path).host(&windows.aim.host)), Wanted::SHORT)
    });
    finish(name, share(2) + share(4), windows.process);
    // While the store is away, a gateway decides alone, and its responses are the same.
    let [calls, _] = redis.scripts();
    if calls < SHARED_CALLS_MIN {
        fail(&format!("{name}: Redis ran {calls} scripts"));
    }
    for (name, database, row, count) in [
        ("shared-bucket", 2, (Plane::Data, Limits::Admit), share(4)),
        ("shared-refused", 3, (Plane::Control, Limits::Refuse), share(2)),
    ] {
        let target = target(database, row);
        send_row(name, &target, count);
        finish(name, count, target.process);
    }
}

/// Bearer tokens, verified by their signature the first time and from the cache after that.
fn train_tokens(gateway: &Path, up: &Target, count: usize) {
    let name = "tokens";
    let folder = Folder::new(name);
    let (server, signer) = (Upstream::start(), Signer::new("first"));
    server.always(Answer::ok(published(&[&signer])));
    let identity = format!(
        "[identity]\nverify = \"jwt\"\nplanes = [\"control\"]\n[identity.jwt]\n\
        jwks_url = \"http://{}/keys\"\nissuer = \"{ISSUER}\"\naudience = [\"{AUDIENCE}\"]",
        server.address()
    );
    let row = (Plane::Control, Limits::Admit, true);
    let target = weir_with(&folder, gateway, up.aim.address, row, &identity);
    let stranger = Signer::new("first");
    let bearing = |signer: &Signer, nth: usize| {
        let claims = json!({ "sub": format!("user-{nth}"), "workspace_id": "ws_acme" });
        let authorization = format!("Bearer {}", signer.token(&claims));
        common(Request::get(&target.aim.path).field("Authorization", &authorization))
    };
    let valid: Vec<Request> = (0..BEARERS).map(|nth| bearing(&signer, nth)).collect();
    let invalid = bearing(&stranger, 0);
    send(name, target.aim.address, count, |nth| match valid.get(nth % valid.len()) {
        Some(valid) if nth % 10 != 9 => (valid.clone(), Wanted::SHORT),
        _ => (invalid.clone(), Wanted::Refused(401)),
    });
    finish(name, count, target.process);
}

/// By TLS: HTTP/1.1, HTTP/2, HTTP/2 with bodies, and HTTP/2 that a limit refuses.
fn train_tls(gateway: &Path, up: &Target, share: &dyn Fn(usize) -> usize) {
    let folder = Folder::new("tls");
    let pair = Pair::new(&folder);
    let body = folder.write("body", &"x".repeat(BODY_BYTES)).display().to_string();
    let posted = ["-d", body.as_str(), "-H", "content-type: application/json"];
    let more = pair.https("127.0.0.1:0");
    for (name, limits, class, parts) in [
        (
            "tls",
            Limits::Admit,
            "2xx",
            vec![
                (Version::One, share(4), FIELDS_H2.as_slice()),
                (Version::Two, share(15), &FIELDS_H2),
                (Version::Two, share(3), &posted),
            ],
        ),
        ("tls-refused", Limits::Refuse, "4xx", vec![(Version::Two, share(2), &FIELDS_H2)]),
    ] {
        let row = (Plane::Control, limits, true);
        let mut target = weir_with(&folder, gateway, up.aim.address, row, &more);
        // Without TLS: a response of its kind, and the one that a refusing limit admits.
        send_row(name, &target, 1);
        target.aim.address = target.https();
        let mut count = 0;
        for (version, requests, fields) in parts {
            for _ in 0..TURNS {
                secure::load_as(&target.aim, version, requests / TURNS, class, fields);
                count += requests / TURNS;
            }
        }
        finish(name, count, target.process);
    }
}

/// Sends `count` requests, the `nth` as `call` has it, on [`CONNECTIONS`] at one time.
fn send(
    name: &str,
    address: SocketAddr,
    count: usize,
    call: impl Fn(usize) -> (Request, Wanted) + Sync,
) {
    let each = |first: usize| {
        let numbers: Vec<usize> = (first..count).step_by(CONNECTIONS).collect();
        for numbers in numbers.chunks(REQUESTS_PER_CONNECTION) {
            let mut client = Client::try_connect(&address.to_string())
                .unwrap_or_else(|error| fail(&format!("{name}: {error}")));
            for nth in numbers {
                let (request, wanted) = call(*nth);
                let bytes = [request.head_bytes(), request.body_bytes()].concat();
                match client.try_exchange(bytes) {
                    Ok(response) if wanted.is_met(&response) => {}
                    other => fail(&format!("{name}, {nth}: wanted {wanted:?}, but: {other:?}")),
                }
            }
        }
    };
    std::thread::scope(|scope| {
        for first in 0..CONNECTIONS.min(count) {
            scope.spawn(move || each(first));
        }
    });
}

/// With the fields that clients commonly send.
fn common(request: Request) -> Request {
    request
        .field("User-Agent", "acme-sdk/4.2 (linux; x64)")
        .field("Accept", "application/json")
        .field("Accept-Encoding", "gzip, br")
        .field("X-Request-Id", "5f0c6a52-8f0e-4c58-9a37-0d6a3c1b9e44")
}

fn finish(name: &str, count: usize, process: Process) {
    process.stop();
    println!("{name}: {count} requests answered as expected");
}

#[cfg(test)]
mod tests {
    use super::*;

    fn response(status: u16, body: &[u8], fields: &[(&str, &str)]) -> Response {
        let mut response = Response { status, body: body.to_vec(), ..Response::default() };
        let owned = fields.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        response.head.fields = owned.collect();
        response
    }

    #[test]
    fn a_response_of_another_part_is_not_the_wanted_one() {
        let limited = [("X-RateLimit-Remaining", "3")];
        let problem = [("Content-Type", "application/problem+json")];
        assert!(Wanted::SHORT.is_met(&response(200, BODY.as_bytes(), &limited)));
        assert!(!Wanted::SHORT.is_met(&response(200, BODY.as_bytes(), &[])));
        assert!(!Wanted::SHORT.is_met(&response(200, b"cut off", &limited)));
        assert!(!Wanted::SHORT.is_met(&response(429, BODY.as_bytes(), &limited)));
        assert!(Wanted::Refused(429).is_met(&response(429, b"{}", &problem)));
        assert!(!Wanted::Refused(429).is_met(&response(401, b"{}", &problem)));
        assert!(!Wanted::Refused(429).is_met(&response(429, b"{}", &limited)));
    }

    #[test]
    fn no_workspace_reaches_a_limit_of_the_shipped_configuration() {
        let of_one = (0..PER_WORKSPACE).map(|nth| call_of_workspace(nth).0.head_bytes());
        let batches = of_one.filter(|head| String::from_utf8_lossy(head).contains(":batch"));
        assert!(PER_WORKSPACE <= 60 && batches.count() <= 5);
    }
}
