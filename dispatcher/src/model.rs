//! The nouns: webhook, event, lane, delivery, attempt, and their states.
//!
//! ```text
//!  ingest           claim             2xx
//!  ──────▶ Waiting ──────▶ in flight ──────▶ Delivered ── redeliver ──▶ Waiting
//!             ▲              │   │
//!             └─ again at t ─┘   └─ 48 h ──▶ FailedPermanent ── redeliver ──▶ Waiting
//! ```
//!
//! That a delivery is in flight is known to the process that sends it and to nobody else: on disk
//! it waits until its outcome is recorded, so that a crash sends it again rather than lose it.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use weir_common::secret::Secret;
use weir_common::time::UnixTime;

use crate::health::Health;
use crate::outcome::Outcome;

macro_rules! ids {
    ($($(#[doc = $doc:literal])+ $name:ident;)+) => {$(
        $(#[doc = $doc])+
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub i64);
    )+};
}

ids! {
    /// A webhook's number in the store.
    WebhookId;
    /// A delivery's number in the store; a later one is larger.
    DeliveryId;
    /// A lane's number in the store.
    LaneId;
    /// The number of a job that redelivers by filter.
    JobId;
    /// A mail's number in the store.
    MailId;
}

/// What happened (CONTRACT §6), or that somebody wants to see a webhook work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum EventType {
    /// A new user completed signup.
    UserCreated,
    /// A user's e-mail, name or attributes changed.
    UserUpdated,
    /// A user was deleted.
    UserDeleted,
    /// A login succeeded.
    SessionStarted,
    /// A logout or an expiry.
    SessionEnded,
    /// A tenant was created.
    TenantCreated,
    /// A tenant was deleted.
    TenantDeleted,
    /// The workspace changed plan.
    PlanChanged,
    /// A payment failed.
    SubscriptionPastDue,
    /// Usage crossed 80, 95 or 100 %.
    MauThresholdWarning,
    /// The spending cap was reached.
    SignupsBlocked,
    /// Nothing happened: a test, asked for by the webhook's owner. Nobody subscribes to it.
    Ping,
}

impl EventType {
    /// Those that a webhook may subscribe to and a backend may send.
    pub const ALL: [Self; 11] = [
        Self::UserCreated,
        Self::UserUpdated,
        Self::UserDeleted,
        Self::SessionStarted,
        Self::SessionEnded,
        Self::TenantCreated,
        Self::TenantDeleted,
        Self::PlanChanged,
        Self::SubscriptionPastDue,
        Self::MauThresholdWarning,
        Self::SignupsBlocked,
    ];

    /// Its name in an envelope.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::UserCreated => "user.created",
            Self::UserUpdated => "user.updated",
            Self::UserDeleted => "user.deleted",
            Self::SessionStarted => "session.started",
            Self::SessionEnded => "session.ended",
            Self::TenantCreated => "tenant.created",
            Self::TenantDeleted => "tenant.deleted",
            Self::PlanChanged => "plan.changed",
            Self::SubscriptionPastDue => "subscription.past_due",
            Self::MauThresholdWarning => "mau.threshold_warning",
            Self::SignupsBlocked => "signups_blocked",
            Self::Ping => "webhook.ping",
        }
    }

    /// The type of that name, pings included.
    #[must_use]
    pub fn of_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().chain([Self::Ping]).find(|one| one.name() == name)
    }

    /// The type that [`EventType::code`] stands for.
    #[must_use]
    pub fn of_code(code: u8) -> Option<Self> {
        Self::ALL.into_iter().chain([Self::Ping]).find(|one| one.code() == code)
    }

    /// What a store keeps. Never changes its meaning.
    #[must_use]
    pub fn code(self) -> u8 {
        self as u8
    }
}

/// The types that a webhook is told of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EventSet(pub u16);

impl EventSet {
    /// The set of these.
    #[must_use]
    pub fn of(types: impl IntoIterator<Item = EventType>) -> Self {
        Self(types.into_iter().fold(0, |set, one| set | 1 << one.code()))
    }

    /// Whether `one` is in it.
    #[must_use]
    pub fn has(self, one: EventType) -> bool {
        self.0 & 1 << one.code() != 0
    }

    /// Those in it, in the contract's order.
    pub fn types(self) -> impl Iterator<Item = EventType> {
        EventType::ALL.into_iter().filter(move |one| self.has(*one))
    }
}

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
    pub lane: LaneId,
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
    /// is given up: the time it stands paused does not count (DESIGN §1, 12).
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

/// What a webhook's deliveries are signed with.
#[derive(Clone, Debug, PartialEq)]
pub struct Secrets {
    /// The one that its owner was shown last.
    pub current: Secret<String>,
    /// Those before it, newest first, and until when each signs as well, in steady time
    /// (`Store::steady`).
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

/// Where a delivery stands on disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum DeliveryState {
    /// Until it is due, or until its webhook may be called.
    Waiting,
    /// A receiver answered 2xx.
    Delivered,
    /// Given up: no attempt was answered 2xx, and its time is over.
    FailedPermanent,
}

impl DeliveryState {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Waiting, Self::Delivered, Self::FailedPermanent];

    /// What a store keeps. Never changes its meaning.
    #[must_use]
    pub fn code(self) -> u8 {
        match self {
            Self::Waiting => 0,
            Self::Delivered => 1,
            Self::FailedPermanent => 2,
        }
    }

    /// The state that a code stands for.
    #[must_use]
    pub fn of_code(code: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.code() == code)
    }
}

impl fmt::Display for DeliveryState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Waiting => "waiting",
            Self::Delivered => "delivered",
            Self::FailedPermanent => "failed_permanent",
        })
    }
}

/// A delivery that waits, with all that an attempt needs.
#[derive(Clone, Debug, PartialEq)]
pub struct Ready {
    /// Its number.
    pub id: DeliveryId,
    /// When it may be tried; [`Ready::created_at`] before the first attempt.
    pub due: UnixTime,
    /// When the event was accepted.
    pub created_at: UnixTime,
    /// The event's public identifier, which is in the body as well.
    pub event_id: Arc<str>,
    /// What happened.
    pub kind: EventType,
    /// The envelope, byte for byte the same on every attempt.
    pub body: Bytes,
    /// How many attempts there were.
    pub attempts: u32,
    /// How many of them failed since the schedule began: 0 again after a reactivation.
    pub step: u32,
    /// When the first of them started.
    pub first_attempt_at: Option<UnixTime>,
    /// When the first of them since the schedule began started.
    pub since: Option<UnixTime>,
    /// How long the webhook had stood paused when the first attempt started.
    pub paused_before: Duration,
    /// Whether it is sent on a new connection, because a reused one died under it. In memory alone.
    pub fresh_connection: bool,
}

/// A delivery that has just come to wait, and for whom.
#[derive(Clone, Debug, PartialEq)]
pub struct Arrival {
    /// For whom.
    pub webhook: WebhookId,
    /// What.
    pub ready: Ready,
}

/// One try.
#[derive(Clone, Debug, PartialEq)]
pub struct Attempt {
    /// From 1.
    pub number: u32,
    /// When it started, which is what the pace counts.
    pub started_at: UnixTime,
    /// From its start to its outcome.
    pub took: Duration,
    /// What came of it.
    pub outcome: Outcome,
}

/// A delivery as its owner sees it.
#[derive(Clone, Debug, PartialEq)]
pub struct Delivery {
    /// Its number.
    pub id: DeliveryId,
    /// The event's public identifier.
    pub event_id: Arc<str>,
    /// For whom.
    pub webhook: WebhookId,
    /// What happened.
    pub kind: EventType,
    /// Where it stands.
    pub state: DeliveryState,
    /// How many attempts there were.
    pub attempts: u32,
    /// When the event was accepted.
    pub created_at: UnixTime,
    /// When it may be tried next; without meaning once it has ended.
    pub due: UnixTime,
    /// When the first attempt started.
    pub first_attempt_at: Option<UnixTime>,
    /// How long the webhook had stood paused when the first attempt started.
    pub paused_before: Duration,
    /// When it ended.
    pub ended_at: Option<UnixTime>,
    /// What the last attempt came to, be it one before the delivery began anew.
    pub last_outcome: Option<Outcome>,
}
