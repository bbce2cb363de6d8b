//! What came of attempts and of time, kept until it is on disk.
//!
//! Invariant: one write at most is with the store, and what comes meanwhile goes into the next.
//!
//! Not here: what follows from an attempt (`attempts`), how it is written (the store).

use weir_common::time::{Moment, Tick};

use crate::domain::attempt::AttemptRecord;
use crate::domain::id::WebhookId;
use crate::domain::webhook::WebhookUpdate;
use crate::scheduler::Scheduler;
use crate::scheduler::queues::Ended;
use crate::scheduler::reads::STORE_PAUSE;
use crate::scheduler::webhooks::{HealthAlert, Webhooks};

/// One write: all of it or nothing.
#[derive(Debug)]
pub struct Write {
    /// Attempts that are over.
    pub records: Vec<AttemptRecord>,
    /// What is known of their webhooks.
    pub updates: Vec<WebhookUpdate>,
    /// What owners are told by mail.
    pub alerts: Vec<HealthAlert>,
}

/// An attempt that is over and not yet on disk, or a change of health without one.
#[derive(Debug)]
pub(super) struct PendingWrite {
    pub(super) webhook: WebhookId,
    /// What is under way until this is on disk, and its record.
    pub(super) attempt: Option<(Ended, AttemptRecord)>,
    pub(super) alert: Option<Box<HealthAlert>>,
}

/// All that is not on disk yet.
#[derive(Debug, Default)]
pub(super) struct PendingWrites {
    waiting: Vec<PendingWrite>,
    with_store: Vec<PendingWrite>,
    /// When the store may be asked to write again after a failure.
    paused_until: Tick,
}

impl PendingWrites {
    /// How many are not with the store yet.
    pub(super) fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Whether the store is writing.
    pub(super) fn are_with_store(&self) -> bool {
        !self.with_store.is_empty()
    }

    /// Hands all that waits to the store, unless that is busy with what came before.
    pub(super) fn next(&mut self, webhooks: &Webhooks, now: Tick) -> Option<Write> {
        if self.are_with_store() || self.waiting.is_empty() || now < self.paused_until {
            return None;
        }
        self.with_store = std::mem::take(&mut self.waiting);
        let all = &self.with_store;
        let records = all.iter().filter_map(|one| one.attempt.as_ref());
        let records = records.map(|(_, record)| record.clone()).collect();
        let alerts = all.iter().filter_map(|one| one.alert.as_deref().cloned()).collect();
        let mut changed: Vec<WebhookId> = all.iter().map(|one| one.webhook).collect();
        changed.sort();
        changed.dedup();
        let updates = changed.iter().filter_map(|id| webhooks.update(*id)).collect();
        Some(Write { records, updates, alerts })
    }

    /// Takes out what is on disk now.
    pub(super) fn written(&mut self) -> Vec<PendingWrite> {
        std::mem::take(&mut self.with_store)
    }

    /// Keeps what could not be written, before what came since.
    pub(super) fn failed(&mut self, now: Tick) {
        self.paused_until = now.plus(STORE_PAUSE);
        self.with_store.append(&mut self.waiting);
        self.waiting = std::mem::take(&mut self.with_store);
    }
}

impl Scheduler {
    /// Looks at the webhooks whose time it is, and keeps what follows.
    pub(super) fn check_health(&mut self, now: Moment) {
        while let Some((webhook, alert)) = self.next_notice(now) {
            self.keep(PendingWrite { webhook, attempt: None, alert });
        }
    }

    /// Keeps what is over until it is written.
    pub(super) fn keep(&mut self, pending: PendingWrite) {
        self.webhooks.keep(pending.webhook);
        self.writes.waiting.push(pending);
    }

    /// Goes on with what was kept, which is on disk.
    pub(super) fn settle(&mut self, written: PendingWrite, now: Moment) {
        let PendingWrite { webhook, attempt, .. } = written;
        // A probe that was delivered lets others start from here on.
        self.webhooks.settle(webhook, attempt.as_ref().map(|(ended, _)| ended.delivery));
        if let Some((ended, _)) = attempt {
            self.end(webhook, ended, now);
        }
    }
}
