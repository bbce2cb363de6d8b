//! What is going to happen, and how it does when its time has come.
//!
//! Nothing that is planned is sure to happen: a webhook may be gone by then, a process down.
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

/// One thing that is going to happen.
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
    /// After so many steps, and for so long.
    Kill {
        steps: u32,
        down: Duration,
    },
    Stop {
        down: Duration,
    },
    /// The store takes its time.
    Slow(Duration),
    /// Each of its commits does, for so long.
    Sluggish(Duration),
    /// What is read of it does, for so long, and what is written does not.
    Leisurely(Duration),
    /// The disk takes nothing, for so long.
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
    /// Plans something for so long after now.
    pub(crate) fn plan(&mut self, world: &World, after: Duration, act: Act) {
        self.planned += 1;
        self.plans.insert((world.now().tick.plus(after), self.planned), act);
    }

    /// When the next thing that is planned happens.
    pub(crate) fn next_act(&self, world: &World) -> Option<Tick> {
        if !world.model.just_paused.is_empty() {
            return Some(world.now().tick);
        }
        self.plans.first_key_value().map(|((at, _), _)| *at)
    }

    /// Does what was planned for now, and lets those plan who have just been told something.
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
                let alive = world.model.hooks.values().filter(|hook| !hook.deleted).count();
                let room = !matches!(order, Order::Create { .. }) || alive < 10;
                if room && !world.model.hooks.values().any(|hook| busy(&hook)) {
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
