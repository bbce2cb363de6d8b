//! Jobs that redeliver by filter, a step at a time.
//!
//! # Invariants
//!
//! 1. Where a job stands is written with what it did: a process that ends in between goes on there,
//!    and a delivery is put back once.
//! 2. Workspaces take turns, a step each: a job waits for one step of every other workspace's.
//! 3. A workspace has [`JOBS_OPEN_MAX`] jobs that are not at their end, at most.

use rusqlite::{Connection, Row};
use weir_common::time::UnixTime;

use crate::domain::delivery::DeliveryState;
use crate::domain::event::EventType;
use crate::domain::id::{DeliveryId, JobId, WebhookId};
use crate::store::sqlite::error::Fault;
use crate::store::sqlite::listing::{self, Read, RowKey, Stretch};
use crate::store::sqlite::rows::{self, at, select_deliveries};
use crate::store::sqlite::writer::session::WriteSession;
use crate::store::sqlite::{deliveries, webhooks};
use crate::store::types::{Filter, JOBS_OPEN_MAX, Job, JobCreated, JobStep};

/// What is selected of a job.
macro_rules! select_jobs {
    ($rest:literal) => {
        concat!(
            "SELECT id, workspace, state, webhook, kind, since, until, created_at, newest, \
             looked_to, redelivered, ended_at, at_webhook, at_time, at_delivery FROM jobs ",
            $rest
        )
    };
}

const ONE: &str = select_jobs!("WHERE id = ?1");

const HOW_MANY_OPEN: &str = "SELECT count(*) FROM jobs WHERE workspace = ?1 AND ended_at IS NULL";

const NEXT_OPEN: &str =
    select_jobs!("WHERE ended_at IS NULL AND workspace > ?1 ORDER BY workspace, id LIMIT 1");

const THIS: &str = select_deliveries!("WHERE d.id = ?1");

/// A job and where it stands.
struct Standing {
    job: Job,
    workspace: i64,
    /// It looks at deliveries up to this number,
    newest: i64,
    /// and, where an earlier version began it, at none up to that one.
    looked_to: i64,
    at: Position,
}

/// What a job has looked at: all of the webhooks before this one, and of this one up to here.
#[derive(Clone, Copy)]
struct Position {
    webhook: i64,
    key: RowKey,
}

/// Writes down what is to be redelivered.
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
    let sql = "INSERT INTO jobs (workspace, state, webhook, kind, since, until, created_at, \
        newest) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)";
    session.conn.prepare_cached(sql)?.execute((
        workspace,
        filter.state.map(DeliveryState::code),
        filter.webhook.map(|webhook| webhook.0),
        filter.kind.map(EventType::code),
        filter.since.map(at),
        filter.until.map(at),
        at(now),
        session.counters.deliveries_made,
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
    let standing = found.next()?.map(standing).transpose()?;
    Ok(standing.filter(|standing| standing.workspace == workspace).map(|standing| standing.job))
}

/// A job of the workspace whose turn it is.
fn next_open(conn: &Connection, after: i64) -> Result<Option<Standing>, Fault> {
    let mut query = conn.prepare_cached(NEXT_OPEN)?;
    let mut found = query.query([after])?;
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
        at: Position {
            webhook: row.get("at_webhook")?,
            key: (row.get("at_time")?, row.get("at_delivery")?),
        },
    })
}

/// Takes a job of the workspace whose turn it is a step further.
pub(super) fn step(
    session: &mut WriteSession,
    limit: usize,
    now: UnixTime,
) -> Result<JobStep, Fault> {
    let next = match next_open(&session.conn, session.job_turn)? {
        None => next_open(&session.conn, 0)?,
        found => found,
    };
    let Some(standing) = next else { return Ok(JobStep::default()) };
    session.job_turn = standing.workspace;
    let (stands, matching) = look(session, &standing, limit)?;
    let mut webhooks: Vec<WebhookId> = Vec::new();
    for (id, state, webhook) in &matching {
        deliveries::begin_anew(session, *id, *state, now)?;
        webhooks.push(*webhook);
    }
    webhooks.sort_unstable();
    webhooks.dedup();
    let redelivered = rows::count(matching.len());
    let id = standing.job.id.0;
    if let Some(Position { webhook, key: (time, delivery) }) = stands {
        let sql = "UPDATE jobs SET at_webhook = ?2, at_time = ?3, at_delivery = ?4, \
            redelivered = redelivered + ?5 WHERE id = ?1";
        session.conn.prepare_cached(sql)?.execute((id, webhook, time, delivery, redelivered))?;
    } else {
        let sql = "UPDATE jobs SET redelivered = redelivered + ?2, ended_at = ?3, over_at = ?4 \
            WHERE id = ?1";
        let over_at = at(session.steady.of_unix(now));
        session.conn.prepare_cached(sql)?.execute((id, redelivered, at(now), over_at))?;
    }
    let more = stands.is_some() || next_open(&session.conn, 0)?.is_some();
    Ok(JobStep { webhooks, more })
}

type Matching = Vec<(DeliveryId, DeliveryState, WebhookId)>;

/// Looks at the next deliveries: where the job stands then, unless at its end, and those of them
/// that match.
fn look(
    session: &WriteSession,
    standing: &Standing,
    limit: usize,
) -> Result<(Option<Position>, Matching), Fault> {
    let mut filter = standing.job.filter.clone();
    // Who does not say which means those that were given up.
    let state = *filter.state.get_or_insert(DeliveryState::FailedPermanent);
    let failed = state == DeliveryState::FailedPermanent;
    let read = if failed { Read::NewerFailed } else { Read::Newer };
    let start = (filter.since.map_or(0, at), i64::MIN);
    let end = filter.until.map_or(i64::MAX, at);
    let alive = webhooks::alive(&session.conn, standing.workspace)?;
    let meant = |id: &i64| filter.webhook.is_none_or(|one| one.0 == *id);
    let left_over = alive.into_iter().filter(|id| *id >= standing.at.webhook && meant(id));
    let (mut matching, mut left) = (Vec::new(), limit);
    for webhook in left_over {
        let here = webhook == standing.at.webhook;
        let from = if here { standing.at.key.max(start) } else { start };
        if left == 0 {
            return Ok((Some(Position { webhook, key: from }), matching));
        }
        let stretch = Stretch { webhook, after: from, last: end };
        let keys = listing::run(&session.conn, read, stretch, left)?;
        for (_, id) in &keys {
            matching.extend(matching_one(session, standing, &filter, *id)?);
        }
        // Where all of them came after it, no more is to be found: it does not run after them.
        let are_newer = keys.iter().all(|(_, id)| *id > standing.newest);
        if let Some(key) = keys.last().filter(|_| keys.len() == left && !are_newer) {
            return Ok((Some(Position { webhook, key: *key }), matching));
        }
        // One that has nothing costs a look as well.
        left = left.saturating_sub(keys.len() + 1);
    }
    Ok((None, matching))
}

/// A delivery, where the job is to put it back.
fn matching_one(
    session: &WriteSession,
    standing: &Standing,
    filter: &Filter,
    id: i64,
) -> Result<Option<(DeliveryId, DeliveryState, WebhookId)>, Fault> {
    if id <= standing.looked_to || id > standing.newest {
        return Ok(None);
    }
    let mut query = session.conn.prepare_cached(THIS)?;
    let mut found = query.query([id])?;
    let Some(row) = found.next()? else { return Ok(None) };
    // A test that failed has told its owner what it was to tell.
    let meant = filter.kind.is_some() || rows::kind(row)? != EventType::Ping;
    if !meant || !deliveries::matches(filter, row)? {
        return Ok(None);
    }
    Ok(Some((DeliveryId(id), rows::state(row)?, WebhookId(row.get("webhook")?))))
}
