//! A delivery: one event for one webhook, its states, and what an attempt needs. (core)
//!
//! ```text
//!  ingest           start             2xx
//!  ──────▶ Waiting ──────▶ in flight ──────▶ Delivered ── redeliver ──▶ Waiting
//!             ▲              │   │
//!             └─ again at t ─┘   └─ 48 h ──▶ FailedPermanent ── redeliver ──▶ Waiting
//! ```
//!
//! Invariant: in flight is a state of the sending process alone. On disk the delivery waits until
//! its outcome is recorded, so that a crash repeats the attempt and loses no delivery.

#![expect(missing_docs, reason = "plain data: the names of fields say what they are")]

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use weir_common::time::UnixTime;

use crate::domain::event::EventType;
use crate::domain::id::{DeliveryId, WebhookId};
use crate::domain::outcome::Outcome;

/// The memory of a delivery that waits, excluding its body: struct, identifiers, map entries.
pub const DELIVERY_OVERHEAD_BYTES: usize = 512;

/// A delivery's state on disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum DeliveryState {
    /// Waits until it is due and its webhook may be called.
    Waiting,
    /// The receiver answered 2xx.
    Delivered,
    /// No attempt was answered 2xx before the deadline.
    FailedPermanent,
}

impl DeliveryState {
    /// All states.
    pub const ALL: [Self; 3] = [Self::Waiting, Self::Delivered, Self::FailedPermanent];

    /// The stored code. A code never changes its meaning.
    #[must_use]
    pub fn code(self) -> u8 {
        match self {
            Self::Waiting => 0,
            Self::Delivered => 1,
            Self::FailedPermanent => 2,
        }
    }

    /// The name in the API, logs and metrics.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Waiting => "waiting",
            Self::Delivered => "delivered",
            Self::FailedPermanent => "failed_permanent",
        }
    }

    /// The state with this code.
    #[must_use]
    pub fn of_code(code: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.code() == code)
    }
}

impl fmt::Display for DeliveryState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A waiting delivery, with what an attempt needs.
#[derive(Clone, Debug, PartialEq)]
pub struct QueuedDelivery {
    pub id: DeliveryId,
    /// When the next attempt may start; [`QueuedDelivery::created_at`] before the first.
    pub due: UnixTime,
    /// When the event was accepted.
    pub created_at: UnixTime,
    /// The event's public identifier, also in the body.
    pub event_id: Arc<str>,
    pub kind: EventType,
    /// The envelope, byte for byte the same on every attempt.
    pub body: Bytes,
    /// The number of attempts so far.
    pub attempts: u32,
    /// Failures since the schedule started; a reactivation restarts it.
    pub step: u32,
    /// When the first attempt started.
    pub first_attempt_at: Option<UnixTime>,
    /// When the first attempt of the schedule started.
    pub since: Option<UnixTime>,
    /// The webhook's total pause when the first attempt started.
    pub paused_before: Duration,
    /// How often its schedule began anew, by a redelivery or a reactivation.
    pub redeliveries: u32,
    /// Whether it needs a new connection, because a reused one closed. In memory only.
    pub fresh_connection: bool,
}

/// A delivery that was just queued, with its webhook.
#[derive(Clone, Debug, PartialEq)]
pub struct Arrival {
    pub webhook: WebhookId,
    pub delivery: QueuedDelivery,
}

/// Waiting deliveries, in the order of their due times.
#[derive(Clone, Debug, Default)]
pub struct Fetched {
    pub deliveries: Vec<QueuedDelivery>,
    /// Whether more are in the store.
    pub more: bool,
}

/// The state of a delivery after an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NextState {
    Delivered,
    /// It waits for the next attempt.
    Again {
        due: UnixTime,
        /// [`QueuedDelivery::step`] from now on.
        step: u32,
    },
    FailedPermanent,
}

impl NextState {
    /// The state that is stored.
    #[must_use]
    pub fn state(self) -> DeliveryState {
        match self {
            Self::Delivered => DeliveryState::Delivered,
            Self::Again { .. } => DeliveryState::Waiting,
            Self::FailedPermanent => DeliveryState::FailedPermanent,
        }
    }
}

/// The scheduler's state of a waiting delivery.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeliveryStatus {
    /// Whether an attempt is in flight.
    pub in_flight: bool,
    /// When the endpoint's rate limit, the retry of a probe, and the backoff after a name lookup
    /// without a reply all allow an attempt; may be past. `None` if none of them applies.
    pub blocked_until: Option<UnixTime>,
    /// Whether the backoff after the name lookup is the last of these to end.
    pub unresolved: bool,
    /// The attempts that the endpoint may have in flight, if it has them and the last one timed
    /// out: fewer than others have.
    pub slots: Option<usize>,
}

/// A delivery as the API shows it.
#[derive(Clone, Debug, PartialEq)]
pub struct Delivery {
    pub id: DeliveryId,
    /// The event's public identifier.
    pub event_id: Arc<str>,
    pub webhook: WebhookId,
    pub kind: EventType,
    pub state: DeliveryState,
    /// The number of attempts so far.
    pub attempts: u32,
    /// When the event was accepted.
    pub created_at: UnixTime,
    /// When the next attempt may start; meaningless once the delivery has ended.
    pub due: UnixTime,
    /// When the first attempt started.
    pub first_attempt_at: Option<UnixTime>,
    /// The webhook's total pause when the first attempt started.
    pub paused_before: Duration,
    /// When it was delivered or failed permanently.
    pub ended_at: Option<UnixTime>,
    /// The outcome of the last attempt, which may be older than a redelivery.
    pub last_outcome: Option<Outcome>,
}

/// The last delivery of the previous page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cursor {
    /// When it was accepted; `None` in a cursor of an earlier version.
    pub created_at: Option<UnixTime>,
    pub id: DeliveryId,
}
