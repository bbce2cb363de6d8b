//! Deliveries for the API: lists, single deliveries, redelivery.
//!
//! # Invariants
//!
//! 1. A page by workspace, webhook, time range or `failed_permanent` is full unless it is the last.
//! 2. A page by other filters examines [`EXAMINED_MAX`] rows, however few of them match.
//! 3. A cursor is a key, which never changes: whatever comes, changes or goes between two pages
//!    makes no other delivery appear twice, and none go missing.
//! 4. However often a delivery is redelivered, [`ATTEMPTS_MAX`] of its attempts are read, and the
//!    earlier ones go at the next redelivery. Their starts stay for the endpoint's rate limit.

use std::sync::Arc;

use rusqlite::{Connection, OptionalExtension, Row};
use weir_common::time::UnixTime;

use crate::domain::attempt::RecordedAttempt;
use crate::domain::delivery::{Cursor, Delivery, DeliveryState};
use crate::domain::forecast::Upcoming;
use crate::domain::id::{DeliveryId, JobId, WebhookId};
use crate::store::sqlite::error::Fault;
use crate::store::sqlite::job_counts::Redelivered;
use crate::store::sqlite::listing::{Merged, RowKey};
use crate::store::sqlite::rows::{self, at, select_deliveries};
use crate::store::sqlite::selection::Selection;
use crate::store::sqlite::writer::session::WriteSession;
use crate::store::types::{Filter, Page, Paging};

/// Rows that one call examines: a few milliseconds of work.
const EXAMINED_MAX: usize = 5_000;

pub(super) const ROW: &str = select_deliveries!("WHERE d.id = ?1");

/// When the newest delivery up to a number was accepted.
const ACCEPTED: &str = "SELECT created_at FROM deliveries WHERE id <= ?1 ORDER BY id DESC LIMIT 1";

pub(super) const THIS: &str = select_deliveries!(
    "WHERE d.id = ?1 AND d.workspace = ?2 \
     AND EXISTS (SELECT 1 FROM webhooks w WHERE w.id = d.webhook AND w.deleted_up_to IS NULL)"
);

const EVENT_NAME: &str = "SELECT name FROM events WHERE id = ?1";

const ATTEMPTS: &str = "SELECT a.id, a.number, a.started_at, a.took, a.outcome, a.trace, l.url \
    FROM attempts a LEFT JOIN endpoints l ON l.id = a.endpoint \
    WHERE a.delivery = ?1 ORDER BY a.id DESC LIMIT ?2";

const TRANSCRIPT: &str =
    "SELECT record, length(record) AS bytes FROM transcripts WHERE attempt = ?1";

/// The latest attempts that a delivery shows, and keeps when it is redelivered: twenty schedules of
/// the default's length.
const ATTEMPTS_MAX: usize = 200;

/// The latest attempts of which a call reads transcripts, of some kilobytes each.
const TRANSCRIPTS_MAX: usize = 32;

/// The bytes of transcripts after which a call reads no more. As JSON they are twice as many at
/// most, and clients read responses of 1 MiB.
const TRANSCRIPTS_BYTES_MAX: u32 = 256 * 1024;

/// Earlier attempts that leave a delivery at once: some milliseconds of work.
const LEAVING_MAX: usize = 500;

/// The attempts before the latest ones, oldest first.
macro_rules! earlier {
    () => {
        "(SELECT id FROM attempts WHERE delivery = ?1 AND id <= \
         (SELECT id FROM attempts WHERE delivery = ?1 ORDER BY id DESC LIMIT 1 OFFSET ?2) \
         ORDER BY id LIMIT ?3)"
    };
}

const DROP_ANSWERS: &str = concat!("DELETE FROM transcripts WHERE attempt IN ", earlier!());

/// Parts attempts from their delivery, for their starts; they are over at the time of a parameter.
macro_rules! leave {
    ($over_at:literal) => {
        concat!(
            "UPDATE attempts SET (delivery, over_at, webhook, workspace) = (SELECT 0, ",
            $over_at,
            ", d.webhook, w.workspace FROM deliveries d \
             LEFT JOIN webhooks w ON w.id = d.webhook WHERE d.id = ?1) "
        )
    };
}

const LEAVE: &str = concat!(leave!("?4"), "WHERE id IN ", earlier!());

/// All attempts of a delivery.
pub(super) const LEAVE_ALL: &str = concat!(leave!("?2"), "WHERE delivery = ?1");

const NTH_DUE: &str = "SELECT due FROM deliveries WHERE webhook = ?1 AND state = 0 \
    ORDER BY due, id LIMIT 1 OFFSET ?2";

const UPCOMING: &str = "SELECT due, step, since, first_attempt_at, paused_before FROM deliveries \
    WHERE webhook = ?1 AND state = 0 ORDER BY due, id LIMIT ?2";

const AHEAD: &str = "SELECT count(*) FROM (SELECT 1 FROM deliveries \
    WHERE webhook = ?1 AND state = 0 AND (due, id) < (?2, ?3) LIMIT ?4)";

/// A page of a workspace's deliveries.
pub(super) fn page(
    conn: &Connection,
    workspace: &str,
    filter: &Filter,
    paging: Paging,
) -> Result<Page<Delivery, Cursor>, Fault> {
    let mut items = Vec::new();
    let none = |items| Ok(Page { items, next: None });
    let Some(workspace) = rows::workspace_of(conn, workspace)? else { return none(items) };
    let Some(selection) = Selection::of(conn, workspace, filter)? else { return none(items) };
    let webhooks = selection.webhooks(conn, workspace)?;
    let Paging { order, after, limit } = paging;
    let after = after.map(|cursor| key_of(conn, cursor)).transpose()?;
    let (read, span) = (selection.read(order), selection.span(order, after));
    let mut merged = Merged::of(conn, read, &webhooks, span, limit)?;
    let mut query = conn.prepare_cached(ROW)?;
    let mut last = None;
    for _ in 0..EXAMINED_MAX {
        let Some((created_at, id)) = merged.next()? else { return none(items) };
        if items.len() == limit {
            return Ok(Page { items, next: last });
        }
        let created_at = Some(UnixTime(created_at.max(0).cast_unsigned()));
        last = Some(Cursor { created_at, id: DeliveryId(id) });
        let mut found = query.query([id])?;
        if let Some(row) = found.next()?
            && selection.matches(row)?
        {
            match event_name(conn, row).and_then(|name| rows::delivery(row, name)) {
                Ok(delivery) => items.push(delivery),
                Err(fault) => fault.skip("delivery unreadable", ("delivery", id))?,
            }
        }
    }
    Ok(Page { items, next: last })
}

/// The key of a cursor, after which a page starts.
fn key_of(conn: &Connection, Cursor { created_at, id }: Cursor) -> rusqlite::Result<RowKey> {
    let time = match created_at {
        Some(created_at) => Some(at(created_at)),
        // If this delivery was dropped since, the next older one is used.
        None => conn.prepare_cached(ACCEPTED)?.query_row([id.0], |row| row.get(0)).optional()?,
    };
    Ok(time.map_or((i64::MIN, i64::MIN), |time| (time, id.0)))
}

fn event_name(conn: &Connection, row: &Row<'_>) -> Result<Arc<str>, Fault> {
    let event: i64 = row.get("event")?;
    Ok(conn.prepare_cached(EVENT_NAME)?.query_row([event], |row| row.get(0))?)
}

/// One delivery of a workspace, unless its webhook was deleted.
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

/// One delivery of a workspace and its latest attempts, oldest first.
pub(super) fn with_attempts(
    conn: &Connection,
    workspace: &str,
    id: DeliveryId,
) -> Result<Option<(Delivery, Vec<RecordedAttempt>)>, Fault> {
    let Some(delivery) = one(conn, workspace, id)? else { return Ok(None) };
    let (mut numbers, mut latest) = (Vec::<i64>::new(), Vec::new());
    let mut query = conn.prepare_cached(ATTEMPTS)?;
    let mut found = query.query((id.0, rows::count(ATTEMPTS_MAX)))?;
    while let Some(row) = found.next()? {
        let (attempt, url) = (rows::attempt(row)?, row.get("url")?);
        numbers.push(row.get("id")?);
        latest.push(RecordedAttempt { attempt, url, transcript: None });
    }
    let (mut query, mut bytes) = (conn.prepare_cached(TRANSCRIPT)?, 0);
    for (number, attempt) in numbers.iter().zip(&mut latest).take(TRANSCRIPTS_MAX) {
        let mut found = query.query([number])?;
        let Some(row) = found.next()? else { continue };
        bytes += row.get::<_, u32>("bytes")?;
        if bytes > TRANSCRIPTS_BYTES_MAX {
            break;
        }
        attempt.transcript = Some(rows::transcript(row)?);
    }
    latest.reverse();
    Ok(Some((delivery, latest)))
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

/// When the delivery of a webhook is due that is due `nth`, counted from 0.
pub(super) fn nth_due(
    conn: &Connection,
    webhook: WebhookId,
    nth: usize,
) -> Result<Option<UnixTime>, Fault> {
    let mut query = conn.prepare_cached(NTH_DUE)?;
    let due = query.query_row((webhook.0, rows::count(nth)), |row| rows::time(row, "due"));
    Ok(due.optional()?)
}

/// The deliveries of a webhook that are due first.
pub(super) fn upcoming(
    conn: &Connection,
    webhook: WebhookId,
    limit: usize,
) -> Result<Vec<Upcoming>, Fault> {
    let mut query = conn.prepare_cached(UPCOMING)?;
    let mut found = query.query((webhook.0, rows::count(limit)))?;
    let mut upcoming = Vec::new();
    while let Some(row) = found.next()? {
        upcoming.push(Upcoming {
            due: rows::time(row, "due")?,
            step: row.get("step")?,
            since: rows::time_or(row, "since")?,
            first_attempt_at: rows::time_or(row, "first_attempt_at")?,
            paused_before: rows::duration(row, "paused_before")?,
        });
    }
    Ok(upcoming)
}

/// Queues a delivery again, and returns its new state.
pub(super) fn redeliver(
    session: &mut WriteSession,
    workspace: &str,
    id: DeliveryId,
    now: UnixTime,
) -> Result<Option<Delivery>, Fault> {
    if one(&session.conn, workspace, id)?.is_none() {
        return Ok(None);
    }
    requeue(session, id, None, now)?;
    one(&session.conn, workspace, id)
}

/// Makes a delivery wait with a new schedule, for a job or for its own sake.
pub(super) fn requeue(
    session: &mut WriteSession,
    id: DeliveryId,
    job: Option<JobId>,
    now: UnixTime,
) -> Result<(), Fault> {
    let Some(before) = links(&session.conn, id.0)? else { return Ok(()) };
    if let Some(counted) = before.redelivered {
        counted.moved(&session.conn, before.state, None)?;
    }
    let sql = "UPDATE deliveries SET state = 0, due = ?2, step = 0, first_attempt_at = NULL, \
        since = NULL, paused_before = 0, ended_at = NULL, over_at = NULL, job = ?3, \
        redeliveries = redeliveries + 1 WHERE id = ?1";
    session.conn.prepare_cached(sql)?.execute((id.0, at(now), job.map(|job| job.0)))?;
    if before.state != DeliveryState::Waiting {
        session.counters.waiting += 1;
    }
    drop_earlier(session, id, now)
}

/// Drops a delivery's attempts before the latest ones, but for their starts.
fn drop_earlier(session: &WriteSession, id: DeliveryId, now: UnixTime) -> Result<(), Fault> {
    let (kept, most) = (rows::count(ATTEMPTS_MAX), rows::count(LEAVING_MAX));
    // Of those that leave, no delivery would drop the transcripts.
    session.conn.prepare_cached(DROP_ANSWERS)?.execute((id.0, kept, most))?;
    let row = (id.0, kept, most, at(session.steady.of_unix(now)));
    session.conn.prepare_cached(LEAVE)?.execute(row)?;
    Ok(())
}

/// A delivery's state, and the rows that count it.
pub(super) struct Links {
    pub(super) event: i64,
    pub(super) state: DeliveryState,
    pub(super) redelivered: Option<Redelivered>,
}

/// The state of a delivery of any workspace, and the rows that count it.
pub(super) fn links(conn: &Connection, id: i64) -> Result<Option<Links>, Fault> {
    let sql = "SELECT event, state, job, webhook FROM deliveries WHERE id = ?1";
    let mut query = conn.prepare_cached(sql)?;
    let mut found = query.query([id])?;
    let Some(row) = found.next()? else { return Ok(None) };
    let redelivered = Redelivered::of(row)?;
    Ok(Some(Links { event: row.get("event")?, state: rows::state(row)?, redelivered }))
}
