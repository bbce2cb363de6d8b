//! A subscription: where it leads, what it subscribes to, its secrets and its state.

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use weir_common::secret::Secret;
use weir_common::time::UnixTime;

use crate::domain::event::EventSet;
use crate::domain::health::Health;
use crate::domain::id::{DeliveryId, EndpointId, WebhookId};
use crate::domain::outcome::Outcome;

/// A subscription: who asked to be told, where and of what.
#[derive(Clone, Debug, PartialEq)]
pub struct Webhook {
    /// Its number.
    pub id: WebhookId,
    /// Whose it is.
    pub workspace: Arc<str>,
    /// The canonical URL.
    pub url: Arc<str>,
    /// The queue towards that URL, which webhooks of one URL share.
    pub endpoint: EndpointId,
    /// What it is told of.
    pub events: EventSet,
    /// When it was registered.
    pub created_at: UnixTime,
    /// What deliveries are signed with: the newest first, then the one still honoured.
    pub secrets: Secrets,
    /// Since when nothing is sent.
    pub paused_at: Option<UnixTime>,
    /// How long it has stood paused, all earlier pauses together: by so much deadlines shift.
    pub paused_total: Duration,
    /// After a reactivation: nothing is sent but one delivery, until a 2xx.
    pub probing: Option<Probe>,
    /// Whether a reactivation is still putting its deliveries back into the order of creation.
    pub reordering: bool,
    /// What its attempts have come to.
    pub health: Health,
    /// What the last of them came to.
    pub last_outcome: Option<Outcome>,
}

impl Webhook {
    /// What customers are shown.
    #[must_use]
    pub fn state(&self) -> WebhookState {
        if self.paused_at.is_some() {
            WebhookState::Paused
        } else if self.health.is_failing() {
            WebhookState::Failing
        } else {
            WebhookState::Delivering
        }
    }

    /// When a delivery first attempted then, as the webhook had stood paused for `paused_before`,
    /// is given up: the time it stands paused does not count.
    #[must_use]
    pub fn deadline(
        &self,
        first_attempt_at: UnixTime,
        paused_before: Duration,
        give_up_after: Duration,
        now: UnixTime,
    ) -> UnixTime {
        let this_pause = self.paused_at.map_or(Duration::ZERO, |since| now.since(since));
        let paused = (self.paused_total + this_pause).saturating_sub(paused_before);
        first_attempt_at.plus(give_up_after).plus(paused)
    }
}

/// The one delivery that is sent to a webhook that was reactivated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Probe {
    /// Whichever is the oldest.
    Any,
    /// This one, which has been tried since.
    This(DeliveryId),
}

/// A webhook that has deliveries waiting, and when the first of them is due.
#[derive(Clone, Debug)]
pub struct Queue {
    /// Which.
    pub webhook: Webhook,
    /// When the first that waits is due; `None` where only its health asks for a look.
    pub due: Option<UnixTime>,
}

/// What is known of a webhook after attempts, or after a while.
#[derive(Clone, Debug)]
pub struct WebhookUpdate {
    /// Which.
    pub webhook: WebhookId,
    /// [`Webhook::paused_total`] as it was known: after a reactivation in the meantime all of
    /// this is out of date, and is passed over.
    pub paused_total: Duration,
    /// What its attempts have come to.
    pub health: Health,
    /// What the last of them came to.
    pub last_outcome: Option<Outcome>,
    /// When it has to be looked at next, though nothing ends.
    pub look_at: Option<UnixTime>,
    /// Since when it is paused. Only ever pauses: a reactivation is `Management::reactivate`.
    pub paused_at: Option<UnixTime>,
    /// Which delivery probes it.
    pub probing: Option<Probe>,
}

/// What a webhook's deliveries are signed with.
#[derive(Clone, Debug, PartialEq)]
pub struct Secrets {
    /// The one that its owner was shown last.
    pub current: Secret<String>,
    /// Those before it, newest first, and until when each signs as well, in steady time
    /// (`DeliveryQueue::steady`).
    pub previous: Vec<(Secret<String>, UnixTime)>,
}

impl Secrets {
    /// Those that sign at `now`, in steady time.
    pub fn signing(&self, now: UnixTime) -> impl Iterator<Item = &str> {
        let previous = self.previous.iter().filter(move |(_, until)| now < *until);
        let previous = previous.map(|(secret, _)| secret.expose().as_str());
        std::iter::once(self.current.expose().as_str()).chain(previous)
    }
}

/// How a webhook fares.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum WebhookState {
    /// Deliveries go out.
    Delivering,
    /// Deliveries go out, and too many of them fail: its owners were warned.
    Failing,
    /// Nothing is sent until its owner reactivates it; nothing is dropped.
    Paused,
}
