//! Sessions of the dashboard.
//!
//! Invariant: a link opens one session, ever: its nonce is kept until the link has expired, also
//! when the session has ended. Links are forgotten by steady time: a clock that is set forgets
//! none.

use std::collections::HashMap;

use rusqlite::{Connection, OptionalExtension};
use weir_common::time::UnixTime;

use crate::domain::session::{Grant, Issuer, NewSession, SESSIONS_MAX, SessionOpened};
use crate::store::sqlite::error::Fault;
use crate::store::sqlite::rows::{self, at};
use crate::store::sqlite::writer::session::WriteSession;

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
    if let Some(id) = too_many(conn, &new.grant.workspace, now)? {
        end(session, &id)?;
    }
    Ok(SessionOpened::Open)
}

/// The session that ends where a workspace has more than [`SESSIONS_MAX`]: of the token that has
/// most, the one that expires first. A token that opens many loses its own.
fn too_many(conn: &Connection, workspace: &str, now: UnixTime) -> Result<Option<[u8; 32]>, Fault> {
    let sql = "SELECT id, record, expires_at FROM sessions \
        WHERE workspace = ?1 AND ended = 0 AND expires_at > ?2";
    let mut query = conn.prepare_cached(sql)?;
    let mut found = query.query((workspace, at(now)))?;
    let mut by_issuer: HashMap<Option<Issuer>, Vec<(UnixTime, [u8; 32])>> = HashMap::new();
    while let Some(row) = found.next()? {
        let record: String = row.get("record")?;
        let grant: Option<Grant> = serde_json::from_str(&record).ok();
        let session = (rows::time(row, "expires_at")?, row.get("id")?);
        by_issuer.entry(grant.map(|grant| grant.issuer)).or_default().push(session);
    }
    if by_issuer.values().map(Vec::len).sum::<usize>() <= SESSIONS_MAX {
        return Ok(None);
    }
    let most = by_issuer.into_values().max_by_key(Vec::len);
    Ok(most.into_iter().flatten().min().map(|(_, id)| id))
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
    // It leaves its workspace, which would otherwise read it whenever another one opens.
    let sql = "UPDATE sessions SET ended = 1, workspace = '' WHERE id = ?1";
    conn.prepare_cached(sql)?.execute([id])?;
    Ok(())
}
