//! What owners read of attempts: what was called, sent and answered, without secrets.

use serde_json::{Value, json};
use weir_tests::answer::Answer;
use weir_tests::api::Webhook;

use super::{Stage, text};

/// The only attempt of an event, once it has ended.
#[track_caller]
fn attempt(stage: &Stage, event: &str) -> Value {
    let tried = |one: &Value| one["attempts"].as_u64() >= Some(1);
    stage.dispatcher.acme().wait_for_delivery(event, tried)["attempt_log"][0].take()
}

/// The value of a header in a list of them.
#[track_caller]
fn header<'a>(message: &'a Value, name: &str) -> &'a str {
    let headers = message["headers"].as_array().unwrap_or_else(|| panic!("{message}"));
    let found = headers.iter().find(|header| header["name"] == name);
    text(found.unwrap_or_else(|| panic!("no {name} in {message}")), "value")
}

fn stage(answers: &str) -> (Stage, Webhook) {
    let stage = Stage::with(|config| {
        config
            .with("[retry]", "delays = [\"60s\"]\ngive_up_after = \"48h\"")
            .with("[attempts]", answers)
    });
    let webhook = stage.webhook("/hook?a=b", &["user.created"]);
    (stage, webhook)
}

#[test]
fn a_failed_attempt_shows_what_was_called_sent_and_answered_without_secrets() {
    let (stage, webhook) = stage("");
    let secret = webhook.secret.clone();
    // As frameworks do that print a request, and what they expected.
    stage.receiver.answer(move |request| {
        let head = String::from_utf8_lossy(&request.head.raw).into_owned();
        let body = format!("{head}expected {secret}, {}", secret.replace('/', "\\/"));
        Answer::status(500).field("X-Seen", &secret).body(body)
    });
    let event = stage.dispatcher.post_event("user.created");
    let attempt = attempt(&stage, &event);
    assert_eq!(text(&attempt, "url"), stage.receiver.url("/hook?a=b"));
    assert_eq!(attempt["address"], "127.0.0.1");
    assert_eq!(text(&attempt, "error"), "answered 500, which is not 2xx");
    let timings = &attempt["timings"];
    assert!(timings["first_byte_ms"].is_f64() && timings["connect_ms"].is_f64(), "{timings}");
    assert!(timings["tls_ms"].is_null() && timings["reused_connection"] == false, "{timings}");
    let delivered = stage.receiver.wait(1).remove(0);
    let signed = delivered.signed();
    let shown = format!("t={},v1=***", signed.t);
    let (request, response) = (&attempt["request"], &attempt["response"]);
    assert_eq!(header(request, "service-signature"), shown);
    assert_eq!(header(request, "webhook-signature"), "v1,***");
    for name in ["content-type", "webhook-id", "webhook-timestamp", "accept", "user-agent", "host"]
    {
        assert_eq!(header(request, name), delivered.field(name), "{name}");
    }
    assert_eq!(header(request, "content-length"), delivered.body.len().to_string());
    assert_eq!(header(response, "x-seen"), "***");
    let body = text(response, "body");
    assert!(body.contains(&shown) && body.contains("expected ***, ***"), "{body}");
    let all = attempt.to_string();
    for part in [&webhook.secret["whsec_".len()..], &signed.v1[0], &signed.v1[0][..8]] {
        assert!(!all.contains(part), "{part} is in {all}");
    }
}

#[test]
fn a_long_answer_is_cut_and_a_binary_one_is_in_base64() {
    let (stage, _) = stage("answer_bytes_max = \"16B\"");
    for (body, shown) in [
        (b"0123456789".to_vec(), json!(["0123456789", "text", false])),
        (vec![b'x'; 60_000], json!(["xxxxxxxxxxxxxxxx", "text", true])),
        (b"\x1b[2J\xff".to_vec(), json!(["G1sySv8=", "base64", false])),
        (Vec::new(), json!(["", "text", false])),
    ] {
        stage.receiver.answer(move |_| Answer::status(500).body(body.clone()));
        let event = stage.dispatcher.post_event("user.created");
        let response = attempt(&stage, &event)["response"].take();
        let found = ["body", "body_encoding", "body_truncated"].map(|name| response[name].clone());
        assert_eq!(Value::from(found.to_vec()), shown, "{response}");
    }
}

#[test]
fn a_success_is_kept_on_request_alone() {
    for (answers, kept) in [("answers = \"failed\"", false), ("answers = \"all\"", true)] {
        let (stage, _) = stage(answers);
        stage.receiver.answer(|_| Answer::ok("thanks"));
        let event = stage.dispatcher.post_event("user.created");
        let attempt = attempt(&stage, &event);
        assert_eq!(attempt["error"], Value::Null);
        assert!(attempt["timings"]["first_byte_ms"].is_f64(), "{attempt}");
        assert_eq!(attempt["request"].is_object(), kept, "{attempt}");
        assert_eq!(attempt["response"]["body"] == "thanks", kept, "{attempt}");
    }
}

#[test]
fn what_a_private_network_answers_is_shown_only_if_the_operator_permits() {
    let (stage, _) = stage("private_answers = false");
    stage.receiver.answer(|_| Answer::status(500).body("hidden-answer"));
    let event = stage.dispatcher.post_event("user.created");
    let attempt = attempt(&stage, &event);
    assert!(attempt["address"].is_null() && attempt["response"].is_null(), "{attempt}");
    assert_eq!(attempt["status"], 500);
    assert!(!attempt.to_string().contains("hidden-answer"), "{attempt}");
}

#[test]
fn an_event_is_shown_byte_for_byte_to_its_workspace() {
    let (stage, _) = stage("");
    let event = stage.dispatcher.post_event("user.created");
    let delivered = stage.receiver.wait(1).remove(0);
    let path = format!("/events/{event}");
    let shown = stage.dispatcher.acme().get(&path).expect(200);
    assert_eq!(shown.body, delivered.body);
    assert_eq!(shown.field("content-type"), Some("application/json"));
    stage.dispatcher.acme().get("/events/evt_unknown").expect_problem(404);
    let other = stage.dispatcher.api(weir_tests::dispatcher::QUIET, "ws_quiet");
    other.get(&path).expect_problem(404);
}
