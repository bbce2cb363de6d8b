//! The shipped files in `config/` are valid and work.
//!
//! Not here: the commands in documents (`documented`).

mod compose;
mod dispatcher;
mod services;

use std::fs;
use std::path::Path;

use weir_tests::folder::Folder;
use weir_tests::gateway::{Gateway, run};
use weir_tests::request::Request;
use weir_tests::upstream::Upstream;

const CONFIG: &str = "config/gateway.toml";
const DIRECTORY: &str = "config/directory.toml";

#[test]
fn the_shipped_files_pass_check() {
    let folder = Folder::new();
    folder.write(CONFIG, &shipped(CONFIG));
    folder.write(DIRECTORY, &shipped(DIRECTORY));
    run(&folder, &["check", "--config", CONFIG]).expect(0);
}

#[test]
fn the_shipped_files_serve_every_documented_call() {
    let [control, data, dispatcher] = [(); 3].map(|()| Upstream::start());
    let servers = [&control, &data, &dispatcher].map(Upstream::address);
    let gateway = shipped_gateway(&servers, |text| text);
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

/// A gateway with the shipped files, in front of these three addresses; only addresses differ, and
/// what a test changes.
#[track_caller]
pub(crate) fn shipped_gateway(
    [control, data, dispatcher]: &[String; 3],
    change: impl FnOnce(String) -> String,
) -> Gateway {
    let mut text = change(shipped(CONFIG));
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

/// The root of the repository.
fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap()
}

/// The text of a shipped file.
#[track_caller]
fn shipped(name: &str) -> String {
    let path = root().join(name);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{name}: {error}"))
}
