//! Records what owners' calls make of their webhooks.

use std::time::Duration;

use weir_common::time::{Moment, Tick, UnixTime};
use weir_dispatcher::domain::id::{DeliveryId, WebhookId};

use crate::model::record::Record;
use crate::model::{Hook, Model};
use crate::orders::{Order, options_of};

impl Model {
    pub(crate) fn created(&mut self, id: WebhookId, public: String, order: Order) {
        let Order::Create { ws, url, events, secret } = order else { return };
        let (url, options) = (self.place(&url), options_of(&secret));
        let hook = Hook {
            id,
            public,
            ws,
            url,
            events,
            secret,
            options,
            earlier: None,
            previous: Vec::new(),
            deleted: false,
            paused_at: None,
            disabled: false,
            paused_total: Duration::ZERO,
            reordering: false,
            set_back: Vec::new(),
            probes: false,
            probe: None,
            probe_is_recorded: false,
            drained_to: None,
            drains_since: None,
            record: Record::default(),
        };
        self.hooks.insert(id, hook);
    }

    pub(crate) fn place(&self, url: &str) -> usize {
        self.urls.iter().position(|one| one == url).unwrap()
    }

    /// Records that a webhook has this URL, and whether it probes.
    pub(crate) fn moved(&mut self, id: WebhookId, url: &str, probes: bool, now: Moment) {
        let url = self.place(url);
        let hook = self.hooks.get_mut(&id).unwrap();
        let before = std::mem::replace(&mut hook.url, url);
        let earlier = hook.earlier.get_or_insert_default();
        let (is_back, is_moved) = (earlier.urls.contains(&url), before != url);
        earlier.urls.push(before);
        if is_moved {
            hook.record = Record::default();
            // Back at its URL, it has the outcomes of attempts that started there before.
            hook.record.vague = hook.disabled || is_back;
            // So that updates from before are ignored.
            hook.paused_total += Duration::from_micros(1);
        }
        if is_moved && probes {
            let vague = hook.record.vague;
            self.probes_anew(id, now);
            self.hooks.get_mut(&id).unwrap().record.vague |= vague;
        }
    }

    /// Records that a webhook was reactivated.
    pub(crate) fn reactivated(&mut self, id: WebhookId, now: Moment, total: Duration) {
        self.counts.reactivations += 1;
        let hook = self.hooks.get_mut(&id).unwrap();
        (hook.paused_at, hook.disabled, hook.paused_total) = (None, false, total);
        self.probes_anew(id, now);
    }

    /// Records that a webhook probes from here on, with its oldest delivery.
    pub(crate) fn probes_anew(&mut self, id: WebhookId, now: Moment) {
        let hook = self.hooks.get_mut(&id).unwrap();
        (hook.probes, hook.probe, hook.reordering) = (true, None, true);
        (hook.drained_to, hook.drains_since) = (None, Some(now.unix));
        hook.record = Record::default();
        for (_, open) in self.open.iter().filter(|(hook, _)| *hook == id) {
            let delivery = self.deliveries.get_mut(open).unwrap();
            self.promises.needs_no_delay(delivery.pair());
            if let Some(flight) = &mut delivery.flight {
                flight.loose = true;
                // It counts as tried since, and is due at its own time.
                delivery.drained = Some(now.unix);
                let hook = self.hooks.get_mut(&id).unwrap();
                hook.record.vague = true;
                hook.set_back.push(*open);
            } else if delivery.step > 0 {
                (delivery.step, delivery.since) = (0, None);
                delivery.due = delivery.created_at;
                (delivery.due_tick, delivery.soonest) = (Tick(0), Tick(0));
            }
        }
    }

    /// Records that both secrets sign from here on, the earlier one until `until` in steady time.
    pub(crate) fn rotated(&mut self, id: WebhookId, secret: String, until: UnixTime, ends: Tick) {
        let hook = self.hooks.get_mut(&id).unwrap();
        let before = std::mem::replace(&mut hook.secret, secret);
        hook.earlier.get_or_insert_default().secrets.push(before.clone());
        hook.previous.push((before, ends, until));
    }

    pub(crate) fn deleted(&mut self, id: WebhookId) {
        let hook = self.hooks.get_mut(&id).unwrap();
        hook.deleted = true;
        hook.earlier.get_or_insert_default();
        self.lately.forget(|start| start.hook == id);
        // Attempts of it that have ended are not written, and have released their slots.
        let ended = |at: &DeliveryId| {
            let one = &self.deliveries[at];
            one.hook == id && one.flight.as_ref().is_some_and(|flight| flight.ended.is_some())
        };
        self.under_way.retain(|at, _| !ended(at));
    }

    pub(crate) fn changed(&mut self, id: DeliveryId) {
        let hook = self.deliveries[&id].hook;
        self.hooks.get_mut(&hook).unwrap().earlier.get_or_insert_default();
    }
}
