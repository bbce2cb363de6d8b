//! Jobs that redeliver many deliveries, a step at a time.
//!
//! # Invariants
//!
//! 1. A job's position is committed together with its changes: after a crash it continues there,
//!    and queues each delivery once.
//! 2. Workspaces take turns: between two steps of a job, every other workspace runs one at most.
//! 3. A workspace has at most [`JOBS_OPEN_MAX`] unfinished jobs.
//! 4. A job that has ended, or was cancelled, queues nothing more and does not change its end.
//!
//! Not here: which deliveries are in its scope (`walk`), what became of them (`job_counts`).

pub(super) mod walk;

use std::collections::BTreeMap;

use rusqlite::types::ValueRef;
use rusqlite::{Connection, Row};
use weir_common::time::UnixTime;

use crate::domain::delivery::DeliveryState;
use crate::domain::id::{DeliveryId, JobId, WebhookId};
use crate::domain::outcome::OutcomeClass;
use crate::store::sqlite::error::Fault;
use crate::store::sqlite::jobs::walk::{Position, Start};
use crate::store::sqlite::rows::{self, at};
use crate::store::sqlite::writer::session::WriteSession;
use crate::store::sqlite::{deliveries, job_counts};
use crate::store::types::{
    Filter, JOBS_OPEN_MAX, Job, JobCreated, JobScope, JobStep, NewJob, OpenJob, Page,
};

/// Selects the columns of a job.
macro_rules! select_jobs {
    ($rest:literal) => {
        concat!(
            "SELECT id, workspace, state, webhook, \
             (SELECT t.name FROM event_types t WHERE t.code = jobs.kind) AS kind, \
             event, tenant, outcome, status, since, until, created_at, newest, looked_to, \
             redelivered, ended_at, at_webhook, at_time, at_delivery, named, examined, counted, \
             cancelled, newest_at FROM jobs ",
            $rest
        )
    };
}

const ONE: &str = select_jobs!("WHERE id = ?1");

const PAGE: &str = select_jobs!("WHERE workspace = ?1 AND id < ?2 ORDER BY id DESC LIMIT ?3");

const HOW_MANY_OPEN: &str = "SELECT count(*) FROM jobs WHERE workspace = ?1 AND ended_at IS NULL";

const OPEN: &str = select_jobs!("WHERE ended_at IS NULL ORDER BY workspace, id LIMIT ?1");

const NEXT_OPEN: &str =
    select_jobs!("WHERE ended_at IS NULL AND workspace > ?1 ORDER BY workspace, id LIMIT 1");

/// A job and its progress.
struct JobProgress {
    job: Job,
    workspace: i64,
    start: Start,
}

/// Stores a job, unless the workspace has too many.
pub(super) fn create(
    session: &mut WriteSession,
    workspace: &str,
    new: &NewJob,
    now: UnixTime,
) -> Result<JobCreated, Fault> {
    let workspace = rows::workspace(&session.conn, workspace)?;
    let mut query = session.conn.prepare_cached(HOW_MANY_OPEN)?;
    if query.query_row([workspace], |row| rows::unsigned(row, 0))? >= JOBS_OPEN_MAX {
        return Ok(JobCreated::TooMany);
    }
    let none = Filter::default();
    let (filter, named, newest_at) = match &new.scope {
        JobScope::Matching(filter) => {
            (filter, None, Some(walk::newest_at(&session.conn, workspace, filter)?))
        }
        JobScope::Named(ids) => (&none, Some(named_column(ids)?), None),
    };
    let kind = filter.kind.map(|kind| rows::code_of(&session.conn, kind)).transpose()?;
    let sql = "INSERT INTO jobs (workspace, state, webhook, kind, since, until, created_at, \
        newest, event, tenant, outcome, status, named, counted, newest_at) \
        VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15)";
    session.conn.prepare_cached(sql)?.execute((
        workspace,
        filter.state.map(DeliveryState::code),
        filter.webhook.map(|webhook| webhook.0),
        kind,
        filter.since.map(at),
        filter.until.map(at),
        at(now),
        session.counters.deliveries_made,
        filter.event.as_deref(),
        filter.tenant.as_deref(),
        filter.outcome.map(OutcomeClass::name),
        filter.status,
        named,
        new.matches.as_ref().map(|matches| matches.complete),
        newest_at,
    ))?;
    let id = session.conn.last_insert_rowid();
    if let Some(matches) = &new.matches {
        job_counts::expect(&session.conn, id, matches)?;
    }
    let made = load(&session.conn, JobId(id))?;
    made.map(|made| JobCreated::Job(made.job))
        .ok_or_else(|| Fault::Damaged("a new job is not there".into()))
}

/// One job of a workspace.
pub(super) fn one(conn: &Connection, workspace: &str, id: JobId) -> Result<Option<Job>, Fault> {
    let Some(workspace) = rows::workspace_of(conn, workspace)? else { return Ok(None) };
    let found = load(conn, id)?.filter(|progress| progress.workspace == workspace);
    Ok(found.map(|progress| progress.job))
}

/// A page of a workspace's jobs, newest first.
pub(super) fn page(
    conn: &Connection,
    workspace: &str,
    after: Option<JobId>,
    limit: usize,
) -> Result<Page<Job, JobId>, Fault> {
    let mut items = Vec::new();
    if let Some(workspace) = rows::workspace_of(conn, workspace)? {
        let mut query = conn.prepare_cached(PAGE)?;
        let before = after.map_or(i64::MAX, |id| id.0);
        let mut found = query.query((workspace, before, rows::count(limit.saturating_add(1))))?;
        while let Some(row) = found.next()? {
            items.push(progress(conn, row)?.job);
        }
    }
    let more = items.len() > limit;
    items.truncate(limit);
    let next = items.last().map(|last: &Job| last.id).filter(|_| more);
    Ok(Page { items, next })
}

/// Unfinished jobs of all workspaces.
pub(super) fn open(conn: &Connection, limit: usize) -> Result<Vec<OpenJob>, Fault> {
    let mut query = conn.prepare_cached(OPEN)?;
    let mut found = query.query([rows::count(limit)])?;
    let mut name = conn.prepare_cached("SELECT name FROM workspaces WHERE id = ?1")?;
    let mut open = Vec::new();
    while let Some(row) = found.next()? {
        let JobProgress { job, workspace, .. } = progress(conn, row)?;
        open.push(OpenJob { workspace: name.query_row([workspace], |row| row.get(0))?, job });
    }
    Ok(open)
}

/// Ends a job, unless it has ended; returns its new state.
pub(super) fn cancel(
    session: &mut WriteSession,
    workspace: &str,
    id: JobId,
    now: UnixTime,
) -> Result<Option<Job>, Fault> {
    let Some(found) = one(&session.conn, workspace, id)? else { return Ok(None) };
    if found.ended_at.is_some() {
        return Ok(Some(found));
    }
    let sql = "UPDATE jobs SET cancelled = 1, ended_at = ?2, over_at = ?3 WHERE id = ?1";
    let over_at = at(session.steady.of_unix(now));
    session.conn.prepare_cached(sql)?.execute((id.0, at(now), over_at))?;
    one(&session.conn, workspace, id)
}

/// Runs one step of a job, of the workspace whose turn it is.
pub(super) fn step(
    session: &mut WriteSession,
    limit: usize,
    now: UnixTime,
) -> Result<JobStep, Fault> {
    let next = match next_open(&session.conn, session.job_turn)? {
        None => next_open(&session.conn, 0)?,
        found => found,
    };
    let Some(JobProgress { job, workspace, start }) = next else { return Ok(JobStep::default()) };
    session.job_turn = workspace;
    let walked = walk::walk(&session.conn, workspace, &job.scope, start, limit)?;
    let mut webhooks: BTreeMap<WebhookId, usize> = BTreeMap::new();
    for one in &walked.matching {
        deliveries::requeue(session, one.id, Some(job.id), now)?;
        *webhooks.entry(one.webhook).or_default() += 1;
    }
    for (webhook, count) in &webhooks {
        job_counts::queued(&session.conn, job.id.0, *webhook, *count)?;
    }
    let Position { webhook, key: (time, delivery) } = walked.rest.unwrap_or(start.at);
    let ended = walked.rest.is_none();
    let sql = "UPDATE jobs SET at_webhook = ?2, at_time = ?3, at_delivery = ?4, \
        redelivered = redelivered + ?5, examined = examined + ?6, ended_at = ?7, over_at = ?8 \
        WHERE id = ?1";
    session.conn.prepare_cached(sql)?.execute((
        job.id.0,
        webhook,
        time,
        delivery,
        rows::count(walked.matching.len()),
        rows::count(walked.examined),
        ended.then_some(at(now)),
        ended.then_some(at(session.steady.of_unix(now))),
    ))?;
    let more = !ended || next_open(&session.conn, 0)?.is_some();
    Ok(JobStep { webhooks: webhooks.into_keys().collect(), more })
}

/// The oldest unfinished job of the next workspace after this one.
fn next_open(conn: &Connection, after: i64) -> Result<Option<JobProgress>, Fault> {
    let mut query = conn.prepare_cached(NEXT_OPEN)?;
    let mut found = query.query([after])?;
    found.next()?.map(|row| progress(conn, row)).transpose()
}

fn load(conn: &Connection, id: JobId) -> Result<Option<JobProgress>, Fault> {
    let mut query = conn.prepare_cached(ONE)?;
    let mut found = query.query([id.0])?;
    found.next()?.map(|row| progress(conn, row)).transpose()
}

fn progress(conn: &Connection, row: &Row<'_>) -> Result<JobProgress, Fault> {
    let id = JobId(row.get("id")?);
    let named: Option<String> = row.get("named")?;
    let scope = match named {
        Some(named) => JobScope::Named(named_of(&named)?),
        None => JobScope::Matching(filter(row)?),
    };
    let job = Job {
        id,
        scope,
        created_at: rows::time(row, "created_at")?,
        ended_at: rows::time_or(row, "ended_at")?,
        cancelled: row.get("cancelled")?,
        examined: rows::unsigned(row, "examined")?,
        redelivered: rows::unsigned(row, "redelivered")?,
        counted: row.get("counted")?,
        webhooks: job_counts::of_job(conn, id.0)?,
    };
    let key = (row.get("at_time")?, row.get("at_delivery")?);
    let start = Start {
        at: Position { webhook: row.get("at_webhook")?, key },
        newest: row.get("newest")?,
        newest_at: row.get::<_, Option<i64>>("newest_at")?.unwrap_or(i64::MAX),
        looked_to: row.get("looked_to")?,
    };
    Ok(JobProgress { job, workspace: row.get("workspace")?, start })
}

fn filter(row: &Row<'_>) -> Result<Filter, Fault> {
    let any = |column| row.get_ref(column).map(|value| value != ValueRef::Null);
    let outcome: Option<String> = row.get("outcome")?;
    Ok(Filter {
        event: row.get("event")?,
        tenant: row.get("tenant")?,
        outcome: outcome.as_deref().map(rows::outcome_class).transpose()?,
        status: row.get("status")?,
        state: if any("state")? { Some(rows::state(row)?) } else { None },
        webhook: row.get::<_, Option<i64>>("webhook")?.map(WebhookId),
        kind: if any("kind")? { Some(rows::kind(row)?) } else { None },
        since: rows::time_or(row, "since")?,
        until: rows::time_or(row, "until")?,
    })
}

/// The numbers of named deliveries, for their column.
fn named_column(ids: &[DeliveryId]) -> Result<String, Fault> {
    let numbers: Vec<i64> = ids.iter().map(|id| id.0).collect();
    serde_json::to_string(&numbers).map_err(|error| Fault::Damaged(error.to_string()))
}

fn named_of(column: &str) -> Result<Vec<DeliveryId>, Fault> {
    let numbers: Vec<i64> = serde_json::from_str(column)
        .map_err(|error| Fault::Damaged(format!("the deliveries of a job: {error}")))?;
    Ok(numbers.into_iter().map(DeliveryId).collect())
}
