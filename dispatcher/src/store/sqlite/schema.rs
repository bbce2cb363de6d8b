//! What marks a database as ours, and of which version; single values that it keeps by name.
//!
//! Invariant: a database of another program, or of a later version, is refused before it is
//! written to.
//!
//! Not here: the tables (`schema.sql`), how older ones become these (`migrations`). Deliveries'
//! numbers come from `counters`, so that none is ever given twice (`id_sequence`).

use rusqlite::{Connection, OptionalExtension};

use crate::store::sqlite::migrations::{APPLICATION_ID, VERSION};

/// Under this name: whether the last process recorded all it knew.
pub(super) const CLEAN_SHUTDOWN: &str = "clean_shutdown";

/// What a file turned out to be.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// Nothing yet, or a version that we know: go on.
    Ours,
    /// Another program's database.
    Foreign,
    /// Made by a later version of this program.
    Newer {
        /// What it has.
        version: i64,
        /// The last that we know.
        known: i64,
    },
}

/// Looks at a database without writing to it.
pub(super) fn look(conn: &Connection) -> rusqlite::Result<Found> {
    let number = |pragma: &str| conn.pragma_query_value(None, pragma, |row| row.get::<_, i64>(0));
    let (application, version) = (number("application_id")?, number("user_version")?);
    let any = conn.query_row("SELECT 1 FROM sqlite_schema LIMIT 1", [], |_| Ok(())).optional()?;
    Ok(match (application, any) {
        (0 | APPLICATION_ID, None) if version == 0 => Found::Ours,
        (APPLICATION_ID, _) if (1..=VERSION).contains(&version) => Found::Ours,
        (APPLICATION_ID, _) if version > VERSION => Found::Newer { version, known: VERSION },
        _ => Found::Foreign,
    })
}

/// A value by its name.
pub(super) fn meta(conn: &Connection, name: &str) -> rusqlite::Result<Option<Vec<u8>>> {
    conn.query_row("SELECT value FROM meta WHERE name = ?1", [name], |row| row.get(0)).optional()
}

/// Keeps a value under a name.
pub(super) fn set_meta(conn: &Connection, name: &str, value: &[u8]) -> rusqlite::Result<()> {
    let sql = "INSERT INTO meta VALUES (?1, ?2) ON CONFLICT DO UPDATE SET value = ?2";
    conn.execute(sql, (name, value)).map(|_| ())
}
