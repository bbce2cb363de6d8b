//! How much there is: kept, so that no statement counts.
//!
//! Invariant: what is on disk is written in the transaction that changes what it counts.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use rusqlite::Connection;
use weir_common::time::UnixTime;

use crate::store::sqlite::rows;

/// How much there is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::store::sqlite) struct Counters {
    /// Deliveries that wait.
    pub(in crate::store::sqlite) waiting: u64,
    /// Webhooks that are not deleted.
    pub(in crate::store::sqlite) webhooks: u64,
    /// The number of the newest delivery.
    pub(in crate::store::sqlite) deliveries_made: i64,
    /// The number of the newest webhook.
    pub(in crate::store::sqlite) webhooks_made: i64,
    /// Steady time, and what the wall clock showed then.
    pub(in crate::store::sqlite) steady: (UnixTime, UnixTime),
}

impl Counters {
    pub(in crate::store::sqlite) fn write(&self, conn: &Connection) -> rusqlite::Result<()> {
        let sql = "UPDATE counters SET waiting = ?1, webhooks = ?2, deliveries_made = ?3, \
            webhooks_made = ?4, steady = ?5, steady_at = ?6";
        conn.prepare_cached(sql)?.execute((
            self.waiting.cast_signed(),
            self.webhooks.cast_signed(),
            self.deliveries_made,
            self.webhooks_made,
            rows::at(self.steady.0),
            rows::at(self.steady.1),
        ))?;
        Ok(())
    }
}

/// What the writer shows to others after each commit.
#[derive(Debug, Default)]
pub(in crate::store::sqlite) struct Shown {
    pub(in crate::store::sqlite) waiting: AtomicU64,
    pub(in crate::store::sqlite) webhooks: AtomicU64,
    pub(in crate::store::sqlite) commits: AtomicU64,
    /// Whether the last change could not be written.
    pub(in crate::store::sqlite) failing: AtomicBool,
}

impl Shown {
    /// This is on disk.
    pub(super) fn show(&self, counters: &Counters) {
        self.waiting.store(counters.waiting, Ordering::Relaxed);
        self.webhooks.store(counters.webhooks, Ordering::Relaxed);
    }

    /// The same, after one more commit.
    pub(super) fn committed(&self, counters: &Counters) {
        self.show(counters);
        self.commits.fetch_add(1, Ordering::Relaxed);
    }
}
