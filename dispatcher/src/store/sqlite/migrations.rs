//! Brings a database to the schema of this program: a new one at once, an older one step by step.
//!
//! # Invariants
//!
//! 1. A migration that has been released never changes (`tests` has its fingerprint); a change of
//!    the schema is one more file at the end, and the same change in `schema.sql`.
//! 2. Each step is one transaction together with the number that it leads to: a process that is
//!    killed in between leaves a database of one version or of the next.
//!
//! Not here: what is not ours, or of a later version, which is refused before (`schema`).

use log::Level;
use rusqlite::Connection;
use weir_common::log::events;

/// Marks a SQLite file as ours: `weir` in ASCII.
pub(super) const APPLICATION_ID: i64 = 0x7765_6972;

/// Each makes the tables of one version into those of the next; the first, those of version 1.
pub(super) const MIGRATIONS: [&str; 4] = [
    include_str!("migrations/001_first.sql"),
    include_str!("migrations/002_what_is_over.sql"),
    include_str!("migrations/003_order_and_age.sql"),
    include_str!("migrations/004_plain_words.sql"),
];

/// The tables of the last version.
const SCHEMA: &str = include_str!("schema.sql");

/// The version that this program works with.
pub(super) const VERSION: i64 = MIGRATIONS.len() as i64;

/// Brings the tables to [`VERSION`].
pub(super) fn migrate(conn: &mut Connection) -> rusqlite::Result<()> {
    let found: i64 = conn.pragma_query_value(None, "user_version", |row| row.get(0))?;
    if found == 0 {
        return step(conn, SCHEMA, VERSION);
    }
    for (version, sql) in (1..).zip(MIGRATIONS).skip_while(|(version, _)| *version <= found) {
        step(conn, sql, version)?;
        let fields = [("version", version.into()), ("found", found.into())];
        events::event(Level::Info, "database schema migrated", &fields);
    }
    Ok(())
}

fn step(conn: &mut Connection, sql: &str, version: i64) -> rusqlite::Result<()> {
    let change = conn.transaction()?;
    change.execute_batch(sql)?;
    change.pragma_update(None, "application_id", APPLICATION_ID)?;
    change.pragma_update(None, "user_version", version)?;
    change.commit()
}
