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
fn the_shipped_files_show_every_option_in_its_table() {
    for name in ["gateway", "dispatcher", "events", "tokens"] {
        let text = shipped(&format!("config/{name}.toml"));
        let shown = shown_options(&text);
        let is_shown = |entry: &SchemaEntry| shown.iter().any(|own| entry.is_at(&own.path));
        // A plan's values of a limit are those that [limits.NAME] has.
        let is_of_plan = |path: &[String]| path.len() == 5 && path[0] == "plans";
        let missing: Vec<String> = schema_entries(name)
            .into_iter()
            .filter(|entry| !entry.is_table && !is_of_plan(&entry.path) && !is_shown(entry))
            .map(|entry| entry.path.join("."))
            .collect();
        assert!(missing.is_empty(), "{name}.toml lacks {missing:?}");
    }
}

/// A reader takes the value of a line that is commented out for the default.
#[test]
fn a_commented_option_of_the_shipped_files_has_its_default_or_names_it() {
    // Digits may be grouped, and a list may have spaces.
    let plain = |value: &str| value.replace([' ', '_'], "");
    let mut wrong = Vec::new();
    for name in ["gateway", "dispatcher", "events", "tokens"] {
        let entries = schema_entries(name);
        let text = shipped(&format!("config/{name}.toml"));
        for own in shown_options(&text) {
            let entry = entries.iter().find(|entry| entry.is_at(&own.path));
            let default = entry.and_then(|entry| entry.default.as_ref()).map(Value::to_string);
            let Some(default) = default.filter(|_| own.is_commented) else { continue };
            let is_elided = own.value.contains('…');
            if !is_elided
                && plain(own.value) != plain(&default)
                && !own.comment.starts_with(&format!("default {default}"))
            {
                wrong.push(format!("{name}: {} (default {default})", own.path.join(".")));
            }
        }
    }
    assert!(wrong.is_empty(), "other values than the defaults:\n{}", wrong.join("\n"));
}

/// An option or a table in the schema of a file in `config/`.
pub(crate) struct SchemaEntry {
    /// Its keys, `NAME` for a name that the operator chooses.
    pub(crate) path: Vec<String>,
    pub(crate) is_table: bool,
    default: Option<Value>,
}

impl SchemaEntry {
    fn is_at(&self, path: &[String]) -> bool {
        let is_same = |(own, key): (&String, &String)| own == "NAME" || own == key;
        self.path.len() == path.len() && self.path.iter().zip(path).all(is_same)
    }
}

/// Everything that the schema of this file describes.
#[track_caller]
pub(crate) fn schema_entries(name: &str) -> Vec<SchemaEntry> {
    let schema = serde_json::from_str(&shipped(&format!("config/{name}.schema.json"))).unwrap();
    let mut entries = Vec::new();
    collect(&schema, &[], &mut entries);
    entries
}

fn collect(schema: &Value, path: &[String], entries: &mut Vec<SchemaEntry>) {
    let item = schema.get("items").filter(|item| item["type"] == "object");
    let schema = item.unwrap_or(schema);
    if !path.is_empty() {
        entries.push(SchemaEntry {
            path: path.to_vec(),
            is_table: schema["type"] == "object",
            default: schema.get("default").cloned(),
        });
    }
    let mut below = |key: &str, schema: &Value| {
        collect(schema, &[path, &[key.to_owned()]].concat(), entries);
    };
    if let Some(each) = schema.get("additionalProperties").filter(|each| each.is_object()) {
        below("NAME", each);
    }
    for (key, option) in schema["properties"].as_object().into_iter().flatten() {
        below(key, option);
    }
}

/// A line of a shipped file that sets an option, or would if it were not commented out.
struct ShownOption<'f> {
    path: Vec<String>,
    is_commented: bool,
    value: &'f str,
    comment: &'f str,
}

fn shown_options(text: &str) -> Vec<ShownOption<'_>> {
    let mut table = Vec::new();
    let mut shown = Vec::new();
    for line in text.lines() {
        let commented = line.strip_prefix("# ");
        let active = commented.unwrap_or(line);
        if active.starts_with('[') {
            let heading = active.trim_start_matches('[').split(']').next().unwrap_or_default();
            // A name in quotes is one key, whatever its dots.
            let parts = heading.split('"').enumerate();
            let unquoted: String =
                parts.map(|(nth, part)| if nth % 2 == 1 { "NAME" } else { part }).collect();
            table = unquoted.split('.').map(str::to_owned).collect();
            continue;
        }
        let Some((key, rest)) = active.split_once(" = ") else { continue };
        if key.chars().all(|one| one.is_ascii_lowercase() || one == '_' || one.is_ascii_digit()) {
            let (value, comment) = rest.split_once(" # ").unwrap_or((rest, ""));
            let path = [&table[..], &[key.to_owned()]].concat();
            let is_commented = commented.is_some();
            let (value, comment) = (value.trim(), comment.trim());
            shown.push(ShownOption { path, is_commented, value, comment });
        }
    }
    shown
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
