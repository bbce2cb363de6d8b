//! What operators and customers are told of endpoints.
//!
//! Not here: what happens on them (`pick`).

use std::time::Duration;

use weir_common::limit::decision::Decision;
use weir_common::time::Tick;

use crate::domain::id::{DeliveryId, WebhookId};
use crate::scheduler::Scheduler;
use crate::scheduler::backlog::Queue;
use crate::scheduler::endpoint::Endpoint;

impl Scheduler {
    /// What is known of a delivery that waits: whether it is under way, until when its endpoint or
    /// a failed probe holds it back, and whether that is because its host's name was not found.
    #[must_use]
    pub fn standing(
        &self,
        webhook: WebhookId,
        delivery: DeliveryId,
        now: Tick,
    ) -> (bool, Option<Tick>, bool) {
        let Some(queue) = self.queues.get(&webhook) else { return (false, None, false) };
        let endpoint = self.endpoints.get(&queue.endpoint);
        let paced = endpoint.map(|endpoint| endpoint.starts.decide(self.pace.quota, 1, now));
        let paced = match paced {
            Some(Decision::Refuse { retry_at }) => Some(retry_at),
            _ => None,
        };
        let held = paced.max(queue.probe_at());
        let left_alone = endpoint.map(Endpoint::backs_off_until).filter(|until| *until > now);
        let unresolved = left_alone.is_some() && left_alone >= held;
        (queue.in_flight.contains_key(&delivery), held.max(left_alone), unresolved)
    }

    /// How long the first endpoint that may do something has waited for it.
    #[must_use]
    pub fn past_due(&self, now: Tick) -> Duration {
        let due =
            self.endpoints.values().filter_map(|endpoint| endpoint.due).map(|(due, _)| due).min();
        due.map_or(Duration::ZERO, |due| now.since(due))
    }

    /// Attempts under way.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.places.taken().attempts
    }

    /// Deliveries in memory that wait, and places in the heap.
    #[must_use]
    pub fn held(&self) -> usize {
        self.queues.values().map(Queue::held).sum::<usize>() + self.heap.len()
    }

    /// Endpoints that are known.
    #[must_use]
    pub fn count(&self) -> usize {
        self.endpoints.len()
    }
}
