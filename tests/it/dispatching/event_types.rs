//! The event catalogue: types that operators add, describe and remove.

use serde_json::{Value, json};
use weir_tests::client::Client;
use weir_tests::dispatcher::{ACME, CONFIG, config, run};
use weir_tests::request::Request;

use super::{Stage, text};

const EVENTS: &str = "events.toml";

/// A shop's only type.
const SHOP: &str = r#"
[types."order.paid"]
description = "An order was paid."
tenant_required = false
schema = '''{
  "type": "object",
  "required": ["order_id"],
  "additionalProperties": false,
  "properties": {
    "order_id": {"type": "string"},
    "lines": {"items": {"properties": {"cents": {"type": "integer"}}}},
    "receipt_token": {"type": "string"}
  }
}'''
example = '{"order_id": "or_1"}'
allow = ["/data/receipt_token"]
"#;

/// A type without a schema.
const SHIPPED: &str = "[types.\"order.shipped\"]\ndescription = \"It left.\"\n";

fn catalogue(stage: &Stage, text: &str) {
    stage.dispatcher.folder().write(EVENTS, text);
    let with_events = config().with("[events]", "file = \"events.toml\"");
    stage.dispatcher.folder().write(CONFIG, &with_events.to_string());
}

fn order(data: &Value) -> Value {
    json!({"type": "order.paid", "workspace_id": "ws_acme", "data": data})
}

fn listed(stage: &Stage) -> Vec<Value> {
    let request = Request::get("/v1/event-types").field("Authorization", &format!("Bearer {ACME}"));
    let answer = Client::connect(stage.dispatcher.api_address()).call(&request).expect(200);
    answer.json()["data"].as_array().expect("a list").clone()
}

#[test]
fn a_type_that_a_reload_adds_is_subscribed_to_delivered_and_verified() {
    let stage = Stage::new();
    let acme = stage.dispatcher.acme();
    let body = json!({ "url": stage.receiver.url("/shop"), "events": ["order.paid"] });
    let problem = acme.post("/webhooks", &body).expect_problem(422);
    assert!(problem.to_string().contains("/events/0"), "{problem}");
    catalogue(&stage, SHOP);
    stage.dispatcher.reload().expect(200);
    let webhook = stage.webhook("/shop", &["order.paid"]);
    let event = order(&json!({"order_id": "or_1", "receipt_token": "abc"}));
    let id = stage.dispatcher.post(&event);
    let delivered = stage.receiver.wait(1).remove(0);
    delivered.verify(&webhook.secret);
    let envelope = delivered.envelope();
    assert_eq!((text(&envelope, "id"), text(&envelope, "type")), (&*id, "order.paid"));
    assert_eq!((&envelope["tenant_id"], &envelope["data"]), (&Value::Null, &event["data"]));
    assert_eq!(acme.deliveries("type=order.paid").len(), 1);
    let document = Client::connect(stage.dispatcher.api_address()).get("/openapi.json").json();
    let hook = &document["webhooks"]["order.paid"]["post"];
    let content = &hook["requestBody"]["content"]["application/json"];
    assert_eq!(content["schema"]["properties"]["data"]["required"], json!(["order_id"]));
    assert_eq!(document["components"]["schemas"]["EventType"]["enum"], json!(["order.paid"]));
}

#[test]
fn every_violation_of_a_schema_is_named_at_its_place() {
    let stage = Stage::new();
    catalogue(&stage, SHOP);
    stage.dispatcher.reload().expect(200);
    let data = json!({"lines": [{"cents": 1}, {"cents": "2"}], "colour": "red", "password": ""});
    let batch = json!([order(&json!({"order_id": "or_1"})), order(&data)]);
    let problem = stage.dispatcher.ingest(&batch).expect_problem(422);
    let mut places: Vec<&str> =
        problem["errors"].as_array().unwrap().iter().map(|one| text(one, "pointer")).collect();
    places.sort_unstable();
    let expected =
        ["/1/data/colour", "/1/data/lines/1/cents", "/1/data/order_id", "/1/data/password"];
    assert_eq!(places, expected, "{problem}");
    let secret = order(&json!({"order_id": "or_1", "access_token": "hidden"}));
    let problem = stage.dispatcher.ingest(&secret).expect_problem(422);
    assert!(problem.to_string().contains("/data/access_token"), "{problem}");
}

#[test]
fn a_file_with_an_error_is_refused_and_the_earlier_one_stays() {
    let stage = Stage::new();
    catalogue(&stage, &SHOP.replace("\"type\": \"string\"", "\"type\": \"text\""));
    let refused = stage.dispatcher.reload();
    assert_eq!(refused.status, 422, "{}", refused.text());
    assert!(refused.text().contains("events.toml:5:10: schema of `order.paid`"));
    let finished = run(stage.dispatcher.folder(), &["check", "--config", CONFIG]).expect(64);
    assert!(finished.output().contains("events.toml:5:10: "), "{}", finished.output());
    stage.webhook("/hook", &["user.created"]);
    stage.dispatcher.post_event("user.created");
    stage.receiver.wait(1);
}

#[test]
fn a_removed_type_stays_readable_and_is_accepted_no_more() {
    let stage = Stage::new();
    catalogue(&stage, &format!("{SHOP}{SHIPPED}"));
    stage.dispatcher.reload().expect(200);
    let webhook = stage.webhook("/shop", &["order.paid", "order.shipped"]);
    stage.dispatcher.post(&order(&json!({"order_id": "or_1"})));
    stage.receiver.wait(1);
    catalogue(&stage, SHIPPED);
    stage.dispatcher.reload().expect(200);
    let acme = stage.dispatcher.acme();
    assert_eq!(acme.webhook(&webhook.id)["events"], json!(["order.paid", "order.shipped"]));
    assert_eq!(acme.deliveries("type=order.paid").len(), 1);
    let problem = stage.dispatcher.ingest(&order(&json!({"order_id": "or_2"}))).expect_problem(422);
    assert!(problem.to_string().contains("known: order.shipped"), "{problem}");
    let again = json!({"events": ["order.paid"]});
    let other = stage.webhook("/other", &["order.shipped"]);
    acme.call("PATCH", &format!("/webhooks/{}", other.id), Some(&again)).expect_problem(422);
    let path = format!("/webhooks/{}", webhook.id);
    let kept = acme.call("PATCH", &path, Some(&again)).expect(200).json();
    assert_eq!(kept["events"], again["events"], "it had the type before");
    let both = json!({"events": ["order.shipped"]});
    acme.call("PATCH", &path, Some(&both)).expect(200);
    acme.call("PATCH", &path, Some(&again)).expect_problem(422);
    let types = listed(&stage);
    let find = |name: &str| types.iter().find(|one| one["name"] == name);
    let retired = |name: &str| find(name).map(|one| one["retired"].clone());
    assert_eq!(retired("order.paid"), Some(json!(true)));
    assert_eq!(retired("order.shipped"), Some(json!(false)));
    assert_eq!(find("webhook.ping"), None);
}

#[test]
fn a_list_that_a_client_knows_is_not_sent_again() {
    let stage = Stage::new();
    let ask = |known: &str| {
        let request = Request::get("/v1/event-types").field("If-None-Match", known);
        let request = request.field("Authorization", &format!("Bearer {ACME}"));
        Client::connect(stage.dispatcher.api_address()).call(&request)
    };
    let first = ask("\"other\"").expect(200);
    let tag = first.field("etag").expect("it has a tag").to_owned();
    for known in [tag.clone(), format!("\"x\", W/{tag}"), "*".to_owned()] {
        let answer = ask(&known).expect(304);
        assert_eq!((answer.text(), answer.field("etag")), (String::new(), Some(&*tag)));
    }
    catalogue(&stage, SHOP);
    stage.dispatcher.reload().expect(200);
    assert_ne!(ask(&tag).expect(200).field("etag"), Some(&*tag));
}

#[test]
fn the_types_are_listed_as_the_file_describes_them() {
    let stage = Stage::new();
    assert_eq!(listed(&stage).len(), 11);
    catalogue(&stage, SHOP);
    stage.dispatcher.reload().expect(200);
    let types = listed(&stage);
    let paid = &types[0];
    assert_eq!(paid["name"], "order.paid");
    assert_eq!(paid["description"], "An order was paid.");
    assert_eq!(paid["tenant_required"], false);
    assert_eq!(paid["schema"]["required"], json!(["order_id"]));
    assert_eq!(paid["example"], json!({"order_id": "or_1"}));
    assert_eq!(paid["allowed_fields"], json!(["/data/receipt_token"]));
    assert_eq!(types.len(), 1, "no other was ever used: {types:?}");
    Client::connect(stage.dispatcher.api_address()).get("/v1/event-types").expect_problem(401);
}

#[test]
fn a_test_of_a_type_has_its_example_a_mark_and_no_other_effect() {
    let stage = Stage::new();
    catalogue(&stage, SHOP);
    stage.dispatcher.reload().expect(200);
    let webhook = stage.webhook("/shop", &["order.paid"]);
    let (acme, ping) = (stage.dispatcher.acme(), format!("/webhooks/{}:ping", webhook.id));
    let sent = acme.post(&ping, &json!({"type": "order.paid"})).expect(202).json();
    let delivered = stage.receiver.wait(1).remove(0);
    delivered.verify(&webhook.secret);
    assert_eq!(delivered.field("service-test"), "true");
    let envelope = delivered.envelope();
    assert_eq!((&envelope["id"], &envelope["type"]), (&sent["event_id"], &json!("order.paid")));
    assert_eq!(envelope["data"], json!({"order_id": "or_1"}));
    assert_eq!(sent["type"], "webhook.ping", "it is a test for filters and jobs");
    assert!(acme.deliveries("type=order.paid").is_empty());
    assert_eq!(acme.deliveries("type=webhook.ping").len(), 1);
    acme.act(&ping).expect(202);
    let plain = stage.receiver.wait(2).remove(1);
    assert_eq!(plain.envelope()["type"], "webhook.ping");
    assert_eq!(plain.field("service-test"), "true");
    stage.dispatcher.post(&order(&json!({"order_id": "or_1"})));
    let real = stage.receiver.wait(3).remove(2);
    assert_eq!(real.head.field("service-test"), None);
    let problem = acme.post(&ping, &json!({"type": "user.created"})).expect_problem(422);
    assert!(problem.to_string().contains("/type"), "{problem}");
}
