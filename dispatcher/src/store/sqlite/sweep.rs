//! Drops what has been kept for long enough, and what belonged to webhooks that are gone.
//!
//! Invariant: an event stays for as long as a delivery needs it; one that nobody needs, for as
//! long as a delivered one would have, so that it is known when it is sent again.

use rusqlite::Connection;
use weir_common::time::UnixTime;

use super::deliveries;
use super::fault::Fault;
use super::rows::{self, at};
use super::writer::Desk;
use crate::model::DeliveryState;

pub(super) const ENDED: &str =
    "SELECT id FROM deliveries WHERE state = ?1 AND state > 0 AND ended_at < ?2 LIMIT ?3";

pub(super) const UNNEEDED: &str =
    "SELECT id FROM events WHERE needed_by = 0 AND created_at < ?1 LIMIT ?2";

pub(super) const GONE: &str = "SELECT id, workspace, gone_up_to, swept_to FROM webhooks \
    WHERE gone_up_to IS NOT NULL ORDER BY id LIMIT 1";

/// Deliveries of a deleted webhook have no index: its workspace's are gone through once.
pub(super) const OF_WORKSPACE: &str = "SELECT id, webhook FROM deliveries \
    WHERE workspace = ?1 AND id > ?2 AND id <= ?3 ORDER BY id LIMIT ?4";

/// Drops up to `limit` deliveries and events. Says whether there may be more.
pub(super) fn sweep(
    desk: &mut Desk,
    delivered_before: UnixTime,
    failed_before: UnixTime,
    limit: usize,
) -> Result<bool, Fault> {
    let mut left = limit;
    let ended = [
        (DeliveryState::Delivered, delivered_before),
        (DeliveryState::FailedPermanent, failed_before),
    ];
    for (state, before) in ended {
        let range = (state.code(), at(before), rows::count(left));
        let ids = ids(&desk.conn, ENDED, range)?;
        left = left.saturating_sub(ids.len());
        for id in ids {
            drop_delivery(desk, id)?;
        }
    }
    while left > 0 {
        let Some(looked) = sweep_gone(desk, left)? else { break };
        left = left.saturating_sub(looked);
    }
    let unneeded = ids(&desk.conn, UNNEEDED, (at(delivered_before), rows::count(left)))?;
    left = left.saturating_sub(unneeded.len());
    for id in unneeded {
        drop_event(&desk.conn, id)?;
    }
    Ok(left == 0)
}

fn ids(conn: &Connection, sql: &str, params: impl rusqlite::Params) -> Result<Vec<i64>, Fault> {
    let mut query = conn.prepare_cached(sql)?;
    let ids = query.query_map(params, |row| row.get(0))?.collect::<rusqlite::Result<_>>()?;
    Ok(ids)
}

/// Goes through deliveries for the first webhook that is gone, and says how many it looked at.
/// `None` where no webhook is gone.
fn sweep_gone(desk: &mut Desk, limit: usize) -> Result<Option<usize>, Fault> {
    let gone = desk
        .conn
        .prepare_cached(GONE)?
        .query_row([], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?)));
    let (webhook, workspace, up_to, swept_to): (i64, i64, i64, i64) = match gone {
        Ok(gone) => gone,
        Err(rusqlite::Error::QueryReturnedNoRows) => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    let mut query = desk.conn.prepare_cached(OF_WORKSPACE)?;
    let range = (workspace, swept_to, up_to, rows::count(limit));
    let found = query.query_map(range, |row| Ok((row.get(0)?, row.get(1)?)))?;
    let looked = found.collect::<rusqlite::Result<Vec<(i64, i64)>>>()?;
    drop(query);
    for (id, _) in looked.iter().filter(|(_, whose)| *whose == webhook) {
        drop_delivery(desk, *id)?;
    }
    if looked.len() < limit {
        desk.conn.prepare_cached("DELETE FROM webhooks WHERE id = ?1")?.execute([webhook])?;
    } else if let Some((last, _)) = looked.last() {
        let sql = "UPDATE webhooks SET swept_to = ?2 WHERE id = ?1";
        desk.conn.prepare_cached(sql)?.execute((webhook, last))?;
    }
    // The webhook's own row counts as well, so that a step is bounded whatever there is.
    Ok(Some(looked.len().max(1)))
}

/// Drops a delivery with its attempts, and its event where no other needs it.
fn drop_delivery(desk: &mut Desk, id: i64) -> Result<(), Fault> {
    let Some((event, state)) = deliveries::event_of(&desk.conn, id)? else { return Ok(()) };
    let conn = &desk.conn;
    conn.prepare_cached("DELETE FROM attempts WHERE delivery = ?1")?.execute([id])?;
    conn.prepare_cached("DELETE FROM deliveries WHERE id = ?1")?.execute([id])?;
    // Most have one delivery: to drop such a row at once spares its body being written again.
    let sql = "DELETE FROM events WHERE id = ?1 AND needed_by <= 1";
    if conn.prepare_cached(sql)?.execute([event])? == 0 {
        let sql = "UPDATE events SET needed_by = needed_by - 1 WHERE id = ?1";
        conn.prepare_cached(sql)?.execute([event])?;
    }
    if state == DeliveryState::Waiting.code() {
        desk.tally.waiting = desk.tally.waiting.saturating_sub(1);
    }
    Ok(())
}

fn drop_event(conn: &Connection, id: i64) -> Result<(), Fault> {
    conn.prepare_cached("DELETE FROM events WHERE id = ?1")?.execute([id])?;
    Ok(())
}
