//! The webhooks that have work: where they lead, how they fare, which delivery probes them, and
//! what is to be written of all that.
//!
//! What is known here of a webhook's health is newer than what is on disk; a webhook that is read
//! anew keeps it, unless its owner has reactivated it in the meantime.
//!
//! Invariant: whether a webhook is paused or probing is known here alone. What its queue may start
//! is derived from it each time ([`Webhooks::flow`]).

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::sync::{Arc, Weak};

use url::Url;
use weir_common::time::{Moment, UnixTime};

use crate::domain::delivery::NextState;
use crate::domain::health::{Notice, Observation, Policy};
use crate::domain::id::{DeliveryId, EndpointId, WebhookId};
use crate::domain::outcome::Outcome;
use crate::domain::webhook::{Probe, Secrets, Webhook, WebhookUpdate};
use crate::scheduler::{Notification, Scheduler};

/// So few checks that are out of date are not worth tidying up.
const CHECKS_MIN: usize = 64;

/// Where a webhook's deliveries go, what signs them, and for whom.
#[derive(Debug)]
pub struct Target {
    /// Whose it is.
    pub workspace: Arc<str>,
    /// Where to.
    pub url: Url,
    /// What signs them.
    pub secrets: Secrets,
}

/// What a webhook's owners are to be told.
#[derive(Clone, Debug)]
pub struct HealthAlert {
    /// That it fails, or that it is paused.
    pub notice: Notice,
    /// Which.
    pub webhook: WebhookId,
    /// Whose it is.
    pub workspace: Arc<str>,
    /// Its URL.
    pub url: Arc<str>,
    /// Since when it fails, or is down.
    pub since: UnixTime,
    /// What the last attempt came to.
    pub last_outcome: Option<Outcome>,
}

/// Which of a webhook's deliveries may start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Flow {
    /// All of them.
    Open,
    /// One at a time.
    Probing(Probe),
    /// None.
    Stopped,
}

#[derive(Debug)]
struct Known {
    webhook: Webhook,
    /// The probe that was delivered, until that is on disk.
    delivered_probe: Option<DeliveryId>,
    /// There while an attempt is under way: thousands of webhooks may only wait.
    target: Weak<Target>,
    /// When time alone may bring a notice.
    look_at: Option<UnixTime>,
    /// What was decided by it and is not on disk yet.
    unwritten: usize,
}

/// A hundred thousand webhooks may wait: what is known of each is less than this, in bytes.
const _: () = assert!(size_of::<Known>() <= 464);

/// What is to be done with a webhook that was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Restored {
    /// Its queue is to be opened.
    Ready,
    /// That, and its deliveries are to be put into order first.
    ToReorder,
    /// Nothing: its URL is none.
    InvalidUrl,
}

/// Whether a webhook that is being read has changed since the store was asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Loading {
    Unchanged,
    Changed,
}

/// Every webhook that has work or may soon bring a notice.
#[derive(Debug, Default)]
pub(super) struct Webhooks {
    known: HashMap<WebhookId, Box<Known>>,
    /// When to look at which; what has changed since is passed over.
    checks: BinaryHeap<Reverse<(UnixTime, WebhookId)>>,
    /// Those that are being read.
    loading: HashMap<WebhookId, Loading>,
}

impl Webhooks {
    /// Notes that a webhook is to be read; says whether it is not already.
    pub(super) fn begin_load(&mut self, webhook: WebhookId) -> bool {
        let mut first = true;
        self.loading
            .entry(webhook)
            .and_modify(|loading| (*loading, first) = (Loading::Changed, false))
            .or_insert(Loading::Unchanged);
        first
    }

    /// Notes that a webhook was read; says whether it has to be read again.
    pub(super) fn end_load(&mut self, webhook: WebhookId) -> bool {
        self.loading.remove(&webhook) == Some(Loading::Changed)
    }

    /// Takes in a webhook as the store has it.
    pub(super) fn restore(
        &mut self,
        mut webhook: Webhook,
        policy: &Policy,
        now: UnixTime,
    ) -> Restored {
        let id = webhook.id;
        let known = self.known.get(&id);
        let unwritten = known.map_or(0, |known| known.unwritten);
        let known = known.filter(|known| known.webhook.paused_total == webhook.paused_total);
        if let Some(Known { webhook: known, .. }) = known.map(|known| &**known) {
            webhook.health = known.health.clone();
            webhook.last_outcome = known.last_outcome.clone();
            webhook.paused_at = known.paused_at;
            webhook.probing = known.probing;
        }
        if Url::parse(&webhook.url).is_err() {
            return Restored::InvalidUrl;
        }
        let delivered_probe = known.and_then(|known| known.delivered_probe);
        let restored = if webhook.reordering { Restored::ToReorder } else { Restored::Ready };
        let target = Weak::new();
        let known = Known { webhook, delivered_probe, target, look_at: None, unwritten };
        self.known.insert(id, Box::new(known));
        self.plan(id, policy, now);
        restored
    }

    /// Whose a webhook is, and on which endpoint.
    pub(super) fn place(&self, webhook: WebhookId) -> Option<(Arc<str>, EndpointId)> {
        let Webhook { workspace, endpoint, .. } = self.webhook(webhook)?;
        Some((workspace.clone(), *endpoint))
    }

    /// What may be started for a webhook.
    pub(super) fn flow(&self, webhook: WebhookId) -> Flow {
        let Some(known) = self.known.get(&webhook) else { return Flow::Stopped };
        match known.webhook.probing {
            _ if known.webhook.paused_at.is_some() || known.webhook.reordering => Flow::Stopped,
            Some(probe) => Flow::Probing(probe),
            None if known.delivered_probe.is_some() => Flow::Stopped,
            None => Flow::Open,
        }
    }

    /// A webhook that probes does so with this delivery from here on.
    pub(super) fn probe_with(&mut self, webhook: WebhookId, probe: Probe) {
        let known = self.known.get_mut(&webhook);
        if let Some(known) = known.filter(|known| known.webhook.probing.is_some()) {
            known.webhook.probing = Some(probe);
        }
    }

    /// Forgets a webhook that is deleted.
    pub(super) fn forget(&mut self, webhook: WebhookId) {
        self.known.remove(&webhook);
    }

    /// Forgets those that have no work, unless they are to be looked at or to be written.
    pub(super) fn forget_idle(&mut self, has_work: impl Fn(WebhookId) -> bool) {
        self.known.retain(|webhook, known| {
            known.look_at.is_some() || known.unwritten > 0 || has_work(*webhook)
        });
    }

    /// Notes that something follows for a webhook which is to be written.
    pub(super) fn keep(&mut self, webhook: WebhookId) {
        if let Some(known) = self.known.get_mut(&webhook) {
            known.unwritten += 1;
        }
    }

    pub(super) fn target(&mut self, webhook: WebhookId) -> Option<Arc<Target>> {
        let known = self.known.get_mut(&webhook)?;
        if let Some(target) = known.target.upgrade() {
            return Some(target);
        }
        // It was read when the webhook was taken in.
        let url = Url::parse(&known.webhook.url).ok()?;
        let (workspace, secrets) = (known.webhook.workspace.clone(), known.webhook.secrets.clone());
        let target = Arc::new(Target { workspace, url, secrets });
        known.target = Arc::downgrade(&target);
        Some(target)
    }

    pub(super) fn webhook(&self, webhook: WebhookId) -> Option<&Webhook> {
        self.known.get(&webhook).map(|known| &known.webhook)
    }

    /// Notes that what was kept is on disk, and with it the end of this delivery's attempt.
    pub(super) fn settle(&mut self, webhook: WebhookId, delivery: Option<DeliveryId>) {
        let Some(known) = self.known.get_mut(&webhook) else { return };
        known.unwritten = known.unwritten.saturating_sub(1);
        if known.target.strong_count() == 0 {
            // What is not used any more takes its memory for as long as it is pointed to.
            known.target = Weak::new();
        }
        if delivery.is_some() && known.delivered_probe == delivery {
            known.delivered_probe = None;
        }
    }

    /// What is to be written of a webhook.
    pub(super) fn update(&self, webhook: WebhookId) -> Option<WebhookUpdate> {
        let Known { webhook: known, look_at, .. } = &**self.known.get(&webhook)?;
        Some(WebhookUpdate {
            webhook,
            paused_total: known.paused_total,
            health: known.health.clone(),
            last_outcome: known.last_outcome.clone(),
            look_at: *look_at,
            paused_at: known.paused_at,
            probing: known.probing,
        })
    }

    /// When the next webhook is to be looked at, or one that has changed since.
    pub(super) fn next_check(&self) -> Option<UnixTime> {
        self.checks.peek().map(|Reverse((at, _))| *at)
    }

    /// A webhook whose time has come to be looked at, and when it came.
    fn due(&mut self, now: UnixTime) -> Option<(UnixTime, WebhookId)> {
        while let Some(Reverse((at, webhook))) = self.checks.peek().copied() {
            if at > now {
                break;
            }
            self.checks.pop();
            if self.known.get(&webhook).is_some_and(|known| known.look_at == Some(at)) {
                return Some((at, webhook));
            }
        }
        None
    }

    /// Plans every look anew: what brings a notice, and when, is a matter of policy.
    pub(super) fn replan(&mut self, policy: &Policy, now: UnixTime) {
        let all: Vec<WebhookId> = self.known.keys().copied().collect();
        for webhook in all {
            self.plan(webhook, policy, now);
        }
    }

    fn plan(&mut self, webhook: WebhookId, policy: &Policy, now: UnixTime) {
        let Some(known) = self.known.get_mut(&webhook) else { return };
        let at = known.webhook.health.look_at(policy, now);
        let at = at.filter(|_| known.webhook.paused_at.is_none());
        if known.look_at != at {
            known.look_at = at;
            self.checks.extend(at.map(|at| Reverse((at, webhook))));
        }
        // What has changed since would stay until its time, however far ahead that is.
        if self.checks.len() > 2 * self.known.len() + CHECKS_MIN {
            let planned = |known: &Known| known.look_at.map(|at| Reverse((at, known.webhook.id)));
            self.checks = self.known.values().filter_map(|known| planned(known)).collect();
        }
    }
}

impl Known {
    /// Does what a notice asks for; gives what owners are to be told.
    fn notice(&mut self, notice: Option<Notice>, now: UnixTime) -> Option<Box<HealthAlert>> {
        let notice = notice.filter(|_| self.webhook.paused_at.is_none())?;
        let webhook = &mut self.webhook;
        if notice == Notice::Pause {
            webhook.paused_at = Some(now);
            webhook.probing = None;
        }
        let since = match notice {
            Notice::Warn => webhook.health.failing_since(),
            Notice::Pause => webhook.health.down_since(),
        };
        Some(Box::new(HealthAlert {
            notice,
            webhook: webhook.id,
            workspace: webhook.workspace.clone(),
            url: webhook.url.clone(),
            since: since.unwrap_or(now),
            last_outcome: webhook.last_outcome.clone(),
        }))
    }
}

impl Scheduler {
    /// Takes what an attempt says of its webhook into account; gives what owners are to be told.
    pub(super) fn observe(
        &mut self,
        webhook: WebhookId,
        observation: Observation,
        outcome: &Outcome,
        now: Moment,
    ) -> Option<Box<HealthAlert>> {
        let policy = &self.policies.health;
        let known = self.webhooks.known.get_mut(&webhook)?;
        let (health, notice) = known.webhook.health.after(policy, observation, now.unix);
        known.webhook.health = health;
        known.webhook.last_outcome = Some(outcome.clone());
        let alert = known.notice(notice, now.unix);
        self.alerted(alert.as_deref(), now);
        self.webhooks.plan(webhook, &self.policies.health, now.unix);
        alert
    }

    /// Looks at webhooks whose time it is, until that brings a notice; gives what owners are told.
    pub(super) fn next_notice(
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

    /// Tells operators what owners are to be told, and stops a webhook that is paused.
    fn alerted(&mut self, alert: Option<&HealthAlert>, now: Moment) {
        let Some(alert) = alert else { return };
        self.notifications.push_back(Notification::Health(Box::new(alert.clone())));
        if alert.notice == Notice::Pause {
            self.open(alert.webhook, None, now.tick);
        }
    }

    /// Takes into account what has become of a delivery that may have been the probe.
    pub(super) fn probed(&mut self, webhook: WebhookId, delivery: DeliveryId, after: NextState) {
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
