//! Checkpoints the WAL into the database and begins it anew.
//!
//! # Invariants
//!
//! 1. A WAL beyond its limit is emptied at once: readers of ours are kept out for the moment.
//!    Without that, readers that take turns so that there is always one would let it grow for
//!    ever.
//! 2. Work waits for a reader no longer than [`READERS_PATIENCE`], and again only after
//!    [`AGAIN_AFTER`].
//!
//! Not here: readers of other processes, a backup for one, which nothing keeps out: the WAL grows
//! for as long as they read, and is cut afterwards.

use std::fs;
use std::sync::Arc;
use std::time::Duration;

use log::Level;
use rusqlite::Connection;
use weir_common::log::events;
use weir_common::time::Tick;

use crate::store::sqlite::pragmas::BUSY_TIMEOUT;
use crate::store::sqlite::wal::reader_gate::ReaderGate;

/// A log that is too long and cannot be emptied is tried again so soon.
const AGAIN_AFTER: Duration = Duration::from_secs(1);

/// Readers of ours are waited for, for so long: each reads for some milliseconds.
const READERS_PATIENCE: Duration = Duration::from_millis(100);

/// How long the log may be.
#[derive(Debug)]
pub(crate) struct WalLimit {
    gate: Arc<ReaderGate>,
    pub(crate) bytes_max: u64,
    /// How long readers of ours are waited for.
    pub(crate) patience: Duration,
    /// When it was too long and could not be emptied.
    failed: Option<Tick>,
}

impl WalLimit {
    pub(crate) fn of(bytes_max: u64) -> Self {
        Self { gate: Arc::default(), bytes_max, patience: READERS_PATIENCE, failed: None }
    }

    /// What readers of ours pass.
    pub(crate) fn gate(&self) -> Arc<ReaderGate> {
        Arc::clone(&self.gate)
    }

    /// Empties the log if it is too long, after `before`; `conn` is the writer's, and in no
    /// transaction.
    pub(crate) fn keep(&mut self, conn: &Connection, now: Tick, before: impl FnOnce()) {
        let failed = self.failed.is_some_and(|failed| now.since(failed) < AGAIN_AFTER);
        if failed || bytes(conn) <= self.bytes_max {
            return;
        }
        before();
        self.gate.while_empty(self.patience, || empty(conn));
        self.failed = (bytes(conn) > self.bytes_max).then_some(now);
    }
}

/// The length of a database's log.
fn bytes(conn: &Connection) -> u64 {
    let log = conn.path().map(|path| format!("{path}-wal"));
    log.and_then(|log| fs::metadata(log).ok()).map_or(0, |file| file.len())
}

/// Checkpoints the WAL and empties it, unless it is read.
pub(crate) fn empty(conn: &Connection) {
    // Work may come at any time: better leave the log long than wait for a reader.
    let _ = conn.busy_timeout(Duration::ZERO);
    let sql = "PRAGMA wal_checkpoint(TRUNCATE)";
    if let Err(error) = conn.query_row(sql, [], |_| Ok(())) {
        let cause = error.to_string();
        events::event(Level::Warn, "checkpoint failed", &[("cause", cause.into())]);
    }
    let _ = conn.busy_timeout(BUSY_TIMEOUT);
}
