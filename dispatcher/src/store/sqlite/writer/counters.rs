//! Stored totals, so that no statement counts rows.
//!
//! Invariant: a total is written in the same transaction as the rows that it counts.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use prometheus::Histogram;
use rusqlite::Connection;
use weir_common::time::{Tick, UnixTime};

use crate::store::sqlite::rows;

/// How long no write may fail until writes count as recovered: on a full disk small ones succeed.
const RECOVERY: Duration = Duration::from_secs(5);

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
    /// When a change last could not be written, in ticks; 0 if all are written.
    failed_at: AtomicU64,
}

impl Shown {
    /// Records that a change could not be written; returns whether it is the first.
    pub(super) fn failed(&self, now: Tick) -> bool {
        self.failed_at.swap(now.0.max(1), Ordering::Relaxed) == 0
    }

    /// Records that a change was written; returns whether writes have recovered by that.
    pub(super) fn wrote(&self, now: Tick) -> bool {
        let failed_at = self.failed_at.load(Ordering::Relaxed);
        let recovered = failed_at > 0 && now.since(Tick(failed_at)) >= RECOVERY;
        if recovered {
            self.failed_at.store(0, Ordering::Relaxed);
        }
        recovered
    }

    /// Whether changes cannot be written, as far as is known.
    pub(in crate::store::sqlite) fn is_failing(&self) -> bool {
        self.failed_at.load(Ordering::Relaxed) > 0
    }

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writes_recover_once_none_has_failed_for_a_while() {
        let (shown, at) = (Shown::default(), |secs: u64| Tick(secs * 1_000_000));
        assert!(!shown.wrote(at(0)) && !shown.is_failing());
        assert!(shown.failed(at(1)) && !shown.failed(at(4)));
        assert!(!shown.wrote(at(4)) && !shown.wrote(at(8)) && shown.is_failing());
        assert!(shown.wrote(at(9)) && !shown.wrote(at(10)) && !shown.is_failing());
        assert!(shown.failed(at(11)));
    }
}
