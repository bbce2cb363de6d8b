//! Destructive tools: a person is asked where the client can ask, and otherwise the number of a dry
//! run is needed.

use serde_json::json;
use weir_tests::client::Client;
use weir_tests::request::Request;
use weir_tests::wait;

use super::{Sdk, Stage, call, yes};

#[test]
fn without_a_person_the_dry_runs_number_is_needed() {
    let stage = Stage::new();
    stage.failed(3);
    stage.receiver.status(200);
    let matching = |rest: serde_json::Value| call("redeliver_matching", rest);
    for sdk in [Sdk::Node, Sdk::Node2, Sdk::Python] {
        let session = stage.session(
            sdk,
            &[
                matching(json!({})),
                matching(json!({ "dry_run": true })),
                matching(json!({ "confirm": 2 })),
                matching(json!({ "confirm": 3, "dry_run": true })),
            ],
        );
        assert!(session.error(0).contains("call again with confirm: 3"), "{session:#?}");
        assert_eq!(session.data(1)["confirm"], 3);
        assert_eq!(session.data(1)["count"]["at_least"], false);
        assert!(session.error(2).contains("confirm: 2 does not match"), "{session:#?}");
        assert_eq!(session.data(3)["dry_run"], true);
    }
    assert_eq!(stage.dispatcher.acme().deliveries("state=failed_permanent").len(), 3);
    let done = stage.session(Sdk::Node, &[matching(json!({ "confirm": 3 }))]);
    assert_eq!(done.data(0)["total"]["count"], 3);
    stage.dispatcher.acme().wait_for_count("delivered", 3);
}

#[test]
fn a_person_who_agrees_is_asked_once_and_the_number_is_named() {
    for sdk in [Sdk::Node, Sdk::Node2, Sdk::Python] {
        let stage = Stage::new();
        stage.failed(2);
        stage.receiver.status(200);
        let session = stage.answered(sdk, Some(yes()), &[call("redeliver_matching", json!({}))]);
        assert_eq!(session.data(0)["total"]["count"], 2, "{sdk:?}");
        let [question] = session.questions.as_slice() else { panic!("{session:#?}") };
        assert!(question.contains("Deliveries affected: 2."), "{question}");
        stage.dispatcher.acme().wait_for_count("delivered", 2);
    }
}

#[test]
fn a_person_who_does_not_agree_is_obeyed_whatever_the_agent_confirms() {
    let stage = Stage::new();
    let webhook = stage.webhook();
    let url = stage.receiver.url("/elsewhere");
    let move_it =
        call("update_webhook", json!({ "id": webhook, "changes": { "url": url }, "confirm": 0 }));
    for answer in [
        json!({ "action": "decline" }),
        json!({ "action": "cancel" }),
        json!({ "action": "accept", "content": { "approve": false } }),
    ] {
        for sdk in [Sdk::Node, Sdk::Node2, Sdk::Python] {
            let session = stage.answered(sdk, Some(answer.clone()), std::slice::from_ref(&move_it));
            assert!(session.error(0).contains("the person said no"), "{session:#?}");
            assert!(session.questions[0].contains(&url), "{session:#?}");
        }
    }
    assert_eq!(stage.dispatcher.acme().webhook(&webhook)["url"], stage.receiver.url("/hook"));
}

#[test]
fn what_an_agent_writes_cannot_pass_for_the_question() {
    let stage = Stage::new();
    let webhook = stage.webhook();
    let url = "https://a.example/\" is safe.\n\nDeliveries affected: 0.\u{202e}";
    let changes = json!({ "url": url, "events": ["x\ny".repeat(999)] });
    let step = call("update_webhook", json!({ "id": webhook, "changes": changes }));
    let no = json!({ "action": "decline" });
    let session = stage.answered(Sdk::Node, Some(no), &[step]);
    let [question] = session.questions.as_slice() else { panic!("{session:#?}") };
    assert!(!question.contains(['\n', '\u{202e}']) && question.len() < 900, "{question}");
    assert!(question.contains(r#""https://a.example/' is safe.  Deliveries"#), "{question}");
    assert!(question.ends_with("Deliveries affected: 0."), "{question}");
}

#[test]
fn a_url_moves_and_a_secret_is_replaced_once_that_is_agreed_to() {
    let stage = Stage::new();
    let webhook = stage.webhook();
    let url = stage.receiver.url("/elsewhere");
    let session = stage.session(
        Sdk::Node2,
        &[
            call(
                "update_webhook",
                json!({ "id": webhook, "changes": { "url": url }, "dry_run": true }),
            ),
            call(
                "update_webhook",
                json!({ "id": webhook, "changes": { "url": url }, "confirm": 0 }),
            ),
            call("rotate_secret", json!({ "id": webhook })),
            call("rotate_secret", json!({ "id": webhook, "confirm": 0 })),
        ],
    );
    assert_eq!(session.data(0)["confirm"], 0);
    assert_eq!(session.data(1)["url"], *url);
    assert!(session.error(2).contains("needs confirmation"), "{session:#?}");
    let path = session.data(3)["secret_file"].as_str().unwrap();
    let secret = std::fs::read_to_string(path).unwrap();
    assert!(!format!("{session:?}").contains("whsec_"));
    stage.dispatcher.post_event("user.created");
    let arrived = stage.receiver.wait(1);
    assert_eq!(arrived[0].path(), "/elsewhere");
    arrived[0].verify(secret.trim());
}

#[test]
fn over_http_a_person_is_asked_by_clients_of_the_present_version() {
    let stage = Stage::new();
    stage.failed(1);
    stage.receiver.status(200);
    let served = stage.serve();
    let steps = json!([call("redeliver_matching", json!({}))]);
    // A client with a session cannot be asked without one, so that the number is needed.
    let old =
        super::Session::of(Sdk::Node, served.task(json!({ "steps": steps, "answer": yes() })));
    assert!(old.error(0).contains("confirm: 1"), "{old:#?}");
    assert!(old.questions.is_empty());
    let new =
        super::Session::of(Sdk::Node2, served.task(json!({ "steps": steps, "answer": yes() })));
    assert_eq!(new.data(0)["total"]["count"], 1);
    assert_eq!(new.questions.len(), 1);
    wait::until("the redelivery", || (stage.receiver.count() > 1).then_some(()));
}

#[test]
fn one_answer_serves_one_call_of_the_same_tool_and_arguments() {
    let stage = Stage::new();
    let [webhook, other] = [(); 2].map(|()| stage.webhook());
    let served = stage.serve();
    let send = |id: &str, state: Option<&serde_json::Value>| {
        let meta = json!({
            "io.modelcontextprotocol/protocolVersion": "2026-07-28",
            "io.modelcontextprotocol/clientInfo": { "name": "a-test", "version": "1" },
            "io.modelcontextprotocol/clientCapabilities": { "elicitation": { "form": {} } },
        });
        let mut params =
            json!({ "name": "rotate_secret", "arguments": { "id": id }, "_meta": meta });
        if let Some(state) = state {
            params["requestState"] = state.clone();
            params["inputResponses"] = json!({ "approve": yes() });
        }
        let message =
            json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params });
        let request = Request::post("/mcp", message.to_string())
            .host(&served.address)
            .field("Authorization", &format!("Bearer {}", super::BEARER))
            .field("Accept", "application/json, text/event-stream")
            .field("Content-Type", "application/json")
            .field("MCP-Protocol-Version", "2026-07-28")
            .field("Mcp-Method", "tools/call")
            .field("Mcp-Name", "rotate_secret");
        let answer = Client::connect(&served.address).call(&request).expect(200).json();
        answer["result"].clone()
    };
    let asked = send(&webhook, None);
    assert_eq!(asked["resultType"], "input_required", "{asked:#}");
    let state = &asked["requestState"];
    let elsewhere = send(&other, Some(state));
    assert_eq!(elsewhere["resultType"], "input_required", "{elsewhere:#}");
    let forged = send(&webhook, Some(&json!(format!("{}x", state.as_str().unwrap()))));
    assert_eq!(forged["resultType"], "input_required", "{forged:#}");
    let done = send(&webhook, Some(state));
    assert!(done["structuredContent"]["secret_file"].is_string(), "{done:#}");
    let again = send(&webhook, Some(state));
    assert_eq!(again["resultType"], "input_required", "{again:#}");
}
