//! Several secrets of a webhook: added, listed by fingerprint, removed.

use serde_json::{Value, json};
use weir_tests::api::Api;

use super::{Stage, text};

/// The secrets as they are listed.
fn listed(acme: &Api<'_>, path: &str) -> Vec<Value> {
    acme.get(path).expect(200).json()["data"].as_array().expect("a list").clone()
}

#[test]
fn every_secret_signs_until_it_is_removed_and_none_is_shown_again() {
    let stage = Stage::new();
    let webhook = stage.webhook("/hook", &["user.created"]);
    let acme = stage.dispatcher.acme();
    let path = format!("/webhooks/{}/secrets", webhook.id);
    let given = format!("whsec_{}", "A".repeat(32));
    let brought = acme.post(&path, &json!({ "secret": given })).expect(201).json();
    assert_eq!(text(&brought, "secret"), given);
    let made = acme.act(&path).expect(201).json();
    let secrets = [text(&made, "secret"), &given, &webhook.secret];
    stage.dispatcher.post_event("user.created");
    let all = stage.receiver.wait(1).remove(0);
    assert_eq!(all.signed().v1.len(), 3);
    for secret in secrets {
        all.verify(secret);
        all.verify_standard(secret);
    }

    let shown = listed(&acme, &path);
    let of = |at: usize| format!("{path}/{}", text(&shown[at], "fingerprint"));
    assert_eq!((&shown[0]["fingerprint"], &shown[1]), (&made["fingerprint"], &without(&brought)));
    for one in &shown {
        let names: Vec<_> = one.as_object().expect("an object").keys().collect();
        assert_eq!(names, ["fingerprint", "created_at", "until"]);
        assert!(one["created_at"].is_string() && one["until"].is_null(), "{one}");
    }
    acme.call("DELETE", &of(1), None).expect(204);
    acme.call("DELETE", &of(1), None).expect_problem(404);
    acme.call("DELETE", &of(0), None).expect(204);
    let last = acme.call("DELETE", &of(2), None).expect(409).json();
    assert!(text(&last, "type").ends_with("last-secret"), "{last}");
    assert_eq!(listed(&acme, &path), [shown[2].clone()]);
    stage.dispatcher.post_event("user.created");
    let one = stage.receiver.wait(2).remove(1);
    assert_eq!(one.signed().v1.len(), 1);
    one.verify(&webhook.secret);
}

/// What was added, as it is listed.
fn without(added: &Value) -> Value {
    let mut added = added.clone();
    added.as_object_mut().expect("an object").remove("secret");
    added
}

#[test]
fn a_rotated_secret_is_listed_with_its_end_and_may_be_removed_before() {
    let stage = Stage::new();
    let webhook = stage.webhook("/hook", &["user.created"]);
    let acme = stage.dispatcher.acme();
    let rotated = acme.act(&format!("/webhooks/{}:rotate-secret", webhook.id)).expect(200).json();
    let path = format!("/webhooks/{}/secrets", webhook.id);
    let shown = listed(&acme, &path);
    let [until, promised] =
        [&shown[1]["until"], &rotated["previous_valid_until"]].map(|at| at.as_str().expect("it"));
    assert_eq!(until[..15], promised[..15], "to ten minutes");
    acme.call("DELETE", &format!("{path}/{}", text(&shown[1], "fingerprint")), None).expect(204);
    stage.dispatcher.post_event("user.created");
    let delivered = stage.receiver.wait(1).remove(0);
    assert_eq!(delivered.signed().v1.len(), 1);
    delivered.verify(text(&rotated, "secret"));
}

#[test]
fn a_secret_is_refused_that_signs_already_or_cannot_sign_or_is_one_too_many() {
    let stage = Stage::new();
    let webhook = stage.webhook("/hook", &["user.created"]);
    let acme = stage.dispatcher.acme();
    let path = format!("/webhooks/{}/secrets", webhook.id);
    let known = acme.post(&path, &json!({ "secret": webhook.secret })).expect(409).json();
    assert!(text(&known, "type").ends_with("known-secret"), "{known}");
    assert!(!known.to_string().contains(&webhook.secret), "{known}");
    acme.post(&path, &json!({ "secret": "whsec_short" })).expect_problem(422);
    for _ in 0..8 {
        acme.act(&path).expect(201);
    }
    let full = acme.act(&path).expect(409).json();
    assert!(text(&full, "type").ends_with("too-many-secrets"), "{full}");
    acme.act(&format!("/webhooks/{}:rotate-secret", webhook.id)).expect_problem(409);
    assert_eq!(listed(&acme, &path).len(), 9);
}
