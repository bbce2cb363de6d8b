//! Opens, fills, closes and evicts the queues of webhooks. (core)
//!
//! Not here: the content of a queue (`backlog`), what starts next (`pick`), the state of the
//! webhooks (`webhooks`).

use std::time::Duration;

use url::Url;
use weir_common::time::{Moment, Tick};

use crate::domain::delivery::{Arrival, Fetched, QueuedDelivery};
use crate::domain::id::{DeliveryId, EndpointId, WebhookId};
use crate::domain::pace::longest_window;
use crate::domain::webhook::{Probe, Queue};
use crate::scheduler::backlog::Backlog;
use crate::scheduler::endpoint::Endpoint;
use crate::scheduler::reads::{StoreAnswer, StoreRead};
use crate::scheduler::responsiveness::Responsiveness;
use crate::scheduler::webhooks::{Loading, Restored};
use crate::scheduler::{Notification, Scheduler};

/// An idle queue is evicted after this, so that a webhook with traffic is not read again each time.
const IDLE: Duration = Duration::from_secs(120);

/// The end of an attempt, as its queue needs it.
#[derive(Debug)]
pub(super) struct Ended {
    pub(super) delivery: DeliveryId,
    /// The delivery, if it waits again.
    pub(super) again: Option<QueuedDelivery>,
    pub(super) responsiveness: Responsiveness,
}

impl Scheduler {
    /// Adds a new delivery that is on disk.
    pub(super) fn arrived(&mut self, arrival: Arrival, now: Moment) {
        let Arrival { webhook, delivery } = arrival;
        let limit = self.memory_limit();
        let Some(backlog) = self.backlogs.get_mut(&webhook) else {
            // Once the webhook is read, its deliveries are read as well.
            return self.load(webhook);
        };
        let flow = self.webhooks.flow(webhook);
        let add = |backlog: &mut Backlog| backlog.arrived(delivery, limit, flow, now);
        change(backlog, &mut self.cached_bytes, add);
        let endpoint = backlog.endpoint;
        self.put(endpoint, now.tick);
    }

    /// Evicts a webhook's waiting deliveries: further ones are on disk.
    pub(super) fn missed(&mut self, webhook: WebhookId, now: Tick) {
        if !self.backlogs.contains_key(&webhook) {
            return self.load(webhook);
        }
        if let Some(backlog) = self.backlogs.get_mut(&webhook).filter(|backlog| !backlog.gone) {
            let endpoint = backlog.endpoint;
            change(backlog, &mut self.cached_bytes, |backlog| backlog.forget(endpoint, now));
            self.put(endpoint, now);
        }
    }

    /// Reads a webhook, and when its first delivery is due.
    pub(super) fn load(&mut self, webhook: WebhookId) {
        if self.webhooks.begin_load(webhook) {
            self.reads.push(StoreRead::Load(webhook));
        }
    }

    /// Repeats a failed read of a webhook after a pause.
    fn load_later(&mut self, webhook: WebhookId, now: Tick) {
        // One read at a time: of two, the older result could arrive last.
        if self.webhooks.begin_load(webhook) {
            self.reads.push_later(StoreRead::Load(webhook), now);
        }
    }

    /// Applies the result of a read.
    pub(super) fn read(&mut self, webhook: WebhookId, answer: StoreAnswer, now: Moment) {
        match answer {
            StoreAnswer::Loaded(queue) => self.loaded(webhook, queue, now),
            StoreAnswer::Fetched(round, fetched) => self.fetched(webhook, round, fetched, now),
            StoreAnswer::FetchedOne(round, one) => self.fetched_one(webhook, round, one, now),
            StoreAnswer::Reordered => self.load(webhook),
            // One step at a time.
            StoreAnswer::ReorderedSome => self.reads.push(StoreRead::Reorder(webhook)),
            StoreAnswer::NotLoaded => {
                // A failed read is repeated in any case.
                let _ = self.webhooks.end_load(webhook);
                self.load_later(webhook, now.tick);
            }
            StoreAnswer::Failed => {
                self.give_up_turn(webhook, now.tick);
                self.load_later(webhook, now.tick);
            }
        }
    }

    /// Lets the others of its endpoint start before a webhook whose deliveries could not be read.
    fn give_up_turn(&mut self, webhook: WebhookId, now: Tick) {
        let flow = self.webhooks.flow(webhook);
        let Some(backlog) = self.backlogs.get_mut(&webhook) else { return };
        if backlog.is_being_read(flow) {
            backlog.fetch_failed();
            let endpoint = backlog.endpoint;
            self.move_to_back(endpoint, webhook);
            self.put(endpoint, now);
        }
    }

    fn loaded(&mut self, webhook: WebhookId, queue: Option<Box<Queue>>, now: Moment) {
        let loading = self.webhooks.end_load(webhook);
        match queue {
            Some(queue) => self.restore(*queue, now),
            None => {
                self.webhooks.forget(webhook);
                self.close(webhook, now.tick);
            }
        }
        match loading {
            Loading::Once => {}
            // The result is used until the next one.
            Loading::Again => self.load(webhook),
            Loading::Outdated => {
                self.webhooks.outdate(webhook);
                self.load(webhook);
            }
        }
    }

    /// Adds a webhook as read from the store, and opens its queue.
    pub(super) fn restore(&mut self, queue: Queue, now: Moment) {
        let Queue { webhook, due } = queue;
        let (id, last) = (webhook.id, webhook.last_outcome.clone());
        let Ok(url) = Url::parse(&webhook.url) else {
            return self.notifications.push_back(Notification::InvalidUrl(id));
        };
        self.inherit_checks(webhook.endpoint, &url);
        let host = self.paces.key(&webhook.workspace, &url);
        match self.webhooks.restore((webhook, host), &self.policies.health, now.unix) {
            Restored::ToReorder => self.reads.push(StoreRead::Reorder(id)),
            Restored::Ready => {}
        }
        self.open(id, due.map(|due| now.tick_at(due)), now.tick);
        if let Some(last) = last {
            // Its duration is not stored.
            let took = Duration::ZERO;
            self.remember(id, Responsiveness::of(&last, took, took));
        }
    }

    /// Opens the queue of a webhook, whose first delivery is due at `due`. An open queue is evicted
    /// and read again: deliveries may have arrived since.
    pub(super) fn open(&mut self, webhook: WebhookId, due: Option<Tick>, now: Tick) {
        let Some((workspace, endpoint)) = self.webhooks.place(webhook) else { return };
        match self.backlogs.get_mut(&webhook) {
            Some(backlog) => {
                let before = backlog.endpoint;
                change(backlog, &mut self.cached_bytes, |backlog| backlog.forget(endpoint, now));
                if before != endpoint {
                    self.endpoint(before).turns.retain(|one| *one != webhook);
                    self.put(before, now);
                }
            }
            None => {
                let backlog = Backlog::new(workspace, endpoint, due, now);
                self.backlogs.insert(webhook, Box::new(backlog));
            }
        }
        let turns = &mut self.endpoint(endpoint).turns;
        if !turns.contains(&webhook) {
            turns.push_back(webhook);
        }
        self.put(endpoint, now);
    }

    /// Closes a webhook's queue. Attempts in flight count on their endpoint until they end.
    pub(super) fn close(&mut self, webhook: WebhookId, now: Tick) {
        let Some(backlog) = self.backlogs.get_mut(&webhook) else { return };
        let endpoint = backlog.endpoint;
        change(backlog, &mut self.cached_bytes, |backlog| backlog.forget(endpoint, now));
        backlog.gone = true;
        self.remove_if_drained(webhook);
        self.put(endpoint, now);
    }

    fn remove_if_drained(&mut self, webhook: WebhookId) {
        let Some(backlog) = self.backlogs.get(&webhook) else { return };
        if !backlog.gone || !backlog.in_flight.is_empty() {
            return;
        }
        let endpoint = backlog.endpoint;
        self.remove(webhook);
        self.endpoint(endpoint).turns.retain(|one| *one != webhook);
    }

    fn remove(&mut self, webhook: WebhookId) {
        let gone = self.backlogs.remove(&webhook);
        self.cached_bytes -= gone.map_or(0, |backlog| backlog.weight());
    }

    /// Sets how the endpoint's last attempt ended, unless a newer one is known.
    pub(super) fn remember(&mut self, webhook: WebhookId, last: Responsiveness) {
        let Some(endpoint) = self.backlogs.get(&webhook).map(|backlog| backlog.endpoint) else {
            return;
        };
        let Some(endpoint) =
            self.endpoints.get_mut(&endpoint).filter(|endpoint| endpoint.last.is_none())
        else {
            return;
        };
        let was = endpoint.occupancy();
        endpoint.last = Some(last);
        self.slots.changed(was, endpoint.occupancy());
    }

    /// Applies the result of [`StoreRead::Fetch`].
    pub(super) fn fetched(
        &mut self,
        webhook: WebhookId,
        round: u64,
        fetched: Fetched,
        now: Moment,
    ) {
        let limit = self.memory_limit();
        let backlog = self.backlogs.get_mut(&webhook);
        let Some(backlog) = backlog.filter(|backlog| backlog.round == round) else { return };
        change(backlog, &mut self.cached_bytes, |backlog| backlog.fetched(fetched, limit, now));
        let endpoint = backlog.endpoint;
        self.put(endpoint, now.tick);
    }

    /// Applies the result of [`StoreRead::FetchOne`]: the probe. Without it the oldest delivery
    /// becomes the probe.
    pub(super) fn fetched_one(
        &mut self,
        webhook: WebhookId,
        round: u64,
        one: Option<QueuedDelivery>,
        now: Moment,
    ) {
        let backlog = self.backlogs.get_mut(&webhook);
        let Some(backlog) = backlog.filter(|backlog| backlog.round == round) else { return };
        if one.is_none() {
            self.webhooks.probe_with(webhook, Probe::Any);
        }
        change(backlog, &mut self.cached_bytes, |backlog| backlog.fetched_one(one, now));
        let endpoint = backlog.endpoint;
        self.put(endpoint, now.tick);
    }

    /// Ends an attempt whose result is on disk, or needs no write.
    pub(super) fn end(&mut self, webhook: WebhookId, ended: Ended, now: Moment) {
        let Ended { delivery, again, responsiveness } = ended;
        let limit = self.memory_limit();
        let Some(backlog) = self.backlogs.get_mut(&webhook) else { return };
        let Some((counted_on, bytes)) = backlog.ended(delivery, now.tick) else { return };
        self.slots.ended(&backlog.workspace, bytes, backlog.in_flight.is_empty());
        if let Some(again) = again {
            let flow = self.webhooks.flow(webhook);
            let add = |backlog: &mut Backlog| backlog.add(again, limit, flow, now);
            change(backlog, &mut self.cached_bytes, add);
        }
        let endpoint_now = backlog.endpoint;
        let most = self.policies.limits.per_endpoint;
        let endpoint = self.endpoint(counted_on);
        let was = endpoint.occupancy();
        endpoint.ended(bytes, responsiveness, most, now.tick);
        let now_is = endpoint.occupancy();
        self.slots.changed(was, now_is);
        self.remove_if_drained(webhook);
        self.put(counted_on, now.tick);
        if endpoint_now != counted_on {
            self.put(endpoint_now, now.tick);
        }
    }

    /// Evicts idle queues and endpoints, and webhooks without pending writes.
    pub(super) fn forget_idle(&mut self, now: Tick) {
        let gone: Vec<(WebhookId, EndpointId)> = self
            .backlogs
            .iter()
            .filter(|(_, backlog)| now.since(backlog.used) >= IDLE)
            .filter(|(id, backlog)| backlog.is_idle(self.webhooks.flow(**id)))
            .map(|(id, backlog)| (*id, backlog.endpoint))
            .collect();
        for (webhook, endpoint) in &gone {
            self.remove(*webhook);
            self.endpoint(*endpoint).turns.retain(|one| one != webhook);
        }
        let quota = self.policies.limits.quota;
        self.unrecorded.forget(longest_window(quota), now);
        self.paces.forget_idle(&self.policies.limits, now);
        self.endpoints.retain(|_, endpoint| {
            !endpoint.turns.is_empty()
                || endpoint.under_way.attempts > 0
                || endpoint.starts.count_any(quota, now)
        });
        let backlogs = &self.backlogs;
        self.webhooks.forget_idle(|webhook| backlogs.contains_key(&webhook));
    }

    pub(super) fn endpoint(&mut self, id: EndpointId) -> &mut Endpoint {
        // A receiver without a response yet gets few attempts: thousands of unresponsive ones would
        // use every slot before the first timeout.
        let limit = (self.policies.limits.per_endpoint / 4).max(1);
        let (quota, unrecorded) = (self.policies.limits.quota, &self.unrecorded);
        let new = || Box::new(Endpoint::new(limit, unrecorded.starts(quota)));
        self.endpoints.entry(id).or_insert_with(new)
    }
}

/// Changes a queue, and adds what it then has in memory to `cached_bytes`, or takes it away.
pub(super) fn change<T>(
    backlog: &mut Backlog,
    cached_bytes: &mut usize,
    how: impl FnOnce(&mut Backlog) -> T,
) -> T {
    let before = backlog.weight();
    let result = how(backlog);
    *cached_bytes = *cached_bytes + backlog.weight() - before;
    result
}
