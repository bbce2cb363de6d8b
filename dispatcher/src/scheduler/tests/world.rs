//! An in-memory store, slow receivers, and a record of every start.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use weir_common::limit::rolling::{REQUESTS_MAX, RollingQuota};
use weir_common::secret::Secret;
use weir_common::time::{Moment, Tick, UnixTime};

use crate::domain::attempt::EarlierStart;
use crate::domain::delivery::{Arrival, Fetched, NextState, QueuedDelivery};
use crate::domain::event::{EventSet, EventType};
use crate::domain::health::{Health, Policy};
use crate::domain::id::{DeliveryId, EndpointId, WebhookId};
use crate::domain::retry::{Mode, Schedule};
use crate::domain::webhook::secrets::Secrets;
use crate::domain::webhook::{Queue, Webhook};
use crate::scheduler::attempts::{SentRequest, StartedAttempt};
use crate::scheduler::pick::Pick;
use crate::scheduler::queues::Ended;
use crate::scheduler::rate_limit::Limits;
use crate::scheduler::reads::StoreRead;
use crate::scheduler::responsiveness::Responsiveness;
use crate::scheduler::webhooks::Flow;
use crate::scheduler::{CACHED_BYTES_ALL, Input, Policies, Scheduler};

const START: u64 = 1_000_000_000;

pub(super) fn limits(requests: u32, window_ms: u64, per_endpoint: usize, total: usize) -> Limits {
    let quota = RollingQuota { requests, window: Duration::from_millis(window_ms) };
    Limits {
        quota,
        per_host: RollingQuota { requests: REQUESTS_MAX, ..quota },
        per_endpoint,
        total,
    }
}

pub(super) fn at(ms: u64) -> Moment {
    let micros = START + ms * 1_000;
    Moment { tick: Tick(micros), unix: UnixTime(micros) }
}

/// The workspace of a webhook: each has ten thousand webhook identifiers.
pub(super) fn ws(webhook: i64) -> Arc<str> {
    format!("ws_{}", webhook / 10_000).into()
}

pub(super) fn queued(id: i64, due_ms: u64) -> QueuedDelivery {
    QueuedDelivery {
        id: DeliveryId(id),
        due: at(due_ms).unix,
        created_at: at(due_ms).unix,
        event_id: Arc::from("evt_1"),
        kind: EventType::new("user.created"),
        body: Bytes::from_static(b"{}"),
        attempts: 0,
        step: 0,
        first_attempt_at: None,
        since: None,
        paused_before: Duration::ZERO,
        redeliveries: 0,
        fresh_connection: false,
    }
}

/// The settings of a test, with these limits.
pub(super) fn policies(limits: Limits) -> Policies {
    const HOUR: Duration = Duration::from_secs(3_600);
    Policies {
        limits,
        deadline: Duration::from_secs(10),
        retry: Schedule {
            mode: Mode::Delay,
            delays: vec![Duration::from_secs(60)],
            give_up_after: HOUR,
            retry_after_max: HOUR,
        },
        health: Policy { warn_share: 0.5, warn_for: HOUR, pause_after: 24 * HOUR },
    }
}

pub(super) fn scheduler(limits: Limits) -> Scheduler {
    Scheduler::new(policies(limits), CACHED_BYTES_ALL)
}

/// A webhook as the store has it. Each flow has another `paused_total`, so that a webhook that is
/// read with a new flow replaces the one in memory.
pub(super) fn hook(id: i64, endpoint: i64, flow: Flow) -> Webhook {
    let probing = if let Flow::Probing(probe) = flow { Some(probe) } else { None };
    let paused_at = (flow == Flow::Stopped).then_some(at(0).unix);
    let pauses = u64::from(paused_at.is_some()) + 2 * u64::from(probing.is_some());
    Webhook {
        id: WebhookId(id),
        workspace: ws(id),
        url: "https://hooks.example/in".into(),
        endpoint: EndpointId(endpoint),
        events: EventSet::of([EventType::new("user.created")]),
        created_at: at(0).unix,
        options: Default::default(),
        secrets: Arc::new(Secrets::of(Secret::new("whsec_a".to_owned()))),
        paused_at,
        disabled_at: None,
        paused_total: Duration::from_secs(pauses),
        probing,
        reordering: false,
        health: Health::default(),
        last_outcome: None,
    }
}

/// The webhook at another URL, as the store has it after that change.
pub(super) fn moved(id: i64, endpoint: i64) -> Webhook {
    let before = hook(id, endpoint, Flow::Open);
    Webhook { paused_total: before.paused_total + Duration::from_micros(1), ..before }
}

pub(super) fn ended(
    delivery: DeliveryId,
    again: Option<QueuedDelivery>,
    responsiveness: Responsiveness,
) -> Ended {
    Ended { delivery, again, responsiveness }
}

impl Scheduler {
    /// Restores a webhook whose first delivery is due at `due`.
    pub(super) fn restored(&mut self, webhook: Webhook, due: Option<Tick>, now: Tick) {
        let queue = Queue { webhook, due: due.map(|due| UnixTime(due.0)) };
        let now = Moment { tick: now, unix: UnixTime(now.0) };
        self.handle(Input::Restored(Box::new(queue)), now);
    }

    /// Counts a start of an earlier process.
    pub(super) fn started_before(&mut self, endpoint: i64, webhook: Option<i64>, ms: u64) {
        let (endpoint, webhook) = (EndpointId(endpoint), webhook.map(WebhookId));
        let workspace = webhook.map(|webhook| ws(webhook.0));
        let (url, sent_at) = (Some(hook(1, 1, Flow::Open).url), at(ms).unix);
        let start = EarlierStart { endpoint, webhook, workspace, url, sent_at };
        self.handle(Input::StartedBefore(start, at(ms).tick), at(ms));
    }

    /// Reports a new delivery.
    pub(super) fn arrives(&mut self, webhook: WebhookId, delivery: QueuedDelivery, now: Moment) {
        self.handle(Input::Arrived(vec![Arrival { webhook, delivery }]), now);
    }

    /// Ends an attempt as if its result were on disk; its delivery fails unless it waits again.
    pub(super) fn recorded(&mut self, webhook: WebhookId, ended: Ended, now: Moment) {
        let quota = self.policies.limits.quota;
        if let Some(backlog) = self.backlogs.get(&webhook)
            && let Some(endpoint) = self.endpoints.get_mut(&backlog.endpoint)
        {
            endpoint.starts.end_oldest(quota, now.tick);
        }
        self.written(webhook, ended, now);
    }

    /// Ends an attempt that has ended in its limits.
    fn written(&mut self, webhook: WebhookId, ended: Ended, now: Moment) {
        if ended.again.is_none() {
            self.probed(webhook, ended.delivery, NextState::FailedPermanent);
        }
        self.end(webhook, ended, now);
    }

    /// Changes the limits.
    pub(super) fn set_limits(&mut self, limits: Limits) {
        self.handle(Input::Configured(Box::new(policies(limits))), at(0));
    }
}

/// A store in memory, receivers with a response time, and a record of every start.
pub(super) struct World {
    pub(super) endpoints: Scheduler,
    pub(super) limits: Limits,
    pub(super) now: u64,
    pub(super) on: HashMap<WebhookId, EndpointId>,
    pub(super) stored: BTreeMap<WebhookId, BTreeMap<(UnixTime, DeliveryId), QueuedDelivery>>,
    /// Attempts in flight by their end.
    pub(super) ends: Vec<(u64, WebhookId, QueuedDelivery)>,
    pub(super) reads: Vec<StoreRead>,
    /// Results of reads that the scheduler has not received yet.
    pub(super) read: Vec<(WebhookId, u64, Fetched)>,
    pub(super) starts: Vec<(u64, EndpointId, WebhookId, DeliveryId)>,
    /// When the receiver sees each request.
    pub(super) seen: Vec<(u64, EndpointId)>,
    /// How long attempts take to connect, in turns.
    pub(super) connects: Vec<u64>,
    /// The requests of attempts in flight that are not reported.
    pub(super) sent: BTreeMap<DeliveryId, SentRequest>,
    /// Whether requests are reported once they were sent.
    pub(super) reports: bool,
    pub(super) next_id: i64,
}

impl World {
    pub(super) fn new(limits: Limits, webhooks: &[(i64, i64)]) -> Self {
        Self::with_memory(CACHED_BYTES_ALL, limits, webhooks)
    }

    /// A world with a memory limit.
    pub(super) fn with_memory(
        cached_bytes: usize,
        limits: Limits,
        webhooks: &[(i64, i64)],
    ) -> Self {
        let mut endpoints = Scheduler::new(policies(limits), cached_bytes);
        for (webhook, endpoint) in webhooks {
            let now = at(0).tick;
            endpoints.restored(hook(*webhook, *endpoint, Flow::Open), None, now);
        }
        let on =
            webhooks.iter().map(|(webhook, endpoint)| (WebhookId(*webhook), EndpointId(*endpoint)));
        Self {
            endpoints,
            limits,
            now: 0,
            on: on.collect(),
            stored: BTreeMap::new(),
            ends: Vec::new(),
            reads: Vec::new(),
            read: Vec::new(),
            starts: Vec::new(),
            seen: Vec::new(),
            connects: vec![0],
            sent: BTreeMap::new(),
            reports: false,
            next_id: 0,
        }
    }

    pub(super) fn arrive(&mut self, webhook: i64, due: u64, reported: bool) {
        self.next_id += 1;
        let one = queued(self.next_id, due);
        let webhook = WebhookId(webhook);
        self.stored.entry(webhook).or_default().insert((one.due, one.id), one.clone());
        if reported {
            self.endpoints.arrives(webhook, one, at(self.now));
        } else {
            let endpoint = self.on[&webhook];
            let first = self.stored[&webhook].keys().next().map(|(due, _)| *due);
            let first = first.map(|due| at(self.now).tick_at(due));
            self.endpoints.restored(
                hook(webhook.0, endpoint.0, Flow::Open),
                first,
                at(self.now).tick,
            );
        }
    }

    /// Runs all due actions; attempts last `took` milliseconds once they have connected.
    pub(super) fn run(&mut self, took: u64) {
        loop {
            match self.endpoints.next(at(self.now)) {
                Pick::Start(attempt, _) => {
                    let connect = self.connects[self.starts.len() % self.connects.len()];
                    let sent = self.now + connect;
                    let request = attempt.sent_at(at(sent).tick);
                    let StartedAttempt { webhook, endpoint, delivery, .. } = attempt;
                    assert!(delivery.due <= at(self.now).unix, "started before it was due");
                    self.check_first(webhook, &delivery);
                    assert!(
                        !self.ends.iter().any(|(_, _, other)| other.id == delivery.id),
                        "under way twice"
                    );
                    self.seen.push((sent, endpoint));
                    self.sent.insert(delivery.id, request);
                    self.starts.push((self.now, endpoint, webhook, delivery.id));
                    self.ends.push((sent + took, webhook, delivery));
                }
                Pick::Wait(_) => return,
                Pick::Read(read) => self.reads.push(read),
            }
        }
    }

    /// Asserts that no earlier delivery of the webhook waits, except those in flight.
    pub(super) fn check_first(&self, webhook: WebhookId, delivery: &QueuedDelivery) {
        let under_way = |id| self.ends.iter().any(|(_, _, other)| other.id == id);
        let earlier = self.stored[&webhook].range(..(delivery.due, delivery.id));
        for ((due, id), _) in earlier {
            assert!(under_way(*id), "{id:?}, due at {due:?}, was passed over for {delivery:?}");
        }
    }

    /// Answers all reads, and passes the results to the scheduler.
    pub(super) fn answer(&mut self) {
        self.read();
        for (webhook, round, fetched) in std::mem::take(&mut self.read) {
            self.endpoints.fetched(webhook, round, fetched, at(self.now));
        }
    }

    /// Answers all reads, and keeps the results.
    pub(super) fn read(&mut self) {
        for step in std::mem::take(&mut self.reads) {
            if let StoreRead::Fetch { webhook, limit, but, round } = step {
                let all = self.stored.get(&webhook).into_iter().flat_map(|all| all.values());
                let mut rest = all.filter(|one| !but.contains(&one.id)).cloned();
                let deliveries: Vec<QueuedDelivery> = rest.by_ref().take(limit).collect();
                let more = rest.next().is_some();
                self.read.push((webhook, round, Fetched { deliveries, more }));
            }
        }
    }

    /// Ends the attempts that are over; with `again`, each is retried so many milliseconds later.
    pub(super) fn end(&mut self, again: Option<u64>) {
        let now = at(self.now);
        let is_due = |request: &SentRequest| self.reports && request.sent <= now.tick;
        for (_, request) in self.sent.extract_if(.., |_, request| is_due(request)) {
            self.endpoints.handle(Input::Sent(request), now);
        }
        let over: Vec<_> = {
            let now = self.now;
            let (over, rest) = self.ends.drain(..).partition(|(end, ..)| *end <= now);
            self.ends = rest;
            over
        };
        for (_, webhook, one) in over {
            let stored = self.stored.entry(webhook).or_default();
            stored.remove(&(one.due, one.id));
            let later =
                again.map(|after| QueuedDelivery { due: at(self.now + after).unix, ..one.clone() });
            if let Some(later) = &later {
                stored.insert((later.due, later.id), later.clone());
            }
            if let Some(request) = self.sent.remove(&one.id) {
                self.endpoints.sent(&request, now.tick);
            }
            self.endpoints.written(
                webhook,
                ended(one.id, later, Responsiveness::Prompt),
                at(self.now),
            );
        }
    }

    pub(super) fn waits(&self) -> usize {
        self.stored.values().map(BTreeMap::len).sum()
    }

    /// Runs until no delivery waits.
    pub(super) fn drain(&mut self) {
        for _ in 0..200_000 {
            if self.waits() == 0 && self.ends.is_empty() {
                return;
            }
            self.run(1);
            self.answer();
            self.run(1);
            self.now += 1;
            self.end(None);
        }
        panic!("{} still wait: one starves", self.waits());
    }

    pub(super) fn check_pace(&self) {
        let mut by_endpoint: HashMap<EndpointId, Vec<u64>> = HashMap::new();
        for (when, endpoint) in &self.seen {
            by_endpoint.entry(*endpoint).or_default().push(*when);
        }
        by_endpoint.values_mut().for_each(|seen| seen.sort_unstable());
        let window = self.limits.quota.window.as_millis() as u64;
        for starts in by_endpoint.values() {
            for (nth, first) in starts.iter().enumerate() {
                let within = starts[nth..].iter().take_while(|start| **start < first + window);
                assert!(within.count() <= self.limits.quota.requests as usize, "too fast");
            }
        }
    }
}
