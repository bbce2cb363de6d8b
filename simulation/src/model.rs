//! The model: what was promised, recorded without trust in anything that the dispatcher reports.
//!
//! Webhooks are as the replies to customers describe them, deliveries as those to backends do,
//! attempts as receivers saw them. What is on disk is compared with that (`ledger`), and each start
//! is checked as it happens (`gate`).

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use weir_common::time::{Moment, Tick, UnixTime, micros};
use weir_dispatcher::config::settings::Settings;
use weir_dispatcher::domain::delivery::DeliveryState;
use weir_dispatcher::domain::event::{EventSet, EventType};
use weir_dispatcher::domain::id::{DeliveryId, WebhookId};
use weir_dispatcher::domain::webhook::options::WebhookOptions;
use weir_tests::promises::Promises;
use weir_tests::promises::pace::Pace;
use weir_tests::promises::same::Same;

use crate::model::counts::Counts;
use crate::model::flight::Flight;
use crate::model::outbox::Outbox;
use crate::model::record::Record;
use crate::model::slots::InFlightSlots;
use crate::model::starts::Starts;
use crate::model::turns::Turns;
use crate::model::upkeep::Upkeep;
use crate::orders::{CUSTOM_VALUE, Order};

/// Ends the run: a promise is broken.
#[track_caller]
pub(crate) fn violated(promise: &str, story: impl AsRef<str>) -> ! {
    panic!("[{promise}] {}", story.as_ref())
}

/// A webhook, as its owner knows it.
pub(crate) struct Hook {
    pub(crate) id: WebhookId,
    pub(crate) public: String,
    pub(crate) ws: Arc<str>,
    pub(crate) url: usize,
    pub(crate) events: EventSet,
    pub(crate) secret: String,
    pub(crate) options: WebhookOptions,
    /// Changed, and the worker may not know yet: what it was before is valid as well.
    pub(crate) earlier: Option<Earlier>,
    pub(crate) previous: Vec<(String, Tick, UnixTime)>,
    pub(crate) deleted: bool,
    /// Since when nothing is sent: it is paused, disabled or both.
    pub(crate) paused_at: Option<UnixTime>,
    pub(crate) disabled: bool,
    pub(crate) paused_total: Duration,
    pub(crate) reordering: bool,
    /// In flight when reordering began: their due times may be set back as well.
    pub(crate) set_back: Vec<DeliveryId>,
    /// Reactivated, and no probe has been delivered since.
    pub(crate) probes: bool,
    pub(crate) probe: Option<DeliveryId>,
    /// Whether an attempt of the probe is on disk; otherwise the next process chooses one anew.
    pub(crate) probe_is_recorded: bool,
    /// After a probe: the last delivery that started, of those that had waited.
    pub(crate) drained_to: Option<(UnixTime, DeliveryId)>,
    pub(crate) drains_since: Option<UnixTime>,
    pub(crate) record: Record,
}

/// Values that a webhook had before its latest changes.
#[derive(Clone, Default)]
pub(crate) struct Earlier {
    pub(crate) urls: Vec<usize>,
    pub(crate) secrets: Vec<String>,
}

impl Hook {
    /// Whether the worker may not know yet that it has another URL.
    pub(crate) fn moves(&self) -> bool {
        self.earlier.as_ref().is_some_and(|earlier| !earlier.urls.is_empty())
    }
}

/// An event for a webhook.
pub(crate) struct Delivery {
    pub(crate) id: DeliveryId,
    pub(crate) hook: WebhookId,
    pub(crate) event: Arc<str>,
    pub(crate) kind: EventType,
    pub(crate) body: Bytes,
    pub(crate) created_at: UnixTime,
    /// When its present state was written: the worker learns of it at that same instant.
    pub(crate) came: Tick,
    /// `None` once it was rightly dropped.
    pub(crate) state: Option<DeliveryState>,
    pub(crate) ended_at: UnixTime,
    pub(crate) due: UnixTime,
    /// The tick of `due`, by the clock when it was last known to be read.
    pub(crate) due_tick: Tick,
    /// The earliest start: it may have been read again since, by any wall clock.
    pub(crate) soonest: Tick,
    /// After a fault of ours it may wait until then.
    pub(crate) put_off: Tick,
    pub(crate) step: usize,
    pub(crate) first: Option<UnixTime>,
    /// When the first attempt of its schedule started.
    pub(crate) since: Option<UnixTime>,
    pub(crate) paused_before: Duration,
    pub(crate) attempts: u32,
    pub(crate) flight: Option<Flight>,
    /// It was tried since the reactivation at this time.
    pub(crate) drained: Option<UnixTime>,
    /// Its owner redelivered it: it is no longer in the order of creation.
    pub(crate) redelivered: bool,
}

impl Delivery {
    /// Sets when it is due, as known now.
    pub(crate) fn waits_until(&mut self, due: UnixTime, now: Moment) {
        (self.due, self.came) = (due, now.tick);
        self.due_tick = now.tick_at(due);
        self.soonest = self.due_tick;
    }
}

pub(crate) mod counts;
pub(crate) mod flight;
pub(crate) mod outbox;
mod promised;
pub(crate) mod record;
pub(crate) mod slots;
pub(crate) mod starts;
pub(crate) mod turns;
pub(crate) mod upkeep;

/// Parts of secrets, bodies and paths, which no log and no mail may contain. Each has a character
/// that no identifier has: identifiers look random, and may contain any other word one day.
pub(crate) const SECRETS: [&str; 4] = ["whsec_", "linnet", "/in/", CUSTOM_VALUE];

/// Which of its steps a run keeps or prints.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Trace {
    Nothing,
    /// Keeps the last ones, and prints them if a promise is broken.
    Last,
    /// The same, and prints each as it happens.
    Each,
}

pub(crate) struct Model {
    pub(crate) urls: Vec<String>,
    pub(crate) settings: Settings,
    /// The bytes that deliveries may use in memory.
    pub(crate) memory: usize,
    /// The settings before a reload, which the latest decisions may be based on.
    pub(crate) before: Option<Settings>,
    /// When another pace became active: how many starts a crash hid under the earlier is unknown.
    pub(crate) repaced_at: Tick,
    pub(crate) hooks: BTreeMap<WebhookId, Hook>,
    pub(crate) deliveries: BTreeMap<DeliveryId, Delivery>,
    pub(crate) names: BTreeMap<(Arc<str>, WebhookId), DeliveryId>,
    /// Deliveries that have not ended.
    pub(crate) open: BTreeSet<(WebhookId, DeliveryId)>,
    /// Attempts that have a slot, and their URL.
    pub(crate) under_way: BTreeMap<DeliveryId, usize>,
    /// Events that are known to be on disk.
    pub(crate) on_disk: BTreeSet<Arc<str>>,
    pub(crate) orders: BTreeMap<u64, Order>,
    /// The promises about each event and webhook that an outsider can check.
    pub(crate) promises: Promises<Arc<str>, WebhookId>,
    pub(crate) bodies: Same<Arc<str>, Bytes>,
    /// Starts at each URL, as its receiver saw them.
    pub(crate) starts: Vec<Pace>,
    pub(crate) lately: Starts,
    /// Deliveries with an attempt whose answer is not kept.
    pub(crate) unanswered: BTreeSet<DeliveryId>,
    pub(crate) places: Vec<InFlightSlots>,
    /// When processes were found to have been killed, and how many attempts may have been in flight
    /// then: each of these counts as a start for one window.
    pub(crate) doubts: Vec<(Tick, usize)>,
    /// Until then the worker may count starts dated in the future (the clock was set back) as new.
    pub(crate) slow_until: Tick,
    /// Webhooks that were just paused.
    pub(crate) just_paused: Vec<WebhookId>,
    pub(crate) outbox: Outbox,
    pub(crate) upkeep: Upkeep,
    pub(crate) turns: Turns,
    /// The operators' webhook, and the last of its deliveries.
    pub(crate) operators: Option<(WebhookId, DeliveryId)>,
    /// The wall clock was set: fewer promises apply.
    pub(crate) clock_set: bool,
    /// When it was last set.
    pub(crate) set_at: Tick,
    /// From when until when the process last stood still.
    pub(crate) stood: Option<(UnixTime, UnixTime)>,
    pub(crate) counts: Counts,
    pub(crate) notes: Option<VecDeque<String>>,
    prints: bool,
}

impl Model {
    pub(crate) fn new(urls: Vec<String>, settings: Settings, memory: usize, trace: Trace) -> Self {
        let places = InFlightSlots::fresh(1, usize::MAX, Tick(0));
        Self {
            promises: Promises::new(micros(settings.retry.give_up_after)),
            bodies: Same::default(),
            starts: vec![Pace::default(); urls.len()],
            lately: Starts::default(),
            unanswered: BTreeSet::new(),
            places: vec![places; urls.len()],
            urls,
            settings,
            memory,
            before: None,
            repaced_at: Tick(0),
            hooks: BTreeMap::new(),
            deliveries: BTreeMap::new(),
            names: BTreeMap::new(),
            open: BTreeSet::new(),
            under_way: BTreeMap::new(),
            on_disk: BTreeSet::new(),
            orders: BTreeMap::new(),
            doubts: Vec::new(),
            slow_until: Tick(0),
            just_paused: Vec::new(),
            outbox: Outbox::default(),
            upkeep: Upkeep::default(),
            turns: Turns::default(),
            operators: None,
            clock_set: false,
            set_at: Tick(0),
            stood: None,
            counts: Counts::default(),
            notes: (trace != Trace::Nothing).then(VecDeque::new),
            prints: trace == Trace::Each,
        }
    }

    /// Records a step, for a reader who replays a seed.
    pub(crate) fn note(&mut self, now: Moment, what: impl FnOnce() -> String) {
        let Some(notes) = &mut self.notes else { return };
        let line = format!("{} {}", now.unix.rfc3339(), what());
        if self.prints {
            println!("{line}");
        }
        notes.push_back(line);
        if notes.len() > 80 {
            notes.pop_front();
        }
    }

    /// Attempts that have a slot, at a URL or at all of them.
    pub(crate) fn in_flight(&self, url: Option<usize>) -> usize {
        self.under_way.values().filter(|at| url.is_none_or(|url| **at == url)).count()
    }

    /// Webhooks that receive an event of this kind.
    pub(crate) fn subscribed(&self, ws: &str, kind: EventType) -> BTreeSet<WebhookId> {
        let of = |hook: &&Hook| !hook.deleted && *hook.ws == *ws && hook.events.has(kind);
        self.hooks.values().filter(of).map(|hook| hook.id).collect()
    }

    /// Records that other settings are active.
    pub(crate) fn reloaded(&mut self, settings: Settings, now: Moment) {
        self.counts.reloads += 1;
        self.before = Some(std::mem::replace(&mut self.settings, settings));
        self.repaced_at = now.tick;
        self.promises.give_up_after = micros(self.settings.retry.give_up_after);
        let most = self.settings.egress.in_flight_per_endpoint();
        for places in &mut self.places {
            // The worker may learn of an end in this moment before or after the reload.
            (places.room, places.most) = (places.room.min(most), places.most.min(most));
        }
        // An end that is not written yet may be decided by either settings.
        for id in self.under_way.keys() {
            let one = self.deliveries.get_mut(id).unwrap();
            if let Some(flight) = one.flight.as_mut().filter(|flight| flight.ended.is_some()) {
                flight.loose = true;
                self.promises.needs_no_delay(one.pair());
            }
        }
    }

    /// The bytes of all bodies in flight.
    pub(crate) fn bytes_in_flight(&self) -> usize {
        self.under_way.keys().map(|id| self.deliveries[id].body.len()).sum()
    }

    /// The settings that the latest decisions may be based on.
    pub(crate) fn decided_by(&self) -> impl Iterator<Item = &Settings> {
        std::iter::once(&self.settings).chain(&self.before)
    }

    /// Forgets attempts in flight: the process was killed, or has ended.
    pub(crate) fn forget_flights(&mut self) {
        self.lately.forget(|start| self.under_way.contains_key(&start.delivery));
        self.lately.end_all();
        self.under_way.clear();
        for (_, id) in &self.open {
            if let Some(delivery) = self.deliveries.get_mut(id) {
                delivery.flight = None;
                delivery.put_off = Tick(0);
            }
        }
        for hook in self.hooks.values_mut() {
            hook.forget_unwritten();
        }
        let gone = self.open.iter().filter(|(hook, _)| self.hooks[hook].deleted);
        let gone: Vec<_> = gone.map(|(_, id)| *id).collect();
        gone.into_iter().for_each(|id| self.drop_gone(id));
    }

    /// Records that a new process has read everything.
    pub(crate) fn read_anew(&mut self, now: Moment) {
        let quarter = self.quarter();
        for places in &mut self.places {
            *places = InFlightSlots::fresh(quarter, quarter, Tick(0));
        }
        for (_, id) in &self.open {
            if let Some(delivery) = self.deliveries.get_mut(id) {
                delivery.waits_until(delivery.due, now);
            }
        }
    }

    /// Records that the wall clock was set. The worker keeps the ticks of what it has in memory,
    /// and may read any of it from disk again at any time: a webhook that changes is read anew.
    pub(crate) fn clock_was_set(&mut self, now: Moment) {
        (self.clock_set, self.set_at) = (true, now.tick);
        for (_, id) in &self.open {
            if let Some(delivery) = self.deliveries.get_mut(id) {
                delivery.soonest = delivery.soonest.min(now.tick_at(delivery.due));
            }
        }
    }

    /// Forgets earlier values: the worker has had the time to learn of every change.
    pub(crate) fn settle_changes(&mut self) {
        let mut gone = BTreeSet::new();
        for hook in self.hooks.values_mut().filter(|hook| hook.earlier.is_some()) {
            hook.earlier = None;
            gone.extend(hook.deleted.then_some(hook.id));
        }
        if !gone.is_empty() {
            let gone: Vec<_> = self.open.iter().filter(|(hook, _)| gone.contains(hook)).collect();
            for id in gone.into_iter().map(|(_, id)| *id).collect::<Vec<_>>() {
                self.drop_gone(id);
            }
        }
    }

    /// Drops a delivery of a deleted webhook, unless an attempt is in flight.
    pub(crate) fn drop_gone(&mut self, id: DeliveryId) {
        let delivery = self.deliveries.get_mut(&id).unwrap();
        if delivery.flight.as_ref().is_none_or(|flight| flight.ended.is_some()) {
            (delivery.state, delivery.flight) = (None, None);
            self.open.remove(&(delivery.hook, id));
            self.under_way.remove(&id);
        }
    }

    /// Records that a delivery starts anew, as its owner requested.
    pub(crate) fn begins_anew(&mut self, id: DeliveryId, now: Moment, due: UnixTime) {
        let Some(delivery) = self.deliveries.get_mut(&id) else { return };
        self.open.insert((delivery.hook, id));
        delivery.state = Some(DeliveryState::Waiting);
        delivery.waits_until(due, now);
        (delivery.step, delivery.first, delivery.since) = (0, None, None);
        delivery.paused_before = Duration::ZERO;
        delivery.redelivered = true;
        self.promises.redelivered(delivery.pair(), now.tick.0, true);
        if let Some(flight) = &mut delivery.flight {
            flight.loose = true;
        }
    }
}
