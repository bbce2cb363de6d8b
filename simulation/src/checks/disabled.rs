//! Checks webhooks that their owners disable: nothing is sent, nothing is lost, and the time counts
//! towards no end.
//!
//! In the model one is as if it was paused (`Hook::paused_at`), so that each promise about pauses
//! applies; it is never warned of or paused for what happens meanwhile.

use std::time::Duration;

use rusqlite::{Connection, OptionalExtension};
use weir_common::time::{Moment, UnixTime};
use weir_dispatcher::domain::id::{DeliveryId, WebhookId};

use crate::checks::ledger::unix;
use crate::model::{Hook, Model, violated};
use crate::orders::Order;

impl Hook {
    /// The call that ends what stops it.
    pub(crate) fn released(&self) -> Order {
        let (ws, hook) = (self.ws.clone(), self.id);
        if self.disabled {
            Order::Disable { ws, hook, disabled: false }
        } else {
            Order::Reactivate { ws, hook }
        }
    }
}

impl Model {
    /// Records that a webhook is disabled since the first of these times, and stopped since the
    /// second.
    pub(crate) fn disabled(
        &mut self,
        id: WebhookId,
        (since, stopped): (Option<UnixTime>, Option<UnixTime>),
    ) {
        if since.is_none() {
            violated("disabled", format!("{id:?} is enabled in the reply that disables it"));
        }
        let hook = self.hooks.get_mut(&id).unwrap();
        // The worker may send for a moment, until it learns of it.
        hook.earlier.get_or_insert_default();
        hook.disabled = true;
        hook.paused_at = hook.paused_at.or(stopped);
        hook.record.vague = true;
        self.loosen(id);
    }

    /// Checks that a webhook was enabled: it starts anew, or stays paused, from when nothing was
    /// sent.
    pub(crate) fn enabled(
        &mut self,
        id: WebhookId,
        found: (Option<UnixTime>, Duration),
        asked: UnixTime,
        now: Moment,
    ) {
        let hook = self.hooks.get_mut(&id).unwrap();
        let Some(since) = hook.paused_at.filter(|_| hook.disabled) else { return };
        hook.earlier.get_or_insert_default();
        let right = match found.0 {
            Some(_) => (Some(since), hook.paused_total),
            None => {
                let stopped = asked.since(since).max(Duration::from_micros(1));
                (None, hook.paused_total + stopped)
            }
        };
        if found != right {
            violated("paused time", format!("{id:?}: expected {right:?}, found {found:?}"));
        }
        hook.disabled = false;
        match found {
            (Some(_), _) => {}
            (None, total) => self.reactivated(id, now, total),
        }
    }

    /// After a crash: the change was done, or not.
    pub(crate) fn reconcile_disabled(
        &mut self,
        id: WebhookId,
        disabled: bool,
        conn: &Connection,
        now: Moment,
    ) {
        let sql = "SELECT disabled_at, paused_at, paused_total FROM webhooks \
            WHERE id = ?1 AND deleted_up_to IS NULL";
        let row = conn.query_row(sql, [id.0], |row| {
            let total = Duration::from_micros(row.get::<_, i64>(2)?.cast_unsigned());
            Ok((unix(row, 0), unix(row, 1), total))
        });
        let Some((since, paused_at, total)) = row.optional().unwrap() else { return };
        let known = self.hooks[&id].disabled;
        match (disabled, since) {
            (true, Some(_)) if !known => {
                let stopped = since.into_iter().chain(paused_at).min();
                self.disabled(id, (since, stopped));
            }
            (false, None) if known => {
                self.hooks.get_mut(&id).unwrap().disabled = false;
                match paused_at {
                    Some(_) => {}
                    None => self.reactivated(id, now, total),
                }
            }
            _ => {}
        }
    }

    /// What follows from attempts in flight is decided before or after the webhook was disabled.
    fn loosen(&mut self, id: WebhookId) {
        let range = (id, DeliveryId(0))..=(id, DeliveryId(i64::MAX));
        for (_, open) in self.open.range(range) {
            let delivery = self.deliveries.get_mut(open).unwrap();
            self.promises.needs_no_delay(delivery.pair());
            if let Some(flight) = &mut delivery.flight {
                flight.loose = true;
            }
        }
    }
}
