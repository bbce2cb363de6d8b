//! A webhook: its URL, event types, options, secrets and state. (core)

#![expect(missing_docs, reason = "plain data: the names of fields say what they are")]

pub mod client_certificate;
pub mod filter;
pub mod headers;
pub mod options;
pub mod secrets;
pub mod signing_key;
pub mod stop;

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use url::Url;
use weir_common::time::UnixTime;

use crate::domain::event::EventSet;
use crate::domain::health::Health;
use crate::domain::id::{DeliveryId, EndpointId, WebhookId};
use crate::domain::operator_event;
use crate::domain::outcome::Outcome;
use crate::domain::webhook::options::WebhookOptions;
use crate::domain::webhook::secrets::Secrets;

/// A webhook: a workspace's subscription of a URL to event types.
#[derive(Clone, Debug, PartialEq)]
pub struct Webhook {
    pub id: WebhookId,
    pub workspace: Arc<str>,
    /// The canonical URL.
    pub url: Arc<str>,
    /// The endpoint, which all webhooks with this URL share.
    pub endpoint: EndpointId,
    pub events: EventSet,
    pub created_at: UnixTime,
    /// What its owner sets apart from the URL and the event types.
    pub options: WebhookOptions,
    /// The keys that sign deliveries.
    pub secrets: Arc<Secrets>,
    /// Since when it is paused; `None` if it is not.
    pub paused_at: Option<UnixTime>,
    /// Since when its owner has it disabled; `None` if it is not.
    pub disabled_at: Option<UnixTime>,
    /// The time of all earlier pauses and disablings, and 1 µs for each change of the URL;
    /// deadlines shift by it.
    pub paused_total: Duration,
    /// After a reactivation: the single delivery that is sent until a 2xx.
    pub probing: Option<Probe>,
    /// Whether a reactivation is still restoring the order of its deliveries.
    pub reordering: bool,
    /// The health, from the outcomes of its attempts.
    pub health: Health,
    /// The outcome of the last attempt.
    pub last_outcome: Option<Outcome>,
}

impl Webhook {
    /// The state that the API shows.
    #[must_use]
    pub fn state(&self) -> WebhookState {
        WebhookState::of([self.disabled_at, self.secret_lost_at()], self.paused_at, &self.health)
    }

    /// Since when it is in its state; `None` if it delivers.
    #[must_use]
    pub fn state_since(&self) -> Option<UnixTime> {
        match self.state() {
            WebhookState::Delivering => None,
            WebhookState::Failing => self.health.failing_since(),
            WebhookState::Paused => self.paused_at,
            WebhookState::Disabled => {
                self.disabled_at.into_iter().chain(self.secret_lost_at()).min()
            }
        }
    }

    /// The host of its URL; paths and queries may be secrets.
    #[must_use]
    pub fn host(&self) -> Option<String> {
        Url::parse(&self.url).ok()?.host_str().map(str::to_owned)
    }

    /// Whether it is the operator's: it has no health, no owners, and no state but `delivering`.
    #[must_use]
    pub fn is_operators(&self) -> bool {
        *self.workspace == *operator_event::WORKSPACE
    }

    /// Since when it waits for a new secret, because the earlier ones were lost; `None` if it does
    /// not.
    #[must_use]
    pub fn secret_lost_at(&self) -> Option<UnixTime> {
        self.secrets.lost_at()
    }

    /// Since when nothing is sent: it is paused, disabled or without a secret.
    #[must_use]
    pub fn stopped_since(&self) -> Option<UnixTime> {
        let all = [self.paused_at, self.disabled_at, self.secret_lost_at()];
        all.into_iter().flatten().min()
    }

    /// Whether its owner's settings are those of `other`, the same webhook at another time.
    #[must_use]
    pub fn has_settings_of(&self, other: &Self) -> bool {
        let key = |webhook: &Self| webhook.secrets.signing_key.is_some();
        self.url == other.url
            && self.events == other.events
            && self.options == other.options
            && self.disabled_at == other.disabled_at
            && key(self) == key(other)
    }

    /// Why it is disabled; `None` if it is not.
    #[must_use]
    pub fn disabled_reason(&self) -> Option<DisabledReason> {
        let lost = self.secret_lost_at().map(|_| DisabledReason::SecretLost);
        lost.or(self.disabled_at.map(|_| DisabledReason::Owner))
    }

    /// When a delivery fails permanently: `give_up_after` its first attempt, without the pauses and
    /// disablings since then. `paused_before` is their total at the first attempt.
    #[must_use]
    pub fn deadline(
        &self,
        first_attempt_at: UnixTime,
        paused_before: Duration,
        give_up_after: Duration,
        now: UnixTime,
    ) -> UnixTime {
        let this_pause = self.stopped_since().map_or(Duration::ZERO, |since| now.since(since));
        let paused = (self.paused_total + this_pause).saturating_sub(paused_before);
        first_attempt_at.plus(give_up_after).plus(paused)
    }
}

/// The single delivery that a reactivated webhook is sent first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Probe {
    /// The oldest one.
    Any,
    /// This one, which was attempted as the probe.
    This(DeliveryId),
}

/// A webhook with work: waiting deliveries, or a due health check.
#[derive(Clone, Debug)]
pub struct Queue {
    pub webhook: Webhook,
    /// When its first delivery is due; `None` if only its health needs a check.
    pub due: Option<UnixTime>,
}

/// Changes to a webhook after attempts, or after time passed.
#[derive(Clone, Debug)]
pub struct WebhookUpdate {
    pub webhook: WebhookId,
    /// [`Webhook::paused_total`] as last read: if the end of a pause or of a disabling, or another
    /// URL, changed it since, the update is stale and ignored.
    pub paused_total: Duration,
    pub health: Health,
    pub last_outcome: Option<Outcome>,
    /// When its health needs a check, even without an attempt.
    pub look_at: Option<UnixTime>,
    /// Since when it is paused. An update never ends a pause; `Management::reactivate` does.
    pub paused_at: Option<UnixTime>,
    /// The delivery that probes it.
    pub probing: Option<Probe>,
}

/// Whether deliveries of a webhook succeed, fail, are paused or disabled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum WebhookState {
    /// Deliveries are sent.
    Delivering,
    /// Too many deliveries fail: the owners were warned.
    Failing,
    /// Deliveries are queued until the owner reactivates the webhook; none is dropped.
    Paused,
    /// Deliveries are queued until the owner enables the webhook, or makes a new secret for one
    /// whose secret was lost; none is dropped.
    Disabled,
}

impl WebhookState {
    /// The state of a webhook that is disabled since `disabled_at` or since its secret was lost,
    /// or paused since `paused_at`, or has this health.
    #[must_use]
    pub fn of(
        [disabled_at, secret_lost_at]: [Option<UnixTime>; 2],
        paused_at: Option<UnixTime>,
        health: &Health,
    ) -> Self {
        if disabled_at.or(secret_lost_at).is_some() {
            Self::Disabled
        } else if paused_at.is_some() {
            Self::Paused
        } else if health.is_failing() {
            Self::Failing
        } else {
            Self::Delivering
        }
    }
}

/// Why a webhook is disabled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum DisabledReason {
    /// Its owner has it disabled.
    Owner,
    /// The platform lost the key that its secret was encrypted with: it waits for a new one.
    SecretLost,
}
