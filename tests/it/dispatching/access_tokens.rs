//! Access tokens of the platform, which both programs verify with the keys of one JWKS server.

use std::fs;

use serde_json::{Value, json};
use weir_tests::answer::Answer;
use weir_tests::client::Client;
use weir_tests::config::Config;
use weir_tests::dispatcher::{CONFIG, DIRECTORY, event};
use weir_tests::issuer::{AUDIENCE, ISSUER, Signer, published};
use weir_tests::request::Request;
use weir_tests::response::Response;
use weir_tests::upstream::Upstream;
use weir_tests::world::World;

use super::Stage;
use crate::tokens::by_keys;

/// A dispatcher that verifies access tokens, and accepts registered ones.
struct Guarded {
    stage: Stage,
    server: Upstream,
    signer: Signer,
}

impl Guarded {
    #[track_caller]
    fn new() -> Self {
        let (server, signer) = (Upstream::start(), Signer::new("first"));
        server.always(Answer::ok(published(&[&signer])));
        let stage = Stage::with(|config| verifying(config, &server, ""));
        Self { stage, server, signer }
    }

    /// A GET of a workspace's webhooks with a token that has these claims.
    #[track_caller]
    fn list(&self, workspace: &str, claims: Value) -> Response {
        self.stage.dispatcher.api(&self.signer.token(&claims), workspace).get("/webhooks")
    }

    #[track_caller]
    fn send(&self, claims: Value) -> Response {
        let body = event("ws_acme", "user.created").to_string();
        let bearer = format!("Bearer {}", self.signer.token(&claims));
        let request = Request::post("/internal/v1/events", body).field("Authorization", &bearer);
        Client::connect(self.stage.dispatcher.ingest_address()).call(&request)
    }
}

fn verifying(config: Config, server: &Upstream, more: &str) -> Config {
    let jwt = format!(
        "jwks_url = \"http://{}/keys\"\nissuer = \"{ISSUER}\"\naudience = [\"{AUDIENCE}\"]",
        server.address()
    );
    config.with("[identity]", &format!("verify = \"jwt\"\n{more}")).with("[identity.jwt]", &jwt)
}

#[test]
fn a_reload_to_a_server_without_keys_is_refused_and_the_earlier_keys_stay_in_use() {
    let guarded = Guarded::new();
    let claims = json!({ "workspace_id": "ws_acme", "scope": "webhooks:read" });
    guarded.list("ws_acme", claims.clone()).expect(200);
    let dispatcher = &guarded.stage.dispatcher;
    let other = fs::read_to_string(dispatcher.folder().path(CONFIG)).unwrap();
    let other = other.replace(&guarded.server.address(), &Upstream::refusing().address());
    dispatcher.folder().write(CONFIG, &other);
    let refused = dispatcher.reload().expect(422).json();
    let problem = refused["problems"][0].as_str().unwrap();
    let line = 1 + other.lines().position(|line| line.starts_with("jwks_url")).unwrap();
    assert!(problem.starts_with(&format!("{CONFIG}:{line}:")), "{problem}");
    assert!(problem.contains("keys cannot be fetched: "), "{problem}");
    guarded.list("ws_acme", claims).expect(200);
}

#[test]
fn an_access_token_permits_what_its_claims_say() {
    let guarded = Guarded::new();
    let reads = "openid webhooks:read";
    guarded.list("ws_acme", json!({ "workspace_id": "ws_acme", "scope": reads })).expect(200);
    guarded.list("ws_acme", json!({ "workspace_id": "ws_quiet", "scope": reads })).expect(404);
    guarded.list("ws_acme", json!({ "scope": reads })).expect(404);
    let answer = guarded.list("ws_acme", json!({ "workspace_id": "ws_acme" }));
    let challenge = answer.field("www-authenticate").unwrap_or_default().to_owned();
    assert!(challenge.contains("scope=\"webhooks:read\""), "{challenge}");
    answer.expect_problem(403);
    guarded.stage.dispatcher.acme().get("/webhooks").expect(200);

    guarded.send(json!({ "workspace_id": "ws_acme", "scope": "events:write" })).expect(202);
    guarded
        .send(json!({ "workspace_id": "ws_quiet", "scope": "events:write" }))
        .expect_problem(403);
    guarded.send(json!({ "workspace_id": "ws_acme", "scope": reads })).expect_problem(403);
}

#[test]
fn a_token_of_an_organisation_reaches_its_workspaces_and_a_backends_reaches_all() {
    let guarded = Guarded::new();
    let more = "all_workspaces = [\"backend\"]";
    let config = verifying(weir_tests::dispatcher::config(), &guarded.server, more);
    guarded.stage.dispatcher.folder().write(CONFIG, &config.to_string());
    let directory = "[organisations.org_1]\n[workspaces.ws_acme]\norganisation = \"org_1\"\n\
                     [workspaces.ws_quiet]\n";
    guarded.stage.dispatcher.folder().write(DIRECTORY, directory);
    guarded.stage.dispatcher.reload().expect(200);
    let of_org = || json!({ "organisation_id": "org_1", "scope": "webhooks:read" });
    guarded.list("ws_acme", of_org()).expect(200);
    guarded.list("ws_quiet", of_org()).expect(404);
    let backend = || json!({ "scope": "backend webhooks:read" });
    guarded.list("ws_acme", backend()).expect(200);
    guarded.list("ws_quiet", backend()).expect(200);
}

#[test]
fn a_token_that_is_not_valid_is_a_401_and_one_that_cannot_be_verified_a_503() {
    let guarded = Guarded::new();
    let stranger = Signer::new("first").token(&json!({ "workspace_id": "ws_acme" }));
    let answer = guarded.stage.dispatcher.api(&stranger, "ws_acme").get("/webhooks");
    let challenge = answer.field("www-authenticate").unwrap_or_default().to_owned();
    assert!(challenge.contains("invalid_token"), "{challenge}");
    answer.expect_problem(401);
    guarded.list("ws_acme", json!({ "exp": 1 })).expect_problem(401);
    let log = guarded.stage.dispatcher.log();
    log.wait("why tokens are rejected", |line| line["message"] == "tokens rejected");
    assert!(!log.text().contains(&stranger));

    let mute = Upstream::start();
    mute.always(Answer::status(500));
    let stage = Stage::with(|config| verifying(config, &mute, ""));
    let token = guarded.signer.token(&json!({ "workspace_id": "ws_acme" }));
    let answer = stage.dispatcher.api(&token, "ws_acme").get("/webhooks");
    assert!(answer.field("retry-after").is_some());
    answer.expect_problem(503);
    stage.dispatcher.acme().get("/webhooks").expect(200);
}

#[test]
fn one_token_passes_the_gateway_and_the_dispatcher() {
    let guarded = Guarded::new();
    let servers = format!("servers = [\"{}\"]", guarded.stage.dispatcher.api_address());
    let world = World::with(|config| {
        by_keys(config.with("[upstreams.dispatcher]", &servers), &guarded.server)
    });
    let claims = json!({ "workspace_id": "ws_acme", "scope": "webhooks:read webhooks:write" });
    let token = guarded.signer.token(&claims);
    let acme = guarded.stage.dispatcher.api(&token, "ws_acme").through(world.gateway.http());
    let body = json!({ "url": guarded.stage.receiver.url("/hook"), "events": ["user.created"] });
    acme.post("/webhooks", &body).expect(201);
    let quiet = guarded.stage.dispatcher.api(&token, "ws_quiet").through(world.gateway.http());
    quiet.get("/webhooks").expect_problem(403);
}
