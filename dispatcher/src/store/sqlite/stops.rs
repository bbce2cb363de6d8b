//! When webhooks were sent nothing, because they were paused or disabled.
//!
//! Invariant: of each webhook the latest [`STOPS_MAX`] are kept, as long as its row. Only what is
//! shown uses them; deadlines use the webhook's `paused_total`.

use rusqlite::Connection;
use weir_common::time::UnixTime;

use crate::domain::id::WebhookId;
use crate::domain::webhook::stop::Stop;
use crate::store::sqlite::error::Fault;
use crate::store::sqlite::rows::{self, at, count};

/// The most stops of a webhook that are kept: owners disable and enable as often as they like.
const STOPS_MAX: usize = 100;

const ENDED_AFTER: &str =
    "SELECT began_at, ended_at FROM stops WHERE webhook = ?1 AND ended_at > ?2 ORDER BY ended_at";

/// The ends of what is kept no longer.
const BEYOND: &str = "DELETE FROM stops WHERE webhook = ?1 AND ended_at IN \
    (SELECT ended_at FROM stops WHERE webhook = ?1 ORDER BY ended_at DESC LIMIT -1 OFFSET ?2)";

/// Records a stop that has ended.
pub(super) fn record(conn: &Connection, webhook: WebhookId, stop: Stop) -> Result<(), Fault> {
    let sql = "INSERT OR REPLACE INTO stops (webhook, ended_at, began_at) VALUES (?1, ?2, ?3)";
    conn.prepare_cached(sql)?.execute((webhook.0, at(stop.until), at(stop.from)))?;
    conn.prepare_cached(BEYOND)?.execute((webhook.0, count(STOPS_MAX)))?;
    Ok(())
}

/// The stops of a webhook that ended after `since`, oldest first.
pub(super) fn ended_after(
    conn: &Connection,
    webhook: WebhookId,
    since: UnixTime,
) -> Result<Vec<Stop>, Fault> {
    let mut query = conn.prepare_cached(ENDED_AFTER)?;
    let stops = query.query_map((webhook.0, at(since)), |row| {
        Ok(Stop { from: rows::time(row, "began_at")?, until: rows::time(row, "ended_at")? })
    })?;
    Ok(stops.collect::<rusqlite::Result<_>>()?)
}

/// Drops the stops of a webhook whose row is dropped.
pub(super) fn drop_all(conn: &Connection, webhook: i64) -> Result<(), Fault> {
    conn.prepare_cached("DELETE FROM stops WHERE webhook = ?1")?.execute([webhook])?;
    Ok(())
}
