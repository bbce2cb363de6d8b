//! Folds the log of changes into the database and begins it anew.
//!
//! # Invariants
//!
//! 1. A log beyond its bound is emptied at once, whoever of ours reads: they are kept out for the
//!    moment. Without that, readers that take turns so that there is always one would let it grow
//!    for ever.
//! 2. Work waits for a reader no longer than [`READERS_PATIENCE`], and again only after
//!    [`AGAIN_AFTER`].
//!
//! Not here: readers of other processes, a backup for one, whom nobody keeps out: the log grows
//! for as long as they read, and is cut afterwards.

use std::fs;
use std::sync::Arc;
use std::time::Duration;

use log::Level;
use rusqlite::Connection;
use weir_common::log::events;
use weir_common::time::Tick;

use crate::store::sqlite::pragmas::BUSY_TIMEOUT;
use crate::store::sqlite::wal::reader_gate::Door;

/// A log that is too long and cannot be emptied is tried again so soon.
const AGAIN_AFTER: Duration = Duration::from_secs(1);

/// Readers of ours are waited for, for so long: each looks for some milliseconds.
const READERS_PATIENCE: Duration = Duration::from_millis(100);

/// How long the log may be.
#[derive(Debug)]
pub(crate) struct Bound {
    door: Arc<Door>,
    bytes_max: u64,
    patience: Duration,
    /// When it was too long and could not be emptied.
    failed: Option<Tick>,
}

impl Bound {
    pub(crate) fn of(bytes_max: u64) -> Self {
        Self { door: Arc::default(), bytes_max, patience: READERS_PATIENCE, failed: None }
    }

    /// What readers of ours come in by.
    pub(crate) fn door(&self) -> Arc<Door> {
        Arc::clone(&self.door)
    }

    /// Empties the log if it is too long, after `before`; `conn` is the writer's, and in no
    /// transaction.
    pub(crate) fn keep(&mut self, conn: &Connection, now: Tick, before: impl FnOnce()) {
        let failed = self.failed.is_some_and(|failed| now.since(failed) < AGAIN_AFTER);
        if failed || bytes(conn) <= self.bytes_max {
            return;
        }
        before();
        self.door.while_empty(self.patience, || empty(conn));
        self.failed = (bytes(conn) > self.bytes_max).then_some(now);
    }

    #[cfg(test)]
    pub(crate) fn bound(&mut self, bytes_max: u64, patience: Duration) {
        (self.bytes_max, self.patience) = (bytes_max, patience);
    }
}

/// The length of a database's log.
fn bytes(conn: &Connection) -> u64 {
    let log = conn.path().map(|path| format!("{path}-wal"));
    log.and_then(|log| fs::metadata(log).ok()).map_or(0, |file| file.len())
}

/// Folds the log into the database and empties it, unless somebody reads it.
pub(crate) fn empty(conn: &Connection) {
    // Work may come at any time: better leave the log long than wait for a reader.
    let _ = conn.busy_timeout(Duration::ZERO);
    let sql = "PRAGMA wal_checkpoint(TRUNCATE)";
    if let Err(error) = conn.query_row(sql, [], |_| Ok(())) {
        let cause = error.to_string();
        events::event(Level::Warn, "store_checkpoint_failed", &[("cause", cause.into())]);
    }
    let _ = conn.busy_timeout(BUSY_TIMEOUT);
}
