//! An endpoint that stays down is paused with its backlog, and its owner reactivates it.

use std::time::Duration;

use weir_tests::answer::Answer;
use weir_tests::api::Webhook;
use weir_tests::config::Config;

use weir_tests::wait;

use super::{Stage, attempts, text, time};

/// 1 s of failures pauses an endpoint; a delivery is abandoned only after a minute of attempts.
pub(super) fn scaled(config: Config) -> Config {
    config
        .with("[retry]", "delays = [\"100ms\", \"200ms\", \"400ms\"]\ngive_up_after = \"60s\"")
        .with("[health]", "warn_for = \"500ms\"\npause_after = \"1s\"")
}

#[test]
fn an_endpoint_that_stays_down_is_paused_in_time_and_gets_nothing_more() {
    let stage = Stage::with(scaled);
    stage.receiver.status(500);
    let webhook = stage.webhook("/hook", &["user.created"]);
    let id = stage.dispatcher.post_event("user.created");
    let acme = stage.dispatcher.acme();
    acme.wait_for_state(&webhook.id, "paused");
    let paused_by = wait::unix_millis();
    let delivery = acme.wait_for_delivery(&id, |one| one["waiting_for"]["reason"] == "paused");
    let first = attempts(&delivery)[0].0;
    assert!(paused_by - first >= 1_000, "paused after {} ms", paused_by - first);
    assert_eq!(delivery["state"], "waiting");
    assert!(text(&delivery["waiting_for"], "text").to_lowercase().contains("paused"));

    // An attempt in flight may still arrive.
    wait::pass(Duration::from_millis(600));
    let more = stage.dispatcher.post_events("user.created", 5);
    stage.receiver.assert_quiet(Duration::from_millis(1_500));
    let waiting = acme.deliveries("state=waiting");
    assert_eq!(waiting.len(), 1 + more.len(), "{waiting:#?}");
    assert!(acme.deliveries("state=failed_permanent").is_empty());
}

#[test]
fn an_endpoint_above_the_failure_rate_is_failing_until_it_recovers() {
    let stage = Stage::with(|config| scaled(config).with("[health]", "pause_after = \"24h\""));
    stage.receiver.status(500);
    let webhook = stage.webhook("/hook", &["user.created"]);
    stage.dispatcher.post_event("user.created");
    let acme = stage.dispatcher.acme();
    acme.wait_for_state(&webhook.id, "failing");
    stage.receiver.status(200);
    acme.wait_for_count("delivered", 1);
    // The failures leave the window (`warn_for`, 500 ms), and the failure rate falls.
    wait::within(wait::PATIENCE, || {
        stage.dispatcher.post_event("user.created");
        wait::pass(Duration::from_millis(50));
        (acme.webhook(&webhook.id)["state"] == "delivering").then_some(())
    })
    .unwrap_or_else(|| panic!("still failing: {}", acme.webhook(&webhook.id)));
}

#[test]
fn a_pause_outlives_a_restart_and_a_kill() {
    let mut stage = Stage::with(scaled);
    let webhook = pause(&stage);
    for kill in [false, true] {
        if kill {
            stage.dispatcher.kill();
        } else {
            stage.dispatcher.stop();
        }
        let before = stage.receiver.count();
        stage.dispatcher.start_again();
        assert_eq!(stage.dispatcher.acme().webhook(&webhook.id)["state"], "paused");
        stage.receiver.assert_quiet(Duration::from_millis(700));
        assert_eq!(stage.receiver.count(), before);
    }
}

#[test]
fn a_reactivated_endpoint_gets_one_probe_and_is_then_drained_in_order() {
    // The receiver delays its response to the probe while the test checks the others.
    let stage = Stage::with(|config| scaled(config).with("[egress]", "deadline = \"15s\""));
    let webhook = pause(&stage);
    let ids = stage.dispatcher.post_events("user.created", 10);
    let before = stage.receiver.count();
    let gate = weir_tests::answer::Gate::new();
    stage.receiver.upstream().always(Answer::script().wait(&gate).and(Answer::status(200)));
    reactivate(&stage, &webhook);
    stage.receiver.wait(before + 1);
    let acme = stage.dispatcher.acme();
    let waiting = acme.wait_for_delivery(&ids[9], |one| one["waiting_for"].is_object());
    assert_eq!(waiting["waiting_for"]["reason"], "probe", "{waiting}");
    assert_eq!(stage.receiver.count(), before + 1, "one probe, and nothing else");
    let ping = acme.act(&format!("/webhooks/{}:ping", webhook.id)).expect(409);
    assert!(ping.text().contains("webhook-probing"), "{}", ping.text());
    gate.open();
    acme.wait_for_count("delivered", 11);
    let order: Vec<String> =
        stage.receiver.deliveries()[before..].iter().map(|one| one.id()).collect();
    let place = |id: &String| order.iter().rposition(|one| one == id).unwrap();
    let first_start = |id: &String| {
        let delivery = acme.wait_for_delivery(id, |_| true);
        attempts(&delivery).pop().unwrap().0
    };
    let starts: Vec<u64> = ids.iter().map(first_start).collect();
    assert!(starts.is_sorted(), "not in order of creation: {starts:?}");
    assert!(place(&ids[0]) > 0, "the oldest of all was the probe: {order:?}");
    assert_eq!(acme.webhook(&webhook.id)["state"], "delivering");
}

#[test]
fn a_reactivated_endpoint_without_backlog_is_opened_by_a_successful_ping() {
    let stage = Stage::with(|config| {
        // A failing delivery is abandoned before its webhook is paused.
        scaled(config).with("[retry]", "give_up_after = \"700ms\"")
    });
    let webhook = pause(&stage);
    let acme = stage.dispatcher.acme();
    assert_eq!(acme.deliveries("state=waiting"), Vec::<serde_json::Value>::new());
    reactivate(&stage, &webhook);
    let ping = || acme.act(&format!("/webhooks/{}:ping", webhook.id)).expect(202).json();
    let over = |ping: &serde_json::Value| {
        let event = text(ping, "event_id");
        let ended = |one: &serde_json::Value| {
            one["state"] == "delivered" || one["state"] == "failed_permanent"
        };
        acme.wait_for_delivery(event, ended)["state"].clone()
    };
    assert_eq!(over(&ping()), "failed_permanent", "it answers 500");
    stage.receiver.status(200);
    assert_eq!(over(&ping()), "delivered");
    // Both deliveries start at the same time: neither is sent alone as a probe.
    let gate = weir_tests::answer::Gate::new();
    stage.receiver.upstream().always(Answer::script().wait(&gate).and(Answer::status(200)));
    let before = stage.receiver.count();
    stage.dispatcher.post_events("user.created", 2);
    stage.receiver.wait(before + 2);
    gate.open();
}

#[test]
fn a_pause_stops_the_lifetime_of_waiting_deliveries() {
    let stage = Stage::with(|config| scaled(config).with("[retry]", "give_up_after = \"3s\""));
    let webhook = pause(&stage);
    let acme = stage.dispatcher.acme();
    let waiting = acme.deliveries("state=waiting").remove(0);
    let id = text(&waiting, "id").to_owned();
    // Longer than `give_up_after`.
    wait::pass(Duration::from_millis(3_200));
    assert_eq!(acme.delivery(&id)["state"], "waiting");
    stage.receiver.status(200);
    reactivate(&stage, &webhook);
    let done =
        acme.wait_for_delivery(text(&waiting, "event_id"), |one| one["state"] == "delivered");
    let lived = time(&done, "ended_at") - time(&done, "first_attempt_at");
    assert!(lived > 3_000, "it lived on for {lived} ms: {done}");
}

#[test]
fn occasional_successes_keep_an_endpoint_from_being_paused() {
    let stage = Stage::with(|config| scaled(config).with("[health]", "pause_after = \"2s\""));
    let webhook = stage.webhook("/hook", &["user.created", "plan.changed"]);
    stage.receiver.answer(|_| Answer::status(500));
    let id = stage.dispatcher.post_event("user.created");
    let until = wait::unix_millis() + 3_200;
    let mut turn = 0;
    while wait::unix_millis() < until {
        turn += 1;
        stage.receiver.status(if turn % 2 == 0 { 200 } else { 500 });
        if turn % 2 == 0 {
            stage.dispatcher.post_event("plan.changed");
        } else {
            stage.dispatcher.post_event("user.created");
        }
        wait::pass(Duration::from_millis(400));
        assert_ne!(stage.dispatcher.acme().webhook(&webhook.id)["state"], "paused", "{id}");
    }
}

#[test]
fn every_delivery_shows_why_it_waits() {
    let stage = Stage::with(|config| {
        config.with("[egress]", "deadline = \"5s\"").with(
            "[retry]",
            "delays = [\"60s\"]\n\
            give_up_after = \"48h\"",
        )
    });
    let gate = weir_tests::answer::Gate::new();
    let answer = Answer::script().wait(&gate).and(Answer::status(500));
    stage.receiver.upstream().always(answer);
    stage.webhook("/hook", &["user.created"]);
    let id = stage.dispatcher.post_event("user.created");
    stage.receiver.wait(1);
    let acme = stage.dispatcher.acme();
    acme.wait_for_delivery(&id, |one| one["waiting_for"]["reason"] == "in_flight");
    gate.open();
    let retry = acme.wait_for_delivery(&id, |one| one["waiting_for"]["reason"] == "retry");
    let until = time(&retry["waiting_for"], "until");
    assert_eq!(until, time(&retry, "next_attempt_at"));
    let failed = attempts(&retry)[0].0;
    assert!((60_000..65_000).contains(&(until - failed)), "{retry}");
    let seconds = retry["waiting_for"]["seconds"].as_u64().unwrap();
    assert!((50..=60).contains(&seconds), "{retry}");
}

/// Registers a webhook, posts one event and waits until the webhook is paused and quiet.
#[track_caller]
pub(super) fn pause(stage: &Stage) -> Webhook {
    stage.receiver.status(500);
    let webhook = stage.webhook("/hook", &["user.created"]);
    stage.dispatcher.post_event("user.created");
    stage.dispatcher.acme().wait_for_state(&webhook.id, "paused");
    // An attempt in flight ends by its deadline.
    wait::pass(Duration::from_millis(600));
    webhook
}

#[track_caller]
pub(super) fn reactivate(stage: &Stage, webhook: &Webhook) {
    let path = format!("/webhooks/{}:reactivate", webhook.id);
    stage.dispatcher.acme().act(&path).expect(200);
}
