//! Attempts at one endpoint never exceed its rate limit, whichever workspaces registered it.
//!
//! The dispatcher reports each start to the millisecond, and these times must obey the limit
//! exactly. The receiver measures arrivals, which a busy machine may push closer together.

use serde_json::{Value, json};
use weir_tests::answer::Answer;
use weir_tests::config::Config;
use weir_tests::dispatcher::{Dispatcher, QUIET, event};
use weir_tests::receiver::Delivered;

use super::{Stage, attempts, most_within, text};

const WINDOW_MS: u64 = 1_000;
/// Starts are reported in whole milliseconds: two that are a window apart may appear 1 ms closer.
const EXACTLY_MS: u64 = WINDOW_MS - 1;
/// Arrivals are measured at the receiver, and a busy machine delays some.
const ROUGHLY_MS: u64 = WINDOW_MS - 500;

fn paced(config: Config) -> Config {
    config
        .with("[egress]", "requests = 5\nwindow = \"1s\"")
        .with("[retry]", "give_up_after = \"60s\"")
}

#[test]
fn no_window_has_more_starts_than_are_allowed() {
    let stage = Stage::with(paced);
    stage.webhook("/hook", &["user.created"]);
    stage.dispatcher.post_events("user.created", 17);
    stage.receiver.wait(17);
    stage.dispatcher.acme().wait_for_count("delivered", 17);
    let starts = starts(&stage.dispatcher);
    assert_eq!(starts.len(), 17);
    assert_eq!(most_within(&starts, EXACTLY_MS), 5, "{starts:?}");
    assert!(most_within(&arrivals(&stage), ROUGHLY_MS) <= 5);
    let whole = starts.iter().max().unwrap() - starts.iter().min().unwrap();
    assert!(whole < 3 * WINDOW_MS + 3_000, "17 take three windows, not {whole} ms");
}

#[test]
fn retries_and_pings_are_paced_with_the_rest() {
    let stage = Stage::with(paced);
    stage.receiver.status(500);
    let webhook = stage.webhook("/hook", &["user.created"]);
    stage.dispatcher.post_events("user.created", 3);
    let ping = format!("/webhooks/{}:ping", webhook.id);
    stage.dispatcher.acme().act(&ping).expect(202);
    stage.receiver.wait(12);
    assert!(most_within(&starts(&stage.dispatcher), EXACTLY_MS) <= 5);
    assert!(most_within(&arrivals(&stage), ROUGHLY_MS) <= 5);
}

#[test]
fn webhooks_of_one_url_share_the_pace_and_alternate() {
    let stage = Stage::with(paced);
    stage.webhook("/hook", &["user.created"]);
    let quiet = stage.dispatcher.api(QUIET, "ws_quiet");
    // Another spelling of the same URL.
    let spelling = stage.receiver.url("/x/../hook").replacen("http", "HTTP", 1);
    quiet.create_webhook(&spelling, &["user.created"]);
    // All in one call, so that they are queued together on a busy machine too.
    let of = |workspace, count| (0..count).map(move |_| event(workspace, "user.created"));
    let events: Vec<Value> = of("ws_acme", 20).chain(of("ws_quiet", 5)).collect();
    stage.dispatcher.ingest(&events.into()).expect(202);
    let deliveries = stage.receiver.wait(20);
    let quiet = |one: &Delivered| one.envelope()["workspace_id"] == "ws_quiet";
    let last = deliveries.iter().rposition(quiet);
    assert!(last <= Some(15), "the last of five came after {last:?} of the other webhook's twenty");
    assert_eq!(deliveries.iter().filter(|one| quiet(one)).count(), 5);
    assert!(most_within(&arrivals(&stage), ROUGHLY_MS) <= 5);
}

#[test]
fn a_workspace_with_twenty_webhooks_on_a_url_gets_half_of_its_pace_also_after_a_restart() {
    let mut stage = Stage::with(paced);
    stage.webhook("/hook", &["user.created"]);
    let url = stage.receiver.url("/hook");
    for _ in 0..20 {
        stage.dispatcher.api(QUIET, "ws_quiet").create_webhook(&url, &["user.created"]);
    }
    // The other workspace's deliveries are queued first.
    let of = |workspace, count| (0..count).map(move |_| event(workspace, "user.created"));
    let events: Vec<Value> = of("ws_quiet", 5).chain(of("ws_acme", 20)).collect();
    stage.dispatcher.ingest(&events.into()).expect(202);
    let own = |one: &&Delivered| one.envelope()["workspace_id"] == "ws_acme";
    let before = stage.receiver.wait(10).iter().filter(own).count();
    assert!(before >= 3, "{before} of the first ten");
    stage.dispatcher.stop();
    stage.dispatcher.start_again();
    let all = stage.receiver.wait(30).iter().take(30).filter(own).count();
    assert!(all >= 12, "{all} of the first thirty");
}

#[test]
fn an_owners_limit_is_shown_and_kept_until_it_is_removed() {
    let stage = Stage::new();
    let acme = stage.dispatcher.acme();
    let limited = |most: u32| {
        let url = stage.receiver.url("/hook");
        json!({ "url": url, "events": ["user.created"], "requests_per_minute": most })
    };
    acme.post("/webhooks", &limited(0)).expect_problem(422);
    acme.post("/webhooks", &limited(60_001)).expect_problem(422);
    let webhook = acme.post("/webhooks", &limited(2)).expect(201).json();
    assert_eq!(webhook["requests_per_minute"], 2);
    let path = format!("/webhooks/{}", text(&webhook, "id"));
    let ids = stage.dispatcher.post_events("user.created", 5);
    stage.receiver.wait(2);
    let last = acme.wait_for_delivery(&ids[4], |one| one["waiting_for"]["reason"] == "paced");
    let waiting = &last["waiting_for"];
    assert!(text(waiting, "text").contains("2 times in 1m, as its owner set"), "{waiting}");
    assert!(waiting["seconds"].as_u64().is_some_and(|left| left > 30), "{waiting}");
    let shown = acme.get(&path).expect(200).json();
    assert!(shown["forecast"]["if_up"]["seconds"].as_u64() > Some(60), "{shown}");
    assert_eq!(stage.receiver.count(), 2);
    let changed = acme.call("PATCH", &path, Some(&json!({ "requests_per_minute": 0 })));
    assert_eq!(changed.expect(200).json()["requests_per_minute"], Value::Null);
    stage.receiver.wait(5);
}

#[test]
fn a_workspace_has_one_pace_at_a_host_whatever_it_registers_there_also_after_a_restart() {
    let paced = |config: Config| {
        let config = config.with("[egress]", "requests = 5\nwindow = \"3s\"\nhost_multiple = 1");
        config.with("[retry]", "give_up_after = \"60s\"")
    };
    let mut stage = Stage::with(paced);
    let quiet = stage.dispatcher.api(QUIET, "ws_quiet");
    quiet.create_webhook(&stage.receiver.url("/quiet"), &["user.created"]);
    for spelling in ["/a", "/a?1", "/a?2"] {
        stage.webhook(spelling, &["user.created"]);
    }
    stage.dispatcher.post_events("user.created", 3);
    stage.receiver.wait(5);
    stage.dispatcher.stop();
    stage.dispatcher.start_again();
    let acme = stage.dispatcher.acme();
    acme.wait_for_count("delivered", 9);
    let starts = starts(&stage.dispatcher);
    assert_eq!((starts.len(), most_within(&starts, 3_000 - 1)), (9, 5), "{starts:?}");
    stage.dispatcher.post(&event("ws_quiet", "user.created"));
    stage.dispatcher.api(QUIET, "ws_quiet").wait_for_count("delivered", 1);
}

#[test]
fn endpoints_do_not_pace_each_other() {
    let stage = Stage::with(paced);
    stage.webhook("/slow", &["user.created"]);
    stage.webhook("/other", &["plan.changed"]);
    stage.dispatcher.post_events("user.created", 30);
    stage.receiver.wait(5);
    let id = stage.dispatcher.post_event("plan.changed");
    let delivery =
        stage.dispatcher.acme().wait_for_delivery(&id, |one| one["state"] == "delivered");
    let (start, _) = attempts(&delivery).remove(0);
    let waited = start - super::time(&delivery, "created_at");
    assert!(waited < 2 * WINDOW_MS, "waited {waited} ms behind another endpoint");
}

#[test]
fn waiting_for_the_pace_costs_no_attempt_and_shows_when_it_ends() {
    let stage = Stage::with(|config| {
        config
            .with("[egress]", "requests = 2\nwindow = \"3s\"")
            .with("[retry]", "give_up_after = \"2s\"")
    });
    stage.webhook("/hook", &["user.created"]);
    let ids = stage.dispatcher.post_events("user.created", 5);
    stage.receiver.wait(2);
    let acme = stage.dispatcher.acme();
    let last = acme.wait_for_delivery(&ids[4], |one| one["waiting_for"]["reason"] == "paced");
    let waiting = &last["waiting_for"];
    assert_eq!(last["attempts"], 0);
    assert!(waiting["position"].as_u64().is_some_and(|at| (1..=3).contains(&at)), "{waiting}");
    assert!(waiting["seconds"].as_u64().is_some_and(|left| left <= 7), "{waiting}");
    assert!(waiting["until"].is_string() && waiting["text"].is_string(), "{waiting}");
    // Five deliveries at two in 3 s take 6 s, longer than the 2 s after which a failing delivery is
    // given up.
    for delivery in acme.wait_for_count("delivered", 5) {
        assert_eq!(delivery["attempts"], 1, "{delivery}");
    }
}

#[test]
fn a_receiver_that_closes_used_connections_costs_no_delivery_an_attempt() {
    let stage = Stage::new();
    let used = std::sync::Mutex::new(std::collections::HashSet::new());
    // A receiver that closes each idle connection just when the next request arrives.
    stage.receiver.answer(move |request| {
        let is_new = used.lock().unwrap().insert(request.connection);
        if is_new { Answer::status(200) } else { Answer::script().close() }
    });
    stage.webhook("/hook", &["user.created"]);
    let acme = stage.dispatcher.acme();
    for _ in 0..40 {
        let id = stage.dispatcher.post_event("user.created");
        let delivery = acme.wait_for_delivery(&id, |one| one["ended_at"].is_string());
        assert_eq!((&delivery["state"], &delivery["attempts"]), (&"delivered".into(), &1.into()));
    }
    let requests = stage.receiver.count();
    assert!((60..=80).contains(&requests), "{requests} requests for 40 deliveries");
    let stale = "weir_dispatcher_attempts_total{outcome=\"internal_stale_connection\"}";
    assert_eq!(stage.dispatcher.metric(stale) as usize, requests - 40);
}

#[test]
fn a_ping_that_waits_for_the_pace_shows_its_reason_and_a_list_guesses_no_position() {
    let stage = Stage::with(|config| config.with("[egress]", "requests = 1\nwindow = \"1h\""));
    let webhook = stage.webhook("/hook", &["user.created"]);
    stage.dispatcher.post_event("user.created");
    let acme = stage.dispatcher.acme();
    acme.wait_for_count("delivered", 1);
    let ping = acme.act(&format!("/webhooks/{}:ping", webhook.id)).expect(202).json();
    let waiting = &ping["waiting_for"];
    assert_eq!(waiting["reason"], "paced", "{ping}");
    assert_eq!(waiting["position"], 1, "{ping}");
    assert!(waiting["seconds"].as_u64().is_some_and(|left| left > 3_000), "{ping}");
    assert_eq!(ping["next_attempt_at"], waiting["until"], "{ping}");
    let listed = acme.deliveries("state=waiting").remove(0);
    assert_eq!(listed["waiting_for"]["reason"], "paced", "{listed}");
    assert!(listed["waiting_for"]["position"].is_null(), "{listed}");
    assert!(listed["waiting_for"]["seconds"].is_null(), "{listed}");
    let why = text(&listed["waiting_for"], "text");
    assert!(why.starts_with("A rate limit holds it back: an endpoint is"), "{listed}");
}

#[test]
fn the_pace_is_kept_across_a_restart_and_a_kill() {
    // A restart on a busy machine must fit into the window, or the test proves nothing.
    let mut stage = Stage::with(|config| paced(config).with("[egress]", "window = \"2s\""));
    stage.webhook("/hook", &["user.created"]);
    stage.dispatcher.post_events("user.created", 18);
    for (count, kill) in [(4, false), (8, true), (12, true), (16, false)] {
        stage.receiver.wait(count);
        if kill {
            stage.dispatcher.kill();
        } else {
            stage.dispatcher.stop();
        }
        stage.dispatcher.start_again();
    }
    stage.dispatcher.acme().wait_for_count("delivered", 18);
    let arrivals = arrivals(&stage);
    assert!(most_within(&arrivals, 1_500) <= 5, "{arrivals:?}");
}

/// The start of every attempt so far, as the dispatcher reports it.
#[track_caller]
fn starts(dispatcher: &Dispatcher) -> Vec<u64> {
    let acme = dispatcher.acme();
    let deliveries = acme.deliveries("");
    let each = deliveries.iter().map(|one| acme.delivery(text(one, "id")));
    each.flat_map(|one| attempts(&one)).map(|(start, _)| start).collect()
}

/// When every delivery so far arrived, as the receiver saw it.
fn arrivals(stage: &Stage) -> Vec<u64> {
    stage.receiver.deliveries().iter().map(|one| one.at_ms).collect()
}
