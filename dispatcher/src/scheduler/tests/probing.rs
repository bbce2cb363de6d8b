//! Deliveries of a reactivated webhook: one at a time, until a 2xx.

use std::collections::BTreeSet;
use std::sync::Arc;

use weir_common::secret::Secret;

use crate::domain::event::EventType;
use crate::domain::trace::Trace;
use crate::domain::transcript::{Headers, RecordedAnswer, Transcript};
use crate::scheduler::Notification;
use crate::scheduler::tests::*;

#[test]
fn a_probe_is_alone_until_it_ends_and_is_the_one_that_is_retried() {
    let mut endpoints = scheduler(limits(100, 1_000, 8, 100));
    endpoints.restored(hook(1, 1, Flow::Probing(Probe::Any)), None, at(0).tick);
    for id in 0..10 {
        endpoints.arrives(WebhookId(1), queued(id, 0), at(0));
    }
    let Pick::Start(StartedAttempt { delivery: probe, .. }, _) = endpoints.next(at(0)) else {
        panic!("no probe")
    };
    assert_eq!(probe.id, DeliveryId(0));
    assert!(matches!(endpoints.next(at(0)), Pick::Wait(None)), "a second one next to the probe");
    let again = QueuedDelivery { due: at(60).unix, ..probe };
    endpoints.recorded(WebhookId(1), ended(again.id, Some(again), Responsiveness::Prompt), at(1));
    assert!(matches!(endpoints.next(at(59)), Pick::Wait(Some(tick)) if tick == at(60).tick));
    let Pick::Start(StartedAttempt { delivery: probe, .. }, _) = endpoints.next(at(60)) else {
        panic!("no probe")
    };
    assert_eq!(probe.id, DeliveryId(0), "another one than before");
    endpoints.probed(WebhookId(1), probe.id, NextState::Delivered);
    endpoints.webhooks.settle(WebhookId(1), Some(probe.id));
    endpoints.end(WebhookId(1), ended(probe.id, None, Responsiveness::Prompt), at(61));
    let Pick::Start(StartedAttempt { delivery: next, .. }, _) = endpoints.next(at(61)) else {
        panic!("does not drain")
    };
    assert_eq!(next.id, DeliveryId(1));
}

#[test]
fn a_probe_from_before_a_restart_is_read() {
    let mut endpoints = scheduler(limits(100, 1_000, 8, 100));
    let gate = Flow::Probing(Probe::This(DeliveryId(7)));
    endpoints.restored(hook(1, 1, gate), Some(at(0).tick), at(0).tick);
    let Pick::Read(StoreRead::FetchOne { delivery, round, .. }) = endpoints.next(at(0)) else {
        panic!("not asked")
    };
    assert_eq!(delivery, DeliveryId(7));
    endpoints.fetched_one(WebhookId(1), round, Some(queued(7, 5)), at(0));
    assert!(matches!(endpoints.next(at(4)), Pick::Wait(Some(_))));
    assert!(matches!(endpoints.next(at(5)), Pick::Start(..)));
}

#[test]
fn a_delivery_that_arrives_while_the_probe_is_read_overtakes_none() {
    let mut endpoints = scheduler(limits(100, 1_000, 8, 100));
    let gate = Flow::Probing(Probe::This(DeliveryId(7)));
    endpoints.restored(hook(1, 1, gate), Some(at(0).tick), at(0).tick);
    let Pick::Read(StoreRead::FetchOne { round, .. }) = endpoints.next(at(0)) else {
        panic!("not asked")
    };
    endpoints.arrives(WebhookId(1), queued(9, 0), at(0));
    endpoints.fetched_one(WebhookId(1), round, Some(queued(7, 0)), at(0));
    let Pick::Start(StartedAttempt { delivery: probe, .. }, _) = endpoints.next(at(0)) else {
        panic!("no probe")
    };
    assert_eq!(probe.id, DeliveryId(7));
    endpoints.recorded(WebhookId(1), ended(probe.id, None, Responsiveness::Prompt), at(1));
    // Delivery 8 has waited since before the pause, and is only in the store.
    let Pick::Read(StoreRead::Fetch { round, .. }) = endpoints.next(at(1)) else {
        panic!("the ninth goes first")
    };
    let fetched = Fetched { deliveries: vec![queued(8, 0), queued(9, 0)], more: false };
    endpoints.fetched(WebhookId(1), round, fetched, at(1));
    let Pick::Start(StartedAttempt { delivery: next, .. }, _) = endpoints.next(at(1)) else {
        panic!("no probe")
    };
    assert_eq!(next.id, DeliveryId(8));
}

#[test]
fn a_permanently_failed_probe_is_followed_by_the_next_oldest() {
    let mut endpoints = scheduler(limits(100, 1_000, 8, 100));
    endpoints.restored(hook(1, 1, Flow::Probing(Probe::Any)), None, at(0).tick);
    for id in 0..3 {
        endpoints.arrives(WebhookId(1), queued(id, 0), at(0));
    }
    for expected in 0..3 {
        let Pick::Start(StartedAttempt { delivery, .. }, _) = endpoints.next(at(0)) else {
            panic!("no probe {expected}")
        };
        assert_eq!(delivery.id, DeliveryId(expected));
        endpoints.recorded(WebhookId(1), ended(delivery.id, None, Responsiveness::Prompt), at(0));
    }
}

/// The result of this attempt.
fn result(attempt: StartedAttempt, outcome: Outcome, now: Moment) -> Input {
    let (retry_after, ended) = (None, now);
    let (trace, transcript) = (Trace::default(), None);
    Input::Attempted(Box::new(AttemptResult {
        attempt,
        reported: false,
        outcome,
        retry_after,
        trace,
        transcript,
        ended,
    }))
}

/// The first action that is neither a notification nor a read.
fn act(scheduler: &mut Scheduler, now: Moment) -> Action {
    loop {
        match scheduler.poll(now) {
            Action::Notify(_) | Action::Read(_) => {}
            action => return action,
        }
    }
}

#[test]
fn others_start_once_the_end_of_the_probe_is_on_disk() {
    let mut scheduler = scheduler(limits(100, 1_000, 8, 100));
    scheduler.restored(hook(1, 1, Flow::Probing(Probe::Any)), None, at(0).tick);
    let of = |id| Arrival { webhook: WebhookId(1), delivery: queued(id, 0) };
    scheduler.handle(Input::Arrived((1..=3).map(of).collect()), at(0));
    let Action::Start(probe, _) = act(&mut scheduler, at(0)) else { panic!("no probe") };
    scheduler.handle(result(probe, Outcome::of_status(500), at(1)), at(1));
    // The failed delivery stays the probe.
    let Action::Write(failed) = act(&mut scheduler, at(1)) else { panic!("not written") };
    assert_eq!(failed.updates[0].probing, Some(Probe::This(DeliveryId(1))));
    scheduler.handle(Input::Written(Recorded::default()), at(2));
    let later = at(60_001);
    let Action::Start(probe, _) = act(&mut scheduler, later) else { panic!("not tried again") };
    assert_eq!(probe.delivery.id, DeliveryId(1));
    scheduler.handle(result(probe, Outcome::of_status(200), later), later);
    let Action::Write(delivered) = act(&mut scheduler, later) else { panic!("not written") };
    assert_eq!(delivered.updates[0].probing, None);
    // Before the write ends, the webhook is read again in its earlier state.
    let stale = hook(1, 1, Flow::Probing(Probe::This(DeliveryId(1))));
    scheduler.restored(stale, Some(at(0).tick), later.tick);
    assert!(matches!(act(&mut scheduler, later), Action::Wait(_)), "it is not on disk yet");
    scheduler.handle(Input::NotWritten, later);
    assert!(matches!(act(&mut scheduler, later), Action::Wait(_)), "it could not be written");
    let again = at(60_501);
    assert_eq!(scheduler.past_due(again.tick), Duration::from_millis(500), "it holds its slot");
    assert!(matches!(act(&mut scheduler, again), Action::Write(_)));
    scheduler.handle(Input::Written(Recorded::default()), again);
    assert_eq!(scheduler.past_due(again.tick), Duration::ZERO);
    let round = loop {
        match scheduler.poll(again) {
            Action::Read(StoreRead::Fetch { round, .. }) => break round,
            action => assert!(matches!(action, Action::Notify(_)), "{action:?}"),
        }
    };
    let fetched = Fetched { deliveries: vec![queued(2, 0), queued(3, 0)], more: false };
    let answer = StoreAnswer::Fetched(round, fetched);
    scheduler.handle(Input::Read(WebhookId(1), answer), again);
    for expected in [2, 3] {
        let Action::Start(next, _) = act(&mut scheduler, again) else { panic!("does not drain") };
        assert_eq!(next.delivery.id, DeliveryId(expected));
    }
}

#[test]
fn an_attempt_over_which_its_webhooks_secrets_changed_keeps_no_response() {
    let kept = |change: fn(&mut Scheduler)| {
        let mut scheduler = scheduler(limits(100, 1_000, 8, 100));
        scheduler.restored(hook(1, 1, Flow::Open), None, at(0).tick);
        let arrival = Arrival { webhook: WebhookId(1), delivery: queued(1, 0) };
        scheduler.handle(Input::Arrived(vec![arrival]), at(0));
        let Action::Start(attempt, _) = act(&mut scheduler, at(0)) else { panic!("no attempt") };
        change(&mut scheduler);
        let mut result = result(attempt, Outcome::of_status(500), at(1));
        let Input::Attempted(attempted) = &mut result else { panic!("no result") };
        let (request, answer) = (Headers::default(), Some(RecordedAnswer::default()));
        attempted.transcript = Some(Transcript { request, answer });
        scheduler.handle(result, at(1));
        let Action::Write(write) = act(&mut scheduler, at(1)) else { panic!("not written") };
        write.records[0].transcript.as_ref().unwrap().answer.is_some()
    };
    assert!(kept(|_| {}));
    assert!(kept(|scheduler| scheduler.restored(hook(1, 1, Flow::Open), None, at(1).tick)));
    assert!(!kept(|scheduler| scheduler.handle(Input::Changed(WebhookId(1)), at(1))));
    assert!(!kept(|scheduler| {
        let mut rotated = hook(1, 1, Flow::Open);
        Arc::make_mut(&mut rotated.secrets).current.secret = Secret::new("whsec_of_now".to_owned());
        scheduler.restored(rotated, None, at(1).tick);
    }));
}

#[test]
fn a_2xx_to_a_probe_of_an_earlier_url_opens_no_queue_to_the_present_one() {
    let mut scheduler = scheduler(limits(100, 1_000, 8, 100));
    scheduler.restored(hook(1, 1, Flow::Probing(Probe::Any)), None, at(0).tick);
    let of = |id| Arrival { webhook: WebhookId(1), delivery: queued(id, 0) };
    scheduler.handle(Input::Arrived((1..=3).map(of).collect()), at(0));
    let Action::Start(probe, _) = act(&mut scheduler, at(0)) else { panic!("no probe") };
    let present = Webhook { probing: Some(Probe::Any), ..moved(1, 2) };
    scheduler.restored(present, Some(at(0).tick), at(1).tick);
    scheduler.handle(result(probe, Outcome::of_status(200), at(2)), at(2));
    let Action::Write(write) = act(&mut scheduler, at(2)) else { panic!("not written") };
    assert_eq!(write.updates[0].probing, Some(Probe::Any));
    scheduler.handle(Input::Written(Recorded::default()), at(3));
    assert_eq!(scheduler.webhooks.flow(WebhookId(1)), Flow::Probing(Probe::Any));
}

#[test]
fn a_probe_stays_the_probe_when_its_webhook_is_read_again() {
    let mut scheduler = scheduler(limits(100, 1_000, 8, 100));
    let read = || hook(1, 1, Flow::Probing(Probe::Any));
    scheduler.restored(read(), Some(at(0).tick), at(0).tick);
    let Pick::Read(StoreRead::Fetch { round, .. }) = scheduler.next(at(0)) else {
        panic!("not asked")
    };
    let fetched = Fetched { deliveries: vec![queued(1, 0), queued(2, 0)], more: false };
    scheduler.fetched(WebhookId(1), round, fetched, at(0));
    let Pick::Start(StartedAttempt { delivery, .. }, _) = scheduler.next(at(0)) else {
        panic!("does not probe")
    };
    assert_eq!(delivery.id, DeliveryId(1));
    scheduler.restored(read(), Some(at(0).tick), at(0).tick);
    assert!(matches!(scheduler.next(at(0)), Pick::Wait(None)));
    let again = QueuedDelivery { due: at(60).unix, ..delivery };
    scheduler.recorded(
        WebhookId(1),
        ended(DeliveryId(1), Some(again), Responsiveness::Prompt),
        at(1),
    );
    assert!(matches!(scheduler.next(at(1)), Pick::Wait(Some(tick)) if tick == at(60).tick));
    let update = scheduler.webhooks.update(WebhookId(1)).unwrap();
    assert_eq!(update.probing, Some(Probe::This(DeliveryId(1))));
}

#[test]
fn the_state_that_is_reported_after_an_attempt_is_the_one_on_disk() {
    for (redelivered, expected) in [
        (BTreeSet::new(), NextState::FailedPermanent),
        ([DeliveryId(1)].into(), NextState::Again { due: at(2).unix, step: 0 }),
    ] {
        let mut scheduler = scheduler(limits(100, 1_000, 8, 100));
        scheduler.restored(hook(1, 1, Flow::Open), None, at(0).tick);
        let ping = QueuedDelivery { kind: EventType::PING, ..queued(1, 0) };
        let arrival = Arrival { webhook: WebhookId(1), delivery: ping };
        scheduler.handle(Input::Arrived(vec![arrival]), at(0));
        let Action::Start(attempt, _) = act(&mut scheduler, at(0)) else { panic!("no attempt") };
        scheduler.handle(result(attempt, Outcome::of_status(500), at(1)), at(1));
        let next = scheduler.poll(at(1));
        assert!(!matches!(next, Action::Notify(_)), "it is not on disk: {next:?}");
        scheduler.handle(Input::Written(Recorded { redelivered, ..Recorded::default() }), at(2));
        let Action::Notify(Notification::Attempt(report)) = scheduler.poll(at(2)) else {
            panic!("not reported")
        };
        assert_eq!(report.after, Some(expected));
    }
}
