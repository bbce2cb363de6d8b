//! What a webhook's owner and an operator are told of its future, and what then happens.

use serde_json::Value;
use weir_tests::dispatcher::{self, ACME};
use weir_tests::wait;

use super::health::scaled;
use super::{Stage, text, time};

/// How much later than forecast something may happen: attempts take a moment, and a busy machine
/// delays them.
const LATE_MS: u64 = 2_000;

#[test]
fn a_forecast_of_a_warning_and_a_pause_comes_true() {
    let stage = Stage::with(|config| {
        scaled(config).with("[health]", "warn_for = \"3s\"\npause_after = \"6s\"")
    });
    stage.receiver.status(500);
    let webhook = stage.webhook("/hook", &["user.created"]);
    stage.dispatcher.post_event("user.created");
    let acme = stage.dispatcher.acme();
    let path = format!("/webhooks/{}", webhook.id);
    let down = wait::within(wait::PATIENCE, || {
        let shown = acme.get(&path).expect(200).json();
        (!shown["health"]["down_since"].is_null()).then_some(shown)
    });
    let down = down.expect("no failure is shown");
    assert_eq!(down["waiting"]["count"], 1);
    let if_down = &down["forecast"]["if_down"];
    let [warned, paused] = ["warned_at", "paused_at"].map(|name| time(if_down, name));
    assert!(if_down["given_up_at"].is_null());
    assert!(text(if_down, "text").contains(text(if_down, "paused_at")), "{if_down}");
    assert_eq!(
        down["forecast"]["if_up"]["seconds"].as_u64().map(|seconds| seconds < 2),
        Some(true)
    );

    acme.wait_for_state(&webhook.id, "failing");
    let late = |at: u64, forecast: u64| at.checked_sub(forecast).is_some_and(|late| late < LATE_MS);
    assert!(late(wait::unix_millis(), warned), "a warning at another time than {warned}");
    acme.wait_for_state(&webhook.id, "paused");
    let shown = acme.get(&path).expect(200).json();
    assert!(late(time(&shown["health"], "paused_since"), paused), "{shown} and {paused}");
    assert_eq!(shown["forecast"]["if_down"]["paused_at"], Value::Null);
    assert_eq!(shown["forecast"]["if_up"]["seconds"], 0);
}

#[test]
fn the_command_prints_the_forecast_of_the_api() {
    let stage = Stage::new();
    let webhook = stage.webhook("/hook", &["user.created"]);
    let folder = stage.dispatcher.folder();
    folder.write("token", ACME);
    let forecast = |id: &str| {
        let address = stage.dispatcher.api_address();
        let command = ["forecast", id, "--workspace", "ws_acme", "--token-file", "token"];
        let at = ["--api", address, "--config", dispatcher::CONFIG];
        dispatcher::run(folder, &[&command[..], &at].concat())
    };
    let printed = forecast(&webhook.id);
    assert_eq!(printed.code, Some(0), "{}", printed.stderr);
    assert!(printed.stdout.contains("waiting       0\n"), "{}", printed.stdout);
    assert!(printed.stdout.contains("leads to no warning, pause or loss"), "{}", printed.stdout);
    let unknown = forecast("wh_nothing");
    assert_eq!(unknown.code, Some(1));
    assert!(unknown.stderr.contains("answers 404"), "{}", unknown.stderr);
}
