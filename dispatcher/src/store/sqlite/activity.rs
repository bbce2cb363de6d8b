//! Counts the attempts of webhooks by the hour.
//!
//! Counts of the last second are in memory and written together, because a write for each attempt
//! would cost as much as a tenth of the delivery. A crash loses them; nothing but charts has them.
//!
//! Invariant: an attempt counts once it is on disk, and once.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};
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

/// Attempts by hour and webhook.
pub(super) type Counted = BTreeMap<(u64, WebhookId), Activity>;

/// Counts that are not on disk. There are no more than attempts end in a second.
#[derive(Debug, Default)]
pub(super) struct RecentActivity(Mutex<Recent>);

#[derive(Debug, Default)]
struct Recent {
    counted: Counted,
    /// Those that are being written.
    writing: Counted,
    written_at: UnixTime,
}

/// What attempts that ended count, and when the last of them ended.
pub(super) fn counted(ended: &[AttemptRecord]) -> (Counted, UnixTime) {
    let (mut all, mut last) = (Counted::new(), UnixTime(0));
    for one in ended {
        let at = one.attempt.started_at.plus(one.attempt.took);
        last = last.max(at);
        let Some(class) = ActivityClass::of(&one.attempt.outcome) else { continue };
        all.entry((hour_of(at), one.webhook)).or_default().count(class, one.attempt.took);
    }
    (all, last)
}

impl RecentActivity {
    /// What is to be written now, if it is time.
    pub(super) fn due(&self, now: UnixTime) -> Counted {
        let mut recent = self.lock();
        let since = now.since(recent.written_at).max(recent.written_at.since(now));
        if since < WRITTEN_EVERY || !recent.writing.is_empty() {
            return Counted::new();
        }
        recent.written_at = now;
        recent.writing = std::mem::take(&mut recent.counted);
        recent.writing.clone()
    }

    /// Counts attempts that are on disk.
    pub(super) fn add(&self, counted: &Counted) {
        add(&mut self.lock().counted, counted);
    }

    /// What was due is on disk, or else is due again.
    pub(super) fn written(&self, is_written: bool) {
        let mut recent = self.lock();
        let writing = std::mem::take(&mut recent.writing);
        if !is_written {
            add(&mut recent.counted, &writing);
        }
    }

    /// Those of a webhook in an hour.
    fn of(&self, hour: u64, webhook: WebhookId) -> Activity {
        let recent = self.lock();
        let mut all = Activity::default();
        for counted in [&recent.counted, &recent.writing] {
            counted.get(&(hour, webhook)).into_iter().for_each(|more| all.add(more));
        }
        all
    }

    fn lock(&self) -> MutexGuard<'_, Recent> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn add(all: &mut Counted, more: &Counted) {
    for (key, more) in more {
        all.entry(*key).or_default().add(more);
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

    #[test]
    fn counts_are_written_each_second_and_none_is_lost_or_written_twice() {
        let recent = RecentActivity::default();
        let mut one = Activity::default();
        one.count(ActivityClass::Delivered, Duration::from_millis(5));
        let one = Counted::from([((1, WebhookId(1)), one)]);
        let second = |number: u64| UnixTime(number * 1_000_000);
        recent.add(&one);
        let due = recent.due(second(10));
        assert_eq!((due.len(), of(&recent)), (1, 1), "what is being written is seen");
        recent.add(&one);
        assert!(recent.due(second(20)).is_empty(), "one write at a time");
        recent.written(false);
        assert_eq!(of(&recent), 2);
        let due = recent.due(second(21));
        assert_eq!(due.values().map(Activity::attempts).sum::<u64>(), 2);
        recent.written(true);
        assert_eq!(of(&recent), 0);
        recent.add(&one);
        assert!(recent.due(UnixTime(21_999_999)).is_empty());
        // A clock that is set back delays nothing.
        assert_eq!(recent.due(second(3)).len(), 1);
    }
}
