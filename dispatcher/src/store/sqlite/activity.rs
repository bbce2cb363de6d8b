//! Counts the attempts of webhooks by the hour.
//!
//! Counts of the last second are in memory: a write for each attempt cost 7 % of a delivery's
//! instructions. Each second what was counted is written, in pieces: those of 4,000 webhooks at
//! once made all others wait 8 ms. A stop loses what is in memory; nothing but charts has it.
//!
//! # Invariants
//!
//! 1. An attempt counts once it is on disk, and once.
//! 2. One write adds a bounded time to its batch, however many webhooks there are.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rusqlite::{Connection, OptionalExtension, Row};
use weir_common::time::UnixTime;

use crate::domain::activity::{Activity, ActivityClass, Histogram, hour_of};
use crate::domain::attempt::AttemptRecord;
use crate::domain::id::WebhookId;
use crate::store::sqlite::error::Fault;
use crate::store::sqlite::rows::unsigned;

const FIND: &str = "SELECT * FROM activity WHERE hour = ?1 AND webhook = ?2";

const COLUMNS: [&str; ActivityClass::ALL.len()] =
    ["delivered", "client_errors", "server_errors", "timeouts", "unreachable", "blocked"];

/// How long counts are in memory only.
const WRITTEN_EVERY: Duration = Duration::from_secs(1);

/// Counts in a write, at most: a quarter of a millisecond.
const PIECE_MAX: usize = 128;

/// Attempts by hour and webhook.
pub(super) type Counted = BTreeMap<(u64, WebhookId), Activity>;

/// An attempt that ended: its hour, its webhook, its class and how long it took.
pub(super) type Ended = (u64, WebhookId, ActivityClass, Duration);

/// Counts that are not on disk. There are no more than webhooks had attempts in the hour.
#[derive(Debug, Default)]
pub(super) struct RecentActivity(Mutex<Recent>);

#[derive(Debug, Default)]
struct Recent {
    counted: Counted,
    /// Those of the last second, which wait to be written.
    rest: Counted,
    /// Those that are being written.
    writing: Counted,
    written_at: UnixTime,
}

/// The attempts that count, and when the last one ended.
pub(super) fn ended(records: &[AttemptRecord]) -> (Vec<Ended>, UnixTime) {
    let (mut all, mut last) = (Vec::with_capacity(records.len()), UnixTime(0));
    for one in records {
        let at = one.attempt.started_at.plus(one.attempt.took);
        last = last.max(at);
        if let Some(class) = ActivityClass::of(&one.attempt.outcome) {
            all.push((hour_of(at), one.webhook, class, one.attempt.took));
        }
    }
    (all, last)
}

impl RecentActivity {
    /// What is to be written now, if it is time.
    pub(super) fn due(self: &Arc<Self>, now: UnixTime) -> Option<Due> {
        let mut guard = self.lock();
        let recent = &mut *guard;
        if !recent.writing.is_empty() {
            return None;
        }
        let since = now.since(recent.written_at).max(recent.written_at.since(now));
        if recent.rest.is_empty() && since >= WRITTEN_EVERY {
            recent.written_at = now;
            recent.rest = std::mem::take(&mut recent.counted);
        }
        let after = recent.rest.keys().nth(PIECE_MAX).copied();
        let after = after.map(|key| recent.rest.split_off(&key)).unwrap_or_default();
        recent.writing = std::mem::replace(&mut recent.rest, after);
        let counted = Some(recent.writing.clone()).filter(|counted| !counted.is_empty())?;
        Some(Due { counted, recent: Arc::clone(self) })
    }

    /// Whether more of the last second is to be written.
    pub(super) fn has_rest(&self) -> bool {
        !self.lock().rest.is_empty()
    }

    /// Counts attempts that are on disk.
    pub(super) fn count(&self, ended: &[Ended]) {
        let mut recent = self.lock();
        for (hour, webhook, class, took) in ended {
            recent.counted.entry((*hour, *webhook)).or_default().count(*class, *took);
        }
    }

    /// Those of a webhook in an hour.
    fn of(&self, hour: u64, webhook: WebhookId) -> Activity {
        let recent = self.lock();
        let mut all = Activity::default();
        for counted in [&recent.counted, &recent.rest, &recent.writing] {
            counted.get(&(hour, webhook)).into_iter().for_each(|more| all.add(more));
        }
        all
    }

    fn lock(&self) -> MutexGuard<'_, Recent> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Counts to be written; due again if it is dropped before they are on disk.
#[derive(Debug)]
pub(super) struct Due {
    counted: Counted,
    recent: Arc<RecentActivity>,
}

impl Due {
    /// A copy for the writer.
    pub(super) fn counted(&self) -> Counted {
        self.counted.clone()
    }

    /// They are on disk.
    pub(super) fn written(self) {
        self.recent.lock().writing.clear();
    }
}

impl Drop for Due {
    fn drop(&mut self) {
        let mut recent = self.recent.lock();
        for (key, more) in std::mem::take(&mut recent.writing) {
            recent.counted.entry(key).or_default().add(&more);
        }
    }
}

/// Writes counts.
pub(super) fn write(conn: &Connection, counted: &Counted) -> Result<(), Fault> {
    for ((hour, webhook), activity) in counted {
        let (hour, webhook, mut activity) = (*hour, *webhook, activity.clone());
        if let Some(earlier) = find(conn, hour, webhook)? {
            activity.add(&earlier);
        }
        let [delivered, client, server, timeouts, unreachable, blocked] =
            activity.counts.map(|count| i64::try_from(count).unwrap_or(i64::MAX));
        let sql = "INSERT OR REPLACE INTO activity VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)";
        conn.prepare_cached(sql)?.execute((
            hour.cast_signed(),
            webhook.0,
            delivered,
            client,
            server,
            timeouts,
            unreachable,
            blocked,
            activity.times.stored(),
        ))?;
    }
    Ok(())
}

/// The attempts of a webhook in these hours; without those in which there were none. What is
/// written at this moment may count twice.
pub(super) fn of_hours(
    conn: &Connection,
    recent: &RecentActivity,
    webhook: WebhookId,
    hours: Range<u64>,
) -> Result<Vec<(u64, Activity)>, Fault> {
    let mut found = Vec::new();
    for hour in hours {
        let mut activity = recent.of(hour, webhook);
        find(conn, hour, webhook)?.iter().for_each(|earlier| activity.add(earlier));
        if activity.attempts() > 0 {
            found.push((hour, activity));
        }
    }
    Ok(found)
}

fn find(conn: &Connection, hour: u64, webhook: WebhookId) -> Result<Option<Activity>, Fault> {
    let mut query = conn.prepare_cached(FIND)?;
    Ok(query.query_row((hour.cast_signed(), webhook.0), activity).optional()?)
}

fn activity(row: &Row<'_>) -> rusqlite::Result<Activity> {
    let mut counts = [0; ActivityClass::ALL.len()];
    for (count, column) in counts.iter_mut().zip(COLUMNS) {
        *count = unsigned(row, column)?;
    }
    Ok(Activity { counts, times: Histogram::of_stored(row.get_ref("times")?.as_blob()?) })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(recent: &RecentActivity) -> u64 {
        recent.of(1, WebhookId(1)).attempts()
    }

    fn one(webhook: i64) -> Ended {
        (1, WebhookId(webhook), ActivityClass::Delivered, Duration::from_millis(5))
    }

    #[test]
    fn the_counts_of_many_webhooks_are_written_in_pieces() {
        let recent = Arc::new(RecentActivity::default());
        let all: Vec<_> = (1..).take(2 * PIECE_MAX + 1).map(one).collect();
        recent.count(&all);
        let mut sizes = Vec::new();
        while let Some(due) = recent.due(UnixTime(1_000_000)) {
            sizes.push((due.counted().len(), recent.has_rest()));
            due.written();
            // What ends meanwhile waits for the next second.
            recent.count(&all[..1]);
        }
        assert_eq!(sizes, [(PIECE_MAX, true), (PIECE_MAX, true), (1, false)]);
        assert_eq!(of(&recent), 3);
    }

    #[test]
    fn counts_are_written_each_second_and_none_is_lost_or_written_twice() {
        let recent = Arc::new(RecentActivity::default());
        let one = [one(1)];
        let second = |number: u64| UnixTime(number * 1_000_000);
        assert!(recent.due(second(9)).is_none(), "there is nothing to write");
        recent.count(&one);
        let due = recent.due(second(10)).unwrap();
        assert_eq!((due.counted().len(), of(&recent)), (1, 1), "what is being written is seen");
        recent.count(&one);
        assert!(recent.due(second(20)).is_none(), "one write at a time");
        drop(due);
        assert_eq!(of(&recent), 2);
        let due = recent.due(second(21)).unwrap();
        assert_eq!(due.counted().values().map(Activity::attempts).sum::<u64>(), 2);
        due.written();
        assert_eq!(of(&recent), 0);
        recent.count(&one);
        assert!(recent.due(UnixTime(21_999_999)).is_none());
        // A clock that is set back delays nothing.
        assert!(recent.due(second(3)).is_some());
    }
}
