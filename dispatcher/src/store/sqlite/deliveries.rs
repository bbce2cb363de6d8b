//! Deliveries as their owners see them, and how one of them begins anew.
//!
//! Invariant: a page looks at no more rows than [`EXAMINED_MAX`], however few of them match.

use std::sync::Arc;

use rusqlite::{Connection, OptionalExtension, Row};
use weir_common::time::UnixTime;

use super::fault::Fault;
use super::rows::{self, at, select_deliveries};
use super::webhooks;
use super::writer::Desk;
use crate::model::{Attempt, Delivery, DeliveryId, DeliveryState, WebhookId};
use crate::store::{Filter, Page};

/// Rows that one call looks at: some milliseconds.
const EXAMINED_MAX: usize = 5_000;

const NEWEST: &str =
    select_deliveries!("WHERE d.workspace = ?1 AND d.id < ?2 ORDER BY d.id DESC LIMIT ?3");

const NEWEST_FAILED: &str = select_deliveries!(
    "WHERE d.workspace = ?1 AND d.id < ?2 AND d.state = 2 ORDER BY d.id DESC LIMIT ?3"
);

const THIS: &str = select_deliveries!(
    "WHERE d.id = ?1 AND d.workspace = ?2 \
     AND EXISTS (SELECT 1 FROM webhooks w WHERE w.id = d.webhook AND w.gone_up_to IS NULL)"
);

const EVENT_NAME: &str = "SELECT name FROM events WHERE id = ?1";

const ATTEMPTS: &str =
    "SELECT number, started_at, took, outcome FROM attempts WHERE delivery = ?1 ORDER BY id";

const AHEAD: &str = "SELECT count(*) FROM (SELECT 1 FROM deliveries \
    WHERE webhook = ?1 AND state = 0 AND (due, id) < (?2, ?3) LIMIT ?4)";

/// A page of a workspace's deliveries, newest first.
pub(super) fn page(
    conn: &Connection,
    workspace: &str,
    filter: &Filter,
    after: Option<DeliveryId>,
    limit: usize,
) -> Result<Page<Delivery, DeliveryId>, Fault> {
    let mut items = Vec::new();
    let none = |items| Ok(Page { items, next: None });
    let Some(workspace) = rows::workspace_of(conn, workspace)? else { return none(items) };
    let alive = webhooks::alive(conn, workspace)?;
    if filter.webhook.is_some_and(|webhook| alive.binary_search(&webhook.0).is_err()) {
        return none(items);
    }
    let failed = filter.state == Some(DeliveryState::FailedPermanent);
    let mut query = conn.prepare_cached(if failed { NEWEST_FAILED } else { NEWEST })?;
    let before = after.map_or(i64::MAX, |id| id.0);
    let mut found = query.query((workspace, before, rows::count(EXAMINED_MAX)))?;
    let (mut examined, mut last) = (0, None);
    while let Some(row) = found.next()? {
        if items.len() == limit {
            return Ok(Page { items, next: last });
        }
        examined += 1;
        last = Some(DeliveryId(row.get("id")?));
        if matches(filter, row)? && alive.binary_search(&row.get("webhook")?).is_ok() {
            items.push(rows::delivery(row, event_name(conn, row)?)?);
        }
    }
    Ok(Page { items, next: last.filter(|_| examined == EXAMINED_MAX) })
}

/// Whether a delivery's row is meant.
pub(super) fn matches(filter: &Filter, row: &Row<'_>) -> Result<bool, Fault> {
    let created_at = rows::time(row, "created_at")?;
    let webhook = WebhookId(row.get("webhook")?);
    let (kind, state) = (rows::kind(row)?, rows::state(row)?);
    Ok(filter.state.is_none_or(|one| one == state)
        && filter.webhook.is_none_or(|one| one == webhook)
        && filter.kind.is_none_or(|one| one == kind)
        && filter.since.is_none_or(|since| since <= created_at)
        && filter.until.is_none_or(|until| created_at < until))
}

fn event_name(conn: &Connection, row: &Row<'_>) -> Result<Arc<str>, Fault> {
    let event: i64 = row.get("event")?;
    Ok(conn.prepare_cached(EVENT_NAME)?.query_row([event], |row| row.get(0))?)
}

/// One delivery of a workspace, unless its webhook is gone.
pub(super) fn one(
    conn: &Connection,
    workspace: &str,
    id: DeliveryId,
) -> Result<Option<Delivery>, Fault> {
    let Some(workspace) = rows::workspace_of(conn, workspace)? else { return Ok(None) };
    let mut query = conn.prepare_cached(THIS)?;
    let mut found = query.query((id.0, workspace))?;
    let Some(row) = found.next()? else { return Ok(None) };
    rows::delivery(row, event_name(conn, row)?).map(Some)
}

/// One delivery of a workspace and its attempts, oldest first.
pub(super) fn with_attempts(
    conn: &Connection,
    workspace: &str,
    id: DeliveryId,
) -> Result<Option<(Delivery, Vec<Attempt>)>, Fault> {
    let Some(delivery) = one(conn, workspace, id)? else { return Ok(None) };
    let mut attempts = Vec::new();
    let mut query = conn.prepare_cached(ATTEMPTS)?;
    let mut found = query.query([id.0])?;
    while let Some(row) = found.next()? {
        attempts.push(rows::attempt(row)?);
    }
    Ok(Some((delivery, attempts)))
}

/// How many deliveries of a webhook are due before this one.
pub(super) fn ahead_of(
    conn: &Connection,
    webhook: WebhookId,
    due: UnixTime,
    id: DeliveryId,
    most: usize,
) -> Result<usize, Fault> {
    let mut query = conn.prepare_cached(AHEAD)?;
    let row = (webhook.0, at(due), id.0, rows::count(most));
    let ahead = query.query_row(row, |row| rows::unsigned(row, 0))?;
    Ok(usize::try_from(ahead).unwrap_or(most))
}

/// Lets a delivery begin anew, and gives it as it is then.
pub(super) fn redeliver(
    desk: &mut Desk,
    workspace: &str,
    id: DeliveryId,
    now: UnixTime,
) -> Result<Option<Delivery>, Fault> {
    let Some(delivery) = one(&desk.conn, workspace, id)? else { return Ok(None) };
    begin_anew(desk, id, delivery.state, now)?;
    one(&desk.conn, workspace, id)
}

/// Puts a delivery, which stands in `state`, back to the beginning.
pub(super) fn begin_anew(
    desk: &mut Desk,
    id: DeliveryId,
    state: DeliveryState,
    now: UnixTime,
) -> Result<(), Fault> {
    let sql = "UPDATE deliveries SET state = 0, due = ?2, step = 0, first_attempt_at = NULL, \
        since = NULL, paused_before = 0, ended_at = NULL WHERE id = ?1";
    desk.conn.prepare_cached(sql)?.execute((id.0, at(now)))?;
    if state != DeliveryState::Waiting {
        desk.tally.waiting += 1;
    }
    Ok(())
}

/// The number of a delivery's event and whether it is there: for the sweep.
pub(super) fn event_of(conn: &Connection, id: i64) -> rusqlite::Result<Option<(i64, u8)>> {
    let sql = "SELECT event, state FROM deliveries WHERE id = ?1";
    let mut query = conn.prepare_cached(sql)?;
    query.query_row([id], |row| Ok((row.get(0)?, row.get(1)?))).optional()
}
