//! Planned sequences: acts that follow each other so closely that random timers would produce them
//! once in a thousand runs, though operators see them every day.
//!
//! The seed decides each of them, too: which webhook, when, how many, and how it ends.

use std::time::Duration;

use weir_dispatcher::domain::delivery::DeliveryState;
use weir_dispatcher::domain::event::EventSet;
use weir_dispatcher::domain::id::WebhookId;

use crate::faults::Disk;
use crate::model::Hook;
use crate::orders::{Order, TYPES, WORKSPACES};
use crate::receivers::Mood;
use crate::scenarios::Life;
use crate::scenarios::acts::Act;
use crate::scenarios::settings::config;
use crate::spans::{DAY, HOUR, MINUTE, SECOND};
use crate::world::World;

const MS: Duration = Duration::from_millis(1);

impl Life {
    /// Plans one of the sequences.
    pub(crate) fn plot(&mut self, world: &mut World) {
        match world.rng.below(100) {
            0..=16 => self.start_over(world),
            17..=35 => self.backlog(world),
            36..=54 => self.last_straw(world),
            55..=63 => self.crash_loop(world),
            64..=73 => self.stall(world),
            74..=78 => self.changes(world),
            79..=85 => self.found_empty(world),
            86..=88 => self.window_later(world),
            89..=90 => self.neighbours(world),
            91..=95 => self.reload(world),
            _ => self.clock_while_down(world),
        }
    }

    /// An owner deletes a webhook that fails and registers its URL anew, just when the process is
    /// replaced.
    fn start_over(&mut self, world: &mut World) {
        let alive: Vec<&Hook> = world.model.owned().filter(|hook| !hook.deleted).collect();
        let Some(hook) = world.rng.clone().pick(&alive).copied() else { return };
        let (id, ws, url) = (hook.id, hook.ws.clone(), hook.url);
        let number = usize::from(&*ws == "ws_1");
        let most = u64::from(world.model.settings.egress.requests).min(50);
        let rng = &mut world.rng;
        let mood = *rng.pick(&[Mood::Erring, Mood::Refusing, Mood::Redirecting]).unwrap();
        let secret = format!("whsec_{:016x}", rng.next());
        let count = most / 2 + rng.below(most);
        let deletes = rng.span(SECOND, 15 * SECOND);
        let ends = deletes + rng.span(MS, 8 * SECOND);
        let goes_on = ends + rng.span(MS, 8 * SECOND);
        let (steps, in_order) = (rng.below(12) as u32, rng.chance(60));
        let down = rng.span(MS, 4 * SECOND);
        let address = world.model.urls[url].clone();
        self.plan(world, MS, Act::Mood { url, mood });
        self.plan(world, MS, Act::Events { ws: number, count });
        let events = EventSet::of(TYPES.into_iter().take(3));
        let create = Order::Create { ws: ws.clone(), url: address, events, secret };
        self.plan(world, deletes, Act::Order(Order::Delete { ws, hook: id }));
        self.plan(world, deletes + SECOND / 10, Act::Order(Order::Sweep));
        self.plan(world, deletes + SECOND / 5, Act::Order(create));
        let end = if in_order { Act::Stop { down } } else { Act::Kill { steps, down } };
        self.plan(world, ends, end);
        for nth in 0..4 {
            self.plan(world, goes_on + nth * 5 * SECOND, Act::Events { ws: number, count });
        }
    }

    /// A workspace registers a URL several times that another one uses, and more events come for
    /// all of them than the pace allows.
    fn neighbours(&mut self, world: &mut World) {
        let url = world.rng.below(world.model.owned_urls().len() as u64) as usize;
        let address = world.model.urls[url].clone();
        self.plan(world, MS, Act::Mood { url, mood: Mood::Well });
        for nth in 0..4 {
            let ws = WORKSPACES[usize::from(nth > 0)].into();
            let secret = format!("whsec_{:016x}", world.rng.next());
            let events = EventSet::of(TYPES.into_iter().take(3));
            let create = Order::Create { ws, url: address.clone(), events, secret };
            self.plan(world, (1 + nth) * SECOND, Act::Order(create));
        }
        let count = 50 + world.rng.below(50);
        for (nth, ws) in [0, 1, 0, 1, 0].into_iter().enumerate() {
            self.plan(world, 6 * SECOND + nth as u32 * MS, Act::Events { ws, count });
        }
    }

    /// More deliveries for a webhook than fit in memory, while the store is slow: for a receiver
    /// that was down and is back, or for one that accepts them at once.
    fn backlog(&mut self, world: &mut World) {
        let url = world.rng.below(world.receivers.len() as u64) as usize;
        let ws = world.rng.below(2) as usize;
        let rng = &mut world.rng;
        let away = *rng.pick(&[Mood::Refusing, Mood::Erring, Mood::Silent]).unwrap();
        let back = *rng.pick(&[Mood::Well, Mood::Well, Mood::Slow, Mood::Flapping]).unwrap();
        let count = 50 + rng.below(150);
        let (returns, lasts) = match rng.below(2) {
            0 => (MS, 10 * SECOND),
            _ => (rng.span(SECOND, HOUR), MINUTE),
        };
        if returns > MS {
            self.plan(world, MS, Act::Mood { url, mood: away });
        }
        self.plan(world, returns, Act::Mood { url, mood: back });
        self.plan(world, MS, Act::Events { ws, count });
        self.plan(world, returns, Act::Sluggish(lasts));
        if world.rng.chance(50) {
            let rng = &mut world.rng;
            let (at, by) = (returns + rng.span(MS, lasts), rng.span(10 * MS, 20 * SECOND));
            self.plan(world, at, Act::Disk { disk: Disk::Locked, by });
        }
        for _ in 0..6 {
            let at = returns + world.rng.span(MS, lasts);
            let count = 1 + world.rng.below(3);
            self.plan(world, at, Act::Events { ws, count });
        }
    }

    /// Events come just before a webhook pauses, for a receiver that does not answer: attempts are
    /// in flight when it pauses, and end afterwards.
    fn last_straw(&mut self, world: &mut World) {
        let policy = &world.model.settings.health;
        let pauses =
            |hook: &Hook| Some((hook.record.pauses_at(policy)?, hook.url, hook.ws.clone()));
        let alive = world.model.owned();
        let alive = alive.filter(|hook| !hook.deleted && hook.paused_at.is_none());
        let all: Vec<_> = alive.filter_map(pauses).collect();
        let Some((at, url, ws)) = world.rng.clone().pick(&all).cloned() else { return };
        let ws = usize::from(&*ws == "ws_1");
        let deadline = world.model.settings.egress.deadline;
        let rng = &mut world.rng;
        let (before, count) = (rng.span(10 * MS, deadline), 3 + rng.below(12));
        let mood = *rng.pick(&[Mood::Silent, Mood::Silent, Mood::Erring]).unwrap();
        let begins = at.since(world.now().unix).saturating_sub(before);
        self.plan(world, begins, Act::Mood { url, mood });
        self.plan(world, begins, Act::Events { ws, count });
    }

    /// A process is killed again and again while there is much to do.
    fn crash_loop(&mut self, world: &mut World) {
        let mut at = MS;
        for _ in 0..2 + world.rng.below(4) {
            let rng = &mut world.rng;
            let (ws, count) = (rng.below(2) as usize, 1 + rng.below(30));
            let (steps, down) = (rng.below(30) as u32, rng.span(MS, 5 * SECOND));
            let next = rng.span(10 * MS, 20 * SECOND);
            self.plan(world, at, Act::Events { ws, count });
            self.plan(world, at, Act::Kill { steps, down });
            at += next;
        }
    }

    /// A process stands still while attempts are in flight, continues, and may then be replaced;
    /// their receivers have seen them, and get many more.
    fn stall(&mut self, world: &mut World) {
        let Some((_, ws, url)) = self.any_hook(world) else { return };
        let egress = &world.model.settings.egress;
        let (deadline, most) = (egress.deadline, u64::from(egress.requests));
        let rng = &mut world.rng;
        let mood = *rng.pick(&[Mood::Slow, Mood::Late, Mood::Tardy, Mood::Silent]).unwrap();
        let (count, more) = (1 + rng.below(30), most / 2 + rng.below(most));
        let (steps, begins) = (rng.below(12) as u32, rng.span(10 * MS, deadline));
        // Past the deadline of the attempts, and within a window of it, or for any time.
        let by = match rng.below(3) {
            0 => rng.span(SECOND, 2 * MINUTE),
            _ => deadline + rng.span(SECOND, 20 * SECOND),
        };
        let ends = begins + by + rng.span(MS, 20 * SECOND);
        let (down, replaced) = (rng.span(MS, 2 * SECOND), rng.chance(70));
        self.plan(world, MS, Act::Mood { url, mood });
        self.plan(world, MS, Act::Events { ws, count });
        self.plan(world, begins, Act::Stand { steps, by });
        if replaced {
            self.plan(world, begins + by, Act::Mood { url, mood: Mood::Well });
            self.plan(world, begins + by, Act::Events { ws, count: more });
            self.plan(world, ends, Act::Stop { down });
        }
        for _ in 0..3 {
            let at = ends + world.rng.span(down, 10 * SECOND);
            self.plan(world, at, Act::Events { ws, count: more / 2 });
        }
    }

    /// A process is replaced about a window after a burst: some of the burst's starts still count,
    /// and they are on disk in the order in which they ended. Others started before the burst, took
    /// longer than all of it, and no longer count.
    fn window_later(&mut self, world: &mut World) {
        let Some((_, ws, url)) = self.any_hook(world) else { return };
        let elsewhere = |hook: &&Hook| !hook.deleted && hook.url != url;
        let others: Vec<&Hook> = world.model.owned().filter(elsewhere).collect();
        let other = world.rng.clone().pick(&others).map(|hook| (number(hook), hook.url));
        let (other_ws, other) = other.unwrap_or((1 - ws, url));
        let egress = &world.model.settings.egress;
        let (window, deadline) = (egress.window, egress.deadline);
        let most = u64::from(egress.requests);
        let rng = &mut world.rng;
        let slow = *rng.pick(&[Mood::Slow, Mood::Late, Mood::Silent, Mood::Flapping]).unwrap();
        let count = (most + rng.below(2 * most)).min(200);
        let (steps, down) = (rng.below(12) as u32, rng.span(MS, 2 * SECOND));
        let (begins, ends) = match rng.below(2) {
            0 => (MS, window.saturating_sub(5 * SECOND) + MS * rng.below(20_000) as u32),
            _ => {
                let begins = deadline.mul_f64(0.2 + rng.below(60) as f64 / 100.0);
                (begins, window + begins.mul_f64(rng.below(100) as f64 / 100.0))
            }
        };
        let end = if rng.chance(80) { Act::Stop { down } } else { Act::Kill { steps, down } };
        self.plan(world, MS, Act::Mood { url, mood: Mood::Well });
        self.plan(world, MS, Act::Mood { url: other, mood: slow });
        self.plan(world, MS, Act::Events { ws: other_ws, count: 10 });
        if other == url && begins > MS {
            self.plan(world, begins, Act::Mood { url, mood: Mood::Well });
        }
        self.plan(world, begins, Act::Events { ws, count });
        self.plan(world, ends, end);
        self.plan(world, ends + down, Act::Events { ws, count });
    }

    /// Owners change webhooks and their URLs while there is much to do, and the store's commits or
    /// its reads are slow: reads of webhooks overlap with new events.
    fn changes(&mut self, world: &mut World) {
        let mut at = MS;
        match world.rng.below(10) {
            0..=3 => self.plan(world, MS, Act::Sluggish(MINUTE)),
            4..=7 => self.plan(world, MS, Act::Leisurely(MINUTE)),
            _ => {}
        }
        for _ in 0..2 + world.rng.below(5) {
            let Some((hook, ws_number, _)) = self.any_hook(world) else { return };
            let ws = world.model.hooks[&hook].ws.clone();
            let rng = &mut world.rng;
            let url = rng.pick(world.model.owned_urls()).unwrap().clone();
            let secret = format!("whsec_{:016x}", rng.next());
            let moves = Order::Move { ws: ws.clone(), hook, url };
            let mut both = [moves, Order::Rotate { ws, hook, secret }];
            if rng.chance(50) {
                both.reverse();
            }
            let next = at + rng.span(MS, 20 * SECOND);
            let soon = at + rng.span(MS, 2 * SECOND);
            let [first, second] = both.map(Act::Order);
            self.plan(world, at, first);
            self.plan(world, soon, second);
            for _ in 0..3 {
                let comes = at + world.rng.span(MS, 2 * SECOND);
                let count = world.rng.below(20) * world.rng.below(4);
                self.plan(world, comes, Act::Events { ws: ws_number, count });
            }
            at = next;
        }
    }

    /// Owners save an idle webhook, and save it again, and a burst comes while the store looks for
    /// its waiting deliveries, and has found none.
    fn found_empty(&mut self, world: &mut World) {
        let model = &world.model;
        let idle = |hook: &&Hook| !hook.deleted && model.waiting(hook.id).next().is_none();
        let told = |hook: &Hook| (hook.id, hook.ws.clone(), number(hook), hook.url);
        let idle: Vec<_> = model.owned().filter(idle).map(told).collect();
        let mut at = MS;
        for (hook, ws, number, url) in idle {
            let rng = &mut world.rng;
            let secrets = [(); 2].map(|()| format!("whsec_{:016x}", rng.next()));
            let [first, second] = secrets.map(|secret| {
                let ws = ws.clone();
                Act::Order(Order::Rotate { ws, hook, secret })
            });
            let again = at + rng.span(10 * MS, 2 * SECOND);
            let comes = again + rng.span(20 * MS, SECOND);
            let (count, next) = (1 + rng.below(40), rng.span(5 * SECOND, MINUTE));
            self.plan(world, at, Act::Mood { url, mood: Mood::Well });
            self.plan(world, at, first);
            self.plan(world, again, Act::Leisurely(2 * SECOND));
            self.plan(world, again, second);
            self.plan(world, comes, Act::Events { ws: number, count });
            at += 2 * SECOND + next;
        }
    }

    /// A webhook, the index of its workspace, and the index of its URL.
    fn any_hook(&self, world: &mut World) -> Option<(WebhookId, usize, usize)> {
        let alive: Vec<&Hook> = world.model.owned().filter(|hook| !hook.deleted).collect();
        let hook = *world.rng.pick(&alive)?;
        Some((hook.id, number(hook), hook.url))
    }

    /// Other settings become active while there is much to do, once or twice.
    fn reload(&mut self, world: &mut World) {
        let window = world.model.settings.egress.window.as_secs();
        for _ in 0..1 + world.rng.below(2) {
            let rng = &mut world.rng;
            let (ws, count, at) = (rng.below(2) as usize, rng.below(60), rng.span(MS, MINUTE));
            let config = config(rng, window);
            self.plan(world, MS, Act::Events { ws, count });
            self.plan(world, at, Act::Reload(config));
        }
    }

    /// The wall clock is set while the process is down.
    fn clock_while_down(&mut self, world: &mut World) {
        let rng = &mut world.rng;
        let down = rng.span(10 * MS, HOUR);
        let (ahead, by) = (rng.chance(50), rng.span(SECOND, 3 * DAY));
        self.plan(world, MS, Act::Kill { steps: 0, down });
        self.plan(world, down / 2, Act::Clock { ahead, by });
    }

    /// The process is killed while it sends the mail that reports a pause.
    pub(crate) fn lost_letter(&mut self, world: &mut World) {
        let (luck, steps) = (world.rng.next(), world.rng.below(16) as u32);
        self.plan(world, Duration::ZERO, Act::Order(Order::Post(Some(luck))));
        self.plan(world, Duration::ZERO, Act::Kill { steps, down: SECOND });
    }

    /// An owner ends a pause at once, while attempts from before it are in flight and the store is
    /// busy. Sometimes the process is killed just then.
    pub(crate) fn hasty(&mut self, world: &mut World, hook: WebhookId) {
        let ws = world.model.hooks[&hook].ws.clone();
        let deadline = world.model.settings.egress.deadline;
        let busy = world.model.waiting(hook).any(|one| one.flight.is_some());
        let rng = &mut world.rng;
        let slow = rng.span(10 * MS, 5 * SECOND);
        // Short times are as likely as long ones, unless an attempt in flight is to end first.
        let acts = if busy { deadline.mul_f64(rng.below(100) as f64 / 100.0) } else { slow };
        let (is_slow, ends) = (rng.chance(70), rng.chance(20));
        let (steps, down) = (rng.below(16) as u32, rng.span(MS, 5 * SECOND));
        let answers = acts + if is_slow { slow.saturating_sub(MS) } else { Duration::ZERO };
        if is_slow {
            self.plan(world, acts.saturating_sub(MS), Act::Slow(slow));
        }
        self.plan(world, acts, Act::Order(Order::Reactivate { ws: ws.clone(), hook }));
        if ends {
            self.plan(world, answers, Act::Kill { steps, down });
        }
        let over = |one: &&crate::model::Delivery| {
            one.hook == hook && one.state.is_some_and(|state| state != DeliveryState::Waiting)
        };
        let over = world.model.deliveries.values().rfind(over).map(|one| one.id);
        if let Some(delivery) = over.filter(|_| world.rng.chance(30)) {
            let at = acts + world.rng.span(MS, SECOND);
            self.plan(world, at, Act::Order(Order::Redeliver { ws, delivery }));
        }
    }

    /// A pause ends too soon: the probe fails. While it waits for its next attempt, the process is
    /// replaced or the owner changes something, so that everything is read anew, and events come
    /// while the store is slow.
    pub(crate) fn relapse(&mut self, world: &mut World, hook: WebhookId) {
        let (ws, url) = (world.model.hooks[&hook].ws.clone(), world.model.hooks[&hook].url);
        let number = usize::from(&*ws == "ws_1");
        let rng = &mut world.rng;
        let mood = *rng.pick(&[Mood::Erring, Mood::Refusing, Mood::Redirecting]).unwrap();
        let (waits, acts) = (rng.below(12), rng.span(10 * MS, 5 * MINUTE));
        let mut at = acts + rng.span(SECOND, 20 * SECOND);
        self.plan(world, MS, Act::Mood { url, mood });
        self.plan(world, acts / 2, Act::Events { ws: number, count: waits });
        self.plan(world, acts, Act::Order(Order::Reactivate { ws: ws.clone(), hook }));
        for _ in 0..1 + world.rng.below(3) {
            let rng = &mut world.rng;
            let (down, slow) = (rng.span(MS, 2 * SECOND), rng.span(10 * MS, 5 * SECOND));
            let (steps, count) = (rng.below(12) as u32, 1 + rng.below(8));
            let (ws, secret) = (ws.clone(), format!("whsec_{:016x}", rng.next()));
            let anew = match rng.below(4) {
                0 => Act::Kill { steps, down },
                1 | 2 => Act::Stop { down },
                _ => Act::Order(Order::Rotate { ws, hook, secret }),
            };
            // A new process reads at once; a change is read after its commit.
            let (begins, asked, busy) = match anew {
                Act::Order(_) => (at, at, Act::Sluggish(slow)),
                _ => (at, at + down, Act::Slow(slow)),
            };
            let comes = asked + rng.span(MS, slow);
            at += rng.span(SECOND, 20 * SECOND);
            self.plan(world, begins, anew);
            self.plan(world, asked, busy);
            self.plan(world, comes, Act::Events { ws: number, count });
        }
        self.plan(world, at, Act::Mood { url, mood: Mood::Well });
    }
}

/// The index of its workspace.
fn number(hook: &Hook) -> usize {
    usize::from(&*hook.ws == "ws_1")
}
