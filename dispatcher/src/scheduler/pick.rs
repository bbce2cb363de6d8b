//! What starts next, on which endpoint, for whom; or what is to be read for that.
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

use crate::domain::id::{DeliveryId, EndpointId, WebhookId};
use crate::domain::webhook::Probe;
use crate::scheduler::Scheduler;
use crate::scheduler::attempts::StartedAttempt;
use crate::scheduler::backlog::{MemoryLimit, Readiness};
use crate::scheduler::concurrency::Refused;
use crate::scheduler::reads::StoreRead;
use crate::scheduler::webhooks::Flow;

/// What cannot start for so long can be read from the store again: it is asked a question
/// a start, where otherwise one question tells of many.
const FAR: Duration = Duration::from_secs(1);

/// So few places that are out of date are not worth tidying up.
const HEAP_MIN: usize = 64;

/// What comes next.
#[derive(Debug)]
pub(super) enum Pick {
    /// This attempt, which counts as started; it could have started so long ago.
    Start(StartedAttempt, Duration),
    /// This read, without which it is not known what starts.
    Read(StoreRead),
    /// Nothing before then, or until something happens.
    Wait(Option<Tick>),
}

impl Scheduler {
    /// What comes next. To be asked until the answer is to wait.
    pub(super) fn next(&mut self, now: Moment) -> Pick {
        let limit = self.memory_limit();
        while let Some(webhook) = self.low.pop() {
            let Some(backlog) = self.backlogs.get_mut(&webhook) else { continue };
            if backlog.runs_low(self.webhooks.flow(webhook), limit) {
                let (but, round) = (backlog.ask(), backlog.round);
                let limit = limit.count;
                return Pick::Read(StoreRead::Fetch { webhook, limit, but, round });
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
                if self.slots.are_taken() {
                    return Pick::Wait(None);
                }
                self.heap.pop();
                if let Some(pick) = self.serve(id, due, now, None) {
                    return pick;
                }
            }
            let Some((id, why)) = self.slots.unpark() else {
                return Pick::Wait(self.heap.peek().map(|Reverse((due, ..))| *due));
            };
            if let Some(endpoint) = self.endpoints.get_mut(&id) {
                if let Some(why) = why {
                    endpoint.parked.over(why);
                }
                if let Some(pick) = self.serve(id, now.tick, now, why) {
                    return pick;
                }
            }
        }
    }

    /// Lets an endpoint do one thing, and puts it where it has something to do next. One that
    /// waited for a slot is called back to that.
    fn serve(
        &mut self,
        id: EndpointId,
        due: Tick,
        now: Moment,
        called_back: Option<Refused>,
    ) -> Option<Pick> {
        let quota = self.policies.limits.quota;
        let endpoint = self.endpoints.get_mut(&id)?;
        endpoint.due = None;
        // It has something under way, and is looked at when that ends.
        if endpoint.under_way.attempts >= endpoint.limit {
            return None;
        }
        if let Some(why) =
            self.slots.refused(endpoint.last, endpoint.under_way.attempts, called_back)
        {
            // What others have under way may end sooner.
            self.slots.park(id, why, &mut endpoint.parked);
            return None;
        }
        let free_at = match endpoint.starts.decide(quota, 1, now.tick) {
            Decision::Admit | Decision::TooLarge => now.tick,
            Decision::Refuse { retry_at } => retry_at,
        };
        let free_at = free_at.max(endpoint.backs_off_until());
        let (mut later, mut kept, mut could_start) = (None::<Tick>, false, false);
        for nth in 0..endpoint.turns.len() {
            let webhook =
                self.endpoints.get(&id).and_then(|endpoint| endpoint.turns.get(nth).copied())?;
            let Some(backlog) = self.backlogs.get_mut(&webhook) else { continue };
            let flow = self.webhooks.flow(webhook);
            match backlog.readiness(flow, now.tick) {
                Readiness::Ready if kept => could_start = true,
                Readiness::Ready if free_at > now.tick => later = sooner(later, free_at),
                // It is called back when its workspace may have more.
                Readiness::Ready
                    if !backlog.in_flight.is_empty()
                        && !self.slots.has_room(&backlog.workspace, id) =>
                {
                    could_start = true;
                }
                Readiness::Ready => {
                    let Some(started) = self.begin((id, webhook), flow, now) else { continue };
                    return Some(Pick::Start(started, now.tick.since(due)));
                }
                // What cannot start for long is not read yet.
                Readiness::NeedsFetch if free_at.since(now.tick) >= FAR => {
                    later = sooner(later, free_at);
                }
                Readiness::NeedsFetch => return Some(self.fetch(id, webhook, None, now.tick)),
                Readiness::NeedsProbe(one) => {
                    return Some(self.fetch(id, webhook, Some(one), now.tick));
                }
                Readiness::NotBefore(at) => later = sooner(later, at),
                Readiness::Idle => kept |= backlog.is_being_read(flow),
            }
        }
        if let Some(at) = later {
            // What waits for the store's answer or for a slot starts sooner.
            if !could_start {
                self.shed(id, at.since(now.tick));
            }
            self.put(id, at);
        }
        None
    }

    /// Has the store asked what waits for a webhook, or for the one delivery that probes it.
    fn fetch(
        &mut self,
        id: EndpointId,
        webhook: WebhookId,
        probe: Option<DeliveryId>,
        now: Tick,
    ) -> Pick {
        let limit = self.memory_limit().count;
        let backlog = self.backlogs.get_mut(&webhook);
        let (but, round) =
            backlog.map(|backlog| (backlog.ask(), backlog.round)).unwrap_or_default();
        self.put(id, now);
        Pick::Read(match probe {
            Some(delivery) => StoreRead::FetchOne { webhook, delivery, round },
            None => StoreRead::Fetch { webhook, limit, but, round },
        })
    }

    /// Takes the first delivery of a webhook on an endpoint out, which starts now.
    fn begin(
        &mut self,
        (id, webhook): (EndpointId, WebhookId),
        flow: Flow,
        now: Moment,
    ) -> Option<StartedAttempt> {
        let limit = self.memory_limit();
        let target = self.webhooks.target(webhook)?;
        let (endpoint, backlog) = (self.endpoints.get_mut(&id)?, self.backlogs.get_mut(&webhook)?);
        let (before, first) = (backlog.weight(), backlog.in_flight.is_empty());
        let delivery = backlog.take(flow, now.tick)?;
        self.held_bytes = self.held_bytes + backlog.weight() - before;
        let _ = endpoint.starts.charge(self.policies.limits.quota, 1, now.tick);
        let (was, bytes) = (endpoint.occupancy(), delivery.body.len());
        endpoint.under_way = endpoint.under_way.plus(bytes);
        self.slots.changed(was, endpoint.occupancy());
        self.slots.started(&backlog.workspace, bytes, first);
        if backlog.runs_low(flow, limit) {
            self.low.push(webhook);
        }
        if flow == Flow::Probing(Probe::Any) {
            self.webhooks.probe_with(webhook, Probe::This(delivery.id));
        }
        self.had_its_turn(id, webhook);
        self.put(id, now.tick);
        Some(StartedAttempt { webhook, endpoint: id, delivery, started: now, target })
    }

    /// Puts a webhook that has started something behind all others of its workspace, and those
    /// behind all other workspaces'.
    fn had_its_turn(&mut self, id: EndpointId, webhook: WebhookId) {
        let Some(endpoint) =
            self.endpoints.get_mut(&id).filter(|endpoint| endpoint.turns.len() > 1)
        else {
            return;
        };
        let workspace = |one: WebhookId| self.backlogs.get(&one).map(|backlog| &backlog.workspace);
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
    pub(super) fn memory_limit(&self) -> MemoryLimit {
        let left = self.held_bytes_max.saturating_sub(self.slots.taken().bytes);
        MemoryLimit::share(left, self.backlogs.len(), self.policies.limits.quota)
    }

    /// Lets what an endpoint holds go that has nothing to do for so long, where all hold too much.
    fn shed(&mut self, id: EndpointId, rest: Duration) {
        let held = self.held_bytes + self.slots.taken().bytes;
        if rest < FAR || held <= self.held_bytes_max / 2 {
            return;
        }
        let Some(endpoint) = self.endpoints.get(&id) else { return };
        for webhook in &endpoint.turns {
            let Some(backlog) = self.backlogs.get_mut(webhook) else { continue };
            let before = backlog.weight();
            backlog.shed();
            self.held_bytes = self.held_bytes + backlog.weight() - before;
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
