//! Jobs that redeliver by filter, a step at a time.
//!
//! # Invariants
//!
//! 1. A job's position is committed together with its changes: after a crash it continues there,
//!    and queues each delivery once.
//! 2. Workspaces take turns: between two steps of a job, every other workspace runs one at most.
//! 3. A workspace has at most [`JOBS_OPEN_MAX`] unfinished jobs.

use rusqlite::types::ValueRef;
use rusqlite::{Connection, Row};
use weir_common::time::UnixTime;

use crate::domain::delivery::DeliveryState;
use crate::domain::event::EventType;
use crate::domain::id::{DeliveryId, JobId, WebhookId};
use crate::domain::outcome::OutcomeClass;
use crate::store::sqlite::deliveries;
use crate::store::sqlite::error::Fault;
use crate::store::sqlite::listing::{self, RowKey};
use crate::store::sqlite::rows::{self, at, select_deliveries};
use crate::store::sqlite::selection::Selection;
use crate::store::sqlite::writer::session::WriteSession;
use crate::store::types::{Filter, JOBS_OPEN_MAX, Job, JobCreated, JobStep, Order};

/// Selects the columns of a job.
macro_rules! select_jobs {
    ($rest:literal) => {
        concat!(
            "SELECT id, workspace, state, webhook, \
             (SELECT t.name FROM event_types t WHERE t.code = jobs.kind) AS kind, \
             event, tenant, outcome, status, since, until, created_at, newest, looked_to, \
             redelivered, ended_at, at_webhook, at_time, at_delivery FROM jobs ",
            $rest
        )
    };
}

const ONE: &str = select_jobs!("WHERE id = ?1");

const HOW_MANY_OPEN: &str = "SELECT count(*) FROM jobs WHERE workspace = ?1 AND ended_at IS NULL";

const NEXT_OPEN: &str =
    select_jobs!("WHERE ended_at IS NULL AND workspace > ?1 ORDER BY workspace, id LIMIT 1");

const THIS: &str = select_deliveries!("WHERE d.id = ?1");

/// A job and its progress.
struct JobProgress {
    job: Job,
    workspace: i64,
    /// The newest delivery when the job was created: it ignores later ones.
    newest: i64,
    /// Of a job that an earlier version started: deliveries up to this number are done.
    looked_to: i64,
    at: Position,
}

/// A job's position: deliveries of earlier webhooks are done, and those of `webhook` up to `key`.
#[derive(Clone, Copy)]
struct Position {
    webhook: i64,
    key: RowKey,
}

/// Stores a job, unless the workspace has too many.
pub(super) fn create(
    session: &mut WriteSession,
    workspace: &str,
    filter: &Filter,
    now: UnixTime,
) -> Result<JobCreated, Fault> {
    let workspace = rows::workspace(&session.conn, workspace)?;
    let mut query = session.conn.prepare_cached(HOW_MANY_OPEN)?;
    if query.query_row([workspace], |row| rows::unsigned(row, 0))? >= JOBS_OPEN_MAX {
        return Ok(JobCreated::TooMany);
    }
    let kind = filter.kind.map(|kind| rows::code_of(&session.conn, kind)).transpose()?;
    let sql = "INSERT INTO jobs (workspace, state, webhook, kind, since, until, created_at, \
        newest, event, tenant, outcome, status) \
        VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12)";
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
    ))?;
    let id = JobId(session.conn.last_insert_rowid());
    let filter = filter.clone();
    Ok(JobCreated::Job(Job { id, filter, created_at: now, ended_at: None, redelivered: 0 }))
}

/// One job of a workspace.
pub(super) fn one(conn: &Connection, workspace: &str, id: JobId) -> Result<Option<Job>, Fault> {
    let Some(workspace) = rows::workspace_of(conn, workspace)? else { return Ok(None) };
    let mut query = conn.prepare_cached(ONE)?;
    let mut found = query.query([id.0])?;
    let progress = found.next()?.map(progress).transpose()?;
    Ok(progress.filter(|progress| progress.workspace == workspace).map(|progress| progress.job))
}

/// The oldest unfinished job of the next workspace after this one.
fn next_open(conn: &Connection, after: i64) -> Result<Option<JobProgress>, Fault> {
    let mut query = conn.prepare_cached(NEXT_OPEN)?;
    let mut found = query.query([after])?;
    found.next()?.map(progress).transpose()
}

fn progress(row: &Row<'_>) -> Result<JobProgress, Fault> {
    let any = |column| row.get_ref(column).map(|value| value != ValueRef::Null);
    let outcome: Option<String> = row.get("outcome")?;
    let filter = Filter {
        event: row.get("event")?,
        tenant: row.get("tenant")?,
        outcome: outcome.as_deref().map(rows::outcome_class).transpose()?,
        status: row.get("status")?,
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
    Ok(JobProgress {
        job,
        workspace: row.get("workspace")?,
        newest: row.get("newest")?,
        looked_to: row.get("looked_to")?,
        at: Position {
            webhook: row.get("at_webhook")?,
            key: (row.get("at_time")?, row.get("at_delivery")?),
        },
    })
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
    let Some(progress) = next else { return Ok(JobStep::default()) };
    session.job_turn = progress.workspace;
    let (position, matching) = next_matching(session, &progress, limit)?;
    let mut webhooks: Vec<WebhookId> = Vec::new();
    for (id, state, webhook) in &matching {
        deliveries::requeue(session, *id, *state, now)?;
        webhooks.push(*webhook);
    }
    webhooks.sort_unstable();
    webhooks.dedup();
    let redelivered = rows::count(matching.len());
    let id = progress.job.id.0;
    if let Some(Position { webhook, key: (time, delivery) }) = position {
        let sql = "UPDATE jobs SET at_webhook = ?2, at_time = ?3, at_delivery = ?4, \
            redelivered = redelivered + ?5 WHERE id = ?1";
        session.conn.prepare_cached(sql)?.execute((id, webhook, time, delivery, redelivered))?;
    } else {
        let sql = "UPDATE jobs SET redelivered = redelivered + ?2, ended_at = ?3, over_at = ?4 \
            WHERE id = ?1";
        let over_at = at(session.steady.of_unix(now));
        session.conn.prepare_cached(sql)?.execute((id, redelivered, at(now), over_at))?;
    }
    let more = position.is_some() || next_open(&session.conn, 0)?.is_some();
    Ok(JobStep { webhooks, more })
}

type Matching = Vec<(DeliveryId, DeliveryState, WebhookId)>;

/// Examines up to `limit` deliveries. Returns the job's new position, `None` at its end, and the
/// deliveries that match.
fn next_matching(
    session: &WriteSession,
    progress: &JobProgress,
    limit: usize,
) -> Result<(Option<Position>, Matching), Fault> {
    let mut filter = progress.job.filter.clone();
    // A filter without a state selects deliveries that failed permanently.
    filter.state.get_or_insert(DeliveryState::FailedPermanent);
    let (conn, mut matching, mut left) = (&session.conn, Vec::new(), limit);
    let Some(selection) = Selection::of(conn, progress.workspace, &filter)? else {
        return Ok((None, matching));
    };
    let read = selection.read(Order::Oldest);
    let webhooks = selection.webhooks(conn, progress.workspace)?;
    for webhook in webhooks.into_iter().filter(|id| *id >= progress.at.webhook) {
        let here = (webhook == progress.at.webhook).then_some(progress.at.key);
        let span = selection.span(Order::Oldest, here);
        if left == 0 {
            return Ok((Some(Position { webhook, key: span.after }), matching));
        }
        let keys = listing::run(conn, read, webhook, span, left)?;
        for (_, id) in &keys {
            matching.extend(matching_one(session, progress, &selection, *id)?);
        }
        // If all are newer than the job, this webhook is done: the job ignores new deliveries.
        let are_newer = keys.iter().all(|(_, id)| *id > progress.newest);
        if let Some(key) = keys.last().filter(|_| keys.len() == left && !are_newer) {
            return Ok((Some(Position { webhook, key: *key }), matching));
        }
        // A webhook without deliveries costs one query as well.
        left = left.saturating_sub(keys.len() + 1);
    }
    Ok((None, matching))
}

/// A delivery, if the job has to queue it again.
fn matching_one(
    session: &WriteSession,
    progress: &JobProgress,
    selection: &Selection<'_>,
    id: i64,
) -> Result<Option<(DeliveryId, DeliveryState, WebhookId)>, Fault> {
    if id <= progress.looked_to || id > progress.newest {
        return Ok(None);
    }
    let mut query = session.conn.prepare_cached(THIS)?;
    let mut found = query.query([id])?;
    let Some(row) = found.next()? else { return Ok(None) };
    // A failed ping has served its purpose: its owner has seen the failure.
    let meant = progress.job.filter.kind.is_some() || rows::kind(row)? != EventType::PING;
    if !meant || !selection.matches(row)? {
        return Ok(None);
    }
    Ok(Some((DeliveryId(id), rows::state(row)?, WebhookId(row.get("webhook")?))))
}
