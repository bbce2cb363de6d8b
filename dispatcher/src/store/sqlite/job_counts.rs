//! What became of a job's deliveries, counted by webhook.
//!
//! # Invariants
//!
//! 1. A delivery counts in the job that redelivered it last, and there in its present state.
//! 2. A count is written in the same transaction as the delivery's change.
//! 3. An ended delivery that retention drops stays counted: it ended so.

use rusqlite::{Connection, Row};

use crate::domain::delivery::DeliveryState;
use crate::domain::id::WebhookId;
use crate::store::sqlite::rows;
use crate::store::types::{JobWebhook, Matches};

const OF_JOB: &str = "SELECT webhook, matching, redelivered, waiting, delivered, failed \
    FROM job_webhooks WHERE job = ?1 ORDER BY webhook";

const MATCHING: &str = "INSERT INTO job_webhooks (job, webhook, matching) VALUES (?1, ?2, ?3)";

const QUEUED: &str = "INSERT INTO job_webhooks (job, webhook, redelivered, waiting) \
    VALUES (?1, ?2, ?3, ?3) ON CONFLICT DO UPDATE \
    SET redelivered = redelivered + ?3, waiting = waiting + ?3";

/// Adds to the counts by state: waiting, delivered, failed permanently.
const ADD: &str = "UPDATE job_webhooks \
    SET waiting = waiting + ?3, delivered = delivered + ?4, failed = failed + ?5 \
    WHERE job = ?1 AND webhook = ?2";

/// The job that redelivered a delivery last, and the delivery's webhook.
#[derive(Clone, Copy)]
pub(super) struct Redelivered {
    job: i64,
    webhook: i64,
}

impl Redelivered {
    /// From the columns `job` and `webhook` of a delivery; `None` if no job redelivered it last.
    pub(super) fn of(row: &Row<'_>) -> rusqlite::Result<Option<Self>> {
        let webhook = row.get("webhook")?;
        Ok(row.get::<_, Option<i64>>("job")?.map(|job| Self { job, webhook }))
    }

    /// Moves a delivery from one state to another; to `None` once it no longer counts.
    pub(super) fn moved(
        self,
        conn: &Connection,
        from: DeliveryState,
        to: Option<DeliveryState>,
    ) -> rusqlite::Result<()> {
        let change = |state| i64::from(to == Some(state)) - i64::from(from == state);
        let [waiting, delivered, failed] = DeliveryState::ALL.map(change);
        let row = (self.job, self.webhook, waiting, delivered, failed);
        conn.prepare_cached(ADD)?.execute(row).map(drop)
    }
}

/// Stores how many deliveries a new job is to redeliver.
pub(super) fn expect(conn: &Connection, job: i64, matches: &Matches) -> rusqlite::Result<()> {
    let mut insert = conn.prepare_cached(MATCHING)?;
    for one in &matches.webhooks {
        insert.execute((job, one.webhook.0, one.count.cast_signed()))?;
    }
    Ok(())
}

/// Counts deliveries that a job queued again.
pub(super) fn queued(
    conn: &Connection,
    job: i64,
    webhook: WebhookId,
    count: usize,
) -> rusqlite::Result<()> {
    conn.prepare_cached(QUEUED)?.execute((job, webhook.0, rows::count(count))).map(drop)
}

/// The counts of a job.
pub(super) fn of_job(conn: &Connection, job: i64) -> rusqlite::Result<Vec<JobWebhook>> {
    let mut query = conn.prepare_cached(OF_JOB)?;
    let found = query.query_map([job], |row| {
        Ok(JobWebhook {
            webhook: WebhookId(row.get("webhook")?),
            matching: rows::unsigned(row, "matching")?,
            redelivered: rows::unsigned(row, "redelivered")?,
            waiting: rows::unsigned(row, "waiting")?,
            delivered: rows::unsigned(row, "delivered")?,
            failed_permanent: rows::unsigned(row, "failed")?,
        })
    })?;
    found.collect()
}
