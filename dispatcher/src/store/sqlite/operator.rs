//! The operator's webhook, and the events for it.
//!
//! # Invariants
//!
//! 1. There is at most one, in a workspace of its own; it does not count as a registered webhook.
//! 2. Its waiting deliveries are bounded, however many others fail.

use rusqlite::{Connection, Row};
use weir_common::time::UnixTime;

use crate::config::settings::OperatorEndpoint;
use crate::domain::event::{EventSet, EventType};
use crate::domain::id::{DeliveryId, WebhookId};
use crate::domain::operator_event::{OperatorEvent, Recorded, WORKSPACE};
use crate::domain::webhook::Webhook;
use crate::domain::webhook::options::WebhookOptions;
use crate::store::encryption::{Content, Sealer};
use crate::store::sqlite::error::Fault;
use crate::store::sqlite::rows::{self, at};
use crate::store::sqlite::webhooks::Nonces;
use crate::store::sqlite::writer::session::WriteSession;
use crate::store::sqlite::{deliveries, events, webhooks};
use crate::store::types::{Accepted, Created, NewEvent, NewWebhook, WebhookChange};

/// Events that may wait: three hours at 100 a minute. Later ones are dropped.
pub(super) const WAITING_MAX: usize = 20_000;

/// Of these, the most with which another `delivery.exhausted` may wait: a mass failure has one for
/// each delivery, and leaves room for what happens to webhooks.
pub(super) const EXHAUSTED_MAX: usize = WAITING_MAX / 2;

const SECRET: &str = "UPDATE webhooks SET secret = ?2, secret_created_at = ?3, \
    secrets_before = NULL, secret_lost_at = NULL WHERE id = ?1";

/// Creates, changes or deletes the webhook; returns it if it changed.
pub(super) fn set(
    session: &mut WriteSession,
    endpoint: Option<&OperatorEndpoint>,
    nonces: Nonces,
    now: UnixTime,
) -> Result<Option<WebhookId>, Fault> {
    match (find(&session.conn, &session.sealer)?, endpoint) {
        (None, None) => Ok(None),
        (None, Some(endpoint)) => create(session, endpoint, nonces, now),
        (Some(webhook), None) => {
            // It counted as one more than there are while it is deleted.
            session.counters.webhooks += 1;
            webhooks::delete(session, WORKSPACE, webhook.id)?;
            Ok(Some(webhook.id))
        }
        (Some(webhook), Some(endpoint)) => change(session, &webhook, endpoint, nonces, now),
    }
}

fn find(conn: &Connection, sealer: &Sealer) -> Result<Option<Webhook>, Fault> {
    let every = |row: &Row<'_>| rows::webhook(row, sealer).map(Some);
    Ok(webhooks::page(conn, Some(WORKSPACE), None, 1, every)?.items.pop())
}

fn types() -> EventSet {
    EventSet::of(EventType::OPERATORS)
}

fn create(
    session: &mut WriteSession,
    endpoint: &OperatorEndpoint,
    nonces: Nonces,
    now: UnixTime,
) -> Result<Option<WebhookId>, Fault> {
    let new = NewWebhook {
        workspace: WORKSPACE.into(),
        url: endpoint.url.clone(),
        events: types(),
        options: WebhookOptions::default(),
        secret: endpoint.secret.clone(),
        signing_key: None,
        webhooks_max: 1,
    };
    match webhooks::create(session, new, nonces, now)? {
        Created::Webhook(webhook) => {
            session.counters.webhooks -= 1;
            Ok(Some(webhook.id))
        }
        Created::TooMany => Ok(None),
    }
}

fn change(
    session: &mut WriteSession,
    webhook: &Webhook,
    endpoint: &OperatorEndpoint,
    nonces: Nonces,
    now: UnixTime,
) -> Result<Option<WebhookId>, Fault> {
    let id = webhook.id;
    let has_secret = webhook.secrets.current.secret == endpoint.secret;
    if has_secret && webhook.url == endpoint.url && webhook.events == types() {
        return Ok(None);
    }
    if !has_secret {
        let secret = endpoint.secret.expose();
        let sealed = session.sealer.seal((id, Content::Secret), secret, nonces.secret);
        session.conn.prepare_cached(SECRET)?.execute((id.0, sealed, at(now)))?;
    }
    let url = (webhook.url != endpoint.url).then(|| endpoint.url.clone());
    let change = WebhookChange { url, events: Some(types()), ..WebhookChange::default() };
    webhooks::change(session, (WORKSPACE, id), change, nonces, now)?;
    Ok(Some(id))
}

/// Stores events for the webhook, if there is one, as far as there is room.
pub(super) fn accept(
    session: &mut WriteSession,
    events: &[OperatorEvent],
) -> Result<Recorded, Fault> {
    let mut recorded = Recorded::default();
    if events.is_empty() {
        return Ok(recorded);
    }
    let Some(webhook) = find(&session.conn, &session.sealer)? else { return Ok(recorded) };
    let (last, most) = (UnixTime(u64::MAX), WAITING_MAX);
    let last_id = DeliveryId(i64::MAX);
    let mut waiting = deliveries::ahead_of(&session.conn, webhook.id, last, last_id, most)?;
    let mut stored = Vec::new();
    for event in events {
        let most = if event.kind == EventType::EXHAUSTED { EXHAUSTED_MAX } else { WAITING_MAX };
        if waiting >= most {
            recorded.dropped += 1;
            continue;
        }
        waiting += 1;
        stored.push(NewEvent {
            id: event.id.as_str().into(),
            workspace: WORKSPACE.into(),
            kind: event.kind,
            tenant: None,
            body: event.body.clone(),
            digest: event.digest,
        });
    }
    let now = session.clock.now().unix;
    // Their identifiers are made of their digests: none conflicts with another event.
    if let Accepted::Stored { arrivals, .. } = events::accept(session, stored, now)? {
        recorded.arrivals = arrivals;
    }
    Ok(recorded)
}
