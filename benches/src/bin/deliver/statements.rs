//! Measures the store alone: the statements of the same events, deliveries and records, on the same
//! disk, without HTTP, signatures and receivers.
//!
//! As many calls wait for the store as connections post. One write at a time records all attempts
//! that the store has acknowledged by then, with the health of their webhooks, as the worker does.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::task::JoinSet;
use weir_benches::dispatched::PER_WORKSPACE;
use weir_benches::flags::fail;
use weir_benches::lab::Folder;
use weir_benches::post::{Load, seconds};
use weir_common::secret::Secret;
use weir_common::time::{Clock, Tick, UnixTime};
use weir_dispatcher::domain::attempt::{Attempt, AttemptRecord};
use weir_dispatcher::domain::delivery::{Arrival, NextState};
use weir_dispatcher::domain::event::{EventSet, EventType};
use weir_dispatcher::domain::health::{Observation, Policy};
use weir_dispatcher::domain::id::{EndpointId, WebhookId};
use weir_dispatcher::domain::outcome::Outcome;
use weir_dispatcher::domain::trace::Trace;
use weir_dispatcher::domain::webhook::{Webhook, WebhookUpdate};
use weir_dispatcher::store::sqlite::SqliteStore;
use weir_dispatcher::store::types::{Accepted, Created, NewEvent, NewWebhook};
use weir_dispatcher::store::{DeliveryQueue, Intake, Management, StoreError, Upkeep};

/// The types to which only one webhook of a workspace subscribes, and the one of all.
const OF_ONE: [EventType; PER_WORKSPACE] = [
    EventType::new("session.started"),
    EventType::new("session.ended"),
    EventType::new("user.updated"),
    EventType::new("user.deleted"),
    EventType::new("tenant.created"),
];
const OF_ALL: EventType = EventType::new("plan.changed");

/// The size of an envelope: a posted event of 200 bytes, its identifier and its time.
const BODY_BYTES: usize = 260;

/// The shipped thresholds.
const HEALTH: Policy = Policy {
    warn_share: 0.05,
    warn_for: Duration::from_secs(30 * 60),
    pause_after: Duration::from_secs(24 * 3_600),
};

/// The store under measurement.
struct Bare {
    store: Arc<SqliteStore>,
    clock: Clock,
    /// Webhooks in it.
    endpoints: usize,
    /// Events posted so far.
    posted: AtomicU64,
}

/// Webhooks as the worker knows them.
type Known = BTreeMap<WebhookId, Webhook>;

/// Stores `load` and records its deliveries, in a new store with `endpoints` webhooks, after a
/// first event for each of them; returns the deliveries per second, up to the last record.
pub(super) fn measure(endpoints: usize, fan: u64, load: Load, clock: &Clock) -> f64 {
    let folder = Folder::new("statements");
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let runtime = runtime.unwrap_or_else(|error| fail(&format!("no runtime: {error}")));
    let run = async {
        let (bare, mut known) = Bare::open(&folder, endpoints, clock).await?;
        let bare = Arc::new(bare);
        let first = Load { events: endpoints as u64, per_call: 1, ..load };
        bare.run(1, first, &mut known).await?;
        let began = clock.now().tick;
        let ended = bare.run(fan, load, &mut known).await?;
        bare.store.close().await?;
        Ok::<_, StoreError>(ended.since(began))
    };
    let took: Duration =
        runtime.block_on(run).unwrap_or_else(|error| fail(&format!("the store: {error}")));
    (load.events * fan) as f64 / seconds(took)
}

impl Bare {
    async fn open(
        folder: &Folder,
        endpoints: usize,
        clock: &Clock,
    ) -> Result<(Self, Known), StoreError> {
        let (path, key) = (folder.path("dispatcher.db"), folder.path("secrets.key"));
        let store = SqliteStore::open(&path, &key, clock.clone());
        let store = store.unwrap_or_else(|error| fail(&error.to_string()));
        let store = Arc::new(store);
        let mut creating = JoinSet::new();
        for nth in 0..endpoints {
            let (store, new, now) = (Arc::clone(&store), webhook(nth), clock.now().unix);
            creating.spawn(async move { store.create_webhook(new, now).await });
        }
        let mut known = BTreeMap::new();
        while let Some(created) = creating.join_next().await {
            match created.unwrap_or_else(|error| fail(&error.to_string()))? {
                Created::Webhook(webhook) => known.insert(webhook.id, *webhook),
                Created::TooMany => fail("there is no room for a webhook"),
            };
        }
        let bare = Self { store, clock: clock.clone(), endpoints, posted: AtomicU64::new(0) };
        Ok((bare, known))
    }

    /// Stores and records a load; returns when the last record was on disk.
    async fn run(
        self: &Arc<Self>,
        fan: u64,
        load: Load,
        known: &mut Known,
    ) -> Result<Tick, StoreError> {
        let from = self.posted.fetch_add(load.events, Ordering::Relaxed);
        let (next, to) = (Arc::new(AtomicU64::new(from)), from + load.events);
        let (arrived, mut arrivals) = mpsc::unbounded_channel();
        let mut posting = JoinSet::new();
        for _ in 0..load.connections {
            let (bare, next, arrived) = (Arc::clone(self), Arc::clone(&next), arrived.clone());
            posting.spawn(async move {
                loop {
                    let first = next.fetch_add(load.per_call, Ordering::Relaxed);
                    if first >= to {
                        return Ok::<_, StoreError>(());
                    }
                    let last = (first + load.per_call).min(to);
                    let events = (first..last).map(|nth| bare.event(nth, fan)).collect();
                    match bare.store.accept(events, bare.clock.now().unix).await? {
                        Accepted::Stored { arrivals, .. } => drop(arrived.send(arrivals)),
                        Accepted::Conflict(_) => fail("events are in conflict"),
                    }
                }
            });
        }
        drop(arrived);
        let mut deliveries = 0;
        let mut calls = Vec::new();
        while arrivals.recv_many(&mut calls, usize::MAX).await > 0 {
            let all: Vec<Arrival> = calls.drain(..).flatten().collect();
            deliveries += all.len() as u64;
            self.record(&all, known).await?;
        }
        while let Some(posted) = posting.join_next().await {
            posted.unwrap_or_else(|error| fail(&error.to_string()))?;
        }
        if deliveries != load.events * fan {
            fail(&format!("{deliveries} deliveries of {} events for {fan}", load.events));
        }
        Ok(self.clock.now().tick)
    }

    async fn record(&self, arrivals: &[Arrival], known: &mut Known) -> Result<(), StoreError> {
        let now = self.clock.now().unix;
        let mut changed = BTreeSet::new();
        for one in arrivals {
            let Some(webhook) = known.get_mut(&one.webhook) else { fail("an unknown webhook") };
            (webhook.health, _) = webhook.health.after(&HEALTH, Observation::Succeeded, now);
            changed.insert(one.webhook);
        }
        let records = arrivals.iter().map(|one| delivered(one, now)).collect();
        let updates = changed.iter().filter_map(|id| known.get(id)).map(update).collect();
        self.store.record(records, updates, Vec::new(), Vec::new()).await.map(drop)
    }

    /// The `nth` event: for one webhook, or for all of a workspace; all of them in turn.
    fn event(&self, nth: u64, fan: u64) -> NewEvent {
        let workspaces = (self.endpoints / PER_WORKSPACE).max(1);
        let at = nth as usize % self.endpoints.max(1);
        let kind = if fan == 1 { OF_ONE.get(at / workspaces).copied() } else { None };
        // As our own identifiers: ascending by time.
        NewEvent {
            id: format!("evt_{:012x}{nth:016x}", self.clock.now().unix.0).into(),
            workspace: workspace(at % workspaces),
            kind: kind.unwrap_or(OF_ALL),
            tenant: Some("tn_1".into()),
            body: vec![b'x'; BODY_BYTES].into(),
            digest: [7; 32],
        }
    }
}

/// The `nth` webhook: five to a workspace, as the dispatcher's are registered.
fn webhook(nth: usize) -> NewWebhook {
    let own = OF_ONE.get(nth % PER_WORKSPACE).copied().unwrap_or(OF_ALL);
    NewWebhook {
        workspace: workspace(nth / PER_WORKSPACE),
        url: format!("https://hooks.example.com/{nth}").into(),
        events: EventSet::of([own, OF_ALL]),
        options: Default::default(),
        secret: Secret::new("whsec_secret".to_owned()),
        webhooks_max: PER_WORKSPACE as u64,
        signing_key: None,
    }
}

fn workspace(nth: usize) -> Arc<str> {
    format!("ws_h{nth}").into()
}

fn delivered(arrival: &Arrival, now: UnixTime) -> AttemptRecord {
    AttemptRecord {
        delivery: arrival.delivery.id,
        webhook: arrival.webhook,
        workspace: "ws_1".into(),
        endpoint: EndpointId(arrival.webhook.0),
        attempt: Attempt {
            number: 1,
            started_at: now,
            took: Duration::from_micros(200),
            outcome: Outcome::Delivered { status: 204 },
            trace: Trace {
                address: Some([127, 0, 0, 1].into()),
                reused: true,
                first_byte: Some(Duration::from_micros(150)),
                ..Trace::default()
            },
        },
        transcript: None,
        redeliveries: 0,
        after: NextState::Delivered,
        first_attempt_at: Some(now),
        since: Some(now),
        paused_before: Duration::ZERO,
    }
}

fn update(webhook: &Webhook) -> WebhookUpdate {
    WebhookUpdate {
        webhook: webhook.id,
        paused_total: webhook.paused_total,
        health: webhook.health.clone(),
        last_outcome: Some(Outcome::Delivered { status: 204 }),
        look_at: None,
        paused_at: None,
        probing: None,
    }
}
