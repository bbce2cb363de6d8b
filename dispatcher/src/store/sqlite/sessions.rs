//! Sessions of the dashboard.
//!
//! Invariant: a link opens one session, ever: its nonce is kept until the link has expired, also
//! when the session has ended.

use rusqlite::{Connection, OptionalExtension};
use weir_common::time::UnixTime;

use crate::domain::session::{Grant, NewSession, SESSIONS_MAX, SessionOpened};
use crate::store::sqlite::error::Fault;
use crate::store::sqlite::rows::{self, at};
use crate::store::sqlite::writer::session::WriteSession;

/// Opens a session, unless its link has opened one or the workspace has too many.
pub(super) fn open(
    session: &mut WriteSession,
    new: &NewSession,
    now: UnixTime,
) -> Result<SessionOpened, Fault> {
    let conn = &session.conn;
    let sql = "SELECT count(*) FROM (SELECT 1 FROM sessions WHERE workspace = ?1 AND ended = 0 \
        AND expires_at > ?2 LIMIT ?3)";
    let row = (&new.grant.workspace, at(now), rows::count(SESSIONS_MAX));
    let open: i64 = conn.prepare_cached(sql)?.query_row(row, |row| row.get(0))?;
    if open >= rows::count(SESSIONS_MAX) {
        return Ok(SessionOpened::TooMany);
    }
    let sql = "INSERT INTO sessions (id, link, workspace, record, expires_at, drop_at) \
        VALUES (?1, ?2, ?3, ?4, ?5, ?6) ON CONFLICT (link) DO NOTHING";
    let written = conn.prepare_cached(sql)?.execute((
        new.id,
        new.link.as_ref().map(|(nonce, _)| nonce.as_bytes()),
        &new.grant.workspace,
        record(&new.grant)?,
        at(new.expires_at),
        at(new.link.as_ref().map_or(new.expires_at, |(_, expires)| new.expires_at.max(*expires))),
    ))?;
    Ok(if written == 0 { SessionOpened::LinkUsed } else { SessionOpened::Open })
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

/// Ends a session.
pub(super) fn end(session: &mut WriteSession, id: &[u8; 32]) -> Result<(), Fault> {
    let sql = "UPDATE sessions SET ended = 1 WHERE id = ?1";
    session.conn.prepare_cached(sql)?.execute([id])?;
    Ok(())
}
