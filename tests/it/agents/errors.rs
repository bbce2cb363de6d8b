//! What agents read when something fails, and that no token is among it.

use serde_json::json;
use weir_tests::dispatcher::{ACME, READER};

use super::{Sdk, Session, Stage, call};

#[test]
fn an_error_names_what_happened_and_what_helps() {
    let stage = Stage::new();
    let webhook = stage.webhook();
    let session = stage.session(
        Sdk::Node,
        &[
            call("get_webhook", json!({ "id": "wh_nothing" })),
            call("get_webhook", json!({ "id": "../../ws_quiet/webhooks/x" })),
            call("get_webhook", json!({ "nothing": 1 })),
            call("list_webhooks", json!({ "workspace": "ws_quiet" })),
            call("search_deliveries", json!({ "filter": { "state": "lost" } })),
            call("create_webhook", json!({ "url": "ftp://x", "events": ["user.created"] })),
            call(
                "create_webhook",
                json!({ "url": stage.receiver.url("/x"), "events": ["no.such"] }),
            ),
            call("redeliver_matching", json!({ "filter": { "state": "delivered" }, "confirm": 1 })),
            call("get_redelivery", json!({ "id": "job_nothing" })),
            call("no_such_tool", json!({})),
            call("update_webhook", json!({ "id": webhook, "changes": {} })),
        ],
    );
    for (step, words) in [
        (0, "404 not-found"),
        (1, "Nothing was sent. Use an id from a list"),
        (2, "do not fit the tool's schema: unknown field `nothing`"),
        (3, "404 not-found"),
        (4, "400 invalid-query"),
        (5, "422 invalid-body"),
        (6, "422 invalid-body"),
        (7, "422 invalid-body"),
        (8, "404 not-found"),
        (10, "422 invalid-body"),
    ] {
        assert!(session.error(step).contains(words), "{step}: {}", session.error(step));
    }
    let unknown = session.outcomes[9].to_string();
    assert!(unknown.contains("there is no tool `no_such_tool`"), "{unknown}");
    assert_silent(&session);
    // No draft of a secret stays behind.
    assert_eq!(std::fs::read_dir(stage.folder.path("secrets")).unwrap().count(), 0);
}

#[test]
fn a_token_without_the_scope_is_refused_and_the_agent_is_stopped() {
    let stage = Stage::new();
    stage.folder.write("token", READER);
    let webhook = stage.webhook();
    let session = stage.session(Sdk::Node, &[call("test_webhook", json!({ "id": webhook }))]);
    assert!(session.error(0).contains("403 insufficient-scope"), "{session:#?}");
    assert!(session.error(0).contains("Do not try another way"), "{session:#?}");
    assert_silent(&session);
}

#[test]
fn an_invalid_token_is_an_error_of_each_call() {
    let stage = Stage::new();
    stage.folder.write("token", "hidden-token-of-a-stranger");
    let session = stage.session(Sdk::Python, &[call("list_webhooks", json!({}))]);
    assert!(session.error(0).contains("401 unauthorized"), "{session:#?}");
    assert_silent(&session);
}

#[test]
fn a_dispatcher_that_is_down_is_an_error_with_advice_on_repeating() {
    let mut stage = Stage::new();
    let webhook = stage.webhook();
    stage.dispatcher.stop();
    let session = stage.session(
        Sdk::Node,
        &[call("list_webhooks", json!({})), call("test_webhook", json!({ "id": webhook }))],
    );
    assert!(session.error(0).contains("502"), "{session:#?}");
    assert!(session.error(1).contains("may have been carried out"), "{session:#?}");
}

#[test]
fn a_limit_that_is_used_up_is_waited_for_and_a_wait_that_is_too_long_is_not_begun() {
    let stage = Stage::with(|text| {
        text.replace("requests = 60\nwindow = \"1m\"\nmode", "requests = 3\nwindow = \"3s\"\nmode")
    });
    let webhook = stage.webhook();
    let get = || call("get_webhook", json!({ "id": webhook }));
    let steps: Vec<_> = (0..5).map(|_| get()).collect();
    let patient = stage.session(Sdk::Node, &steps);
    for step in 0..5 {
        assert_eq!(patient.data(step)["id"], *webhook);
    }
    let task = json!({ "command": stage.command(&["--wait-max", "1s"]), "steps": steps });
    let impatient = Session::of(Sdk::Node, task);
    let refused = (0..5).find(|step| impatient.outcomes[*step]["isError"] == true);
    let refused = impatient.error(refused.unwrap_or_else(|| panic!("{impatient:#?}")));
    assert!(refused.contains("rate-limited") && refused.contains("Wait that long"), "{refused}");
}

/// Checks that no agent has seen a token.
#[track_caller]
fn assert_silent(session: &Session) {
    let whole = format!("{session:?}");
    for token in [ACME, READER, "hidden"] {
        assert!(!whole.contains(token), "{whole}");
    }
}
