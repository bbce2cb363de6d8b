//! One event for one webhook: its states, and what an attempt needs of it.
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
use weir_common::time::UnixTime;

use crate::domain::event::EventType;
use crate::domain::id::{DeliveryId, WebhookId};
use crate::domain::outcome::Outcome;

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
pub struct QueuedDelivery {
    /// Its number.
    pub id: DeliveryId,
    /// When it may be tried; [`QueuedDelivery::created_at`] before the first attempt.
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
    pub ready: QueuedDelivery,
}

/// Deliveries that wait, in the order in which they are due.
#[derive(Clone, Debug, Default)]
pub struct Fetched {
    /// The first of them.
    pub ready: Vec<QueuedDelivery>,
    /// Whether there are more behind them.
    pub more: bool,
}

/// What becomes of a delivery after an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NextState {
    /// A 2xx.
    Delivered,
    /// It waits until then.
    Again {
        /// Until when.
        due: UnixTime,
        /// [`QueuedDelivery::step`] from now on.
        step: u32,
    },
    /// Given up.
    FailedPermanent,
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

/// Where a page of deliveries begins: after this one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cursor {
    /// When it was accepted; unknown of a cursor that an earlier version gave out.
    pub created_at: Option<UnixTime>,
    /// Its number.
    pub id: DeliveryId,
}
