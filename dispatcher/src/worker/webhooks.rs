//! The webhooks that the worker knows: where they lead, how they fare, what is to be written.
//!
//! What is known here of a webhook's health is newer than what is on disk; a webhook that is read
//! anew keeps it, unless its owner has reactivated it in the meantime.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::sync::{Arc, Weak};
use std::time::Duration;

use log::Level;
use serde_json::json;
use url::Url;
use weir_common::log::events;
use weir_common::time::{Moment, UnixTime};

use crate::domain::delivery::NextState;
use crate::domain::health::{Notice, Observation, Policy};
use crate::domain::id::{DeliveryId, WebhookId};
use crate::domain::outcome::Outcome;
use crate::domain::webhook::{Probe, Queue, Secrets, Webhook, WebhookUpdate};
use crate::scheduler::{Answered, Gate, Scheduler};
use crate::store::NewMail;
use crate::worker::{Resources, notifications};

/// So few looks that are out of date are not worth tidying up.
const LOOKS_MIN: usize = 64;

/// Where a webhook's deliveries go, what signs them, and for whom.
#[derive(Debug)]
pub(super) struct Target {
    pub(super) workspace: Arc<str>,
    pub(super) url: Url,
    pub(super) secrets: Secrets,
}

struct Hook {
    webhook: Webhook,
    /// There while an attempt is under way: thousands of webhooks may only wait.
    target: Weak<Target>,
    /// When time alone may bring a notice.
    look_at: Option<UnixTime>,
    /// What was decided by it and is not on disk yet.
    unwritten: usize,
}

/// A hundred thousand webhooks may wait: what is known of each is less than this, in bytes.
const _: () = assert!(size_of::<Hook>() <= 448);

/// What is to be done with a webhook that was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Restored {
    /// Nothing: it is in its endpoint.
    Open,
    /// Its deliveries are to be put into order first.
    ToReorder,
}

/// Every webhook that has work or may soon bring a notice.
#[derive(Default)]
pub(super) struct Hooks {
    hooks: HashMap<WebhookId, Box<Hook>>,
    /// When to look at which; what has changed since is passed over.
    looks: BinaryHeap<Reverse<(UnixTime, WebhookId)>>,
    /// Those the store is asked about, and whether they have changed since.
    asked: HashMap<WebhookId, bool>,
}

impl Hooks {
    /// Notes that the store is to be asked about a webhook; says whether it is not already.
    pub(super) fn ask(&mut self, webhook: WebhookId) -> bool {
        let again = self.asked.contains_key(&webhook);
        self.asked.insert(webhook, again);
        !again
    }

    /// Notes that the store has answered; says whether it has to be asked again.
    pub(super) fn answered(&mut self, webhook: WebhookId) -> bool {
        self.asked.remove(&webhook).unwrap_or_default()
    }

    /// Takes in a webhook as the store has it, and puts it into its endpoint.
    pub(super) fn restore(
        &mut self,
        queue: Queue,
        endpoints: &mut Scheduler,
        now: Moment,
        resources: &Resources,
    ) -> Restored {
        let Queue { mut webhook, due } = queue;
        let id = webhook.id;
        let known = self.hooks.get(&id);
        let unwritten = known.map_or(0, |hook| hook.unwritten);
        let known = known.map(|hook| &hook.webhook);
        if let Some(known) = known.filter(|known| known.paused_total == webhook.paused_total) {
            webhook.health = known.health.clone();
            webhook.last_outcome = known.last_outcome.clone();
            webhook.paused_at = known.paused_at;
            webhook.probing = known.probing;
        }
        if Url::parse(&webhook.url).is_err() {
            let fields = [("webhook", json!(resources.ids.webhook(id)))];
            events::event(Level::Error, "a stored URL cannot be read", &fields);
            return Restored::Open;
        }
        let gate = gate_of(&webhook);
        let restored = if webhook.reordering { Restored::ToReorder } else { Restored::Open };
        endpoints.open(
            id,
            &webhook.workspace,
            webhook.endpoint,
            gate,
            due.map(|due| now.tick_at(due)),
            now.tick,
        );
        if let Some(last) = &webhook.last_outcome {
            // How long it took was not written down.
            let took = Duration::ZERO;
            endpoints.remember(id, Answered::by(last, took, took));
        }
        let target = Weak::new();
        let hook = Hook { webhook, target, look_at: None, unwritten };
        self.hooks.insert(id, Box::new(hook));
        self.plan(id, &resources.active.load().settings.health, now.unix);
        restored
    }

    /// Those whose deliveries a reactivation has not put into order yet.
    pub(super) fn to_reorder(&self) -> Vec<WebhookId> {
        let reordering = self.hooks.values().filter(|hook| hook.webhook.reordering);
        let mut webhooks: Vec<WebhookId> = reordering.map(|hook| hook.webhook.id).collect();
        webhooks.sort_unstable();
        webhooks
    }

    /// Lets a webhook go that is deleted.
    pub(super) fn forget(&mut self, webhook: WebhookId) {
        self.hooks.remove(&webhook);
    }

    /// Lets those go that have nothing to do, unless they are to be looked at or to be written.
    pub(super) fn forget_idle(&mut self, endpoints: &Scheduler) {
        self.hooks.retain(|webhook, hook| {
            hook.look_at.is_some() || hook.unwritten > 0 || endpoints.knows(*webhook)
        });
    }

    /// Notes that something follows for a webhook which is to be written.
    pub(super) fn keep(&mut self, webhook: WebhookId) {
        if let Some(hook) = self.hooks.get_mut(&webhook) {
            hook.unwritten += 1;
        }
    }

    pub(super) fn target(&mut self, webhook: WebhookId) -> Option<Arc<Target>> {
        let hook = self.hooks.get_mut(&webhook)?;
        if let Some(target) = hook.target.upgrade() {
            return Some(target);
        }
        // It was read when the webhook was taken in.
        let url = Url::parse(&hook.webhook.url).ok()?;
        let (workspace, secrets) = (hook.webhook.workspace.clone(), hook.webhook.secrets.clone());
        let target = Arc::new(Target { workspace, url, secrets });
        hook.target = Arc::downgrade(&target);
        Some(target)
    }

    pub(super) fn webhook(&self, webhook: WebhookId) -> Option<&Webhook> {
        self.hooks.get(&webhook).map(|hook| &hook.webhook)
    }

    /// Takes an attempt's end into account; gives the mails that follow.
    pub(super) fn fared(
        &mut self,
        webhook: WebhookId,
        sign: Observation,
        outcome: &Outcome,
        endpoints: &mut Scheduler,
        resources: &Resources,
        now: Moment,
    ) -> Vec<NewMail> {
        let policy = resources.active.load().settings.health.clone();
        let Some(hook) = self.hooks.get_mut(&webhook) else { return Vec::new() };
        let (health, notice) = hook.webhook.health.after(&policy, sign, now.unix);
        hook.webhook.health = health;
        hook.webhook.last_outcome = Some(outcome.clone());
        let mails = hook.notice(notice, endpoints, resources, now);
        self.plan(webhook, &policy, now.unix);
        mails
    }

    /// Takes into account that it is `at`, or was a moment ago; gives the mails that follow,
    /// where any do.
    pub(super) fn look(
        &mut self,
        webhook: WebhookId,
        at: UnixTime,
        endpoints: &mut Scheduler,
        resources: &Resources,
        now: Moment,
    ) -> Option<Vec<NewMail>> {
        let policy = resources.active.load().settings.health.clone();
        let hook = self.hooks.get_mut(&webhook)?;
        hook.look_at = None;
        let (health, notice) = hook.webhook.health.look(&policy, at);
        hook.webhook.health = health;
        let mails = notice.map(|_| hook.notice(notice, endpoints, resources, now));
        self.plan(webhook, &policy, now.unix);
        mails
    }

    /// Takes note of a delivery that is under way: it may be the one that probes.
    pub(super) fn started(
        &mut self,
        webhook: WebhookId,
        delivery: DeliveryId,
        endpoints: &Scheduler,
    ) {
        let Some(hook) = self.hooks.get_mut(&webhook) else { return };
        if hook.webhook.probing.is_some()
            && endpoints.gate(webhook) == Some(Gate::Probe(Some(delivery)))
        {
            hook.webhook.probing = Some(Probe::This(delivery));
        }
    }

    /// Takes note of what has become of a delivery that may have been the probe.
    pub(super) fn probed(
        &mut self,
        webhook: WebhookId,
        delivery: DeliveryId,
        after: NextState,
        endpoints: &Scheduler,
    ) {
        let Some(hook) = self.hooks.get_mut(&webhook) else { return };
        if endpoints.gate(webhook) == Some(Gate::Probe(Some(delivery))) {
            hook.webhook.probing = match after {
                NextState::Delivered => None,
                NextState::Again { .. } => Some(Probe::This(delivery)),
                NextState::FailedPermanent => Some(Probe::Any),
            };
        }
    }

    /// Notes that what was kept is on disk. Opens the gate where its probe is delivered.
    pub(super) fn settle(&mut self, webhook: WebhookId, endpoints: &mut Scheduler, now: Moment) {
        let Some(hook) = self.hooks.get_mut(&webhook) else { return };
        hook.unwritten = hook.unwritten.saturating_sub(1);
        if hook.target.strong_count() == 0 {
            // What nobody uses any more takes its room for as long as it is pointed to.
            hook.target = Weak::new();
        }
        let probes = matches!(endpoints.gate(webhook), Some(Gate::Probe(_)));
        if probes && gate_of(&hook.webhook) == Gate::Open {
            endpoints.set_gate(webhook, Gate::Open, now.tick);
        }
    }

    /// What is to be written of a webhook.
    pub(super) fn record(&self, webhook: WebhookId) -> Option<WebhookUpdate> {
        let Hook { webhook: known, look_at, .. } = &**self.hooks.get(&webhook)?;
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
    pub(super) fn next_look(&self) -> Option<UnixTime> {
        self.looks.peek().map(|Reverse((at, _))| *at)
    }

    /// The webhooks whose time has come to be looked at, and when it came.
    pub(super) fn due(&mut self, now: Moment) -> Vec<(UnixTime, WebhookId)> {
        let mut due = Vec::new();
        while let Some(Reverse((at, webhook))) = self.looks.peek().copied() {
            if at > now.unix {
                break;
            }
            self.looks.pop();
            if self.hooks.get(&webhook).is_some_and(|hook| hook.look_at == Some(at)) {
                due.push((at, webhook));
            }
        }
        due
    }

    /// Plans every look anew: what brings a notice, and when, is a matter of policy.
    pub(super) fn replan(&mut self, policy: &Policy, now: UnixTime) {
        let all: Vec<WebhookId> = self.hooks.keys().copied().collect();
        for webhook in all {
            self.plan(webhook, policy, now);
        }
    }

    fn plan(&mut self, webhook: WebhookId, policy: &Policy, now: UnixTime) {
        let Some(hook) = self.hooks.get_mut(&webhook) else { return };
        let at = hook.webhook.health.look_at(policy, now);
        let at = at.filter(|_| hook.webhook.paused_at.is_none());
        if hook.look_at != at {
            hook.look_at = at;
            self.looks.extend(at.map(|at| Reverse((at, webhook))));
        }
        // What has changed since would stay until its time, however far ahead that is.
        if self.looks.len() > 2 * self.hooks.len() + LOOKS_MIN {
            let planned = |hook: &Hook| hook.look_at.map(|at| Reverse((at, hook.webhook.id)));
            self.looks = self.hooks.values().filter_map(|hook| planned(hook)).collect();
        }
    }
}

impl Hook {
    /// Does what a notice asks for; gives its mails.
    fn notice(
        &mut self,
        notice: Option<Notice>,
        endpoints: &mut Scheduler,
        resources: &Resources,
        now: Moment,
    ) -> Vec<NewMail> {
        let Some(notice) = notice else { return Vec::new() };
        let webhook = &mut self.webhook;
        if webhook.paused_at.is_some() {
            return Vec::new();
        }
        let said = match notice {
            Notice::Warn => "a webhook is failing",
            Notice::Pause => "a webhook is paused",
        };
        let fields = [
            ("webhook", json!(resources.ids.webhook(webhook.id))),
            ("workspace", json!(&*webhook.workspace)),
            ("outcome", json!(webhook.last_outcome.as_ref().map(ToString::to_string))),
        ];
        events::event(Level::Warn, said, &fields);
        if notice == Notice::Pause {
            resources.metrics.pauses.inc();
            webhook.paused_at = Some(now.unix);
            webhook.probing = None;
            endpoints.open(
                webhook.id,
                &webhook.workspace,
                webhook.endpoint,
                Gate::Closed,
                None,
                now.tick,
            );
        } else {
            resources.metrics.warnings.inc();
        }
        notifications::mails(resources, webhook, notice, now.unix)
    }
}

/// What may be started for a webhook, as it is on disk.
fn gate_of(webhook: &Webhook) -> Gate {
    match webhook.probing {
        _ if webhook.paused_at.is_some() || webhook.reordering => Gate::Closed,
        Some(Probe::Any) => Gate::Probe(None),
        Some(Probe::This(delivery)) => Gate::Probe(Some(delivery)),
        None => Gate::Open,
    }
}
