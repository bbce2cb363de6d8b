//! Settings of connections: durability, memory, plans, the size of the WAL.

use std::sync::Arc;
use std::time::Duration;

use rusqlite::Connection;
use rusqlite::config::DbConfig;

use crate::store::sqlite::migrations;

/// The longest wait for another process that reads the database, such as a backup.
pub(super) const BUSY_TIMEOUT: Duration = Duration::from_secs(1);

/// Small: a commit writes every page that it touches, and narrow rows with indexes touch many.
const PAGE_BYTES: i64 = 4 * 1_024;

/// The writer's page cache, in KiB: enough for the hot ends of a few indexes. Four times as much
/// was no faster with ten million deliveries waiting.
const CACHE_KIB: i64 = 8 * 1_024;

/// A reader's page cache, in KiB.
const READER_CACHE_KIB: i64 = 4 * 1_024;

/// The WAL restarts at 32 MiB (8,192 pages of 4 KiB). Most of it has been copied by then.
pub(super) const CHECKPOINT_PAGES: u32 = 8_192;

/// A WAL that grew past this because of readers is truncated after its checkpoint. If copying
/// cannot keep up, it grows to twice the length at which it restarts.
pub(super) const LOG_BYTES_MAX: i64 = 96 * 1_024 * 1_024;

/// Called with each connection once it is set up.
pub(super) type ConnectionHook = Arc<dyn Fn(&mut Connection) -> rusqlite::Result<()> + Send + Sync>;

/// Does nothing.
pub(super) fn no_hook() -> ConnectionHook {
    Arc::new(|_: &mut Connection| Ok(()))
}

/// Sets up a connection for the writer, and migrates the tables to our version.
pub(super) fn prepare(conn: &mut Connection) -> rusqlite::Result<()> {
    prepare_any(conn, 128, CACHE_KIB)?;
    // The page size is fixed once the first table exists; the rest applies to this connection.
    conn.pragma_update(None, "page_size", PAGE_BYTES)?;
    conn.pragma_update(None, "journal_mode", "WAL")?;
    conn.pragma_update(None, "synchronous", "FULL")?;
    conn.pragma_update(None, "foreign_keys", false)?;
    // No memory mapping: a disk error there would be a signal that kills the process.
    conn.pragma_update(None, "mmap_size", 0)?;
    conn.pragma_update(None, "wal_autocheckpoint", CHECKPOINT_PAGES)?;
    conn.pragma_update(None, "journal_size_limit", LOG_BYTES_MAX)?;
    migrations::migrate(conn)
}

/// Sets up a connection that only reads.
pub(super) fn prepare_reader(conn: &Connection) -> rusqlite::Result<()> {
    prepare_any(conn, 64, READER_CACHE_KIB)
}

fn prepare_any(conn: &Connection, statements: usize, cache_kib: i64) -> rusqlite::Result<()> {
    conn.busy_timeout(BUSY_TIMEOUT)?;
    conn.set_prepared_statement_cache_capacity(statements);
    // Otherwise SQLite plans many statements anew for each new value, such as that of a LIMIT.
    conn.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true)?;
    conn.pragma_update(None, "temp_store", "MEMORY")?;
    conn.pragma_update(None, "cache_size", -cache_kib)
}
