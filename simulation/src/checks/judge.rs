//! Checks a moment at which everything is idle: what could start must have started.

use std::time::Duration;

use weir_common::time::{Moment, UnixTime, micros};
use weir_dispatcher::domain::delivery::DeliveryState;
use weir_dispatcher::domain::id::DeliveryId;
use weir_dispatcher::domain::pace::{counted, longest_window};

use crate::model::{Delivery, Hook, Model, violated};

impl Model {
    /// Checks that nothing is left to do. For a process that runs, with a store that works.
    pub(crate) fn at_rest(&mut self, now: Moment) {
        self.settle_changes();
        self.before = None;
        self.becomes_idle(now);
        for id in self.under_way.keys() {
            if self.deliveries[id].flight.as_ref().is_some_and(|flight| flight.ended.is_some()) {
                violated("written", format!("the outcome of {id:?} is not on disk"));
            }
        }
        for url in 0..self.places.len() {
            self.forgotten(url, now.tick);
        }
        for hook in self.hooks.values().filter(|hook| !hook.deleted) {
            if hook.reordering {
                violated("order", format!("the deliveries of {:?} are not reordered", hook.id));
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
                // A delivery that waited when the clock was set may wait for longer.
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
            violated(
                "starves",
                format!("an attempt of {:?} can start, and does not: {why}", first.id),
            );
        }
    }

    /// Why a webhook's next attempt could start; `None` if something prevents it.
    fn may_start(&self, hook: &Hook, now: Moment) -> Option<String> {
        let url = hook.url;
        let egress = &self.settings.egress;
        let window = self.counted_window();
        let started = self.lately.counted(window, now.tick).filter(|one| one.url == url).count();
        let started = started.max(self.starts[url].within(now.tick.0, micros(window)));
        // Starts that are counted late count for longer, at most from a restart on.
        let late = 2 * longest_window(counted(egress.per_endpoint()));
        let doubts = self.doubts.iter().filter(|(at, _)| now.tick.since(*at) < late);
        let unseen = doubts.map(|(_, count)| count).sum::<usize>();
        let (here, all) = (self.in_flight(Some(url)), self.in_flight(None));
        // The limits of slots, and of the bytes of bodies in memory.
        let (most, bytes_most) = (egress.in_flight_max, (self.memory / 2).max(1));
        let bytes = self.bytes_in_flight();
        let nearly_full = all >= most - most / 4 || bytes >= bytes_most - bytes_most / 4;
        let room = if nearly_full { 1 } else { self.places[url].room };
        // Endpoints that are not known to answer promptly share at least half of the slots.
        let scarce = all >= most.div_ceil(2) || bytes >= bytes_most.div_ceil(2);
        let shared = !self.places[url].answers && scarce;
        // While another attempt of its webhook runs, one needs room in its workspace's share.
        let busy = self.waiting(hook.id).any(|one| one.flight.is_some());
        let held = started + unseen >= egress.requests as usize
            || now.tick < self.slow_until
            || now.tick < self.places[url].backs_off_until
            || here >= room
            || shared
            || busy && self.has_its_share(&hook.ws)
            || self.is_paced(hook, now.tick)
            || all >= most
            || bytes >= bytes_most;
        let why = || {
            let requests = egress.requests;
            format!("{started} of {requests} starts and {here} of {room} in-flight slots are used")
        };
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
            // A webhook without work gets another `pause_after` just after it has work again.
            let new = |id: &DeliveryId| self.deliveries[id].came == now.tick;
            if self.counts.reloads > 0 && self.open.range(range).all(|(_, id)| new(id)) {
                continue;
            }
            if let Some(right) = hook.record.pauses_at(policy).filter(|right| *right <= late) {
                violated(
                    "pause",
                    format!("{:?}: expected a pause at {right:?}, found none", hook.id),
                );
            }
            if hook.record.must_have_warned(policy, now.unix) {
                violated("warning", format!("{:?}: expected a warning, found none", hook.id));
            }
        }
    }

    /// Checks, after a shutdown, that no attempt was in flight.
    pub(crate) fn stopped(&self) {
        // The end of an attempt of a deleted webhook is not written.
        let deleted = |id: &DeliveryId| {
            let one = &self.deliveries[id];
            let ended = one.flight.as_ref().is_some_and(|flight| flight.ended.is_some());
            self.hooks[&one.hook].deleted && ended
        };
        if let Some(id) = self.under_way.keys().find(|id| !deleted(id)) {
            violated("stop", format!("the process stops while an attempt of {id:?} is in flight"));
        }
    }

    /// Checks that memory grows with the endpoints that have work, not with what waits.
    pub(crate) fn small(&self, endpoints: usize, held: usize) {
        let hooks = self.hooks.len();
        // 32 deliveries per webhook, two heap entries per endpoint, and entries that are not
        // removed yet.
        let most = 33 * hooks + 2 * endpoints + 66;
        if endpoints > self.urls.len() || held > most {
            let urls = self.urls.len();
            violated(
                "memory",
                format!(
                    "in memory: {endpoints} endpoints, expected at most {urls}; \
                     {held} deliveries, expected at most {most}"
                ),
            );
        }
    }
}
