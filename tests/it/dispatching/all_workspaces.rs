//! An operator finds webhooks of all workspaces that do not deliver, and reactivates those that
//! match.

use std::collections::BTreeSet;

use serde_json::{Value, json};
use weir_tests::answer::Answer;
use weir_tests::api::{Api, Webhook};
use weir_tests::dispatcher::{QUIET, event};
use weir_tests::request::Request;

use super::health::scaled;
use super::{Stage, text};

/// The webhook and its workspace, each with one delivery that its receiver refuses.
#[track_caller]
fn refused<'a>(stage: &'a Stage, state: &str) -> [(Api<'a>, Webhook); 2] {
    stage.receiver.status(500);
    let quiet = stage.dispatcher.api(QUIET, "ws_quiet");
    let all = [(stage.dispatcher.acme(), "ws_acme"), (quiet, "ws_quiet")];
    all.map(|(api, workspace)| {
        let url = stage.receiver.url(&format!("/{workspace}/hidden?key=hidden"));
        let webhook = api.create_webhook(&url, &["user.created"]);
        stage.dispatcher.post(&event(workspace, "user.created"));
        api.wait_for_state(&webhook.id, state);
        (api, webhook)
    })
}

#[track_caller]
fn listed(stage: &Stage, query: &str) -> Vec<Value> {
    let shown = stage.dispatcher.call_admin(&Request::get(&format!("/webhooks?{query}")));
    let page = shown.expect(200).json();
    assert!(!page.to_string().contains("hidden"), "a part of a URL is shown: {page}");
    assert_eq!(page["next_cursor"], Value::Null, "{page}");
    page["webhooks"].as_array().unwrap_or_else(|| panic!("{page}")).clone()
}

fn workspaces(listed: &[Value]) -> BTreeSet<&str> {
    listed.iter().map(|one| text(one, "workspace")).collect()
}

#[test]
fn paused_webhooks_of_all_workspaces_are_listed_and_reactivated() {
    let stage = Stage::with(scaled);
    let admin = |request: &Request| stage.dispatcher.call_admin(request);
    assert_eq!(listed(&stage, ""), Vec::<Value>::new());
    let [(acme, first), (quiet, second)] = refused(&stage, "paused");
    let paused = listed(&stage, "state=paused");
    assert_eq!(workspaces(&paused), BTreeSet::from(["ws_acme", "ws_quiet"]));
    let expected = json!({
        "workspace": "ws_acme",
        "id": first.id,
        "host": "127.0.0.1",
        "state": "paused",
        "since": paused[0]["since"],
        "waiting": { "count": 1, "at_least": false },
        "last_outcome": "status_500",
    });
    assert_eq!(paused[0], expected);
    let since = text(&paused[1], "since");
    assert_eq!(workspaces(&listed(&stage, &format!("until={since}"))), ["ws_acme"].into());
    assert_eq!(listed(&stage, "state=failing"), Vec::<Value>::new());
    assert_eq!(listed(&stage, "host=elsewhere.example"), Vec::<Value>::new());
    let page = admin(&Request::get("/webhooks?limit=1")).expect(200).json();
    assert_eq!(page["webhooks"], json!([paused[0]]));
    let next = listed(&stage, &format!("limit=1&cursor={}", text(&page, "next_cursor")));
    assert_eq!(next, paused[1..]);

    stage.receiver.answer(|_| Answer::status(200));
    let reactivate = |query: &str| {
        let path = format!("/webhooks:reactivate?{query}");
        admin(&Request::post(&path, "")).expect(200).json()
    };
    assert_eq!(reactivate("dry_run=true"), json!({ "matching": 2 }));
    assert_eq!(reactivate("workspace=ws_quiet&dry_run=true"), json!({ "matching": 1 }));
    assert_eq!(reactivate("host=elsewhere.example"), json!({ "reactivated": 0 }));
    assert_eq!(workspaces(&listed(&stage, "")).len(), 2, "nothing is reactivated yet");
    assert_eq!(reactivate("workspace=ws_quiet"), json!({ "reactivated": 1 }));
    quiet.wait_for_state(&second.id, "delivering");
    quiet.wait_for_count("delivered", 1);
    assert_eq!(acme.webhook(&first.id)["state"], "paused");
    assert_eq!(reactivate("host=127.0.0.1"), json!({ "reactivated": 1 }));
    acme.wait_for_count("delivered", 1);
    assert_eq!(listed(&stage, ""), Vec::<Value>::new());
}

#[test]
fn failing_and_disabled_webhooks_are_listed_and_not_reactivated() {
    let stage = Stage::with(|config| scaled(config).with("[health]", "pause_after = \"24h\""));
    let [_, (quiet, second)] = refused(&stage, "failing");
    let disabled = json!({ "disabled": true });
    quiet.call("PATCH", &format!("/webhooks/{}", second.id), Some(&disabled)).expect(200);
    assert_eq!(workspaces(&listed(&stage, "state=failing")), ["ws_acme"].into());
    let disabled = listed(&stage, "state=disabled&workspace=ws_quiet");
    assert_eq!((text(&disabled[0], "id"), disabled.len()), (second.id.as_str(), 1));
    let reactivated = stage.dispatcher.call_admin(&Request::post("/webhooks:reactivate", ""));
    assert_eq!(reactivated.expect(200).json(), json!({ "reactivated": 0 }));
    assert_eq!(listed(&stage, "").len(), 2);
}

#[test]
fn a_query_that_is_not_understood_reactivates_nothing() {
    let stage = Stage::with(scaled);
    let [(acme, first), _] = refused(&stage, "paused");
    let admin = |request: Request| stage.dispatcher.call_admin(&request);
    let wrong = admin(Request::post("/webhooks:reactivate?workspce=ws_acme&host=a:1", ""));
    let wrong = wrong.expect_problem(400);
    let places: Vec<&Value> =
        wrong["errors"].as_array().unwrap().iter().map(|one| &one["parameter"]).collect();
    assert_eq!(places, ["workspce", "host"]);
    admin(Request::post("/webhooks:reactivate?state=paused", "")).expect_problem(400);
    admin(Request::get("/webhooks?state=delivering")).expect_problem(400);
    admin(Request::post("/webhooks:reactivate", r#"{"host":"a"}"#)).expect_problem(400);
    admin(Request::get("/webhooks:reactivate")).expect_problem(405);
    admin(Request::post("/webhooks", "")).expect_problem(405);
    admin(Request::get("/webhooks/all")).expect_problem(404);
    for request in [
        Request::get("/redeliveries?x=1"),
        Request::post("/redeliveries/ws_acme/job_1:cancel?x=1", ""),
    ] {
        assert_eq!(admin(request).expect_problem(400)["errors"][0]["parameter"], "x");
    }
    assert_eq!(acme.webhook(&first.id)["state"], "paused");
}
