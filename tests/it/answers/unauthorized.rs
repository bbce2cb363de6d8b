//! Responses to a missing, invalid or foreign token, as clients of every kind read them.

use serde_json::json;
use weir_tests::answer::Answer;
use weir_tests::client::Client;
use weir_tests::http2::Http2;
use weir_tests::issuer::{Signer, published};
use weir_tests::request::{CONTROL, Request};
use weir_tests::response::Response;
use weir_tests::upstream::Upstream;

use super::browsers::assert_readable;
use super::{APP, House, PROTOCOLS, Protocol, readable};
use crate::tokens::by_keys;

const TARGET: &str = "/v1/workspaces/ws_acme/users";

/// One request, on a new connection.
#[track_caller]
fn call(house: &House, protocol: Protocol, request: &Request) -> Response {
    let secured = || {
        let client = Client::connect(&house.https);
        client.secured(&house.authority.trusted(), CONTROL)
    };
    match protocol {
        Protocol::Http1 => house.world.call(request),
        Protocol::Http1OverTls => secured().call(request),
        Protocol::Http2 => Http2::connect(&house.https, &house.authority).call(request),
    }
}

#[test]
fn a_missing_or_foreign_token_gets_a_401_or_403_that_every_client_can_read() {
    let (keys, signer) = (Upstream::start(), Signer::new("first"));
    keys.always(Answer::ok(published(&[&signer])));
    let house = House::with(|config| {
        readable(by_keys(config, &keys)).with("[limits.address]", "requests = 1000")
    });
    let bearer = |claims| format!("Bearer {}", signer.token(&claims));
    let own = bearer(json!({ "workspace_id": "ws_acme" }));
    let foreign = bearer(json!({ "workspace_id": "ws_quiet" }));
    for protocol in PROTOCOLS {
        for (tokens, status, grpc, challenge) in [
            (vec![], 401, "16", "Bearer"),
            (vec!["Bearer x"], 401, "16", "Bearer error=\"invalid_token\""),
            (vec![&foreign], 403, "7", "Bearer error=\"insufficient_scope\""),
            (vec![&own, &own], 400, "3", "Bearer error=\"invalid_request\""),
        ] {
            let sent = |request: Request| {
                let add = |request: Request, token: &&str| request.field("Authorization", token);
                tokens.iter().fold(request.field("Origin", APP), add)
            };
            let answer = call(&house, protocol, &sent(Request::get(TARGET)));
            assert_eq!(answer.status, status, "{protocol:?} {tokens:?}: {}", answer.text());
            assert_readable(&answer);
            let header = answer.field("www-authenticate").unwrap_or_default();
            assert!(header.starts_with(challenge), "{protocol:?} {tokens:?}: {header}");
            answer.expect_problem(status);

            let post = Request::new("POST", TARGET).field("Content-Type", "application/grpc");
            let answer = call(&house, protocol, &sent(post.body("x"))).expect(200);
            assert_eq!(answer.field("grpc-status"), Some(grpc), "{protocol:?} {tokens:?}");
            assert_eq!(answer.field("access-control-allow-origin"), Some(APP));
        }
        let request = Request::get(TARGET).field("Authorization", &own);
        let answer = call(&house, protocol, &request).expect(200);
        assert_eq!(answer.allowance().resource, "workspace", "{protocol:?}");
    }
    assert_eq!(house.world.control.requests().len(), PROTOCOLS.len());
    assert_eq!(house.world.gateway.used("workspace", "ws_acme"), PROTOCOLS.len() as u64);
    assert_eq!(house.world.gateway.used("workspace", "ws_quiet"), 0);
    assert_eq!(house.world.gateway.used("refused", "127.0.0.1"), 2 * 4 * PROTOCOLS.len() as u64);
}
