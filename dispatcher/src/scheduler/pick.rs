//! Picks the next attempt to start, or the read that it needs. (core)
//!
//! A heap orders endpoints by the time of their next work; a served endpoint is put back with its
//! next time. On an endpoint the workspace that waited longest goes first, and of its webhooks the
//! one that waited longest: a workspace with many webhooks has one turn like any other. While a
//! webhook's deliveries are being read, its turn is kept; if the read fails, the next one has it.
//!
//! Not here: which attempts may start (`backlog`, `concurrency`), their consequences (`attempts`).

use std::cmp::Reverse;
use std::collections::VecDeque;
use std::time::Duration;

use weir_common::time::{Moment, Tick};

use crate::domain::id::{DeliveryId, EndpointId, WebhookId};
use crate::domain::webhook::Probe;
use crate::scheduler::Scheduler;
use crate::scheduler::attempts::StartedAttempt;
use crate::scheduler::backlog::{Backlog, MemoryLimit, Readiness};
use crate::scheduler::concurrency::Refused;
use crate::scheduler::queues::change;
use crate::scheduler::reads::StoreRead;
use crate::scheduler::webhooks::Flow;

/// Deliveries that cannot start for this long may be evicted: reading them again costs one read per
/// start, instead of one read for many.
const FAR: Duration = Duration::from_secs(1);

/// Fewer stale heap entries than this are not worth removing.
const HEAP_MIN: usize = 64;

/// The next step.
#[derive(Debug)]
pub(super) enum Pick {
    /// This attempt, which counts as started, with its start lag.
    Start(StartedAttempt, Duration),
    /// This read, on which the next start depends.
    Read(StoreRead),
    /// Wait for an event, or until this time.
    Wait(Option<Tick>),
}

impl Scheduler {
    /// The next step; call it until it returns `Wait`.
    pub(super) fn next(&mut self, now: Moment) -> Pick {
        let limit = self.memory_limit();
        while let Some(webhook) = self.low.pop() {
            let Some(backlog) = self.backlogs.get_mut(&webhook) else { continue };
            if backlog.runs_low(self.webhooks.flow(webhook), limit) {
                let (but, round) = (backlog.begin_fetch(), backlog.round);
                let limit = limit.count;
                return Pick::Read(StoreRead::Fetch { webhook, limit, but, round });
            }
        }
        loop {
            while let Some(&Reverse((due, sequence, id))) = self.heap.peek() {
                let endpoint = self.endpoints.get(&id);
                if endpoint.is_none_or(|endpoint| endpoint.due != Some((due, sequence))) {
                    self.heap.pop();
                    continue;
                }
                if due > now.tick {
                    break;
                }
                if self.slots.are_full() {
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
                    endpoint.parked.remove(why);
                }
                if let Some(pick) = self.serve(id, now.tick, now, why) {
                    return pick;
                }
            }
        }
    }

    /// Serves an endpoint once, and puts it back with its next time. `unparked_from` is the queue
    /// for slots that it was just taken from.
    fn serve(
        &mut self,
        id: EndpointId,
        due: Tick,
        now: Moment,
        unparked_from: Option<Refused>,
    ) -> Option<Pick> {
        let quota = self.policies.limits.quota;
        let endpoint = self.endpoints.get_mut(&id)?;
        endpoint.due = None;
        // It is served again when one of its attempts ends.
        if endpoint.under_way.attempts >= endpoint.limit {
            return None;
        }
        if let Some(why) =
            self.slots.refused(endpoint.last, endpoint.under_way.attempts, unparked_from)
        {
            // Attempts on other endpoints may release a slot before its own do.
            self.slots.park(id, why, &mut endpoint.parked);
            return None;
        }
        let free_at = endpoint.starts.free_at(quota, now.tick).max(endpoint.backs_off_until());
        let (mut later, mut kept, mut could_start) = (None::<Tick>, false, false);
        for nth in 0..endpoint.turns.len() {
            let webhook =
                self.endpoints.get(&id).and_then(|endpoint| endpoint.turns.get(nth).copied())?;
            let Some(backlog) = self.backlogs.get(&webhook) else { continue };
            let flow = self.webhooks.flow(webhook);
            match self.readiness(backlog, webhook, now.tick) {
                Readiness::Ready if kept => could_start = true,
                Readiness::Ready if free_at > now.tick => later = sooner(later, free_at),
                Readiness::Ready => {
                    let further = !backlog.in_flight.is_empty();
                    if further && !self.slots.admit_further_or_park(&backlog.workspace, id) {
                        could_start = true;
                        continue;
                    }
                    let Some(started) = self.begin((id, webhook), flow, now) else { continue };
                    return Some(Pick::Start(started, now.tick.since(due)));
                }
                step @ (Readiness::NeedsFetch | Readiness::NeedsProbe(_)) => {
                    // Deliveries that cannot start soon are not read yet: in scarce memory two
                    // webhooks would evict each other's for ever.
                    let until = free_at.max(self.paced_until(webhook, now.tick));
                    if until.since(now.tick) >= FAR {
                        later = sooner(later, until);
                        continue;
                    }
                    let probe = match step {
                        Readiness::NeedsProbe(one) => Some(one),
                        _ => None,
                    };
                    return Some(self.fetch(id, webhook, probe, now.tick));
                }
                Readiness::NotBefore(at) => later = sooner(later, at),
                Readiness::Idle => kept |= backlog.is_being_read(flow),
            }
        }
        if let Some(at) = later {
            // Webhooks that wait for a read or a slot start sooner.
            if !could_start {
                self.shed(id, at.since(now.tick));
            }
            self.put(id, at);
        }
        None
    }

    /// The next step of a webhook's queue, by its own limits as well.
    pub(super) fn readiness(&self, backlog: &Backlog, webhook: WebhookId, now: Tick) -> Readiness {
        match backlog.readiness(self.webhooks.flow(webhook), now) {
            Readiness::Ready => match self.paced_until(webhook, now) {
                until if until > now => Readiness::NotBefore(until),
                _ => Readiness::Ready,
            },
            other => other,
        }
    }

    /// When the limits of a webhook, apart from its endpoint's, admit a start.
    pub(super) fn paced_until(&self, webhook: WebhookId, now: Tick) -> Tick {
        let pace = self.webhooks.pace(webhook);
        let free_at = |pace| self.paces.free_at(pace, &self.policies.limits, &self.unrecorded, now);
        pace.map_or(now, free_at)
    }

    /// Reads the deliveries of a webhook, or its probe.
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
            backlog.map(|backlog| (backlog.begin_fetch(), backlog.round)).unwrap_or_default();
        self.put(id, now);
        Pick::Read(match probe {
            Some(delivery) => StoreRead::FetchOne { webhook, delivery, round },
            None => StoreRead::Fetch { webhook, limit, but, round },
        })
    }

    /// Starts the first delivery of a webhook.
    fn begin(
        &mut self,
        (id, webhook): (EndpointId, WebhookId),
        flow: Flow,
        now: Moment,
    ) -> Option<StartedAttempt> {
        let limit = self.memory_limit();
        let target = self.webhooks.target(webhook)?;
        let (endpoint, backlog) = (self.endpoints.get_mut(&id)?, self.backlogs.get_mut(&webhook)?);
        let first = backlog.in_flight.is_empty();
        let pop = |backlog: &mut Backlog| backlog.pop_first(flow, now.tick);
        let delivery = change(backlog, &mut self.cached_bytes, pop)?;
        let limits = &self.policies.limits;
        endpoint.starts.begin(limits.quota, now.tick);
        if let Some(pace) = self.webhooks.pace(webhook) {
            self.paces.begin(pace, limits, &self.unrecorded, now.tick);
        }
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
        self.move_to_back(id, webhook);
        self.put(id, now.tick);
        Some(StartedAttempt { webhook, endpoint: id, delivery, started: now, target })
    }

    /// Moves a webhook that had its turn behind the others of its workspace, and its workspace
    /// behind all others.
    pub(super) fn move_to_back(&mut self, id: EndpointId, webhook: WebhookId) {
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

    /// The memory limit of each webhook.
    pub(super) fn memory_limit(&self) -> MemoryLimit {
        let left = self.cached_bytes_max.saturating_sub(self.slots.used().bytes);
        MemoryLimit::share(left, self.backlogs.len(), self.policies.limits.quota)
    }

    /// Evicts the deliveries of an endpoint that cannot start soon, if memory is short.
    fn shed(&mut self, id: EndpointId, wait: Duration) {
        let cached = self.cached_bytes + self.slots.used().bytes;
        if wait < FAR || cached <= self.cached_bytes_max / 2 {
            return;
        }
        let Some(endpoint) = self.endpoints.get(&id) else { return };
        for webhook in &endpoint.turns {
            let Some(backlog) = self.backlogs.get_mut(webhook) else { continue };
            change(backlog, &mut self.cached_bytes, Backlog::shed);
        }
    }

    /// Puts an endpoint into the heap, unless it has an earlier entry.
    pub(super) fn put(&mut self, id: EndpointId, at: Tick) {
        let sequence = self.sequence;
        let endpoint = self.endpoint(id);
        if endpoint.due.is_none_or(|(due, _)| at < due) {
            endpoint.due = Some((at, sequence));
            self.sequence += 1;
            self.heap.push(Reverse((at, sequence, id)));
        }
        // A stale entry would stay until its time, perhaps for a day.
        if self.heap.len() > 2 * self.endpoints.len() + HEAP_MIN {
            let endpoints = &self.endpoints;
            self.heap.retain(|Reverse((at, sequence, id))| {
                endpoints.get(id).is_some_and(|endpoint| endpoint.due == Some((*at, *sequence)))
            });
        }
    }
}

fn sooner(one: Option<Tick>, other: Tick) -> Option<Tick> {
    Some(one.map_or(other, |one| one.min(other)))
}
