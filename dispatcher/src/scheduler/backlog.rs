//! The queue of one webhook: its first deliveries in memory, the rest in the store. (core)
//!
//! # Invariants
//!
//! 1. No delivery is started twice, in whatever order results of reads and new deliveries arrive.
//! 2. At most as many deliveries as [`MemoryLimit`] allows are in memory.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use weir_common::limit::rolling::RollingQuota;
use weir_common::time::{Moment, Tick, micros};

use crate::domain::delivery::{DELIVERY_OVERHEAD_BYTES, Fetched, QueuedDelivery};
use crate::domain::id::{DeliveryId, EndpointId};
use crate::domain::webhook::Probe;
use crate::scheduler::ready_list::{Key, Queued, ReadyList};
use crate::scheduler::webhooks::Flow;

/// Deliveries of one webhook that may be in memory at any rate limit, unless memory is short:
/// twenty seconds of work at 100 a minute.
const CACHED_MIN: usize = 32;

/// The most deliveries of one webhook in memory: the store reads them within some milliseconds.
const CACHED_MAX: usize = 512;

/// Between these two, as many deliveries are in memory as may start within this time. A read takes
/// a few milliseconds, and dozens while the disk is busy.
const CACHED_SPAN: Duration = Duration::from_millis(100);

/// Bytes of one webhook's bodies in memory, unless a single one is larger.
const CACHED_BYTES_MAX: usize = 256 << 10;

/// More deliveries are fetched once one in this many of the limit is left.
const LOW_SHARE: usize = 4;

/// The memory limit of one webhook.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct MemoryLimit {
    /// Deliveries, at least one.
    pub(super) count: usize,
    /// Bytes of their bodies, unless a single one is larger.
    bytes: usize,
}

impl MemoryLimit {
    /// The limit of each of `webhooks` webhooks that share `bytes`, at this rate limit.
    pub(super) fn share(bytes: usize, webhooks: usize, quota: RollingQuota) -> Self {
        let own = bytes / webhooks.max(1);
        let soon = u64::from(quota.requests) * micros(CACHED_SPAN) / micros(quota.window).max(1);
        let most = usize::try_from(soon).unwrap_or(CACHED_MAX).clamp(CACHED_MIN, CACHED_MAX);
        Self {
            count: (own / (2 * DELIVERY_OVERHEAD_BYTES)).clamp(1, most),
            bytes: own.clamp(DELIVERY_OVERHEAD_BYTES, CACHED_BYTES_MAX),
        }
    }
}

/// The next step of a backlog.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Readiness {
    /// Its first delivery can start.
    Ready,
    /// It needs more deliveries from the store.
    NeedsFetch,
    /// It needs this delivery from the store.
    NeedsProbe(DeliveryId),
    /// Nothing before this time.
    NotBefore(Tick),
    /// Nothing until an event.
    Idle,
}

/// A read that is with the store.
#[derive(Debug, Default)]
struct PendingFetch {
    /// The last delivery in memory when the read began, or an earlier one that was evicted since:
    /// later ones wait for the result, which may contain earlier ones.
    known_to: Option<Key>,
    /// Deliveries whose attempt ended since: the result may contain their earlier state.
    ended: Vec<DeliveryId>,
    /// The first delivery that was evicted since: the result may lack it.
    evicted: Option<Key>,
    failed: bool,
}

#[derive(Debug)]
pub(super) struct Backlog {
    pub(super) workspace: Arc<str>,
    pub(super) endpoint: EndpointId,
    /// Whether its webhook was deleted: it stays until its attempts in flight end.
    pub(super) gone: bool,
    /// The first waiting deliveries, by due time.
    pub(super) cached: ReadyList,
    cached_bytes: usize,
    /// Whether `cached` has every waiting delivery.
    pub(super) complete: bool,
    /// When the first waiting delivery is due, while none is in memory.
    pub(super) expected: Tick,
    fetching: Option<Box<PendingFetch>>,
    /// The newest delivery that the store returned; older ones were returned as well, or are in the
    /// store.
    seen: Option<DeliveryId>,
    /// The number of the current read; results of earlier ones are ignored.
    pub(super) round: u64,
    /// Deliveries in flight, with the endpoint that they count on and the bytes of their body; an
    /// empty map allocates nothing.
    pub(super) in_flight: BTreeMap<DeliveryId, (EndpointId, usize)>,
    /// Deliveries whose next attempt opens a connection; the store does not know it.
    fresh: BTreeSet<DeliveryId>,
    /// The probe, once it is known.
    probe: Option<Box<Queued>>,
    pub(super) used: Tick,
}

impl Backlog {
    pub(super) fn new(
        workspace: Arc<str>,
        endpoint: EndpointId,
        expected: Option<Tick>,
        now: Tick,
    ) -> Self {
        Self {
            workspace,
            endpoint,
            gone: false,
            cached: ReadyList::default(),
            cached_bytes: 0,
            complete: expected.is_none(),
            expected: expected.unwrap_or_default(),
            fetching: None,
            seen: None,
            round: 0,
            in_flight: BTreeMap::new(),
            fresh: BTreeSet::new(),
            probe: None,
            used: now,
        }
    }

    /// Evicts everything but attempts in flight, to be read again: the store has newer data.
    pub(super) fn forget(&mut self, endpoint: EndpointId, now: Tick) {
        self.endpoint = endpoint;
        self.gone = false;
        self.clear_cached();
        self.complete = false;
        self.expected = now;
        self.fetching = None;
        self.probe = None;
        self.round += 1;
    }

    /// Its next step at `now`, apart from the endpoint's limits.
    pub(super) fn readiness(&self, flow: Flow, now: Tick) -> Readiness {
        match flow {
            Flow::Stopped => Readiness::Idle,
            Flow::Probing(_) if !self.in_flight.is_empty() => Readiness::Idle,
            Flow::Probing(Probe::This(id)) => match &self.probe {
                Some(probe) if probe.at <= now => Readiness::Ready,
                Some(probe) => Readiness::NotBefore(probe.at),
                None if self.fetching.is_some() => Readiness::Idle,
                None => Readiness::NeedsProbe(id),
            },
            Flow::Open | Flow::Probing(Probe::Any) => self.first(now),
        }
    }

    fn first(&self, now: Tick) -> Readiness {
        if self.first_due(now).is_some() {
            return Readiness::Ready;
        }
        match self.known().map(|cached| cached.at).min() {
            Some(soonest) => Readiness::NotBefore(soonest),
            None if self.complete || self.fetching.is_some() => Readiness::Idle,
            None if self.expected <= now => Readiness::NeedsFetch,
            None => Readiness::NotBefore(self.expected),
        }
    }

    /// The first delivery that can start; after a step of the wall clock not necessarily the first
    /// in memory.
    fn first_due(&self, now: Tick) -> Option<Key> {
        self.known().find(|cached| cached.at <= now).map(Queued::key)
    }

    /// The deliveries in memory before which no unread one is due.
    fn known(&self) -> impl Iterator<Item = &Queued> {
        let unsure =
            |key| self.fetching.as_ref().is_some_and(|fetching| Some(key) > fetching.known_to);
        self.cached.iter().take_while(move |cached| !unsure(cached.key()))
    }

    /// Whether a running read may return a delivery that can start.
    pub(super) fn is_being_read(&self, flow: Flow) -> bool {
        flow == Flow::Open && self.fetching.as_ref().is_some_and(|fetching| !fetching.failed)
    }

    /// The read failed: until it is repeated, nothing that waits for it can start.
    pub(super) fn fetch_failed(&mut self) {
        self.fetching.iter_mut().for_each(|fetching| fetching.failed = true);
    }

    /// Whether to read more before the deliveries in memory run out.
    pub(super) fn runs_low(&self, flow: Flow, limit: MemoryLimit) -> bool {
        flow == Flow::Open
            && self.fetching.is_none()
            && !self.complete
            && (1..=limit.count / LOW_SHARE).contains(&self.cached.len())
    }

    /// The approximate bytes of its deliveries in memory.
    pub(super) fn weight(&self) -> usize {
        self.cached_bytes + self.cached.len() * DELIVERY_OVERHEAD_BYTES
    }

    /// Evicts all waiting deliveries, to be read from the store when they are due.
    pub(super) fn shed(&mut self) {
        let Some(first) = self.known().map(|cached| cached.at).min() else { return };
        if self.fetching.is_some() {
            return;
        }
        self.clear_cached();
        self.complete = false;
        self.expected = first;
    }

    /// Begins a read, and returns the deliveries in flight, which still wait in the store.
    pub(super) fn begin_fetch(&mut self) -> Vec<DeliveryId> {
        let known_to = self.cached.last();
        self.fetching = Some(Box::new(PendingFetch { known_to, ..PendingFetch::default() }));
        self.in_flight.keys().copied().collect()
    }

    /// Removes the first delivery, to start it.
    pub(super) fn pop_first(&mut self, flow: Flow, now: Tick) -> Option<QueuedDelivery> {
        let mut cached = match flow {
            Flow::Stopped => None,
            Flow::Probing(Probe::This(_)) => self.probe.take().map(|probe| *probe),
            Flow::Open | Flow::Probing(Probe::Any) => {
                let first = self.first_due(now).and_then(|key| self.cached.remove(key));
                self.cached_bytes -= first.as_ref().map_or(0, Queued::bytes);
                first
            }
        }?;
        // It may have been evicted since, and read again.
        cached.delivery.fresh_connection |= self.fresh.remove(&cached.delivery.id);
        self.in_flight.insert(cached.delivery.id, (self.endpoint, cached.bytes()));
        self.used = now;
        Some(cached.delivery)
    }

    /// Adds a new delivery, unless the store returned it already: it may have been sent since.
    pub(super) fn arrived(
        &mut self,
        delivery: QueuedDelivery,
        limit: MemoryLimit,
        flow: Flow,
        now: Moment,
    ) {
        if Some(delivery.id) > self.seen {
            self.add(delivery, limit, flow, now);
        }
    }

    /// Adds a waiting delivery that is on disk.
    pub(super) fn add(
        &mut self,
        delivery: QueuedDelivery,
        limit: MemoryLimit,
        flow: Flow,
        now: Moment,
    ) {
        self.used = now.tick;
        if self.in_flight.contains_key(&delivery.id) {
            return;
        }
        if delivery.fresh_connection {
            self.fresh.insert(delivery.id);
        }
        if flow == Flow::Probing(Probe::This(delivery.id)) {
            self.probe = Some(Box::new(Queued { at: now.tick_at(delivery.due), delivery }));
            return;
        }
        let key = (delivery.due, delivery.id);
        // While a read runs, deliveries after the last one in memory are unknown.
        let in_order = self.cached.last().is_some_and(|last| key < last);
        if self.complete || self.fetching.is_some() || in_order {
            self.cache(delivery, now);
        } else {
            let due = now.tick_at(delivery.due);
            if self.cached.iter().any(|cached| cached.at > due) {
                // The wall clock was set ahead, so this delivery would wait behind the others in
                // memory. A read puts all of them into one order again.
                self.clear_cached();
            }
            if self.cached.is_empty() {
                self.expected = self.expected.min(due);
            }
        }
        self.evict(limit);
    }

    fn cache(&mut self, delivery: QueuedDelivery, now: Moment) {
        self.cached_bytes += delivery.body.len();
        let before = self.cached.insert(Queued { at: now.tick_at(delivery.due), delivery });
        self.cached_bytes -= before.as_ref().map_or(0, Queued::bytes);
    }

    fn clear_cached(&mut self) {
        self.cached.clear();
        self.cached_bytes = 0;
    }

    /// Evicts the last deliveries beyond the limit; they stay in the store.
    fn evict(&mut self, limit: MemoryLimit) {
        let too_many = |queue: &Self| {
            let many = queue.cached.len();
            many > limit.count || (many > 1 && queue.cached_bytes > limit.bytes)
        };
        while too_many(self) {
            let Some(last) = self.cached.pop_last() else { return };
            self.cached_bytes -= last.bytes();
            self.complete = false;
            if let Some(fetching) = &mut self.fetching {
                fetching.evicted = fetching.evicted.into_iter().chain([last.key()]).min();
                fetching.known_to = fetching.known_to.min(fetching.evicted);
            }
        }
    }

    /// Applies the result of a read.
    pub(super) fn fetched(&mut self, fetched: Fetched, limit: MemoryLimit, now: Moment) {
        let Some(fetching) = self.fetching.take() else { return };
        let read_to =
            fetched.deliveries.last().filter(|_| fetched.more).map(|one| (one.due, one.id));
        for delivery in fetched.deliveries {
            let id = delivery.id;
            self.seen = self.seen.max(Some(id));
            // A delivery that waits after a fault of the dispatcher is due later than on disk.
            let cached = self.cached.iter().any(|cached| cached.delivery.id == id);
            let busy = self.in_flight.contains_key(&id) || fetching.ended.contains(&id);
            if !cached && !busy {
                self.cache(delivery, now);
            }
        }
        self.complete = !fetched.more && fetching.evicted.is_none();
        if let Some(known_to) = read_to.into_iter().chain(fetching.evicted).min() {
            // Unread deliveries may precede those that arrived meanwhile.
            let beyond = self.cached.after(known_to);
            self.cached_bytes -= beyond.iter().map(Queued::bytes).sum::<usize>();
        }
        self.evict(limit);
        if self.cached.is_empty() && !self.complete {
            self.expected = now.tick;
        }
        self.used = now.tick;
    }

    /// Applies the result of reading the probe; `None` if it does not wait.
    pub(super) fn fetched_one(&mut self, delivery: Option<QueuedDelivery>, now: Moment) {
        self.fetching = None;
        // Older deliveries than those that arrived during the read may be in the store, and this
        // read does not return them: all are read again, in order.
        let first = self.cached.iter().map(|cached| cached.at).min();
        if let Some(first) = first.filter(|_| !self.complete) {
            self.clear_cached();
            self.expected = self.expected.min(first);
        }
        self.probe =
            delivery.map(|delivery| Box::new(Queued { at: now.tick_at(delivery.due), delivery }));
    }

    /// Ends an attempt in flight; returns its endpoint and the bytes of its body.
    pub(super) fn ended(&mut self, id: DeliveryId, now: Tick) -> Option<(EndpointId, usize)> {
        self.used = now;
        let counted = self.in_flight.remove(&id)?;
        if self.in_flight.is_empty() {
            self.in_flight = BTreeMap::new(); // It would keep its node, of 280 bytes.
        }
        self.fetching.iter_mut().for_each(|fetching| fetching.ended.push(id));
        Some(counted)
    }

    /// Whether it has no state that is not in the store.
    pub(super) fn is_idle(&self, flow: Flow) -> bool {
        let is_stored = self.cached.is_empty() && self.complete && self.fetching.is_none();
        let needs_none = flow == Flow::Stopped || (flow == Flow::Open && is_stored);
        needs_none && self.in_flight.is_empty()
    }

    pub(super) fn cached(&self) -> usize {
        self.cached.len()
    }

    /// When the probe may be attempted next.
    pub(super) fn probe_at(&self) -> Option<Tick> {
        self.probe.as_ref().map(|probe| probe.at)
    }
}
