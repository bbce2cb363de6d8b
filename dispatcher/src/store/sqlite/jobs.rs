//! Jobs that redeliver by filter, a step at a time.
//!
//! Invariant: where a job stands is written with what it did: a process that ends in between
//! goes on there, and a delivery is put back once.

use rusqlite::{Connection, Row};
use weir_common::time::UnixTime;

use super::deliveries;
use super::fault::Fault;
use super::rows::{self, at, select_deliveries};
use super::webhooks;
use super::writer::Desk;
use crate::model::{DeliveryId, DeliveryState, EventType, JobId, WebhookId};
use crate::store::{Filter, Job, JobStep};

/// What is selected of a job.
macro_rules! select_jobs {
    ($rest:literal) => {
        concat!(
            "SELECT id, workspace, state, webhook, kind, since, until, created_at, newest, \
             looked_to, redelivered, ended_at FROM jobs ",
            $rest
        )
    };
}

const ONE: &str = select_jobs!("WHERE id = ?1");

const OLDEST_OPEN: &str = select_jobs!("WHERE ended_at IS NULL ORDER BY id LIMIT 1");

const NEXT: &str = select_deliveries!(
    "WHERE d.workspace = ?1 AND d.id > ?2 AND d.id <= ?3 ORDER BY d.id LIMIT ?4"
);

const NEXT_FAILED: &str = select_deliveries!(
    "WHERE d.workspace = ?1 AND d.id > ?2 AND d.id <= ?3 AND d.state = 2 ORDER BY d.id LIMIT ?4"
);

/// A job and where it stands.
struct Standing {
    job: Job,
    workspace: i64,
    newest: i64,
    looked_to: i64,
}

/// Writes down what is to be redelivered.
pub(super) fn create(
    desk: &mut Desk,
    workspace: &str,
    filter: &Filter,
    now: UnixTime,
) -> Result<Job, Fault> {
    let workspace = rows::workspace(&desk.conn, workspace)?;
    let sql = "INSERT INTO jobs (workspace, state, webhook, kind, since, until, created_at, \
        newest) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)";
    desk.conn.prepare_cached(sql)?.execute((
        workspace,
        filter.state.map(DeliveryState::code),
        filter.webhook.map(|webhook| webhook.0),
        filter.kind.map(EventType::code),
        filter.since.map(at),
        filter.until.map(at),
        at(now),
        desk.tally.deliveries_made,
    ))?;
    let id = JobId(desk.conn.last_insert_rowid());
    Ok(Job { id, filter: filter.clone(), created_at: now, ended_at: None, redelivered: 0 })
}

/// One job of a workspace.
pub(super) fn one(conn: &Connection, workspace: &str, id: JobId) -> Result<Option<Job>, Fault> {
    let Some(workspace) = rows::workspace_of(conn, workspace)? else { return Ok(None) };
    let mut query = conn.prepare_cached(ONE)?;
    let mut found = query.query([id.0])?;
    let standing = found.next()?.map(standing).transpose()?;
    Ok(standing.filter(|standing| standing.workspace == workspace).map(|standing| standing.job))
}

fn oldest_open(conn: &Connection) -> Result<Option<Standing>, Fault> {
    let mut query = conn.prepare_cached(OLDEST_OPEN)?;
    let mut found = query.query([])?;
    found.next()?.map(standing).transpose()
}

fn standing(row: &Row<'_>) -> Result<Standing, Fault> {
    let any = |column| row.get::<_, Option<i64>>(column).map(|value| value.is_some());
    let filter = Filter {
        state: if any("state")? { Some(rows::state(row)?) } else { None },
        webhook: row.get::<_, Option<i64>>("webhook")?.map(WebhookId),
        kind: if any("kind")? { Some(rows::kind(row)?) } else { None },
        since: rows::time_or(row, "since")?,
        until: rows::time_or(row, "until")?,
    };
    let job = Job {
        id: JobId(row.get("id")?),
        filter,
        created_at: rows::time(row, "created_at")?,
        ended_at: rows::time_or(row, "ended_at")?,
        redelivered: rows::unsigned(row, "redelivered")?,
    };
    Ok(Standing {
        job,
        workspace: row.get("workspace")?,
        newest: row.get("newest")?,
        looked_to: row.get("looked_to")?,
    })
}

/// Takes the oldest job that is not at its end a step further.
pub(super) fn step(desk: &mut Desk, limit: usize, now: UnixTime) -> Result<JobStep, Fault> {
    let Some(standing) = oldest_open(&desk.conn)? else { return Ok(JobStep::default()) };
    let (looked, matching) = look(desk, &standing, limit)?;
    let mut webhooks: Vec<WebhookId> = Vec::new();
    for (id, state, webhook) in &matching {
        deliveries::begin_anew(desk, *id, *state, now)?;
        webhooks.push(*webhook);
    }
    webhooks.sort_unstable();
    webhooks.dedup();
    let ended = looked.len() < limit;
    let looked_to = looked.last().copied().unwrap_or(standing.looked_to);
    let sql = "UPDATE jobs SET looked_to = ?2, redelivered = redelivered + ?3, ended_at = ?4 \
        WHERE id = ?1";
    let redelivered = rows::count(matching.len());
    let row = (standing.job.id.0, looked_to, redelivered, ended.then(|| at(now)));
    desk.conn.prepare_cached(sql)?.execute(row)?;
    Ok(JobStep { webhooks, more: !ended || oldest_open(&desk.conn)?.is_some() })
}

type Matching = Vec<(DeliveryId, DeliveryState, WebhookId)>;

/// The next deliveries that a job looks at, and those of them that match.
fn look(desk: &Desk, standing: &Standing, limit: usize) -> Result<(Vec<i64>, Matching), Fault> {
    let mut filter = standing.job.filter.clone();
    // Who does not say which means those that were given up.
    let state = *filter.state.get_or_insert(DeliveryState::FailedPermanent);
    let failed = state == DeliveryState::FailedPermanent;
    let alive = webhooks::alive(&desk.conn, standing.workspace)?;
    let mut query = desk.conn.prepare_cached(if failed { NEXT_FAILED } else { NEXT })?;
    let range = (standing.workspace, standing.looked_to, standing.newest, rows::count(limit));
    let mut found = query.query(range)?;
    let (mut looked, mut matching) = (Vec::new(), Vec::new());
    while let Some(row) = found.next()? {
        let id = row.get("id")?;
        looked.push(id);
        let webhook: i64 = row.get("webhook")?;
        // A test that failed has told its owner what it was to tell.
        let meant = filter.kind.is_some() || rows::kind(row)? != EventType::Ping;
        let meant = meant && alive.binary_search(&webhook).is_ok();
        if meant && deliveries::matches(&filter, row)? {
            matching.push((DeliveryId(id), state, WebhookId(webhook)));
        }
    }
    Ok((looked, matching))
}
