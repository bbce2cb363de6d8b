//! Checks the events for operators: one is on disk with each pause and each delivery that is given
//! up, none is about their own webhook, and each is delivered as owners' events are.
//!
//! In the model their webhook is one more, of a workspace that no customer has.

use rusqlite::{Connection, OptionalExtension};
use weir_common::time::Moment;
use weir_dispatcher::domain::event::{EventSet, EventType};
use weir_dispatcher::domain::id::{DeliveryId, WebhookId};
use weir_dispatcher::domain::operator_event::WORKSPACE;
use weir_dispatcher::domain::webhook::options::WebhookOptions;
use weir_dispatcher::store::Store;
use weir_dispatcher::store::types::NewEvent;

use crate::checks::ledger::unix;
use crate::model::{Hook, Model, violated};
use crate::orders::{OPERATOR_SECRET, Order};

const WEBHOOK: &str = "SELECT w.id FROM webhooks w JOIN workspaces s ON s.id = w.workspace \
    WHERE s.name = ?1 AND w.deleted_up_to IS NULL";

const EVENTS: &str = "SELECT d.id, e.name, t.name, e.body, e.digest, d.created_at \
    FROM deliveries d JOIN events e ON e.id = d.event JOIN event_types t ON t.code = e.kind \
    WHERE d.webhook = ?1 AND d.id > ?2 ORDER BY d.id";

/// What an event for operators says.
#[derive(Debug)]
pub(crate) struct Notice {
    kind: EventType,
    body: String,
}

impl Hook {
    /// Whether it is the operators' own.
    pub(crate) fn is_operators(&self) -> bool {
        *self.ws == *WORKSPACE
    }
}

impl Model {
    /// Webhooks that owners have, or had.
    pub(crate) fn owned(&self) -> impl Iterator<Item = &Hook> + Clone {
        self.hooks.values().filter(|hook| !hook.is_operators())
    }

    /// The URLs that owners register: the last one is the operators'.
    pub(crate) fn owned_urls(&self) -> &[String] {
        self.urls.split_last().unwrap().1
    }

    /// Finds the operators' webhook, once a process has made it.
    pub(crate) fn meets_operators(&mut self, conn: &Connection, store: &dyn Store) {
        if self.operators.is_some() {
            return;
        }
        let id = conn.query_row(WEBHOOK, [WORKSPACE], |row| row.get(0)).optional().unwrap();
        let Some(id) = id.map(WebhookId) else {
            violated("operators", "the operators have no webhook once a process has started")
        };
        let order = Order::Create {
            ws: WORKSPACE.into(),
            url: self.urls.last().unwrap().clone(),
            events: EventSet::of(EventType::OPERATORS),
            secret: OPERATOR_SECRET.to_owned(),
        };
        self.created(id, store.ids().webhook(id), order);
        let hook = self.hooks.get_mut(&id).unwrap();
        hook.options = WebhookOptions::default();
        // It is never warned of, and never paused.
        hook.record.vague = true;
        self.operators = Some((id, DeliveryId(0)));
    }

    /// Adopts the events for operators that were written since, and returns them.
    pub(crate) fn told_operators(&mut self, conn: &Connection, now: Moment) -> Vec<Notice> {
        let Some((hook, last)) = self.operators else { return Vec::new() };
        let mut query = conn.prepare_cached(EVENTS).unwrap();
        let mut rows = query.query([hook.0, last.0]).unwrap();
        let mut told = Vec::new();
        while let Some(row) = rows.next().unwrap() {
            let (id, kind): (_, String) = (DeliveryId(row.get(0).unwrap()), row.get(2).unwrap());
            let kind = EventType::OPERATORS.into_iter().find(|one| one.name() == kind).unwrap();
            let name: String = row.get(1).unwrap();
            let body: Vec<u8> = row.get(3).unwrap();
            told.push(Notice { kind, body: String::from_utf8(body.clone()).unwrap() });
            let event = NewEvent {
                id: name.into(),
                workspace: WORKSPACE.into(),
                kind,
                tenant: None,
                body: body.into(),
                digest: row.get(4).unwrap(),
            };
            self.arrives(&event, (hook, id), unix(row, 5).unwrap(), now);
            self.operators = Some((hook, id));
            self.counts.told += 1;
        }
        let own = &self.hooks[&hook].public;
        if let Some(told) = told.iter().find(|told| told.body.contains(own)) {
            violated("operators", format!("an event is about the operators' own URL: {told:?}"));
        }
        told
    }

    /// Checks that a pause, and each of these deliveries that are given up, was told.
    pub(crate) fn were_told(&self, told: &[Notice], paused: &[WebhookId], given_up: &[DeliveryId]) {
        let about = |kind: EventType, words: &[&str]| {
            let says = |one: &&Notice| words.iter().all(|word| one.body.contains(word));
            told.iter().filter(|one| one.kind == kind).filter(says).count()
        };
        for hook in paused {
            let count = about(EventType::PAUSED, &[&self.hooks[hook].public]);
            if count != 1 {
                violated(
                    "operators",
                    format!("pause of {hook:?}: expected 1 event, found {count}"),
                );
            }
        }
        for id in given_up {
            let delivery = &self.deliveries[id];
            let hook = &self.hooks[&delivery.hook];
            if hook.is_operators() || delivery.kind == EventType::PING {
                continue;
            }
            let event = format!("\"event_id\":\"{}\"", delivery.event);
            let count = about(EventType::EXHAUSTED, &[&hook.public, &event]);
            if count != 1 {
                violated(
                    "operators",
                    format!("{id:?} is given up: expected 1 event, found {count}"),
                );
            }
        }
    }
}
