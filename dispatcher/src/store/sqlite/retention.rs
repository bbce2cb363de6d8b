//! Drops deliveries and events after their retention, and deliveries of deleted webhooks.
//!
//! # Invariants
//!
//! 1. An event is kept while a delivery needs it; one without deliveries is kept for the retention
//!    of delivered ones, so that a duplicate is recognised.
//! 2. Only rows that are dropped are read, and no kind of row delays another.
//! 3. Starts of attempts outlive their deliveries: an endpoint's rate limit survives its webhooks
//!    and a restart.
//! 4. Rows without a setting (ended jobs, keys of finished mails, unused endpoints) are dropped
//!    after [`KEPT`]; not the newest endpoint, whose number would be given again.
//! 5. Retention uses steady time: a clock that is set drops nothing.
//! 6. Transcripts and waiting deliveries of a deleted webhook are dropped without retention, then
//!    its row. Its ended deliveries are hidden, and dropped after their retention.
//! 7. Hours of activity expire by the wall clock, as they began.
//! 8. A transcript is dropped before its attempt, and after a retention of its own.

use std::time::Duration;

use rusqlite::{Connection, OptionalExtension, Row};
use weir_common::limit::rolling::WINDOW_MAX;
use weir_common::time::UnixTime;

use crate::config::settings::Retention;
use crate::domain::delivery::DeliveryState;
use crate::store::sqlite::error::Fault;
use crate::store::sqlite::rows::{self, at};
use crate::store::sqlite::steady_clock::before;
use crate::store::sqlite::writer::session::WriteSession;
use crate::store::sqlite::{deliveries, stops, webhooks};

/// A month. No rate-limit window is longer: an endpoint that was unused for this long has no start
/// that still counts. The result of a job is available for as long.
const KEPT: Duration = WINDOW_MAX;

/// The interval of storing steady time: well below `DOWNTIME_MAX`, so that a crash loses none.
const NOTED_EVERY: Duration = Duration::from_secs(600);

const ENDED: &str = "SELECT id FROM deliveries \
    WHERE state = ?1 AND state > 0 AND coalesce(over_at, ended_at) < ?2 LIMIT ?3";

const UNNEEDED: &str =
    "SELECT id FROM events WHERE delivery_refs = 0 AND coalesce(over_at, created_at) < ?1 LIMIT ?2";

/// Makes an event with one delivery left one without.
const FORGET_BODY: &str =
    "UPDATE events SET delivery_refs = 0, body = x'' WHERE id = ?1 AND delivery_refs <= 1";

const DROP_EVENT: &str = "DELETE FROM events WHERE id = ?1 AND delivery_refs <= 1";

const DELETED: &str =
    "SELECT id, endpoint FROM webhooks WHERE deleted_up_to IS NOT NULL ORDER BY id LIMIT 1";

const WAITING: &str = "SELECT id FROM deliveries WHERE webhook = ?1 AND state = 0 LIMIT ?2";

const ANSWERED: &str = "SELECT attempt FROM transcripts WHERE webhook = ?1 LIMIT ?2";

/// The oldest transcripts: a query that finds them, one that drops a row.
const ANSWERS: (&str, &str) = (
    "SELECT attempt AS id, over_at FROM transcripts \
     WHERE attempt > 0 ORDER BY attempt LIMIT ?1",
    DROP_ANSWER,
);

const DROP_ANSWER: &str = "DELETE FROM transcripts WHERE attempt = ?1";

/// The oldest attempts that are stored without a delivery (`DeliveryId::NONE`), for their
/// start only.
const ORPHANS: (&str, &str) = (
    "SELECT id, coalesce(over_at, started_at) AS over_at FROM attempts \
     WHERE delivery = 0 ORDER BY id LIMIT ?1",
    "DELETE FROM attempts WHERE id = ?1",
);

/// Rows that are dropped [`KEPT`] after they ended: a query that finds them, those that drop one.
const OVER: [(&str, &[&str]); 3] = [
    (
        "SELECT id FROM jobs WHERE ended_at IS NOT NULL AND coalesce(over_at, ended_at) < ?1 \
         LIMIT ?2",
        &["DELETE FROM job_webhooks WHERE job = ?1", "DELETE FROM jobs WHERE id = ?1"],
    ),
    ("SELECT id FROM mails WHERE over_at < ?1 LIMIT ?2", &["DELETE FROM mails WHERE id = ?1"]),
    (
        "SELECT id FROM endpoints \
         WHERE unused_since < ?1 AND id < (SELECT max(id) FROM endpoints) LIMIT ?2",
        &["DELETE FROM endpoints WHERE id = ?1"],
    ),
];

/// Sessions that have expired, by steady time, and hours that no chart shows: statements that drop
/// some.
const EXPIRED: [(&str, Duration); 2] = [
    (
        "DELETE FROM sessions WHERE id IN (SELECT id FROM sessions WHERE drop_at < ?1 LIMIT ?2)",
        Duration::ZERO,
    ),
    (
        "DELETE FROM activity WHERE (hour, webhook) IN \
         (SELECT hour, webhook FROM activity WHERE hour < ?1 / 3600000000 LIMIT ?2)",
        ACTIVITY_KEPT,
    ),
];

/// Charts show a day.
const ACTIVITY_KEPT: Duration = Duration::from_secs(2 * 86_400);

/// A kind of row to drop, with the time before which it must have ended.
#[derive(Clone, Copy)]
enum Kind {
    Ended(DeliveryState, UnixTime),
    Deleted,
    Unneeded(UnixTime),
    Started(UnixTime),
    Answers(UnixTime),
    Over(UnixTime),
    /// By steady time and by the wall clock, as those rows have it.
    Expired([UnixTime; 2]),
}

/// Drops up to `limit` rows, not counting attempts and events that go with a delivery. Returns
/// whether there may be more.
pub(super) fn sweep(
    session: &mut WriteSession,
    retention: &Retention,
    now: UnixTime,
    limit: usize,
) -> Result<bool, Fault> {
    let unix = now;
    let now = session.steady.of_unix(now);
    let delivered_before = before(now, retention.delivered);
    store_steady_time(session);
    let kinds = [
        Kind::Ended(DeliveryState::Delivered, delivered_before),
        Kind::Ended(DeliveryState::FailedPermanent, before(now, retention.failed)),
        Kind::Deleted,
        Kind::Unneeded(delivered_before),
        Kind::Started(delivered_before),
        Kind::Answers(before(now, retention.answers)),
        Kind::Over(before(now, KEPT)),
        Kind::Expired([now, unix]),
    ];
    let share = (limit / kinds.len()).max(1);
    let mut left = limit;
    // Each kind gets a share; then the kinds use what is left of the limit, in order.
    for most in [share, limit] {
        for kind in kinds {
            let dropped = drop_some(session, kind, most.min(left), now)?;
            left = left.saturating_sub(dropped);
        }
    }
    Ok(left == 0)
}

/// Updates the stored steady time every [`NOTED_EVERY`].
fn store_steady_time(session: &mut WriteSession) {
    let now = session.steady.now();
    if now.since(session.counters.steady.0) >= NOTED_EVERY {
        session.counters.steady = (now, session.clock.now().unix);
    }
}

/// Drops up to `most` rows of a kind, and returns their number.
fn drop_some(
    session: &mut WriteSession,
    kind: Kind,
    most: usize,
    now: UnixTime,
) -> Result<usize, Fault> {
    match kind {
        Kind::Ended(state, before) => {
            let range = (state.code(), at(before), rows::count(most));
            drop_deliveries(session, &ids(&session.conn, ENDED, range)?, now)
        }
        Kind::Deleted => drop_deleted(session, most, now),
        Kind::Unneeded(before) => {
            let unneeded = ids(&session.conn, UNNEEDED, (at(before), rows::count(most)))?;
            for id in &unneeded {
                session.conn.prepare_cached(DROP_EVENT)?.execute([id])?;
            }
            Ok(unneeded.len())
        }
        Kind::Started(before) => drop_aged(&session.conn, ORPHANS, before, most),
        Kind::Answers(before) => drop_aged(&session.conn, ANSWERS, before, most),
        Kind::Over(before) => drop_over(&session.conn, before, most),
        Kind::Expired(clocks) => drop_expired(&session.conn, clocks, most),
    }
}

fn ids(conn: &Connection, sql: &str, params: impl rusqlite::Params) -> Result<Vec<i64>, Fault> {
    let mut query = conn.prepare_cached(sql)?;
    let ids = query.query_map(params, |row| row.get(0))?.collect::<rusqlite::Result<_>>()?;
    Ok(ids)
}

/// Drops transcripts and waiting deliveries of deleted webhooks, and deleted webhooks that have
/// none.
fn drop_deleted(session: &mut WriteSession, most: usize, now: UnixTime) -> Result<usize, Fault> {
    let mut left = most;
    while left > 0 {
        let both = |row: &Row<'_>| Ok((row.get("id")?, row.get("endpoint")?));
        let gone = session.conn.prepare_cached(DELETED)?.query_row([], both).optional()?;
        let Some((webhook, endpoint)): Option<(i64, i64)> = gone else { break };
        for attempt in ids(&session.conn, ANSWERED, (webhook, rows::count(left)))? {
            session.conn.prepare_cached(DROP_ANSWER)?.execute([attempt])?;
            left -= 1;
        }
        let waiting = ids(&session.conn, WAITING, (webhook, rows::count(left)))?;
        left = left.saturating_sub(drop_deliveries(session, &waiting, now)?);
        // Fewer than the limit were found: no delivery waits any more.
        if left > 0 {
            session
                .conn
                .prepare_cached("DELETE FROM webhooks WHERE id = ?1")?
                .execute([webhook])?;
            stops::drop_all(&session.conn, webhook)?;
            webhooks::mark_unused(session, endpoint)?;
            left -= 1;
        }
    }
    Ok(most - left)
}

fn drop_deliveries(session: &mut WriteSession, ids: &[i64], now: UnixTime) -> Result<usize, Fault> {
    for id in ids {
        drop_delivery(session, *id, now)?;
    }
    Ok(ids.len())
}

/// Drops a delivery and its attempts. If no other delivery needs its event, that is dropped too;
/// one that was never sent is from then on an event without deliveries.
fn drop_delivery(session: &mut WriteSession, id: i64, now: UnixTime) -> Result<(), Fault> {
    let Some(delivery) = deliveries::links(&session.conn, id)? else { return Ok(()) };
    let (event, waits) = (delivery.event, delivery.state == DeliveryState::Waiting);
    let conn = &session.conn;
    let sql = "DELETE FROM transcripts \
        WHERE attempt IN (SELECT id FROM attempts WHERE delivery = ?1)";
    conn.prepare_cached(sql)?.execute([id])?;
    if waits {
        conn.prepare_cached(deliveries::LEAVE_ALL)?.execute((id, at(now)))?;
    } else {
        conn.prepare_cached("DELETE FROM attempts WHERE delivery = ?1")?.execute([id])?;
    }
    conn.prepare_cached("DELETE FROM deliveries WHERE id = ?1")?.execute([id])?;
    // Most events have one delivery: what becomes of the row avoids rewriting its body.
    let last = if waits { FORGET_BODY } else { DROP_EVENT };
    if conn.prepare_cached(last)?.execute([event])? == 0 {
        let sql = "UPDATE events SET delivery_refs = delivery_refs - 1 WHERE id = ?1";
        conn.prepare_cached(sql)?.execute([event])?;
    }
    if waits {
        if let Some(counted) = delivery.redelivered {
            counted.moved(conn, delivery.state, None)?;
        }
        session.counters.waiting = session.counters.waiting.saturating_sub(1);
    }
    Ok(())
}

/// Drops rows of [`ORPHANS`] or [`ANSWERS`] that ended before `before`.
fn drop_aged(
    conn: &Connection,
    (find, drop): (&str, &str),
    before: UnixTime,
    most: usize,
) -> Result<usize, Fault> {
    let mut query = conn.prepare_cached(find)?;
    let all = query.query_map([rows::count(most)], |row| {
        Ok((row.get::<_, i64>("id")?, rows::time(row, "over_at")?))
    })?;
    let mut dropped = 0;
    for one in all.collect::<rusqlite::Result<Vec<_>>>()? {
        // Rows are nearly in the order of their age: the rows after a young one can wait.
        let (id, over_at) = one;
        if over_at >= before {
            break;
        }
        conn.prepare_cached(drop)?.execute([id])?;
        dropped += 1;
    }
    Ok(dropped)
}

/// Drops jobs, mails and endpoints that ended before `before`.
fn drop_over(conn: &Connection, before: UnixTime, most: usize) -> Result<usize, Fault> {
    let mut left = most;
    for (find, drop) in OVER {
        for id in ids(conn, find, (at(before), rows::count(left)))? {
            for sql in drop {
                conn.prepare_cached(sql)?.execute([id])?;
            }
            left -= 1;
        }
    }
    Ok(most - left)
}

/// Drops rows of [`EXPIRED`].
fn drop_expired(conn: &Connection, clocks: [UnixTime; 2], most: usize) -> Result<usize, Fault> {
    let mut left = most;
    for ((drop, kept), now) in EXPIRED.into_iter().zip(clocks) {
        let row = (at(before(now, kept)), rows::count(left));
        left -= conn.prepare_cached(drop)?.execute(row)?;
    }
    Ok(most - left)
}
