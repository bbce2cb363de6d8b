//! Checks the order of starts: a webhook's deliveries by due time; at one URL the workspaces take
//! turns, and so do the webhooks of a workspace.
//!
//! Checks only what the worker must know: what was on disk when everything was idle.

use std::collections::BTreeSet;
use std::sync::Arc;

use weir_common::time::{Moment, Tick};
use weir_dispatcher::domain::id::{DeliveryId, WebhookId};

use crate::model::{Delivery, Model, violated};

impl Model {
    /// Records that everything is idle: the worker knows what is on disk.
    pub(crate) fn becomes_idle(&mut self, now: Moment) {
        self.turns.rested = now.tick;
    }

    /// Whether a delivery is known to wait for nothing but its turn.
    fn is_ready(&self, one: &Delivery, now: Moment) -> bool {
        one.flight.is_none()
            && one.put_off == Tick(0)
            && self.turns.knows(one.came)
            && one.due <= now.unix
            && one.due_tick <= now.tick
    }

    /// Checks that no other delivery of its webhook was due before it, and waits.
    pub(crate) fn in_order(&self, id: DeliveryId, now: Moment) {
        let delivery = &self.deliveries[&id];
        let hook = &self.hooks[&delivery.hook];
        if self.clock_set || hook.earlier.is_some() || hook.reordering || hook.probes {
            return;
        }
        let key = (delivery.due, id);
        let before = |other: &&Delivery| (other.due, other.id) < key && self.is_ready(other, now);
        if let Some(other) = self.waiting(hook.id).find(before) {
            violated(
                "order",
                format!("{id:?} starts before {:?} of {:?}, due earlier", other.id, hook.id),
            );
        }
    }

    /// Checks that no other webhook of this URL that could start has waited for more than a round.
    pub(crate) fn in_turn(&mut self, id: DeliveryId, url: usize, now: Moment) {
        let starts = self.deliveries[&id].hook;
        self.turns.passed.remove(&starts);
        let ws = self.hooks[&starts].ws.clone();
        let mut ready = BTreeSet::new();
        let here = |id: &&WebhookId| self.hooks[id].url == url && **id != starts;
        let others: Vec<WebhookId> = self.hooks.keys().filter(here).copied().collect();
        // As many as may be in flight can start before the store has answered.
        let round = 2 * (self.settings.egress.in_flight_per_endpoint() + others.len() + 1);
        for other in others {
            let hook = &self.hooks[&other];
            let may = !hook.deleted
                && hook.earlier.is_none()
                && hook.paused_at.is_none()
                && !hook.reordering
                && !hook.probes;
            if !may || self.clock_set || !self.waiting(other).any(|one| self.is_ready(one, now)) {
                self.turns.passed.remove(&other);
                continue;
            }
            if self.is_paced(&self.hooks[&other], now.tick) {
                self.turns.passed.remove(&other);
                continue;
            }
            // One with an attempt in flight may be limited to its workspace's share of the slots.
            let busy = self.waiting(other).any(|one| one.flight.is_some());
            if busy && self.has_its_share(&self.hooks[&other].ws) {
                self.turns.passed.remove(&other);
                continue;
            }
            ready.insert(self.hooks[&other].ws.clone());
            let passed = self.turns.passed.entry(other).or_default();
            *passed += 1;
            if *passed > round {
                let story = format!(
                    "{passed} attempts of others at its URL start before one of {other:?}, \
                     expected at most {round}"
                );
                violated("turns", story);
            }
        }
        self.workspace_in_turn(url, &ws, &ready);
    }

    /// Checks that each other workspace with something to send to this URL has had about as many
    /// starts since then, however many webhooks either has there.
    fn workspace_in_turn(&mut self, url: usize, ws: &Arc<str>, ready: &BTreeSet<Arc<str>>) {
        let behind = &mut self.turns.behind;
        behind.retain(|(at, one, _), _| *at != url || ready.contains(one) || one == ws);
        for ((at, one, _), starts) in behind.iter_mut() {
            if *at == url && one == ws {
                *starts = starts.saturating_sub(1);
            }
        }
        // A webhook's deliveries in memory may be sent before the store has returned another's.
        let most = 3 * self.settings.egress.in_flight_per_endpoint() + 10;
        for other in ready.iter().filter(|other| *other != ws) {
            let starts = behind.entry((url, other.clone(), ws.clone())).or_default();
            *starts += 1;
            if *starts > most {
                violated(
                    "turns",
                    format!("{other} is {starts} starts behind {ws} at url {url}, limit {most}"),
                );
            }
        }
    }

    /// Whether a workspace has its share in flight while others have attempts, too: an eighth of
    /// what is free, not counting the first attempt of each of its webhooks.
    pub(crate) fn has_its_share(&self, ws: &str) -> bool {
        let (mut attempts, mut bytes, mut busy) = (0, 0, BTreeSet::new());
        let (mut others, mut all, mut all_bytes) = (false, 0, 0);
        for id in self.under_way.keys() {
            let one = &self.deliveries[id];
            all += 1;
            all_bytes += one.body.len();
            if &*self.hooks[&one.hook].ws != ws {
                others = true;
                continue;
            }
            attempts += 1;
            bytes += one.body.len();
            busy.insert(one.hook);
        }
        let free = self.settings.egress.in_flight_max.saturating_sub(all);
        let free_bytes = (self.memory / 2).max(1).saturating_sub(all_bytes);
        others && (8 * (attempts - busy.len()) >= free || 8 * bytes >= free_bytes)
    }
}
