//! What the protocol's own tools say: the conformance suite, and the inspector's command line.

use serde_json::{Value, json};
use weir_tests::process::Finished;
use weir_tests::real;

use super::{BEARER, Stage};

const INSPECTOR: &str = "@modelcontextprotocol/inspector/clients/launcher/build/index.js";

/// The scenarios for servers that need no tool of a test server.
const SCENARIOS: [&str; 6] = [
    "server-initialize",
    "ping",
    "tools-list",
    "resources-list",
    "prompts-list",
    "dns-rebinding-protection",
];

#[test]
fn the_conformance_suite_finds_nothing() {
    let stage = Stage::new();
    let served = stage.serve();
    let mut suite = real::node("tests/real/conformance.mjs");
    suite.env("BEARER", BEARER).arg(format!("http://{}/mcp", served.address)).args(SCENARIOS);
    let Finished { stdout, stderr, .. } = real::run(&mut suite).expect(0);
    let results: Value =
        serde_json::from_str(&stdout).unwrap_or_else(|why| panic!("{why} {stderr}"));
    for scenario in SCENARIOS {
        let result = &results[scenario];
        let printed = result["printed"].as_str().unwrap();
        assert_eq!(result["code"], 0, "{scenario}: {printed}");
        assert!(printed.contains("0 failed, 0 warnings"), "{scenario}: {printed}");
    }
}

#[test]
fn the_inspector_calls_tools_and_finds_no_schema_that_a_client_may_not_understand() {
    let stage = Stage::new();
    let webhook = stage.webhook();
    let inspect = |method: &[&str]| {
        let mut inspector = real::node_tool(INSPECTOR);
        inspector.arg("--cli").args(stage.command(&[])).args(method);
        real::run(&mut inspector).expect(0)
    };
    let listed = inspect(&["--method", "tools/list", "--strict"]);
    let output = listed.output();
    assert!(output.contains("list_webhooks") && !output.contains("Warning: tool"), "{output}");
    let get = ["--method", "tools/call", "--tool-name", "get_webhook", "--tool-arg"];
    for era in ["legacy", "modern"] {
        let more = [&format!("id={webhook}"), "--protocol-era", era, "--format", "json"];
        let called = inspect(&[&get[..], &more[..]].concat());
        let start = called.stdout.find('{').unwrap_or_else(|| panic!("{}", called.output()));
        let result: Value = serde_json::from_str(&called.stdout[start..]).unwrap();
        let data =
            result.pointer("/structuredContent").or(result.pointer("/result/structuredContent"));
        assert_eq!(data.map(|data| &data["id"]), Some(&json!(webhook)), "{result:#}");
    }
}
