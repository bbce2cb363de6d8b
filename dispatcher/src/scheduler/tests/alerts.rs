//! Alerts of failing, paused and recovered webhooks.

use crate::domain::event::EventType;
use crate::domain::health::Health;
use crate::domain::operator_event;
use crate::scheduler::Input;
use crate::scheduler::tests::*;
use crate::scheduler::transition;
use crate::scheduler::webhooks::alerts::HealthChange;

const HOUR: u64 = 3_600_000;

const ONE: WebhookId = WebhookId(1);

fn open(webhook: Webhook) -> Scheduler {
    let mut scheduler = scheduler(limits(100, 1_000, 8, 100));
    scheduler.restored(webhook, None, at(0).tick);
    scheduler
}

/// The change and its start that an attempt leads to.
fn change(scheduler: &mut Scheduler, status: u16, now: u64) -> Option<(HealthChange, UnixTime)> {
    let (outcome, now) = (Outcome::of_status(status), at(now));
    let observation = transition::observation(EventType::new("user.created"), &outcome).unwrap();
    let alert = scheduler.observe(ONE, observation, &outcome, now)?;
    assert_eq!((alert.at, alert.last_outcome), (now.unix, Some(outcome)));
    Some((alert.change, alert.since))
}

#[test]
fn a_webhook_recovers_once_with_its_first_2xx_after_a_warning_and_a_pause() {
    let mut scheduler = open(hook(1, 1, Flow::Open));
    let since = at(0).unix;
    assert_eq!(change(&mut scheduler, 500, 0), None);
    assert_eq!(change(&mut scheduler, 500, HOUR / 2), None);
    assert_eq!(change(&mut scheduler, 500, HOUR), Some((HealthChange::Failing, since)));
    assert_eq!(change(&mut scheduler, 500, 24 * HOUR), Some((HealthChange::Paused, since)));
    // An attempt that was in flight when it was paused.
    assert_eq!(change(&mut scheduler, 200, 24 * HOUR + 1), None);
    let health = scheduler.webhooks.webhook(ONE).unwrap().health.reactivated();
    let reactivated = Webhook { health, ..hook(1, 1, Flow::Probing(Probe::Any)) };
    scheduler.restored(reactivated, None, at(25 * HOUR).tick);
    assert_eq!(change(&mut scheduler, 500, 25 * HOUR), None);
    let recovered = Some((HealthChange::Recovered, since));
    assert_eq!(change(&mut scheduler, 200, 26 * HOUR), recovered);
    assert_eq!(change(&mut scheduler, 200, 27 * HOUR), None);
}

#[test]
fn a_test_that_is_answered_2xx_ends_an_incident_and_none_that_share_of_failures_has() {
    let mut scheduler = open(hook(1, 1, Flow::Open));
    let since = at(0).unix;
    for half_hours in [0, 1, 2, 48] {
        change(&mut scheduler, 500, half_hours * HOUR / 2);
    }
    let ping = |scheduler: &mut Scheduler, now| {
        let outcome = Outcome::of_status(204);
        let observation = transition::observation(EventType::PING, &outcome).unwrap();
        scheduler.observe(ONE, observation, &outcome, at(now)).map(|one| (one.change, one.since))
    };
    assert_eq!(ping(&mut scheduler, 24 * HOUR + 1), None, "it is paused");
    let health = scheduler.webhooks.webhook(ONE).unwrap().health.reactivated();
    let reactivated = Webhook { health, ..hook(1, 1, Flow::Probing(Probe::Any)) };
    scheduler.restored(reactivated, None, at(25 * HOUR).tick);
    assert_eq!(ping(&mut scheduler, 26 * HOUR), Some((HealthChange::Recovered, since)));
    assert_eq!(ping(&mut scheduler, 27 * HOUR), None);
    let mut scheduler = open(hook(1, 1, Flow::Open));
    for nth in 0..6 {
        assert_eq!(change(&mut scheduler, 500, nth * HOUR / 6), None);
    }
    assert_eq!(change(&mut scheduler, 500, HOUR), Some((HealthChange::Failing, since)));
    assert_eq!(ping(&mut scheduler, HOUR + 1), None, "most deliveries fail");
}

#[test]
fn a_webhook_that_still_fails_too_often_has_not_recovered() {
    let mut scheduler = open(hook(1, 1, Flow::Open));
    for nth in 0..6 {
        let changed = change(&mut scheduler, 500, nth * HOUR / 6);
        assert_eq!(changed, None);
    }
    let failing = Some((HealthChange::Failing, at(0).unix));
    assert_eq!(change(&mut scheduler, 500, HOUR), failing);
    assert_eq!(change(&mut scheduler, 200, HOUR + 1), None);
    let recovered = Some((HealthChange::Recovered, at(0).unix));
    assert_eq!(change(&mut scheduler, 200, 4 * HOUR), recovered);
}

#[test]
fn failures_of_an_earlier_url_neither_warn_nor_pause() {
    let mut scheduler = open(hook(1, 1, Flow::Open));
    for hour in [0, 12, 13] {
        change(&mut scheduler, 500, hour * HOUR);
    }
    scheduler.restored(moved(1, 2), None, at(14 * HOUR).tick);
    assert!(scheduler.next_notice(at(30 * HOUR)).is_none());
    for hour in [30, 42] {
        assert_eq!(change(&mut scheduler, 500, hour * HOUR), None);
    }
    let failing = Some((HealthChange::Failing, at(42 * HOUR).unix));
    assert_eq!(change(&mut scheduler, 500, 42 * HOUR + 1), None);
    assert_eq!(change(&mut scheduler, 500, 43 * HOUR), failing);
    let paused = Some((HealthChange::Paused, at(30 * HOUR).unix));
    assert_eq!(change(&mut scheduler, 500, 54 * HOUR), paused);
}

#[test]
fn the_operators_webhook_is_never_paused_and_no_alert_is_about_it() {
    let workspace = operator_event::WORKSPACE.into();
    let mut scheduler = open(Webhook { workspace, ..hook(1, 1, Flow::Open) });
    for hour in 0..72 {
        assert_eq!(change(&mut scheduler, 500, hour * HOUR), None);
        assert_eq!(change(&mut scheduler, 500, hour * HOUR + 1), None);
    }
    assert!(scheduler.next_notice(at(100 * HOUR)).is_none());
    assert_eq!(scheduler.webhooks.flow(ONE), Flow::Open);
}

#[test]
fn a_url_that_was_changed_away_and_back_has_no_warning_from_before() {
    let mut scheduler = open(hook(1, 1, Flow::Open));
    for nth in 0..=6 {
        change(&mut scheduler, 500, nth * HOUR / 6);
    }
    assert!(scheduler.webhooks.webhook(ONE).unwrap().health.is_failing());
    // It is read once, after both changes.
    scheduler.restored(moved(1, 1), None, at(HOUR + 1).tick);
    let update = scheduler.webhooks.update(ONE).unwrap();
    assert_eq!((update.health, update.last_outcome), (Health::default(), None));
}

#[test]
fn an_attempt_at_an_earlier_url_does_not_change_the_health() {
    let seen = Some(Outcome::of_status(500));
    for (now, expected) in [(hook(1, 1, Flow::Open), seen), (moved(1, 2), None)] {
        let mut scheduler = open(hook(1, 1, Flow::Open));
        scheduler.arrives(ONE, queued(1, 0), at(0));
        let Pick::Start(attempt, _) = scheduler.next(at(0)) else { panic!("nothing starts") };
        let now_at = now.endpoint;
        scheduler.restored(now, None, at(1).tick);
        let result = AttemptResult {
            attempt,
            reported: false,
            outcome: Outcome::of_status(500),
            retry_after: None,
            trace: Default::default(),
            transcript: None,
            ended: at(2),
        };
        scheduler.handle(Input::Attempted(Box::new(result)), at(2));
        let known = scheduler.webhooks.webhook(ONE).unwrap();
        assert_eq!(known.last_outcome, expected, "{now_at:?}");
        assert_eq!(known.health == Health::default(), expected.is_none(), "{now_at:?}");
    }
}

#[test]
fn an_exhausted_delivery_names_the_url_that_its_last_attempt_called() {
    let mut scheduler = open(hook(1, 1, Flow::Open));
    let first = Some(at(0).unix);
    let last = QueuedDelivery { first_attempt_at: first, since: first, ..queued(1, 0) };
    scheduler.arrives(ONE, last, at(2 * HOUR));
    let Pick::Start(attempt, _) = scheduler.next(at(2 * HOUR)) else { panic!("nothing starts") };
    let present = Webhook { url: "https://new.example/in".into(), ..moved(1, 2) };
    scheduler.restored(present, None, at(2 * HOUR + 1).tick);
    let result = AttemptResult {
        attempt,
        reported: false,
        outcome: Outcome::of_status(500),
        retry_after: None,
        trace: Default::default(),
        transcript: None,
        ended: at(2 * HOUR + 2),
    };
    scheduler.handle(Input::Attempted(Box::new(result)), at(2 * HOUR + 2));
    let write = loop {
        match scheduler.poll(at(2 * HOUR + 2)) {
            Action::Write(write) => break write,
            Action::Wait(_) => panic!("not written"),
            _ => {}
        }
    };
    assert_eq!(&*write.exhausted[0].url, "https://hooks.example/in");
}
