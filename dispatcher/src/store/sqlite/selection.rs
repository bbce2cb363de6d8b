//! Which deliveries of a workspace a filter selects: where to read, and what to compare.
//!
//! Invariant: webhook, time, event and `failed_permanent` narrow what is read, by indexes; all else
//! is compared row by row, so its readers examine a bounded number of rows at a time.

use rusqlite::{Connection, OptionalExtension, Row};

use crate::domain::delivery::DeliveryState;
use crate::domain::outcome::OutcomeClass;
use crate::store::sqlite::error::Fault;
use crate::store::sqlite::listing::{Read, RowKey, Span};
use crate::store::sqlite::rows::{self, at};
use crate::store::sqlite::webhooks;
use crate::store::types::{Filter, Order};

const EVENT: &str = "SELECT id, created_at FROM events WHERE workspace = ?1 AND name = ?2";

/// A filter, with what it needs from the database.
pub(super) struct Selection<'f> {
    filter: &'f Filter,
    /// The number of the event, if the filter names one.
    event: Option<i64>,
    /// When the deliveries were accepted: from, to, both included.
    first: i64,
    last: i64,
}

impl<'f> Selection<'f> {
    /// `None` if there is no such event, and so no delivery of it.
    pub(super) fn of(
        conn: &Connection,
        workspace: i64,
        filter: &'f Filter,
    ) -> rusqlite::Result<Option<Self>> {
        let mut first = filter.since.map_or(0, at);
        let mut last = filter.until.map_or(i64::MAX, |until| at(until).saturating_sub(1));
        let mut event = None;
        if let Some(name) = &filter.event {
            let mut query = conn.prepare_cached(EVENT)?;
            let found = query.query_row((workspace, name), |row| Ok((row.get(0)?, row.get(1)?)));
            let Some((id, created_at)) = found.optional()? else { return Ok(None) };
            event = Some(id);
            // An event and its deliveries are accepted at one time.
            (first, last) = (first.max(created_at), last.min(created_at));
        }
        Ok(Some(Self { filter, event, first, last }))
    }

    /// The webhooks of the workspace that it concerns.
    pub(super) fn webhooks(&self, conn: &Connection, of: i64) -> rusqlite::Result<Vec<i64>> {
        let mut webhooks = webhooks::alive(conn, of)?;
        webhooks.retain(|id| self.filter.webhook.is_none_or(|one| one.0 == *id));
        Ok(webhooks)
    }

    /// Whether the filter has a type of event.
    pub(super) fn names_type(&self) -> bool {
        self.filter.kind.is_some()
    }

    pub(super) fn read(&self, order: Order) -> Read {
        match (order, self.filter.state) {
            (Order::Newest, Some(DeliveryState::FailedPermanent)) => Read::OlderFailed,
            (Order::Newest, _) => Read::Older,
            (Order::Oldest, Some(DeliveryState::FailedPermanent)) => Read::NewerFailed,
            (Order::Oldest, _) => Read::Newer,
        }
    }

    /// Where to read in this order, after `after`.
    pub(super) fn span(&self, order: Order, after: Option<RowKey>) -> Span {
        match order {
            Order::Newest => {
                let start = (self.last, i64::MAX);
                Span { after: after.map_or(start, |key| key.min(start)), last: self.first }
            }
            Order::Oldest => {
                let start = (self.first, i64::MIN);
                Span { after: after.map_or(start, |key| key.max(start)), last: self.last }
            }
        }
    }

    /// Whether a delivery's row is selected.
    pub(super) fn matches(&self, row: &Row<'_>) -> Result<bool, Fault> {
        let Filter { state, webhook, kind, tenant, outcome, status, .. } = self.filter;
        let created_at: i64 = row.get("created_at")?;
        let (delivery_webhook, event): (i64, i64) = (row.get("webhook")?, row.get("event")?);
        let (delivery_kind, delivery_state) = (rows::kind(row)?, rows::state(row)?);
        let of: Option<String> = if tenant.is_some() { row.get("tenant")? } else { None };
        let plain = state.is_none_or(|one| one == delivery_state)
            && webhook.is_none_or(|one| one.0 == delivery_webhook)
            && kind.is_none_or(|one| one == delivery_kind)
            && self.event.is_none_or(|one| one == event)
            && tenant.as_deref().is_none_or(|one| of.as_deref() == Some(one))
            && (self.first..=self.last).contains(&created_at);
        if !plain {
            return Ok(false);
        }
        if outcome.is_none() && status.is_none() {
            return Ok(true);
        }
        let Some(last) = rows::last_outcome(row)? else { return Ok(false) };
        let class = OutcomeClass::of_name(last.class());
        Ok(outcome.is_none_or(|one| class == Some(one))
            && status.is_none_or(|one| last.status() == Some(one)))
    }
}
