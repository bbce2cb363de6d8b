//! What is shipped holds: the files in `config/`, and the requests that the README begins with.
//!
//! A block of the README has a line `$ curl -i …` that calls port 8080, and below it the lines of
//! the answer. Its status and what it says of the allowance must come so, but for the time.

mod dispatcher;
mod services;

use std::fs;
use std::path::Path;
use std::process::Command;

use weir_tests::folder::Folder;
use weir_tests::gateway::{Gateway, run};
use weir_tests::request::Request;
use weir_tests::upstream::Upstream;

const CONFIG: &str = "config/gateway.toml";
const DIRECTORY: &str = "config/directory.toml";

#[test]
fn the_shipped_files_are_found_good() {
    let folder = Folder::new();
    folder.write(CONFIG, &shipped(CONFIG));
    folder.write(DIRECTORY, &shipped(DIRECTORY));
    run(&folder, &["check", "--config", CONFIG]).expect(0);
}

#[test]
fn the_shipped_files_serve_every_documented_call() {
    let [control, data, dispatcher] = [(); 3].map(|()| Upstream::start());
    let gateway = shipped_gateway(&[&control, &data, &dispatcher].map(Upstream::address));
    let mut client = gateway.client();
    let workspace = client.get("/v1/workspaces/ws_acme").expect(200).allowance();
    assert_eq!((workspace.resource.as_str(), workspace.limit), ("workspace", 60));
    let batch = Request::post("/v1/workspaces/ws_acme/tenants:batch", "[{}]");
    assert_eq!(client.call(&batch).expect(200).allowance().limit, 5);
    let organisation = client.get("/v1/organisations/org_acme").expect(200).allowance();
    assert_eq!((organisation.resource.as_str(), organisation.limit), ("organisation", 600));
    client.get("/healthz").expect(200).assert_no_allowance();
    client.get("/assets/app.js").expect(200).assert_no_allowance();
    client.get("/v1/workspaces/ws_acme/webhooks").expect(200).allowance();
    assert_eq!(dispatcher.requests().len(), 2);

    let host = "in_acme.auth.localhost";
    for document in ["/.well-known/openid-configuration", "/oauth/v2/keys"] {
        client.call(&Request::get(document).host(host)).expect(200).assert_no_allowance();
    }
    let instance = client.call(&Request::get("/login").host(host)).expect(200).allowance();
    assert_eq!((instance.resource.as_str(), instance.limit), ("instance", 200));
    assert_eq!(data.requests().len(), 3);
}

#[test]
fn the_requests_in_the_readme_are_answered_as_it_says() {
    let [control, data, dispatcher] = [(); 3].map(|()| Upstream::start());
    let gateway = shipped_gateway(&[&control, &data, &dispatcher].map(Upstream::address));
    let limited = section("A limited request");
    let blocks: Vec<&str> =
        limited.split("```").filter(|block| block.contains("$ curl -i")).collect();
    assert_eq!(blocks.len(), 2, "the README shows a first request and the sixty-first");
    let mut client = gateway.client();
    check_block(&gateway, blocks[0]);
    for _ in 0..59 {
        client.get("/v1/workspaces/ws_acme").expect(200);
    }
    check_block(&gateway, blocks[1]);
}

/// Runs a block's command and compares what must come so: the status and the allowance.
#[track_caller]
fn check_block(gateway: &Gateway, block: &str) {
    let (command, lines) = block.split_once("$ ").unwrap().1.split_once('\n').unwrap();
    assert!(command.contains("/v1/workspaces/ws_acme") && command.contains(":8080"), "{command}");
    let port = gateway.http().rsplit(':').next().unwrap().to_owned();
    let command = command.replace(":8080", &format!(":{port}"));
    let finished = Command::new("sh").args(["-c", &command]).output().unwrap();
    assert!(finished.status.success(), "{command}: {}", finished.status);

    let said = String::from_utf8_lossy(&finished.stdout).to_lowercase();
    let mut promised = 0;
    for line in lines.lines().map(str::to_lowercase) {
        let compared = ["http/", "x-ratelimit-", "retry-after"];
        if !compared.iter().any(|start| line.starts_with(start)) {
            continue;
        }
        // When it is said makes the difference to these two.
        let timed = ["x-ratelimit-reset: ", "retry-after: "];
        let line = timed.into_iter().find(|start| line.starts_with(start)).unwrap_or(&line);
        assert!(said.contains(line.trim_end()), "README promises {line:?}, but it is\n{said}");
        promised += 1;
    }
    assert!(promised >= 4, "the README shows no status and allowance below its curl");
}

/// A gateway on the shipped files, before these three; only ports differ.
#[track_caller]
fn shipped_gateway([control, data, dispatcher]: &[String; 3]) -> Gateway {
    let mut text = shipped(CONFIG);
    for (port, address) in [
        ("127.0.0.1:8080", "127.0.0.1:0"),
        ("127.0.0.1:8081", "127.0.0.1:0"),
        ("127.0.0.1:9001", control),
        ("127.0.0.1:9002", data),
        ("127.0.0.1:9003", dispatcher),
        (DIRECTORY, "directory.toml"),
    ] {
        assert!(text.contains(port), "{CONFIG} has no {port}");
        text = text.replace(port, address);
    }
    Gateway::start(&text, &shipped(DIRECTORY))
}

/// Where the repository is.
fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap()
}

/// The text of a file that is shipped.
#[track_caller]
fn shipped(name: &str) -> String {
    let path = root().join(name);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// The section of the README that has this title.
#[track_caller]
fn section(title: &str) -> String {
    let readme = shipped("README.md");
    let from = readme.split_once(&format!("\n## {title}\n"));
    let (_, rest) = from.unwrap_or_else(|| panic!("the README has no section {title}"));
    rest.split("\n## ").next().unwrap_or_default().to_owned()
}
