//! The customers' tools `listen`, `verify` and `send-test`, each checked against the others.

use serde_json::json;
use weir_tests::dispatcher::{PROGRAM, run};
use weir_tests::folder::Folder;
use weir_tests::process::{Finished, Process};
use weir_tests::receiver::{Receiver, sign};
use weir_tests::wait;

use super::{Stage, text};

const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSwMfKQ9r8GKYo=";
const BODY: &str = "{\"id\":\"evt_1\",\"type\":\"user.created\"}";

#[test]
fn verify_accepts_true_signatures_and_refuses_forged_and_stale_ones() {
    let now = wait::unix_seconds();
    let header = |t: u64, secret: &str| format!("t={t},v1={}", sign(secret, t, BODY.as_bytes()));
    verify(&header(now, SECRET), BODY).expect(0);
    let both = format!("{},v1={}", header(now, "whsec_b2xk"), sign(SECRET, now, BODY.as_bytes()));
    verify(&both, BODY).expect(0);
    for (header, body) in [
        (header(now, "whsec_b2xk"), BODY),
        (header(now, SECRET), "{}"),
        (header(now - 400, SECRET), BODY),
        (header(now + 400, SECRET), BODY),
        ("nonsense".to_owned(), BODY),
    ] {
        let finished = verify(&header, body);
        assert_eq!(finished.code, Some(1), "{header}: {}", finished.output());
        assert!(!finished.output().contains(SECRET), "{}", finished.output());
    }
}

#[test]
fn verify_with_a_public_key_accepts_its_signatures_alone() {
    let (stage, folder) = (Stage::new(), Folder::new());
    let body =
        json!({"url": stage.receiver.url("/hook"), "events": ["user.created"], "ed25519": true});
    let webhook = stage.dispatcher.acme().post("/webhooks", &body).expect(201).json();
    stage.dispatcher.post_event("user.created");
    let delivered = stage.receiver.wait(1).remove(0);
    folder.write("body", std::str::from_utf8(&delivered.body).expect("JSON"));
    let [id, timestamp, signatures] =
        ["webhook-id", "webhook-timestamp", "webhook-signature"].map(|name| delivered.field(name));
    let verify = |key: &str, id: &str| {
        let what = ["verify", "--public-key", key, "--header", &signatures, "--id", id];
        let rest = ["--timestamp", &timestamp, "--body-file", "body"];
        run(&folder, &[&what[..], &rest].concat())
    };
    let key = text(&webhook, "public_key");
    verify(key, &id).expect(0);
    let forged = verify(key, "evt_other");
    assert_eq!(forged.code, Some(1), "{}", forged.output());
    assert!(forged.output().contains("no v1a matches"), "{}", forged.output());
}

#[test]
fn send_test_sends_what_a_receiver_must_verify() {
    let (folder, receiver) = (Folder::new(), Receiver::start());
    let url = receiver.url("/hook");
    run(&folder, &["send-test", "--secret", SECRET, "--url", &url]).expect(0);
    let delivered = receiver.wait(1).remove(0);
    delivered.verify(SECRET);
    delivered.verify_standard(SECRET);
    assert!(delivered.envelope()["type"].is_string());
    receiver.status(500);
    let failed = run(&folder, &["send-test", "--secret", SECRET, "--url", &url]);
    assert_eq!(failed.code, Some(1), "{}", failed.output());
    assert!(failed.output().contains("500"), "{}", failed.output());
    let unnamed = ["send-test", "--secret", SECRET, "--url", &url, "--config", "gone.toml"];
    assert_eq!(run(&folder, &unnamed).code, Some(64));
}

#[test]
fn listen_verifies_prints_and_forwards_what_send_test_sends() {
    let (folder, receiver) = (Folder::new(), Receiver::start());
    let forward = receiver.url("/local");
    let arguments = ["--secret", SECRET, "--address", "127.0.0.1:0", "--forward", &forward];
    let listener = Process::start(PROGRAM, &folder, &[&["listen"], &arguments[..]].concat());
    let url = url_of(&listener);
    run(&folder, &["send-test", "--secret", SECRET, "--url", &url]).expect(0);
    let forwarded = receiver.wait(1).remove(0);
    assert_eq!(forwarded.path(), "/local");
    forwarded.verify(SECRET);
    let id = forwarded.id();
    wait::until("the event on standard output", || {
        listener.stdout().text().contains(&id).then_some(())
    });

    let forged = run(&folder, &["send-test", "--secret", "whsec_b2xk", "--url", &url]);
    assert_eq!(forged.code, Some(1), "{}", forged.output());
    assert_eq!(receiver.count(), 1, "what does not verify is not forwarded");
    receiver.status(503);
    let failed = run(&folder, &["send-test", "--secret", SECRET, "--url", &url]);
    assert!(failed.output().contains("503"), "its answer is passed back: {}", failed.output());
}

#[test]
fn listen_answers_the_status_that_is_set_and_shows_headers() {
    let folder = Folder::new();
    let arguments = ["--secret", SECRET, "--address", "127.0.0.1:0", "--status", "503"];
    let listener = Process::start(PROGRAM, &folder, &[&["listen"], &arguments[..]].concat());
    let url = url_of(&listener);
    let failed = run(&folder, &["send-test", "--secret", SECRET, "--url", &url]);
    assert!(failed.output().contains("answered 503, which is not 2xx"), "{}", failed.output());
    wait::until("the headers on standard output", || {
        listener.stdout().text().contains("\nservice-signature: t=").then_some(())
    });
}

/// The URL that a listener prints.
#[track_caller]
fn url_of(listener: &Process) -> String {
    wait::until("where it listens", || {
        let printed = listener.stdout().text();
        let (_, after) = printed.split_once("listening on ")?;
        Some(format!("{}/", after.lines().next()?.trim_end_matches('/')))
    })
}

#[track_caller]
fn verify(header: &str, body: &str) -> Finished {
    let folder = Folder::new();
    folder.write("body", body);
    let arguments = ["verify", "--secret", SECRET, "--header", header, "--body-file", "body"];
    run(&folder, &arguments)
}
