//! Tokens with a directory over HTTP: which entries are fetched, and how a request without an
//! entry is answered.

use serde_json::json;
use weir_tests::answer::Answer;
use weir_tests::config::Config;
use weir_tests::directory::Directory;

use super::Guarded;

/// Entries stay valid for longer than a test.
const LONG: &str = "ttl = \"1h\"\nnegative_ttl = \"1h\"\ntimeout = \"10s\"";

#[track_caller]
fn guarded(change: impl FnOnce(Config) -> Config) -> (Guarded, Directory) {
    let directory = Directory::start();
    let guarded = Guarded::with(|config| change(directory.within(config, LONG)));
    (guarded, directory)
}

#[test]
fn a_token_of_an_organisation_fetches_the_workspaces_entry() {
    let (guarded, directory) = guarded(|config| config);
    let claims = || json!({ "organisation_id": "org_acme" });
    for _ in 0..2 {
        guarded.get("/v1/workspaces/ws_acme/users", claims()).expect(200);
        let foreign = guarded.get("/v1/workspaces/ws_big/users", claims()).expect(403);
        assert_eq!(foreign.json()["type"], "urn:weir:problem:foreign-token");
        guarded.get("/v1/workspaces/ws_unknown/users", claims()).expect(403);
    }
    for entry in ["workspaces/ws_acme", "workspaces/ws_big", "workspaces/ws_unknown"] {
        assert_eq!(directory.count(entry), 1, "{entry}: {:?}", directory.fetched());
    }
    assert_eq!(guarded.used("workspace", "ws_acme"), 2);
    assert_eq!(guarded.used("organisation", "org_acme"), 2);
    assert_eq!(guarded.used("organisation", "org_globex"), 0);
    assert_eq!(guarded.used("refused", "127.0.0.1"), 4);
}

#[test]
fn a_failing_directory_is_a_503_charged_to_the_address_alone() {
    let (guarded, directory) = guarded(|config| config);
    directory.server.always(Answer::status(500));
    for claims in [json!({ "organisation_id": "org_acme" }), json!({ "workspace_id": "ws_acme" })] {
        let answer = guarded.get("/v1/workspaces/ws_acme/users", claims).expect(503);
        assert_eq!(answer.json()["type"], "urn:weir:problem:directory-unavailable");
        assert_eq!(answer.allowance().resource, "refused");
    }
    guarded.world.control.assert_untouched();
    assert_eq!(guarded.used("refused", "127.0.0.1"), 2);
}

#[test]
fn a_token_that_lists_workspaces_needs_no_directory_request() {
    let (guarded, directory) = guarded(|config| {
        config.with(
            "[[routes]]",
            "plane = \"control\"\npath = \"/v1/workspaces/{workspace}/status\"\n\
             limits = [\"address\"]\nupstream = \"control\"",
        )
    });
    let listed = || json!({ "workspace_id": ["ws_quiet", "ws_acme"] });
    guarded.get("/v1/workspaces/ws_acme/status", listed()).expect(200);
    guarded.get("/v1/workspaces/ws_big/status", listed()).expect(403);
    assert_eq!(directory.fetched(), [""; 0]);
    // The organisation alone does not identify a workspace.
    let claims = json!({ "organisation_id": "org_acme" });
    guarded.get("/v1/workspaces/ws_acme/status", claims).expect(200);
    assert_eq!(directory.fetched(), ["workspaces/ws_acme"]);
}
