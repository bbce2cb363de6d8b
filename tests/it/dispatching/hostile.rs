//! Slow, broken and malicious receivers harm only their own deliveries.

use std::time::Duration;

use weir_tests::answer::{Answer, Gate};
use weir_tests::receiver::{Receiver, generous, hostile};
use weir_tests::wait;

use super::{Stage, attempts, text};

/// The possible outcomes of a hostile response, by the name of the response, and how the words for
/// each begin.
const OUTCOMES: [(&str, &[(&str, &str)]); 9] = [
    ("hangs", &[("timeout", "the request was sent, and no answer came in time")]),
    ("hangs up", &[("connection", "the connection was closed before the first byte")]),
    ("resets", &[("connection", "the connection was reset before the first byte")]),
    ("speaks no HTTP", &[("connection", "the answer was no HTTP")]),
    ("never ends a head", &[SLOW, LONG]),
    ("sends fields for ever", &[SLOW, LONG]),
    ("drips a head", &[("timeout", "the request was sent"), SLOW]),
    ("redirects", &[("status_302", "answered 302, a redirect, which is not followed")]),
    ("is busy", &[("status_503", "answered 503, which is not 2xx")]),
];
const SLOW: (&str, &str) = ("timeout", "the answer's headers did not end in time, after ");
const LONG: (&str, &str) = ("connection", "the answer's headers were too long");

#[test]
fn each_failure_is_classified_and_ends_by_the_deadline() {
    let stage = Stage::with(|config| {
        config
            .with("[egress]", "deadline = \"1s\"")
            .with("[retry]", "delays = [\"60s\"]\ngive_up_after = \"48h\"")
    });
    let receivers: Vec<(&str, Receiver)> = hostile()
        .into_iter()
        .map(|(name, answer)| {
            let receiver = Receiver::start();
            receiver.upstream().always(answer);
            (name, receiver)
        })
        .collect();
    let made: Vec<_> = receivers
        .iter()
        .map(|(name, one)| {
            (*name, stage.dispatcher.create_webhook(&one.url("/"), &["user.created"]))
        })
        .collect();
    stage.dispatcher.post_event("user.created");
    let acme = stage.dispatcher.acme();
    for (name, webhook) in made {
        let filter = format!("webhook={}", webhook.id);
        let tried = wait::until("an attempt that has ended", || {
            acme.deliveries(&filter).into_iter().find(|one| one["attempts"] == 1)
        });
        let delivery = acme.delivery(text(&tried, "id"));
        let (_, outcome) = attempts(&delivery).remove(0);
        let allowed = OUTCOMES.iter().find(|(known, _)| *known == name).unwrap().1;
        let error = text(&delivery["attempt_log"][0], "error");
        let is_it = |(known, words): &(&str, &str)| *known == outcome && error.starts_with(words);
        assert!(allowed.iter().any(is_it), "{name}: {delivery}");
        let took = delivery["attempt_log"][0]["duration_ms"].as_u64().unwrap();
        assert!(took < 3_000, "{name} took {took} ms");
    }
}

#[test]
fn a_2xx_in_time_is_a_success_whatever_its_body_does() {
    let stage = Stage::new();
    for (name, answer) in generous() {
        let receiver = Receiver::start();
        receiver.upstream().always(answer);
        let webhook = stage.dispatcher.create_webhook(&receiver.url("/"), &["user.created"]);
        let id = stage.dispatcher.post_event("user.created");
        let acme = stage.dispatcher.acme();
        let delivery = acme.wait_for_delivery(&id, |one| one["ended_at"].is_string());
        assert_eq!((&delivery["state"], &delivery["attempts"]), (&"delivered".into(), &1.into()));
        let path = format!("/webhooks/{}", webhook.id);
        acme.call("DELETE", &path, None).expect(204);
        assert_eq!(receiver.count(), 1, "{name}");
    }
}

#[test]
fn endless_responses_leave_memory_flat() {
    let stage = Stage::new();
    let endless = "HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n";
    stage.receiver.answer(move |request| match request.target().as_slice() {
        b"/body" => Answer::script().send(endless).flood(u64::MAX),
        _ => Answer::script().send("HTTP/1.1 200 OK\r\nX: ").flood(u64::MAX),
    });
    stage.webhook("/body", &["user.created"]);
    stage.webhook("/head", &["user.created"]);
    stage.dispatcher.post_events("user.created", 20);
    stage.receiver.wait(40);
    let early = stage.dispatcher.resident_bytes();
    stage.dispatcher.post_events("user.created", 200);
    stage.receiver.wait(400);
    let grown = stage.dispatcher.resident_bytes().saturating_sub(early);
    // A response head may have 64 KiB, and an endpoint 500 attempts in flight: that is 32 MiB of
    // heads, 10 MiB of connections, and 8 MiB of pages that readers keep.
    assert!(grown < 64 << 20, "grew by {} MiB over 400 endless answers", grown >> 20);
}

#[test]
fn a_healthy_receiver_is_served_at_once_while_others_hang() {
    let stage = Stage::with(|config| config.with("[egress]", "deadline = \"8s\""));
    let never = Gate::new();
    let answer = Answer::script().wait(&never);
    stage.receiver.answer(move |request| match request.target().as_slice() {
        b"/healthy" => Answer::status(200),
        _ => answer.clone(),
    });
    // A workspace has twenty webhooks at most, the healthy one among them.
    for number in 0..19 {
        stage.webhook(&format!("/hangs/{number}"), &["plan.changed"]);
    }
    stage.webhook("/healthy", &["user.created"]);
    stage.dispatcher.post_events("plan.changed", 20);
    stage.receiver.wait(20);
    let mut slowest = 0;
    for number in 1..=20 {
        let posted = wait::unix_millis();
        stage.dispatcher.post_event("user.created");
        let arrived = wait::until("the event at the healthy one", || {
            let there = stage.receiver.deliveries_at("/healthy");
            there.get(number - 1).map(|one| one.at_ms)
        });
        slowest = slowest.max(arrived.saturating_sub(posted));
    }
    assert!(slowest < 2_000, "{slowest} ms while others took 8 s");
    never.open();
}

#[test]
fn redirects_are_failures_and_are_never_followed() {
    let (stage, elsewhere) = (Stage::new(), Receiver::start());
    let location = elsewhere.url("/stolen");
    stage.receiver.answer(move |request| {
        let status = String::from_utf8(request.target()).unwrap()[1..].parse().unwrap();
        Answer::status(status).field("Location", &location)
    });
    for status in [301, 302, 303, 307, 308] {
        stage.webhook(&format!("/{status}"), &["user.created"]);
    }
    stage.dispatcher.post_event("user.created");
    let acme = stage.dispatcher.acme();
    for failed in acme.wait_for_count("failed_permanent", 5) {
        assert!(attempts(&acme.delivery(text(&failed, "id"))).len() > 1);
    }
    elsewhere.upstream().assert_untouched();
}

#[test]
fn an_address_that_may_not_be_called_is_never_connected_to() {
    let mut stage = Stage::new();
    stage.webhook("/hook", &["user.created"]);
    stage.dispatcher.stop();
    let narrow = weir_tests::dispatcher::config().with("[egress]", "allow_networks = []");
    stage.dispatcher.folder().write(weir_tests::dispatcher::CONFIG, &narrow.to_string());
    stage.dispatcher.start_again();
    let id = stage.dispatcher.post_event("user.created");
    let acme = stage.dispatcher.acme();
    let failed = acme.wait_for_delivery(&id, |one| one["attempts"].as_u64() >= Some(1));
    assert_eq!(attempts(&failed)[0].1, "blocked_address", "{failed}");
    stage.receiver.upstream().assert_untouched();
    // A name is judged by the address that it resolves to.
    let port = stage.receiver.upstream().address().rsplit(':').next().unwrap().to_owned();
    let url = format!("http://localhost:{port}/hook");
    let body = serde_json::json!({ "url": url, "events": ["user.created"] });
    acme.post("/webhooks", &body).expect_problem(422);
}

#[test]
fn a_name_that_does_not_resolve_may_be_registered_and_fails_as_dns() {
    let stage = Stage::with(|config| config.with("[egress]", "deadline = \"5s\""));
    stage.dispatcher.create_webhook("https://unknown.invalid/hook", &["user.created"]);
    let id = stage.dispatcher.post_event("user.created");
    let acme = stage.dispatcher.acme();
    let failed = acme.wait_for_delivery(&id, |one| one["attempts"].as_u64() >= Some(1));
    assert_eq!(attempts(&failed)[0].1, "dns", "{failed}");
}

#[test]
fn a_private_name_and_an_unknown_name_get_the_same_answers() {
    let stage =
        Stage::with(|config| config.with("[egress]", "deadline = \"5s\"\nallow_networks = []"));
    let acme = stage.dispatcher.acme();
    // The machine's host name resolves to one of its own addresses, if it resolves at all.
    let own = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
    let outcome = |host: &str, event: &str| {
        let body = serde_json::json!({ "url": format!("http://{host}/"), "events": [event] });
        acme.post("/webhooks", &body).expect(201);
        let id = stage.dispatcher.post_event(event);
        let failed = acme.wait_for_delivery(&id, |one| one["attempts"].as_u64() >= Some(1));
        attempts(&failed)[0].1.clone()
    };
    assert_eq!(outcome("unknown.invalid", "user.created"), "dns");
    assert_eq!(outcome(own.trim(), "plan.changed"), "dns");
}

#[test]
fn an_idle_connection_is_closed_after_its_own_timeout() {
    let stage = Stage::with(|config| {
        config.with("[server]", "head_timeout = \"1h\"\nidle_timeout = \"100ms\"")
    });
    for address in [stage.dispatcher.api_address(), stage.dispatcher.ingest_address()] {
        let mut client = weir_tests::client::Client::connect(address);
        client.send("GET /openapi.json HTTP/1.1\r\nHost: x\r\n\r\n");
        let answer = client.read_to_end();
        assert!(answer.starts_with(b"HTTP/1.1 "), "{}", String::from_utf8_lossy(&answer));
    }
}

#[test]
fn slow_clients_do_not_block_the_listeners() {
    let stage = Stage::with(|config| {
        config.with("[server]", "head_timeout = \"500ms\"\nbody_timeout = \"500ms\"")
    });
    let mut slow = weir_tests::client::Client::connect(stage.dispatcher.api_address());
    slow.send("GET /v1/workspaces/ws_acme/webhooks HTTP/1.1\r\nHost: x\r\n");
    let mut half = weir_tests::client::Client::connect(stage.dispatcher.ingest_address());
    let request = weir_tests::dispatcher::ingest_request("application/json", "{}");
    half.send(request.head_bytes());
    half.send("{");
    wait::pass(Duration::from_millis(600));
    slow.read_to_end();
    half.read_to_end();
}
