//! One attempt of a delivery. (core)

#![expect(missing_docs, reason = "plain data: the names of fields say what they are")]

use std::sync::Arc;
use std::time::Duration;

use weir_common::time::UnixTime;

use crate::domain::delivery::NextState;
use crate::domain::id::{DeliveryId, EndpointId, WebhookId};
use crate::domain::outcome::Outcome;
use crate::domain::trace::Trace;
use crate::domain::transcript::Transcript;

/// An attempt that has ended.
#[derive(Clone, Debug, PartialEq)]
pub struct Attempt {
    /// Counted from 1.
    pub number: u32,
    pub started_at: UnixTime,
    /// From the start to the outcome.
    pub took: Duration,
    /// The receiver's success or failure, or the dispatcher's fault.
    pub outcome: Outcome,
    /// What it came across.
    pub trace: Trace,
}

impl Attempt {
    /// Why it failed, in words for the receiver's owner; `None` if it did not.
    #[must_use]
    pub fn error(&self) -> Option<String> {
        match (&self.outcome, self.trace.reason) {
            (Outcome::Delivered { .. }, _) => None,
            (Outcome::Failed(_), Some(reason)) => Some(reason.in_words()),
            (outcome, _) => Some(outcome.in_words()),
        }
    }
}

/// An attempt as the store has it.
#[derive(Clone, Debug, PartialEq)]
pub struct RecordedAttempt {
    pub attempt: Attempt,
    /// The URL that it called; `None` once its endpoint was dropped.
    pub url: Option<Arc<str>>,
    /// What was sent and answered, if it is kept.
    pub transcript: Option<Transcript>,
}

/// An attempt as the store records it.
#[derive(Clone, Debug)]
pub struct AttemptRecord {
    pub delivery: DeliveryId,
    pub webhook: WebhookId,
    /// The workspace.
    pub workspace: Arc<str>,
    /// The endpoint that it called.
    pub endpoint: EndpointId,
    pub attempt: Attempt,
    /// Shared, since a failed write is repeated.
    pub transcript: Option<Arc<Transcript>>,
    /// `QueuedDelivery::redeliveries` at the start: if its schedule began anew since and the
    /// attempt failed, what follows below is stale and ignored.
    pub redeliveries: u32,
    /// The delivery's next state.
    pub after: NextState,
    /// `QueuedDelivery::first_attempt_at` from now on.
    pub first_attempt_at: Option<UnixTime>,
    /// `QueuedDelivery::since` from now on.
    pub since: Option<UnixTime>,
    /// `QueuedDelivery::paused_before` from now on.
    pub paused_before: Duration,
}

/// An attempt, as it counts in rate limits after a restart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EarlierStart {
    pub endpoint: EndpointId,
    /// The webhook, unless the attempt lost its delivery before version 20 of the schema.
    pub webhook: Option<WebhookId>,
    pub workspace: Option<Arc<str>>,
    /// The endpoint's URL, unless it was forgotten.
    pub url: Option<Arc<str>>,
    /// The latest time at which its request can have been sent.
    pub sent_at: UnixTime,
}
