//! Planned acts, and how each is performed once it is due.
//!
//! An act may come to nothing: its webhook may be deleted by then, or the process down.
//!
//! Not here: what is planned (`stories`).

use std::time::Duration;

use weir_common::time::{Tick, UnixTime, micros};

use crate::faults::Disk;
use crate::model::Hook;
use crate::orders::Order;
use crate::receivers::Mood;
use crate::scenarios::Life;
use crate::world::World;

/// One planned act.
#[derive(Clone, Debug)]
pub(crate) enum Act {
    Order(Order),
    Events {
        ws: usize,
        count: u64,
    },
    Mood {
        url: usize,
        mood: Mood,
    },
    /// Kills the process after so many steps, for so long.
    Kill {
        steps: u32,
        down: Duration,
    },
    Stop {
        down: Duration,
    },
    /// The store is slow, for so long.
    Slow(Duration),
    /// Each commit of the store is slow, for so long.
    Sluggish(Duration),
    /// Each read of the store is slow, for so long, and writes are not.
    Leisurely(Duration),
    /// The disk fails, for so long.
    Disk {
        disk: Disk,
        by: Duration,
    },
    /// The process stands still.
    Stand {
        steps: u32,
        by: Duration,
    },
    /// Other settings become active.
    Reload(String),
    Clock {
        ahead: bool,
        by: Duration,
    },
}

impl Life {
    /// Plans an act for this long after now.
    pub(crate) fn plan(&mut self, world: &World, after: Duration, act: Act) {
        self.planned += 1;
        self.plans.insert((world.now().tick.plus(after), self.planned), act);
    }

    /// When the next planned act is due.
    pub(crate) fn next_act(&self, world: &World) -> Option<Tick> {
        if !world.model.just_paused.is_empty() {
            return Some(world.now().tick);
        }
        self.plans.first_key_value().map(|((at, _), _)| *at)
    }

    /// Performs the acts that are due; first, owners of webhooks that were just paused plan theirs.
    pub(crate) fn act(&mut self, world: &mut World) {
        for hook in std::mem::take(&mut world.model.just_paused) {
            match world.rng.below(100) {
                0..=19 => self.lost_letter(world),
                20..=69 => self.hasty(world, hook),
                70..=94 => self.relapse(world, hook),
                _ => {}
            }
        }
        while let Some((at, number)) = self.plans.first_key_value().map(|(key, _)| *key) {
            if at > world.now().tick {
                return;
            }
            let act = self.plans.remove(&(at, number)).unwrap();
            self.perform(world, act);
        }
    }

    fn perform(&mut self, world: &mut World, act: Act) {
        let now = world.now();
        world.model.note(now, || format!("{act:?}"));
        match act {
            Act::Order(order) => {
                let busy = |hook: &&Hook| {
                    order.names(hook.id)
                        && (hook.deleted || world.model.orders.values().any(|o| o.names(hook.id)))
                };
                let alive = world.model.owned().filter(|hook| !hook.deleted).count();
                let room = !matches!(order, Order::Create { .. }) || alive < 10;
                if room && !world.model.owned().any(|hook| busy(&hook)) {
                    world.order(order);
                }
            }
            Act::Events { ws, count } => self.burst(world, ws, count),
            Act::Mood { url, mood } => world.receivers[url].mood = mood,
            Act::Kill { steps, down } if world.process.is_some() && world.disk == Disk::Well => {
                world.crash_in = Some(steps);
                self.recovers = now.tick.plus(down);
            }
            Act::Stop { down } if world.process.is_some() && world.disk == Disk::Well => {
                world.stop();
                self.recovers = now.tick.plus(down);
            }
            Act::Disk { disk, by }
                if world.process.is_some() && world.disk == Disk::Well && !world.stopping =>
            {
                world.set_disk(disk);
                self.recovers = now.tick.plus(by);
            }
            Act::Slow(by) => world.slow(by),
            Act::Sluggish(by) => world.sluggish_until = now.tick.plus(by),
            Act::Leisurely(by) => world.leisurely_until = now.tick.plus(by),
            Act::Stand { steps, by } => world.stands_in = Some((steps + 1, by)),
            Act::Reload(config) => world.reload(&config),
            Act::Clock { ahead, by } if self.clocks() => {
                let by = micros(by);
                let set = if ahead { now.unix.0 + by } else { now.unix.0 - by };
                world.set_clock(UnixTime(set));
            }
            Act::Kill { .. } | Act::Stop { .. } | Act::Clock { .. } | Act::Disk { .. } => {}
        }
    }
}
