//! Decides which delivery starts next, and when to look again.
//!
//! An endpoint is the queue towards one receiving endpoint; the webhooks registered for it take
//! turns on it. A heap orders the endpoints that have something to do by when they may; those that
//! may now take turns. Nothing here grows with the deliveries that wait, only with the endpoints
//! that have work.
//!
//! # Invariants
//!
//! 1. On no endpoint do more attempts start within any stretch of the window than the pace allows,
//!    whoever registered its webhooks.
//! 2. A webhook that is paused starts none, one that probes one at a time.
//! 3. What can start does, in the order in which it could: no endpoint and no webhook starves. On a
//!    endpoint workspaces take turns, and the webhooks of one share its turn.
//! 4. No delivery is under way twice.
//! 5. What is in memory of deliveries, be they under way or waiting, is bounded over all webhooks
//!    together: the more have work the less each may hold, and where that is not
//!    enough, those that have time hold nothing.
//! 6. Slow receivers cannot take all places: those that took long last time share half of them,
//!    the last quarter is for endpoints that have nothing under way, the last eighth for endpoints
//!    whose receivers have answered, and a workspace has few attempts beside others of one webhook
//!    while other workspaces have any.
//! 7. An endpoint whose name finds no answer is left alone, longer each time, up to a minute.
//!
//! # Not here
//!
//! How deliveries are sent and what follows (`worker`), when a failed one is due (`domain::retry`).

pub(crate) mod transition;

mod attempt_result;
mod backlog;
mod concurrency;
mod endpoint;
mod load;
mod pick;
mod rate_limit;
mod ready_list;
mod status;
#[cfg(test)]
mod tests;
mod workspace_share;

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use weir_common::limit::rolling::Log;
use weir_common::time::{Moment, Tick};

use crate::domain::delivery::{Fetched, QueuedDelivery};
use crate::domain::id::{DeliveryId, EndpointId, WebhookId};
pub use crate::scheduler::attempt_result::Answered;
pub use crate::scheduler::backlog::Gate;
use crate::scheduler::backlog::Queue;
use crate::scheduler::concurrency::InFlightSlots;
use crate::scheduler::endpoint::Endpoint;
use crate::scheduler::load::Load;
pub use crate::scheduler::rate_limit::Pace;
use crate::scheduler::rate_limit::suspicious;

/// A queue without work is forgotten after this: a webhook with traffic is not read anew each time.
const IDLE: Duration = Duration::from_secs(120);

/// Deliveries in memory that all webhooks share, in bytes: a quarter of what a dispatcher with
/// millions waiting may take. The bodies of those under way have half of it at most;
/// those that wait have the rest.
pub const HELD_BYTES_ALL: usize = 64 << 20;

/// What all attempts together may take.
fn most(pace: Pace, held_bytes: usize) -> Load {
    Load { attempts: pace.total, bytes: (held_bytes / 2).max(1) }
}

/// What is to be done now.
#[derive(Debug)]
pub enum Step {
    /// Start this delivery: it counts as started.
    Start {
        /// For whom.
        webhook: WebhookId,
        /// On which endpoint.
        endpoint: EndpointId,
        /// What.
        ready: QueuedDelivery,
        /// How long it could have started already.
        lag: Duration,
    },
    /// Ask the store what waits for this webhook.
    Fetch {
        /// For whom.
        webhook: WebhookId,
        /// For so many.
        limit: usize,
        /// Not for these, which are under way.
        but: Vec<DeliveryId>,
        /// To be handed back with the answer.
        round: u64,
    },
    /// Ask the store for this delivery, which probes.
    FetchOne {
        /// For whom.
        webhook: WebhookId,
        /// What.
        delivery: DeliveryId,
        /// To be handed back with the answer.
        round: u64,
    },
    /// Nothing before then, or until something happens.
    Wait(Option<Tick>),
}

/// A hundred thousand endpoints may wait: what is known of each is less than this, in bytes.
const _: () = assert!(size_of::<Endpoint>() <= 128 && size_of::<Queue>() <= 176);

/// All endpoints that have work.
#[derive(Debug)]
pub struct Scheduler {
    pace: Pace,
    endpoints: HashMap<EndpointId, Endpoint>,
    queues: HashMap<WebhookId, Queue>,
    /// Endpoints by when they have something to do, and in the order in which they came to have it.
    heap: BinaryHeap<Reverse<(Tick, u64, EndpointId)>>,
    came: u64,
    places: InFlightSlots,
    low: Vec<WebhookId>,
    /// What the deliveries in memory take that wait, about.
    held_bytes: usize,
    /// What those may take together with the bodies of what is under way.
    held_bytes_max: usize,
    /// So many starts on every endpoint may have left no trace, at the latest then.
    unseen: Vec<(usize, Tick)>,
}

impl Scheduler {
    /// None yet; deliveries in memory may take so many bytes.
    #[must_use]
    pub fn new(pace: Pace, held_bytes_max: usize) -> Self {
        Self {
            pace,
            endpoints: HashMap::new(),
            queues: HashMap::new(),
            heap: BinaryHeap::new(),
            came: 0,
            places: InFlightSlots::new(most(pace, held_bytes_max)),
            low: Vec::new(),
            held_bytes: 0,
            held_bytes_max,
            unseen: Vec::new(),
        }
    }

    /// Whether the webhook's queue is known here.
    #[must_use]
    pub fn knows(&self, webhook: WebhookId) -> bool {
        self.queues.contains_key(&webhook)
    }

    /// Takes a webhook's queue in; the first that waits for it was due then when it was read. One
    /// that is known begins anew, and the store is asked again: what has come since is in neither.
    pub fn open(
        &mut self,
        webhook: WebhookId,
        workspace: &Arc<str>,
        endpoint: EndpointId,
        gate: Gate,
        due: Option<Tick>,
        now: Tick,
    ) {
        match self.queues.get_mut(&webhook) {
            Some(queue) => {
                let before = queue.endpoint;
                self.held_bytes -= queue.weight();
                queue.forget(endpoint, gate, now);
                if before != endpoint {
                    self.endpoint(before).turns.retain(|one| *one != webhook);
                    self.put(before, now);
                }
            }
            None => {
                let queue = Queue::new(workspace.clone(), endpoint, gate, due, now);
                self.queues.insert(webhook, queue);
            }
        }
        let turns = &mut self.endpoint(endpoint).turns;
        if !turns.contains(&webhook) {
            turns.push_back(webhook);
        }
        self.put(endpoint, now);
    }

    /// Lets a webhook's queue go. What is under way still counts on its endpoint until it ends.
    pub fn close(&mut self, webhook: WebhookId, now: Tick) {
        let Some(queue) = self.queues.get_mut(&webhook) else { return };
        let endpoint = queue.endpoint;
        self.held_bytes -= queue.weight();
        queue.forget(endpoint, Gate::Closed, now);
        queue.gone = true;
        self.drop_gone(webhook);
        self.put(endpoint, now);
    }

    fn drop_gone(&mut self, webhook: WebhookId) {
        let gone = |queue: &&Queue| queue.gone && queue.in_flight.is_empty();
        let Some(endpoint) = self.queues.get(&webhook).filter(gone).map(|queue| queue.endpoint)
        else {
            return;
        };
        self.remove(webhook);
        self.endpoint(endpoint).turns.retain(|one| *one != webhook);
    }

    fn remove(&mut self, webhook: WebhookId) {
        let gone = self.queues.remove(&webhook);
        self.held_bytes -= gone.map_or(0, |queue| queue.weight());
    }

    /// Notes how the last attempt on a webhook's endpoint ended, where that is not known here.
    pub fn remember(&mut self, webhook: WebhookId, answered: Answered) {
        let Some(endpoint) = self.queues.get(&webhook).map(|queue| queue.endpoint) else { return };
        let Some(endpoint) =
            self.endpoints.get_mut(&endpoint).filter(|endpoint| endpoint.last.is_none())
        else {
            return;
        };
        let was = endpoint.standing();
        endpoint.last = Some(answered);
        self.places.changed(was, endpoint.standing());
    }

    /// Opens or shuts a webhook's gate.
    pub fn set_gate(&mut self, webhook: WebhookId, gate: Gate, now: Tick) {
        let Some(queue) = self.queues.get_mut(&webhook) else { return };
        queue.gate = gate;
        let endpoint = queue.endpoint;
        self.put(endpoint, now);
    }

    /// Where a webhook's gate stands.
    #[must_use]
    pub fn gate(&self, webhook: WebhookId) -> Option<Gate> {
        self.queues.get(&webhook).map(|queue| queue.gate)
    }

    /// Takes in a delivery that is on disk and waits, for a webhook that is known.
    pub fn arrived(&mut self, webhook: WebhookId, ready: QueuedDelivery, now: Moment) {
        let room = self.room();
        let Some(queue) = self.queues.get_mut(&webhook) else { return };
        let before = queue.weight();
        queue.arrived(ready, room, now);
        self.held_bytes = self.held_bytes + queue.weight() - before;
        let endpoint = queue.endpoint;
        self.put(endpoint, now.tick);
    }

    /// Forgets what is in memory of what waits for a webhook: there is more on disk than was told.
    pub fn reread(&mut self, webhook: WebhookId, now: Tick) {
        let Some(queue) = self.queues.get_mut(&webhook).filter(|queue| !queue.gone) else { return };
        self.held_bytes -= queue.weight();
        let (endpoint, gate) = (queue.endpoint, queue.gate);
        queue.forget(endpoint, gate, now);
        self.put(endpoint, now);
    }

    /// Takes in the store's answer to [`Step::Fetch`].
    pub fn fetched(&mut self, webhook: WebhookId, round: u64, fetched: Fetched, now: Moment) {
        let room = self.room();
        let Some(queue) = self.queues.get_mut(&webhook).filter(|queue| queue.round == round) else {
            return;
        };
        let before = queue.weight();
        queue.answered(fetched, room, now);
        self.held_bytes = self.held_bytes + queue.weight() - before;
        let endpoint = queue.endpoint;
        self.put(endpoint, now.tick);
    }

    /// Takes in the store's answer to [`Step::FetchOne`].
    pub fn fetched_one(
        &mut self,
        webhook: WebhookId,
        round: u64,
        ready: Option<QueuedDelivery>,
        now: Moment,
    ) {
        let Some(queue) = self.queues.get_mut(&webhook).filter(|queue| queue.round == round) else {
            return;
        };
        let before = queue.weight();
        queue.answered_one(ready, now);
        self.held_bytes = self.held_bytes + queue.weight() - before;
        let endpoint = queue.endpoint;
        self.put(endpoint, now.tick);
    }

    /// Ends an attempt whose outcome is on disk. `again` is the delivery, where it waits again.
    pub fn recorded(
        &mut self,
        webhook: WebhookId,
        delivery: DeliveryId,
        again: Option<QueuedDelivery>,
        answered: Answered,
        now: Moment,
    ) {
        let room = self.room();
        let Some(queue) = self.queues.get_mut(&webhook) else { return };
        let Some((counted_on, bytes)) = queue.ended(delivery, now.tick) else { return };
        self.places.ended(&queue.workspace, bytes, queue.in_flight.is_empty());
        let before = queue.weight();
        match again {
            Some(ready) => queue.add(ready, room, now),
            None if queue.gate == Gate::Probe(Some(delivery)) => queue.gate = Gate::Probe(None),
            None => {}
        }
        self.held_bytes = self.held_bytes + queue.weight() - before;
        let endpoint_now = queue.endpoint;
        let most = self.pace.per_endpoint;
        let endpoint = self.endpoint(counted_on);
        let was = endpoint.standing();
        endpoint.ended(bytes, answered, most, now.tick);
        let now_is = endpoint.standing();
        self.places.changed(was, now_is);
        self.drop_gone(webhook);
        self.put(counted_on, now.tick);
        if endpoint_now != counted_on {
            self.put(endpoint_now, now.tick);
        }
    }

    /// Forgets queues and endpoints that have had nothing to do for a while.
    pub fn forget_idle(&mut self, now: Tick) {
        let idle = |queue: &Queue| queue.is_idle() && now.since(queue.used) >= IDLE;
        let gone: Vec<(WebhookId, EndpointId)> = self
            .queues
            .iter()
            .filter(|(_, queue)| idle(queue))
            .map(|(id, queue)| (*id, queue.endpoint))
            .collect();
        for (webhook, endpoint) in &gone {
            self.remove(*webhook);
            self.endpoint(*endpoint).turns.retain(|one| one != webhook);
        }
        let quota = self.pace.quota;
        self.unseen.retain(|(_, at)| now.since(*at) < quota.window);
        self.endpoints.retain(|_, endpoint| {
            !endpoint.turns.is_empty()
                || endpoint.under_way.attempts > 0
                || endpoint.starts.full_at(quota) > now
        });
    }

    fn endpoint(&mut self, id: EndpointId) -> &mut Endpoint {
        // Whoever has not answered yet is tried by few: thousands of black holes would take every
        // place before the first of them times out.
        let room = (self.pace.per_endpoint / 4).max(1);
        let (quota, unseen) = (self.pace.quota, &self.unseen);
        self.endpoints.entry(id).or_insert_with(|| {
            let starts = unseen
                .iter()
                .fold(Log::default(), |starts, (count, at)| suspicious(starts, quota, *count, *at));
            Endpoint::new(room, starts)
        })
    }
}
