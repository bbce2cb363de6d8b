//! Those whose token is missing, bad or somebody else's, as clients of every kind are told so.

use serde_json::json;
use weir_tests::answer::Answer;
use weir_tests::client::Client;
use weir_tests::http2::Http2;
use weir_tests::issuer::{Signer, published};
use weir_tests::request::{CONTROL, Request};
use weir_tests::response::Response;
use weir_tests::upstream::Upstream;

use super::browsers::assert_readable;
use super::{APP, House, WAYS, Way, readable};
use crate::tokens::by_keys;

const TARGET: &str = "/v1/workspaces/ws_acme/users";

/// One request, on a connection of its own.
#[track_caller]
fn call(house: &House, way: Way, request: &Request) -> Response {
    let secured = || {
        let client = Client::connect(&house.https);
        client.secured(&house.authority.trusted(), CONTROL)
    };
    match way {
        Way::Http1 => house.world.call(request),
        Way::Http1ByTls => secured().call(request),
        Way::Http2 => Http2::connect(&house.https, &house.authority).call(request),
    }
}

#[test]
fn who_has_no_token_or_anothers_is_told_so_and_can_read_it() {
    let (keys, signer) = (Upstream::start(), Signer::new("first"));
    keys.always(Answer::ok(published(&[&signer])));
    let house = House::with(|config| {
        readable(by_keys(config, &keys)).with("[limits.address]", "requests = 1000")
    });
    let bearer = |claims| format!("Bearer {}", signer.token(&claims));
    let own = bearer(json!({ "workspace_id": "ws_acme" }));
    let foreign = bearer(json!({ "workspace_id": "ws_quiet" }));
    for way in WAYS {
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
            let answer = call(&house, way, &sent(Request::get(TARGET)));
            assert_eq!(answer.status, status, "{way:?} {tokens:?}: {}", answer.text());
            assert_readable(&answer);
            let told = answer.field("www-authenticate").unwrap_or_default();
            assert!(told.starts_with(challenge), "{way:?} {tokens:?}: {told}");
            answer.expect_problem(status);

            let post = Request::new("POST", TARGET).field("Content-Type", "application/grpc");
            let answer = call(&house, way, &sent(post.body("x"))).expect(200);
            assert_eq!(answer.field("grpc-status"), Some(grpc), "{way:?} {tokens:?}");
            assert_eq!(answer.field("access-control-allow-origin"), Some(APP));
        }
        let request = Request::get(TARGET).field("Authorization", &own);
        let answer = call(&house, way, &request).expect(200);
        assert_eq!(answer.allowance().resource, "workspace", "{way:?}");
    }
    assert_eq!(house.world.control.requests().len(), WAYS.len());
    assert_eq!(house.world.gateway.used("workspace", "ws_acme"), WAYS.len() as u64);
    assert_eq!(house.world.gateway.used("workspace", "ws_quiet"), 0);
    assert_eq!(house.world.gateway.used("address", "127.0.0.1"), 2 * 4 * WAYS.len() as u64);
}
