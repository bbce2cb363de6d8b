//! What owners set of a webhook: notes, headers, kept answers, a secret of their own, disabled.

use std::collections::BTreeSet;
use std::time::Duration;

use serde_json::{Value, json};
use weir_tests::answer::Answer;
use weir_tests::receiver::Delivered;
use weir_tests::wait;

use super::health::scaled;
use super::{Stage, text};

/// A webhook to create at `/hook`, with further members.
fn body(stage: &Stage, more: Value) -> Value {
    let mut body = json!({ "url": stage.receiver.url("/hook"), "events": ["user.created"] });
    for (name, value) in more.as_object().unwrap() {
        body[name] = value.clone();
    }
    body
}

#[track_caller]
fn create(stage: &Stage, more: Value) -> Value {
    stage.dispatcher.acme().post("/webhooks", &body(stage, more)).expect(201).json()
}

#[track_caller]
fn patch(stage: &Stage, webhook: &Value, change: Value) -> Value {
    let path = format!("/webhooks/{}", text(webhook, "id"));
    stage.dispatcher.acme().call("PATCH", &path, Some(&change)).expect(200).json()
}

#[test]
fn notes_are_shown_and_changed_one_by_one() {
    let stage = Stage::new();
    let made =
        create(&stage, json!({ "description": "Orders", "metadata": { "a": "1", "b": "2" } }));
    assert_eq!(
        (&made["description"], &made["metadata"]),
        (&json!("Orders"), &json!({"a":"1","b":"2"}))
    );
    let bare = create(&stage, json!({}));
    let none = (&bare["description"], &bare["metadata"], &bare["headers"]);
    assert_eq!(none, (&Value::Null, &json!({}), &json!({})));
    let changed = patch(&stage, &made, json!({ "metadata": { "a": null, "c": "3" } }));
    assert_eq!(changed["metadata"], json!({ "b": "2", "c": "3" }));
    assert_eq!(changed["description"], "Orders", "what is not named stays");
    let changed = patch(&stage, &made, json!({ "description": "" }));
    assert_eq!(changed["description"], Value::Null);
    let read = stage.dispatcher.acme().webhook(text(&made, "id"));
    for (name, value) in changed.as_object().expect("an object") {
        assert_eq!(read[name], *value, "{name}");
    }
}

#[test]
fn headers_are_sent_with_every_delivery_and_their_values_never_shown() {
    let stage = Stage::new();
    let headers = json!({ "Authorization": "Bearer hidden-token", "X-Route": "hidden-7" });
    let made = create(&stage, json!({ "headers": headers }));
    let masked = json!({ "authorization": "********", "x-route": "********" });
    assert_eq!(made["headers"], masked);
    stage.dispatcher.post_event("user.created");
    let first = stage.receiver.wait(1).remove(0);
    assert_eq!(first.field("authorization"), "Bearer hidden-token");
    assert_eq!(first.field("x-route"), "hidden-7");
    first.verify(text(&made, "secret"));

    let changed = patch(&stage, &made, json!({ "description": "x" }));
    assert_eq!(changed["headers"], masked, "they stay");
    let change = json!({ "headers": { "AUTHORIZATION": "Bearer hidden-other", "x-route": null } });
    let changed = patch(&stage, &made, change);
    assert_eq!(changed["headers"], json!({ "authorization": "********" }));
    stage.dispatcher.post_event("user.created");
    let second = stage.receiver.wait(2).remove(1);
    assert_eq!(second.field("authorization"), "Bearer hidden-other");
    let raw = String::from_utf8_lossy(&second.head.raw).to_lowercase();
    assert!(!raw.contains("x-route"), "{raw}");
    for path in ["/webhooks".to_owned(), format!("/webhooks/{}", text(&made, "id"))] {
        let shown = stage.dispatcher.acme().get(&path).expect(200).text();
        assert!(!shown.contains("hidden-"), "{shown}");
    }
}

#[test]
fn what_may_not_be_set_is_refused_by_member_and_no_refusal_shows_a_value() {
    let stage = Stage::new();
    let acme = stage.dispatcher.acme();
    let made = create(&stage, json!({}));
    let path = format!("/webhooks/{}", text(&made, "id"));
    let many = |count: usize| -> Value {
        (0..count).map(|nth| (format!("x-{nth}"), Value::from("hidden-value"))).collect()
    };
    let long = |count: usize| -> Value {
        (0..count).map(|nth| (format!("x-{nth}"), Value::from("x".repeat(1_024)))).collect()
    };
    for (member, pointer) in [
        (json!({ "description": "x".repeat(257) }), "/description"),
        (json!({ "metadata": many(17) }), "/metadata"),
        (json!({ "metadata": { "a": 1 } }), "/metadata/a"),
        (json!({ "headers": many(17) }), "/headers"),
        (json!({ "headers": long(4) }), "/headers"),
        (json!({ "headers": { "Content-Length": "hidden-value" } }), "/headers/Content-Length"),
        (
            json!({ "headers": { "Service-Signature": "hidden-value" } }),
            "/headers/Service-Signature",
        ),
        (json!({ "headers": { "a/b": "hidden-value" } }), "/headers/a~1b"),
        (json!({ "headers": { "x": "hidden-\r\nHost: y" } }), "/headers/x"),
        (json!({ "headers": { "x": "********" } }), "/headers/x"),
        (json!({ "headers": { "x": "hidden-1", "X": "hidden-2" } }), "/headers/X"),
        (json!({ "answers": "none" }), "/answers"),
    ] {
        for refused in [
            acme.post("/webhooks", &body(&stage, member.clone())),
            acme.call("PATCH", &path, Some(&member)),
        ] {
            let problem = refused.expect_problem(422).to_string();
            assert!(problem.contains(&format!("\"{pointer}\"")), "{member}: {problem}");
            assert!(!problem.contains("hidden-"), "{problem}");
        }
    }
    acme.call("PATCH", &path, Some(&json!({}))).expect_problem(422);
}

#[test]
fn an_attempt_shows_no_value_of_a_header_even_if_the_receiver_repeats_it() {
    let stage =
        Stage::with(|config| config.with("[retry]", "delays = [\"60s\"]\ngive_up_after = \"48h\""));
    stage.receiver.answer(|request| {
        Answer::status(500).body(String::from_utf8_lossy(&request.head.raw).into_owned())
    });
    create(&stage, json!({ "headers": { "Authorization": "Bearer hidden-token", "x-pin": "7" } }));
    let event = stage.dispatcher.post_event("user.created");
    let tried = |one: &Value| one["attempts"].as_u64() >= Some(1);
    let attempt = stage.dispatcher.acme().wait_for_delivery(&event, tried)["attempt_log"][0].take();
    let sent = attempt["request"]["headers"].as_array().unwrap();
    for name in ["authorization", "x-pin"] {
        let shown = json!({ "name": name, "value": "***" });
        assert!(sent.contains(&shown), "{sent:?}");
    }
    let answered = text(&attempt["response"], "body").to_lowercase();
    assert!(answered.contains("authorization: ***"), "{answered}");
    assert!(!attempt.to_string().contains("hidden-"), "{attempt}");
}

#[test]
fn answers_of_successes_are_kept_on_the_owners_request() {
    let stage = Stage::new();
    stage.receiver.answer(|_| Answer::ok("thanks"));
    let made = create(&stage, json!({ "answers": "all" }));
    let kept = |event: &str| {
        let ended = |one: &Value| one["ended_at"].is_string();
        let delivery = stage.dispatcher.acme().wait_for_delivery(event, ended);
        delivery["attempt_log"][0]["response"]["body"] == "thanks"
    };
    assert!(kept(&stage.dispatcher.post_event("user.created")));
    assert_eq!(patch(&stage, &made, json!({ "answers": "failures" }))["answers"], "failures");
    assert!(!kept(&stage.dispatcher.post_event("user.created")));
}

#[test]
fn a_secret_may_be_brought_along_from_another_system() {
    let stage = Stage::new();
    let secret = "whsec_MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3";
    let made = create(&stage, json!({ "secret": secret }));
    assert_eq!(made["secret"], secret);
    stage.dispatcher.post_event("user.created");
    let delivered = stage.receiver.wait(1).remove(0);
    delivered.verify(secret);
    delivered.verify_standard(secret);
    for wrong in [
        "whsec_",
        "whsec_MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY",
        "whsec_hidden-hidden-hidden-hidden-hidden",
        "MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3",
        &format!("whsec_{}", "QUFB".repeat(22)),
    ] {
        let refused =
            stage.dispatcher.acme().post("/webhooks", &body(&stage, json!({ "secret": wrong })));
        let problem = refused.expect_problem(422).to_string();
        assert!(problem.contains("\"/secret\"") && !problem.contains("hidden"), "{problem}");
    }
}

#[test]
fn a_disabled_webhook_queues_and_is_sent_all_once_it_is_enabled() {
    let stage = Stage::with(scaled);
    stage.receiver.status(500);
    let made = create(&stage, json!({}));
    let first = stage.dispatcher.post_event("user.created");
    stage.receiver.wait(1);
    assert_eq!(patch(&stage, &made, json!({ "disabled": true }))["state"], "disabled");
    // An attempt in flight may still arrive.
    wait::pass(Duration::from_millis(600));
    let more = stage.dispatcher.post_events("user.created", 3);
    // Longer than what pauses an endpoint that is down.
    stage.receiver.assert_quiet(Duration::from_millis(1_500));
    let acme = stage.dispatcher.acme();
    let waiting = acme.deliveries("state=waiting");
    assert_eq!(waiting.len(), 1 + more.len(), "{waiting:#?}");
    assert!(waiting.iter().all(|one| one["waiting_for"]["reason"] == "disabled"), "{waiting:#?}");
    let path = format!("/webhooks/{}", text(&made, "id"));
    let problem = acme.act(&format!("{path}:ping")).expect_problem(409);
    assert_eq!(problem["type"], "urn:weir:problem:webhook-disabled");
    assert_eq!(acme.webhook(text(&made, "id"))["state"], "disabled", "it was not paused");
    stage.receiver.status(200);
    assert_eq!(patch(&stage, &made, json!({ "disabled": false }))["state"], "delivering");
    acme.wait_for_count("delivered", 1 + more.len());
    let sent: Vec<String> =
        stage.receiver.deliveries_at("/hook").iter().map(Delivered::id).collect();
    let resumed = sent.iter().position(|id| more.contains(id)).unwrap();
    assert!(sent[..resumed].iter().all(|id| *id == first), "the first is the probe: {sent:?}");
    let rest: BTreeSet<&String> = sent[resumed..].iter().collect();
    assert_eq!(rest, more.iter().collect(), "{sent:?}");
}
