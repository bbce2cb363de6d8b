//! The callers: backends that post events until the run ends, and repeat an unanswered call with
//! the same event ids; and an owner who pings, redelivers and reactivates.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde_json::{Value, json};

use super::cast::{HOOKS, WORKSPACES};
use super::events::{Event, Mark, given_id};
use super::history::{Answered, History, Redelivered};
use super::receivers::Receivers;
use super::victim::{Addresses, TOKEN};
use crate::client::Client;
use crate::request::Request;
use crate::response::Response;
use crate::rng::SeededRng;
use crate::wait::{self, Deadline};

/// How long a call is repeated until it is accepted.
const PERSISTENCE: Duration = Duration::from_secs(120);

/// Above this number of outstanding deliveries backends post less: what is left at the end of a run
/// still has to be sent, at the endpoints' rate limits.
const OUTSTANDING_MAX: u64 = 6_000;

/// The result of a call.
enum Outcome {
    /// A response.
    Answer(Box<Response>),
    /// Sent, at least in part, without a response.
    Nothing,
    /// Not sent: the connection was refused.
    Closed,
}

/// A connection that is opened again after it was closed.
struct Line<'a> {
    address: &'a str,
    client: Option<Client>,
}

impl<'a> Line<'a> {
    fn to(address: &'a str) -> Self {
        Self { address, client: None }
    }

    fn call(&mut self, request: &Request) -> Outcome {
        let Some(mut client) = self.open() else { return Outcome::Closed };
        let bytes = [request.head_bytes(), request.body_bytes()].concat();
        match client.try_exchange(&bytes) {
            Ok(answer) => {
                let closes = answer.field("connection").is_some_and(|says| says == "close");
                self.client = Some(client).filter(|_| !closes);
                Outcome::Answer(Box::new(answer))
            }
            Err(_) => Outcome::Nothing,
        }
    }

    /// Sends, and closes the connection without reading the response.
    fn send_and_close(&mut self, request: &Request) -> Outcome {
        let Some(mut client) = self.open() else { return Outcome::Closed };
        let _ = client.try_send([request.head_bytes(), request.body_bytes()].concat());
        Outcome::Nothing
    }

    fn open(&mut self) -> Option<Client> {
        self.client.take().or_else(|| Client::try_connect(self.address).ok())
    }
}

fn request(method: &str, target: &str, body: Option<String>) -> Request {
    let request = Request::new(method, target).field("Authorization", &format!("Bearer {TOKEN}"));
    match body {
        Some(body) => request.field("Content-Type", "application/json").body(body),
        None => request,
    }
}

/// A backend: posts until `over` is set, and finishes its last call. Its largest calls have up to
/// `burst` events.
pub fn backend(
    history: &History,
    addresses: &Addresses,
    stream: u64,
    burst: u64,
    over: &AtomicBool,
) {
    let mut rng = SeededRng::stream(history.seed, stream);
    let mut line = Line::to(&addresses.ingest);
    while !over.load(Ordering::SeqCst) {
        let count = match rng.below(1_000) {
            0..700 => 1,
            700..960 => 2 + rng.below(18),
            960..998 => 20 + rng.below(80),
            _ => burst / 2 + rng.below(burst / 2),
        };
        let given_ids = rng.chance(50);
        let number = history.call(count, given_ids);
        post(history, &mut line, &mut rng, number, over);
        let outstanding = {
            let state = history.state();
            state.owed.saturating_sub(state.settled)
        };
        let crowded = if outstanding > OUTSTANDING_MAX { 20 } else { 1 };
        wait::pass(rng.millis(20, 800) * crowded);
    }
}

/// Makes a call; a call with event ids is repeated with the same ids until it is accepted.
fn post(
    history: &History,
    line: &mut Line<'_>,
    rng: &mut SeededRng,
    number: u64,
    over: &AtomicBool,
) {
    let Some(call) = history.state().calls.get(&number).cloned() else { return };
    let events: Vec<String> = (0..call.count)
        .map(|nth| {
            let mark = Mark { call: number, nth };
            let id = call.given_ids.then(|| given_id(mark));
            Event::new(history.seed, mark).posted(id.as_deref())
        })
        .collect();
    let body = if call.count == 1 { events.concat() } else { format!("[{}]", events.join(",")) };
    let request = request("POST", "/internal/v1/events", Some(body));
    let deadline = Deadline::after(PERSISTENCE);
    loop {
        let at = history.now();
        let came = if rng.chance(2) { line.send_and_close(&request) } else { line.call(&request) };
        match came {
            Outcome::Answer(answer) if answer.status == 202 => {
                history.count_202();
                let (ids, new) = ids(&answer.json());
                if ids.len() as u64 != call.count {
                    let (count, text) = (call.count, answer.text());
                    history.violation(format!("call {number}: expected {count} ids, found {text}"));
                }
                history.answered(number, at, Answered::Taken { new }, ids);
                return;
            }
            Outcome::Answer(answer) => {
                history.answered(number, at, Answered::Refused(answer.status), Vec::new());
                if answer.status != 503 {
                    let (found, text) = (answer.status, answer.text());
                    history.violation(format!("call {number}: unexpected status {found}: {text}"));
                    return;
                }
            }
            Outcome::Nothing => history.answered(number, at, Answered::CutOff, Vec::new()),
            Outcome::Closed => {}
        }
        let sent = history.state().calls.get(&number).is_some_and(|call| call.sent > 0);
        if deadline.left().is_none() {
            history.violation(format!("call {number} is not acknowledged within {PERSISTENCE:?}"));
            return;
        }
        if sent && !call.given_ids || !sent && over.load(Ordering::SeqCst) {
            return;
        }
        wait::pass(rng.millis(20, 500));
    }
}

/// The event ids of a response, and whether any event was new.
fn ids(answer: &Value) -> (Vec<String>, bool) {
    let events = answer["events"].as_array().map(Vec::as_slice).unwrap_or_default();
    let ids = events.iter().filter_map(|one| one["id"].as_str().map(str::to_owned)).collect();
    (ids, events.iter().any(|one| one["new"] == true))
}

/// An owner of every workspace.
pub struct Owner<'a> {
    history: &'a History,
    receivers: &'a Receivers,
    line: Line<'a>,
    admin: &'a str,
    /// The webhooks' ids, in the order of [`HOOKS`].
    pub webhooks: Vec<String>,
}

/// A delivery that was given up.
#[derive(Clone, Debug)]
pub struct GivenUp {
    /// Its event.
    pub event: String,
    /// Its endpoint.
    pub endpoint: usize,
    /// Whether it was a ping.
    pub is_ping: bool,
}

impl<'a> Owner<'a> {
    /// Registers every webhook, and returns their secrets too.
    pub fn register(
        history: &'a History,
        receivers: &'a Receivers,
        addresses: &'a Addresses,
    ) -> (Self, Vec<String>) {
        let line = Line::to(&addresses.api);
        let admin = &addresses.admin;
        let mut owner = Self { history, receivers, line, admin, webhooks: Vec::new() };
        let mut secrets = Vec::new();
        for (workspace, endpoint, kinds) in HOOKS {
            let kinds: Vec<&str> = kinds.iter().map(|kind| super::cast::KINDS[*kind]).collect();
            let body = json!({ "url": receivers.url(endpoint), "events": kinds });
            let made = owner.call("POST", workspace, "/webhooks", Some(body));
            let made = made.expect("no response, before any fault").expect(201).json();
            owner.webhooks.push(made["id"].as_str().unwrap().to_owned());
            secrets.push(made["secret"].as_str().unwrap().to_owned());
        }
        (owner, secrets)
    }

    fn call(
        &mut self,
        method: &str,
        workspace: usize,
        path: &str,
        body: Option<Value>,
    ) -> Option<Response> {
        let target = format!("/v1/workspaces/{}{path}", WORKSPACES[workspace]);
        match self.line.call(&request(method, &target, body.map(|body| body.to_string()))) {
            Outcome::Answer(answer) => Some(*answer),
            Outcome::Nothing | Outcome::Closed => None,
        }
    }

    /// Repeats a GET until it is answered 200, or a POST with a body until it is answered 202.
    fn retry(&mut self, workspace: usize, path: &str, body: Option<Value>) -> Value {
        let (method, status) = if body.is_some() { ("POST", 202) } else { ("GET", 200) };
        let answered = wait::within(PERSISTENCE, || {
            let answer = self.call(method, workspace, path, body.clone())?;
            (answer.status == status).then(|| answer.json())
        });
        answered.unwrap_or_else(|| panic!("{method} {path}: no {status} within {PERSISTENCE:?}"))
    }

    /// Pings, redelivers and reactivates at random until `over` is set.
    pub fn work(&mut self, over: &AtomicBool) {
        let mut rng = SeededRng::stream(self.history.seed, 2);
        while !over.load(Ordering::SeqCst) {
            wait::pass(rng.millis(50, 1_000));
            match rng.below(10) {
                0..3 => self.ping(rng.below(HOOKS.len() as u64) as usize),
                3..5 => self.redeliver_one(&mut rng),
                _ => self.reactivate(),
            }
        }
    }

    /// Reactivates the paused webhooks whose endpoints are healthy again.
    pub fn reactivate(&mut self) {
        for (at, (workspace, endpoint, _)) in HOOKS.iter().enumerate() {
            let path = format!("/webhooks/{}", self.webhooks[at]);
            let Some(answer) = self.call("GET", *workspace, &path, None) else { return };
            let paused = answer.status == 200 && answer.json()["state"] == "paused";
            if paused && self.receivers.is_healthy(*endpoint) {
                let answer = self.call("POST", *workspace, &format!("{path}:reactivate"), None);
                self.history.note(format_args!(
                    "reactivate e{endpoint}: {:?}",
                    answer.map(|answer| answer.status)
                ));
            }
        }
    }

    fn ping(&mut self, hook: usize) {
        let path = format!("/webhooks/{}:ping", self.webhooks[hook]);
        let Some(answer) = self.call("POST", HOOKS[hook].0, &path, None) else { return };
        if answer.status != 202 {
            return;
        }
        let delivery = answer.json();
        let id = delivery["event_id"].as_str().unwrap().to_owned();
        self.history.note(format_args!("ping {id}"));
        self.history.state().pings.entry(id).or_default().taken = true;
    }

    fn redeliver_one(&mut self, rng: &mut SeededRng) {
        let workspace = rng.below(WORKSPACES.len() as u64) as usize;
        let path = "/deliveries?state=delivered&limit=20";
        let Some(answer) = self.call("GET", workspace, path, None) else { return };
        if answer.status != 200 {
            return;
        }
        let page = answer.json();
        let listed = page["data"].as_array().map(Vec::as_slice).unwrap_or_default();
        if listed.is_empty() {
            return;
        }
        let one = rng.pick(listed).unwrap();
        let [id, event, webhook] =
            ["id", "event_id", "webhook_id"].map(|name| one[name].as_str().unwrap_or_default());
        let hook = self.webhooks.iter().position(|known| known == webhook);
        let mark = self.history.state().marks.get(event).copied();
        let (Some(hook), Some(mark)) = (hook, mark) else { return };
        let pair = (mark, HOOKS[hook].1);
        let at = self.history.now();
        // In the history before the call: a call without a response may have been executed.
        let asked = |taken| {
            let mut state = self.history.state();
            let all = state.redelivered.entry(pair).or_default();
            all.retain(|one| one.at != at);
            all.push(Redelivered { at, taken });
        };
        asked(false);
        let path = format!("/deliveries/{id}:redeliver");
        let status = self.call("POST", workspace, &path, None).map(|answer| answer.status);
        asked(status == Some(202));
        self.history.note(format_args!("redeliver {mark} at e{}: {status:?}", pair.1));
    }

    /// Reactivates paused webhooks until no delivery waits and no attempt is in flight; false after
    /// `patience`.
    pub fn drain(&mut self, patience: Duration) -> bool {
        let drained = wait::within(patience, || {
            self.reactivate();
            wait::pass(Duration::from_millis(100));
            let [waiting, in_flight] = ["deliveries_waiting", "attempts_in_flight"]
                .map(|name| self.metric(&format!("weir_dispatcher_{name}")));
            (waiting? == 0.0 && in_flight? == 0.0).then_some(())
        });
        drained.is_some()
    }

    fn metric(&self, name: &str) -> Option<f64> {
        let mut client = Client::try_connect(self.admin).ok()?;
        let request = Request::get("/metrics");
        let page = client.try_exchange(request.head_bytes()).ok()?.text();
        let line = page.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '))?;
        line.trim().parse().ok()
    }

    /// The deliveries that were given up, of all workspaces.
    pub fn given_up(&mut self) -> Vec<GivenUp> {
        let mut all = Vec::new();
        for workspace in 0..WORKSPACES.len() {
            let mut cursor = String::new();
            loop {
                let path = format!("/deliveries?state=failed_permanent&limit=100{cursor}");
                let page = self.retry(workspace, &path, None);
                for one in page["data"].as_array().unwrap_or(&Vec::new()) {
                    let webhook = one["webhook_id"].as_str();
                    let hook =
                        self.webhooks.iter().position(|known| Some(known.as_str()) == webhook);
                    let Some(hook) = hook else { continue };
                    all.push(GivenUp {
                        event: one["event_id"].as_str().unwrap_or_default().to_owned(),
                        endpoint: HOOKS[hook].1,
                        is_ping: one["type"] == "webhook.ping",
                    });
                }
                let Some(next) = page["next_cursor"].as_str() else { break };
                cursor = format!("&cursor={next}");
            }
        }
        all
    }

    /// Redelivers everything that was given up.
    pub fn redeliver_all(&mut self) {
        for workspace in 0..WORKSPACES.len() {
            let body = json!({ "state": "failed_permanent" });
            let job = self.retry(workspace, "/deliveries:redeliver", Some(body));
            let path = format!("/redeliveries/{}", job["id"].as_str().unwrap());
            let done = wait::within(PERSISTENCE, || {
                let job = self.retry(workspace, &path, None);
                (job["state"] == "done").then_some(())
            });
            if done.is_none() {
                self.history.violation(format!("job {path} is not done within {PERSISTENCE:?}"));
            }
        }
    }
}
