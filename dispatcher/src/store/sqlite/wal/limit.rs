//! Limits the size of the WAL: checkpoints it into the database and truncates it.
//!
//! # Invariants
//!
//! 1. A WAL beyond its limit is emptied at once, while new reads of ours wait. Otherwise reads that
//!    overlap without a gap would let it grow without limit.
//! 2. Work waits for readers at most [`READERS_WAIT_MAX`], and again only after [`AGAIN_AFTER`].
//!
//! Not here: readers of other processes, such as a backup, which cannot be made to wait: the WAL
//! grows while they read, and is truncated afterwards.

use std::fs;
use std::sync::Arc;
use std::time::Duration;

use rusqlite::Connection;
use weir_common::time::Tick;

use crate::store::sqlite::pragmas::BUSY_TIMEOUT;
use crate::store::sqlite::wal::checkpointer::log_failure;
use crate::store::sqlite::wal::reader_gate::ReaderGate;

/// The time until the retry, if the WAL is too long and cannot be emptied.
const AGAIN_AFTER: Duration = Duration::from_secs(1);

/// The longest wait for our readers: each reads for a few milliseconds.
const READERS_WAIT_MAX: Duration = Duration::from_millis(100);

/// The maximum length of the WAL, and when it was last exceeded.
#[derive(Debug)]
pub(crate) struct WalLimit {
    gate: Arc<ReaderGate>,
    pub(crate) bytes_max: u64,
    /// The longest wait for our readers.
    pub(crate) wait_max: Duration,
    /// When the WAL was too long and could not be emptied.
    failed: Option<Tick>,
}

impl WalLimit {
    pub(crate) fn of(bytes_max: u64) -> Self {
        Self { gate: Arc::default(), bytes_max, wait_max: READERS_WAIT_MAX, failed: None }
    }

    /// The gate that our readers pass.
    pub(crate) fn gate(&self) -> Arc<ReaderGate> {
        Arc::clone(&self.gate)
    }

    /// Calls `before` and empties the WAL, if it is too long; `conn` is the writer's, outside of a
    /// transaction.
    pub(crate) fn keep(&mut self, conn: &Connection, now: Tick, before: impl FnOnce()) {
        let failed = self.failed.is_some_and(|failed| now.since(failed) < AGAIN_AFTER);
        if failed || bytes(conn) <= self.bytes_max {
            return;
        }
        before();
        self.gate.while_empty(self.wait_max, || empty(conn));
        self.failed = (bytes(conn) > self.bytes_max).then_some(now);
    }
}

/// The length of a database's WAL.
fn bytes(conn: &Connection) -> u64 {
    let log = conn.path().map(|path| format!("{path}-wal"));
    log.and_then(|log| fs::metadata(log).ok()).map_or(0, |file| file.len())
}

/// Checkpoints the WAL and truncates it, unless it is read.
pub(crate) fn empty(conn: &Connection) {
    // Work may arrive at any time: a long WAL is better than a wait for a reader.
    let _ = conn.busy_timeout(Duration::ZERO);
    let sql = "PRAGMA wal_checkpoint(TRUNCATE)";
    if let Err(error) = conn.query_row(sql, [], |_| Ok(())) {
        log_failure(&error);
    }
    let _ = conn.busy_timeout(BUSY_TIMEOUT);
}
