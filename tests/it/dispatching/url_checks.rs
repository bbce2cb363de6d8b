//! A URL that is called before events are sent to it: checked, and proved by a challenge.

use serde_json::{Value, json};
use weir_tests::answer::Answer;
use weir_tests::receiver::Receiver;
use weir_tests::response::Response;
use weir_tests::upstream::Received;
use weir_tests::wait;

use super::{Stage, text};

const OTHER_SECRET: &str = "whsec_ZmVkY2JhOTg3NjU0MzIxMGZlZGNiYTk4NzY1NDMyMTA=";
const SECRET: &str = "whsec_MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY=";

/// Answers a challenge as the documentation shows it, and anything else with 200.
fn answers_challenges(receiver: &Receiver) {
    receiver.upstream().answer_whole(|received: &Received| {
        let event: Value = serde_json::from_slice(&received.body).unwrap_or_default();
        match event["type"] == "webhook.challenge" {
            true => Answer::ok(json!({"challenge": event["data"]["challenge"]}).to_string()),
            false => Answer::ok("thanks"),
        }
    });
}

#[track_caller]
fn create(stage: &Stage, url: &str) -> Response {
    let body = json!({"url": url, "events": ["user.created"], "verify": true, "secret": SECRET,
        "headers": {"x-route": "seven"}});
    stage.dispatcher.acme().post("/webhooks", &body)
}

#[track_caller]
fn check(stage: &Stage, url: &str) -> Value {
    stage.dispatcher.acme().post("/webhooks:check", &json!({ "url": url })).expect(200).json()
}

#[test]
fn a_webhook_whose_receiver_answers_the_challenge_is_created() {
    let stage = Stage::new();
    answers_challenges(&stage.receiver);
    let created = create(&stage, &stage.receiver.url("/hook")).expect(201).json();
    let challenge = stage.receiver.wait(1).remove(0);
    challenge.verify(SECRET);
    challenge.verify_standard(SECRET);
    assert_eq!(challenge.field("Service-Test"), "true");
    assert_eq!(challenge.field("X-Route"), "seven");
    let envelope = challenge.envelope();
    assert_eq!(envelope["type"], "webhook.challenge");
    assert_eq!(envelope["workspace_id"], "ws_acme");
    assert_eq!(text(&envelope["data"], "challenge").len(), 32);
    assert_eq!(stage.dispatcher.acme().deliveries("").len(), 0, "it is stored nowhere");
    stage.dispatcher.post_event("user.created");
    stage.receiver.wait(2);
    assert_eq!(created["secret"], SECRET);
}

#[test]
fn a_webhook_whose_receiver_does_not_answer_the_challenge_is_not_created() {
    let stage = Stage::new();
    let echo = |received: &Received| Answer::ok(received.body.clone());
    let long = |received: &Received| {
        let event: Value = serde_json::from_slice(&received.body).unwrap();
        let text = json!({"challenge": event["data"]["challenge"], "z": "z".repeat(5_000)});
        Answer::ok(text.to_string())
    };
    stage.receiver.answer(|_| Answer::ok("thanks"));
    refused(&stage, "answered 200, but not with");
    stage.receiver.upstream().answer_whole(echo);
    refused(&stage, "answered 200, but not with");
    stage.receiver.upstream().answer_whole(long);
    refused(&stage, "answered 200, but not with");
    stage.receiver.answer(|_| Answer::status(500));
    refused(&stage, "answered 500, which is not 2xx");
    assert_eq!(stage.receiver.count(), 4);
    assert!(stage.dispatcher.acme().list("/webhooks", "").is_empty());
}

#[test]
fn a_new_url_is_proved_before_anything_changes() {
    let stage = Stage::new();
    let acme = stage.dispatcher.acme();
    let body = json!({"url": stage.receiver.url("/old"), "events": ["user.created"],
        "secret": SECRET, "headers": {"x-route": "seven"}});
    let webhook = acme.post("/webhooks", &body).expect(201).json();
    let path = format!("/webhooks/{}", text(&webhook, "id"));
    acme.post(&format!("{path}/secrets"), &json!({ "secret": OTHER_SECRET })).expect(201);
    let before = acme.get(&path).expect(200).json();

    let change = json!({"url": stage.receiver.url("/new"), "verify": true, "description": "moved",
        "headers": {"x-route": "eight"}});
    stage.receiver.answer(|_| Answer::ok("thanks"));
    let problem = acme.call("PATCH", &path, Some(&change)).expect_problem(422).to_string();
    for word in ["unverified-url", "/url", "answered 200, but not with"] {
        assert!(problem.contains(word), "{word} is not in {problem}");
    }
    assert_eq!(acme.get(&path).expect(200).json(), before, "nothing changes");

    answers_challenges(&stage.receiver);
    let changed = acme.call("PATCH", &path, Some(&change)).expect(200).json();
    assert_eq!((&changed["url"], &changed["description"]), (&change["url"], &json!("moved")));
    assert!(changed.get("verify").is_none(), "{changed}");
    let challenge = stage.receiver.wait(2).remove(1);
    // By every secret that signs, as deliveries are.
    challenge.verify(SECRET);
    challenge.verify(OTHER_SECRET);
    assert_eq!(challenge.field("X-Route"), "eight", "as they are after the change");
    assert_eq!(challenge.envelope()["type"], "webhook.challenge");

    let moved = json!({"url": stage.receiver.url("/newer")});
    acme.call("PATCH", &path, Some(&moved)).expect(200);
    assert_eq!(stage.receiver.count(), 2, "without `verify` nothing is sent");
    for (wrong, place) in [
        (json!({"verify": true}), "must change something"),
        (json!({"verify": true, "description": "x"}), "/verify"),
    ] {
        let problem = acme.call("PATCH", &path, Some(&wrong)).expect_problem(422).to_string();
        assert!(problem.contains(place), "{place} is not in {problem}");
    }
    acme.call("PATCH", "/webhooks/wh_00000000000000000000000000", Some(&change))
        .expect_problem(404);
}

#[test]
fn silent_receivers_of_one_workspace_leave_room_for_the_tests_of_others() {
    let stage = Stage::with(|config| {
        let config = config.with("[webhooks]", "checks_per_minute = 100");
        config.with("[egress]", "deadline = \"10s\"")
    });
    let silent = Receiver::start();
    silent.answer(|_| Answer::script().pause(std::time::Duration::from_secs(30)));
    let silent_url = silent.url("/hook");
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| check(&stage, &silent_url));
        }
        silent.wait(4);
        let body = json!({ "url": silent_url });
        let refused = stage.dispatcher.acme().post("/webhooks:check", &body).expect(429).text();
        assert!(refused.contains("too-many-tests"), "{refused}");
        let quiet = stage.dispatcher.api(weir_tests::dispatcher::QUIET, "ws_quiet");
        let body = json!({ "url": stage.receiver.url("/hook") });
        assert_eq!(quiet.post("/webhooks:check", &body).expect(200).json()["ok"], true);
    });
    check(&stage, &stage.receiver.url("/hook"));
}

#[track_caller]
fn refused(stage: &Stage, why: &str) {
    let problem = create(stage, &stage.receiver.url("/hook")).expect_problem(422);
    let problem = problem.to_string();
    assert!(problem.contains("unverified-url") && problem.contains("/url"), "{problem}");
    assert!(problem.contains(why), "{problem}");
}

#[test]
fn a_check_shows_what_the_receiver_does_with_a_signed_ping() {
    let stage = Stage::new();
    let url = stage.receiver.url("/hook");
    let found = check(&stage, &url);
    assert_eq!((&found["ok"], &found["outcome"]), (&json!(true), &json!("status_200")));
    assert!(found["duration_ms"].is_u64() && found["error"].is_null(), "{found}");
    assert!(found["timings"]["first_byte_ms"].is_f64(), "{found}");
    let ping = stage.receiver.wait(1).remove(0);
    assert_eq!(ping.envelope()["type"], "webhook.ping");
    assert_eq!(ping.field("Service-Test"), "true");
    stage.receiver.status(404);
    let found = check(&stage, &url);
    assert_eq!((&found["ok"], &found["status"]), (&json!(false), &json!(404)));
    let body = json!({"url": url, "secret": SECRET});
    stage.dispatcher.acme().post("/webhooks:check", &body).expect(200);
    stage.receiver.wait(3)[2].verify(SECRET);
    let acme = stage.dispatcher.acme();
    assert_eq!((acme.deliveries("").len(), acme.list("/webhooks", "").len()), (0, 0));
    for wrong in [json!({}), json!({"url": "ftp://x"}), json!({"url": url, "secret": "short"})] {
        acme.post("/webhooks:check", &wrong).expect_problem(422);
    }
}

#[test]
fn private_unresolvable_and_refusing_receivers_read_alike_and_take_as_long() {
    let mut stage =
        Stage::with(|config| config.with("[egress]", "allow_networks = [\"127.0.0.2/32\"]"));
    // The machine's host name resolves to one of its own addresses, if it resolves at all.
    let own = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
    let port = stage.receiver.url("").rsplit(':').next().unwrap().to_owned();
    stage.receiver.stop();
    let mut seen = Vec::new();
    for host in [own.trim(), "nowhere.invalid", "127.0.0.2"] {
        let began = wait::unix_millis();
        seen.push(check(&stage, &format!("http://{host}:{port}/hook")));
        let took = wait::unix_millis() - began;
        assert!(took >= 2_000, "{host}: {took} ms");
    }
    assert_eq!(seen[0]["outcome"], "unreachable");
    assert!(seen.iter().all(|one| *one == seen[0]), "{seen:?}");
    let began = wait::unix_millis();
    let problem = create(&stage, &format!("http://{}:{port}/hook", own.trim())).expect_problem(422);
    assert!(problem.to_string().contains(text(&seen[0], "error")), "{problem}");
    assert!(wait::unix_millis() - began >= 2_000);
}

#[test]
fn checks_and_challenges_have_the_limits_of_tests_and_of_their_receiver() {
    let stage = Stage::with(|config| {
        let config = config.with("[webhooks]", "checks_per_minute = 3");
        config.with("[egress]", "requests = 2\nwindow = \"1h\"")
    });
    let hook = stage.receiver.url("/hook");
    stage.webhook("/hook", &["user.created"]);
    stage.dispatcher.post_event("user.created");
    stage.dispatcher.acme().wait_for_count("delivered", 1);
    check(&stage, &hook);
    let body = json!({ "url": hook });
    let acme = stage.dispatcher.acme();
    let paced = acme.post("/webhooks:check", &body).expect(429).text();
    assert!(paced.contains("problem:paced"), "{paced}");
    let other = stage.receiver.url("/other");
    check(&stage, &other);
    let spent = create(&stage, &other).expect(429).text();
    assert!(spent.contains("too-many-tests"), "{spent}");
    let quiet = stage.dispatcher.api(weir_tests::dispatcher::QUIET, "ws_quiet");
    let body = json!({ "url": stage.receiver.url("/third") });
    quiet.post("/webhooks:check", &body).expect(200);
}
