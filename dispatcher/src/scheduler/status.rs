//! The scheduler's state for the API and for metrics. (core)

use std::time::Duration;

use weir_common::time::{Moment, Tick};

use crate::domain::delivery::DeliveryStatus;
use crate::domain::id::{DeliveryId, WebhookId};
use crate::scheduler::Scheduler;

impl Scheduler {
    /// The state of a waiting delivery.
    #[must_use]
    pub fn status(&self, webhook: WebhookId, delivery: DeliveryId, now: Moment) -> DeliveryStatus {
        let Some(backlog) = self.backlogs.get(&webhook) else { return DeliveryStatus::default() };
        let endpoint = self.endpoints.get(&backlog.endpoint);
        let quota = self.policies.limits.quota;
        let paced = endpoint.map(|endpoint| endpoint.starts.free_at(quota, now.tick));
        let paced = paced.max(Some(self.paced_until(webhook, now.tick)));
        let paced = paced.filter(|until| *until > now.tick);
        let blocked = paced.max(backlog.probe_at());
        let backoff =
            endpoint.map(|endpoint| endpoint.backs_off_until()).filter(|until| *until > now.tick);
        let unresolved = backoff.is_some() && backoff >= blocked;
        let in_flight = backlog.in_flight.contains_key(&delivery);
        let blocked_until = blocked.max(backoff).map(|until| now.unix_of(until));
        let slots = endpoint.and_then(|endpoint| endpoint.used_up());
        DeliveryStatus { in_flight, blocked_until, unresolved, slots }
    }

    /// How long the endpoint that has been due for longest has waited; or for how long results have
    /// not been written, whose deliveries keep their slots until they are.
    #[must_use]
    pub fn past_due(&self, now: Tick) -> Duration {
        let due =
            self.endpoints.values().filter_map(|endpoint| endpoint.due).map(|(due, _)| due).min();
        let waited = due.map_or(Duration::ZERO, |due| now.since(due));
        waited.max(self.writes.failing_for(now))
    }

    /// Attempts in flight.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.slots.used().attempts
    }

    /// Waiting deliveries in memory, and entries of the heap.
    #[must_use]
    pub fn cached(&self) -> usize {
        self.backlogs.values().map(|backlog| backlog.cached()).sum::<usize>() + self.heap.len()
    }

    /// Results that are not with the store yet.
    #[must_use]
    pub fn unwritten(&self) -> usize {
        self.writes.waiting()
    }

    /// Whether a read or a write is with the store, or is queued for it.
    #[must_use]
    pub fn waits_for_store(&self) -> bool {
        self.reads.are_waited_for() || self.writes.are_with_store() || self.unwritten() > 0
    }

    /// Endpoints in memory.
    #[must_use]
    pub fn endpoints(&self) -> usize {
        self.endpoints.len()
    }
}
