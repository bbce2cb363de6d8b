//! Records what owners' calls make of their webhooks.

use std::time::Duration;

use weir_common::time::{Tick, UnixTime};
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

    pub(crate) fn moved(&mut self, id: WebhookId, url: &str) {
        let url = self.place(url);
        let hook = self.hooks.get_mut(&id).unwrap();
        let before = std::mem::replace(&mut hook.url, url);
        let earlier = hook.earlier.get_or_insert_default();
        if before != url {
            hook.record = Record::default();
            // Back at its URL before the worker knew of another, it has the record that it had.
            hook.record.vague = hook.disabled || earlier.urls.contains(&url);
        }
        earlier.urls.push(before);
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
