//! The dashboard in Chromium: `tests/real/dashboard.mjs` clicks, looks and judges.
//!
//! With `WEIR_PICTURES` set to a folder, each page is kept there as a picture.

use std::env;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use weir_tests::answer::Answer;
use weir_tests::config::Config;
use weir_tests::dispatcher::{ACME, BACKEND, CONFIG};
use weir_tests::process::{Process, finish};
use weir_tests::real;

use super::{Site, text};

/// Chromium takes some seconds to start, and a busy machine makes each page slow.
const BROWSER_PATIENCE: Duration = Duration::from_secs(240);

/// What would run, if a page took it for markup.
const HOSTILE: &str =
    "</pre></script><img data-hacked src=x onerror=\"globalThis.hacked=1\">'{{7*7}}";

/// Failing webhooks are paused, and no delivery is given up.
const PAUSING: (&str, &str) = (
    "delays = [\"100ms\", \"200ms\", \"400ms\"]\ngive_up_after = \"60s\"",
    "warn_for = \"500ms\"\npause_after = \"1s\"",
);

/// Deliveries are given up soon, and no webhook is paused.
const GIVING_UP: (&str, &str) = (
    "delays = [\"50ms\"]\ngive_up_after = \"300ms\"",
    "warn_for = \"500ms\"\npause_after = \"24h\"",
);

fn timed(config: Config, (retry, health): (&str, &str)) -> Config {
    config.with("[retry]", retry).with("[health]", health)
}

/// A page that is loaded again and again is no flood here.
fn patient(gateway: String) -> String {
    let limits = ["requests = 120", "requests = 1_200"];
    limits.into_iter().fold(gateway, |text, limit| {
        assert!(text.contains(limit), "{limit}");
        text.replace(limit, "requests = 50_000")
    })
}

/// Plays a part of the script.
#[track_caller]
fn play(site: &Site, part: &str, more: Value) {
    let text = more["hostile"].as_str().unwrap_or("{\"error\": \"queue full\"}").to_owned();
    let status = Arc::new(AtomicU16::new(200));
    site.stage.receiver.answer(move |request| {
        let target = String::from_utf8_lossy(&request.target()).into_owned();
        if let Some(wish) = target.strip_prefix("/become/") {
            status.store(wish.parse().unwrap(), Ordering::SeqCst);
            return Answer::status(200);
        }
        Answer::status(status.load(Ordering::SeqCst)).field("X-Hook", &text).body(text.clone())
    });
    let dispatcher = &site.stage.dispatcher;
    let settings = |times| timed(site.config.clone(), times).to_string();
    let mut stage = json!({
        "links": [site.link(ACME), site.link(ACME)],
        "receiver": site.stage.receiver.url(""),
        "events": format!("http://{}/internal/v1/events", dispatcher.ingest_address()),
        "backend": BACKEND,
        "settings": {
            "file": dispatcher.folder().path(CONFIG),
            "pausing": settings(PAUSING),
            "giving_up": settings(GIVING_UP),
            "reload": format!("http://{}/reload", dispatcher.admin_address()),
        },
        "chromium": "/usr/bin/chromium",
        "pictures": env::var_os("WEIR_PICTURES").map(|path| path.to_string_lossy().into_owned()),
    });
    for (name, value) in more.as_object().into_iter().flatten() {
        stage[name] = value.clone();
    }
    let mut script = real::node("tests/real/dashboard.mjs");
    let mut process = Process::spawn(part, script.arg(part).arg(stage.to_string()));
    process.wait_for_exit_within(BROWSER_PATIENCE);
    let finished = finish(process).expect(0);
    assert_eq!(finished.stdout.trim(), "done", "{}", finished.stderr);
}

#[test]
fn an_owner_creates_pauses_reactivates_and_redelivers_in_a_browser() {
    play(&Site::with(|config| timed(config, PAUSING), patient), "journey", Value::Null);
}

#[test]
fn the_same_goes_without_javascript() {
    play(&Site::with(|config| timed(config, PAUSING), patient), "plain", Value::Null);
}

#[test]
fn every_page_is_accessible_in_light_dark_and_on_a_phone() {
    play(&Site::with(|config| timed(config, GIVING_UP), patient), "pages", Value::Null);
}

#[test]
fn what_strangers_stored_is_shown_as_text() {
    let site = Site::with(|config| timed(config, GIVING_UP), patient);
    let acme = site.stage.dispatcher.acme();
    let body = json!({
        "url": site.stage.receiver.url("/%3Cimg%20data-hacked%3E?q=%22%3E%3Cimg"),
        "events": ["user.created"],
        "answers": "all",
        "description": HOSTILE,
        "metadata": { "note": HOSTILE },
        "headers": { "x-note": "<b>7f3e</b>" },
    });
    let created = acme.post("/webhooks", &body).expect(201).json();
    let webhook = text(&created, "id").to_owned();
    play(&site, "hostile", json!({ "webhook": webhook, "hostile": HOSTILE }));
}
