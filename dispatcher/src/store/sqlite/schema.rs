//! The marks of our databases and their version; single values by name (the table `meta`).
//!
//! Invariant: a database of another program, or of a later version, is refused before it is
//! written to.
//!
//! Not here: the tables (`schema.sql`), migrations of older ones (`migrations`). Numbers of
//! deliveries come from `counters`, so that none is assigned twice (`id_sequence`).

use std::collections::BTreeSet;

use rusqlite::{Connection, OptionalExtension};

use crate::store::sqlite::migrations::{self, APPLICATION_ID, VERSION};

/// The name of a `meta` value: whether the last process recorded everything before it ended.
pub(super) const CLEAN_SHUTDOWN: &str = "clean_shutdown";

/// What a file contains.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// Nothing yet, or a version that this program knows.
    Ours,
    /// Another program's database.
    Foreign,
    /// One of ours without this table.
    Incomplete {
        /// Its name.
        table: &'static str,
    },
    /// Made by a later version of this program.
    Newer {
        /// Its schema version.
        version: i64,
        /// The latest version that this program knows.
        known: i64,
    },
}

/// Examines a database without writing to it.
pub(super) fn look(conn: &Connection) -> rusqlite::Result<Found> {
    let number = |pragma: &str| conn.pragma_query_value(None, pragma, |row| row.get::<_, i64>(0));
    let (application, version) = (number("application_id")?, number("user_version")?);
    let any = conn.query_row("SELECT 1 FROM sqlite_schema LIMIT 1", [], |_| Ok(())).optional()?;
    Ok(match (application, any) {
        (0 | APPLICATION_ID, None) if version == 0 => Found::Ours,
        (APPLICATION_ID, _) if version == VERSION => match missing(conn)? {
            Some(table) => Found::Incomplete { table },
            None => Found::Ours,
        },
        (APPLICATION_ID, _) if (1..VERSION).contains(&version) => Found::Ours,
        (APPLICATION_ID, _) if version > VERSION => Found::Newer { version, known: VERSION },
        _ => Found::Foreign,
    })
}

/// A table that a database of [`VERSION`] does not have, though it must.
fn missing(conn: &Connection) -> rusqlite::Result<Option<&'static str>> {
    let mut query = conn.prepare("SELECT name FROM sqlite_schema WHERE type = 'table'")?;
    let found = query.query_map([], |row| row.get::<_, String>(0))?;
    let found: BTreeSet<String> = found.collect::<rusqlite::Result<_>>()?;
    Ok(migrations::tables().find(|table| !found.contains(*table)))
}

/// Returns a value by its name.
pub(super) fn meta(conn: &Connection, name: &str) -> rusqlite::Result<Option<Vec<u8>>> {
    conn.query_row("SELECT value FROM meta WHERE name = ?1", [name], |row| row.get(0)).optional()
}

/// Stores a value under a name.
pub(super) fn set_meta(conn: &Connection, name: &str, value: &[u8]) -> rusqlite::Result<()> {
    let sql = "INSERT INTO meta VALUES (?1, ?2) ON CONFLICT DO UPDATE SET value = ?2";
    conn.execute(sql, (name, value)).map(|_| ())
}
