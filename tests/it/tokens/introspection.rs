//! Tokens that are asked about: how often, by whom, and what becomes of no answer.

use std::thread;

use serde_json::{Value, json};
use weir_tests::answer::{Answer, Gate};
use weir_tests::gateway;
use weir_tests::response::Response;
use weir_tests::upstream::Upstream;
use weir_tests::wait;
use weir_tests::world::World;

use super::bearing;

const TARGET: &str = "/v1/workspaces/ws_acme/users";

/// A world whose control plane asks a server about tokens.
struct Asked {
    world: World,
    server: Upstream,
}

impl Asked {
    #[track_caller]
    fn new(lines: &str) -> Self {
        Self::with(lines, 4_000)
    }

    /// The same, where an address may fail so many times a minute.
    #[track_caller]
    fn with(lines: &str, failures: u32) -> Self {
        let server = Upstream::start();
        server.always(active(json!({})));
        let url = format!("url = \"http://{}/introspect\"\n{lines}", server.address());
        let world = World::with(|config| {
            config
                .with("[identity]", "verify = \"introspection\"\nplanes = [\"control\"]")
                .with("[identity.introspection]", &url)
                .with("[limits.workspace]", "requests = 4000")
                .with("[limits.address]", &format!("requests = {failures}"))
        });
        Self { world, server }
    }

    #[track_caller]
    fn get(&self, token: &str) -> Response {
        self.world.call(&bearing(TARGET, token))
    }

    fn questions(&self) -> usize {
        self.server.requests().len()
    }
}

fn active(more: Value) -> Answer {
    let mut says = json!({ "active": true, "workspace_id": "ws_acme" });
    says.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    Answer::ok(says.to_string())
}

fn inactive() -> Answer {
    Answer::ok("{\"active\":false}")
}

#[test]
fn a_hundred_requests_at_once_with_one_token_ask_one_question() {
    for (answer, status) in [(active(json!({})), 200), (inactive(), 401)] {
        let asked = Asked::new("");
        let gate = Gate::new();
        asked.server.always(Answer::script().wait(&gate).and(answer));
        thread::scope(|scope| {
            let running: Vec<_> =
                (0..100).map(|_| scope.spawn(|| asked.get("opaque").status)).collect();
            asked.server.wait_for_requests(1);
            wait::until("all to be in flight", || {
                let in_flight = asked.world.gateway.metric("weir_gateway_requests_in_flight");
                (in_flight >= 100.0).then_some(())
            });
            gate.open();
            assert!(running.into_iter().all(|one| one.join().unwrap() == status));
        });
        asked.get("opaque").expect(status);
        assert_eq!(asked.questions(), 1);
    }
}

#[test]
fn a_question_is_a_form_and_says_who_asks() {
    let asked = Asked::new("");
    asked.world.gateway.folder().write("secret", "p+q/%\nnot this\n");
    let config = asked.world.config().with(
        "[identity.introspection]",
        "client_id = \"weir:1\"\nclient_secret_file = \"secret\"",
    );
    asked.world.gateway.write_config(&config.to_string());
    asked.world.gateway.reload().expect(200);
    asked.get("a+b/c~d==").expect(200);
    let question = asked.server.only();
    assert_eq!(question.head.start, "POST /introspect HTTP/1.1");
    assert_eq!(question.head.field("content-type"), Some("application/x-www-form-urlencoded"));
    assert_eq!(question.body, b"token=a%2Bb%2Fc%7Ed%3D%3D&token_type_hint=access_token");
    // printf 'weir%%3A1:p%%2Bq%%2F%%25' | base64
    assert_eq!(question.head.field("authorization"), Some("Basic d2VpciUzQTE6cCUyQnElMkYlMjU="));

    asked.world.gateway.folder().write("secret", "another\n");
    asked.world.gateway.reload().expect(200);
    asked.get("a+b/c~d==").expect(200);
    assert_ne!(
        asked.server.last().head.field("authorization"),
        question.head.field("authorization")
    );
}

#[test]
fn what_the_server_says_is_held_against_the_settings() {
    let asked = Asked::new(
        "issuer = \"https://id.test\"\naudience = [\"api\"]\nttl = \"1m\"\nnegative_ttl = \"1m\"",
    );
    let ours = |more: Value| {
        let mut says = json!({ "iss": "https://id.test", "aud": ["api"] });
        says.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        active(says)
    };
    let now = wait::unix_seconds();
    for (nth, (answer, status)) in [
        (ours(json!({})), 200),
        (ours(json!({ "workspace_id": "ws_quiet" })), 403),
        (ours(json!({ "exp": now - 1 })), 401),
        (ours(json!({ "nbf": now + 60 })), 401),
        // The server's clock is ahead, and it says itself that the token holds.
        (ours(json!({ "iat": now + 5, "nbf": now + 5 })), 200),
        (ours(json!({ "iss": "https://evil.test" })), 401),
        (ours(json!({ "aud": "other" })), 401),
        (active(json!({})), 401),
        (inactive(), 401),
        (Answer::ok("{\"active\":\"true\"}"), 503),
        (Answer::ok("{\"active\":false,\"active\":true}"), 503),
        (Answer::ok("{}"), 503),
        (Answer::ok("<html>"), 503),
        (Answer::status(204), 503),
        (Answer::status(302).field("Location", "/x"), 503),
    ]
    .into_iter()
    .enumerate()
    {
        asked.server.always(answer);
        let answer = asked.get(&format!("token-{nth}"));
        assert_eq!(answer.status, status, "{nth}: {}", answer.text());
    }
}

#[test]
fn a_bad_answer_is_remembered_and_no_answer_is_not() {
    let asked = Asked::new("negative_ttl = \"1m\"");
    asked.server.always(inactive());
    for _ in 0..3 {
        asked.get("revoked").expect(401);
    }
    assert_eq!(asked.questions(), 1);
    asked.server.always(Answer::status(500));
    let refused = asked.get("good").expect(503);
    assert_eq!(refused.json()["type"], "urn:weir:problem:identity-unavailable");
    assert_eq!(refused.retry_after(), 1);
    asked.server.always(active(json!({})));
    asked.get("good").expect(200);
    asked.get("revoked").expect(401);
    assert_eq!(asked.questions(), 3);
}

#[test]
fn answers_are_forgotten_in_time_and_a_token_does_not_outlive_itself() {
    let asked = Asked::new("ttl = \"200ms\"\nnegative_ttl = \"200ms\"");
    asked.get("good").expect(200);
    asked.server.always(inactive());
    wait::until("a good answer to be forgotten", || {
        (asked.get("good").status == 401).then_some(())
    });
    asked.server.always(active(json!({})));
    wait::until("a bad answer to be forgotten", || (asked.get("good").status == 200).then_some(()));

    let asked = Asked::new("ttl = \"1h\"");
    let exp = wait::unix_seconds() + 2;
    asked.server.always(active(json!({ "exp": exp })));
    asked.get("short").expect(200);
    wait::until("the token to expire", || (asked.get("short").status == 401).then_some(()));
    assert!(wait::unix_seconds() >= exp);
}

#[test]
fn a_server_that_is_down_or_slow_or_does_not_know_us_is_a_503_in_time() {
    let mut asked = Asked::new("");
    asked.server.always(Answer::status(401));
    asked.get("one").expect(503);
    let line = asked.world.gateway.log().wait("a line on our credentials", |line| {
        line["message"] == "token introspection unavailable"
    });
    assert!(line["error"].as_str().unwrap().contains("client_secret_file"), "{line}");
    asked.server.stop();
    asked.get("one").expect(503);

    let config = asked.world.config().with("[identity]", "timeout = \"200ms\"");
    asked.world.gateway.write_config(&config.to_string());
    asked.world.gateway.reload().expect(200);
    asked.server.start_again();
    let gate = Gate::new();
    asked.server.always(Answer::script().wait(&gate));
    let before = wait::now();
    asked.get("one").expect(503);
    assert!(before.elapsed().as_secs() < 3);
    gate.open();
    asked.world.control.assert_untouched();
    assert_eq!(asked.world.gateway.used("workspace", "ws_acme"), 0);
}

#[test]
fn a_flood_of_invented_tokens_asks_no_more_than_its_address_may() {
    let asked = Asked::with("", 20);
    asked.server.always(inactive());
    let statuses: Vec<u16> = (0..60).map(|n| asked.get(&format!("invented-{n}")).status).collect();
    assert_eq!(statuses.iter().filter(|status| **status == 401).count(), 20);
    assert_eq!(statuses.iter().filter(|status| **status == 429).count(), 40);
    assert_eq!(asked.questions(), 20);
}

#[test]
fn what_cannot_be_read_is_a_mistake_at_its_place() {
    let folder = weir_tests::folder::Folder::new();
    let config = weir_tests::config::Config::default()
        .with("[identity]", "verify = \"introspection\"\nplanes = [\"control\"]\nca = \"none.pem\"")
        .with(
            "[identity.introspection]",
            "url = \"http://id.test/x\"\nclient_id = \"a\"\nclient_secret_file = \"none\"",
        );
    folder.write(gateway::CONFIG, &config.to_string());
    folder.write(gateway::DIRECTORY, weir_tests::config::DIRECTORY);
    let finished = gateway::run(&folder, &["check", "--config", gateway::CONFIG]);
    let said = finished.said();
    for words in ["cannot read `none.pem`", "cannot read `none`", "must start with https://"] {
        assert!(said.contains(words), "{said}");
    }
}
