//! The shipped files in `config/` are valid and work.
//!
//! Not here: the commands in documents (`documented`).

mod compose;
mod dispatcher;
mod services;

use std::fs;
use std::path::Path;

use serde_json::Value;
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
fn the_shipped_files_have_every_option() {
    for name in ["gateway", "dispatcher", "events", "tokens"] {
        let schema = serde_json::from_str(&shipped(&format!("config/{name}.schema.json"))).unwrap();
        let text = shipped(&format!("config/{name}.toml"));
        let words: Vec<&str> =
            text.split(|one: char| !one.is_ascii_alphanumeric() && one != '_').collect();
        let missing: Vec<String> =
            options(&schema).into_iter().filter(|option| !words.contains(&&**option)).collect();
        assert!(missing.is_empty(), "{name}.toml lacks {missing:?}");
    }
}

/// The names of the options in a schema.
fn options(schema: &Value) -> Vec<String> {
    let below = |value: &Value| options(value);
    match schema {
        Value::Object(members) => {
            let own = members.get("properties").and_then(Value::as_object);
            let own = own.into_iter().flat_map(|own| own.keys().cloned());
            own.chain(members.values().flat_map(below)).collect()
        }
        Value::Array(items) => items.iter().flat_map(below).collect(),
        _ => Vec::new(),
    }
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
