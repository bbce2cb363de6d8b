//! The load that a workspace can cause within its allowance: each [`Move`] loads one shared
//! resource.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};

use super::{DEADLINE, Platform};
use crate::answer::Answer;
use crate::client::Client;
use crate::dispatcher;
use crate::request::{Request, data_host};
use crate::upstream::Received;
use crate::wait;

/// The maximum of webhooks of a workspace; the moves that need webhooks share them.
const WEBHOOKS: usize = 20;

/// Events of the other workspace that wait when the measuring begins.
const BACKLOG: usize = 100;

/// Events of one large call.
const LARGE_CALL: usize = 100;

/// Connections that wait for a backend that does not answer.
const HANGING: usize = 40;

/// One kind of load by the other workspace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Move {
    /// Webhooks whose names never resolve, changed repeatedly.
    SilentNames,
    /// Webhooks at the URL of the measured workspace.
    SharedUrl,
    /// Receivers that answer 200 just before the deadline.
    SlowReceivers,
    /// Receivers that never answer.
    UnresponsiveReceivers,
    /// Receivers whose heads are large, and whose interim answers never end.
    LargeHeads,
    /// Receivers that answer 503.
    FailingReceivers,
    /// Webhooks that are pinged repeatedly.
    Pings,
    /// Redelivery jobs, one after another.
    Jobs,
    /// Calls of many events.
    LargeCalls,
    /// An endpoint of the shared backends that answers 503.
    FailingBackend,
    /// An endpoint of the shared backends that does not answer.
    HangingBackend,
    /// Workspaces and instances that do not exist.
    InventedNames,
}

/// All of them.
pub const WORST: [Move; 12] = [
    Move::SilentNames,
    Move::SharedUrl,
    Move::SlowReceivers,
    Move::UnresponsiveReceivers,
    Move::LargeHeads,
    Move::FailingReceivers,
    Move::Pings,
    Move::Jobs,
    Move::LargeCalls,
    Move::FailingBackend,
    Move::HangingBackend,
    Move::InventedNames,
];

impl Move {
    /// Its name in tables.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::SilentNames => "silent names, PATCHed",
            Self::SharedUrl => "the same URL, many times",
            Self::SlowReceivers => "slow receivers",
            Self::UnresponsiveReceivers => "unresponsive receivers",
            Self::LargeHeads => "large heads, endless 1xx",
            Self::FailingReceivers => "receivers that answer 503",
            Self::Pings => "pings",
            Self::Jobs => "redelivery jobs",
            Self::LargeCalls => "large calls",
            Self::FailingBackend => "a backend's 503",
            Self::HangingBackend => "a backend that hangs",
            Self::InventedNames => "invented names",
        }
    }

    /// The URL of its webhooks, where it has any.
    fn url(self, platform: &Platform, number: usize) -> Option<String> {
        let hostile = |path: &str| Some(platform.hostile.url(&format!("/{path}/{number}")));
        match self {
            Self::SilentNames => Some(format!("http://n{number}.silent:8443/hook")),
            Self::SharedUrl => Some(platform.shared.url("/both")),
            Self::SlowReceivers => hostile("slow"),
            Self::UnresponsiveReceivers => hostile("unresponsive"),
            Self::LargeHeads => hostile(if number.is_multiple_of(2) { "head" } else { "interim" }),
            Self::FailingReceivers => hostile("failing"),
            Self::Pings | Self::Jobs | Self::LargeCalls => hostile("well"),
            Self::FailingBackend | Self::HangingBackend | Self::InventedNames => None,
        }
    }

    /// Performs the move once, and returns the pause before the next time; `None` for a move that
    /// consists only of its webhooks and their events.
    fn act(self, platform: &Platform, webhooks: &[String], number: usize) -> Option<Duration> {
        let webhook = webhooks.get(number % webhooks.len().max(1)).map_or("", String::as_str);
        let path = format!("/webhooks/{webhook}");
        let pause = match self {
            Self::SilentNames => {
                let url = format!("http://p{number}.silent:8443/hook");
                call(
                    platform,
                    &platform.other().request("PATCH", &path, Some(&json!({ "url": url }))),
                );
                200
            }
            Self::Pings => {
                call(platform, &platform.other().request("POST", &format!("{path}:ping"), None));
                100
            }
            Self::Jobs => {
                let waiting = json!({ "state": "waiting" });
                let path = "/deliveries:redeliver";
                call(platform, &platform.other().request("POST", path, Some(&waiting)));
                100
            }
            Self::LargeCalls => {
                let events = events(LARGE_CALL).to_string();
                let call = dispatcher::ingest_request("application/json", &events);
                send(platform.dispatcher.ingest_address(), &call);
                500
            }
            Self::FailingBackend => {
                call(platform, &Request::get("/v1/workspaces/ws_acme/failing"));
                20
            }
            Self::InventedNames => {
                let names = [
                    Request::get(&format!("/v1/workspaces/ws_invented{number}/x")),
                    Request::get("/x").host(&data_host(&format!("in_invented{number}"))),
                ];
                names.iter().for_each(|request| call(platform, request));
                20
            }
            Self::HangingBackend
            | Self::SharedUrl
            | Self::SlowReceivers
            | Self::UnresponsiveReceivers
            | Self::LargeHeads
            | Self::FailingReceivers => return None,
        };
        Some(Duration::from_millis(pause))
    }
}

/// The response of the other workspace's receiver, by the first segment of the path.
pub(super) fn receiver(request: &Received) -> Answer {
    let target = String::from_utf8_lossy(&request.target()).into_owned();
    let interim = "HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n";
    match target.split('/').nth(1).unwrap_or_default() {
        "slow" => Answer::script().pause(DEADLINE * 9 / 10).and(Answer::status(200)),
        "unresponsive" => Answer::script().pause(DEADLINE * 2).close(),
        "head" => Answer::status(200).field("X-Large", &"x".repeat(380 << 10)),
        // As fast as they are read, for half a minute at most.
        "interim" => Answer::script().drip(interim.repeat(1_000), 30_000, Duration::ZERO),
        "failing" => Answer::status(503).field("Retry-After", "0"),
        _ => Answer::status(200),
    }
}

/// The response of the shared backends.
pub(super) fn backend(request: &Received) -> Answer {
    match request.target() {
        target if target.ends_with(b"/failing") => Answer::status(503),
        target if target.ends_with(b"/hanging") => {
            Answer::script().pause(DEADLINE * 10).and(Answer::status(200))
        }
        _ => Answer::ok("[]"),
    }
}

/// Runs `measure` while all these moves are made.
#[track_caller]
pub(super) fn beside<T>(platform: &Platform, moves: &[Move], measure: impl FnOnce() -> T) -> T {
    let webhooks = register(platform, moves);
    platform.dispatcher.ingest(&events(BACKLOG)).expect(202);
    let over = AtomicBool::new(false);
    let made = AtomicUsize::new(0);
    let hanging: Vec<Client> =
        if moves.contains(&Move::HangingBackend) { hang(platform) } else { Vec::new() };
    let measured = thread::scope(|scope| {
        for (one, own) in &webhooks {
            let (over, made) = (&over, &made);
            scope.spawn(move || {
                while !over.load(Ordering::Relaxed) {
                    let number = made.fetch_add(1, Ordering::Relaxed);
                    let Some(pause) = one.act(platform, own, number) else { return };
                    wait::pass(pause);
                }
            });
        }
        let end = End(&over);
        let measured = measure();
        drop(end);
        measured
    });
    drop(hanging);
    for id in webhooks.iter().flat_map(|(_, own)| own) {
        platform.dispatcher.acme().call("DELETE", &format!("/webhooks/{id}"), None).expect(204);
    }
    measured
}

/// Ends the moves on drop, also if measuring panics.
struct End<'a>(&'a AtomicBool);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Registers the webhooks of each move; together they use the whole maximum.
#[track_caller]
fn register(platform: &Platform, moves: &[Move]) -> Vec<(Move, Vec<String>)> {
    let having = moves.iter().filter(|one| one.url(platform, 0).is_some()).count();
    let each = WEBHOOKS / having.max(1);
    let own = |one: &Move| {
        let urls = (0..each).filter_map(|number| one.url(platform, number));
        let acme = platform.dispatcher.acme();
        urls.map(|url| acme.create_webhook(&url, &["user.created"]).id).collect()
    };
    moves.iter().map(|one| (*one, own(one))).collect()
}

/// Requests for a backend that does not answer.
fn hang(platform: &Platform) -> Vec<Client> {
    let request = Request::get("/v1/workspaces/ws_acme/hanging");
    let clients = (0..HANGING).map(|_| {
        let mut client = Client::connect(platform.gateway.gateway.http());
        client.send(request.head_bytes());
        client
    });
    clients.collect()
}

/// Calls the gateway and ignores the result: refusals and broken connections concern only the other
/// workspace.
fn call(platform: &Platform, request: &Request) {
    send(platform.gateway.gateway.http(), request);
}

fn send(address: &str, request: &Request) {
    if let Ok(mut client) = Client::try_connect(address) {
        let _ = client.try_exchange([request.head_bytes(), request.body_bytes()].concat());
    }
}

fn events(count: usize) -> Value {
    (0..count).map(|_| dispatcher::event("ws_acme", "user.created")).collect()
}
