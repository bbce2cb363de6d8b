//! Checks replies to customers and backends, and finds what was done where a crash lost the reply.

use std::time::Duration;

use rusqlite::{Connection, OptionalExtension};
use weir_common::time::{Moment, Tick, UnixTime};
use weir_dispatcher::domain::delivery::{Arrival, DeliveryState};
use weir_dispatcher::domain::event::EventSet;
use weir_dispatcher::domain::id::{DeliveryId, WebhookId};
use weir_dispatcher::domain::webhook::Webhook;
use weir_dispatcher::store::types::{Accepted, Created, NewEvent, Rotated, SECRETS_BEFORE_MAX};
use weir_dispatcher::store::{Store, StoreError};

use crate::checks::ledger::unix;
use crate::model::{Delivery, Earlier, Model, violated};
use crate::orders::{Answer, OVERLAP, Order, Reply};

impl Model {
    /// Records a reply. What it promises applies from here on.
    pub(crate) fn answered(&mut self, answer: Answer, store: &dyn Store, now: Moment) {
        let Answer { number, asked: asked_at, reply } = answer;
        let asked = asked_at.unix;
        let Some(order) = self.orders.remove(&number) else { return };
        self.note(now, || format!("reply to call {number}: {}", order.short()));
        match (order, reply) {
            (Order::Accept(events), Reply::Accepted(Ok(Accepted::Stored { new, arrivals }))) => {
                self.accepted(&events, &new, &arrivals, now);
            }
            (Order::Accept(_), Reply::Accepted(Ok(Accepted::Conflict(_)))) => {
                violated("kept", "a repeated event is refused as a conflict");
            }
            (order @ Order::Create { .. }, Reply::Created(Ok(created))) => {
                let Created::Webhook(made) = created else {
                    violated("kept", "a webhook is refused as more than `webhooks_max`")
                };
                let public = store.ids().webhook(made.id);
                self.created(made.id, public, order);
            }
            (Order::Move { hook, url, .. }, Reply::Changed(Ok(Some(found)))) => {
                self.moved(hook, &url, found.probing.is_some(), now);
            }
            (Order::Subscribe { hook, events, .. }, Reply::Changed(Ok(Some(_)))) => {
                self.hooks.get_mut(&hook).unwrap().events = events;
            }
            (Order::Rotate { hook, secret, .. }, Reply::Rotated(Ok(Rotated::Webhook(made)))) => {
                let until = made.secrets.others.first().unwrap().until.unwrap();
                let ends = ends(until, store, now);
                if ends < asked_at.tick.plus(OVERLAP) {
                    violated("rotation", format!("the earlier secret expires early, at {until:?}"));
                }
                self.rotated(hook, secret, until, ends);
            }
            (Order::Rotate { hook, .. }, Reply::Rotated(Ok(Rotated::TooMany { .. }))) => {
                if self.hooks[&hook].previous.len() < SECRETS_BEFORE_MAX / 2 {
                    violated("rotation", format!("{hook:?}: rotation is refused below its limit"));
                }
            }
            (Order::Delete { hook, .. }, Reply::Deleted(Ok(true))) => self.deleted(hook),
            (Order::Reactivate { hook, .. }, Reply::Changed(Ok(Some(found)))) => {
                self.maybe_reactivated(hook, &found, asked, now);
            }
            (Order::Disable { hook, disabled: true, .. }, Reply::Changed(Ok(Some(found)))) => {
                self.disabled(hook, (found.disabled_at, found.stopped_since()));
            }
            (Order::Disable { hook, disabled: false, .. }, Reply::Changed(Ok(Some(found)))) => {
                self.enabled(hook, (found.paused_at, found.paused_total), asked, now);
            }
            (Order::Redeliver { delivery, .. }, Reply::Redelivered(Ok(Some(_)))) => {
                self.redelivered(delivery, asked, now);
            }
            (Order::Ping { event, hook, .. }, Reply::Pinged(Ok(Some(arrival)))) => {
                if arrival.webhook != hook {
                    let found = arrival.webhook;
                    violated("kept", format!("ping: expected {hook:?}, found {found:?}"));
                }
                self.arrives(&event, (hook, arrival.delivery.id), asked, now);
            }
            (Order::RedeliverFailed { ws }, Reply::Job(Ok(made))) => self.job_made(&ws, &made),
            (Order::Regret { .. }, Reply::Cancelled(Ok(job))) => self.job_cancelled(job),
            (Order::Sweep, Reply::Done(Ok(()))) => self.upkeep.swept = true,
            (_, Reply::Done(Ok(()))) => {}
            (order, reply) => self.refused(&order, &reply),
        }
    }

    fn redelivered(&mut self, delivery: DeliveryId, asked: UnixTime, now: Moment) {
        if self.hooks[&self.deliveries[&delivery].hook].deleted {
            violated(
                "deleted",
                format!("{delivery:?} is redelivered after its webhook is deleted"),
            );
        }
        self.begins_anew(delivery, now, asked);
        self.changed(delivery);
    }

    /// Checks a reply without a result: it is an error, or its webhook or delivery does not exist.
    fn refused(&mut self, order: &Order, reply: &Reply) {
        let error: Option<&StoreError> = match reply {
            Reply::Accepted(reply) => reply.as_ref().err(),
            Reply::Created(reply) => reply.as_ref().err(),
            Reply::Changed(reply) => reply.as_ref().err(),
            Reply::Rotated(reply) => reply.as_ref().err(),
            Reply::Job(reply) => reply.as_ref().err(),
            Reply::Cancelled(reply) => reply.as_ref().err(),
            Reply::Deleted(reply) => reply.as_ref().err(),
            Reply::Redelivered(reply) => reply.as_ref().err(),
            Reply::Pinged(reply) => reply.as_ref().err(),
            Reply::Done(reply) => reply.as_ref().err(),
        };
        if let Some(StoreError::Damaged(why)) = error {
            violated("kept", format!("{} fails on damaged data: {why}", order.short()));
        }
        let gone = match order {
            Order::Redeliver { .. } => true,
            Order::Move { hook, .. }
            | Order::Subscribe { hook, .. }
            | Order::Rotate { hook, .. }
            | Order::Delete { hook, .. }
            | Order::Reactivate { hook, .. }
            | Order::Disable { hook, .. }
            | Order::Ping { hook, .. } => self.hooks[hook].deleted,
            _ => false,
        };
        let refused = match order {
            Order::Accept(events) => events.as_slice(),
            Order::Ping { event, .. } => std::slice::from_ref(event),
            _ => &[],
        };
        let refused = refused.iter().filter(|event| !self.on_disk.contains(&event.id));
        refused.for_each(|event| self.promises.refused(event.id.clone()));
        if error.is_none() && !gone {
            violated("kept", format!("{} has no result and no error", order.short()));
        }
    }

    /// A 202: from here on every one of these events must reach every one of its webhooks.
    fn accepted(&mut self, events: &[NewEvent], new: &[bool], arrivals: &[Arrival], now: Moment) {
        let mut arrivals = arrivals.iter();
        for (event, new) in events.iter().zip(new) {
            if !new {
                if !self.on_disk.contains(&event.id) {
                    violated(
                        "kept",
                        format!("the store reports {} as stored before, expected new", event.id),
                    );
                }
                continue;
            }
            if self.on_disk.contains(&event.id) {
                violated(
                    "kept",
                    format!("the store reports {} as new, expected stored before", event.id),
                );
            }
            self.on_disk.insert(event.id.clone());
            self.counts.events += 1;
            let mut subscribed = self.subscribed(&event.workspace, event.kind);
            for arrival in arrivals.by_ref().take(subscribed.len()) {
                if !subscribed.remove(&arrival.webhook) || arrival.delivery.event_id != event.id {
                    let hook = arrival.webhook;
                    violated("fan-out", format!("{}: unexpected delivery for {hook:?}", event.id));
                }
                let (hook, id) = (arrival.webhook, arrival.delivery.id);
                self.arrives(event, (hook, id), arrival.delivery.created_at, now);
            }
            if !subscribed.is_empty() {
                violated("fan-out", format!("{} has no delivery for {subscribed:?}", event.id));
            }
        }
        if arrivals.next().is_some() {
            violated("fan-out", "the reply has more deliveries than its events require");
        }
    }

    pub(crate) fn arrives(
        &mut self,
        event: &NewEvent,
        (hook, id): (WebhookId, DeliveryId),
        created_at: UnixTime,
        now: Moment,
    ) {
        self.note(now, || format!("{id:?}: {} for {hook:?}", event.id));
        self.comes(Delivery {
            id,
            hook,
            event: event.id.clone(),
            kind: event.kind,
            body: event.body.clone(),
            created_at,
            came: now.tick,
            state: Some(DeliveryState::Waiting),
            ended_at: UnixTime(0),
            due: created_at,
            due_tick: now.tick_at(created_at),
            soonest: now.tick_at(created_at),
            put_off: Tick(0),
            step: 0,
            first: None,
            since: None,
            paused_before: Duration::ZERO,
            attempts: 0,
            flight: None,
            drained: None,
            redelivered: false,
        });
    }

    fn maybe_reactivated(&mut self, id: WebhookId, found: &Webhook, asked: UnixTime, now: Moment) {
        let hook = &self.hooks[&id];
        let Some(paused_at) = hook.paused_at else { return };
        let paused = asked.since(paused_at).max(Duration::from_micros(1));
        let total = hook.paused_total + paused;
        if found.paused_at.is_some() || found.paused_total != total {
            let found = (found.paused_at, found.paused_total);
            violated("paused time", format!("{id:?}: expected (None, {total:?}), found {found:?}"));
        }
        self.hooks.get_mut(&id).unwrap().earlier.get_or_insert(Earlier::default());
        self.reactivated(id, now, total);
    }

    /// After a crash: an order without a reply was done as a whole, or not at all.
    pub(crate) fn reconcile(&mut self, conn: &Connection, store: &dyn Store, now: Moment) {
        for (_, order) in std::mem::take(&mut self.orders) {
            match order {
                Order::Accept(events) => self.reconcile_events(&events, conn, now),
                Order::Ping { event, .. } => self.reconcile_events(&[event], conn, now),
                Order::Create { .. } => {
                    let known = self.hooks.keys().next_back().map_or(0, |id| id.0);
                    let sql = "SELECT id FROM webhooks WHERE id > ?1 ORDER BY id LIMIT 1";
                    let id = conn.query_row(sql, [known], |row| row.get(0)).optional().unwrap();
                    if let Some(id) = id.map(WebhookId) {
                        let public = store.ids().webhook(id);
                        self.created(id, public, order);
                    }
                }
                Order::Redeliver { delivery, .. } => {
                    let sql = "SELECT due FROM deliveries WHERE id = ?1 AND state = 0 \
                        AND first_attempt_at IS NULL AND attempts > 0";
                    let mut query = conn.prepare_cached(sql).unwrap();
                    if let Some(row) = query.query([delivery.0]).unwrap().next().unwrap() {
                        self.begins_anew(delivery, now, unix(row, 0).unwrap());
                    }
                }
                Order::RedeliverFailed { .. } | Order::Regret { .. } => self.upkeep.job = true,
                Order::Disable { hook, disabled, .. } => {
                    self.reconcile_disabled(hook, disabled, conn, now);
                }
                Order::Sweep => {}
                Order::Post(_) => self.outbox.doubt = true,
                Order::Move { hook, .. }
                | Order::Subscribe { hook, .. }
                | Order::Rotate { hook, .. }
                | Order::Delete { hook, .. }
                | Order::Reactivate { hook, .. } => {
                    self.reconcile_hook(&order, hook, (conn, store), now);
                }
            }
        }
    }

    fn reconcile_events(&mut self, events: &[NewEvent], conn: &Connection, now: Moment) {
        let (mut asked_for, mut whole) = (Vec::new(), None);
        for event in events {
            if self.on_disk.contains(&event.id) {
                continue;
            }
            let sql = "SELECT id, created_at FROM events WHERE name = ?1";
            let mut query = conn.prepare_cached(sql).unwrap();
            let found = query
                .query_row([&*event.id], |row| Ok((row.get::<_, i64>(0)?, unix(row, 1).unwrap())));
            let found = found.optional().unwrap();
            if whole.replace(found.is_some()).is_some_and(|before| before != found.is_some()) {
                violated("batch", "only a part of a batch is on disk");
            }
            let Some((number, created_at)) = found else {
                let hooks = self.subscribed(&event.workspace, event.kind);
                asked_for.extend(hooks.into_iter().map(|hook| (event.id.clone(), hook)));
                continue;
            };
            self.on_disk.insert(event.id.clone());
            let sql = "SELECT id, webhook FROM deliveries WHERE event = ?1 ORDER BY id";
            let mut query = conn.prepare_cached(sql).unwrap();
            let rows = query
                .query_map([number], |row| Ok((DeliveryId(row.get(0)?), WebhookId(row.get(1)?))));
            let rows: Vec<_> = rows.unwrap().map(Result::unwrap).collect();
            for (id, hook) in rows {
                asked_for.push((event.id.clone(), hook));
                self.arrives(event, (hook, id), created_at, now);
            }
        }
        self.promises.cut_off(asked_for);
    }

    fn reconcile_hook(
        &mut self,
        order: &Order,
        id: WebhookId,
        (conn, store): (&Connection, &dyn Store),
        now: Moment,
    ) {
        let sql = "SELECT l.url, w.subscribed, w.secrets_before ->> '$[0][0]', w.paused_at, \
            w.paused_total, w.probing IS NOT NULL \
            FROM webhooks w JOIN endpoints l ON l.id = w.endpoint \
            WHERE w.id = ?1 AND deleted_up_to IS NULL";
        let row = conn.query_row(sql, [id.0], |row| {
            let url: String = row.get(0)?;
            let total = Duration::from_micros(row.get::<_, i64>(4)?.cast_unsigned());
            let names: String = row.get(1)?;
            let events = EventSet::of_names(&names).unwrap();
            let probes: bool = row.get(5)?;
            Ok((url, events, unix(row, 2), unix(row, 3), (total, probes)))
        });
        let Some((url, events, until, paused_at, (total, probes))) = row.optional().unwrap() else {
            return self.deleted(id);
        };
        let hook = self.hooks.get_mut(&id).unwrap();
        hook.events = events;
        let until_before = hook.previous.last().map(|(.., until)| *until);
        let paused = hook.paused_at;
        match order {
            Order::Move { .. } => self.moved(id, &url, probes, now),
            Order::Rotate { secret, .. } if until.is_some() && until != until_before => {
                let until = until.unwrap();
                self.rotated(id, secret.clone(), until, ends(until, store, now));
            }
            Order::Reactivate { .. } if paused.is_some() && paused_at.is_none() => {
                self.reactivated(id, now, total);
            }
            _ => {}
        }
    }
}

/// When a secret ends that signs until `until` in steady time.
fn ends(until: UnixTime, store: &dyn Store, now: Moment) -> Tick {
    now.tick.plus(until.since(store.steady(now.tick)))
}
