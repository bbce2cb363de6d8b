//! The OpenAPI document matches the API: schemathesis calls every documented operation and compares
//! the responses.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use weir_tests::client::Client;
use weir_tests::dispatcher::ACME;
use weir_tests::real;
use weir_tests::request::Request;
use weir_tests::wait;

use super::Stage;

#[test]
fn the_openapi_document_describes_every_call() {
    let stage = Stage::new();
    let answer = Client::connect(stage.dispatcher.api_address()).get("/openapi.json").expect(200);
    let document = answer.json();
    assert!(document["openapi"].as_str().is_some_and(|version| version.starts_with("3.1")));
    for (path, method) in [
        ("/webhooks", "post"),
        ("/webhooks", "get"),
        ("/webhooks:check", "post"),
        ("/webhooks/{id}", "get"),
        ("/webhooks/{id}", "patch"),
        ("/webhooks/{id}", "delete"),
        ("/webhooks/{id}:reactivate", "post"),
        ("/webhooks/{id}:rotate-secret", "post"),
        ("/webhooks/{id}:ping", "post"),
        ("/webhooks/{id}/secrets", "post"),
        ("/webhooks/{id}/secrets", "get"),
        ("/webhooks/{id}/secrets/{fingerprint}", "delete"),
        ("/deliveries", "get"),
        ("/deliveries/export", "get"),
        ("/deliveries/{id}", "get"),
        ("/deliveries/{id}:redeliver", "post"),
        ("/deliveries:redeliver", "post"),
        ("/redeliveries", "get"),
        ("/redeliveries/{id}", "get"),
        ("/redeliveries/{id}:cancel", "post"),
        ("/events/{id}", "get"),
    ] {
        let path = format!("/v1/workspaces/{{workspace}}{path}");
        assert!(document["paths"][&path][method].is_object(), "{method} {path} is missing");
    }
    assert!(document["paths"]["/v1/event-types"]["get"].is_object());
    assert_eq!(document["webhooks"].as_object().map(serde_json::Map::len), Some(11));
}

#[test]
fn generated_inputs_find_no_server_error_and_no_undocumented_response() {
    let stage = Stage::with(|config| config.with("[webhooks]", "per_workspace_max = 10000"));
    stage.webhook("/hook", &["user.created"]);
    stage.dispatcher.post_event("user.created");
    stage.dispatcher.acme().wait_for_count("delivered", 1);
    let url = format!("http://{}", stage.dispatcher.api_address());
    let pinned = "[parameters]\n\"path.workspace\" = \"ws_acme\"\n";
    let config = stage.dispatcher.folder().write("schemathesis.toml", pinned);
    let finished = run_bounded(&mut schemathesis(&url, &config, &stage));
    assert!(finished.0, "{}", finished.1);
    let alive = Request::get("/readyz");
    stage.dispatcher.call_admin(&alive).expect(200);
}

fn schemathesis(url: &str, config: &Path, stage: &Stage) -> Command {
    let mut schemathesis = real::python_tool("schemathesis");
    schemathesis
        .arg("--config-file")
        .arg(config)
        .args(["run", &format!("{url}/openapi.json"), "--url", url])
        .args(["--header", &format!("Authorization: Bearer {ACME}")])
        .args(["--checks", "not_a_server_error,status_code_conformance"])
        .args(["--checks", "content_type_conformance,response_schema_conformance"])
        .args(["--phases", "examples,coverage,fuzzing", "--max-examples", "30"])
        // With more workers Python 3.11 sometimes fails: its parser is not thread-safe.
        .args(["--seed", "7", "--workers", "1", "--no-color", "--request-timeout", "10"])
        .current_dir(stage.dispatcher.folder().root());
    schemathesis
}

/// Runs a command with a longer timeout than other waits have: half a minute on an idle machine.
fn run_bounded(command: &mut Command) -> (bool, String) {
    let mut process = weir_tests::process::Process::spawn("schemathesis", command);
    let code = wait::within(Duration::from_secs(300), || process.try_wait());
    (code == Some(0), format!("{}\n{}", process.stdout().text(), process.stderr().text()))
}
