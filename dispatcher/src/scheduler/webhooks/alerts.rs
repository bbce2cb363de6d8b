//! The consequences of attempts and of time for a webhook's health, and the alerts of them. (core)
//!
//! # Invariants
//!
//! 1. A recovery follows a warning or a pause, and there is one however many of them there were.
//! 2. The operator's webhook has no health: it is never paused, and no alert is about it.
//!
//! Not here: the thresholds (`domain::health`), whom an alert concerns (`worker`).

use std::sync::Arc;

use weir_common::time::{Moment, UnixTime};

use crate::domain::delivery::NextState;
use crate::domain::health::{Notice, Observation};
use crate::domain::id::{DeliveryId, WebhookId};
use crate::domain::outcome::Outcome;
use crate::domain::webhook::{Probe, WebhookState};
use crate::scheduler::webhooks::Known;
use crate::scheduler::{Notification, Scheduler};

/// A change of a webhook's health, for its owners and for operators.
#[derive(Clone, Debug)]
#[expect(missing_docs, reason = "plain data: the names of fields say what they are")]
pub struct HealthAlert {
    /// What changed.
    pub change: HealthChange,
    pub at: UnixTime,
    pub webhook: WebhookId,
    pub workspace: Arc<str>,
    pub url: Arc<str>,
    /// Since when it is or was failing, or down.
    pub since: UnixTime,
    /// The outcome of the last attempt.
    pub last_outcome: Option<Outcome>,
}

/// What changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HealthChange {
    /// Too many deliveries fail.
    Failing,
    /// Deliveries pause.
    Paused,
    /// Neither any more: the first 2xx.
    Recovered,
}

impl Known {
    /// Applies a notice; returns the alert.
    fn notice(&mut self, notice: Option<Notice>, now: UnixTime) -> Option<Box<HealthAlert>> {
        let notice = notice.filter(|_| self.webhook.stopped_since().is_none())?;
        let health = &self.webhook.health;
        let (change, since) = match notice {
            Notice::Warn => (HealthChange::Failing, health.failing_since()),
            Notice::Pause => (HealthChange::Paused, health.down_since()),
        };
        let since = since.unwrap_or(now);
        self.webhook.health.begin_incident(since);
        if notice == Notice::Pause {
            self.webhook.paused_at = Some(now);
            self.webhook.probing = None;
        }
        Some(self.alert(change, since, now))
    }

    /// Ends an incident after a 2xx, if the webhook delivers; returns the alert.
    fn recovery(&mut self, now: UnixTime) -> Option<Box<HealthAlert>> {
        if self.webhook.state() != WebhookState::Delivering {
            return None;
        }
        let since = self.webhook.health.end_incident()?;
        Some(self.alert(HealthChange::Recovered, since, now))
    }

    fn alert(&self, change: HealthChange, since: UnixTime, at: UnixTime) -> Box<HealthAlert> {
        let webhook = &self.webhook;
        Box::new(HealthAlert {
            change,
            at,
            webhook: webhook.id,
            workspace: webhook.workspace.clone(),
            url: webhook.url.clone(),
            since,
            last_outcome: webhook.last_outcome.clone(),
        })
    }
}

impl Scheduler {
    /// Applies an attempt's outcome to the health; returns the alert.
    pub(in crate::scheduler) fn observe(
        &mut self,
        webhook: WebhookId,
        observation: Observation,
        outcome: &Outcome,
        now: Moment,
    ) -> Option<Box<HealthAlert>> {
        let policy = &self.policies.health;
        let known = self.webhooks.known.get_mut(&webhook)?;
        known.webhook.last_outcome = Some(outcome.clone());
        if known.webhook.is_operators() {
            return None;
        }
        let (health, notice) = known.webhook.health.after(policy, observation, now.unix);
        known.webhook.health = health;
        let alert = match observation {
            Observation::Succeeded | Observation::PingSucceeded => known.recovery(now.unix),
            Observation::Failed => None,
        };
        let alert = alert.or_else(|| known.notice(notice, now.unix));
        self.alerted(alert.as_deref(), now);
        self.webhooks.plan(webhook, &self.policies.health, now.unix);
        alert
    }

    /// Runs due health checks until one results in a notice; returns the alert.
    pub(in crate::scheduler) fn next_notice(
        &mut self,
        now: Moment,
    ) -> Option<(WebhookId, Option<Box<HealthAlert>>)> {
        while let Some((at, webhook)) = self.webhooks.due(now.unix) {
            let Some(known) = self.webhooks.known.get_mut(&webhook) else { continue };
            known.look_at = None;
            let (health, notice) = known.webhook.health.look(&self.policies.health, at);
            known.webhook.health = health;
            let alert = known.notice(notice, now.unix);
            self.alerted(alert.as_deref(), now);
            self.webhooks.plan(webhook, &self.policies.health, now.unix);
            if notice.is_some() {
                return Some((webhook, alert));
            }
        }
        None
    }

    /// Reports an alert, and stops deliveries if it is a pause.
    fn alerted(&mut self, alert: Option<&HealthAlert>, now: Moment) {
        let Some(alert) = alert else { return };
        self.notifications.push_back(Notification::Health(Box::new(alert.clone())));
        if alert.change == HealthChange::Paused {
            self.open(alert.webhook, None, now.tick);
        }
    }

    /// Applies an attempt's result to the webhook's probe, if this delivery is the probe.
    pub(in crate::scheduler) fn probed(
        &mut self,
        webhook: WebhookId,
        delivery: DeliveryId,
        after: NextState,
    ) {
        let Some(known) = self.webhooks.known.get_mut(&webhook) else { return };
        if known.webhook.probing != Some(Probe::This(delivery)) {
            return;
        }
        known.webhook.probing = match after {
            NextState::Again { .. } => Some(Probe::This(delivery)),
            NextState::FailedPermanent => Some(Probe::Any),
            NextState::Delivered => {
                known.delivered_probe = Some(delivery);
                None
            }
        };
    }
}
