//! Whose start it is: of one webhook's deliveries the first that is due, and of those that share a
//! URL each workspace in turn, and each webhook of it.
//!
//! Judged is only what the worker must have heard of: what was on disk at a moment of rest.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use weir_common::time::{Moment, Tick};

use super::books::{Books, Delivery, violated};
use crate::model::{DeliveryId, WebhookId};

/// What was waited for, and for how long.
#[derive(Debug, Default)]
pub(super) struct Turns {
    /// When all had last come to rest, with a store that answers.
    rested: Tick,
    /// So many starts of others at its URL each webhook has waited for that could have started.
    passed: BTreeMap<WebhookId, usize>,
    /// So many starts each workspace is behind another that has no more to send than it.
    behind: BTreeMap<(usize, Arc<str>), usize>,
}

impl Turns {
    /// Whether the worker must have heard of what was then.
    pub(super) fn knows(&self, then: Tick) -> bool {
        then <= self.rested
    }

    /// Somebody may wait for the store.
    pub(super) fn hold(&mut self) {
        self.passed.clear();
        self.behind.clear();
    }
}

impl Books {
    /// All has come to rest: what is on disk was heard of.
    pub(super) fn rests(&mut self, now: Moment) {
        self.turns.rested = now.tick;
    }

    /// Whether it is known to wait for nothing but its turn.
    fn is_ready(&self, one: &Delivery, now: Moment) -> bool {
        one.flight.is_none()
            && one.put_off == Tick(0)
            && self.turns.knows(one.came)
            && one.due <= now.unix
            && one.due_tick <= now.tick
    }

    /// No other of its webhook was due before it, and waits.
    pub(super) fn in_order(&self, id: DeliveryId, now: Moment) {
        let delivery = &self.deliveries[&id];
        let hook = &self.hooks[&delivery.hook];
        if self.clock_set || hook.news.is_some() || hook.reordering || hook.probes {
            return;
        }
        let key = (delivery.due, id);
        let before = |other: &&Delivery| (other.due, other.id) < key && self.is_ready(other, now);
        if let Some(other) = self.waiting(hook.id).find(before) {
            violated("10 order", format!("{id:?} overtakes {:?} of {:?}", other.id, hook.id));
        }
    }

    /// Another webhook of this URL that could start has not waited for more than a round.
    pub(super) fn in_turn(&mut self, id: DeliveryId, url: usize, now: Moment) {
        let starts = self.deliveries[&id].hook;
        self.turns.passed.remove(&starts);
        let ws = self.hooks[&starts].ws.clone();
        let mut ready = BTreeSet::new();
        let here = |id: &&WebhookId| self.hooks[id].url == url && **id != starts;
        let others: Vec<WebhookId> = self.hooks.keys().filter(here).copied().collect();
        // As many as may be under way can start before the store has answered.
        let round = 2 * (self.settings.egress.in_flight_per_lane() + others.len() + 1);
        for other in others {
            let hook = &self.hooks[&other];
            let may = !hook.deleted
                && hook.news.is_none()
                && hook.paused_at.is_none()
                && !hook.reordering
                && !hook.probes;
            if !may || self.clock_set || !self.waiting(other).any(|one| self.is_ready(one, now)) {
                self.turns.passed.remove(&other);
                continue;
            }
            // One that has an attempt under way may be held to its workspace's share of the places.
            if !self.waiting(other).any(|one| one.flight.is_some()) {
                ready.insert(self.hooks[&other].ws.clone());
            }
            let passed = self.turns.passed.entry(other).or_default();
            *passed += 1;
            if *passed > round {
                let story = format!("{other:?} could start, and {passed} others at its URL did");
                violated("turns", story);
            }
        }
        self.workspace_in_turn(url, &ws, &ready);
    }

    /// Another workspace that has something to send at this URL has had about as many starts since
    /// it has, however many webhooks either has there.
    fn workspace_in_turn(&mut self, url: usize, ws: &Arc<str>, ready: &BTreeSet<Arc<str>>) {
        let waits = |other: &Arc<str>| ready.contains(other) && other != ws;
        self.turns
            .behind
            .retain(|(at, other), _| *at != url || ready.contains(other) || other == ws);
        let others: Vec<_> = ready.iter().filter(|other| waits(other)).cloned().collect();
        if let Some(own) = self.turns.behind.get_mut(&(url, ws.clone())) {
            *own = own.saturating_sub(others.len());
        }
        for other in others {
            let behind = self.turns.behind.entry((url, other.clone())).or_default();
            *behind += 1;
            // What a webhook has in memory may be sent before the store has shown another's.
            // Open: a workspace may be held to its share of the places meanwhile, which this model
            // does not know; how far behind that may leave it is not judged closely yet.
            let most = 3 * self.settings.egress.in_flight_per_lane() + 1_000;
            if *behind > most {
                violated("turns", format!("{other} is {behind} starts behind {ws} at url {url}"));
            }
        }
    }
}
