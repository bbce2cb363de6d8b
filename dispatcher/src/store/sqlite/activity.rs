//! Counts the attempts of webhooks by the hour.

use std::collections::BTreeMap;
use std::ops::Range;

use rusqlite::{Connection, OptionalExtension, Row};

use crate::domain::activity::{Activity, ActivityClass, Histogram, hour_of};
use crate::domain::attempt::AttemptRecord;
use crate::domain::id::WebhookId;
use crate::store::sqlite::error::Fault;
use crate::store::sqlite::rows::unsigned;

const FIND: &str = "SELECT * FROM activity WHERE hour = ?1 AND webhook = ?2";

const COLUMNS: [&str; ActivityClass::ALL.len()] =
    ["delivered", "client_errors", "server_errors", "timeouts", "unreachable", "blocked"];

/// Counts attempts that ended.
pub(super) fn record(conn: &Connection, ended: &[AttemptRecord]) -> Result<(), Fault> {
    let mut all: BTreeMap<(u64, WebhookId), Activity> = BTreeMap::new();
    for one in ended {
        let Some(class) = ActivityClass::of(&one.attempt.outcome) else { continue };
        let hour = hour_of(one.attempt.started_at.plus(one.attempt.took));
        all.entry((hour, one.webhook)).or_default().count(class, one.attempt.took);
    }
    for ((hour, webhook), mut activity) in all {
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

/// The attempts of a webhook in these hours; without those in which there were none.
pub(super) fn of_hours(
    conn: &Connection,
    webhook: WebhookId,
    hours: Range<u64>,
) -> Result<Vec<(u64, Activity)>, Fault> {
    let mut found = Vec::new();
    for hour in hours {
        if let Some(activity) = find(conn, hour, webhook)? {
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
