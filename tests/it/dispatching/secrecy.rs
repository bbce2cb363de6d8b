//! Secrets, tokens, bodies and URL paths appear in no log, and secrets on disk are encrypted.

use std::os::unix::fs::PermissionsExt as _;

use serde_json::json;
use weir_tests::answer::Answer;
use weir_tests::dispatcher::event;
use weir_tests::request::Request;

use super::{Stage, text};

#[test]
fn no_secret_token_body_or_path_is_ever_logged() {
    let mut stage = Stage::with(|config| config.with("[log]", "level = \"debug\""));
    stage.receiver.answer(|request| match request.target().starts_with(b"/hidden-good") {
        true => Answer::ok("hidden-answer"),
        false => Answer::status(500).body("hidden-answer"),
    });
    let good = stage.webhook("/hidden-good?token=hidden-query", &["user.created"]);
    let bad = stage.webhook("/hidden-bad", &["user.created"]);
    let acme = stage.dispatcher.acme();
    let path = format!("/webhooks/{}", bad.id);
    let change = json!({ "headers": { "authorization": "Bearer hidden-value", "x": "hidden-7" } });
    acme.call("PATCH", &path, Some(&change)).expect(200);
    let wrong = json!({ "headers": { "host": "hidden-value", "x": " hidden-value" } });
    acme.call("PATCH", &path, Some(&wrong)).expect_problem(422);
    let rotated = acme.act(&format!("/webhooks/{}:rotate-secret", good.id)).expect(200).json();
    let added = acme.act(&format!("/webhooks/{}/secrets", good.id)).expect(201).json();
    let mut sent = event("ws_acme", "user.created");
    sent["data"]["name"] = "hidden-name".into();
    stage.dispatcher.post(&sent);
    sent["data"]["password"] = "hidden-password".into();
    let refused = stage.dispatcher.ingest(&sent).text();
    assert!(!refused.contains("hidden-"), "{refused}");
    let wrong = acme.post("/webhooks", &json!({ "url": "http://hidden-user:x@x", "events": 1 }));
    assert!(wrong.status == 422);
    acme.wait_for_count("delivered", 1);
    acme.wait_for_count("failed_permanent", 1);
    let metrics = stage.dispatcher.call_admin(&Request::get("/metrics")).expect(200).text();
    stage.dispatcher.stop();

    let output =
        [stage.dispatcher.attempt_log().to_end(), stage.dispatcher.log().to_end(), metrics];
    let shown = [text(&rotated, "secret"), text(&added, "secret")];
    for secret in [&*good.secret, &bad.secret].into_iter().chain(shown) {
        for output in &output {
            assert!(!output.contains(secret.trim_start_matches("whsec_")), "{output}");
        }
    }
    for output in &output {
        assert!(!output.contains("hidden-"), "{output}");
        assert!(!output.contains("ada@example.com"), "{output}");
    }
}

#[test]
fn secrets_are_encrypted_on_disk() {
    let mut stage = Stage::new();
    let webhook = stage.webhook("/hook", &["user.created"]);
    let change = json!({ "headers": { "authorization": "Bearer hidden-value" } });
    let path = format!("/webhooks/{}", webhook.id);
    stage.dispatcher.acme().call("PATCH", &path, Some(&change)).expect(200);
    let secret = webhook.secret.trim_start_matches("whsec_").as_bytes();
    let folder = stage.dispatcher.folder();
    let mode = std::fs::metadata(folder.path("secrets.key")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    stage.dispatcher.stop();
    for entry in std::fs::read_dir(stage.dispatcher.folder().root()).unwrap() {
        let path = entry.unwrap().path();
        let bytes = std::fs::read(&path).unwrap();
        for hidden in [secret, b"hidden-value"] {
            let found = bytes.windows(hidden.len()).any(|part| part == hidden);
            assert!(!found, "a secret stands in {}", path.display());
        }
    }
}
