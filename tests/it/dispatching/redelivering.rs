//! Owners redeliver failed and successful deliveries.

use serde_json::json;
use weir_tests::request::Request;

use super::{Stage, text};

/// Many deliveries at once: none times out, however busy the machine is.
fn patient() -> Stage {
    Stage::with(|config| config.with("[egress]", "deadline = \"30s\""))
}

#[test]
fn a_failed_delivery_is_redelivered_with_a_new_schedule() {
    let stage = Stage::new();
    stage.receiver.status(500);
    stage.webhook("/hook", &["user.created"]);
    let id = stage.dispatcher.post_event("user.created");
    let acme = stage.dispatcher.acme();
    let failed = acme.wait_for_delivery(&id, |one| one["state"] == "failed_permanent");
    let before = stage.receiver.count();
    let path = format!("/deliveries/{}:redeliver", text(&failed, "id"));
    acme.act(&path).expect(202);
    // It has the whole schedule again, not just one attempt.
    stage.receiver.wait(before + 2);
    acme.wait_for_delivery(&id, |one| one["state"] == "failed_permanent");

    stage.receiver.status(200);
    acme.act(&path).expect(202);
    acme.wait_for_delivery(&id, |one| one["state"] == "delivered");
    let deliveries = stage.receiver.deliveries();
    assert_eq!(deliveries[0].body, deliveries.last().unwrap().body);
}

#[test]
fn a_successful_delivery_can_be_redelivered() {
    let stage = Stage::new();
    stage.webhook("/hook", &["user.created"]);
    let id = stage.dispatcher.post_event("user.created");
    let acme = stage.dispatcher.acme();
    let delivery = acme.wait_for_delivery(&id, |one| one["state"] == "delivered");
    acme.act(&format!("/deliveries/{}:redeliver", text(&delivery, "id"))).expect(202);
    let deliveries = stage.receiver.wait(2);
    assert_eq!(deliveries[0].body, deliveries[1].body);
}

#[test]
fn a_job_redelivers_many_and_reports_its_progress() {
    let stage = patient();
    stage.receiver.status(500);
    let webhook = stage.webhook("/hook", &["user.created"]);
    let other = stage.webhook("/other", &["plan.changed"]);
    let ids = stage.dispatcher.post_events("user.created", 40);
    stage.dispatcher.post_event("plan.changed");
    let acme = stage.dispatcher.acme();
    acme.wait_for_count("failed_permanent", 41);
    stage.receiver.status(200);
    let filter = json!({ "state": "failed_permanent", "webhook": webhook.id });
    let job = acme.post("/deliveries:redeliver", &filter).expect(202).json();
    assert!(["running", "done"].contains(&text(&job, "state")), "{job}");
    let done = acme.wait_for_job(text(&job, "id"));
    assert_eq!(done["redelivered"], 40, "{done}");
    assert!(done["ended_at"].is_string() && done["created_at"].is_string(), "{done}");
    assert_eq!(done["total"], json!({ "count": 40, "at_least": false }), "{done}");
    assert_eq!(done["examined"], 40, "{done}");
    let sent = acme.wait_for_progress(text(&job, "id"), |job| job["delivered"] == 40);
    assert_eq!((&sent["waiting"], &sent["failed_permanent"]), (&json!(0), &json!(0)), "{sent}");
    assert!(sent["estimate"].is_null(), "{sent}");
    acme.wait_for_count("delivered", 40);
    let failed = acme.deliveries("state=failed_permanent");
    assert_eq!(failed.len(), 1);
    assert_eq!(failed[0]["webhook_id"], other.id.as_str());
    for id in &ids {
        let to_it = stage.receiver.deliveries().into_iter().filter(|one| one.id() == *id);
        let bodies: std::collections::BTreeSet<_> = to_it.map(|one| one.body).collect();
        assert_eq!(bodies.len(), 1, "{id}");
    }
}

#[test]
fn an_empty_redelivery_request_is_refused_with_what_to_send() {
    let stage = Stage::new();
    let acme = stage.dispatcher.acme();
    let problem = acme.act("/deliveries:redeliver").expect_problem(400);
    let detail = "the body is empty; send a JSON object, at least `{}`";
    assert_eq!(text(&problem, "detail"), detail);
    let problem = acme.act("/webhooks").expect_problem(400);
    assert_eq!(text(&problem, "detail"), "the body is empty; send a JSON object");
}

#[test]
fn a_job_that_a_crash_interrupts_resumes() {
    let mut stage = patient();
    stage.receiver.status(500);
    stage.webhook("/hook", &["user.created"]);
    stage.dispatcher.post_events("user.created", 500);
    stage.dispatcher.acme().wait_for_count("failed_permanent", 500);
    stage.receiver.status(200);
    let filter = json!({ "state": "failed_permanent" });
    let job = stage.dispatcher.acme().post("/deliveries:redeliver", &filter).expect(202).json();
    stage.dispatcher.kill();
    stage.dispatcher.start_again();
    let acme = stage.dispatcher.acme();
    acme.wait_for_job(text(&job, "id"));
    acme.wait_for_count("delivered", 500);
    let sent = acme.wait_for_progress(text(&job, "id"), |job| job["delivered"] == 500);
    assert_eq!((&sent["redelivered"], &sent["waiting"]), (&json!(500), &json!(0)), "each once");
}

#[test]
fn another_workspace_sees_neither_the_delivery_nor_the_job() {
    let stage = Stage::new();
    stage.webhook("/hook", &["user.created"]);
    let id = stage.dispatcher.post_event("user.created");
    let acme = stage.dispatcher.acme();
    let delivery = acme.wait_for_delivery(&id, |one| one["state"] == "delivered");
    let all = json!({ "state": "delivered", "since": "2026-01-01T00:00:00Z" });
    let job = acme.post("/deliveries:redeliver", &all).expect(202);
    let quiet = stage.dispatcher.api(weir_tests::dispatcher::QUIET, "ws_quiet");
    let delivery = text(&delivery, "id").to_owned();
    quiet.get(&format!("/deliveries/{delivery}")).expect_problem(404);
    quiet.act(&format!("/deliveries/{delivery}:redeliver")).expect_problem(404);
    let job = text(&job.json(), "id").to_owned();
    quiet.get(&format!("/redeliveries/{job}")).expect_problem(404);
    quiet.act(&format!("/redeliveries/{job}:cancel")).expect_problem(404);
    assert!(quiet.list("/redeliveries", "").is_empty());
    let named = json!({ "deliveries": [delivery] });
    quiet.post("/deliveries:redeliver", &named).expect_problem(422);
}

/// A stage whose deliveries wait: nothing listens where they are to be sent.
fn waiting(events: usize) -> Stage {
    let stage =
        Stage::with(|config| config.with("[retry]", "delays = [\"1h\"]\ngive_up_after = \"2h\""));
    stage.receiver.status(500);
    stage.webhook("/hook", &["user.created"]);
    for _ in 0..events.div_ceil(1_000) {
        stage.dispatcher.post_events("user.created", events.min(1_000));
    }
    stage
}

#[test]
fn named_deliveries_are_redelivered_with_the_same_event_and_the_others_are_not_disturbed() {
    let stage = Stage::new();
    stage.webhook("/hook", &["user.created"]);
    stage.dispatcher.post_events("user.created", 3);
    let acme = stage.dispatcher.acme();
    let before = acme.wait_for_count("delivered", 3);
    let ids: Vec<&str> = before.iter().take(2).map(|one| text(one, "id")).collect();
    let job = acme.post("/deliveries:redeliver", &json!({ "deliveries": ids })).expect(202).json();
    let done = acme.wait_for_progress(text(&job, "id"), |job| job["delivered"] == 2);
    assert_eq!((&done["state"], &done["examined"]), (&json!("done"), &json!(2)), "{done}");
    let mut sent: Vec<String> =
        stage.receiver.wait(5).iter().skip(3).map(|one| one.id().to_owned()).collect();
    let mut expected: Vec<&str> = before.iter().take(2).map(|one| text(one, "event_id")).collect();
    sent.sort_unstable();
    expected.sort_unstable();
    assert_eq!(sent, expected);
    assert_eq!(acme.delivery(text(&before[2], "id"))["attempts"], 1);
}

#[test]
fn a_redelivery_names_every_error_at_once() {
    let stage = Stage::new();
    stage.webhook("/hook", &["user.created"]);
    let id = stage.dispatcher.post_event("user.created");
    let acme = stage.dispatcher.acme();
    let delivery = acme.wait_for_delivery(&id, |one| one["state"] == "delivered");
    let known = text(&delivery, "id");
    let gone = stage.webhook("/gone", &["plan.changed"]);
    let hidden = stage.dispatcher.post_event("plan.changed");
    let hidden = acme.wait_for_delivery(&hidden, |one| one["state"] == "delivered");
    acme.call("DELETE", &format!("/webhooks/{}", gone.id), None).expect(204);
    let hidden = text(&hidden, "id");
    for (body, pointers) in [
        (json!({ "deliveries": [] }), vec!["/deliveries"]),
        (json!({ "deliveries": [known, known] }), vec!["/deliveries/1"]),
        (json!({ "deliveries": [hidden, known, "dlv_0"] }), vec!["/deliveries/2", "/deliveries/0"]),
        (json!({ "deliveries": [known], "state": "waiting", "dry_run": true }), vec!["/state"]),
        (json!({ "state": "delivered" }), vec!["/since"]),
        (json!({ "state": "delivered", "dry_run": true }), vec!["/since"]),
        (
            json!({ "state": "delivered", "until": "now", "webhook": "x" }),
            vec!["/webhook", "/since", "/until"],
        ),
    ] {
        let problem = acme.post("/deliveries:redeliver", &body).expect_problem(422);
        let errors = problem["errors"].as_array().expect("errors");
        let found: Vec<&str> = errors.iter().map(|error| text(error, "pointer")).collect();
        assert_eq!(found, pointers, "{body}: {problem}");
    }
    assert!(acme.list("/redeliveries", "").is_empty());
}

#[test]
fn a_dry_run_counts_and_estimates_and_changes_nothing() {
    let stage = Stage::with(|config| config.with("[egress]", "requests = 10\nwindow = \"60s\""));
    let webhook = stage.webhook("/hook", &["user.created"]);
    stage.dispatcher.post_events("user.created", 10);
    let acme = stage.dispatcher.acme();
    acme.wait_for_count("delivered", 10);
    let body = json!({ "state": "delivered", "since": "2026-01-01T00:00:00Z", "dry_run": true });
    let counted = acme.post("/deliveries:redeliver", &body).expect(200).json();
    assert_eq!(counted["total"], json!({ "count": 10, "at_least": false }));
    assert_eq!(counted["webhooks"], json!([{ "webhook_id": webhook.id, "count": 10 }]));
    // The window is used up: the last cannot be sent before it has passed, and its margin.
    let seconds = counted["estimate"]["seconds"].as_u64().expect("a number");
    assert!((1..=61).contains(&seconds), "{counted}");
    assert!(acme.list("/redeliveries", "").is_empty());
    assert_eq!(acme.deliveries("state=delivered").len(), 10);
    let none = acme.post("/deliveries:redeliver", &json!({ "dry_run": true })).expect(200).json();
    assert_eq!(none["total"]["count"], 0);
    assert!(none["estimate"].is_null(), "{none}");
}

#[test]
fn a_cancelled_job_stays_cancelled_also_after_a_crash() {
    let mut stage = waiting(10_000);
    let acme = stage.dispatcher.acme();
    let all = json!({ "state": "waiting" });
    let job = acme.post("/deliveries:redeliver", &all).expect(202).json();
    let path = format!("/redeliveries/{}", text(&job, "id"));
    let cancelled = acme.act(&format!("{path}:cancel")).expect(200).json();
    assert_eq!(cancelled["state"], "cancelled", "{cancelled}");
    assert!(cancelled["ended_at"].is_string(), "{cancelled}");
    stage.dispatcher.kill();
    stage.dispatcher.start_again();
    let acme = stage.dispatcher.acme();
    let after = acme.get(&path).expect(200).json();
    for name in ["state", "ended_at", "examined", "redelivered"] {
        assert_eq!(after[name], cancelled[name], "{name}");
    }
    assert!(after["redelivered"].as_u64().expect("a number") < 10_000, "{after}");
    let again = acme.act(&format!("{path}:cancel")).expect(200).json();
    assert_eq!(again["ended_at"], cancelled["ended_at"]);
}

#[test]
fn a_job_that_is_killed_in_its_middle_queues_each_once() {
    let mut stage = waiting(10_000);
    let acme = stage.dispatcher.acme();
    let job = acme.post("/deliveries:redeliver", &json!({ "state": "waiting" })).expect(202).json();
    let id = text(&job, "id").to_owned();
    let middle = acme.wait_for_progress(&id, |job| job["examined"] != 0);
    assert_eq!(middle["state"], "running", "{middle}");
    stage.dispatcher.kill();
    stage.dispatcher.start_again();
    let done = stage.dispatcher.acme().wait_for_job(&id);
    for name in ["examined", "redelivered", "waiting"] {
        assert_eq!(done[name], 10_000, "{name} of {done}");
    }
}

#[test]
fn a_job_of_ten_thousand_deliveries_delays_no_other_workspace() {
    let stage = waiting(10_000);
    let acme = stage.dispatcher.acme();
    let all = json!({ "state": "waiting" });
    let large = acme.post("/deliveries:redeliver", &all).expect(202).json();
    assert_eq!(large["total"], json!({ "count": 10_000, "at_least": false }), "{large}");
    let quiet = stage.dispatcher.api(weir_tests::dispatcher::QUIET, "ws_quiet");
    let small = quiet.post("/deliveries:redeliver", &json!({})).expect(202).json();
    let small = quiet.wait_for_job(text(&small, "id"));
    let open = stage.dispatcher.call_admin(&Request::get("/redeliveries")).expect(200).json();
    assert_eq!(open["redeliveries"][0]["workspace"], "ws_acme", "{open}");
    let large = acme.wait_for_job(text(&large, "id"));
    assert!(text(&small, "ended_at") < text(&large, "ended_at"), "{small} {large}");
    assert_eq!(large["redelivered"], 10_000);
}

#[test]
fn an_operator_sees_unfinished_jobs_and_cancels_one() {
    let stage = waiting(10_000);
    let acme = stage.dispatcher.acme();
    let admin = |request: &Request| stage.dispatcher.call_admin(request);
    let none = admin(&Request::get("/redeliveries")).expect(200).json();
    assert_eq!(none, json!({ "redeliveries": [], "more": false }));
    let job = acme.post("/deliveries:redeliver", &json!({ "state": "waiting" })).expect(202).json();
    let open = admin(&Request::get("/redeliveries")).expect(200).json();
    let one = &open["redeliveries"][0];
    assert_eq!((text(one, "workspace"), text(one, "id")), ("ws_acme", text(&job, "id")));
    let path = format!("/redeliveries/ws_acme/{}:cancel", text(&job, "id"));
    let ended = admin(&Request::post(&path, "")).expect(200).json();
    assert_eq!(ended["cancelled"], true, "{ended}");
    let shown = acme.get(&format!("/redeliveries/{}", text(&job, "id"))).expect(200).json();
    assert_eq!(shown["state"], "cancelled");
    admin(&Request::get(&path)).expect_problem(405);
    let other = path.replace("ws_acme", "ws_quiet");
    admin(&Request::post(&other, "")).expect_problem(404);
}
