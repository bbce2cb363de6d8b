//! Webhooks' queues: opened, filled, ended, forgotten.
//!
//! Not here: what one of them holds (`backlog`), what starts next (`pick`), what is known of the
//! webhooks themselves (`webhooks`).

use std::time::Duration;

use weir_common::limit::rolling::Log;
use weir_common::time::{Moment, Tick};

use crate::domain::delivery::{Arrival, Fetched, QueuedDelivery};
use crate::domain::id::{DeliveryId, EndpointId, WebhookId};
use crate::domain::webhook::{Probe, Queue};
use crate::scheduler::backlog::Backlog;
use crate::scheduler::endpoint::Endpoint;
use crate::scheduler::rate_limit::suspicious;
use crate::scheduler::reads::{StoreAnswer, StoreRead};
use crate::scheduler::responsiveness::Responsiveness;
use crate::scheduler::webhooks::Restored;
use crate::scheduler::{Notification, Scheduler};

/// A queue without work is forgotten after this: a webhook with traffic is not read anew each time.
const IDLE: Duration = Duration::from_secs(120);

/// How an attempt ended, and what becomes of its delivery in memory.
#[derive(Debug)]
pub(super) struct Ended {
    pub(super) delivery: DeliveryId,
    /// The delivery, where it waits again.
    pub(super) again: Option<QueuedDelivery>,
    pub(super) responsiveness: Responsiveness,
}

impl Scheduler {
    /// Takes in a delivery that is on disk and waits.
    pub(super) fn arrived(&mut self, arrival: Arrival, now: Moment) {
        let Arrival { webhook, ready } = arrival;
        let limit = self.memory_limit();
        let Some(backlog) = self.backlogs.get_mut(&webhook) else {
            // The webhook is read together with what waits for it.
            return self.load(webhook);
        };
        let before = backlog.weight();
        backlog.arrived(ready, limit, self.webhooks.flow(webhook), now);
        self.held_bytes = self.held_bytes + backlog.weight() - before;
        let endpoint = backlog.endpoint;
        self.put(endpoint, now.tick);
    }

    /// More is on disk for a webhook than was told: what is in memory of what waits is forgotten.
    pub(super) fn missed(&mut self, webhook: WebhookId, now: Tick) {
        if !self.backlogs.contains_key(&webhook) {
            return self.load(webhook);
        }
        if let Some(backlog) = self.backlogs.get_mut(&webhook).filter(|backlog| !backlog.gone) {
            self.held_bytes -= backlog.weight();
            let endpoint = backlog.endpoint;
            backlog.forget(endpoint, now);
            self.put(endpoint, now);
        }
    }

    /// Has a webhook read, and when the first that waits for it is due.
    pub(super) fn load(&mut self, webhook: WebhookId) {
        if self.webhooks.begin_load(webhook) {
            self.reads.push(StoreRead::Load(webhook));
        }
    }

    /// Has a webhook read after a while: the store could not answer.
    fn load_later(&mut self, webhook: WebhookId, now: Tick) {
        // One answer at a time: of two, the older one could come last.
        if self.webhooks.begin_load(webhook) {
            self.reads.push_later(StoreRead::Load(webhook), now);
        }
    }

    /// Takes in what the store answered.
    pub(super) fn read(&mut self, webhook: WebhookId, answer: StoreAnswer, now: Moment) {
        match answer {
            StoreAnswer::Loaded(queue) => self.loaded(webhook, queue, now),
            StoreAnswer::Fetched(round, fetched) => self.fetched(webhook, round, fetched, now),
            StoreAnswer::FetchedOne(round, one) => self.fetched_one(webhook, round, one, now),
            StoreAnswer::Reordered => self.load(webhook),
            // A step at a time.
            StoreAnswer::ReorderedSome => self.reads.push(StoreRead::Reorder(webhook)),
            StoreAnswer::NotLoaded => {
                let _ = self.webhooks.end_load(webhook);
                self.load_later(webhook, now.tick);
            }
            StoreAnswer::Failed => self.load_later(webhook, now.tick),
        }
    }

    fn loaded(&mut self, webhook: WebhookId, queue: Option<Box<Queue>>, now: Moment) {
        let changed_since = self.webhooks.end_load(webhook);
        match queue {
            Some(queue) => self.restore(*queue, now),
            None => {
                self.webhooks.forget(webhook);
                self.close(webhook, now.tick);
            }
        }
        // What was read is taken in all the same: it may go on changing for as long as it likes.
        if changed_since {
            self.load(webhook);
        }
    }

    /// Takes in a webhook as the store has it, and opens its queue.
    pub(super) fn restore(&mut self, queue: Queue, now: Moment) {
        let Queue { webhook, due } = queue;
        let (id, last) = (webhook.id, webhook.last_outcome.clone());
        match self.webhooks.restore(webhook, &self.policies.health, now.unix) {
            Restored::InvalidUrl => {
                self.notifications.push_back(Notification::InvalidUrl(id));
                return;
            }
            Restored::ToReorder => self.reads.push(StoreRead::Reorder(id)),
            Restored::Ready => {}
        }
        self.open(id, due.map(|due| now.tick_at(due)), now.tick);
        if let Some(last) = last {
            // How long it took was not written down.
            let took = Duration::ZERO;
            self.remember(id, Responsiveness::of(&last, took, took));
        }
    }

    /// Opens the queue of a webhook; the first that waits for it was due then when it was read. One
    /// that is known begins anew, and the store is asked again: what has come since is in neither.
    pub(super) fn open(&mut self, webhook: WebhookId, due: Option<Tick>, now: Tick) {
        let Some((workspace, endpoint)) = self.webhooks.place(webhook) else { return };
        match self.backlogs.get_mut(&webhook) {
            Some(backlog) => {
                let before = backlog.endpoint;
                self.held_bytes -= backlog.weight();
                backlog.forget(endpoint, now);
                if before != endpoint {
                    self.endpoint(before).turns.retain(|one| *one != webhook);
                    self.put(before, now);
                }
            }
            None => {
                self.backlogs.insert(webhook, Backlog::new(workspace, endpoint, due, now));
            }
        }
        let turns = &mut self.endpoint(endpoint).turns;
        if !turns.contains(&webhook) {
            turns.push_back(webhook);
        }
        self.put(endpoint, now);
    }

    /// Lets a webhook's queue go. What is under way still counts on its endpoint until it ends.
    pub(super) fn close(&mut self, webhook: WebhookId, now: Tick) {
        let Some(backlog) = self.backlogs.get_mut(&webhook) else { return };
        let endpoint = backlog.endpoint;
        self.held_bytes -= backlog.weight();
        backlog.forget(endpoint, now);
        backlog.gone = true;
        self.drop_gone(webhook);
        self.put(endpoint, now);
    }

    fn drop_gone(&mut self, webhook: WebhookId) {
        let gone = |backlog: &&Backlog| backlog.gone && backlog.in_flight.is_empty();
        let Some(endpoint) =
            self.backlogs.get(&webhook).filter(gone).map(|backlog| backlog.endpoint)
        else {
            return;
        };
        self.remove(webhook);
        self.endpoint(endpoint).turns.retain(|one| *one != webhook);
    }

    fn remove(&mut self, webhook: WebhookId) {
        let gone = self.backlogs.remove(&webhook);
        self.held_bytes -= gone.map_or(0, |backlog| backlog.weight());
    }

    /// Notes how the last attempt on a webhook's endpoint ended, where that is not known here.
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

    /// Takes in the store's answer to [`StoreRead::Fetch`].
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
        let before = backlog.weight();
        backlog.fetched(fetched, limit, now);
        self.held_bytes = self.held_bytes + backlog.weight() - before;
        let endpoint = backlog.endpoint;
        self.put(endpoint, now.tick);
    }

    /// Takes in the store's answer to [`StoreRead::FetchOne`]: the delivery that probes. Without it
    /// the oldest takes its place.
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
        let before = backlog.weight();
        backlog.fetched_one(one, now);
        self.held_bytes = self.held_bytes + backlog.weight() - before;
        let endpoint = backlog.endpoint;
        self.put(endpoint, now.tick);
    }

    /// Ends an attempt whose result is on disk, or need not be.
    pub(super) fn end(&mut self, webhook: WebhookId, ended: Ended, now: Moment) {
        let Ended { delivery, again, responsiveness } = ended;
        let limit = self.memory_limit();
        let Some(backlog) = self.backlogs.get_mut(&webhook) else { return };
        let Some((counted_on, bytes)) = backlog.ended(delivery, now.tick) else { return };
        self.slots.ended(&backlog.workspace, bytes, backlog.in_flight.is_empty());
        if let Some(ready) = again {
            let before = backlog.weight();
            backlog.add(ready, limit, self.webhooks.flow(webhook), now);
            self.held_bytes = self.held_bytes + backlog.weight() - before;
        }
        let endpoint_now = backlog.endpoint;
        let most = self.policies.limits.per_endpoint;
        let endpoint = self.endpoint(counted_on);
        let was = endpoint.occupancy();
        endpoint.ended(bytes, responsiveness, most, now.tick);
        let now_is = endpoint.occupancy();
        self.slots.changed(was, now_is);
        self.drop_gone(webhook);
        self.put(counted_on, now.tick);
        if endpoint_now != counted_on {
            self.put(endpoint_now, now.tick);
        }
    }

    /// Forgets queues and endpoints that have had nothing to do for a while, and webhooks of which
    /// nothing is to be written.
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
        self.unseen.retain(|(_, at)| now.since(*at) < quota.window);
        self.endpoints.retain(|_, endpoint| {
            !endpoint.turns.is_empty()
                || endpoint.under_way.attempts > 0
                || endpoint.starts.full_at(quota) > now
        });
        let backlogs = &self.backlogs;
        self.webhooks.forget_idle(|webhook| backlogs.contains_key(&webhook));
    }

    pub(super) fn endpoint(&mut self, id: EndpointId) -> &mut Endpoint {
        // Few attempts go to a receiver that has not answered yet: thousands of unresponsive ones
        // would take every slot before the first of them times out.
        let limit = (self.policies.limits.per_endpoint / 4).max(1);
        let (quota, unseen) = (self.policies.limits.quota, &self.unseen);
        self.endpoints.entry(id).or_insert_with(|| {
            let starts = unseen
                .iter()
                .fold(Log::default(), |starts, (count, at)| suspicious(starts, quota, *count, *at));
            Endpoint::new(limit, starts)
        })
    }
}
