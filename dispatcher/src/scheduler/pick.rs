//! What starts next, on which endpoint, for whom.
//!
//! Endpoints lie in a heap by when they have something to do; one that is served goes back to where
//! it has something to do next. On an endpoint the workspace goes first that has waited longest,
//! and of its webhooks the one that has: however many webhooks a workspace has there, it is one
//! among others. While the store is asked what a webhook has to send, its turn is kept.
//!
//! Not here: what may start at all (`backlog`, `concurrency`), what comes of it (`scheduler`).

use std::cmp::Reverse;
use std::collections::VecDeque;
use std::time::Duration;

use weir_common::limit::decision::Decision;
use weir_common::time::{Moment, Tick};

use crate::domain::delivery::QueuedDelivery;
use crate::domain::id::{EndpointId, WebhookId};
use crate::scheduler::backlog::{Room, Turn};
use crate::scheduler::concurrency::Refused;
use crate::scheduler::{Scheduler, Step};

/// Who cannot start anything for so long can be read from the store again: it is asked a question
/// a start, where otherwise one question tells of many.
const FAR: Duration = Duration::from_secs(1);

/// So few places that are out of date are not worth tidying up.
const HEAP_MIN: usize = 64;

impl Scheduler {
    /// What is to be done now. To be asked until the answer is to wait.
    pub fn next(&mut self, now: Moment) -> Step {
        let room = self.room();
        while let Some(webhook) = self.low.pop() {
            let queue = self.queues.get_mut(&webhook).filter(|queue| queue.runs_low(room));
            if let Some(queue) = queue {
                let but = queue.ask();
                return Step::Fetch { webhook, limit: room.count, but, round: queue.round };
            }
        }
        loop {
            while let Some(&Reverse((due, came, id))) = self.heap.peek() {
                let endpoint = self.endpoints.get(&id);
                if endpoint.is_none_or(|endpoint| endpoint.due != Some((due, came))) {
                    self.heap.pop();
                    continue;
                }
                if due > now.tick {
                    break;
                }
                if self.places.are_taken() {
                    return Step::Wait(None);
                }
                self.heap.pop();
                if let Some(step) = self.serve(id, due, now.tick, None) {
                    return step;
                }
            }
            let Some((id, why)) = self.places.call_back() else {
                return Step::Wait(self.heap.peek().map(|Reverse((due, ..))| *due));
            };
            if let Some(endpoint) = self.endpoints.get_mut(&id) {
                if let Some(why) = why {
                    endpoint.aside.over(why);
                }
                if let Some(step) = self.serve(id, now.tick, now.tick, why) {
                    return step;
                }
            }
        }
    }

    /// Lets an endpoint do one thing, and puts it where it has something to do next. One that
    /// waited for a place is called back to that.
    fn serve(
        &mut self,
        id: EndpointId,
        due: Tick,
        now: Tick,
        called_back: Option<Refused>,
    ) -> Option<Step> {
        let quota = self.pace.quota;
        let room = self.room();
        let endpoint = self.endpoints.get_mut(&id)?;
        endpoint.due = None;
        // It has something under way, and is looked at when that ends.
        if endpoint.under_way.attempts >= endpoint.room {
            return None;
        }
        if let Some(why) =
            self.places.refused(endpoint.last, endpoint.under_way.attempts, called_back)
        {
            // What others have under way may end sooner.
            self.places.leave_out(id, why, &mut endpoint.aside);
            return None;
        }
        let free_at = match endpoint.starts.decide(quota, 1, now) {
            Decision::Admit | Decision::TooLarge => now,
            Decision::Refuse { retry_at } => retry_at,
        };
        let free_at = free_at.max(endpoint.backs_off_until());
        let (mut later, mut kept, mut could_start) = (None::<Tick>, false, false);
        for nth in 0..endpoint.turns.len() {
            let webhook =
                self.endpoints.get(&id).and_then(|endpoint| endpoint.turns.get(nth).copied())?;
            let Some(queue) = self.queues.get_mut(&webhook) else { continue };
            match queue.turn(now) {
                Turn::Start if kept => could_start = true,
                Turn::Start if free_at > now => later = sooner(later, free_at),
                // It is called back when its workspace may have more.
                Turn::Start
                    if !queue.in_flight.is_empty()
                        && !self.places.has_room(&queue.workspace, id) =>
                {
                    could_start = true;
                }
                Turn::Start => {
                    let Some(ready) = self.begin(id, webhook, now) else { continue };
                    let lag = now.since(due);
                    return Some(Step::Start { webhook, endpoint: id, ready, lag });
                }
                // What cannot start for long is not read yet.
                Turn::Fetch if free_at.since(now) >= FAR => later = sooner(later, free_at),
                Turn::Fetch => {
                    let (but, round) = (queue.ask(), queue.round);
                    self.put(id, now);
                    return Some(Step::Fetch { webhook, limit: room.count, but, round });
                }
                Turn::FetchOne(delivery) => {
                    let (_, round) = (queue.ask(), queue.round);
                    self.put(id, now);
                    return Some(Step::FetchOne { webhook, delivery, round });
                }
                Turn::At(at) => later = sooner(later, at),
                Turn::Rest => kept |= queue.is_being_read(),
            }
        }
        if let Some(at) = later {
            // What waits for the store's answer or for a place starts sooner.
            if !could_start {
                self.shed(id, at.since(now));
            }
            self.put(id, at);
        }
        None
    }

    /// Takes the first delivery of a webhook out, which starts now.
    fn begin(&mut self, id: EndpointId, webhook: WebhookId, now: Tick) -> Option<QueuedDelivery> {
        let room = self.room();
        let (endpoint, queue) = (self.endpoints.get_mut(&id)?, self.queues.get_mut(&webhook)?);
        let (before, first) = (queue.weight(), queue.in_flight.is_empty());
        let ready = queue.take(now)?;
        self.held_bytes = self.held_bytes + queue.weight() - before;
        let _ = endpoint.starts.charge(self.pace.quota, 1, now);
        let (was, bytes) = (endpoint.standing(), ready.body.len());
        endpoint.under_way = endpoint.under_way.plus(bytes);
        self.places.changed(was, endpoint.standing());
        self.places.started(&queue.workspace, bytes, first);
        if queue.runs_low(room) {
            self.low.push(webhook);
        }
        self.had_its_turn(id, webhook);
        self.put(id, now);
        Some(ready)
    }

    /// Puts a webhook that has started something behind all others of its workspace, and those
    /// behind all other workspaces'.
    fn had_its_turn(&mut self, id: EndpointId, webhook: WebhookId) {
        let Some(endpoint) =
            self.endpoints.get_mut(&id).filter(|endpoint| endpoint.turns.len() > 1)
        else {
            return;
        };
        let workspace = |one: WebhookId| self.queues.get(&one).map(|queue| &queue.workspace);
        let own = workspace(webhook);
        let (mut others, mut kin) = (VecDeque::new(), Vec::new());
        for one in endpoint.turns.drain(..).filter(|one| *one != webhook) {
            if workspace(one) == own { kin.push(one) } else { others.push_back(one) }
        }
        others.extend(kin);
        others.push_back(webhook);
        endpoint.turns = others;
    }

    /// How much each webhook may have in memory.
    pub(super) fn room(&self) -> Room {
        let left = self.held_bytes_max.saturating_sub(self.places.taken().bytes);
        Room::share(left, self.queues.len(), self.pace.quota)
    }

    /// Lets what an endpoint holds go that has nothing to do for so long, where all hold too much.
    fn shed(&mut self, id: EndpointId, rest: Duration) {
        let held = self.held_bytes + self.places.taken().bytes;
        if rest < FAR || held <= self.held_bytes_max / 2 {
            return;
        }
        let Some(endpoint) = self.endpoints.get(&id) else { return };
        for webhook in &endpoint.turns {
            let Some(queue) = self.queues.get_mut(webhook) else { continue };
            let before = queue.weight();
            queue.shed();
            self.held_bytes = self.held_bytes + queue.weight() - before;
        }
    }

    /// Puts an endpoint into the heap, unless it has a place further up.
    pub(super) fn put(&mut self, id: EndpointId, at: Tick) {
        let came = self.came;
        let endpoint = self.endpoint(id);
        if endpoint.due.is_none_or(|(due, _)| at < due) {
            endpoint.due = Some((at, came));
            self.came += 1;
            self.heap.push(Reverse((at, came, id)));
        }
        // A place that is out of date would stay until its time, be it a day away.
        if self.heap.len() > 2 * self.endpoints.len() + HEAP_MIN {
            let endpoints = &self.endpoints;
            self.heap.retain(|Reverse((at, came, id))| {
                endpoints.get(id).is_some_and(|endpoint| endpoint.due == Some((*at, *came)))
            });
        }
    }
}

fn sooner(one: Option<Tick>, other: Tick) -> Option<Tick> {
    Some(one.map_or(other, |one| one.min(other)))
}
