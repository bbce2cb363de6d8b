//! Sessions of the dashboard.
//!
//! Invariant: a link opens one session, ever: its nonce is kept until the link has expired, also
//! when the session has ended. Links are forgotten by steady time: a clock that is set forgets none.

use rusqlite::{Connection, OptionalExtension};
use weir_common::time::UnixTime;

use crate::domain::session::{Grant, NewSession, SESSIONS_MAX, SessionOpened};
use crate::store::sqlite::error::Fault;
use crate::store::sqlite::rows::{self, at};
use crate::store::sqlite::writer::session::WriteSession;

/// Of the token with most sessions of a workspace, the one that ends first: whoever opens many loses
/// their own.
const TO_END: &str = "SELECT id FROM sessions \
    WHERE workspace = ?1 AND ended = 0 AND expires_at > ?2 AND record ->> '$.issuer' = \
        (SELECT record ->> '$.issuer' FROM sessions \
         WHERE workspace = ?1 AND ended = 0 AND expires_at > ?2 \
         GROUP BY 1 ORDER BY count(*) DESC LIMIT 1) \
    ORDER BY expires_at LIMIT 1";

/// Opens a session, unless its link has opened one. Beyond [`SESSIONS_MAX`], another one ends.
pub(super) fn open(
    session: &mut WriteSession,
    new: &NewSession,
    now: UnixTime,
) -> Result<SessionOpened, Fault> {
    let conn = &session.conn;
    let expires = new.link.as_ref().map_or(now, |(_, expires)| *expires).max(new.expires_at);
    let drop_at = session.steady.now().plus(expires.since(now));
    let sql = "INSERT INTO sessions (id, link, workspace, record, expires_at, drop_at) \
        VALUES (?1, ?2, ?3, ?4, ?5, ?6) ON CONFLICT (link) DO NOTHING";
    let written = conn.prepare_cached(sql)?.execute((
        new.id,
        new.link.as_ref().map(|(nonce, _)| nonce.as_bytes()),
        &new.grant.workspace,
        record(&new.grant)?,
        at(new.expires_at),
        at(drop_at),
    ))?;
    if written == 0 {
        return Ok(SessionOpened::LinkUsed);
    }
    let sql = "SELECT count(*) FROM (SELECT 1 FROM sessions WHERE workspace = ?1 AND ended = 0 \
        AND expires_at > ?2 LIMIT ?3)";
    let row = (&new.grant.workspace, at(now), rows::count(SESSIONS_MAX + 1));
    let open: i64 = conn.prepare_cached(sql)?.query_row(row, |row| row.get(0))?;
    if open > rows::count(SESSIONS_MAX) {
        let row = (&new.grant.workspace, at(now));
        let ends: Option<[u8; 32]> =
            conn.prepare_cached(TO_END)?.query_row(row, |row| row.get(0)).optional()?;
        if let Some(id) = ends {
            end(session, &id)?;
        }
    }
    Ok(SessionOpened::Open)
}

fn record(grant: &Grant) -> Result<String, Fault> {
    serde_json::to_string(grant).map_err(|error| Fault::Damaged(error.to_string()))
}

/// What a session grants, unless it has ended.
pub(super) fn grant(
    conn: &Connection,
    id: &[u8; 32],
    now: UnixTime,
) -> Result<Option<Grant>, Fault> {
    let sql = "SELECT record FROM sessions WHERE id = ?1 AND ended = 0 AND expires_at > ?2";
    let mut query = conn.prepare_cached(sql)?;
    let record: Option<String> =
        query.query_row((id, at(now)), |row| row.get("record")).optional()?;
    // A record that cannot be read is that of another version: its owner signs in again.
    Ok(record.and_then(|record| serde_json::from_str(&record).ok()))
}

/// Whether a link has opened a session.
pub(super) fn link_used(conn: &Connection, nonce: &str) -> Result<bool, Fault> {
    let sql = "SELECT 1 FROM sessions WHERE link = ?1";
    Ok(conn.prepare_cached(sql)?.exists([nonce.as_bytes()])?)
}

/// Ends a session. The row of one without a link is not needed any more.
pub(super) fn end(session: &mut WriteSession, id: &[u8; 32]) -> Result<(), Fault> {
    let conn = &session.conn;
    conn.prepare_cached("DELETE FROM sessions WHERE id = ?1 AND link IS NULL")?.execute([id])?;
    conn.prepare_cached("UPDATE sessions SET ended = 1 WHERE id = ?1")?.execute([id])?;
    Ok(())
}
