//! One try at a delivery.

use std::time::Duration;

use weir_common::time::UnixTime;

use crate::domain::delivery::NextState;
use crate::domain::id::{DeliveryId, EndpointId, WebhookId};
use crate::domain::outcome::Outcome;

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

/// An attempt that has ended.
#[derive(Clone, Debug)]
pub struct AttemptRecord {
    /// Of which delivery.
    pub delivery: DeliveryId,
    /// For whom.
    pub webhook: WebhookId,
    /// On which endpoint it started.
    pub endpoint: EndpointId,
    /// The attempt.
    pub attempt: Attempt,
    /// What becomes of the delivery.
    pub after: NextState,
    /// `QueuedDelivery::first_attempt_at` from now on.
    pub first_attempt_at: Option<UnixTime>,
    /// `QueuedDelivery::since` from now on.
    pub since: Option<UnixTime>,
    /// `QueuedDelivery::paused_before` from now on.
    pub paused_before: Duration,
}
