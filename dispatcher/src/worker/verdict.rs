//! Decides what follows from an attempt: for the delivery, and for its webhook.
//!
//! # Invariants
//!
//! 1. What kept us from trying changes neither the schedule, nor the deadline, nor health.
//! 2. A delivery is given up only by a failed attempt at or after its deadline (DESIGN §1, 11),
//!    or, where it is a ping, by its first.

use std::time::Duration;

use weir_common::time::UnixTime;

use crate::health::Sign;
use crate::model::{EventType, Ready, Webhook};
use crate::outcome::Outcome;
use crate::schedule::{Failed, Next, Schedule};
use crate::store::After;

/// What follows for a delivery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Verdict {
    /// What becomes of it.
    pub(super) after: After,
    /// When its first attempt started.
    pub(super) first_attempt_at: UnixTime,
    /// When the first attempt of its schedule started.
    pub(super) since: UnixTime,
    /// How long its webhook had stood paused at its first attempt.
    pub(super) paused_before: Duration,
}

/// What follows for a delivery from an attempt that ended `now`; nothing where it was our fault.
#[must_use]
pub(super) fn verdict(
    webhook: &Webhook,
    schedule: &Schedule,
    ready: &Ready,
    started_at: UnixTime,
    outcome: &Outcome,
    hint: Option<Duration>,
    now: UnixTime,
) -> Option<Verdict> {
    let (first_attempt_at, paused_before) = match ready.first_attempt_at {
        Some(first) => (first, ready.paused_before),
        None => (started_at, webhook.paused_total),
    };
    let since = ready.since.unwrap_or(started_at);
    let after = match outcome {
        Outcome::Internal(_) => return None,
        Outcome::Delivered { .. } => After::Delivered,
        // Whoever asked for a test wants to know now, and can ask again.
        Outcome::Failed(_) if ready.kind == EventType::Ping => After::FailedPermanent,
        Outcome::Failed(_) => {
            let deadline =
                webhook.deadline(first_attempt_at, paused_before, schedule.give_up_after, now);
            match schedule.next(Failed { step: ready.step, since, deadline, hint }, now) {
                Next::At(due) => After::Again { due, step: ready.step.saturating_add(1) },
                Next::GiveUp => After::FailedPermanent,
            }
        }
    };
    Some(Verdict { after, first_attempt_at, since, paused_before })
}

/// What an attempt says of its webhook.
#[must_use]
pub(super) fn sign(kind: EventType, outcome: &Outcome) -> Option<Sign> {
    match (outcome, kind) {
        (Outcome::Delivered { .. }, EventType::Ping) => Some(Sign::PingWell),
        (Outcome::Delivered { .. }, _) => Some(Sign::Well),
        (Outcome::Failed(_), EventType::Ping) | (Outcome::Internal(_), _) => None,
        (Outcome::Failed(_), _) => Some(Sign::Ill),
    }
}

/// The delivery as it waits again.
#[must_use]
pub(super) fn again(ready: Ready, verdict: &Verdict) -> Option<Ready> {
    let After::Again { due, step } = verdict.after else { return None };
    Some(Ready {
        due,
        step,
        attempts: ready.attempts.saturating_add(1),
        first_attempt_at: Some(verdict.first_attempt_at),
        since: Some(verdict.since),
        paused_before: verdict.paused_before,
        ..ready
    })
}
