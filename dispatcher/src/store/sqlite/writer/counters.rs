//! Stored totals, so that no statement counts rows.
//!
//! Invariant: a total is written in the same transaction as the rows that it counts.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use prometheus::Histogram;
use rusqlite::Connection;
use weir_common::time::UnixTime;

use crate::store::sqlite::rows;

/// Totals, the last assigned numbers, and steady time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::store::sqlite) struct Counters {
    /// Waiting deliveries.
    pub(in crate::store::sqlite) waiting: u64,
    /// Webhooks that are not deleted.
    pub(in crate::store::sqlite) webhooks: u64,
    /// The number of the newest delivery.
    pub(in crate::store::sqlite) deliveries_made: i64,
    /// The number of the newest webhook.
    pub(in crate::store::sqlite) webhooks_made: i64,
    /// Steady time, and the wall-clock time at that moment.
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

/// The totals that the writer publishes after each commit, for other threads.
#[derive(Debug, Default)]
pub(in crate::store::sqlite) struct Shown {
    pub(in crate::store::sqlite) waiting: AtomicU64,
    pub(in crate::store::sqlite) webhooks: AtomicU64,
    pub(in crate::store::sqlite) commits: AtomicU64,
    /// How long commits take, once there is a histogram for it.
    pub(in crate::store::sqlite) commit_times: OnceLock<Histogram>,
    /// Whether the last change could not be written.
    pub(in crate::store::sqlite) failing: AtomicBool,
}

impl Shown {
    /// Publishes counters that are on disk.
    pub(super) fn show(&self, counters: &Counters) {
        self.waiting.store(counters.waiting, Ordering::Relaxed);
        self.webhooks.store(counters.webhooks, Ordering::Relaxed);
    }

    /// Publishes counters after another commit.
    pub(super) fn committed(&self, counters: &Counters) {
        self.show(counters);
        self.commits.fetch_add(1, Ordering::Relaxed);
    }
}
