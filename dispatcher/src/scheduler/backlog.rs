//! What waits for one webhook: the first deliveries in memory, the rest in the store.
//!
//! # Invariants
//!
//! 1. No delivery is handed out twice, whatever order the store's answers come in, and however
//!    late it is told of that a delivery has come.
//! 2. However many wait, no more than [`MemoryLimit`] allows are in memory.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use weir_common::limit::rolling::Quota;
use weir_common::time::{Moment, Tick, micros};

use crate::domain::delivery::{Fetched, QueuedDelivery};
use crate::domain::id::{DeliveryId, EndpointId};
use crate::domain::webhook::Probe;
use crate::scheduler::ready_list::{Key, Queued, ReadyList};
use crate::scheduler::webhooks::Flow;

/// Deliveries of one webhook in memory: what may start within [`HELD_FOR`], but no fewer than this,
/// which at 100 a minute is twenty seconds' worth,
const HELD_MIN: usize = 32;

/// nor more than this: to read so many takes the store some milliseconds.
const HELD_MAX: usize = 512;

/// The store answers within a few milliseconds, or some dozens where its disk is busy.
const HELD_FOR: Duration = Duration::from_millis(100);

/// Bytes of their bodies in memory, unless one alone is larger.
const HELD_BYTES_MAX: usize = 256 << 10;

/// More are fetched when one in so many of those that may be held is left.
const LOW_SHARE: usize = 4;

/// What a delivery in memory takes beside its body: itself, its names, its places in maps.
const HELD_COST: usize = 512;

/// How much one webhook may have in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct MemoryLimit {
    /// Deliveries, at least one.
    pub(super) count: usize,
    /// Bytes of their bodies, unless one alone is larger.
    bytes: usize,
}

impl MemoryLimit {
    /// What each of so many webhooks may have in memory of what all share, at this pace.
    pub(super) fn share(bytes: usize, webhooks: usize, quota: Quota) -> Self {
        let own = bytes / webhooks.max(1);
        let soon = u64::from(quota.requests) * micros(HELD_FOR) / micros(quota.window).max(1);
        let most = usize::try_from(soon).unwrap_or(HELD_MAX).clamp(HELD_MIN, HELD_MAX);
        Self {
            count: (own / (2 * HELD_COST)).clamp(1, most),
            bytes: own.clamp(HELD_COST, HELD_BYTES_MAX),
        }
    }
}

/// What a webhook's backlog has to do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Readiness {
    /// Its first delivery may start.
    Ready,
    /// The store is to be asked for more.
    NeedsFetch,
    /// The store is to be asked for this one.
    NeedsProbe(DeliveryId),
    /// Nothing before then.
    NotBefore(Tick),
    /// Nothing until something happens.
    Idle,
}

/// A read that is not answered yet.
#[derive(Debug, Default)]
struct PendingFetch {
    /// The last delivery held when it was asked: what is due later waits for the answer, which
    /// may tell of others before it.
    known_to: Option<Key>,
    /// Deliveries whose attempt ended since: the answer may show them as they were before.
    ended: Vec<DeliveryId>,
    /// Whether deliveries were evicted since for want of memory.
    evicted: bool,
}

#[derive(Debug)]
pub(super) struct Backlog {
    /// Whose webhook it is.
    pub(super) workspace: Arc<str>,
    pub(super) endpoint: EndpointId,
    /// Whether its webhook is deleted: it stays until what is under way has ended.
    pub(super) gone: bool,
    /// The first that wait, in the order in which they are due.
    held: ReadyList,
    held_bytes: usize,
    /// Whether `held` is all that waits.
    complete: bool,
    /// When the first that waits is due, where none is held and not all are.
    expected: Tick,
    asked: Option<Box<PendingFetch>>,
    /// The newest delivery that the store has shown. It showed, or has, all older ones as well.
    seen: Option<DeliveryId>,
    /// Tells an answer of the store to a question that was since withdrawn.
    pub(super) round: u64,
    /// What is under way, on which endpoint it counts, and the bytes of its body: a map that takes
    /// no room while it is empty.
    pub(super) in_flight: BTreeMap<DeliveryId, (EndpointId, usize)>,
    /// The delivery that probes, once it is known.
    probe: Option<Box<Queued>>,
    /// When something was last done.
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
            held: ReadyList::default(),
            held_bytes: 0,
            complete: expected.is_none(),
            expected: expected.unwrap_or_default(),
            asked: None,
            seen: None,
            round: 0,
            in_flight: BTreeMap::new(),
            probe: None,
            used: now,
        }
    }

    /// Forgets what is in memory but for what is under way: the store knows better. It is asked
    /// whatever it said before: more may have come since.
    pub(super) fn forget(&mut self, endpoint: EndpointId, now: Tick) {
        self.endpoint = endpoint;
        self.gone = false;
        self.drop_held();
        self.complete = false;
        self.expected = now;
        self.asked = None;
        self.probe = None;
        self.round += 1;
    }

    /// What to do at `now`, as if the endpoint were free.
    pub(super) fn readiness(&self, flow: Flow, now: Tick) -> Readiness {
        match flow {
            Flow::Stopped => Readiness::Idle,
            Flow::Probing(_) if !self.in_flight.is_empty() => Readiness::Idle,
            Flow::Probing(Probe::This(id)) => match &self.probe {
                Some(probe) if probe.at <= now => Readiness::Ready,
                Some(probe) => Readiness::NotBefore(probe.at),
                None if self.asked.is_some() => Readiness::Idle,
                None => Readiness::NeedsProbe(id),
            },
            Flow::Open | Flow::Probing(Probe::Any) => self.first(now),
        }
    }

    fn first(&self, now: Tick) -> Readiness {
        if self.first_due(now).is_some() {
            return Readiness::Ready;
        }
        match self.known().map(|held| held.at).min() {
            Some(soonest) => Readiness::NotBefore(soonest),
            None if self.complete || self.asked.is_some() => Readiness::Idle,
            None if self.expected <= now => Readiness::NeedsFetch,
            None => Readiness::NotBefore(self.expected),
        }
    }

    /// The first that may start. Where the wall clock was set since, it need not be the first that
    /// is held.
    fn first_due(&self, now: Tick) -> Option<Key> {
        self.known().find(|held| held.at <= now).map(Queued::key)
    }

    /// Those held of which it is known that no other is due before them.
    fn known(&self) -> impl Iterator<Item = &Queued> {
        let unsure = |key| self.asked.as_ref().is_some_and(|asked| Some(key) > asked.known_to);
        self.held.iter().take_while(move |held| !unsure(held.key()))
    }

    /// Whether the store's answer may show a delivery that can start.
    pub(super) fn is_being_read(&self, flow: Flow) -> bool {
        flow == Flow::Open && self.asked.is_some()
    }

    /// Whether it is time to ask for more, before memory runs out of them.
    pub(super) fn runs_low(&self, flow: Flow, limit: MemoryLimit) -> bool {
        flow == Flow::Open
            && self.asked.is_none()
            && !self.complete
            && (1..=limit.count / LOW_SHARE).contains(&self.held.len())
    }

    /// The bytes that its deliveries take in memory, about.
    pub(super) fn weight(&self) -> usize {
        self.held_bytes + self.held.len() * HELD_COST
    }

    /// Lets all go that is held: it is in the store, and will be read when its time comes.
    pub(super) fn shed(&mut self) {
        let Some(first) = self.known().map(|held| held.at).min() else { return };
        if self.asked.is_some() {
            return;
        }
        self.drop_held();
        self.complete = false;
        self.expected = first;
    }

    /// Notes that the store is asked, and gives what is under way: as far as the store knows, that
    /// still waits.
    pub(super) fn ask(&mut self) -> Vec<DeliveryId> {
        let known_to = self.held.last();
        self.asked = Some(Box::new(PendingFetch { known_to, ..PendingFetch::default() }));
        self.in_flight.keys().copied().collect()
    }

    /// Takes the first delivery out, to be started.
    pub(super) fn take(&mut self, flow: Flow, now: Tick) -> Option<QueuedDelivery> {
        let held = match flow {
            Flow::Stopped => None,
            Flow::Probing(Probe::This(_)) => self.probe.take().map(|probe| *probe),
            Flow::Open | Flow::Probing(Probe::Any) => {
                let first = self.first_due(now).and_then(|key| self.held.remove(key));
                self.held_bytes -= first.as_ref().map_or(0, |held| held.ready.body.len());
                first
            }
        }?;
        self.in_flight.insert(held.ready.id, (self.endpoint, held.ready.body.len()));
        self.used = now;
        Some(held.ready)
    }

    /// Takes in a delivery that has come, unless the store has shown it in the meantime: it may
    /// have been sent since.
    pub(super) fn arrived(
        &mut self,
        ready: QueuedDelivery,
        limit: MemoryLimit,
        flow: Flow,
        now: Moment,
    ) {
        if Some(ready.id) > self.seen {
            self.add(ready, limit, flow, now);
        }
    }

    /// Takes in a delivery that is on disk and waits.
    pub(super) fn add(
        &mut self,
        ready: QueuedDelivery,
        limit: MemoryLimit,
        flow: Flow,
        now: Moment,
    ) {
        self.used = now.tick;
        if self.in_flight.contains_key(&ready.id) {
            return;
        }
        if flow == Flow::Probing(Probe::This(ready.id)) {
            self.probe = Some(Box::new(Queued { at: now.tick_at(ready.due), ready }));
            return;
        }
        let key = (ready.due, ready.id);
        // Before the store has answered nobody knows what lies behind the last one held.
        let in_order = self.held.last().is_some_and(|last| key < last);
        if self.complete || self.asked.is_some() || in_order {
            self.hold(ready, now);
        } else {
            let due = now.tick_at(ready.due);
            if self.held.iter().any(|held| held.at > due) {
                // The wall clock was set ahead: by it this one comes after what is held, and would
                // wait for that. The store puts all of it into one order again.
                self.drop_held();
            }
            if self.held.is_empty() {
                self.expected = self.expected.min(due);
            }
        }
        self.evict(limit);
    }

    fn hold(&mut self, ready: QueuedDelivery, now: Moment) {
        self.held_bytes += ready.body.len();
        let before = self.held.insert(Queued { at: now.tick_at(ready.due), ready });
        self.held_bytes -= before.map_or(0, |held| held.ready.body.len());
    }

    /// Lets all go that is held: it is in the store.
    fn drop_held(&mut self) {
        self.held.clear();
        self.held_bytes = 0;
    }

    /// Evicts the last ones while there are too many: they are in the store.
    fn evict(&mut self, limit: MemoryLimit) {
        let too_many = |queue: &Self| {
            let many = queue.held.len();
            many > limit.count || (many > 1 && queue.held_bytes > limit.bytes)
        };
        while too_many(self) {
            let last = self.held.pop_last();
            self.held_bytes -= last.map_or(0, |held| held.ready.body.len());
            self.complete = false;
            if let Some(asked) = &mut self.asked {
                asked.evicted = true;
            }
        }
    }

    /// Takes in what the store answered.
    pub(super) fn fetched(&mut self, fetched: Fetched, limit: MemoryLimit, now: Moment) {
        let Some(asked) = self.asked.take() else { return };
        let last = fetched.ready.last().map(|ready| (ready.due, ready.id));
        for ready in fetched.ready {
            self.seen = self.seen.max(Some(ready.id));
            // One that could not be tried for a fault of ours waits for longer than is on disk.
            let held = self.held.iter().any(|held| held.ready.id == ready.id);
            let busy = self.in_flight.contains_key(&ready.id) || asked.ended.contains(&ready.id);
            if !held && !busy {
                self.hold(ready, now);
            }
        }
        self.complete = !fetched.more && !asked.evicted;
        if let Some(last) = last.filter(|_| fetched.more) {
            // Between the last one told of and what came meanwhile there may be others.
            let beyond = self.held.after(last);
            self.held_bytes -= beyond.iter().map(|held| held.ready.body.len()).sum::<usize>();
        }
        self.evict(limit);
        if self.held.is_empty() && !self.complete {
            self.expected = now.tick;
        }
        self.used = now.tick;
    }

    /// Takes in the delivery that probes, where it waits.
    pub(super) fn fetched_one(&mut self, ready: Option<QueuedDelivery>, now: Moment) {
        self.asked = None;
        // What came meanwhile was held for an answer that tells of all before it, and this one
        // does not: the store has it, and will show it in its place.
        let first = self.held.iter().map(|held| held.at).min();
        if let Some(first) = first.filter(|_| !self.complete) {
            self.drop_held();
            self.expected = self.expected.min(first);
        }
        self.probe = ready.map(|ready| Box::new(Queued { at: now.tick_at(ready.due), ready }));
    }

    /// Ends what was under way. Gives the endpoint that it counted on, and the bytes of its body.
    pub(super) fn ended(&mut self, id: DeliveryId, now: Tick) -> Option<(EndpointId, usize)> {
        self.used = now;
        let counted = self.in_flight.remove(&id)?;
        if let Some(asked) = &mut self.asked {
            asked.ended.push(id);
        }
        Some(counted)
    }

    /// Whether nothing is left in memory that the store does not know.
    pub(super) fn is_idle(&self, flow: Flow) -> bool {
        let is_idle = match flow {
            Flow::Open => self.held.is_empty() && self.complete && self.asked.is_none(),
            Flow::Stopped => true,
            Flow::Probing(_) => false,
        };
        is_idle && self.in_flight.is_empty()
    }

    /// Deliveries in memory.
    pub(super) fn held(&self) -> usize {
        self.held.len()
    }

    /// When the probe may be tried next.
    pub(super) fn probe_at(&self) -> Option<Tick> {
        self.probe.as_ref().map(|probe| probe.at)
    }
}
