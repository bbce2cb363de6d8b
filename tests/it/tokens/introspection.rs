//! Token introspection: how often, with which credentials, and how failures are answered.

use std::thread;

use serde_json::{Value, json};
use weir_tests::answer::{Answer, Gate};
use weir_tests::client::Client;
use weir_tests::gateway;
use weir_tests::request::Request;
use weir_tests::response::Response;
use weir_tests::upstream::Upstream;
use weir_tests::wait;
use weir_tests::world::World;

use super::{bearing, by_keys};

const TARGET: &str = "/v1/workspaces/ws_acme/users";

/// A world whose control plane introspects tokens at a server.
struct Setup {
    world: World,
    server: Upstream,
}

impl Setup {
    #[track_caller]
    fn new(lines: &str) -> Self {
        Self::with(lines, 4_000)
    }

    /// The same; an address may have `failures` refused tokens a minute.
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
                .with("[limits.refused]", &format!("requests = {failures}"))
        });
        Self { world, server }
    }

    #[track_caller]
    fn get(&self, token: &str) -> Response {
        self.world.call(&bearing(TARGET, token))
    }

    fn requests(&self) -> usize {
        self.server.requests().len()
    }
}

fn active(more: Value) -> Answer {
    let mut claims = json!({ "active": true, "workspace_id": "ws_acme" });
    claims.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    Answer::ok(claims.to_string())
}

fn inactive() -> Answer {
    Answer::ok("{\"active\":false}")
}

#[test]
fn a_hundred_requests_at_once_with_one_token_introspect_it_once() {
    for (answer, status) in [(active(json!({})), 200), (inactive(), 401)] {
        let setup = Setup::new("");
        let gate = Gate::new();
        setup.server.always(Answer::script().wait(&gate).and(answer));
        thread::scope(|scope| {
            let running: Vec<_> =
                (0..100).map(|_| scope.spawn(|| setup.get("opaque").status)).collect();
            setup.server.wait_for_requests(1);
            wait::until("all to be in flight", || {
                let in_flight = setup.world.gateway.metric("weir_gateway_requests_in_flight");
                (in_flight >= 100.0).then_some(())
            });
            gate.open();
            assert!(running.into_iter().all(|one| one.join().unwrap() == status));
        });
        setup.get("opaque").expect(status);
        assert_eq!(setup.requests(), 1);
    }
}

#[test]
fn an_introspection_request_is_a_form_with_client_credentials() {
    let setup = Setup::new("");
    setup.world.gateway.folder().write("secret", "p+q/%\nnot this\n");
    let config = setup.world.config().with(
        "[identity.introspection]",
        "client_id = \"weir:1\"\nclient_secret_file = \"secret\"",
    );
    setup.world.gateway.write_config(&config.to_string());
    setup.world.gateway.reload().expect(200);
    setup.get("a+b/c~d==").expect(200);
    let request = setup.server.only();
    assert_eq!(request.head.start, "POST /introspect HTTP/1.1");
    assert_eq!(request.head.field("content-type"), Some("application/x-www-form-urlencoded"));
    assert_eq!(request.body, b"token=a%2Bb%2Fc%7Ed%3D%3D&token_type_hint=access_token");
    // printf 'weir%%3A1:p%%2Bq%%2F%%25' | base64
    assert_eq!(request.head.field("authorization"), Some("Basic d2VpciUzQTE6cCUyQnElMkYlMjU="));

    setup.world.gateway.folder().write("secret", "another\n");
    setup.world.gateway.reload().expect(200);
    setup.get("a+b/c~d==").expect(200);
    assert_ne!(
        setup.server.last().head.field("authorization"),
        request.head.field("authorization")
    );
}

#[test]
fn an_introspection_response_must_match_the_settings() {
    let setup = Setup::new(
        "issuer = \"https://id.test\"\naudience = [\"api\"]\nttl = \"1m\"\nnegative_ttl = \"1m\"",
    );
    let with_claims = |more: Value| {
        let mut claims = json!({ "iss": "https://id.test", "aud": ["api"] });
        claims.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        active(claims)
    };
    let now = wait::unix_seconds();
    for (nth, (answer, status)) in [
        (with_claims(json!({})), 200),
        (with_claims(json!({ "workspace_id": "ws_quiet" })), 403),
        (with_claims(json!({ "exp": now - 1 })), 401),
        (with_claims(json!({ "nbf": now + 60 })), 401),
        // The server's clock is ahead; the server reports the token as active.
        (with_claims(json!({ "iat": now + 5, "nbf": now + 5 })), 200),
        (with_claims(json!({ "iss": "https://evil.test" })), 401),
        (with_claims(json!({ "aud": "other" })), 401),
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
        setup.server.always(answer);
        let answer = setup.get(&format!("token-{nth}"));
        assert_eq!(answer.status, status, "{nth}: {}", answer.text());
    }
}

#[test]
fn a_negative_response_is_cached_and_a_failure_is_not() {
    let setup = Setup::new("negative_ttl = \"1m\"");
    setup.server.always(inactive());
    for _ in 0..3 {
        setup.get("revoked").expect(401);
    }
    assert_eq!(setup.requests(), 1);
    setup.server.always(Answer::status(500));
    let refused = setup.get("good").expect(503);
    assert_eq!(refused.json()["type"], "urn:weir:problem:identity-unavailable");
    assert_eq!(refused.retry_after(), 1);
    setup.server.always(active(json!({})));
    setup.get("good").expect(200);
    setup.get("revoked").expect(401);
    assert_eq!(setup.requests(), 3);
}

#[test]
fn cached_responses_expire_and_no_token_outlives_its_expiry() {
    let setup = Setup::new("ttl = \"200ms\"\nnegative_ttl = \"200ms\"");
    setup.get("good").expect(200);
    setup.server.always(inactive());
    wait::until("the positive response to expire", || {
        (setup.get("good").status == 401).then_some(())
    });
    setup.server.always(active(json!({})));
    wait::until("the negative one to expire", || (setup.get("good").status == 200).then_some(()));

    let setup = Setup::new("ttl = \"1h\"");
    let exp = wait::unix_seconds() + 2;
    setup.server.always(active(json!({ "exp": exp })));
    setup.get("short").expect(200);
    wait::until("the token to expire", || (setup.get("short").status == 401).then_some(()));
    assert!(wait::unix_seconds() >= exp);
}

#[test]
fn an_introspection_server_that_fails_is_a_503_in_time() {
    let mut setup = Setup::new("");
    setup.server.always(Answer::status(401));
    setup.get("one").expect(503);
    let line = setup.world.gateway.log().wait("a line on our credentials", |line| {
        line["message"] == "token introspection unavailable"
    });
    assert!(line["error"].as_str().unwrap().contains("client_secret_file"), "{line}");
    setup.server.stop();
    setup.get("one").expect(503);

    let config = setup.world.config().with("[identity]", "timeout = \"200ms\"");
    setup.world.gateway.write_config(&config.to_string());
    setup.world.gateway.reload().expect(200);
    setup.server.start_again();
    let gate = Gate::new();
    setup.server.always(Answer::script().wait(&gate));
    let before = wait::now();
    setup.get("one").expect(503);
    assert!(before.elapsed().as_secs() < 3);
    gate.open();
    setup.world.control.assert_untouched();
    assert_eq!(setup.world.gateway.used("workspace", "ws_acme"), 0);
}

#[test]
fn a_token_without_an_answer_lets_no_reload_to_a_server_without_keys_pass() {
    let mut setup = Setup::new("");
    setup.server.always(Answer::status(500));
    setup.get("unanswered").expect(503);
    setup.server.always(inactive());
    let other = by_keys(setup.world.config(), &Upstream::refusing());
    setup.world.gateway.write_config(&other.without("[identity.introspection]").to_string());
    let refused = setup.world.gateway.reload().expect(422).json();
    assert!(refused["problems"][0].as_str().unwrap().contains("keys cannot be fetched"));
    setup.server.stop();
    setup.world.gateway.reload().expect(200);
}

#[test]
fn a_flood_of_unknown_tokens_introspects_no_more_than_its_addresss_limit() {
    let setup = Setup::with("", 20);
    setup.server.always(inactive());
    let statuses: Vec<u16> = (0..60).map(|n| setup.get(&format!("invented-{n}")).status).collect();
    assert_eq!(statuses.iter().filter(|status| **status == 401).count(), 20);
    assert_eq!(statuses.iter().filter(|status| **status == 503).count(), 40);
    assert_eq!(setup.requests(), 20);
    let reset = Request::new("DELETE", "/limits/refused/127.0.0.1");
    setup.world.gateway.call_admin(&reset).expect(200);
    setup.get("invented-60").expect(401);
}

#[test]
fn refusals_for_other_reasons_stop_no_introspection() {
    let mut setup = Setup::with("", 5);
    setup.server.stop();
    for nth in 0..10 {
        setup.get(&format!("early-{nth}")).expect(503);
    }
    setup.server.start_again();
    setup.get("new").expect(200);
    for _ in 0..10 {
        setup.world.get("/nowhere").expect(404);
    }
    setup.get("newer").expect(200);
}

#[test]
fn a_flood_at_once_introspects_little_more_and_delays_no_other_address() {
    let setup = Setup::with("", 20);
    let gate = Gate::new();
    setup.server.always(Answer::script().wait(&gate).and(inactive()));
    let statuses: Vec<u16> = thread::scope(|scope| {
        let running: Vec<_> = (0..60)
            .map(|n| (format!("invented-{n}"), &setup))
            .map(|(token, setup)| scope.spawn(move || setup.get(&token).status))
            .collect();
        wait::until("all to be in flight", || {
            let in_flight = setup.world.gateway.metric("weir_gateway_requests_in_flight");
            (in_flight >= 60.0).then_some(())
        });
        setup.server.wait_for_requests(16);
        let mut other = Client::connect_from("127.0.0.2", setup.world.gateway.http());
        other.send(bearing(TARGET, "theirs").head_bytes());
        setup.server.wait_for_requests(17);
        gate.open();
        other.read().expect(401);
        running.into_iter().map(|one| one.join().unwrap()).collect()
    });
    let invalid = statuses.iter().filter(|status| **status == 401).count();
    assert!((20..36).contains(&invalid), "{invalid}");
    assert_eq!(setup.requests(), invalid + 1);
    assert_eq!(statuses.iter().filter(|status| **status == 503).count(), 60 - invalid);
}

#[test]
fn a_token_without_an_answer_is_charged_as_an_invalid_one() {
    let setup = Setup::with("", 5);
    let config = setup.world.config().with("[identity]", "timeout = \"200ms\"");
    setup.world.gateway.write_config(&config.to_string());
    setup.world.gateway.reload().expect(200);
    let gate = Gate::new();
    setup.server.always(Answer::script().wait(&gate));
    for nth in 0..10 {
        setup.get(&format!("invented-{nth}")).expect(503);
    }
    assert_eq!(setup.requests(), 5);
    gate.open();
}

#[test]
fn tokens_that_a_slow_server_rejects_keep_out_no_other_address() {
    let setup = Setup::with("negative_ttl = \"1m\"", 600);
    let config = setup.world.config().with("[identity]", "timeout = \"20s\"");
    setup.world.gateway.write_config(&config.to_string());
    setup.world.gateway.reload().expect(200);
    setup.server.always(inactive());
    let call = |address: &str, token: &str| {
        let mut client = Client::connect_from(address, setup.world.gateway.http());
        client.call(&bearing(TARGET, token)).expect(401);
    };
    let others: Vec<String> = (2..10).map(|nth| format!("127.0.0.{nth}")).collect();
    // Half of them, and the one that is to get its turn, have sent bad tokens before.
    for address in others.iter().take(4).map(String::as_str).chain(["127.0.0.20"]) {
        (0..16).for_each(|nth| call(address, &format!("{address}-{nth}")));
    }
    let gate = Gate::new();
    setup.server.always(Answer::script().wait(&gate).and(inactive()));
    thread::scope(|scope| {
        for (address, nth) in others.iter().flat_map(|each| (16..40).map(move |nth| (each, nth))) {
            // A third with one token.
            let nth = nth.max(24);
            scope.spawn(move || call(address, &format!("{address}-{nth}")));
        }
        wait::until("all to be in flight", || {
            let in_flight = setup.world.gateway.metric("weir_gateway_requests_in_flight");
            (in_flight >= 192.0).then_some(())
        });
        scope.spawn(|| call("127.0.0.20", "theirs"));
        wait::until("the other address's token to be introspected", || {
            let bodies = setup.server.requests().into_iter().map(|request| request.body);
            bodies.into_iter().any(|body| body.starts_with(b"token=theirs&")).then_some(())
        });
        assert!((5 * 16 + 9..5 * 16 + 64).contains(&setup.requests()), "{}", setup.requests());
        gate.open();
    });
}

#[test]
fn requests_of_one_address_with_one_token_take_one_turn() {
    let setup = Setup::new("");
    let gate = Gate::new();
    setup.server.always(Answer::script().wait(&gate).and(active(json!({}))));
    thread::scope(|scope| {
        for nth in 0..20 {
            let (setup, token) = (&setup, if nth < 19 { "shared" } else { "another" });
            scope.spawn(move || setup.get(token).expect(200));
        }
        setup.server.wait_for_requests(2);
        gate.open();
    });
    assert_eq!(setup.requests(), 2);
}

#[test]
fn a_token_that_waits_for_a_turn_of_one_address_is_introspected_for_another() {
    let setup = Setup::new("");
    let gate = Gate::new();
    setup.server.always(Answer::script().wait(&gate).and(active(json!({}))));
    thread::scope(|scope| {
        for n in 0..16 {
            let setup = &setup;
            scope.spawn(move || setup.get(&format!("new-{n}")).expect(200));
        }
        setup.server.wait_for_requests(16);
        scope.spawn(|| setup.get("shared").expect(200));
        wait::until("all to be in flight", || {
            let in_flight = setup.world.gateway.metric("weir_gateway_requests_in_flight");
            (in_flight >= 17.0).then_some(())
        });
        let mut other = Client::connect_from("127.0.0.2", setup.world.gateway.http());
        other.send(bearing(TARGET, "shared").head_bytes());
        setup.server.wait_for_requests(17);
        gate.open();
        other.read().expect(200);
    });
    assert_eq!(setup.requests(), 17);
}

#[test]
fn invalid_introspection_settings_are_reported_with_their_place() {
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
    let output = finished.output();
    for words in ["cannot read `none.pem`", "cannot read `none`", "must start with https://"] {
        assert!(output.contains(words), "{output}");
    }
}
