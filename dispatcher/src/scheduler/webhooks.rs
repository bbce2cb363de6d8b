//! The webhooks with work: URL, secrets, health, probe, and the changes to write. (core)
//!
//! The health in memory is newer than on disk; a webhook that is read again keeps it, unless its
//! owner reactivated it in the meantime, or gave it another URL.
//!
//! Invariant: this is the only place that knows whether a webhook is stopped or probing; what its
//! queue may start is derived from it ([`Webhooks::flow`]).

pub mod alerts;

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, HashSet};
use std::sync::{Arc, Weak};

use url::Url;
use weir_common::time::UnixTime;

use crate::domain::event::EventSet;
use crate::domain::health::Policy;
use crate::domain::id::{DeliveryId, EndpointId, WebhookId};
use crate::domain::pace::counted;
use crate::domain::webhook::options::per_minute;
use crate::domain::webhook::{Probe, Webhook, WebhookUpdate};
use crate::scheduler::pace::{HostKey, Pace};
use crate::scheduler::target::Target;

/// Fewer stale checks than this are not worth removing.
const CHECKS_MIN: usize = 64;

/// Which of a webhook's deliveries may start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Flow {
    /// All.
    Open,
    /// One at a time.
    Probing(Probe),
    /// None.
    Stopped,
}

#[derive(Debug)]
struct Known {
    webhook: Webhook,
    /// The delivered probe, until that is on disk.
    delivered_probe: Option<DeliveryId>,
    /// Set while an attempt is in flight: thousands of webhooks may only wait.
    target: Weak<Target>,
    /// When a notice may become due without an attempt.
    look_at: Option<UnixTime>,
    /// Results that are not on disk yet.
    unwritten: u32,
    /// Its owner has changed it: no attempt starts with the earlier URL or secrets.
    outdated: bool,
    /// Its workspace and host.
    host: HostKey,
}

/// A hundred thousand webhooks may wait, so their state is small.
const _: () = assert!(size_of::<Known>() <= 320);

/// The next step after a webhook was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Restored {
    /// Open its queue.
    Ready,
    /// Order its deliveries, then open its queue.
    ToReorder,
}

/// The next step after the running read of a webhook.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Loading {
    /// Nothing.
    Once,
    /// Another read: deliveries arrived since it began.
    Again,
    /// Another read, before anything starts: the webhook changed since it began.
    Outdated,
}

/// Every webhook with work or a scheduled health check.
#[derive(Debug, Default)]
pub(super) struct Webhooks {
    known: HashMap<WebhookId, Box<Known>>,
    /// The scheduled health checks; stale ones are skipped.
    checks: BinaryHeap<Reverse<(UnixTime, WebhookId)>>,
    /// Webhooks being read.
    loading: HashMap<WebhookId, Loading>,
}

impl Webhooks {
    /// Begins a read; returns whether none was running. A running read is repeated when it ends.
    pub(super) fn begin_load(&mut self, webhook: WebhookId) -> bool {
        let mut first = true;
        self.loading
            .entry(webhook)
            .and_modify(|loading| (*loading, first) = ((*loading).max(Loading::Again), false))
            .or_insert(Loading::Once);
        first
    }

    /// Ends a read; returns the next step.
    pub(super) fn end_load(&mut self, webhook: WebhookId) -> Loading {
        self.loading.remove(&webhook).unwrap_or(Loading::Once)
    }

    /// Records that a webhook changed on disk: it starts nothing until it is read again, and the
    /// result of a running read is stale.
    pub(super) fn outdate(&mut self, webhook: WebhookId) {
        if let Some(known) = self.known.get_mut(&webhook) {
            known.outdated = true;
        }
        if let Some(loading) = self.loading.get_mut(&webhook) {
            *loading = Loading::Outdated;
        }
    }

    /// Adds a webhook as read from the store.
    pub(super) fn restore(
        &mut self,
        (mut webhook, host): (Webhook, HostKey),
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
        // The scheduler needs neither, and a hundred thousand webhooks may wait.
        webhook.options.labels = None;
        webhook.events = EventSet::default();
        let delivered_probe = known.and_then(|known| known.delivered_probe);
        let restored = if webhook.reordering { Restored::ToReorder } else { Restored::Ready };
        let target = Weak::new();
        let (look_at, outdated) = (None, false);
        let known = Known { webhook, delivered_probe, target, look_at, unwritten, outdated, host };
        self.known.insert(id, Box::new(known));
        self.plan(id, policy, now);
        restored
    }

    /// The workspace and the endpoint of a webhook.
    pub(super) fn place(&self, webhook: WebhookId) -> Option<(Arc<str>, EndpointId)> {
        let Webhook { workspace, endpoint, .. } = self.webhook(webhook)?;
        Some((workspace.clone(), *endpoint))
    }

    /// The limits of a webhook's starts, apart from its endpoint's.
    pub(super) fn pace(&self, webhook: WebhookId) -> Option<Pace> {
        let Known { webhook: Webhook { options, .. }, host, .. } = &**self.known.get(&webhook)?;
        let own = options.requests_per_minute.map(|most| counted(per_minute(most.get())));
        Some(Pace { webhook, own, host: *host })
    }

    /// The endpoints of webhooks at these hosts.
    pub(super) fn endpoints_at(&self, hosts: &HashSet<HostKey>) -> Vec<EndpointId> {
        let there = self.known.values().filter(|known| hosts.contains(&known.host));
        there.map(|known| known.webhook.endpoint).collect()
    }

    /// Which deliveries of a webhook may start.
    pub(super) fn flow(&self, webhook: WebhookId) -> Flow {
        let Some(known) = self.known.get(&webhook) else { return Flow::Stopped };
        match known.webhook.probing {
            _ if known.outdated => Flow::Stopped,
            _ if known.webhook.stopped_since().is_some() => Flow::Stopped,
            _ if known.webhook.reordering => Flow::Stopped,
            Some(probe) => Flow::Probing(probe),
            None if known.delivered_probe.is_some() => Flow::Stopped,
            None => Flow::Open,
        }
    }

    /// Sets the delivery that probes a webhook.
    pub(super) fn probe_with(&mut self, webhook: WebhookId, probe: Probe) {
        let known = self.known.get_mut(&webhook);
        if let Some(known) = known.filter(|known| known.webhook.probing.is_some()) {
            known.webhook.probing = Some(probe);
        }
    }

    /// Removes a deleted webhook.
    pub(super) fn forget(&mut self, webhook: WebhookId) {
        self.known.remove(&webhook);
    }

    /// Evicts webhooks without work, scheduled checks and pending writes.
    pub(super) fn forget_idle(&mut self, has_work: impl Fn(WebhookId) -> bool) {
        self.known.retain(|webhook, known| {
            known.look_at.is_some() || known.unwritten > 0 || has_work(*webhook)
        });
    }

    /// Counts a pending write.
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
        // It was parsed when the webhook was read.
        let url = Url::parse(&known.webhook.url).ok()?;
        let Webhook { workspace, secrets, options, .. } = &known.webhook;
        let target = Arc::new(Target {
            workspace: workspace.clone(),
            url,
            secrets: secrets.clone(),
            headers: options.headers.clone(),
            all_answers: options.all_answers,
            client_certificate: options.client_certificate.clone(),
        });
        known.target = Arc::downgrade(&target);
        Some(target)
    }

    /// Whether a webhook still has the secrets and headers of a target, as far as is known.
    pub(super) fn has_secrets_of(&self, webhook: WebhookId, target: &Target) -> bool {
        self.known.get(&webhook).is_some_and(|known| {
            let Webhook { secrets, options, .. } = &known.webhook;
            !known.outdated && *secrets == target.secrets && options.headers == target.headers
        })
    }

    pub(super) fn webhook(&self, webhook: WebhookId) -> Option<&Webhook> {
        self.known.get(&webhook).map(|known| &known.webhook)
    }

    /// Counts a finished write, which contained the result of this delivery's attempt, if any.
    pub(super) fn settle(&mut self, webhook: WebhookId, delivery: Option<DeliveryId>) {
        let Some(known) = self.known.get_mut(&webhook) else { return };
        known.unwritten = known.unwritten.saturating_sub(1);
        if known.target.strong_count() == 0 {
            // An unused target would keep its memory.
            known.target = Weak::new();
        }
        if delivery.is_some() && known.delivered_probe == delivery {
            known.delivered_probe = None;
        }
    }

    /// The changes of a webhook to write.
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

    /// The time of the next health check, which may be stale.
    pub(super) fn next_check(&self) -> Option<UnixTime> {
        self.checks.peek().map(|Reverse((at, _))| *at)
    }

    /// A webhook whose health check is due, with the time of the check.
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

    /// Reschedules every health check after a change of policy.
    pub(super) fn replan(&mut self, policy: &Policy, now: UnixTime) {
        let all: Vec<WebhookId> = self.known.keys().copied().collect();
        for webhook in all {
            self.plan(webhook, policy, now);
        }
    }

    fn plan(&mut self, webhook: WebhookId, policy: &Policy, now: UnixTime) {
        let Some(known) = self.known.get_mut(&webhook) else { return };
        let at = known.webhook.health.look_at(policy, now);
        let at = at.filter(|_| known.webhook.stopped_since().is_none());
        if known.look_at != at {
            known.look_at = at;
            self.checks.extend(at.map(|at| Reverse((at, webhook))));
        }
        // A stale check would stay until its time, however far ahead.
        if self.checks.len() > 2 * self.known.len() + CHECKS_MIN {
            let planned = |known: &Known| known.look_at.map(|at| Reverse((at, known.webhook.id)));
            self.checks = self.known.values().filter_map(|known| planned(known)).collect();
        }
    }
}
