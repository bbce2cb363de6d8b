//! Keys that change, and a JWKS server that is down, slow or sends no valid keys.

use serde_json::json;
use weir_tests::answer::{Answer, Gate};
use weir_tests::issuer::{Signer, published};
use weir_tests::request::Request;
use weir_tests::upstream::Upstream;
use weir_tests::wait;
use weir_tests::world::World;

use super::{Guarded, bearing, by_keys};

const TARGET: &str = "/v1/workspaces/ws_acme/users";

fn of(signer: &Signer) -> Request {
    bearing(TARGET, &signer.token(&json!({ "workspace_id": "ws_acme" })))
}

#[test]
fn a_key_rotation_fails_no_request() {
    let guarded = Guarded::new();
    let first = of(&guarded.signer);
    guarded.world.call(&first).expect(200);
    // One fetch, or two if the first was in flight when the request arrived.
    let fetched = guarded.server.requests().len();
    let second = Signer::new("second");
    guarded.server.always(Answer::ok(published(&[&guarded.signer, &second])));
    guarded.world.call(&of(&second)).expect(200);
    guarded.world.call(&first).expect(200);
    assert_eq!(guarded.server.requests().len(), fetched + 1, "what is known is not fetched");
}

#[test]
fn a_withdrawn_key_invalidates_its_tokens() {
    let guarded = Guarded::with(|config| config.with("[identity.jwt]", "refresh = \"1s\""));
    let request = of(&guarded.signer);
    guarded.world.call(&request).expect(200);
    guarded.server.always(Answer::ok(published(&[&Signer::new("second")])));
    wait::until("the withdrawn key to be dropped", || {
        (guarded.world.call(&request).status == 401).then_some(())
    });
}

#[test]
fn without_keys_no_token_is_accepted() {
    let (mut server, signer) = (Upstream::refusing(), Signer::new("first"));
    server.always(Answer::ok(published(&[&signer])));
    let world = World::with(|config| by_keys(config, &server));
    let request = of(&signer);
    let answer = world.call(&request).expect(503);
    assert_eq!(answer.json()["type"], "urn:weir:problem:identity-unavailable");
    assert_eq!(answer.retry_after(), 1);
    assert_eq!(answer.allowance().resource, "refused");
    world.control.assert_untouched();
    assert_eq!(world.gateway.used("workspace", "ws_acme"), 0);
    server.start_again();
    wait::until("keys to be fetched", || (world.call(&request).status == 200).then_some(()));
    let lines = world.gateway.log().json();
    let output = |words: &str| lines.iter().filter(|line| line["message"] == words).count();
    assert_eq!(output("JWKS fetch failed"), 1);
    let failed = lines.iter().find(|line| line["message"] == "JWKS fetch failed");
    let url = failed.and_then(|line| line["url"].as_str()).expect("which keys");
    assert!(url.contains(&server.address()), "{url}");
    assert_eq!(output("JWKS fetch recovered"), 1);
}

#[test]
fn while_the_jwks_server_fails_the_earlier_keys_stay_valid() {
    let mut guarded = Guarded::with(|config| {
        config
            .with("[identity.jwt]", "refresh = \"1s\"")
            .with("[limits.address]", "requests = 4000")
    });
    guarded.world.call(&of(&guarded.signer)).expect(200);
    let failed = "weir_gateway_identity_requests_total{kind=\"keys\",outcome=\"failed\"}";
    let fails_anew = |guarded: &Guarded, than: f64| {
        wait::until("a fetch to fail", || {
            (guarded.world.gateway.metric(failed) > than).then_some(())
        });
        // Another token, so that a key is needed.
        let other = guarded.signer.token(&json!({ "workspace_id": "ws_acme", "jti": than }));
        guarded.world.call(&bearing(TARGET, &other)).expect(200);
        guarded.world.gateway.metric(failed)
    };
    let mut count = 0.0;
    for nonsense in [
        Answer::status(500).body(published(&[&Signer::new("x")])),
        Answer::ok("<html>"),
        Answer::ok("{\"keys\":[]}"),
        Answer::ok(json!({ "keys": vec![Signer::new("x").jwk(); 101] }).to_string()),
        Answer::status(302).field("Location", "http://127.0.0.1:9/"),
        Answer::ok(vec![b' '; 2 << 20]),
    ] {
        guarded.server.always(nonsense);
        count = fails_anew(&guarded, count);
    }
    guarded.server.stop();
    let _ = fails_anew(&guarded, count);
    let unknown = of(&Signer::new("second"));
    guarded.world.call(&unknown).expect(503);
    assert!(guarded.world.gateway.metric("weir_gateway_jwks_fetched_timestamp_seconds") > 1e9);
}

#[test]
fn a_jwks_server_that_never_answers_delays_requests_only_to_the_timeout() {
    let (server, gate) = (Upstream::start(), Gate::new());
    server.always(Answer::script().wait(&gate));
    let world =
        World::with(|config| by_keys(config, &server).with("[identity]", "timeout = \"300ms\""));
    let before = wait::now();
    world.call(&of(&Signer::new("first"))).expect(503);
    let waited = before.elapsed();
    assert!(waited.as_secs() < 3, "{waited:?}");
    gate.open();
}

#[test]
fn a_reload_with_a_new_issuer_takes_effect_at_once_and_one_without_fetches_nothing() {
    let guarded = Guarded::new();
    let gateway = &guarded.world.gateway;
    let request = of(&guarded.signer);
    guarded.world.call(&request).expect(200);
    let config = guarded.world.config().with("[limits.workspace]", "requests = 61");
    gateway.write_config(&config.to_string());
    gateway.reload().expect(200);
    guarded.world.call(&request).expect(200);
    assert_eq!(guarded.server.requests().len(), 1);

    let (server, signer) = (Upstream::start(), Signer::new("first"));
    server.always(Answer::ok(published(&[&signer])));
    gateway.write_config(&by_keys(config.clone(), &server).to_string());
    gateway.reload().expect(200);
    guarded.world.call(&request).expect(401);
    guarded.world.call(&of(&signer)).expect(200);

    // The same JWKS server, so that its keys stay cached; another audience, so that no earlier
    // token is valid.
    let other = by_keys(config, &server).with("[identity.jwt]", "audience = [\"x\"]");
    gateway.write_config(&other.to_string());
    gateway.reload().expect(200);
    guarded.world.call(&of(&signer)).expect(401);
    let meant = signer.token(&json!({ "workspace_id": "ws_acme", "aud": "x" }));
    guarded.world.call(&bearing(TARGET, &meant)).expect(200);
}

#[test]
fn a_reload_to_a_server_without_keys_is_refused_with_its_place_unless_there_are_none_anyway() {
    let mut guarded = Guarded::new();
    let request = of(&guarded.signer);
    guarded.world.call(&request).expect(200);
    let other = by_keys(guarded.world.config(), &Upstream::refusing()).to_string();
    let gateway = &guarded.world.gateway;
    gateway.write_config(&other);
    let refused = gateway.reload().expect(422).json();
    let problem = refused["problems"][0].as_str().unwrap();
    let line = 1 + other.lines().position(|line| line.starts_with("jwks_url")).unwrap();
    assert!(problem.starts_with(&format!("gateway.toml:{line}:")), "{problem}");
    assert!(problem.contains("keys cannot be fetched: "), "{problem}");
    guarded.world.call(&request).expect(200);

    guarded.server.stop();
    let world = World::with(|config| by_keys(config, &guarded.server));
    wait::until("a fetch to fail", || {
        world.gateway.log().text().contains("JWKS fetch failed").then_some(())
    });
    world.gateway.write_config(&other);
    world.gateway.reload().expect(200);
}
