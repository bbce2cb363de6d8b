//! A webhook's life: registered, read, changed, pinged, its secret rotated, deleted.

use std::time::Duration;

use serde_json::json;
use weir_tests::answer::Answer;
use weir_tests::dispatcher::{CONFIG, QUIET, TOKENS, config, entry, tokens};
use weir_tests::receiver::Delivered;
use weir_tests::wait;

use super::{Stage, text, time};

const EVENTS: [&str; 11] = [
    "user.created",
    "user.updated",
    "user.deleted",
    "session.started",
    "session.ended",
    "tenant.created",
    "tenant.deleted",
    "plan.changed",
    "subscription.past_due",
    "mau.threshold_warning",
    "signups_blocked",
];

#[test]
fn the_secret_is_shown_once_and_never_again() {
    let stage = Stage::new();
    let acme = stage.dispatcher.acme();
    let url = stage.receiver.url("/hook");
    let created = acme.post("/webhooks", &json!({ "url": url, "events": EVENTS })).expect(201);
    let created = created.json();
    assert!(text(&created, "id").starts_with("wh_"), "{created}");
    let secret = text(&created, "secret").to_owned();
    assert!(secret.starts_with("whsec_") && secret.len() >= 38, "{secret}");
    assert_eq!(created["url"], url);
    assert_eq!(created["events"], json!(EVENTS));
    assert!(time(&created, "created_at").abs_diff(wait::unix_millis()) < 60_000, "{created}");

    let id = text(&created, "id");
    let read = acme.get(&format!("/webhooks/{id}")).expect(200);
    let has = |text: &str| read.text().contains(text);
    assert!(!has(&secret) && !has("whsec_") && !has("\"secret\""), "{}", read.text());
    let read = read.json();
    for field in ["id", "url", "events", "created_at"] {
        assert_eq!(read[field], created[field], "{field}");
    }
    assert_eq!(read["state"], "delivering");
    let listed = acme.get("/webhooks").expect(200);
    assert!(!listed.text().contains("secret"), "{}", listed.text());
    let listed = listed.json()["data"].take();
    assert_eq!(listed.as_array().map(Vec::len), Some(1), "{listed}");
    for (name, value) in listed[0].as_object().expect("an object") {
        assert_eq!(read[name], *value, "{name}");
    }
}

#[test]
fn two_webhooks_never_have_the_same_secret() {
    let stage = Stage::new();
    let [one, two] = ["/a", "/a"].map(|path| stage.webhook(path, &["user.created"]));
    assert_ne!(one.secret, two.secret);
    assert_ne!(one.id, two.id);
}

#[test]
fn a_webhook_gets_the_events_it_subscribed_to_and_no_others() {
    let stage = Stage::new();
    stage.webhook("/users", &["user.created", "user.deleted"]);
    stage.webhook("/all", &EVENTS);
    let ids: Vec<String> = EVENTS.map(|kind| stage.dispatcher.post_event(kind)).into();
    stage.receiver.wait(13);
    let ids_at = |path: &str| -> Vec<String> {
        let mut ids: Vec<_> =
            stage.receiver.deliveries_at(path).iter().map(Delivered::id).collect();
        ids.sort();
        ids
    };
    let mut all = ids.clone();
    all.sort();
    assert_eq!(ids_at("/all"), all);
    let mut users = vec![ids[0].clone(), ids[2].clone()];
    users.sort();
    assert_eq!(ids_at("/users"), users);
}

#[test]
fn a_url_that_may_not_be_called_is_refused_with_its_reason() {
    let stage = Stage::with(|config| {
        config.with("[egress]", "allow_http = false\nallow_networks = []\nports = []")
    });
    let long = format!("https://example.com/{}", "x".repeat(2_048));
    for url in [
        "http://example.com/",
        "https://user:password@example.com/",
        "https://example.com/#fragment",
        "https://example.com:22/",
        "https://example.com:6667/",
        "https://127.0.0.1/",
        "https://[::1]/",
        "https://[::ffff:10.0.0.1]/",
        "https://[64:ff9b::a00:1]/",
        "https://[2002:0a00:0001::]/",
        "https://169.254.169.254/latest/meta-data",
        "https://0x7f.1/",
        "https://2130706433/",
        "https://10.1.2.3/",
        "ftp://example.com/",
        "/relative",
        "",
        &long,
    ] {
        let body = json!({ "url": url, "events": ["user.created"] });
        let problem = stage.dispatcher.acme().post("/webhooks", &body).expect_problem(422);
        assert!(problem.to_string().contains("/url"), "{url}: {problem}");
    }
    assert!(stage.dispatcher.acme().list("/webhooks", "").is_empty());
}

#[test]
fn a_webhook_of_a_workspace_that_no_event_can_name_is_refused() {
    let stage = Stage::new();
    let any = entry("any", "hidden-token-of-any", "*", r#"["webhooks:write"]"#);
    let tokens = format!("{}{any}", tokens());
    stage.dispatcher.folder().write(TOKENS, &tokens);
    stage.dispatcher.reload().expect(200);
    let body = json!({ "url": stage.receiver.url("/hook"), "events": ["user.created"] });
    for workspace in ["acme", "ws_", "WS_acme", "tn_1"] {
        let api = stage.dispatcher.api("hidden-token-of-any", workspace);
        let problem = api.post("/webhooks", &body).expect_problem(422);
        assert_eq!(problem["type"], "urn:weir:problem:invalid-workspace", "{problem}");
        assert!(text(&problem, "detail").contains("`ws_` and letters"), "{problem}");
    }
    let api = stage.dispatcher.api("hidden-token-of-any", "ws_any");
    api.post("/webhooks", &body).expect(201);
}

#[test]
fn a_platform_may_name_its_workspaces_and_tenants_otherwise() {
    let stage = Stage::new();
    let shipped = include_str!("../../../config/events.toml");
    let prefixed = shipped.replace("\"ws_\"", "\"\"").replace("\"tn_\"", "\"unit-\"");
    stage.dispatcher.folder().write("events.toml", &prefixed);
    let own = config().with("[events]", "file = \"events.toml\"");
    stage.dispatcher.folder().write(CONFIG, &own.to_string());
    let scopes = r#"["webhooks:write", "events:write"]"#;
    let shop = entry("shop", "hidden-token-of-the-shop", "shop_prod", scopes);
    stage.dispatcher.folder().write(TOKENS, &format!("{}{shop}", tokens()));
    stage.dispatcher.reload().expect(200);
    let body = json!({ "url": stage.receiver.url("/hook"), "events": ["user.created"] });
    let api = stage.dispatcher.api("hidden-token-of-the-shop", "shop_prod");
    api.post("/webhooks", &body).expect(201);
    let event = |tenant: &str| {
        let data = json!({ "user_id": "u_1", "email": "a@b.example", "name": "A", "via_idp": "x" });
        json!({ "type": "user.created", "workspace_id": "shop_prod", "tenant_id": tenant,
                "data": data })
    };
    stage.dispatcher.ingest(&event("unit-7")).expect(202);
    let problem = stage.dispatcher.ingest(&event("tn_7")).expect_problem(422);
    assert!(problem.to_string().contains("must be `unit-` and letters"), "{problem}");
    let delivered = stage.receiver.wait(1).remove(0);
    assert_eq!(delivered.envelope()["workspace_id"], "shop_prod");
}

#[test]
fn what_is_no_webhook_is_refused_field_by_field() {
    let stage = Stage::new();
    let url = stage.receiver.url("/");
    let acme = stage.dispatcher.acme();
    for (body, pointer) in [
        (json!({ "url": url, "events": [] }), "/events"),
        (json!({ "url": url, "events": ["user.created", "user.exploded"] }), "/events/1"),
        (json!({ "url": url, "events": ["webhook.ping"] }), "/events/0"),
        (json!({ "url": url, "events": "user.created" }), "/events"),
        (json!({ "url": url }), "/events"),
        (json!({ "events": ["user.created"] }), "/url"),
        (json!({ "url": 7, "events": ["user.created"] }), "/url"),
        (json!({ "url": url, "events": ["user.created"], "colour": "red" }), "/colour"),
    ] {
        let problem = acme.post("/webhooks", &body).expect_problem(422);
        assert!(problem.to_string().contains(pointer), "{body}: {problem}");
    }
    for path in ["/webhooks/wh_nonsense", "/webhooks/42", "/deliveries/dlv_nonsense"] {
        acme.get(path).expect_problem(404);
    }
    let other_way = acme.call("PUT", "/webhooks", Some(&json!({}))).expect(405);
    assert!(other_way.field("allow").is_some_and(|allow| allow.contains("POST")));
}

#[test]
fn a_changed_webhook_uses_its_new_settings() {
    let stage = Stage::new();
    let webhook = stage.webhook("/old", &["user.created"]);
    let acme = stage.dispatcher.acme();
    let path = format!("/webhooks/{}", webhook.id);
    let change = json!({ "url": stage.receiver.url("/new") });
    let changed = acme.call("PATCH", &path, Some(&change)).expect(200).json();
    assert_eq!(changed["url"], change["url"]);
    assert_eq!(changed["events"], json!(["user.created"]), "what was not named stays");
    stage.dispatcher.post_event("user.created");
    let delivered = stage.receiver.wait(1).remove(0);
    assert_eq!(delivered.path(), "/new");
    delivered.verify(&webhook.secret);

    let change = json!({ "events": ["plan.changed"] });
    acme.call("PATCH", &path, Some(&change)).expect(200);
    stage.dispatcher.post_event("user.created");
    let id = stage.dispatcher.post_event("plan.changed");
    assert_eq!(stage.receiver.wait(2)[1].id(), id);
    let wrong = json!({ "url": "nonsense" });
    acme.call("PATCH", &path, Some(&wrong)).expect_problem(422);
}

#[test]
fn waiting_deliveries_are_sent_to_the_new_url() {
    let stage = Stage::new();
    stage.receiver.answer(|request| match request.target().as_slice() {
        b"/old" => Answer::status(500),
        _ => Answer::status(200),
    });
    let webhook = stage.webhook("/old", &["user.created"]);
    let id = stage.dispatcher.post_event("user.created");
    stage.receiver.wait(1);
    let change = json!({ "url": stage.receiver.url("/new") });
    let path = format!("/webhooks/{}", webhook.id);
    stage.dispatcher.acme().call("PATCH", &path, Some(&change)).expect(200);
    let delivery =
        stage.dispatcher.acme().wait_for_delivery(&id, |one| one["ended_at"].is_string());
    assert_eq!(delivery["state"], "delivered", "{delivery}");
    assert_eq!(stage.receiver.deliveries_at("/new").len(), 1);
}

#[test]
fn a_deleted_webhook_is_not_found_and_gets_nothing_more() {
    let stage = Stage::new();
    stage.receiver.status(500);
    let webhook = stage.webhook("/hook", &["user.created"]);
    stage.dispatcher.post_event("user.created");
    stage.receiver.wait(1);
    let path = format!("/webhooks/{}", webhook.id);
    let acme = stage.dispatcher.acme();
    acme.call("DELETE", &path, None).expect(204);
    acme.get(&path).expect_problem(404);
    acme.call("DELETE", &path, None).expect_problem(404);
    assert!(acme.list("/webhooks", "").is_empty());
    // An attempt that started before the deletion may still arrive.
    wait::pass(Duration::from_millis(300));
    stage.dispatcher.post_event("user.created");
    stage.receiver.assert_quiet(Duration::from_secs(1));
}

#[test]
fn a_ping_is_a_signed_delivery_at_once_without_a_subscription() {
    let stage = Stage::new();
    let webhook = stage.webhook("/hook", &["plan.changed"]);
    let path = format!("/webhooks/{}:ping", webhook.id);
    stage.dispatcher.acme().act(&path).expect(202);
    let delivered = stage.receiver.wait(1).remove(0);
    delivered.verify(&webhook.secret);
    delivered.verify_standard(&webhook.secret);
    let envelope = delivered.envelope();
    assert_eq!(envelope["type"], "webhook.ping");
    assert_eq!(envelope["workspace_id"], "ws_acme");
}

#[test]
fn both_secrets_sign_during_a_rotation() {
    let stage = Stage::with(|config| config.with("[secrets]", "rotation_overlap = \"2s\""));
    let webhook = stage.webhook("/hook", &["user.created"]);
    let path = format!("/webhooks/{}:rotate-secret", webhook.id);
    let rotated = stage.dispatcher.acme().act(&path).expect(200).json();
    let fresh = text(&rotated, "secret").to_owned();
    assert_eq!(rotated["id"], webhook.id.as_str());
    assert_ne!(fresh, webhook.secret);
    let until = time(&rotated, "previous_valid_until");
    assert!(until.abs_diff(wait::unix_millis() + 2_000) < 2_000, "{rotated}");

    stage.dispatcher.post_event("user.created");
    let both = stage.receiver.wait(1).remove(0);
    assert_eq!(both.signed().v1.len(), 2);
    for secret in [&fresh, &webhook.secret] {
        both.verify(secret);
        both.verify_standard(secret);
    }
    wait::until("the end of the overlap", || (wait::unix_millis() > until + 50).then_some(()));
    stage.dispatcher.post_event("user.created");
    let one = stage.receiver.wait(2).remove(1);
    assert_eq!(one.signed().v1.len(), 1);
    one.verify(&fresh);
}

#[test]
fn a_secret_signs_until_its_overlap_ends_however_often_one_rotates() {
    let stage = Stage::new();
    let webhook = stage.webhook("/hook", &["user.created"]);
    let path = format!("/webhooks/{}:rotate-secret", webhook.id);
    let acme = stage.dispatcher.acme();
    let mut secrets = vec![webhook.secret];
    // As many rotations as one overlap allows.
    for _ in 0..8 {
        secrets.push(text(&acme.act(&path).expect(200).json(), "secret").to_owned());
    }
    let refused = acme.act(&path).expect(429);
    assert!((86_000..=86_401).contains(&refused.retry_after()), "{refused:?}");
    assert_eq!(refused.json()["status"], 429, "it is a problem");
    stage.dispatcher.post_event("user.created");
    let delivered = stage.receiver.wait(1).remove(0);
    assert_eq!(delivered.signed().v1.len(), secrets.len());
    for secret in &secrets {
        delivered.verify(secret);
        delivered.verify_standard(secret);
    }
}

#[test]
fn a_workspace_has_no_more_webhooks_than_it_may() {
    let stage = Stage::with(|config| config.with("[webhooks]", "per_workspace_max = 2"));
    let acme = stage.dispatcher.acme();
    let [first, _] = ["/a", "/b"].map(|path| stage.webhook(path, &["user.created"]));
    let third = json!({ "url": stage.receiver.url("/c"), "events": ["user.created"] });
    let refused = acme.post("/webhooks", &third);
    let status = refused.status;
    assert!([403, 409, 422].contains(&status), "{status}");
    refused.expect_problem(status);
    acme.call("DELETE", &format!("/webhooks/{}", first.id), None).expect(204);
    acme.post("/webhooks", &third).expect(201);
}

#[test]
fn a_workspace_sends_no_more_tests_in_a_minute_than_it_may() {
    let stage = Stage::with(|config| config.with("[webhooks]", "checks_per_minute = 2"));
    let webhook = stage.webhook("/hook", &["user.created"]);
    let acme = stage.dispatcher.acme();
    let disabled = stage.webhook("/disabled", &["user.created"]);
    let path = format!("/webhooks/{}", disabled.id);
    acme.call("PATCH", &path, Some(&json!({ "disabled": true }))).expect(200);
    for _ in 0..3 {
        acme.act(&format!("{path}:ping")).expect_problem(409);
    }
    let ping = || acme.act(&format!("/webhooks/{}:ping", webhook.id));
    ping().expect(202);
    ping().expect(202);
    let refused = ping().expect(429);
    assert!((55..=60).contains(&refused.retry_after()), "{refused:?}");
    assert!(text(&refused.json(), "type").ends_with("too-many-tests"));
    assert_eq!(acme.deliveries("type=webhook.ping").len(), 2);
    let quiet = stage.dispatcher.api(QUIET, "ws_quiet");
    let other = quiet.create_webhook(&stage.receiver.url("/quiet"), &["user.created"]);
    quiet.act(&format!("/webhooks/{}:ping", other.id)).expect(202);
}
