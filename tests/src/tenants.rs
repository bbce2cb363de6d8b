//! Two workspaces on one platform: one loads it as much as its allowance permits; the other is
//! measured, alone and meanwhile.
//!
//! Here: the platform, and the measured calls. In `moves`: the load of the first workspace. The
//! test `tenants` and the bench `tenants` compare the figures.

mod moves;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use serde_json::json;

pub use self::moves::{Move, WORST};
use crate::api::Api;
use crate::client::Client;
use crate::config::Config;
use crate::dispatcher::{self, ACME, Dispatcher, QUIET};
use crate::receiver::Receiver;
use crate::request::Request;
use crate::upstream::{Seen, Upstream};
use crate::wait;
use crate::world::World;

/// Both workspaces have this allowance, each in an organisation of its own.
const DIRECTORY: &str = r#"
[organisations.org_acme]
[organisations.org_quiet]
[workspaces.ws_acme]
organisation = "org_acme"
plan = "enterprise"
[workspaces.ws_quiet]
organisation = "org_quiet"
plan = "enterprise"
"#;

/// The workspace whose figures are measured.
const MEASURED: &str = "ws_quiet";

/// The rate limit of an endpoint, in deliveries per [`WINDOW`].
const PACE: u32 = 25;
const WINDOW: &str = "500ms";

/// Events a second that the measured workspace posts for the shared endpoint: 60 % of the rate
/// limit.
const SHARED_RATE: u32 = PACE * 2 * 6 / 10;

/// The deadline of an attempt: short, so that many attempts time out.
pub(crate) const DEADLINE: Duration = Duration::from_secs(2);

/// How much is measured.
#[derive(Clone, Copy, Debug)]
pub struct Scale {
    /// Webhooks that are registered, one after another, each with a first event.
    pub webhooks: usize,
    /// Requests through the gateway, one after another with pauses of 10 ms.
    pub requests: usize,
    /// Events for the endpoint that both workspaces use.
    pub shared: u32,
}

/// The measurements of a workspace. Times are in milliseconds.
#[derive(Clone, Debug, Default)]
pub struct Figures {
    /// Registering a webhook by name, through the gateway: the median.
    pub registration: f64,
    /// From the post of an event for a new webhook to its arrival: the median.
    pub first_delivery: f64,
    /// From the first post for the shared endpoint to the last arrival.
    pub shared_endpoint: f64,
    /// The response time of a backend through the gateway: the 99th percentile.
    pub gateway_p99: f64,
    /// Responses through the gateway with another status than the backend's 200.
    pub failures: usize,
}

impl Figures {
    /// The figures by name, in milliseconds.
    #[must_use]
    pub fn rows(&self) -> [(&'static str, f64); 4] {
        [
            ("registration", self.registration),
            ("first delivery", self.first_delivery),
            ("shared endpoint", self.shared_endpoint),
            ("gateway p99", self.gateway_p99),
        ]
    }
}

/// Both programs, two backends, and the receivers of both workspaces.
pub struct Platform {
    gateway: World,
    dispatcher: Dispatcher,
    /// The second server of the control upstream.
    _second: Upstream,
    /// Receives for the measured workspace alone.
    own: Receiver,
    /// Receives for both at one URL.
    shared: Receiver,
    /// Receives for the other workspace.
    hostile: Receiver,
    registered: AtomicUsize,
}

impl Platform {
    /// Starts everything; names that end in `.silent` have name servers that never answer, by
    /// this library ([`crate::silent_dns`]).
    #[track_caller]
    pub fn start(silent_names: &Path) -> Self {
        let preload = [("LD_PRELOAD", silent_names.display().to_string())];
        let dispatcher = Dispatcher::start_with(&preload, &dispatching(), DIRECTORY);
        let second = Upstream::start();
        let gateway = World::of(|config| proxying(config, &dispatcher, &second), DIRECTORY);
        for backend in [&gateway.control, &second] {
            backend.answer(moves::backend);
        }
        let [own, shared, hostile] = [(); 3].map(|()| Receiver::start());
        hostile.answer(moves::receiver);
        hostile.upstream().forget();
        let registered = AtomicUsize::new(0);
        Self { gateway, dispatcher, _second: second, own, shared, hostile, registered }
    }

    /// Measures.
    #[track_caller]
    pub fn measure(&self, scale: Scale) -> Figures {
        let (registration, first_delivery) = self.new_webhooks(scale.webhooks);
        let (gateway_p99, failures) = self.requests(scale.requests);
        let shared_endpoint = self.share(scale.shared);
        Figures { registration, first_delivery, shared_endpoint, gateway_p99, failures }
    }

    /// Measures while the other workspace makes these moves.
    #[track_caller]
    pub fn measure_beside(&self, moves: &[Move], scale: Scale) -> Figures {
        moves::beside(self, moves, || self.measure(scale))
    }

    /// The owner of the measured workspace, through the gateway.
    fn measured(&self) -> Api<'_> {
        self.dispatcher.api(QUIET, MEASURED).through(self.gateway.gateway.http())
    }

    /// The owner of the other workspace, through the gateway.
    fn other(&self) -> Api<'_> {
        self.dispatcher.api(ACME, "ws_acme").through(self.gateway.gateway.http())
    }

    /// The URL of an endpoint on a receiver, by a name that must be looked up.
    fn by_name(receiver: &Receiver, path: &str) -> String {
        receiver.url(path).replace("127.0.0.1", "localhost")
    }

    #[track_caller]
    fn new_webhooks(&self, count: usize) -> (f64, f64) {
        let (mut registrations, mut deliveries) = (Vec::new(), Vec::new());
        for _ in 0..count {
            let path = format!("/new/{}", self.registered.fetch_add(1, Ordering::Relaxed));
            let body = json!({
                "url": Self::by_name(&self.own, &path),
                "events": ["tenant.created"],
            });
            let from = wait::now();
            let webhook = self.measured().post("/webhooks", &body).expect(201).json();
            registrations.push(millis(from.elapsed()));
            let from = wait::now();
            self.dispatcher.post(&dispatcher::event(MEASURED, "tenant.created"));
            let arrived =
                |seen: &Seen| seen.requests.iter().any(|one| one.target() == path.as_bytes());
            wait::until("a first delivery", || self.own.upstream().look(arrived).then_some(()));
            deliveries.push(millis(from.elapsed()));
            let path = format!("/webhooks/{}", webhook["id"].as_str().unwrap());
            self.measured().call("DELETE", &path, None).expect(204);
        }
        (quantile(registrations, 0.5), quantile(deliveries, 0.5))
    }

    #[track_caller]
    fn requests(&self, count: usize) -> (f64, usize) {
        let mut client = Client::connect(self.gateway.gateway.http());
        let request = Request::get(&format!("/v1/workspaces/{MEASURED}/things"));
        let (mut times, mut failures) = (Vec::new(), 0);
        for _ in 0..count {
            let from = wait::now();
            failures += usize::from(client.call(&request).status != 200);
            times.push(millis(from.elapsed()));
            wait::pass(Duration::from_millis(10));
        }
        (quantile(times, 0.99), failures)
    }

    #[track_caller]
    fn share(&self, events: u32) -> f64 {
        let body = json!({ "url": self.shared.url("/both"), "events": ["session.started"] });
        let webhook = self.measured().post("/webhooks", &body).expect(201).json();
        let arrived = Arc::new(AtomicUsize::new(0));
        let mark = webhook["id"].as_str().unwrap().to_owned();
        let from = wait::now();
        let ids: Vec<String> = (0..events)
            .map(|number| {
                let at = Duration::from_secs(1) * number / SHARED_RATE;
                wait::pass(at.saturating_sub(from.elapsed()));
                self.dispatcher.post(&dispatcher::event(MEASURED, "session.started"))
            })
            .collect();
        let there = || {
            let count = self.shared.upstream().look(|seen| {
                let heads = seen.requests.iter().filter_map(|one| one.head.field("webhook-id"));
                heads.filter(|id| ids.iter().any(|own| own == id)).count()
            });
            arrived.store(count, Ordering::Relaxed);
            (count >= ids.len()).then_some(())
        };
        wait::within(wait::PATIENCE * 3, there).unwrap_or_else(|| {
            panic!("{arrived:?} of {} events have arrived at the shared endpoint", ids.len())
        });
        let took = millis(from.elapsed());
        self.measured().call("DELETE", &format!("/webhooks/{mark}"), None).expect(204);
        took
    }
}

fn dispatching() -> Config {
    let egress =
        format!("deadline = \"{}s\"\nrequests = {PACE}\nwindow = \"{WINDOW}\"", DEADLINE.as_secs());
    dispatcher::config().with("[egress]", &egress)
}

fn proxying(config: Config, dispatcher: &Dispatcher, second: &Upstream) -> Config {
    let first = config.to_string();
    let first = first.lines().skip_while(|line| *line != "[upstreams.control]").nth(1).unwrap();
    let both = first.replace(']', &format!(", \"{}\"]", second.address()));
    let servers = format!("servers = [\"{}\"]", dispatcher.api_address());
    config
        .with("[upstreams.control]", &both)
        .with("[upstreams.dispatcher]", &servers)
        .with("[limits.organisation]", "requests = 1200")
        .with(
            "[[routes]]",
            r#"
            plane = "control"
            methods = ["POST"]
            path = "/v1/workspaces/{workspace}/deliveries:redeliver"
            limits = ["workspace", "organisation"]
            upstream = "dispatcher"
            "#,
        )
}

fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1_000.0
}

fn quantile(mut samples: Vec<f64>, share: f64) -> f64 {
    samples.sort_by(f64::total_cmp);
    let last = samples.len().saturating_sub(1);
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a place in a list"
    )]
    let at = (last as f64 * share).round() as usize;
    samples.get(at).copied().unwrap_or_default()
}
