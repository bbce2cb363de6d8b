//! The worker's reads: which webhooks have work, and their waiting deliveries.
//!
//! # Invariants
//!
//! 1. A query reads only deliveries that it returns, the excluded ones, and one more.
//! 2. An unreadable row stops no other: it is logged and skipped.
//! 3. However many attempts a start reads, after the wall clock was ahead, it keeps of each
//!    endpoint as many as a limit can count.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use rusqlite::{Connection, OptionalExtension, Row};
use weir_common::limit::rolling::EXACT_MAX;
use weir_common::time::UnixTime;

use crate::domain::attempt::EarlierStart;
use crate::domain::delivery::{Fetched, QueuedDelivery};
use crate::domain::id::{DeliveryId, EndpointId, WebhookId};
use crate::domain::webhook::Queue;
use crate::store::encryption::Sealer;
use crate::store::sqlite::error::Fault;
use crate::store::sqlite::rows::{self, select_ready, select_webhooks};
use crate::store::sqlite::webhooks;
use crate::store::sqlite::writer::session::WriteSession;
use crate::store::types::Page;

const FIRST_DUE: &str =
    "SELECT due FROM deliveries WHERE webhook = ?1 AND state = 0 ORDER BY due, id LIMIT 1";

const PAGE: &str =
    select_webhooks!("WHERE w.id > ?1 AND w.deleted_up_to IS NULL ORDER BY w.id LIMIT ?2");

const FIRST: &str = select_ready!(
    "WHERE d.webhook = ?1 AND d.state = 0 \
     AND EXISTS (SELECT 1 FROM webhooks w WHERE w.id = d.webhook AND w.deleted_up_to IS NULL) \
     ORDER BY d.due, d.id"
);

const THIS: &str = select_ready!(
    "WHERE d.id = ?1 AND d.state = 0 \
     AND EXISTS (SELECT 1 FROM webhooks w WHERE w.id = d.webhook AND w.deleted_up_to IS NULL)"
);

const TRIED: &str =
    "SELECT id FROM deliveries WHERE webhook = ?1 AND state = 0 AND step > 0 LIMIT ?2";

const STARTS: &str = "SELECT a.id, a.endpoint, coalesce(d.webhook, a.webhook) AS webhook, \
    coalesce(w.workspace, a.workspace) AS workspace, a.started_at, a.took, a.trace \
    FROM attempts a LEFT JOIN deliveries d ON d.id = a.delivery \
    LEFT JOIN webhooks w ON w.id = d.webhook WHERE a.id < ?1 ORDER BY a.id DESC LIMIT 1024";

/// In microseconds. Attempts are recorded in batches, only roughly in the order in which they end:
/// the search for starts stops only at an attempt that ended this long before `since`.
const DISORDER: u64 = 60_000_000;

/// The starts of an endpoint that a limit can count.
const STARTS_MAX: usize = EXACT_MAX as usize;

/// A fetch ends after this many bytes of bodies: thousands of webhooks may have a backlog of large
/// ones.
const FETCH_BYTES: usize = 256 << 10;

/// A webhook, and when its first delivery is due.
pub(super) fn load(
    conn: &Connection,
    sealer: &Sealer,
    id: WebhookId,
) -> Result<Option<Queue>, Fault> {
    let Some(webhook) = webhooks::load(conn, sealer, id)? else { return Ok(None) };
    Ok(Some(Queue { webhook, due: first_due(conn, id)? }))
}

/// Of the next `limit` webhooks, those that have work.
pub(super) fn page(
    session: &WriteSession,
    after: Option<WebhookId>,
    limit: usize,
) -> Result<Page<Queue, WebhookId>, Fault> {
    let mut items = Vec::new();
    let mut query = session.conn.prepare_cached(PAGE)?;
    let mut found = query.query((after.map_or(0, |id| id.0), rows::count(limit)))?;
    let (mut examined, mut last) = (0, None);
    while let Some(row) = found.next()? {
        let webhook: i64 = row.get("id")?;
        (examined, last) = (examined + 1, Some(WebhookId(webhook)));
        match with_work(session, row) {
            Ok(queue) => items.extend(queue),
            Err(fault) => fault.skip("webhook unreadable", ("webhook", webhook))?,
        }
    }
    Ok(Page { items, next: last.filter(|_| examined == limit) })
}

fn with_work(session: &WriteSession, row: &Row<'_>) -> Result<Option<Queue>, Fault> {
    let due = first_due(&session.conn, WebhookId(row.get("id")?))?;
    let look = rows::time_or(row, "look_at")?.is_some() || row.get("reordering")?;
    if due.is_none() && !look {
        return Ok(None);
    }
    Ok(Some(Queue { webhook: rows::webhook(row, &session.sealer)?, due }))
}

fn first_due(conn: &Connection, webhook: WebhookId) -> rusqlite::Result<Option<UnixTime>> {
    let mut query = conn.prepare_cached(FIRST_DUE)?;
    query.query_row([webhook.0], |row| rows::time(row, "due")).optional()
}

/// The waiting deliveries of a webhook that are due first, except those in `but`.
pub(super) fn fetch(
    conn: &Connection,
    webhook: WebhookId,
    but: &[DeliveryId],
    limit: usize,
) -> Result<Fetched, Fault> {
    let mut query = conn.prepare_cached(FIRST)?;
    let mut found = query.query([webhook.0])?;
    let (mut deliveries, mut bytes) = (Vec::new(), 0);
    while let Some(row) = found.next()? {
        let id: i64 = row.get("id")?;
        if but.contains(&DeliveryId(id)) {
            continue;
        }
        if deliveries.len() == limit || bytes > FETCH_BYTES {
            return Ok(Fetched { deliveries, more: true });
        }
        match rows::queued_delivery(row) {
            Ok(one) => {
                bytes += one.body.len();
                deliveries.push(one);
            }
            Err(fault) => fault.skip("delivery unreadable", ("delivery", id))?,
        }
    }
    Ok(Fetched { deliveries, more: false })
}

/// A delivery, if it is waiting.
pub(super) fn fetch_one(
    conn: &Connection,
    id: DeliveryId,
) -> Result<Option<QueuedDelivery>, Fault> {
    let mut query = conn.prepare_cached(THIS)?;
    let mut found = query.query([id.0])?;
    found.next()?.map(rows::queued_delivery).transpose()
}

/// Restarts the schedule of up to `limit` waiting deliveries that were attempted. Returns whether
/// all are done.
pub(super) fn reorder(
    session: &mut WriteSession,
    webhook: WebhookId,
    limit: usize,
) -> Result<bool, Fault> {
    let is_reordering = "SELECT 1 FROM webhooks WHERE id = ?1 AND reordering = 1";
    // A repeated call must not reset deliveries that failed since.
    if !session.conn.prepare_cached(is_reordering)?.exists([webhook.0])? {
        return Ok(true);
    }
    let mut tried = session.conn.prepare_cached(TRIED)?;
    let ids = tried.query_map((webhook.0, rows::count(limit)), |row| row.get(0))?;
    let ids = ids.collect::<rusqlite::Result<Vec<i64>>>()?;
    let sql = "UPDATE deliveries SET due = created_at, step = 0, since = NULL, \
        redeliveries = redeliveries + 1 WHERE id = ?1";
    let mut update = session.conn.prepare_cached(sql)?;
    for id in &ids {
        update.execute([id])?;
    }
    let all = ids.len() < limit;
    if all {
        let sql = "UPDATE webhooks SET reordering = 0 WHERE id = ?1 AND reordering = 1";
        session.conn.prepare_cached(sql)?.execute([webhook.0])?;
    }
    Ok(all)
}

/// Texts by number, each read once: a million attempts have few endpoints.
struct Texts {
    sql: &'static str,
    known: HashMap<i64, Option<Arc<str>>>,
}

impl Texts {
    fn of(sql: &'static str) -> Self {
        Self { sql, known: HashMap::new() }
    }

    fn read(&mut self, conn: &Connection, id: Option<i64>) -> rusqlite::Result<Option<Arc<str>>> {
        let Some(id) = id else { return Ok(None) };
        if let Some(known) = self.known.get(&id) {
            return Ok(known.clone());
        }
        let mut query = conn.prepare_cached(self.sql)?;
        let text: Option<Arc<str>> = query.query_row([id], |row| row.get(0)).optional()?;
        self.known.insert(id, text.clone());
        Ok(text)
    }
}

/// The newest starts of each endpoint.
#[derive(Default)]
struct NewestStarts(HashMap<EndpointId, Vec<EarlierStart>>);

impl NewestStarts {
    fn add(&mut self, start: EarlierStart) {
        let starts = self.0.entry(start.endpoint).or_default();
        starts.push(start);
        // Each is moved once on average.
        if starts.len() >= 2 * STARTS_MAX {
            keep_newest(starts);
        }
    }

    fn all(mut self) -> Vec<EarlierStart> {
        self.0.values_mut().for_each(keep_newest);
        self.0.into_values().flatten().collect()
    }
}

fn keep_newest(starts: &mut Vec<EarlierStart>) {
    if starts.len() > STARTS_MAX {
        starts.select_nth_unstable_by_key(STARTS_MAX, |start| Reverse(start.sent_at));
        starts.truncate(STARTS_MAX);
    }
}

/// The attempts whose request was sent at or after `since`, of each endpoint the newest
/// [`STARTS_MAX`].
pub(super) fn starts_since(
    session: &WriteSession,
    since: UnixTime,
) -> Result<Vec<EarlierStart>, Fault> {
    let mut starts = NewestStarts::default();
    let mut urls = Texts::of("SELECT url FROM endpoints WHERE id = ?1");
    let mut workspaces = Texts::of("SELECT name FROM workspaces WHERE id = ?1");
    let mut query = session.conn.prepare_cached(STARTS)?;
    let mut before = i64::MAX;
    loop {
        let mut found = query.query([before])?;
        let mut any = false;
        while let Some(row) = found.next()? {
            any = true;
            before = row.get("id")?;
            let started_at = rows::time(row, "started_at")?;
            let took = Duration::from_micros(rows::unsigned(row, "took")?);
            if started_at.plus(took).0.saturating_add(DISORDER) < since.0 {
                return Ok(starts.all());
            }
            // A damaged trace counts as none.
            let sent_at = started_at.plus(rows::trace(row).unwrap_or_default().sent_within(took));
            if sent_at >= since {
                let webhook = row.get::<_, Option<i64>>("webhook")?.map(WebhookId);
                let endpoint = EndpointId(row.get("endpoint")?);
                let workspace = workspaces.read(&session.conn, row.get("workspace")?)?;
                let url = urls.read(&session.conn, Some(endpoint.0))?;
                starts.add(EarlierStart { endpoint, webhook, workspace, url, sent_at });
            }
        }
        if !any {
            return Ok(starts.all());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_any_number_of_starts_the_newest_of_each_endpoint_are_kept() {
        let start = |endpoint, nth| EarlierStart {
            endpoint: EndpointId(endpoint),
            webhook: None,
            workspace: None,
            url: None,
            sent_at: UnixTime(nth),
        };
        let (mut starts, many) = (NewestStarts::default(), 3 * u64::from(EXACT_MAX));
        // In an order that is neither that of the starts nor its reverse.
        for nth in (0..many).step_by(2).chain((1..many).step_by(2)) {
            starts.add(start(1, nth));
            assert!(starts.0[&EndpointId(1)].len() <= 2 * STARTS_MAX);
        }
        starts.add(start(2, 0));
        let mut kept = starts.all();
        kept.sort_by_key(|start| (start.endpoint, start.sent_at));
        let newest = (many - u64::from(EXACT_MAX)..many).map(|nth| start(1, nth));
        assert!(kept.into_iter().eq(newest.chain([start(2, 0)])));
    }
}
