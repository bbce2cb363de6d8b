//! Tokens that the gateway verifies itself, with the keys of a JWKS server.

mod attacks;
mod directory;
mod introspection;
mod keys;

use serde_json::{Value, json};
use weir_tests::answer::Answer;
use weir_tests::config::Config;
use weir_tests::directory::Directory;
use weir_tests::gateway::{CONFIG, run};
use weir_tests::issuer::{AUDIENCE, ISSUER, Signer, published};
use weir_tests::request::Request;
use weir_tests::response::Response;
use weir_tests::upstream::Upstream;
use weir_tests::world::World;

/// A world whose control plane requires tokens, an issuer, and its JWKS server.
struct Guarded {
    world: World,
    server: Upstream,
    signer: Signer,
}

impl Guarded {
    #[track_caller]
    fn new() -> Self {
        Self::with(|config| config)
    }

    #[track_caller]
    fn with(change: impl FnOnce(Config) -> Config) -> Self {
        let (server, signer) = (Upstream::start(), Signer::new("first"));
        server.always(Answer::ok(published(&[&signer])));
        let world = World::with(|config| change(by_keys(config, &server)));
        Self { world, server, signer }
    }

    /// One GET with a token that has these claims.
    #[track_caller]
    fn get(&self, target: &str, claims: Value) -> Response {
        self.world.call(&bearing(target, &self.signer.token(&claims)))
    }

    #[track_caller]
    fn used(&self, limit: &str, key: &str) -> u64 {
        self.world.gateway.used(limit, key)
    }
}

/// A configuration whose control plane verifies tokens with the keys of a JWKS server.
pub(crate) fn by_keys(config: Config, server: &Upstream) -> Config {
    let jwt = format!(
        "jwks_url = \"http://{}/keys\"\nissuer = \"{ISSUER}\"\naudience = [\"{AUDIENCE}\"]",
        server.address()
    );
    config
        .with("[identity]", "verify = \"jwt\"\nplanes = [\"control\"]")
        .with("[identity.jwt]", &jwt)
}

pub(crate) fn bearing(target: &str, token: &str) -> Request {
    Request::get(target).field("Authorization", &format!("Bearer {token}"))
}

fn outcomes(world: &World, outcome: &str) -> f64 {
    world
        .gateway
        .metric(&format!("weir_gateway_token_verifications_total{{outcome=\"{outcome}\"}}"))
}

#[test]
fn without_a_valid_token_a_request_is_a_401_charged_to_its_address_alone() {
    let guarded = Guarded::new();
    let world = &guarded.world;
    let target = "/v1/workspaces/ws_acme/users";
    let bare = world.get(target).expect(401);
    assert_eq!(bare.field("www-authenticate"), Some("Bearer"));
    assert_eq!(bare.allowance().resource, "refused");
    for (token, words) in [
        (guarded.signer.token(&json!({ "exp": 1 })), "expired"),
        (guarded.signer.token(&json!({ "nbf": 9_999_999_999_u64 })), "not valid yet"),
        (guarded.signer.token(&json!({ "iss": "https://evil.test" })), "not valid"),
        (guarded.signer.token(&json!({ "aud": "https://other.test" })), "not valid"),
        (Signer::new("first").token(&json!({ "workspace_id": "ws_acme" })), "not valid"),
        ("x".to_owned(), "malformed"),
    ] {
        let answer = world.call(&bearing(target, &token)).expect(401);
        let challenge = answer.field("www-authenticate").unwrap();
        assert!(challenge.starts_with("Bearer error=\"invalid_token\""), "{challenge}");
        assert!(challenge.contains(words), "{challenge}");
        assert_eq!(answer.json()["type"], "urn:weir:problem:unauthenticated");
    }
    let basic = Request::get(target).field("Authorization", "Basic YTpi");
    let basic = world.call(&basic).expect(401);
    assert_eq!(basic.field("www-authenticate"), Some("Bearer"));
    let twice = bearing(target, "x").field("Authorization", "Bearer y");
    let twice = world.call(&twice).expect(400);
    assert_eq!(twice.field("www-authenticate"), Some("Bearer error=\"invalid_request\""));
    world.control.assert_untouched();
    assert_eq!(guarded.used("workspace", "ws_acme"), 0);
    assert_eq!(guarded.used("organisation", "org_acme"), 0);
    assert_eq!(guarded.used("refused", "127.0.0.1"), 9);
    assert_eq!(outcomes(world, "missing"), 2.0);
    assert_eq!(outcomes(world, "expired"), 1.0);
    assert_eq!(outcomes(world, "signature"), 1.0);
}

#[test]
fn the_reason_of_a_401_is_in_both_logs_and_in_explain_and_not_in_the_response() {
    let guarded = Guarded::new();
    let gateway = &guarded.world.gateway;
    let target = "/v1/workspaces/ws_acme/users";
    let explain = |token: &str| {
        let (url, bearer) =
            (format!("http://api.localhost{target}"), format!("Authorization: Bearer {token}"));
        let arguments = ["explain", "GET", &url, "-H", &bearer, "--config", CONFIG];
        run(gateway.folder(), &arguments).expect(0).stdout
    };
    let own = json!({ "workspace_id": "ws_acme" });
    for (token, reason) in [
        (guarded.signer.token(&json!({ "aud": "https://other.test" })), "audience"),
        (guarded.signer.token(&json!({ "iss": "https://evil.test" })), "issuer"),
        (guarded.signer.token(&json!({ "exp": 1 })), "expired"),
        (guarded.signer.token(&json!({ "nbf": 9_999_999_999_u64 })), "early"),
        (guarded.signer.token_named("other", &own), "unknown_key"),
        (Signer::new("first").token(&own), "signature"),
        ("x".to_owned(), "malformed"),
    ] {
        for _ in 0..2 {
            let answer = guarded.world.call(&bearing(target, &token)).expect(401);
            let challenge = answer.field("www-authenticate").unwrap();
            assert!(!challenge.contains("audience") && !challenge.contains("iss"), "{challenge}");
        }
        gateway.access_log().wait(reason, |line| line["token_error"] == reason);
        let is_logged =
            |line: &Value| line["message"] == "tokens rejected" && line["reason"] == reason;
        let line = gateway.log().wait(reason, is_logged);
        assert_eq!((&line["level"], &line["count"]), (&json!("warn"), &json!(1)));
        assert_eq!(
            gateway.log().json().iter().filter(|line| is_logged(line)).count(),
            1,
            "{reason}"
        );
        let output = explain(&token);
        assert!(output.contains("401") && output.contains(&format!("{reason}: ")), "{output}");
        assert!(token.len() < 9 || !output.contains(&token[..40]), "{output}");
    }
    guarded.world.get(target).expect(401);
    gateway.access_log().wait("none", |line| line["token_error"] == "missing");
    let good = explain(&guarded.signer.token(&own));
    assert!(good.contains("this one is accepted") && good.contains("ws_acme"), "{good}");
    let foreign = explain(&guarded.signer.token(&json!({ "workspace_id": "ws_quiet" })));
    assert!(foreign.contains("403"), "{foreign}");
}

#[test]
fn explain_reports_why_tokens_cannot_be_verified() {
    let mut guarded = Guarded::new();
    let token = guarded.signer.token(&json!({ "workspace_id": "ws_acme" }));
    guarded.server.stop();
    let bearer = format!("Authorization: Bearer {token}");
    let arguments =
        ["explain", "GET", "http://api.localhost/v1/me", "-H", &bearer, "--config", CONFIG];
    let output = run(guarded.world.gateway.folder(), &arguments).expect(0).stdout;
    assert!(output.contains("503") && output.contains("reason"), "{output}");
}

#[test]
fn readyz_names_what_fails_and_stays_200() {
    let (mut server, signer) = (Upstream::refusing(), Signer::new("first"));
    server.always(Answer::ok(published(&[&signer])));
    let world = World::with(|config| by_keys(config, &server));
    let ready = || world.gateway.call_admin(&Request::get("/readyz")).expect(200).text();
    let output = ready();
    assert!(output.starts_with("ready\n") && output.contains("identity.jwt.jwks_url"), "{output}");
    server.start_again();
    let token = signer.token(&json!({ "workspace_id": "ws_acme" }));
    let call = || world.call(&bearing("/v1/workspaces/ws_acme", &token)).status == 200;
    weir_tests::wait::until("keys to be fetched", || call().then_some(()));
    assert_eq!(ready(), "ready\n");
    // The fetched keys stay usable: an outage of the JWKS server does not make the gateway unready.
    server.stop();
    assert_eq!(ready(), "ready\n");
}

#[test]
fn a_token_reaches_its_own_workspace_and_is_charged_there() {
    let guarded = Guarded::new();
    let token = guarded.signer.token(&json!({ "workspace_id": "ws_acme" }));
    let call = |target: &str| guarded.world.call(&bearing(target, &token));
    let answer = call("/v1/workspaces/ws_acme/users").expect(200);
    assert_eq!(answer.allowance().resource, "workspace");
    let seen = guarded.world.control.only();
    assert_eq!(seen.head.field("authorization"), Some(format!("Bearer {token}").as_str()));
    for other in
        ["/v1/workspaces/ws_quiet/users", "/v1/workspaces/ws_new", "/v1/organisations/org_acme"]
    {
        let answer = call(other).expect(403);
        assert_eq!(answer.json()["type"], "urn:weir:problem:foreign-token");
        assert_eq!(answer.field("www-authenticate"), Some("Bearer error=\"insufficient_scope\""));
    }
    for reason in ["other_workspace", "other_organisation"] {
        let log = guarded.world.gateway.access_log();
        log.wait(reason, |line| line["token_error"] == reason);
    }
    assert_eq!(guarded.world.control.requests().len(), 1);
    assert_eq!(guarded.used("workspace", "ws_acme"), 1);
    assert_eq!(guarded.used("workspace", "ws_quiet"), 0);
    assert_eq!(guarded.used("organisation", "org_acme"), 1);
    assert_eq!(guarded.used("refused", "127.0.0.1"), 3);
    assert_eq!(outcomes(&guarded.world, "verified"), 1.0);
    assert_eq!(outcomes(&guarded.world, "cached"), 3.0);
    assert_eq!(guarded.world.gateway.metric("weir_gateway_jwks_keys"), 1.0);
}

#[test]
fn a_token_of_an_organisation_reaches_its_workspaces_by_the_directory() {
    let guarded = Guarded::new();
    let claims = || json!({ "organisation_id": "org_acme" });
    guarded.get("/v1/workspaces/ws_acme/users", claims()).expect(200);
    guarded.get("/v1/organisations/org_acme/x", claims()).expect(200);
    guarded.get("/v1/workspaces/ws_big/users", claims()).expect(403);
    guarded.get("/v1/organisations/org_globex/x", claims()).expect(403);
    guarded.get("/v1/workspaces/ws_acme/users", json!({})).expect(403);
    assert_eq!(guarded.used("organisation", "org_acme"), 2);
}

#[test]
fn a_claim_without_an_identifier_reaches_no_workspace() {
    let guarded = Guarded::new();
    let no_names = [json!(null), json!(""), json!([]), json!([null]), json!(7), json!({})];
    for nothing in no_names {
        let claims = json!({ "workspace_id": nothing, "organisation_id": "org_acme" });
        guarded.get("/v1/workspaces/ws_acme/users", claims).expect(403);
        let claims = json!({ "organisation_id": nothing });
        guarded.get("/v1/organisations/org_acme/x", claims.clone()).expect(403);
        guarded.get("/v1/workspaces/ws_acme/users", claims).expect(403);
    }
    guarded.world.control.assert_untouched();
}

#[test]
fn a_route_that_names_a_method_admits_no_token_on_other_routes() {
    // `DELETE …/{thing}` hides `…/{*rest}`, only for that method.
    let guarded = Guarded::with(|config| {
        config.with(
            "[[routes]]",
            "plane = \"control\"\nmethods = [\"DELETE\"]\n\
             path = \"/v1/workspaces/{workspace}/{thing}\"\n\
             limits = [\"workspace\"]\nupstream = \"control\"",
        )
    });
    let token = guarded.signer.token(&json!({ "workspace_id": "ws_acme" }));
    let delete = |target: &str| {
        let request = Request::new("DELETE", target);
        guarded.world.call(&request.field("Authorization", &format!("Bearer {token}")))
    };
    for path in ["users/u1", "users", "users/u1/keys/k1", "webhooks/wh_1"] {
        delete(&format!("/v1/workspaces/ws_quiet/{path}")).expect(403);
    }
    guarded.world.control.assert_untouched();
    guarded.world.dispatcher.assert_untouched();
    let answer = delete("/v1/workspaces/ws_acme/users/u1").expect(200);
    assert_eq!(answer.allowance().resource, "workspace");
    delete("/v1/workspaces/ws_acme/users").expect(200);
    assert_eq!(guarded.used("organisation", "org_acme"), 1);
}

#[test]
fn a_token_of_another_issuer_causes_no_directory_request() {
    let directory = Directory::start();
    let guarded = Guarded::with(|config| directory.within(config, "ttl = \"1h\""));
    let claims = json!({ "workspace_id": "ws_acme" });
    for nth in 0..20 {
        guarded.get(&format!("/v1/workspaces/ws_{nth}/users"), claims.clone()).expect(403);
    }
    guarded.get("/v1/organisations/org_acme", claims.clone()).expect(403);
    guarded.get("/v1/workspaces/ws_quiet/users", json!({})).expect(403);
    assert!(directory.fetched().is_empty(), "{:?}", directory.fetched());
    guarded.get("/v1/workspaces/ws_acme/users", claims).expect(200);
    assert_eq!(directory.fetched(), ["workspaces/ws_acme", "organisations/org_acme"]);
}

#[test]
fn without_a_tenant_in_the_path_the_tokens_tenant_is_charged() {
    let guarded = Guarded::with(|config| {
        config.with("[identity]", "workspace_claim = \"https://id.test/ws\"").with(
            "[[routes]]",
            "plane = \"control\"\npath = \"/v1/me/{*rest}\"\n\
             limits = [\"workspace\", \"organisation\"]\nupstream = \"control\"",
        )
    });
    let known = json!({ "https://id.test/ws": "ws_acme", "organisation_id": "org_other" });
    guarded.get("/v1/me", known).expect(200);
    assert_eq!(guarded.used("workspace", "ws_acme"), 1);
    assert_eq!(guarded.used("organisation", "org_acme"), 1, "the directory comes first");
    let new = json!({ "https://id.test/ws": ["ws_new"], "organisation_id": "org_new" });
    guarded.get("/v1/me", new).expect(200);
    assert_eq!(guarded.used("organisation", "org_new"), 1);
    let anonymous = guarded.get("/v1/me", json!({})).expect(200);
    assert_eq!(anonymous.allowance().resource, "address");
    assert_eq!(guarded.used("address", "127.0.0.1"), 1);
}

#[test]
fn exempt_routes_other_planes_and_open_routes_need_no_token() {
    let guarded = Guarded::with(|config| {
        config.with(
            "[[routes]]",
            "plane = \"control\"\npath = \"/open\"\nlimits = [\"address\"]\n\
             upstream = \"control\"\nverify = \"none\"",
        )
    });
    guarded.world.get("/healthz").expect(200);
    guarded.world.get("/open").expect(200);
    guarded.world.get_from("in_acme", "/login").expect(200);
    guarded.world.get("/v1/me").expect(401);
}

#[test]
fn the_data_plane_accepts_tokens_of_the_instances_workspace() {
    let guarded = Guarded::with(|config| config.with("[identity]", "planes = [\"data\"]"));
    let call = |instance: &str, claims: Value| {
        let host = weir_tests::request::data_host(instance);
        let request = bearing("/userinfo", &guarded.signer.token(&claims)).host(&host);
        guarded.world.call(&request)
    };
    call("in_acme", json!({ "workspace_id": "ws_acme" })).expect(200);
    call("in_acme", json!({ "workspace_id": "ws_quiet" })).expect(403);
    call("in_unknown", json!({ "workspace_id": "ws_acme" })).expect(403);
    guarded.world.get_from("in_acme", "/oauth/v2/keys").expect(200);
    guarded.world.get("/v1/workspaces/ws_acme/users").expect(200);
}

#[test]
fn no_token_appears_in_logs_metrics_or_answers() {
    let guarded = Guarded::new();
    let good = guarded.signer.token(&json!({ "workspace_id": "ws_acme" }));
    let bad = Signer::new("other").token(&json!({ "workspace_id": "ws_acme" }));
    let target = "/v1/workspaces/ws_acme/users";
    let mut answers = String::new();
    for token in [&good, &bad, &format!("{good}x")] {
        answers += &guarded.world.call(&bearing(target, token)).text();
    }
    let gateway = &guarded.world.gateway;
    gateway.access_log().wait("the third request", |line| line["status"] == 401);
    answers += &gateway.call_admin(&Request::get("/metrics")).text();
    answers += &gateway.call_admin(&Request::get("/config")).text();
    answers += &gateway.call_admin(&Request::get("/top")).text();
    for text in [answers, gateway.access_log().text(), gateway.log().text()] {
        for part in good.split('.').chain(bad.split('.')).filter(|part| part.len() > 40) {
            assert!(!text.contains(part), "{text}");
        }
    }
}
