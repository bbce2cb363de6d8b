//! Agents over HTTP: who may call, from where, and many that list without pause.

use serde_json::json;
use weir_tests::client::Client;
use weir_tests::request::Request;
use weir_tests::wait;

use super::{BEARER, Sdk, Served, Session, Stage, call, driven};

const LIST: &str = r#"{"jsonrpc":"2.0","id":1,"method":"tools/list"}"#;

/// A message as a client without a session posts it.
fn post(served: &Served, path: &str) -> Request {
    Request::post(path, LIST)
        .host(&served.address)
        .field("Accept", "application/json, text/event-stream")
        .field("Content-Type", "application/json")
}

#[test]
fn every_sdk_calls_over_http_with_its_bearer() {
    let stage = Stage::new();
    let webhook = stage.webhook();
    let served = stage.serve();
    for sdk in [Sdk::Node, Sdk::Node2, Sdk::Python] {
        let steps = json!([{ "do": "tools" }, call("list_webhooks", json!({})),
            call("list_webhooks", json!({ "workspace": "ws_quiet" }))]);
        let session = Session::of(sdk, served.task(json!({ "steps": steps })));
        assert_eq!(session.outcomes[0]["tools"].as_array().unwrap().len(), 17);
        assert_eq!(session.data(1)["webhooks"][0]["id"], *webhook);
        assert!(session.error(2).contains("Only the workspace ws_acme"), "{session:#?}");
    }
    let log = served.process.stderr().text();
    assert!(log.contains("tool called") && log.contains("\"agent\":\"acme\""), "{log}");
    assert!(!log.contains("hidden"), "{log}");
}

#[test]
fn a_call_without_the_bearer_from_elsewhere_or_to_elsewhere_is_refused() {
    let stage = Stage::new();
    let served = stage.serve();
    let send = |request: &Request| Client::connect(&served.address).call(request);
    let bearer = format!("Bearer {BEARER}");
    let good = || post(&served, "/mcp").field("Authorization", &bearer);
    let answer = send(&good()).expect(200);
    assert_eq!(answer.json()["result"]["tools"].as_array().unwrap().len(), 17);

    let none = send(&post(&served, "/mcp")).expect(401);
    assert_eq!(none.field("www-authenticate"), Some("Bearer"));
    send(&post(&served, "/mcp").field("Authorization", "Bearer hidden")).expect_problem(401);
    // The token of the API is no bearer.
    let token = format!("Bearer {}", weir_tests::dispatcher::ACME);
    send(&post(&served, "/mcp").field("Authorization", &token)).expect_problem(401);
    send(&post(&served, "/").field("Authorization", &bearer)).expect_problem(404);

    send(&good().host("weir.attacker.example")).expect(403);
    send(&good().field("Origin", "https://attacker.example")).expect(403);
    send(&good().field("Origin", "null")).expect(403);
    send(&good().field("Origin", "https://app.example.com")).expect(200);
    let app = good().field("Origin", "https://app.example.com");
    send(&app.field("Origin", "https://attacker.example")).expect_problem(400);
    send(&good().field("Host", "weir.attacker.example")).expect_problem(400);
    let absolute = String::from_utf8(good().head_bytes()).unwrap();
    let absolute = absolute.replace("POST /mcp", "POST http://weir.attacker.example/mcp") + LIST;
    let answer = Client::connect(&served.address).exchange(absolute);
    assert_eq!(answer.status, 400, "{answer:?}");

    let large = Request::post("/mcp", vec![b' '; 300_000]).host(&served.address);
    send(&large.field("Authorization", &bearer)).expect_problem(413);
}

#[test]
fn an_agent_that_may_only_read_is_offered_nothing_else() {
    let stage = Stage::new();
    let webhook = stage.webhook();
    let text = stage.agents("ws_acme", "token") + "read_only = true\n";
    let served = stage.serve_agents(&text, &[]);
    let steps = json!([{ "do": "tools" }, call("test_webhook", json!({ "id": webhook }))]);
    let session = Session::of(Sdk::Node, served.task(json!({ "steps": steps })));
    assert_eq!(session.outcomes[0]["tools"].as_array().unwrap().len(), 9);
    let refusal = session.outcomes[1].to_string();
    assert!(refusal.contains("this server is read-only"), "{refusal}");
    assert_eq!(stage.receiver.count(), 0);
}

#[test]
fn fifty_clients_that_list_without_pause_cost_one_call_in_five_seconds() {
    let stage = Stage::new();
    stage.webhook();
    let served = stage.serve();
    let lists = || {
        let lines = stage.gateway.access_log().json().into_iter();
        lines.filter(|line| line["path"] == "/v1/workspaces/ws_acme/webhooks").count()
    };
    wait::until("the lines of the start", || (lists() > 0).then_some(()));
    let before = lists();
    let began = wait::now();
    let task = served.task(json!({ "clients": 50, "milliseconds": 6_000 }));
    let seen = driven(Sdk::Node, task);
    let seconds = began.elapsed().as_secs_f64();
    assert_eq!(seen["errors"], 0, "{seen}");
    assert!(seen["calls"].as_u64().unwrap() > 500, "{seen}");
    let calls = lists() - before;
    let most = (seconds / 5.0) as usize + 1;
    assert!((2..=most).contains(&calls), "{calls} calls in {seconds} s for {seen}");
}

#[test]
fn a_client_reaches_it_through_the_gateways_shipped_route() {
    let stage = Stage::new();
    let webhook = stage.webhook();
    let served = stage.serve();
    let front = Stage::with(|text| text.replace("127.0.0.1:9006", &served.address));
    let (_, port) = front.gateway.http().rsplit_once(':').unwrap();
    // The name reaches this machine, but Node would ask a resolver.
    let bearer = format!("Bearer {BEARER}");
    let request = post(&served, "/mcp").host("agent.localhost").field("Authorization", &bearer);
    let refused = Client::connect(&format!("127.0.0.1:{port}")).call(&request);
    assert_eq!(refused.expect(403).allowance().resource, "agent");
    drop(served);
    let named = stage.serve_as(&["--host", "agent.localhost"]);
    let front = Stage::with(|text| text.replace("127.0.0.1:9006", &named.address));
    let call =
        r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"list_webhooks"}}"#;
    let request = Request::post("/mcp", call)
        .host("agent.localhost")
        .field("Accept", "application/json, text/event-stream")
        .field("Content-Type", "application/json")
        .field("Authorization", &bearer);
    let answer = front.gateway.client().call(&request).expect(200);
    let listed = &answer.json()["result"]["structuredContent"]["webhooks"];
    assert_eq!(listed[0]["id"], *webhook);
}
