//! Records ended attempts.
//!
//! Invariant: for a deleted webhook or delivery only the attempt is stored: its start counts in the
//! rate limit of the endpoint. An ended delivery stays ended, and one whose schedule began anew
//! while the attempt was in flight waits as that made it, unless the attempt delivered it.

use std::collections::BTreeSet;

use rusqlite::OptionalExtension;

use crate::domain::attempt::AttemptRecord;
use crate::domain::delivery::{DeliveryState, NextState};
use crate::domain::id::{DeliveryId, WebhookId};
use crate::domain::operator_event::{About, OperatorEvent};
use crate::domain::webhook::WebhookUpdate;
use crate::store::mail::QueuedMail;
use crate::store::sqlite::error::Fault;
use crate::store::sqlite::job_counts::Redelivered;
use crate::store::sqlite::rows::{at, probe_column, span};
use crate::store::sqlite::writer::session::WriteSession;
use crate::store::sqlite::{health, outbox};

const STATE: &str = "SELECT d.state, d.job, d.webhook, d.redeliveries \
    FROM deliveries d JOIN webhooks w ON w.id = d.webhook \
    WHERE d.id = ?1 AND w.deleted_up_to IS NULL";

/// What a record did not change, since something else did meanwhile.
#[derive(Default)]
pub(super) struct Stale {
    /// Failed deliveries whose schedule began anew while the attempt was in flight.
    pub(super) deliveries: BTreeSet<DeliveryId>,
    /// Webhooks that were reactivated or deleted, or have another URL.
    webhooks: BTreeSet<WebhookId>,
}

impl Stale {
    /// Whether an event is about what did not come about.
    pub(super) fn has(&self, event: &OperatorEvent) -> bool {
        match event.about {
            About::Webhook(webhook) => self.webhooks.contains(&webhook),
            About::Delivery(delivery) => self.deliveries.contains(&delivery),
        }
    }
}

/// Records attempts and the changes that follow from them.
pub(super) fn record(
    session: &mut WriteSession,
    ended: &[AttemptRecord],
    updates: &[WebhookUpdate],
    mails: &[QueuedMail],
) -> Result<Stale, Fault> {
    let mut stale = Stale::default();
    for one in ended {
        if attempt(session, one)? == Applied::No {
            stale.deliveries.insert(one.delivery);
        }
    }
    for one in updates {
        if !webhook(session, one)? {
            stale.webhooks.insert(one.webhook);
        }
    }
    // A mail about what did not come about is not true.
    for mail in mails.iter().filter(|mail| !stale.webhooks.contains(&mail.webhook())) {
        outbox::store(&session.conn, mail, session.steady.now())?;
    }
    Ok(stale)
}

/// Whether an attempt decided about its delivery.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Applied {
    /// It did, or the delivery had ended or was deleted.
    Yes,
    /// It failed, and the schedule of the delivery began anew since it started.
    No,
}

fn attempt(session: &mut WriteSession, ended: &AttemptRecord) -> Result<Applied, Fault> {
    let mut query = session.conn.prepare_cached(STATE)?;
    let found = query.query_row([ended.delivery.0], |row| {
        let redeliveries: u32 = row.get("redeliveries")?;
        Ok((row.get::<_, u8>("state")?, redeliveries, Redelivered::of(row)?))
    });
    let found = found.optional()?;
    drop(query);
    let outcome = ended.attempt.outcome.to_string();
    let ended_at = ended.attempt.started_at.plus(ended.attempt.took);
    let over_at = at(session.steady.of_unix(ended_at));
    let sql = "INSERT INTO attempts \
        (delivery, endpoint, number, started_at, took, outcome, over_at, trace, webhook, \
        workspace) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, \
        (SELECT id FROM workspaces WHERE name = ?10))";
    let alone = found.is_none();
    session.conn.prepare_cached(sql)?.execute((
        if alone { DeliveryId::NONE.0 } else { ended.delivery.0 },
        ended.endpoint.0,
        ended.attempt.number,
        at(ended.attempt.started_at),
        span(ended.attempt.took),
        &outcome,
        alone.then_some(over_at),
        found.and_then(|_| ended.attempt.trace.stored()),
        alone.then_some(ended.webhook.0),
        alone.then_some(&*ended.workspace),
    ))?;
    let Some((state, redeliveries, counted)) = found else { return Ok(Applied::Yes) };
    if let Some(transcript) = &ended.transcript {
        let sql = "INSERT INTO transcripts (attempt, webhook, over_at, record) \
            VALUES (?1, ?2, ?3, ?4)";
        let id = session.conn.last_insert_rowid();
        let row = (id, ended.webhook.0, over_at, transcript.stored());
        session.conn.prepare_cached(sql)?.execute(row)?;
    }
    let waits = state == DeliveryState::Waiting.code();
    let begins_anew = redeliveries != ended.redeliveries && ended.after != NextState::Delivered;
    if waits && !begins_anew {
        if let Some(counted) = counted {
            counted.moved(&session.conn, DeliveryState::Waiting, Some(ended.after.state()))?;
        }
        update_waiting(session, ended, &outcome, over_at)?;
        return Ok(Applied::Yes);
    }
    let sql = "UPDATE deliveries SET attempts = max(attempts, ?2), last_outcome = ?3 WHERE id = ?1";
    let row = (ended.delivery.0, ended.attempt.number, outcome);
    session.conn.prepare_cached(sql)?.execute(row)?;
    Ok(if waits { Applied::No } else { Applied::Yes })
}

/// Applies an attempt to a waiting delivery.
fn update_waiting(
    session: &mut WriteSession,
    ended: &AttemptRecord,
    outcome: &str,
    over_at: i64,
) -> Result<(), Fault> {
    let began = (
        ended.delivery.0,
        ended.attempt.number,
        ended.first_attempt_at.map(at),
        ended.since.map(at),
        span(ended.paused_before),
        outcome,
    );
    let state = match ended.after {
        NextState::Again { due, step } => {
            let sql = "UPDATE deliveries SET attempts = max(attempts, ?2), \
                first_attempt_at = ?3, since = ?4, paused_before = ?5, last_outcome = ?6, \
                due = ?7, step = ?8 WHERE id = ?1";
            let (id, number, first, since, paused, outcome) = began;
            let row = (id, number, first, since, paused, outcome, at(due), step);
            session.conn.prepare_cached(sql)?.execute(row)?;
            return Ok(());
        }
        NextState::Delivered => DeliveryState::Delivered,
        NextState::FailedPermanent => DeliveryState::FailedPermanent,
    };
    let sql = "UPDATE deliveries SET attempts = max(attempts, ?2), first_attempt_at = ?3, \
        since = ?4, paused_before = ?5, last_outcome = ?6, state = ?7, ended_at = ?8, \
        over_at = ?9 WHERE id = ?1";
    let (id, number, first, since, paused, outcome) = began;
    let ended_at = at(ended.attempt.started_at.plus(ended.attempt.took));
    let row = (id, number, first, since, paused, outcome, state.code(), ended_at, over_at);
    session.conn.prepare_cached(sql)?.execute(row)?;
    session.counters.waiting = session.counters.waiting.saturating_sub(1);
    Ok(())
}

/// Changes a webhook; returns whether the update is not stale.
fn webhook(session: &WriteSession, update: &WebhookUpdate) -> Result<bool, Fault> {
    let sql = "UPDATE webhooks SET health = ?2, look_at = ?3, paused_at = coalesce(paused_at, ?4), \
        probing = ?5, last_outcome = ?7 \
        WHERE id = ?1 AND deleted_up_to IS NULL AND paused_total = ?6";
    let changed = session.conn.prepare_cached(sql)?.execute((
        update.webhook.0,
        health::json(&update.health)?,
        update.look_at.map(at),
        update.paused_at.map(at),
        probe_column(update.probing),
        span(update.paused_total),
        update.last_outcome.as_ref().map(ToString::to_string),
    ))?;
    Ok(changed > 0)
}
