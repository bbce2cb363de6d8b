//! Accepts events: stores each once, with a delivery for every webhook that subscribes to its type.
//!
//! # Invariants
//!
//! 1. A whole batch is checked before its first row is written: a refused one writes nothing.
//! 2. A body is on disk only for as long as a delivery needs it.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use rusqlite::{CachedStatement, Connection, OptionalExtension};
use weir_common::time::UnixTime;

use crate::domain::delivery::{Arrival, QueuedDelivery};
use crate::domain::event::EventType;
use crate::domain::id::{DeliveryId, WebhookId};
use crate::store::sqlite::error::Fault;
use crate::store::sqlite::rows::{self, at};
use crate::store::sqlite::webhooks;
use crate::store::sqlite::writer::counters::Counters;
use crate::store::sqlite::writer::session::WriteSession;
use crate::store::types::{Accepted, NewEvent};

const DIGEST: &str = "SELECT digest FROM events WHERE workspace = ?1 AND name = ?2";

const BODY: &str =
    "SELECT body FROM events WHERE workspace = ?1 AND name = ?2 AND delivery_refs > 0";

const ANY_BETWEEN: &str =
    "SELECT 1 FROM events WHERE workspace = ?1 AND name BETWEEN ?2 AND ?3 LIMIT 1";

const SUBSCRIBED: &str = "SELECT id, subscribed FROM webhooks \
    WHERE workspace = ?1 AND deleted_up_to IS NULL ORDER BY id";

const EVENT: &str = "INSERT INTO events \
    (name, workspace, kind, digest, created_at, delivery_refs, body, over_at) \
    VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)";

const DELIVERY: &str = "INSERT INTO deliveries \
    (id, event, webhook, workspace, kind, state, due, attempts, step, created_at, paused_before, \
    tenant) VALUES (?1, ?2, ?3, ?4, ?5, 0, ?6, 0, 0, ?6, 0, ?7)";

/// A workspace's number and its webhooks, read once for a batch.
struct Subscribed {
    workspace: i64,
    /// Each with the names of the types that it subscribes to, separated by spaces.
    webhooks: Vec<(WebhookId, String)>,
    /// Those that subscribe to a type, searched once for a batch.
    by_type: HashMap<EventType, Vec<WebhookId>>,
}

impl Subscribed {
    fn to(&mut self, kind: EventType) -> &[WebhookId] {
        let Self { webhooks, by_type, .. } = self;
        by_type.entry(kind).or_insert_with(|| {
            let has = |names: &str| names.split(' ').any(|name| name == kind.name());
            webhooks.iter().filter(|(_, names)| has(names)).map(|(id, _)| *id).collect()
        })
    }
}

/// Stores events and their deliveries: all or nothing.
pub(super) fn accept(
    session: &mut WriteSession,
    events: Vec<NewEvent>,
    now: UnixTime,
) -> Result<Accepted, Fault> {
    let new = match which_are_new(&session.conn, &events)? {
        Ok(new) => new,
        Err(conflicts) => return Ok(Accepted::Conflict(conflicts)),
    };
    let WriteSession { conn, counters, steady, .. } = session;
    let mut inserts = Inserts::prepare(conn, steady.of_unix(now), now)?;
    let mut workspaces: HashMap<Arc<str>, Subscribed> = HashMap::new();
    for (event, _) in events.into_iter().zip(&new).filter(|(_, new)| **new) {
        if !workspaces.contains_key(&event.workspace) {
            let found = subscribed(conn, &event.workspace)?;
            workspaces.insert(Arc::clone(&event.workspace), found);
        }
        let Some(of) = workspaces.get_mut(&event.workspace) else { continue };
        inserts.store(counters, of.workspace, &event, of.to(event.kind))?;
    }
    Ok(Accepted::Stored { new, arrivals: inserts.arrivals })
}

/// Stores an event for one webhook only.
pub(super) fn ping(
    session: &mut WriteSession,
    workspace: &str,
    webhook: WebhookId,
    event: &NewEvent,
    now: UnixTime,
) -> Result<Option<Arrival>, Fault> {
    let Some(number) = rows::workspace_of(&session.conn, workspace)? else { return Ok(None) };
    if !webhooks::alive(&session.conn, number)?.contains(&webhook.0) {
        return Ok(None);
    }
    let WriteSession { conn, counters, steady, .. } = session;
    let mut inserts = Inserts::prepare(conn, steady.of_unix(now), now)?;
    inserts.store(counters, number, event, &[webhook])?;
    Ok(inserts.arrivals.pop())
}

/// The envelope of an event; `None` if there is no such event, or no delivery needs it.
pub(super) fn body(conn: &Connection, workspace: &str, id: &str) -> Result<Option<Bytes>, Fault> {
    let Some(workspace) = rows::workspace_of(conn, workspace)? else { return Ok(None) };
    let mut query = conn.prepare_cached(BODY)?;
    let body = query.query_row((workspace, id), |row| row.get::<_, Vec<u8>>(0)).optional()?;
    Ok(body.map(Bytes::from))
}

/// For each event, whether it is new; or the indexes of those that conflict with another event of
/// the same identifier.
fn which_are_new(
    conn: &Connection,
    events: &[NewEvent],
) -> Result<Result<Vec<bool>, Vec<usize>>, Fault> {
    let mut query = conn.prepare_cached(DIGEST)?;
    let workspaces = where_some_may_be(conn, events)?;
    let mut known: HashMap<(&str, &str), [u8; 32]> = HashMap::new();
    let (mut new, mut conflicts) = (Vec::with_capacity(events.len()), Vec::new());
    for (place, event) in events.iter().enumerate() {
        let workspace = workspaces.get(&*event.workspace).copied();
        let name = (&*event.workspace, &*event.id);
        let stored = match (known.get(&name), workspace) {
            (Some(digest), _) => Some(*digest),
            (None, Some(number)) => {
                query.query_row((number, name.1), |row| row.get(0)).optional()?
            }
            (None, None) => None,
        };
        if stored.is_some_and(|digest| digest != event.digest) {
            conflicts.push(place);
        }
        new.push(stored.is_none());
        known.insert(name, stored.unwrap_or(event.digest));
    }
    Ok(if conflicts.is_empty() { Ok(new) } else { Err(conflicts) })
}

/// The workspaces, with their numbers, in which some of the events may be stored.
///
/// Identifiers in a batch are usually close in sort order, whether we or the sender assigned them:
/// one query for any between the first and the last mostly shows that none is stored.
fn where_some_may_be<'e>(
    conn: &Connection,
    events: &'e [NewEvent],
) -> Result<HashMap<&'e str, i64>, Fault> {
    let mut spans: HashMap<&str, (&str, &str)> = HashMap::new();
    for event in events {
        let (first, last) = spans.entry(&event.workspace).or_insert((&event.id, &event.id));
        (*first, *last) = ((*first).min(&event.id), (*last).max(&event.id));
    }
    let mut workspaces = HashMap::new();
    for (workspace, (first, last)) in spans {
        let Some(number) = rows::workspace_of(conn, workspace)? else { continue };
        // A single identifier is looked up later anyway.
        if first == last || conn.prepare_cached(ANY_BETWEEN)?.exists((number, first, last))? {
            workspaces.insert(workspace, number);
        }
    }
    Ok(workspaces)
}

fn subscribed(conn: &Connection, name: &str) -> Result<Subscribed, Fault> {
    let workspace = rows::workspace(conn, name)?;
    let mut query = conn.prepare_cached(SUBSCRIBED)?;
    let webhooks = query
        .query_map([workspace], |row| Ok((WebhookId(row.get(0)?), row.get(1)?)))?
        .collect::<rusqlite::Result<_>>()?;
    Ok(Subscribed { workspace, webhooks, by_type: HashMap::new() })
}

/// Statements that write events and deliveries, prepared once for a batch.
struct Inserts<'c> {
    conn: &'c Connection,
    event: CachedStatement<'c>,
    delivery: CachedStatement<'c>,
    /// The codes of the types of the batch.
    codes: HashMap<EventType, i64>,
    steady: UnixTime,
    now: UnixTime,
    /// The deliveries that were stored.
    arrivals: Vec<Arrival>,
}

impl<'c> Inserts<'c> {
    fn prepare(conn: &'c Connection, steady: UnixTime, now: UnixTime) -> Result<Self, Fault> {
        let event = conn.prepare_cached(EVENT)?;
        let delivery = conn.prepare_cached(DELIVERY)?;
        let (codes, arrivals) = (HashMap::new(), Vec::new());
        Ok(Self { conn, event, delivery, codes, steady, now, arrivals })
    }

    fn code_of(&mut self, kind: EventType) -> Result<i64, Fault> {
        if let Some(code) = self.codes.get(&kind) {
            return Ok(*code);
        }
        let code = rows::code_of(self.conn, kind)?;
        self.codes.insert(kind, code);
        Ok(code)
    }

    /// Writes an event and its deliveries. An event for no webhook is stored without its body, only
    /// to recognise it if it is sent again.
    fn store(
        &mut self,
        counters: &mut Counters,
        workspace: i64,
        event: &NewEvent,
        subscribed: &[WebhookId],
    ) -> Result<(), Fault> {
        let (now, kind) = (self.now, self.code_of(event.kind)?);
        self.event.execute((
            &*event.id,
            workspace,
            kind,
            event.digest,
            at(now),
            rows::count(subscribed.len()),
            if subscribed.is_empty() { &[] } else { &*event.body },
            subscribed.is_empty().then(|| at(self.steady)),
        ))?;
        let number = self.conn.last_insert_rowid();
        for webhook in subscribed {
            counters.deliveries_made += 1;
            counters.waiting += 1;
            let id = DeliveryId(counters.deliveries_made);
            let tenant = event.tenant.as_deref();
            let row = (id.0, number, webhook.0, workspace, kind, at(now), tenant);
            self.delivery.execute(row)?;
            self.arrivals.push(Arrival { webhook: *webhook, delivery: fresh(id, event, now) });
        }
        Ok(())
    }
}

fn fresh(id: DeliveryId, event: &NewEvent, now: UnixTime) -> QueuedDelivery {
    QueuedDelivery {
        id,
        due: now,
        created_at: now,
        event_id: Arc::clone(&event.id),
        kind: event.kind,
        body: event.body.clone(),
        attempts: 0,
        step: 0,
        first_attempt_at: None,
        since: None,
        paused_before: Duration::ZERO,
        redeliveries: 0,
        fresh_connection: false,
    }
}
