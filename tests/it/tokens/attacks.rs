//! Tokens of other libraries and of attackers: floods, and the forgeries of RFC 8725.

use std::thread;

use serde_json::{Value, json};
use weir_tests::answer::Answer;
use weir_tests::issuer::{AUDIENCE, ISSUER, Signer};
use weir_tests::real;
use weir_tests::upstream::Upstream;
use weir_tests::wait;
use weir_tests::world::World;

use super::{Guarded, bearing, by_keys, outcomes};

const TARGET: &str = "/v1/workspaces/ws_acme/users";

#[test]
fn tokens_of_pyjwt_are_accepted_and_its_forgeries_refused() {
    let mut python = real::python("tests/real/tokens.py");
    check(&real::run(python.args([ISSUER, AUDIENCE])).expect(0).stdout);
}

#[test]
fn tokens_of_jose_are_accepted_and_its_forgeries_refused() {
    let mut node = real::node("tests/real/tokens.mjs");
    check(&real::run(node.args([ISSUER, AUDIENCE])).expect(0).stdout);
}

/// Checks a gateway with `{"jwks": …, "good": {name: token}, "bad": {name: token}}`.
#[track_caller]
fn check(made: &str) {
    let made: Value = serde_json::from_str(made).unwrap();
    let server = Upstream::start();
    server.always(Answer::ok(made["jwks"].to_string()));
    let world = World::with(|config| by_keys(config, &server));
    for (kind, status) in [("good", 200), ("bad", 401)] {
        let tokens = made[kind].as_object().unwrap();
        assert!(tokens.len() >= 3, "{made}");
        for (name, token) in tokens {
            let answer = world.call(&bearing(TARGET, token.as_str().unwrap()));
            assert_eq!(answer.status, status, "{name}: {}", answer.text());
        }
    }
}

#[test]
fn a_flood_of_bad_tokens_keeps_its_status_and_valid_tokens_pass() {
    let guarded = Guarded::with(|config| config.with("[limits.refused]", "requests = 5"));
    let forged = Signer::new("first").token(&json!({ "workspace_id": "ws_acme" }));
    for sent in 1..=8 {
        let refused = guarded.world.call(&bearing(TARGET, &forged)).expect(401);
        let allowance = refused.allowance();
        assert_eq!((allowance.resource.as_str(), allowance.limit), ("refused", 5));
        assert_eq!(allowance.remaining, 5_u64.saturating_sub(sent));
        assert_eq!(refused.field("retry-after"), None);
    }
    guarded.get(TARGET, json!({ "workspace_id": "ws_acme" })).expect(200);
}

#[test]
fn unknown_key_ids_cause_at_most_one_jwks_fetch_a_second() {
    let guarded = Guarded::with(|config| config.with("[limits.address]", "requests = 4000"));
    guarded.get(TARGET, json!({ "workspace_id": "ws_acme" })).expect(200);
    let before = wait::now();
    let other = Signer::new("x");
    thread::scope(|scope| {
        for client in 0..16 {
            let (guarded, other) = (&guarded, &other);
            scope.spawn(move || {
                for number in 0..3 {
                    let name = format!("invented-{client}-{number}");
                    let token = other.token_named(&name, &json!({}));
                    guarded.world.call(&bearing(TARGET, &token)).expect(401);
                }
            });
        }
    });
    let seconds = before.elapsed().as_secs();
    let fetches = guarded.server.requests().len() as u64;
    assert!(fetches <= seconds + 3, "{fetches} fetches in {seconds} s");
    assert_eq!(outcomes(&guarded.world, "unknown_key"), 48.0);
}

#[test]
fn an_address_beyond_its_limit_causes_no_jwks_fetch() {
    let guarded = Guarded::with(|config| config.with("[limits.refused]", "requests = 1"));
    guarded.get(TARGET, json!({ "workspace_id": "ws_acme" })).expect(200);
    let other = Signer::new("x");
    let invented = |number: u32| {
        let token = other.token_named(&format!("invented-{number}"), &json!({}));
        guarded.world.call(&bearing(TARGET, &token))
    };
    invented(0).expect(401);
    let before = guarded.server.requests().len();
    for number in 1..10 {
        let refused = invented(number).expect(503);
        assert_eq!(refused.json()["type"], "urn:weir:problem:identity-unavailable");
    }
    assert_eq!(guarded.server.requests().len(), before);
}
