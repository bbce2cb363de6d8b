//! The key of the secrets is replaced or lost, and every event arrives all the same.

use std::fs;

use serde_json::{Value, json};
use weir_tests::dispatcher::{CONFIG, run};
use weir_tests::mailbox::Mailbox;

use super::{Stage, text};

#[test]
fn another_key_is_put_in_place_by_a_command_and_receivers_notice_nothing() {
    let mut stage = Stage::new();
    let webhook = stage.webhook("/hook", &["user.created"]);
    let folder = stage.dispatcher.folder();
    let refused = run(folder, &["rotate-key", "--config", CONFIG]);
    assert_eq!(refused.code, Some(1), "{}", refused.output());
    assert!(refused.stderr.contains("in use by another process"), "{}", refused.stderr);
    stage.dispatcher.stop();
    let folder = stage.dispatcher.folder();
    let key = || fs::read(folder.path("secrets.key")).unwrap();
    let before = key();
    run(folder, &["rotate-key", "--config", CONFIG, "--dry-run"]).expect(0);
    assert_eq!(key(), before);
    let rotated = run(folder, &["rotate-key", "--config", CONFIG]);
    assert_eq!(rotated.code, Some(0), "{}", rotated.output());
    assert!(rotated.stdout.contains("a new key in secrets.key: 1;"), "{}", rotated.stdout);
    assert_ne!(key(), before);
    run(folder, &["check", "--config", CONFIG]).expect(0);
    stage.dispatcher.start_again();
    assert_eq!(text(&stage.dispatcher.acme().webhook(&webhook.id), "id"), webhook.id);
    stage.dispatcher.post_event("user.created");
    stage.receiver.wait(1).remove(0).verify(&webhook.secret);
}

#[test]
fn a_lost_key_loses_no_event_and_the_queue_drains_with_a_new_secret() {
    let mailbox = Mailbox::start();
    let smtp = format!("smtp = \"smtp://{}\"\nfrom = \"weir@example.com\"", mailbox.address());
    let mut stage = Stage::with(|config| config.with("[mail]", &smtp));
    let webhook = stage.webhook("/hook", &["user.created"]);
    stage.receiver.status(500);
    let first = stage.dispatcher.post_event("user.created");
    stage.receiver.wait(1);
    stage.dispatcher.kill();
    let folder = stage.dispatcher.folder();
    fs::remove_file(folder.path("secrets.key")).unwrap();
    let refused = run(folder, &["run", "--config", CONFIG]);
    assert!(refused.stderr.contains("recover-key --help"), "{}", refused.stderr);
    let recovered = run(folder, &["recover-key", "--config", CONFIG]);
    assert_eq!(recovered.code, Some(0), "{}", recovered.output());
    assert!(recovered.stdout.contains("make new secrets: 1;"), "{}", recovered.stdout);
    stage.receiver.status(204);
    stage.dispatcher.start_again();
    let second = stage.dispatcher.post_event("user.created");
    let acme = stage.dispatcher.acme();
    let shown = acme.webhook(&webhook.id);
    let state = [&shown["state"], &shown["disabled_reason"]];
    assert_eq!(state, ["disabled", "secret_lost"], "{shown}");
    assert!(shown["health"]["secret_lost_since"].is_string(), "{shown}");
    for id in [&first, &second] {
        let waits = acme.wait_for_delivery(id, |one| one["state"] == "waiting");
        assert_eq!(waits["waiting_for"]["reason"], "disabled", "{waits}");
        assert!(text(&waits["waiting_for"], "text").contains("secret"), "{waits}");
    }
    let secrets = format!("/webhooks/{}/secrets", webhook.id);
    assert_eq!(acme.get(&secrets).expect(200).json(), json!({ "data": [] }));
    let ping = acme.act(&format!("/webhooks/{}:ping", webhook.id)).expect(409).json();
    assert!(text(&ping, "detail").contains("no secret"), "{ping}");
    let mail: Value = mailbox.wait(1).remove(0);
    assert_eq!(mail["to"], json!(["owner@acme.example"]), "{mail}");
    let seen = stage.receiver.wait(1).len();
    let rotated = acme.act(&format!("/webhooks/{}:rotate-secret", webhook.id)).expect(200).json();
    assert_eq!(rotated["previous_valid_until"], Value::Null, "it went with the key");
    acme.wait_for_count("delivered", 2);
    for delivery in stage.receiver.wait(seen + 2).split_off(seen) {
        delivery.verify(text(&rotated, "secret"));
    }
}
