//! Operators hear of webhooks that fail, pause and recover, and of deliveries that are given up.

use std::collections::BTreeSet;
use std::time::Duration;

use serde_json::Value;
use weir_tests::client::Client;
use weir_tests::config::{Config, DIRECTORY};
use weir_tests::dispatcher::{ACME, CONFIG, Dispatcher, QUIET, config, event};
use weir_tests::folder::Folder;
use weir_tests::receiver::{Delivered, Receiver};
use weir_tests::request::Request;
use weir_tests::wait;

use super::health::{reactivate, scaled};
use super::{Stage, text, time};

const SECRET_FILE: &str = "operator.secret";
const SECRET: &str = "whsec_MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY=";
const NEXT_SECRET: &str = "whsec_ZmVkY2JhOTg3NjU0MzIxMGZlZGNiYTk4NzY1NDMyMTA=";

/// `[operator]` with this receiver's URL.
fn with_operator(config: Config, operator: &Receiver, more: &str) -> Config {
    let url = operator.url("/operator?key=hidden");
    config.with("[operator]", &format!("url = \"{url}\"\nsecret_file = \"{SECRET_FILE}\"\n{more}"))
}

/// A delivery is abandoned after a second of attempts.
fn hasty(config: Config) -> Config {
    config.with("[retry]", "delays = [\"50ms\"]\ngive_up_after = \"1s\"")
}

/// A dispatcher with a receiver for webhooks and one for operators.
#[track_caller]
fn stage(change: impl FnOnce(Config, &Receiver) -> Config) -> (Stage, Receiver) {
    let operator = Receiver::start();
    let folder = Folder::new();
    folder.write(SECRET_FILE, SECRET);
    let config = change(config(), &operator);
    let dispatcher = Dispatcher::start_in(folder, &config, DIRECTORY);
    (Stage { receiver: Receiver::start(), dispatcher }, operator)
}

/// Waits until the receiver has these events, each verified, whatever their repetitions.
#[track_caller]
fn wait_for(operator: &Receiver, count: usize, secret: &str) -> Vec<Value> {
    let different = || {
        let mut ids = BTreeSet::new();
        let mut all = operator.deliveries();
        all.retain(|one| ids.insert(one.id()));
        (all.len() >= count).then_some(all)
    };
    let all: Vec<Delivered> = wait::within(wait::PATIENCE, different)
        .unwrap_or_else(|| panic!("no {count} events in {:#?}", operator.deliveries()));
    for one in &all {
        one.verify(secret);
        one.verify_standard(secret);
    }
    all.iter().map(Delivered::envelope).collect()
}

/// The events that the metrics count as sent.
fn sent(stage: &Stage) -> f64 {
    let page = stage.dispatcher.call_admin(&Request::get("/metrics")).expect(200).text();
    let name = "weir_dispatcher_operator_events_total{outcome=\"sent\"} ";
    page.lines().find_map(|line| line.strip_prefix(name)?.parse().ok()).unwrap_or_default()
}

fn kinds(events: &[Value]) -> Vec<&str> {
    events.iter().map(|event| text(event, "type")).collect()
}

#[test]
fn a_webhook_that_fails_is_paused_and_recovers_leads_to_an_event_of_each() {
    let (stage, operator) = stage(|config, operator| {
        with_operator(scaled(config).with("[health]", "pause_after = \"2s\""), operator, "")
    });
    stage.receiver.status(500);
    let webhook = stage.webhook("/hidden?key=hidden", &["user.created"]);
    stage.dispatcher.post_event("user.created");
    let acme = stage.dispatcher.acme();
    acme.wait_for_state(&webhook.id, "paused");
    let events = wait_for(&operator, 2, SECRET);
    assert_eq!(kinds(&events), ["endpoint.failing", "endpoint.paused"]);
    for event in &events {
        let members: Vec<&String> = event.as_object().unwrap().keys().collect();
        assert_eq!(members, ["id", "type", "created_at", "data"], "{event}");
        let data = &event["data"];
        assert_eq!(
            (text(data, "workspace_id"), text(data, "webhook_id")),
            ("ws_acme", &*webhook.id)
        );
        assert_eq!(
            (text(data, "url_host"), text(data, "last_outcome")),
            ("127.0.0.1", "status_500")
        );
        assert!(time(data, "since") < time(event, "created_at"), "{event}");
        assert!(!event.to_string().contains("hidden"), "{event}");
    }
    assert_eq!(stage.dispatcher.metric("weir_dispatcher_webhooks"), 1.0);
    let paused = stage.dispatcher.call_admin(&Request::get("/webhooks")).expect(200).json();
    assert_eq!(paused["webhooks"].as_array().map(Vec::len), Some(1), "{paused}");

    stage.receiver.status(200);
    reactivate(&stage, &webhook);
    let events = wait_for(&operator, 3, SECRET);
    assert_eq!(text(&events[2], "type"), "endpoint.recovered");
    assert_eq!(events[2]["data"]["since"], events[0]["data"]["since"]);
    acme.wait_for_count("delivered", 1);
    stage.dispatcher.post_event("user.created");
    acme.wait_for_count("delivered", 2);
    operator.assert_quiet(Duration::from_millis(500));
    assert_eq!(sent(&stage), 3.0);
    let request = Request::get("/v1/event-types").field("Authorization", &format!("Bearer {ACME}"));
    let types = Client::connect(stage.dispatcher.api_address()).call(&request).expect(200).text();
    assert!(!types.contains("endpoint."), "{types}");
}

#[test]
fn an_abandoned_delivery_is_an_event_that_a_kill_does_not_lose() {
    let (mut stage, operator) =
        stage(|config, operator| with_operator(hasty(config), operator, ""));
    operator.status(500);
    stage.receiver.status(500);
    let webhook = stage.webhook("/hook", &["user.created"]);
    let id = stage.dispatcher.post_event("user.created");
    let acme = stage.dispatcher.acme();
    let over = acme.wait_for_delivery(&id, |one| one["state"] == "failed_permanent");
    stage.dispatcher.kill();
    operator.status(200);
    stage.dispatcher.start_again();
    let events = wait_for(&operator, 1, SECRET);
    assert_eq!(kinds(&events), ["delivery.exhausted"]);
    let data = &events[0]["data"];
    for (name, value) in [
        ("workspace_id", "ws_acme"),
        ("webhook_id", &webhook.id),
        ("url_host", "127.0.0.1"),
        ("delivery_id", text(&over, "id")),
        ("event_id", &id),
        ("event_type", "user.created"),
        ("last_outcome", "status_500"),
    ] {
        assert_eq!(text(data, name), value, "{data}");
    }
    assert_eq!(data["attempts"], over["attempts"]);
    assert_eq!(time(data, "since"), time(&over, "first_attempt_at"));
    // A test that fails is its owner's own.
    let acme = stage.dispatcher.acme();
    let ping = acme.act(&format!("/webhooks/{}:ping", webhook.id)).expect(202).json();
    let ping = text(&ping, "event_id");
    acme.wait_for_delivery(ping, |one| one["state"] == "failed_permanent");
    wait::pass(Duration::from_millis(300));
    assert_eq!(wait_for(&operator, 1, SECRET).len(), 1);
}

#[test]
fn the_operators_url_may_be_down_and_no_event_is_about_it() {
    let (stage, operator) = stage(|config, operator| with_operator(scaled(config), operator, ""));
    operator.status(500);
    stage.receiver.answer(|request| {
        let fails = request.head.start.contains("/fails");
        weir_tests::answer::Answer::status(if fails { 500 } else { 200 })
    });
    let webhook = stage.webhook("/fails", &["user.created"]);
    stage.dispatcher.post_event("user.created");
    let acme = stage.dispatcher.acme();
    acme.wait_for_state(&webhook.id, "paused");
    // Three times as long as a webhook may be down before it is paused.
    let until = wait::unix_millis() + 3_000;
    wait::within(wait::PATIENCE, || (wait::unix_millis() > until).then_some(()));
    stage.webhook("/fine", &["plan.changed"]);
    let fine = stage.dispatcher.post_event("plan.changed");
    acme.wait_for_delivery(&fine, |one| one["state"] == "delivered");
    let before = operator.count();
    operator.status(200);
    operator.wait(before + 1);
    let all = || (sent(&stage) >= 2.0).then_some(());
    wait::within(wait::PATIENCE, all).expect("both events arrive at last");
    let events = wait_for(&operator, 2, SECRET);
    assert!(events.iter().all(|event| text(&event["data"], "webhook_id") == webhook.id));
    assert_eq!(stage.dispatcher.metric("weir_dispatcher_pauses_total"), 1.0);
}

#[test]
fn no_event_is_about_a_workspace_that_opted_out_nor_about_the_same_url() {
    let (stage, operator) =
        stage(|config, operator| with_operator(hasty(config), operator, "opt_out = [\"ws_acme\"]"));
    operator.status(500);
    stage.receiver.status(500);
    let quiet = stage.dispatcher.api(QUIET, "ws_quiet");
    let acme = stage.dispatcher.acme();
    stage.webhook("/hook", &["user.created"]);
    quiet.create_webhook(&operator.url("/operator?key=hidden"), &["user.created"]);
    let reported = quiet.create_webhook(&stage.receiver.url("/hook"), &["user.created"]);
    stage.dispatcher.post_event("user.created");
    acme.wait_for_count("failed_permanent", 1);
    stage.dispatcher.post(&event("ws_quiet", "user.created"));
    quiet.wait_for_count("failed_permanent", 2);
    operator.status(200);
    let arrived = || (sent(&stage) >= 1.0).then_some(());
    wait::within(wait::PATIENCE, arrived).expect("an event arrives");
    let ours = || {
        let mut all = operator.deliveries();
        all.retain(|one| one.envelope()["type"] == "delivery.exhausted");
        let ids: BTreeSet<String> = all.iter().map(Delivered::id).collect();
        let webhooks = all.iter().map(|one| text(&one.envelope()["data"], "webhook_id").to_owned());
        (webhooks.collect::<BTreeSet<String>>(), ids.len())
    };
    operator.assert_quiet(Duration::from_millis(500));
    assert_eq!(ours(), (BTreeSet::from([reported.id]), 1));
}

#[test]
fn a_reload_sends_to_another_url_with_another_secret_and_to_none() {
    let (stage, first) = stage(|config, operator| with_operator(hasty(config), operator, ""));
    let second = Receiver::start();
    stage.receiver.status(500);
    stage.webhook("/hook", &["user.created"]);
    stage.dispatcher.post_event("user.created");
    wait_for(&first, 1, SECRET);
    let folder = stage.dispatcher.folder();
    folder.write(SECRET_FILE, "too short");
    let hidden = "opt_out = [\"acme\"]";
    folder.write(CONFIG, &with_operator(hasty(config()), &second, hidden).to_string());
    let refused = stage.dispatcher.reload().expect(422).text();
    for part in ["operator.opt_out: `acme`", "first line of `operator.secret` must be `whsec_`"] {
        assert!(refused.contains(part), "{refused}");
    }
    folder.write(SECRET_FILE, NEXT_SECRET);
    folder.write(CONFIG, &with_operator(hasty(config()), &second, "").to_string());
    stage.dispatcher.reload().expect(200);
    let arrived = wait::within(wait::PATIENCE, || {
        stage.dispatcher.post_event("user.created");
        wait::pass(Duration::from_millis(300));
        (second.count() > 0).then_some(())
    });
    arrived.expect("an event at the second URL");
    wait_for(&second, 1, NEXT_SECRET);
    let before = first.count();
    let shown = stage.dispatcher.call_admin(&Request::get("/config")).expect(200).text();
    assert!(shown.contains(SECRET_FILE), "{shown}");
    assert!(!shown.contains(NEXT_SECRET) && !shown.contains("hidden"), "{shown}");

    folder.write(CONFIG, &hasty(config()).to_string());
    stage.dispatcher.reload().expect(200);
    // The store has the change within a second.
    let silent = wait::within(wait::PATIENCE, || {
        let count = second.count();
        stage.dispatcher.post_event("user.created");
        wait::pass(Duration::from_millis(1_000));
        (second.count() == count).then_some(())
    });
    silent.expect("no event is sent any more");
    assert_eq!(first.count(), before);
}
