//! Owners redeliver failed and successful deliveries.

use serde_json::json;

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
}

#[test]
fn another_workspace_sees_neither_the_delivery_nor_the_job() {
    let stage = Stage::new();
    stage.webhook("/hook", &["user.created"]);
    let id = stage.dispatcher.post_event("user.created");
    let acme = stage.dispatcher.acme();
    let delivery = acme.wait_for_delivery(&id, |one| one["state"] == "delivered");
    let job = acme.post("/deliveries:redeliver", &json!({ "state": "delivered" })).expect(202);
    let quiet = stage.dispatcher.api(weir_tests::dispatcher::QUIET, "ws_quiet");
    let delivery = text(&delivery, "id").to_owned();
    quiet.get(&format!("/deliveries/{delivery}")).expect_problem(404);
    quiet.act(&format!("/deliveries/{delivery}:redeliver")).expect_problem(404);
    quiet.get(&format!("/redeliveries/{}", text(&job.json(), "id"))).expect_problem(404);
}
