//! What happens in a run: events, moods, owners' calls, crashes, full disks, clocks that are set.
//!
//! Each has a timer of its own; how often it fires depends on the run's tempo.

mod acts;
pub(crate) mod settings;
mod stories;

use std::collections::BTreeMap;
use std::time::Duration;

use weir_common::time::{Tick, UnixTime, micros};
use weir_dispatcher::domain::delivery::DeliveryState;
use weir_dispatcher::domain::event::{EventSet, EventType};
use weir_dispatcher::store::types::NewEvent;
use weir_tests::rng::SeededRng;

use crate::faults::Disk;
use crate::model::{Delivery, Hook, violated};
use crate::orders::{Order, TYPES, WORKSPACES};
use crate::receivers::{MOODS, Mood};
use crate::scenarios::acts::Act;
use crate::spans::{DAY, HOUR, MINUTE, SECOND};
use crate::world::World;

/// With this many open deliveries no burst sends more, so that a run ends.
const OPEN_MAX: [usize; 3] = [100, 250, 400];

/// How long a run is, and how often things happen in it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tempo {
    pub(crate) horizon: Duration,
    events: [Duration; 2],
    burst: u64,
    moods: [Duration; 2],
    owners: [Duration; 2],
    troubles: [Duration; 2],
    /// Whether the wall clock is set now and then.
    pub(crate) clocks: bool,
}

impl Tempo {
    pub(crate) fn of(rng: &mut SeededRng) -> Self {
        let clocks = rng.chance(15);
        match rng.below(10) {
            0..=2 => Self {
                horizon: 200 * DAY,
                events: [5 * HOUR, 8 * DAY],
                burst: 3,
                moods: [DAY, 9 * DAY],
                owners: [DAY, 20 * DAY],
                troubles: [2 * DAY, 20 * DAY],
                clocks,
            },
            3..=4 => Self {
                horizon: 20 * DAY,
                events: [10 * MINUTE, 20 * HOUR],
                burst: 4,
                moods: [4 * HOUR, 6 * DAY],
                owners: [2 * HOUR, 3 * DAY],
                troubles: [6 * HOUR, 6 * DAY],
                clocks,
            },
            5..=7 => Self {
                horizon: 2 * DAY,
                events: [5 * SECOND, 2 * HOUR],
                burst: 15,
                moods: [2 * MINUTE, 30 * HOUR],
                owners: [5 * MINUTE, 10 * HOUR],
                troubles: [10 * MINUTE, DAY],
                clocks,
            },
            _ => Self {
                horizon: HOUR / 2,
                events: [Duration::from_millis(20), 60 * SECOND],
                burst: 60,
                moods: [2 * SECOND, 10 * MINUTE],
                owners: [2 * SECOND, 5 * MINUTE],
                troubles: [3 * SECOND, 8 * MINUTE],
                clocks,
            },
        }
    }
}

/// The timers of a run, and its planned acts.
pub(crate) struct Life {
    tempo: Tempo,
    events: Tick,
    moods: Tick,
    owners: Tick,
    troubles: Tick,
    plots: Tick,
    /// The planned acts, in order.
    pub(crate) plans: BTreeMap<(Tick, u64), Act>,
    pub(crate) planned: u64,
    /// When the next process starts, or the disk recovers.
    pub(crate) recovers: Tick,
    open_max: usize,
    made: u64,
}

impl Life {
    pub(crate) fn new(tempo: Tempo, now: Tick, rng: &mut SeededRng) -> Self {
        let far = now.plus(tempo.troubles[1]);
        let moods = now.plus(tempo.moods[0]);
        Self {
            tempo,
            events: now,
            moods,
            owners: now,
            troubles: far,
            plots: now.plus(tempo.troubles[0]),
            plans: BTreeMap::new(),
            planned: 0,
            recovers: now,
            open_max: *rng.pick(&OPEN_MAX).unwrap(),
            made: 0,
        }
    }

    /// Whether the wall clock is set now and then.
    pub(crate) fn clocks(&self) -> bool {
        self.tempo.clocks
    }

    pub(crate) fn next(&self, world: &World) -> Tick {
        let timers = [self.events, self.moods, self.owners, self.troubles, self.plots];
        let next = timers.into_iter().chain(self.next_act(world)).min().unwrap();
        if world.process.is_none() || world.disk != Disk::Well {
            next.min(self.recovers)
        } else {
            next
        }
    }

    /// Does everything that is due now.
    pub(crate) async fn run_due(&mut self, world: &mut World) {
        let now = world.now().tick;
        let tempo = self.tempo;
        let again = |world: &mut World, [from, to]: [Duration; 2]| {
            now.plus(world.rng.span(from, to).max(Duration::from_millis(1)))
        };
        if self.recovers <= now {
            if world.process.is_none() {
                world.start().await;
            } else if world.disk != Disk::Well {
                world.set_disk(Disk::Well);
            }
        }
        if self.moods <= now {
            let nth = world.rng.below(world.receivers.len() as u64) as usize;
            let mood = *world.rng.pick(&MOODS).unwrap();
            world.receivers[nth].mood = mood;
            world.receivers[nth].poisons = world.rng.chance(30);
            let moment = world.now();
            world.model.note(moment, || format!("receiver at url {nth}: {mood:?}"));
            self.moods = again(world, tempo.moods);
        }
        if self.owners <= now {
            self.owner(world);
            self.owners = again(world, tempo.owners);
        }
        if self.events <= now {
            let burst = if world.rng.chance(80) { 3 } else { tempo.burst };
            for _ in 0..1 + world.rng.below(burst) {
                self.events(world);
            }
            self.events = again(world, tempo.events);
        }
        if self.troubles <= now {
            self.trouble(world);
            self.troubles = again(world, tempo.troubles);
        }
        if self.plots <= now {
            self.plot(world);
            self.plots = again(world, tempo.troubles);
        }
        self.act(world);
    }

    /// Sends so many events, a few at a time.
    pub(crate) fn burst(&mut self, world: &mut World, ws: usize, count: u64) {
        let mut left = count;
        while left > 0 {
            let some = (1 + world.rng.below(20)).min(left);
            let batch = self.batch(world, ws, some);
            self.send(world, batch);
            left -= some;
        }
    }

    fn batch(&mut self, world: &mut World, ws: usize, count: u64) -> Vec<NewEvent> {
        let kind = |world: &mut World| TYPES[world.rng.below(3) as usize];
        let mut one = || (kind(world), world.padding());
        let kinds: Vec<_> = (0..count).map(|_| one()).collect();
        kinds.into_iter().map(|(kind, more)| self.event(WORKSPACES[ws], kind, more)).collect()
    }

    fn send(&mut self, world: &mut World, batch: Vec<NewEvent>) {
        let coming = world.model.orders.values();
        let coming = coming.filter(|order| matches!(order, Order::Accept(_))).count();
        if world.model.open.len() + coming < self.open_max {
            world.order(Order::Accept(batch));
        }
    }

    fn event(&mut self, ws: &str, kind: EventType, padding: usize) -> NewEvent {
        self.made += 1;
        let (id, padding) = (format!("evt_{}", self.made), " ".repeat(padding));
        let body = format!("{{\"id\":\"{id}\",\"linnet\":true{padding}}}").into_bytes().into();
        let digest = [self.made as u8; 32];
        NewEvent { id: id.into(), workspace: ws.into(), kind, tenant: None, body, digest }
    }

    /// Sends a batch of events, sometimes with some that were sent before.
    fn events(&mut self, world: &mut World) {
        let (number, count) = (world.rng.below(2) as usize, 1 + world.rng.below(3));
        let ws = WORKSPACES[number];
        let mut batch = self.batch(world, number, count);
        if world.rng.chance(10) {
            let again = world.model.deliveries.values().next_back();
            let again = again.filter(|one| {
                let there = world.model.hooks[&one.hook].ws.as_ref() == ws;
                // A dropped event is not known any more.
                let young = world.now().unix.since(one.created_at) < DAY && !world.model.clock_set;
                there && young && one.kind != EventType::PING && one.state.is_some()
            });
            batch.extend(again.map(|one| NewEvent {
                id: one.event.clone(),
                workspace: ws.into(),
                kind: one.kind,
                tenant: None,
                body: one.body.clone(),
                digest: [one.event[4..].parse::<u64>().unwrap() as u8; 32],
            }));
        }
        world.order(Order::Accept(batch));
    }

    /// Sends a random call of an owner.
    fn owner(&mut self, world: &mut World) {
        let alive: Vec<_> = world.model.owned().filter(|hook| !hook.deleted).collect();
        let busy = |hook: &Hook| world.model.orders.values().any(|order| order.names(hook.id));
        let mut rng = world.rng.clone();
        let paused: Vec<_> = alive.iter().filter(|hook| hook.paused_at.is_some()).collect();
        let hook = match rng.pick(&paused) {
            Some(hook) if rng.chance(70) => Some(**hook),
            _ => rng.pick(&alive).copied(),
        };
        let ws = *rng.pick(&WORKSPACES).unwrap();
        let url = rng.pick(world.model.owned_urls()).unwrap().clone();
        let secret = format!("whsec_{:016x}", rng.next());
        let events = EventSet::of(TYPES.into_iter().take(1 + rng.below(3) as usize));
        let order = match (hook, rng.below(100)) {
            (None, _) => Order::Create { ws: ws.into(), url, events, secret },
            (_, 0..=14) if alive.len() < 6 => Order::Create { ws: ws.into(), url, events, secret },
            (_, 15..=19) => Order::Sweep,
            (_, 20..=24) => Order::Post(Some(rng.next())),
            (_, 25..=28) => Order::RedeliverFailed { ws: ws.into() },
            (_, 29..=31) => Order::Regret { ws: ws.into() },
            (Some(hook), _) if busy(hook) => Order::Post(Some(rng.next())),
            (Some(hook), 32..=46) => {
                // A delivery of a deleted webhook must be refused.
                let gone = rng.chance(20);
                let over = |one: &&Delivery| {
                    let of = &world.model.hooks[&one.hook];
                    one.state.is_some_and(|state| state != DeliveryState::Waiting)
                        && (of.id == hook.id || (gone && of.deleted && of.ws == hook.ws))
                };
                let over: Vec<_> = world.model.deliveries.values().filter(over).collect();
                match rng.pick(&over) {
                    Some(one) => Order::Redeliver { ws: hook.ws.clone(), delivery: one.id },
                    None => Order::Post(Some(rng.next())),
                }
            }
            (Some(hook), roll) => {
                let (id, ws, shut) = (hook.id, hook.ws.clone(), hook.paused_at.is_some());
                // After a reactivation a ping may go first if nothing else waits.
                let shut = shut || (hook.probes && world.model.waiting(id).next().is_some());
                match roll {
                    _ if hook.disabled => hook.released(),
                    _ if hook.paused_at.is_some() && roll < 90 => {
                        Order::Reactivate { ws, hook: id }
                    }
                    47..=50 => Order::Disable { ws, hook: id, disabled: true },
                    0..=60 if !shut => {
                        let event = self.event(&ws, EventType::PING, 0);
                        Order::Ping { ws, hook: id, event }
                    }
                    0..=70 => Order::Move { ws, hook: id, url },
                    71..=78 => Order::Subscribe { ws, hook: id, events },
                    79..=88 => Order::Rotate { ws, hook: id, secret },
                    89..=95 => Order::Delete { ws, hook: id },
                    _ => Order::Reactivate { ws, hook: id },
                }
            }
        };
        world.rng = rng;
        let now = world.now();
        world.model.note(now, || format!("call: {}", order.short()));
        world.order(order);
    }

    /// Causes a random fault.
    fn trouble(&mut self, world: &mut World) {
        let now = world.now();
        let down = match world.rng.below(4) {
            0 => Duration::from_millis(1),
            1 => world.rng.span(SECOND, MINUTE),
            _ => world.rng.span(SECOND, self.tempo.troubles[1]),
        };
        if world.process.is_none() || world.disk != Disk::Well || world.stopping {
            return;
        }
        self.recovers = now.tick.plus(down);
        if self.tempo.clocks && world.rng.chance(60) {
            let by = micros(world.rng.span(SECOND, 3 * DAY));
            let set = if world.rng.chance(50) { now.unix.0 + by } else { now.unix.0 - by };
            world.model.note(now, || format!("wall clock set to {}", UnixTime(set).rfc3339()));
            world.set_clock(UnixTime(set));
        }
        // A call should be in progress when it happens.
        self.owner(world);
        match world.rng.below(100) {
            0..=44 => world.crash_in = Some(world.rng.below(12) as u32),
            45..=59 => {
                let by = world.rng.span(SECOND, 2 * HOUR);
                world.stands_in = Some((1 + world.rng.below(12) as u32, by));
            }
            roll @ 60..=76 => {
                let alive = world.model.owned().filter(|hook| !hook.deleted);
                let first = alive.min_by_key(|hook| hook.id.0 ^ roll as i64);
                // Starts at a webhook that was just deleted must still count.
                if let Some(hook) = first.filter(|_| roll < 67) {
                    let order = Order::Delete { ws: hook.ws.clone(), hook: hook.id };
                    world.order(order);
                    world.order(Order::Sweep);
                }
                world.stop();
            }
            roll => {
                let disk = [Disk::Broken, Disk::Full, Disk::Locked][roll as usize % 3];
                self.recovers = now.tick.plus(down.min(2 * MINUTE));
                world.set_disk(disk);
                self.events(world);
            }
        }
        self.events(world);
    }

    /// Lets everything recover and stay so: every delivery must end.
    pub(crate) async fn end_well(&mut self, world: &mut World, over: &dyn Fn() -> bool) {
        for receiver in &mut world.receivers {
            (receiver.mood, receiver.poisons) = (Mood::Well, false);
        }
        (world.crash_in, world.stands_in) = (None, None);
        let until = world.now().tick.plus(8 * DAY);
        while world.now().tick < until {
            if over() {
                return;
            }
            if world.process.is_none() {
                world.start().await;
            } else if world.disk != Disk::Well {
                world.set_disk(Disk::Well);
            }
            let paused = world.model.owned();
            let paused = paused.filter(|hook| !hook.deleted && hook.paused_at.is_some());
            let orders: Vec<_> = paused.map(Hook::released).collect();
            orders.into_iter().for_each(|order| world.order(order));
            world.order(Order::Post(None));
            world.settle().await;
            if world.model.open.is_empty() && !world.mails_wait() {
                world.model.nothing_is_owed();
                return world.crash().await;
            }
            world.go_on(world.now().tick.plus(HOUR)).await;
        }
        let left: Vec<_> = world.model.open.iter().take(5).collect();
        violated("ends", format!("open 8 days after the last fault: {left:?}, or mails"))
    }
}
