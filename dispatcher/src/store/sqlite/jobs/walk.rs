//! Walks the deliveries in a job's scope, webhook by webhook, oldest first, or by number if they
//! are named.
//!
//! Invariant: a walk examines a bounded number of deliveries, and continues where it ended.

use std::collections::BTreeMap;

use rusqlite::{Connection, OptionalExtension, Row};
use weir_common::time::UnixTime;

use crate::domain::delivery::DeliveryState;
use crate::domain::event::EventType;
use crate::domain::id::{DeliveryId, WebhookId};
use crate::store::sqlite::deliveries;
use crate::store::sqlite::error::Fault;
use crate::store::sqlite::listing::{self, RowKey};
use crate::store::sqlite::rows;
use crate::store::sqlite::selection::Selection;
use crate::store::types::{Filter, JobScope, Matches, Order, WebhookMatches};

/// Deliveries that a count examines: tens of milliseconds of a reader. It is exact up to 10,000, or
/// less for a workspace with more than a thousand webhooks.
const COUNTED_MAX: usize = 11_000;

const NEWEST: &str =
    "SELECT created_at FROM deliveries WHERE webhook = ?1 ORDER BY created_at DESC LIMIT 1";

/// A position: deliveries of earlier webhooks are done, and those of `webhook` up to `key`. For
/// named deliveries only the number in `key` counts.
#[derive(Clone, Copy, Default)]
pub(super) struct Position {
    pub(super) webhook: i64,
    pub(super) key: RowKey,
}

/// Where a walk starts, and the deliveries that it ignores.
#[derive(Clone, Copy)]
pub(super) struct Start {
    pub(super) at: Position,
    /// Deliveries with a later number are ignored.
    pub(super) newest: i64,
    /// Where the walk through a webhook's deliveries ends: all that were there are up to this time,
    /// however the clock was set, and of newer ones few.
    pub(super) newest_at: i64,
    /// Of a job that an earlier version started: deliveries up to this number are done.
    pub(super) looked_to: i64,
}

/// A delivery in a job's scope.
pub(super) struct Match {
    pub(super) id: DeliveryId,
    pub(super) webhook: WebhookId,
    state: DeliveryState,
    due: UnixTime,
}

/// The deliveries of a walk.
#[derive(Default)]
pub(super) struct Walked {
    pub(super) matching: Vec<Match>,
    pub(super) examined: usize,
    /// Where the next walk starts; `None` at the end.
    pub(super) rest: Option<Position>,
}

/// When the latest delivery of the webhooks that a filter concerns was accepted; 0 if they have
/// none.
pub(super) fn newest_at(conn: &Connection, workspace: i64, filter: &Filter) -> Result<i64, Fault> {
    let mut newest = 0;
    let Some(selection) = Selection::of(conn, workspace, filter)? else { return Ok(newest) };
    let mut query = conn.prepare_cached(NEWEST)?;
    for webhook in selection.webhooks(conn, workspace)? {
        let found: Option<i64> = query.query_row([webhook], |row| row.get(0)).optional()?;
        newest = newest.max(found.unwrap_or(0));
    }
    Ok(newest)
}

/// Counts the deliveries in a scope.
pub(in crate::store::sqlite) fn count(
    conn: &Connection,
    workspace: &str,
    scope: &JobScope,
    now: UnixTime,
) -> Result<Matches, Fault> {
    let start =
        Start { at: Position::default(), newest: i64::MAX, newest_at: i64::MAX, looked_to: 0 };
    let walked = match rows::workspace_of(conn, workspace)? {
        Some(workspace) => walk(conn, workspace, scope, start, COUNTED_MAX)?,
        None => Walked::default(),
    };
    let mut webhooks = BTreeMap::new();
    for one in &walked.matching {
        let none = WebhookMatches { webhook: one.webhook, count: 0, due: 0 };
        let counts = webhooks.entry(one.webhook).or_insert(none);
        counts.count += 1;
        counts.due += u64::from(one.state == DeliveryState::Waiting && one.due <= now);
    }
    let is_unknown = |id: &DeliveryId| walked.matching.iter().all(|one| one.id != *id);
    let unknown = match scope {
        JobScope::Named(ids) => ids.iter().copied().filter(is_unknown).collect(),
        JobScope::Matching(_) => Vec::new(),
    };
    let webhooks = webhooks.into_values().collect();
    Ok(Matches { webhooks, complete: walked.rest.is_none(), unknown })
}

/// Examines up to `limit` deliveries.
pub(super) fn walk(
    conn: &Connection,
    workspace: i64,
    scope: &JobScope,
    start: Start,
    limit: usize,
) -> Result<Walked, Fault> {
    match scope {
        JobScope::Matching(filter) => walk_matching(conn, workspace, filter, start, limit),
        JobScope::Named(ids) => walk_named(conn, workspace, ids, start, limit),
    }
}

fn walk_matching(
    conn: &Connection,
    workspace: i64,
    filter: &Filter,
    start: Start,
    limit: usize,
) -> Result<Walked, Fault> {
    // A filter without a state selects deliveries that failed permanently.
    let state = filter.state.unwrap_or(DeliveryState::FailedPermanent);
    let filter = Filter { state: Some(state), ..filter.clone() };
    let (mut walked, mut left) = (Walked::default(), limit);
    let Some(selection) = Selection::of(conn, workspace, &filter)? else { return Ok(walked) };
    let read = selection.read(Order::Oldest);
    let webhooks = selection.webhooks(conn, workspace)?;
    for webhook in webhooks.into_iter().filter(|id| *id >= start.at.webhook) {
        let here = (webhook == start.at.webhook).then_some(start.at.key);
        let mut span = selection.span(Order::Oldest, here);
        span.last = span.last.min(start.newest_at);
        if left == 0 {
            walked.rest = Some(Position { webhook, key: span.after });
            return Ok(walked);
        }
        let keys = listing::run(conn, read, webhook, span, left)?;
        for (_, id) in &keys {
            walked.matching.extend(matching_one(conn, start, &selection, *id)?);
        }
        walked.examined += keys.len();
        if let Some(key) = keys.last().filter(|_| keys.len() == left) {
            walked.rest = Some(Position { webhook, key: *key });
            return Ok(walked);
        }
        // A webhook without deliveries costs one query as well.
        left = left.saturating_sub(keys.len() + 1);
    }
    Ok(walked)
}

/// A delivery, if the filter selects it.
fn matching_one(
    conn: &Connection,
    start: Start,
    selection: &Selection<'_>,
    id: i64,
) -> Result<Option<Match>, Fault> {
    if id <= start.looked_to || id > start.newest {
        return Ok(None);
    }
    let mut query = conn.prepare_cached(deliveries::ROW)?;
    let mut found = query.query([id])?;
    let Some(row) = found.next()? else { return Ok(None) };
    // A failed ping has served its purpose: its owner has seen the failure.
    let is_meant = selection.names_type() || rows::kind(row)? != EventType::PING;
    if is_meant && selection.matches(row)? { matched(row).map(Some) } else { Ok(None) }
}

fn walk_named(
    conn: &Connection,
    workspace: i64,
    ids: &[DeliveryId],
    start: Start,
    limit: usize,
) -> Result<Walked, Fault> {
    let mut walked = Walked::default();
    let mut query = conn.prepare_cached(deliveries::THIS)?;
    for id in ids.iter().filter(|id| id.0 > start.at.key.1) {
        if walked.examined == limit {
            return Ok(walked);
        }
        walked.examined += 1;
        walked.rest = Some(Position { webhook: 0, key: (0, id.0) });
        let mut found = query.query((id.0, workspace))?;
        if let Some(row) = found.next()? {
            walked.matching.push(matched(row)?);
        }
    }
    walked.rest = None;
    Ok(walked)
}

fn matched(row: &Row<'_>) -> Result<Match, Fault> {
    Ok(Match {
        id: DeliveryId(row.get("id")?),
        webhook: WebhookId(row.get("webhook")?),
        state: rows::state(row)?,
        due: rows::time(row, "due")?,
    })
}
