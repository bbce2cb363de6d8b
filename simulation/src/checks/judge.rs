//! Judges a moment at which all is idle: what could start must have started.

use std::time::Duration;

use weir_common::time::{Moment, UnixTime, micros};
use weir_dispatcher::domain::delivery::DeliveryState;
use weir_dispatcher::domain::id::DeliveryId;

use crate::model::{Delivery, Hook, Model, violated};

impl Model {
    /// Nothing is left to do now: is that so? For a process that is up and has a store that works.
    pub(crate) fn at_rest(&mut self, now: Moment) {
        self.settle_changes();
        self.before = None;
        self.becomes_idle(now);
        for id in self.under_way.keys() {
            if self.deliveries[id].flight.as_ref().is_some_and(|flight| flight.ended.is_some()) {
                violated("written", format!("what came of {id:?} is not on disk"));
            }
        }
        for url in 0..self.places.len() {
            self.forgotten(url, now.tick);
        }
        for hook in self.hooks.values().filter(|hook| !hook.deleted) {
            if hook.reordering {
                violated("order", format!("{:?} waits to be put into order", hook.id));
            }
            if hook.paused_at.is_none()
                && let Some(why) = self.may_start(hook, now)
            {
                self.none_starves(hook, &why, now);
            }
        }
        if !self.clock_set {
            self.told_in_time(now);
        }
    }

    fn none_starves(&self, hook: &Hook, why: &str, now: Moment) {
        let may = |one: &Delivery| {
            one.flight.is_none()
                && one.put_off <= now.tick
                && one.due <= now.unix
                && one.due_tick <= now.tick
                // What waited when the clock was set may wait for longer.
                && (!self.clock_set || (one.attempts == 0 && one.due_tick > self.set_at))
        };
        let mut could = self.waiting(hook.id);
        let first = if hook.probes {
            let probe = hook.probe.map(|probe| &self.deliveries[&probe]);
            let probe = probe.filter(|one| one.state == Some(DeliveryState::Waiting));
            let busy = self.waiting(hook.id).any(|one| one.flight.is_some());
            match probe {
                _ if busy => None,
                Some(probe) => Some(probe).filter(|one| may(one)),
                None => could.find(|one| may(one)),
            }
        } else {
            could.find(|one| may(one))
        };
        if let Some(first) = first {
            violated("starves", format!("{:?} could start, and does not: {why}", first.id));
        }
    }

    /// Why nothing keeps a webhook's next attempt from starting; `None` where something does.
    fn may_start(&self, hook: &Hook, now: Moment) -> Option<String> {
        let url = hook.url;
        let egress = &self.settings.egress;
        let started = self.starts[url].within(now.tick.0, micros(egress.window));
        // What is counted late counts for longer.
        let doubts = self.doubts.iter().filter(|(at, _)| now.tick.since(*at) < 2 * egress.window);
        let unseen = doubts.map(|(_, count)| count).sum::<usize>();
        let (here, all) = (self.in_flight(Some(url)), self.in_flight(None));
        // Of places, and of what bodies may take in memory.
        let (most, bytes_most) = (egress.in_flight_max, (self.memory / 2).max(1));
        let bytes = self.bytes_in_flight();
        let nearly_full = all >= most - most / 4 || bytes >= bytes_most - bytes_most / 4;
        let room = if nearly_full { 1 } else { self.places[url].room };
        // Those that are not known to answer at once share half of the places at the least.
        let scarce = all >= most.div_ceil(2) || bytes >= bytes_most.div_ceil(2);
        let shared = !self.places[url].answers && scarce;
        // Beside others of its webhook a workspace has few while others have any.
        let busy = self.waiting(hook.id).any(|one| one.flight.is_some());
        let held = started + unseen >= egress.requests as usize
            || now.tick < self.slow_until
            || now.tick < self.places[url].backs_off_until
            || here >= room
            || shared
            || busy && self.has_its_share(&hook.ws)
            || all >= most
            || bytes >= bytes_most;
        let why = || format!("{started} of {} started, {here} of {room} go", egress.requests);
        (!held).then(why)
    }

    fn told_in_time(&mut self, now: Moment) {
        let policy = &self.settings.health;
        let late = UnixTime(now.unix.0 - 2_000);
        if self.counts.reloads > 0 && now.tick.since(self.repaced_at) < Duration::from_millis(2) {
            return;
        }
        let alive = self.hooks.values_mut().filter(|hook| !hook.deleted);
        for hook in alive.filter(|hook| hook.paused_at.is_none() && !hook.record.vague) {
            let range = (hook.id, DeliveryId(0))..=(hook.id, DeliveryId(i64::MAX));
            // A webhook that has no work hears of another patience when it has some again.
            if self.counts.reloads > 0 && self.open.range(range).next().is_none() {
                continue;
            }
            if let Some(right) = hook.record.pauses_at(policy).filter(|right| *right <= late) {
                violated("pause", format!("{:?} should be paused since {right:?}", hook.id));
            }
            if hook.record.must_have_warned(policy, now.unix) {
                violated("warning", format!("{:?} fails, and no warning was sent", hook.id));
            }
        }
    }

    /// A process has ended in order: nothing may be under way.
    pub(crate) fn stopped(&self) {
        // Of what is said of a deleted webhook nothing is written.
        let deleted = |id: &DeliveryId| {
            let one = &self.deliveries[id];
            let ended = one.flight.as_ref().is_some_and(|flight| flight.ended.is_some());
            self.hooks[&one.hook].deleted && ended
        };
        if let Some(id) = self.under_way.keys().find(|id| !deleted(id)) {
            violated("stop", format!("{id:?} was under way, and was cut off"));
        }
    }

    /// Memory grows with the endpoints that have work, not with what waits.
    pub(crate) fn small(&self, endpoints: usize, held: usize) {
        let hooks = self.hooks.len();
        // 32 deliveries a webhook, two places in the heap for an endpoint, and what is not tidied
        // up.
        let most = 33 * hooks + 2 * endpoints + 66;
        if endpoints > self.urls.len() || held > most {
            violated(
                "memory",
                format!("{endpoints} endpoints and {held} deliveries are held in memory"),
            );
        }
    }
}
