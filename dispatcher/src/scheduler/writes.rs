//! Results of attempts and health checks, queued until they are on disk. (core)
//!
//! Invariant: at most one write is with the store; results that arrive meanwhile go into the next.
//!
//! Not here: the consequences of an attempt (`attempts`), how they are written (the store).

#![expect(missing_docs, reason = "plain data: the names of fields say what they are")]

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use weir_common::time::{Moment, Tick, UnixTime};

use crate::domain::attempt::{Attempt, AttemptRecord};
use crate::domain::delivery::NextState;
use crate::domain::event::EventType;
use crate::domain::id::{DeliveryId, WebhookId};
use crate::domain::outcome::Outcome;
use crate::domain::webhook::WebhookUpdate;
use crate::scheduler::queues::Ended;
use crate::scheduler::reads::STORE_PAUSE;
use crate::scheduler::webhooks::Webhooks;
use crate::scheduler::webhooks::alerts::HealthAlert;
use crate::scheduler::{Notification, Scheduler};

/// The report of an attempt to operators.
#[derive(Clone, Debug)]
pub struct AttemptReport {
    pub webhook: WebhookId,
    /// The webhook's workspace.
    pub workspace: Arc<str>,
    pub delivery: DeliveryId,
    /// The event's public identifier.
    pub event_id: Arc<str>,
    /// The event type.
    pub kind: EventType,
    /// The attempt; after a fault of the dispatcher the next attempt has the same number.
    pub attempt: Attempt,
    /// The delivery's next state; `None` after a fault of the dispatcher.
    pub after: Option<NextState>,
}

/// A delivery that failed permanently, for operators.
#[derive(Clone, Debug)]
pub struct Exhausted {
    /// The end of its last attempt.
    pub at: UnixTime,
    pub webhook: WebhookId,
    pub workspace: Arc<str>,
    /// The URL that its last attempt called.
    pub url: Arc<str>,
    pub delivery: DeliveryId,
    /// The event's public identifier.
    pub event_id: Arc<str>,
    /// The event type.
    pub kind: EventType,
    pub attempts: u32,
    /// When the first of them started.
    pub first_attempt_at: UnixTime,
    pub last_outcome: Outcome,
}

/// One atomic write.
#[derive(Debug)]
pub struct Write {
    /// Ended attempts.
    pub records: Vec<AttemptRecord>,
    /// Changes of their webhooks.
    pub updates: Vec<WebhookUpdate>,
    /// Alerts that become mails to owners, and events for operators.
    pub alerts: Vec<HealthAlert>,
    /// Deliveries that failed permanently, which become events for operators.
    pub exhausted: Vec<Exhausted>,
}

/// An ended attempt that is not on disk yet, or a change of health without one.
#[derive(Debug)]
pub(super) struct PendingWrite {
    pub(super) webhook: WebhookId,
    /// The attempt, in flight until this is on disk, and its record.
    pub(super) attempt: Option<(Ended, AttemptRecord)>,
    /// The report of the attempt, which is true once this is on disk.
    pub(super) report: Option<Box<AttemptReport>>,
    pub(super) alert: Option<Box<HealthAlert>>,
    /// Its delivery, if it failed permanently.
    pub(super) exhausted: Option<Box<Exhausted>>,
}

/// The queued writes.
#[derive(Debug, Default)]
pub(super) struct PendingWrites {
    waiting: Vec<PendingWrite>,
    with_store: Vec<PendingWrite>,
    /// When to repeat a failed write.
    paused_until: Tick,
    failing_since: Option<Tick>,
}

impl PendingWrites {
    /// The results that are not with the store yet.
    pub(super) fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Whether a write is with the store.
    pub(super) fn are_with_store(&self) -> bool {
        !self.with_store.is_empty()
    }

    /// The next write with everything that is queued, unless one is with the store.
    pub(super) fn next(&mut self, webhooks: &Webhooks, now: Tick) -> Option<Write> {
        if self.are_with_store() || self.waiting.is_empty() || now < self.paused_until {
            return None;
        }
        self.with_store = std::mem::take(&mut self.waiting);
        let all = &self.with_store;
        let records = all.iter().filter_map(|one| one.attempt.as_ref());
        let records = records.map(|(_, record)| record.clone()).collect();
        let alerts = all.iter().filter_map(|one| one.alert.as_deref().cloned()).collect();
        let exhausted = all.iter().filter_map(|one| one.exhausted.as_deref().cloned()).collect();
        let mut changed: Vec<WebhookId> = all.iter().map(|one| one.webhook).collect();
        changed.sort();
        changed.dedup();
        let updates = changed.iter().filter_map(|id| webhooks.update(*id)).collect();
        Some(Write { records, updates, alerts, exhausted })
    }

    /// Removes the results that are on disk now.
    pub(super) fn written(&mut self) -> Vec<PendingWrite> {
        self.failing_since = None;
        std::mem::take(&mut self.with_store)
    }

    /// How long no result could be written, while some wait for it.
    pub(super) fn failing_for(&self, now: Tick) -> Duration {
        self.failing_since.map_or(Duration::ZERO, |since| now.since(since))
    }

    /// Requeues a failed write before later results.
    pub(super) fn failed(&mut self, now: Tick) {
        self.paused_until = now.plus(STORE_PAUSE);
        self.failing_since.get_or_insert(now);
        self.with_store.append(&mut self.waiting);
        self.waiting = std::mem::take(&mut self.with_store);
    }
}

impl Scheduler {
    /// Runs due health checks, and queues their results.
    pub(super) fn check_health(&mut self, now: Moment) {
        while let Some((webhook, alert)) = self.next_notice(now) {
            let (attempt, report, exhausted) = (None, None, None);
            self.keep(PendingWrite { webhook, attempt, report, alert, exhausted });
        }
    }

    /// Queues a result.
    pub(super) fn keep(&mut self, pending: PendingWrite) {
        self.webhooks.keep(pending.webhook);
        self.writes.waiting.push(pending);
    }

    /// Applies and reports a result that is on disk now: releases its slot, and opens the queue
    /// after a probe. A delivery in `redelivered` is read again: it is due at once, whatever the
    /// attempt decided.
    pub(super) fn settle(
        &mut self,
        written: PendingWrite,
        redelivered: &BTreeSet<DeliveryId>,
        now: Moment,
    ) {
        let PendingWrite { webhook, attempt, report, .. } = written;
        if let Some(mut report) = report {
            if redelivered.contains(&report.delivery) {
                report.after = Some(NextState::Again { due: now.unix, step: 0 });
            }
            self.notifications.push_back(Notification::Attempt(report));
        }
        // After a delivered probe the other deliveries may start.
        self.webhooks.settle(webhook, attempt.as_ref().map(|(ended, _)| ended.delivery));
        let Some((ended, _)) = attempt else { return };
        if redelivered.contains(&ended.delivery) {
            self.end(webhook, Ended { again: None, ..ended }, now);
            self.missed(webhook, now.tick);
        } else {
            self.end(webhook, ended, now);
        }
    }
}
