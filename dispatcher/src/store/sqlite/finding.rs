//! Webhooks of all workspaces, for operators: those that are paused, failing or disabled.
//!
//! Invariant: a call examines [`EXAMINED_MAX`] webhooks and one more, however few of them match.

use rusqlite::{Connection, Row};
use weir_common::time::UnixTime;

use crate::domain::id::WebhookId;
use crate::domain::webhook::filter::WebhookFilter;
use crate::domain::webhook::{Webhook, WebhookState};
use crate::store::encryption::Sealer;
use crate::store::sqlite::error::Fault;
use crate::store::sqlite::writer::session::WriteSession;
use crate::store::sqlite::{rows, webhooks};
use crate::store::types::Page;

/// Webhooks that one call examines: a few milliseconds of work.
pub(super) const EXAMINED_MAX: usize = 1_000;

/// A page of webhooks that match, oldest first.
pub(super) fn page(
    conn: &Connection,
    sealer: &Sealer,
    filter: &WebhookFilter,
    after: Option<WebhookId>,
    limit: usize,
) -> Result<Page<Webhook, WebhookId>, Fault> {
    let workspace = filter.workspace.as_deref();
    // No filter selects a webhook that delivers, and most do: their secrets are not opened.
    let matching = |row: &Row<'_>| match rows::webhook_state(row)? {
        WebhookState::Delivering => Ok(None),
        _ => rows::webhook(row, sealer).map(|webhook| filter.matches(&webhook).then_some(webhook)),
    };
    let matching = |row: &Row<'_>| of_list(row, matching);
    let Page { mut items, mut next } =
        webhooks::page(conn, workspace, after, EXAMINED_MAX, matching)?;
    if items.len() > limit {
        items.truncate(limit);
        next = items.last().map(|last| last.id);
    }
    Ok(Page { items, next })
}

/// What `read` makes of a row for a list; nothing, if the row cannot be read.
pub(super) fn of_list(
    row: &Row<'_>,
    read: impl FnOnce(&Row<'_>) -> Result<Option<Webhook>, Fault>,
) -> Result<Option<Webhook>, Fault> {
    let id = row.get("id")?;
    read(row).or_else(|fault| fault.skip("webhook unreadable", ("webhook", id)).map(|()| None))
}

/// Reactivates the paused webhooks of such a page, and returns them.
pub(super) fn reactivate(
    session: &mut WriteSession,
    filter: &WebhookFilter,
    after: Option<WebhookId>,
    limit: usize,
    now: UnixTime,
) -> Result<Page<WebhookId, WebhookId>, Fault> {
    let Page { mut items, next } = page(&session.conn, &session.sealer, filter, after, limit)?;
    items.retain(|webhook| webhook.state() == WebhookState::Paused);
    for webhook in &items {
        webhooks::reactivate(session, &webhook.workspace, webhook.id, now)?;
    }
    Ok(Page { items: items.into_iter().map(|webhook| webhook.id).collect(), next })
}
