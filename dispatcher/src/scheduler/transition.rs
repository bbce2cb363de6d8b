//! Decides the consequences of an attempt for its delivery and its webhook's health. (core)
//!
//! # Invariants
//!
//! 1. A fault of the dispatcher changes neither the schedule, nor the deadline, nor health.
//! 2. A delivery fails permanently only by a failed attempt at or after its deadline; a ping by its
//!    first failure.

use std::time::Duration;

use weir_common::time::UnixTime;

use crate::domain::delivery::{NextState, QueuedDelivery};
use crate::domain::event::EventType;
use crate::domain::health::Observation;
use crate::domain::outcome::Outcome;
use crate::domain::retry::{Failed, Next, Schedule};
use crate::domain::webhook::Webhook;

/// The consequences for a delivery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Verdict {
    /// The next state.
    pub(super) after: NextState,
    /// When its first attempt started.
    pub(super) first_attempt_at: UnixTime,
    /// When the first attempt of its schedule started.
    pub(super) since: UnixTime,
    /// The webhook's total pause at the first attempt.
    pub(super) paused_before: Duration,
}

/// An ended attempt, as the verdict needs it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Evidence<'a> {
    /// The delivery as it was at the start.
    pub(super) delivery: &'a QueuedDelivery,
    pub(super) started_at: UnixTime,
    pub(super) ended_at: UnixTime,
    pub(super) outcome: &'a Outcome,
    /// The receiver's `Retry-After`.
    pub(super) retry_after: Option<Duration>,
}

/// The consequences of an attempt for its delivery; `None` after a fault of the dispatcher.
#[must_use]
pub(super) fn verdict(
    webhook: &Webhook,
    schedule: &Schedule,
    evidence: &Evidence<'_>,
) -> Option<Verdict> {
    let Evidence { delivery, started_at, ended_at: now, outcome, retry_after: hint } = *evidence;
    let (first_attempt_at, paused_before) = match delivery.first_attempt_at {
        Some(first) => (first, delivery.paused_before),
        None => (started_at, webhook.paused_total),
    };
    let since = delivery.since.unwrap_or(started_at);
    let after = match outcome {
        Outcome::Internal(_) => return None,
        Outcome::Delivered { .. } => NextState::Delivered,
        // A test has one attempt: the customer waits for its result, and can repeat it.
        Outcome::Failed(_) if delivery.kind == EventType::PING => NextState::FailedPermanent,
        Outcome::Failed(_) => {
            let deadline =
                webhook.deadline(first_attempt_at, paused_before, schedule.give_up_after, now);
            match schedule.next(Failed { step: delivery.step, since, deadline, hint }, now) {
                Next::At(due) => NextState::Again { due, step: delivery.step.saturating_add(1) },
                Next::GiveUp => NextState::FailedPermanent,
            }
        }
    };
    Some(Verdict { after, first_attempt_at, since, paused_before })
}

/// What an attempt shows about its webhook's health.
#[must_use]
pub(super) fn observation(kind: EventType, outcome: &Outcome) -> Option<Observation> {
    match (outcome, kind) {
        (Outcome::Delivered { .. }, EventType::PING) => Some(Observation::PingSucceeded),
        (Outcome::Delivered { .. }, _) => Some(Observation::Succeeded),
        (Outcome::Failed(_), EventType::PING) | (Outcome::Internal(_), _) => None,
        (Outcome::Failed(_), _) => Some(Observation::Failed),
    }
}

/// The delivery as it waits for its next attempt.
#[must_use]
pub(super) fn again(delivery: QueuedDelivery, verdict: &Verdict) -> Option<QueuedDelivery> {
    let NextState::Again { due, step } = verdict.after else { return None };
    Some(QueuedDelivery {
        due,
        step,
        attempts: delivery.attempts.saturating_add(1),
        first_attempt_at: Some(verdict.first_attempt_at),
        since: Some(verdict.since),
        paused_before: verdict.paused_before,
        fresh_connection: false,
        ..delivery
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use bytes::Bytes;
    use weir_common::secret::Secret;

    use super::*;
    use crate::domain::event::EventSet;
    use crate::domain::health::Health;
    use crate::domain::id::{DeliveryId, EndpointId, WebhookId};
    use crate::domain::outcome::{Failure, Fault};
    use crate::domain::retry::Mode;
    use crate::domain::webhook::secrets::Secrets;

    const START: UnixTime = UnixTime(1_790_000_000_000_000);
    const MINUTE: Duration = Duration::from_secs(60);
    const FAILED: Outcome = Outcome::Failed(Failure::Status(500));
    const SUCCEEDED: Outcome = Outcome::Delivered { status: 204 };
    const INTERNAL: Outcome = Outcome::Internal(Fault::Resources);

    fn schedule(mode: Mode) -> Schedule {
        let (delays, hour) = (vec![MINUTE, 5 * MINUTE], 60 * MINUTE);
        Schedule { mode, delays, give_up_after: hour, retry_after_max: hour }
    }

    fn webhook() -> Webhook {
        Webhook {
            id: WebhookId(1),
            workspace: Arc::from("ws_acme"),
            url: Arc::from("https://hooks.example.com/"),
            endpoint: EndpointId(1),
            events: EventSet::of([EventType::new("user.created"), EventType::new("plan.changed")]),
            created_at: START,
            options: Default::default(),
            secrets: Arc::new(Secrets::of(Secret::new("whsec_a".to_owned()))),
            paused_at: None,
            disabled_at: None,
            paused_total: 7 * MINUTE,
            probing: None,
            reordering: false,
            health: Health::default(),
            last_outcome: None,
        }
    }

    fn fresh() -> QueuedDelivery {
        QueuedDelivery {
            id: DeliveryId(1),
            due: START,
            created_at: START,
            event_id: Arc::from("evt_1"),
            kind: EventType::new("user.created"),
            body: Bytes::from_static(b"{}"),
            attempts: 0,
            step: 0,
            first_attempt_at: None,
            since: None,
            paused_before: Duration::ZERO,
            redeliveries: 0,
            fresh_connection: false,
        }
    }

    /// A delivery whose first attempt was at the start, before its second attempt.
    fn tried() -> QueuedDelivery {
        let (first, paused_before) = (Some(START), 7 * MINUTE);
        QueuedDelivery {
            attempts: 1,
            step: 1,
            first_attempt_at: first,
            since: first,
            paused_before,
            ..fresh()
        }
    }

    fn evidence<'a>(
        delivery: &'a QueuedDelivery,
        started_at: UnixTime,
        outcome: &'a Outcome,
        ended_at: UnixTime,
    ) -> Evidence<'a> {
        Evidence { delivery, started_at, ended_at, outcome, retry_after: None }
    }

    /// The consequences of an attempt of one second that starts `minutes` after the first one.
    fn after(
        webhook: &Webhook,
        delivery: &QueuedDelivery,
        outcome: &Outcome,
        minutes: u32,
    ) -> Option<NextState> {
        let started = START.plus(MINUTE * minutes);
        let ended = started.plus(Duration::from_secs(1));
        let schedule = schedule(Mode::Delay);
        let verdict = verdict(webhook, &schedule, &evidence(delivery, started, outcome, ended));
        verdict.map(|verdict| verdict.after)
    }

    fn again(seconds: u64, step: u32) -> Option<NextState> {
        Some(NextState::Again { due: START.plus(Duration::from_secs(seconds)), step })
    }

    #[test]
    fn a_2xx_ends_a_delivery_at_any_time() {
        for (delivery, minutes) in [(fresh(), 0), (tried(), 1), (tried(), 600)] {
            assert_eq!(
                after(&webhook(), &delivery, &SUCCEEDED, minutes),
                Some(NextState::Delivered)
            );
        }
    }

    #[test]
    fn a_fault_of_the_dispatcher_has_no_consequences() {
        let ping = QueuedDelivery { kind: EventType::PING, ..fresh() };
        for (delivery, minutes) in [(fresh(), 0), (tried(), 600), (ping, 0)] {
            assert_eq!(after(&webhook(), &delivery, &INTERNAL, minutes), None);
        }
        assert_eq!(observation(EventType::new("user.created"), &INTERNAL), None);
        assert_eq!(observation(EventType::PING, &INTERNAL), None);
    }

    #[test]
    fn a_failed_delivery_is_retried_until_its_deadline() {
        assert_eq!(after(&webhook(), &fresh(), &FAILED, 0), again(61, 1));
        assert_eq!(after(&webhook(), &tried(), &FAILED, 1), again(361, 2));
        assert_eq!(after(&webhook(), &tried(), &FAILED, 58), again(3_600, 2), "brought forward");
        assert_eq!(after(&webhook(), &tried(), &FAILED, 60), Some(NextState::FailedPermanent));
        // The deadline counts from the first attempt, however late that is.
        assert_eq!(after(&webhook(), &fresh(), &FAILED, 600), again(36_061, 1));
    }

    #[test]
    fn pauses_of_the_webhook_do_not_count() {
        let since = Webhook { paused_total: 37 * MINUTE, ..webhook() };
        assert_eq!(after(&since, &tried(), &FAILED, 88), again(5_400, 2));
        assert_eq!(after(&since, &tried(), &FAILED, 90), Some(NextState::FailedPermanent));
        // The webhook was paused ten minutes before the attempt.
        let now = Webhook { paused_at: Some(START.plus(70 * MINUTE)), ..since };
        assert_eq!(after(&now, &tried(), &FAILED, 80), again(5_101, 2));
    }

    #[test]
    fn a_ping_has_one_attempt_and_its_failure_does_not_affect_its_webhook() {
        let ping = QueuedDelivery { kind: EventType::PING, ..fresh() };
        assert_eq!(after(&webhook(), &ping, &FAILED, 0), Some(NextState::FailedPermanent));
        assert_eq!(after(&webhook(), &ping, &SUCCEEDED, 0), Some(NextState::Delivered));
        assert_eq!(observation(EventType::PING, &FAILED), None);
        assert_eq!(observation(EventType::PING, &SUCCEEDED), Some(Observation::PingSucceeded));
        assert_eq!(observation(EventType::new("user.created"), &FAILED), Some(Observation::Failed));
        assert_eq!(
            observation(EventType::new("user.created"), &SUCCEEDED),
            Some(Observation::Succeeded)
        );
    }

    #[test]
    fn the_first_attempt_starts_the_schedule_and_the_deadline() {
        let started = START.plus(MINUTE);
        let ended = started.plus(Duration::from_secs(9));
        let of = |delivery: &QueuedDelivery| {
            let schedule = schedule(Mode::Delay);
            verdict(&webhook(), &schedule, &evidence(delivery, started, &FAILED, ended)).unwrap()
        };
        let first = of(&fresh());
        assert_eq!((first.first_attempt_at, first.since), (started, started));
        assert_eq!(first.paused_before, 7 * MINUTE);
        let second = of(&QueuedDelivery { paused_before: MINUTE, ..tried() });
        assert_eq!((second.first_attempt_at, second.since), (START, START));
        assert_eq!(second.paused_before, MINUTE);
        // A reactivation restarts the schedule, not the deadline.
        let reordered = of(&QueuedDelivery { since: None, step: 0, ..tried() });
        assert_eq!((reordered.first_attempt_at, reordered.since), (START, started));
    }

    #[test]
    fn a_deadline_stands_still_while_a_webhook_is_disabled_or_paused() {
        let at = |minutes: u32| START.plus(minutes * MINUTE);
        let deadline = |paused_at, disabled_at| {
            let webhook = Webhook { paused_at, disabled_at, ..webhook() };
            webhook.deadline(START, 7 * MINUTE, 60 * MINUTE, at(30))
        };
        assert_eq!(deadline(None, None), at(60));
        assert_eq!(deadline(None, Some(at(20))), at(70));
        assert_eq!(deadline(Some(at(10)), Some(at(20))), at(80), "not twice");
        assert_eq!(deadline(Some(at(20)), Some(at(10))), at(80), "not twice");
    }

    #[test]
    fn offsets_count_from_the_first_attempt_of_the_schedule() {
        let (started, ended) = (START.plus(MINUTE), START.plus(2 * MINUTE));
        let schedule = schedule(Mode::Offset);
        let of = |delivery: &QueuedDelivery| {
            verdict(&webhook(), &schedule, &evidence(delivery, started, &FAILED, ended))
                .unwrap()
                .after
        };
        assert_eq!(of(&tried()), NextState::Again { due: START.plus(5 * MINUTE), step: 2 });
        let reordered = QueuedDelivery { since: None, step: 0, ..tried() };
        assert_eq!(of(&reordered), NextState::Again { due: START.plus(6 * MINUTE), step: 1 });
    }

    #[test]
    fn retry_after_is_honoured() {
        let schedule = schedule(Mode::Delay);
        let verdict = verdict(
            &webhook(),
            &schedule,
            &Evidence {
                retry_after: Some(20 * MINUTE),
                ..evidence(&fresh(), START, &FAILED, START)
            },
        );
        assert_eq!(
            verdict.unwrap().after,
            NextState::Again { due: START.plus(20 * MINUTE), step: 1 }
        );
    }

    #[test]
    fn a_requeued_delivery_has_what_its_next_attempt_needs() {
        let started = START.plus(MINUTE);
        let schedule = schedule(Mode::Delay);
        let of = |outcome| {
            verdict(&webhook(), &schedule, &evidence(&fresh(), started, outcome, started)).unwrap()
        };
        let expected = QueuedDelivery {
            due: START.plus(2 * MINUTE),
            attempts: 1,
            step: 1,
            first_attempt_at: Some(started),
            since: Some(started),
            paused_before: 7 * MINUTE,
            ..fresh()
        };
        assert_eq!(super::again(fresh(), &of(&FAILED)), Some(expected));
        assert_eq!(super::again(fresh(), &of(&SUCCEEDED)), None);
    }
}
