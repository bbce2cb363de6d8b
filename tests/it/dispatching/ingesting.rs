//! Events are posted one at a time, as an array or as JSON lines; a call is accepted whole and
//! once, or refused with every reason.

use serde_json::{Value, json};
use weir_tests::client::Client;
use weir_tests::dispatcher::{CONFIG, config, event, ingest_request};
use weir_tests::response::Response;

use super::{Stage, text, time};

#[test]
fn an_envelope_is_what_the_contract_shows() {
    let stage = Stage::new();
    stage.webhook("/hook", &["user.created"]);
    let sent = event("ws_acme", "user.created");
    let id = stage.dispatcher.post(&sent);
    assert!(id.starts_with("evt_"), "{id}");
    let delivered = stage.receiver.wait(1).remove(0);
    assert_eq!(delivered.head.start, "POST /hook HTTP/1.1");
    assert!(delivered.field("content-type").starts_with("application/json"));
    let envelope = delivered.envelope();
    assert_eq!(envelope["id"], id.as_str());
    for field in ["type", "workspace_id", "tenant_id", "data"] {
        assert_eq!(envelope[field], sent[field], "{field}");
    }
    assert!(time(&envelope, "created_at").abs_diff(delivered.at_ms) < 60_000);
    assert_eq!(envelope.as_object().unwrap().len(), 6, "{envelope}");
}

#[test]
fn a_json_array_and_json_lines_are_both_accepted() {
    let stage = Stage::new();
    stage.webhook("/hook", &["user.created"]);
    stage.dispatcher.post_events("user.created", 3);
    let line = event("ws_acme", "user.created").to_string();
    let lines = format!("{line}\n{line}\n\n{line}\n");
    for media_type in ["application/x-ndjson", "application/ndjson"] {
        let answer = stage.dispatcher.ingest_raw(media_type, &lines).expect(202).json();
        assert_eq!(answer["events"].as_array().unwrap().len(), 3, "{answer}");
    }
    stage.receiver.wait(9);
    let most: Value = vec![event("ws_acme", "plan.changed"); 1_000].into();
    let answer = stage.dispatcher.ingest(&most).expect(202).json();
    assert_eq!(answer["events"].as_array().unwrap().len(), 1_000);
}

#[test]
fn the_same_event_twice_is_one_event() {
    let stage = Stage::new();
    stage.webhook("/hook", &["user.created"]);
    let mut given = event("ws_acme", "user.created");
    given["id"] = "evt_from_the_backend_1".into();
    let first = stage.dispatcher.ingest(&given).expect(202).json();
    assert_eq!(first["events"], json!([{ "id": "evt_from_the_backend_1", "new": true }]));
    let again = stage.dispatcher.ingest(&given).expect(202).json();
    assert_eq!(again["events"], json!([{ "id": "evt_from_the_backend_1", "new": false }]));
    // The same event with its keys in another order is the same event.
    let data = given["data"].to_string();
    let turned = format!(
        "{{\"data\":{data},\"tenant_id\":\"tn_1\",\"id\":\"evt_from_the_backend_1\",\
          \"workspace_id\":\"ws_acme\",\"type\":\"user.created\"}}"
    );
    stage.dispatcher.ingest_raw("application/json", &turned).expect(202);
    given["data"]["name"] = "Grace".into();
    stage.dispatcher.ingest(&given).expect_problem(409);
    stage.dispatcher.post_event("user.created");
    stage.receiver.wait(2);
    stage.receiver.assert_quiet(std::time::Duration::from_millis(300));
    assert_eq!(stage.receiver.count(), 2);
}

#[test]
fn a_batch_is_accepted_whole_or_refused_with_every_error() {
    let stage = Stage::new();
    stage.webhook("/hook", &["user.created"]);
    let good = event("ws_acme", "user.created");
    let mut secretive = good.clone();
    secretive["data"]["user"] = json!({ "access_token": "hidden" });
    let mut unknown = good.clone();
    unknown["type"] = "user.exploded".into();
    let mut homeless = good.clone();
    homeless.as_object_mut().unwrap().remove("workspace_id");
    let batch = json!([good, secretive, good, unknown, homeless]);
    let problem = refused(stage.dispatcher.ingest(&batch));
    let errors = problem["errors"].as_array().unwrap_or_else(|| panic!("{problem}"));
    let found: Vec<(u64, &str)> =
        errors.iter().map(|one| (one["index"].as_u64().unwrap(), text(one, "pointer"))).collect();
    let expected = [(1, "/1/data/user/access_token"), (3, "/3/type"), (4, "/4/workspace_id")];
    assert_eq!(found, expected, "{problem}");
    assert!(!problem.to_string().contains("hidden"), "{problem}");
    stage.receiver.assert_quiet(std::time::Duration::from_millis(300));
    stage.dispatcher.ingest(&json!([good, good])).expect(202);
    stage.receiver.wait(2);
}

#[test]
fn tokens_passwords_and_hashes_are_never_accepted() {
    let stage = Stage::new();
    for (key, pointer) in [
        ("access_token", "/data/list/0/access_token"),
        ("id_token", "/data/list/0/id_token"),
        ("refresh_token", "/data/list/0/refresh_token"),
        ("password", "/data/list/0/password"),
        ("Password", "/data/list/0/Password"),
        ("passwordHash", "/data/list/0/passwordHash"),
        ("password_hash", "/data/list/0/password_hash"),
    ] {
        let mut event = event("ws_acme", "user.created");
        event["data"]["list"] = json!([{ key: "hidden" }]);
        let problem = refused(stage.dispatcher.ingest(&event));
        assert!(problem.to_string().contains(pointer), "{key}: {problem}");
        assert!(!problem.to_string().contains("hidden"), "{key}: {problem}");
    }
}

#[test]
fn a_secret_is_found_by_its_shape_and_a_field_that_is_allowed_passes() {
    let stage = Stage::new();
    let own = config().with("[events]", "file = \"events.toml\"");
    let allow = "[types.\"user.updated\"]\nallow = [\"/data/reset_password_url\"]";
    let shipped = include_str!("../../../config/events.toml");
    let allowed = shipped.replace("[types.\"user.updated\"]", allow);
    stage.dispatcher.folder().write("events.toml", &allowed);
    stage.dispatcher.folder().write(CONFIG, &own.to_string());
    stage.dispatcher.reload().expect(200);
    let mut event = event("ws_acme", "user.updated");
    event["data"]["reset_password_url"] = json!("https://acme.example/reset");
    event["data"]["has_password"] = json!(true);
    event["data"]["tokens"] = json!({ "max": 4096 });
    stage.dispatcher.ingest(&event).expect(202);
    event["data"]["note"] = json!("eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.aGlkZGVu");
    let problem = refused(stage.dispatcher.ingest(&event)).to_string();
    assert!(problem.contains("/data/note") && problem.contains("a JSON web token"), "{problem}");
    assert!(!problem.contains("aGlkZGVu"), "{problem}");
    // A removed allowance no longer admits the field.
    stage.dispatcher.folder().write(CONFIG, &config().to_string());
    stage.dispatcher.reload().expect(200);
    event["data"]["note"] = json!("a note");
    let problem = refused(stage.dispatcher.ingest(&event)).to_string();
    assert!(problem.contains("/data/reset_password_url"), "{problem}");
}

#[test]
fn what_is_no_event_is_refused() {
    let stage = Stage::new();
    let good = event("ws_acme", "user.created");
    for (field, value) in [
        ("type", json!("webhook.ping")),
        ("type", json!("member.role_changed")),
        ("type", json!(null)),
        ("workspace_id", json!("acme")),
        ("tenant_id", json!("../x")),
        ("tenant_id", json!(7)),
        ("data", json!("text")),
        ("data", json!(null)),
        ("id", json!("has a space")),
        ("id", json!("evt_with.a.dot")),
        ("id", json!("")),
        ("colour", json!("red")),
    ] {
        let mut event = good.clone();
        event[field] = value;
        let problem = refused(stage.dispatcher.ingest(&event));
        assert!(problem.to_string().contains(&format!("/{field}")), "{event}: {problem}");
    }
    for body in ["", "{", "7", "null", "[]", "{}", "[7]", "\u{0}"] {
        refused(stage.dispatcher.ingest_raw("application/json", body));
    }
    refused(stage.dispatcher.ingest_raw("application/x-ndjson", &format!("{good}\nnonsense\n")));
    let doubled = good.to_string().replacen('{', "{\"type\":\"plan.changed\",", 1);
    refused(stage.dispatcher.ingest_raw("application/json", &doubled));
}

#[test]
fn too_much_is_refused_before_it_costs_memory() {
    let stage = Stage::new();
    let many: Value = vec![event("ws_acme", "user.created"); 1_001].into();
    refused(stage.dispatcher.ingest(&many));
    let mut large = event("ws_acme", "user.created");
    large["data"]["name"] = "x".repeat(256 * 1024).into();
    refused(stage.dispatcher.ingest(&large));
    let mut deep = "[".repeat(100_000);
    deep.push_str(&"]".repeat(100_000));
    refused(stage.dispatcher.ingest_raw("application/json", &deep));

    let before = stage.dispatcher.resident_bytes();
    let endless = ingest_request("application/json", "").chunks(&vec![vec![b' '; 1 << 20]; 64]);
    let mut client = Client::connect(stage.dispatcher.ingest_address());
    let answer = client.call(&endless);
    assert_eq!(answer.status, 413, "{}", answer.text());
    let grown = stage.dispatcher.resident_bytes().saturating_sub(before);
    assert!(grown < 48 << 20, "grew by {} MiB", grown >> 20);
}

#[test]
fn an_event_without_subscribers_is_accepted_and_delivered_nowhere() {
    let stage = Stage::new();
    stage.webhook("/hook", &["plan.changed"]);
    stage.dispatcher.post_event("user.created");
    stage.dispatcher.post(&event("ws_nobody", "plan.changed"));
    assert!(stage.dispatcher.acme().deliveries("").is_empty());
}

/// Checks for a refusal with a problem document; the status depends on the error.
#[track_caller]
fn refused(answer: Response) -> Value {
    let status = answer.status;
    assert!([400, 413, 422].contains(&status), "{status}: {}", answer.text());
    answer.expect_problem(status)
}
