//! Calls without a token, with an unknown token, with one of another workspace, and with one of
//! other scopes.

use serde_json::json;
use weir_tests::client::Client;
use weir_tests::dispatcher::{ACME, BACKEND, QUIET, READER, event};
use weir_tests::request::Request;

use super::Stage;

#[test]
fn a_call_without_a_known_token_is_a_401() {
    let stage = Stage::new();
    let webhook = stage.webhook("/hook", &["user.created"]);
    let target = format!("/v1/workspaces/ws_acme/webhooks/{}", webhook.id);
    let basic = format!("Basic {ACME}");
    for value in ["", "Bearer", "Bearer ", "Bearer wrong", &basic, ACME] {
        let request = Request::get(&target).field("Authorization", value);
        let answer = Client::connect(stage.dispatcher.api_address()).call(&request);
        assert!(answer.field("www-authenticate").is_some(), "{value:?}");
        answer.expect_problem(401);
    }
    Client::connect(stage.dispatcher.api_address()).get(&target).expect_problem(401);
    let body = event("ws_acme", "user.created").to_string();
    let request = Request::post("/internal/v1/events", body);
    Client::connect(stage.dispatcher.ingest_address()).call(&request).expect_problem(401);
}

#[test]
fn a_workspace_sees_nothing_of_another() {
    let stage = Stage::new();
    let webhook = stage.webhook("/hook", &["user.created"]);
    let quiet = stage.dispatcher.api(QUIET, "ws_quiet");
    let path = format!("/webhooks/{}", webhook.id);
    let change = json!({ "events": ["plan.changed"] });
    quiet.get(&path).expect_problem(404);
    quiet.call("PATCH", &path, Some(&change)).expect_problem(404);
    quiet.call("DELETE", &path, None).expect_problem(404);
    for action in ["reactivate", "rotate-secret", "ping"] {
        quiet.act(&format!("{path}:{action}")).expect_problem(404);
    }
    let secrets = format!("{path}/secrets");
    quiet.act(&secrets).expect_problem(404);
    quiet.get(&secrets).expect_problem(404);
    let listed = stage.dispatcher.acme().get(&secrets).expect(200).json();
    let fingerprint = listed["data"][0]["fingerprint"].as_str().expect("it has one");
    quiet.call("DELETE", &format!("{secrets}/{fingerprint}"), None).expect_problem(404);
    assert!(quiet.list("/webhooks", "").is_empty());
    assert!(quiet.list("/deliveries", &format!("webhook={}", webhook.id)).is_empty());

    // An existing workspace and an unknown one get the same answer.
    let trespass = |workspace| {
        let answer = stage.dispatcher.api(QUIET, workspace).get("/webhooks");
        assert!([403, 404].contains(&answer.status), "{}", answer.status);
        let status = answer.status;
        answer.expect_problem(status);
        status
    };
    assert_eq!(trespass("ws_acme"), trespass("ws_nobody"));
    assert_eq!(stage.dispatcher.acme().webhook(&webhook.id)["events"], json!(["user.created"]));
}

#[test]
fn a_token_allows_only_its_scopes() {
    let stage = Stage::new();
    let webhook = stage.webhook("/hook", &["user.created"]);
    let path = format!("/webhooks/{}", webhook.id);
    let reader = stage.dispatcher.api(READER, "ws_acme");
    reader.get(&path).expect(200);
    reader.get("/deliveries").expect(200);
    let body = json!({ "url": stage.receiver.url("/"), "events": ["user.created"] });
    reader.post("/webhooks", &body).expect_problem(403);
    reader.call("DELETE", &path, None).expect_problem(403);
    reader.act(&format!("{path}:rotate-secret")).expect_problem(403);
    reader.get(&format!("{path}/secrets")).expect(200);
    reader.act(&format!("{path}/secrets")).expect_problem(403);
    reader.call("DELETE", &format!("{path}/secrets/0"), None).expect_problem(403);
    stage.dispatcher.api(BACKEND, "ws_acme").get(&path).expect_problem(403);
    let request =
        Request::post("/internal/v1/events", event("ws_acme", "user.created").to_string())
            .field("Authorization", &format!("Bearer {ACME}"));
    Client::connect(stage.dispatcher.ingest_address()).call(&request).expect_problem(403);
}

#[test]
fn each_listener_answers_only_its_own_calls() {
    let stage = Stage::new();
    let owner =
        |target: &str| Request::get(target).field("Authorization", &format!("Bearer {ACME}"));
    for target in ["/internal/v1/events", "/metrics", "/livez", "/"] {
        let answer = Client::connect(stage.dispatcher.api_address()).call(&owner(target));
        answer.expect_problem(404);
    }
    for target in ["/v1/workspaces/ws_acme/webhooks", "/metrics"] {
        let answer = Client::connect(stage.dispatcher.ingest_address()).call(&owner(target));
        answer.expect_problem(404);
    }
    stage.dispatcher.call_admin(&Request::get("/livez")).expect(200);
    stage
        .dispatcher
        .call_admin(&Request::get("/v1/workspaces/ws_acme/webhooks"))
        .expect_problem(404);
}
