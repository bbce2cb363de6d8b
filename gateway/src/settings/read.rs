//! Reads `gateway.toml`, each key in one place: its bounds, its default and one line on why.

use log::LevelFilter;
use weir_common::config::document::{Document, Parsed, Table, suggestion};
use weir_common::directory::values_by_limit;
use weir_common::identifier::IdForm;

use crate::settings::cors::cors;
use crate::settings::directory::directory;
use crate::settings::identity::identity;
use crate::settings::limit::limit;
use crate::settings::server::server;
use crate::settings::spellings::Spellings;
use crate::settings::upstream::upstream;
use crate::settings::{Headers, Log, Plan, Plane, Route, Settings, Store};

/// Reads `gateway.toml`; its mistakes stay in `document`.
#[must_use]
pub fn read(document: &Document) -> Parsed<Settings> {
    document.read(|root| Settings {
        server: root.table("server", "Sockets, threads, deadlines.", server),
        store: root.table("store", "Where limits are kept.", store),
        headers: root.table("headers", "What clients are told beside X-RateLimit-*.", |table| {
            Headers {
                ratelimit: table.flag(
                    "ratelimit",
                    false,
                    "Also send the IETF draft's RateLimit and RateLimit-Policy, with every limit.",
                ),
            }
        }),
        log: root.table("log", "What is written down.", log),
        identity: root.table("identity", "How a client proves who it is.", identity),
        workspaces: root.table("identifiers", "What identifiers look like.", |table| {
            let doc = "What those of workspaces begin with; \"\": with anything.";
            IdForm::read(table, "workspace_prefix", IdForm::workspace(), doc)
        }),
        directory: root.table("directory", "Who belongs to whom.", directory),
        planes: root.tables("planes", "Planes, each a set of hosts.", |_, table| Plane {
            hosts: table.texts("hosts", "Host names; the first label may be {instance}."),
            cors: table.table("cors", "Who may read answers in a browser.", cors),
        }),
        upstreams: root.tables("upstreams", "Where requests go.", |_, table| upstream(table)),
        limits: root.tables("limits", "How much of what.", |_, table| limit(table)),
        plans: root.tables("plans", "What workspaces pay for.", |_, table| Plan {
            per_instance_limits: table.flag(
                "per_instance_limits",
                false,
                "Whether instances of its workspaces may have limits of their own.",
            ),
            limits: values_by_limit(table),
        }),
        routes: root.list(
            "routes",
            "Which requests meet which limits; the most specific wins.",
            route,
        ),
    })
}

fn store(table: &mut Table<'_>) -> Store {
    table.choice("kind", &[("memory", ())], "memory: in this process.");
    Store {
        max_keys: table.number_or(
            "max_keys",
            1_000..=1_000_000_000,
            1_000_000,
            "Keys that the directory does not know; more share a few states.",
        ),
        snapshot: table
            .text(
                "snapshot",
                "Keeps counters across a restart in this file; nothing is kept without.",
            )
            .map(|path| path.value)
            .filter(|path| !path.is_empty()),
    }
}

fn log(table: &mut Table<'_>) -> Log {
    let levels = [
        ("info", LevelFilter::Info),
        ("error", LevelFilter::Error),
        ("warn", LevelFilter::Warn),
        ("debug", LevelFilter::Debug),
    ];
    Log {
        level: table.choice("level", &levels, "The least that is written to standard error."),
        access: table.choice(
            "access",
            &[("stdout", true), ("off", false)],
            "Where one JSON line per request goes.",
        ),
    }
}

fn route(table: &mut Table<'_>) -> Route {
    for key in ["plane", "path", "upstream"] {
        table.require(key);
    }
    if table.has("body_bytes_max") && !table.has("batch_items_max") {
        table.fault("`body_bytes_max` is used only for batches: add batch_items_max");
    }
    Route {
        at: table.at(),
        plane: table.text("plane", "On which plane."),
        methods: table.texts("methods", "For which methods; all where not given. GET brings HEAD."),
        path: table
            .text("path", "Literal segments, {workspace}, {organisation}, and {*rest} last."),
        spellings: spellings(table),
        exempt: table.flag("exempt", false, "No limit applies, and no limit headers are sent."),
        anonymous: table.choice(
            "verify",
            &[("plane", false), ("none", true)],
            "none: no token is asked for, whatever [identity] says of the plane.",
        ),
        limits: table.texts("limits", "The limits that apply, all or nothing."),
        upstream: table.text("upstream", "Where requests go."),
        batch_items_max: table.number(
            "batch_items_max",
            1..=1_000_000,
            "The body is a JSON array of at most so many items; it is held back until counted.",
        ),
        body_bytes_max: table.bytes_or(
            "body_bytes_max",
            1..=64 << 20,
            1 << 20,
            "The largest body of a batch; more is 413.",
        ),
    }
}

/// The spellings that a route takes, by their names.
fn spellings(table: &mut Table<'_>) -> Spellings {
    const NAMES: [&str; 3] = ["trailing_slash", "escapes", "escaped_slash"];
    let given = table.texts(
        "spellings",
        "Paths that are refused elsewhere: trailing_slash, escapes (%3A), escaped_slash (%2F).",
    );
    let mut spellings = Spellings::NONE;
    for name in &given {
        match name.value.as_str() {
            "trailing_slash" => spellings.trailing_slash = true,
            "escapes" => spellings.escapes = true,
            "escaped_slash" => spellings.escaped_slash = true,
            other => {
                let hint = suggestion(other, &NAMES)
                    .unwrap_or_else(|| format!("known: {}", NAMES.join(", ")));
                table.fault_at(name.at, format!("unknown spelling `{other}`; {hint}"));
            }
        }
    }
    spellings
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use std::time::Duration;

    use super::*;

    /// Compares each default of a schema with the active value, wherever there is one.
    fn compare(schema: &Value, effective: &Value, path: &str, differ: &mut Vec<String>) {
        for (key, shape) in schema["properties"].as_object().into_iter().flatten() {
            let path = format!("{path}.{key}");
            let value = &effective[key];
            if shape.get("default").is_some_and(|default| default != value) {
                differ.push(format!("{path} is {value}, by default {}", shape["default"]));
            }
            compare(shape, value, &path, differ);
        }
    }

    #[test]
    fn an_idle_connection_outlives_the_minute_that_balancers_keep_theirs() {
        let Parsed { made, .. } = read(&Document::new("g", ""));
        assert!(made.server.idle_timeout > Duration::from_secs(60));
    }

    #[test]
    fn the_shipped_file_says_what_holds_without_it() {
        let shipped = Document::new("g", include_str!("../../../config/gateway.toml"));
        let Parsed { schema, effective, .. } = read(&shipped);
        let mut differ = Vec::new();
        compare(&schema, &effective, "", &mut differ);
        assert!(differ.is_empty(), "{}", differ.join("\n"));
        let given = include_str!("../../../config/gateway.toml");
        for key in ["head_timeout", "max_keys", "unknown_limits", "ratelimit", "level", "verify"] {
            assert!(given.contains(&format!("\n{key} = ")), "{key} is not in the shipped file");
        }
    }
}
