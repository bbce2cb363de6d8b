//! Reads `gateway.toml`, each key in one place: its bounds, its default and one line on why.

use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;
use std::time::Duration;

use ipnet::IpNet;
use log::LevelFilter;
use weir_common::directory::values_by_limit;
use weir_common::ids::IdForm;
use weir_common::reader::{At, Document, Reading, Table, suggestion};

use crate::request::target::Spellings;
use crate::settings::cors::cors;
use crate::settings::directory::directory;
use crate::settings::edge::https;
use crate::settings::identity::identity;
use crate::settings::limit::limit;
use crate::settings::trusted::trusted_headers;
use crate::settings::upstream::upstream;
use crate::settings::{Caps, Headers, Log, Plan, Plane, Route, Server, Settings, Store};

/// Any wait an operator may ask for: from a moment that a clock can tell to a day.
pub(super) const WAIT: RangeInclusive<Duration> =
    Duration::from_millis(1)..=Duration::from_secs(86_400);

/// Reads `gateway.toml`; its mistakes stay in `document`.
#[must_use]
pub fn read(document: &Document) -> Reading<Settings> {
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

fn server(table: &mut Table<'_>) -> Server {
    let seconds = Duration::from_secs;
    let admin = table.text("admin", "The operator's address. Loopback, or with a token.");
    table.set_default("admin", "127.0.0.1:8081".into());
    let admin_at = admin.as_ref().map_or(table.at(), |admin| admin.at);
    let admin = admin.and_then(|text| address(table, &text));
    Server {
        http: addresses(
            table,
            "http",
            "127.0.0.1:8080",
            "Addresses that clients call; []: none, where all call by TLS.",
        ),
        admin: admin.unwrap_or_else(|| SocketAddr::from(([127, 0, 0, 1], 8081))),
        admin_at,
        admin_token_file: table.text(
            "admin_token_file",
            "A file whose first line is the admin listener's bearer token.",
        ),
        threads: number(table.number_or(
            "threads",
            0..=1_024,
            0,
            "Worker threads; 0: one per core.",
        )),
        https: table.list("https", "Addresses that clients call by TLS.", https),
        trusted_proxies: networks(
            table,
            "trusted_proxies",
            "Networks whose X-Forwarded-For is believed.",
        ),
        trusted_headers: trusted_headers(table),
        proxy_protocol_from: networks(
            table,
            "proxy_protocol_from",
            "Networks whose connections begin with a PROXY header (v1 or v2).",
        ),
        handshake_timeout: table.span_or(
            "handshake_timeout",
            WAIT,
            seconds(10),
            "A PROXY header and a TLS handshake, together.",
        ),
        head_timeout: table.span_or("head_timeout", WAIT, seconds(10), "A whole request head."),
        body_timeout: table.span_or(
            "body_timeout",
            WAIT,
            seconds(30),
            "Between two reads of a body.",
        ),
        idle_timeout: table.span_or(
            "idle_timeout",
            WAIT,
            seconds(75),
            "A connection without a request; longer than a balancer in front keeps it.",
        ),
        caps: caps(table),
        shutdown_delay: shutdown_delay(table),
        shutdown_grace: table.span_or(
            "shutdown_grace",
            WAIT,
            seconds(30),
            "The longest a stop waits for requests in flight.",
        ),
    }
}

/// Nothing is a stop at once.
fn shutdown_delay(table: &mut Table<'_>) -> Duration {
    let range = Duration::ZERO..=*WAIT.end();
    let doc = "How long a stop goes on accepting while /readyz is 503.";
    table.span_or("shutdown_delay", range, Duration::ZERO, doc)
}

fn caps(table: &mut Table<'_>) -> Caps {
    Caps {
        head_bytes_max: table.bytes_or(
            "head_bytes_max",
            1_024..=1 << 20,
            32 << 10,
            "The largest request head; more is 431.",
        ),
        held_bytes_max: table.bytes_or(
            "held_bytes_max",
            1 << 10..=1 << 40,
            256 << 20,
            "Batch bodies held back at one time, together; more is 503.",
        ),
        connections_max: table.number_or(
            "connections_max",
            1..=10_000_000,
            20_000,
            "Connections at one time; more are closed at once.",
        ),
        connections_per_address_max: table.number_or(
            "connections_per_address_max",
            1..=10_000_000,
            1_000,
            "The same from one address, or one IPv6 /64; trusted proxies have no such limit.",
        ),
        requests_per_connection_max: small(table.number_or(
            "requests_per_connection_max",
            1..=u64::from(u32::MAX),
            10_000,
            "Requests on one connection, which then closes: what it takes is freed.",
        )),
        streams_max: small(table.number_or(
            "streams_max",
            1..=10_000,
            100,
            "Requests at one time on one HTTP/2 connection.",
        )),
    }
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

fn addresses(table: &mut Table<'_>, key: &str, default: &str, doc: &str) -> Vec<SocketAddr> {
    let is_given = table.has(key);
    let texts = table.texts(key, doc);
    table.set_default(key, vec![default].into());
    if !is_given {
        return default.parse().into_iter().collect();
    }
    texts.iter().filter_map(|text| address(table, text)).collect()
}

pub(super) fn address(table: &Table<'_>, text: &At<String>) -> Option<SocketAddr> {
    let parsed = text.value.parse().ok();
    if parsed.is_none() {
        table.fault_at(
            text.at,
            format!("`{}` is not ip:port, such as \"127.0.0.1:8080\"", text.value),
        );
    }
    parsed
}

fn networks(table: &mut Table<'_>, key: &str, doc: &str) -> Vec<IpNet> {
    let texts = table.texts(key, doc);
    let network = |text: &At<String>| {
        let single = || text.value.parse::<IpAddr>().ok().map(IpNet::from);
        let parsed = text.value.parse().ok().or_else(single);
        if parsed.is_none() {
            table.fault_at(
                text.at,
                format!("`{}` is not a network, such as \"10.0.0.0/8\"", text.value),
            );
        }
        parsed
    };
    texts.iter().filter_map(network).collect()
}

pub(super) fn number(value: u64) -> usize {
    usize::try_from(value).unwrap_or(usize::MAX)
}

pub(super) fn small(value: u64) -> u32 {
    u32::try_from(value).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    /// Compares each default of a schema with the value in force, wherever there is one.
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
        let Reading { made, .. } = read(&Document::new("g", ""));
        assert!(made.server.idle_timeout > Duration::from_secs(60));
    }

    #[test]
    fn the_shipped_file_says_what_holds_without_it() {
        let shipped = Document::new("g", include_str!("../../../config/gateway.toml"));
        let Reading { schema, effective, .. } = read(&shipped);
        let mut differ = Vec::new();
        compare(&schema, &effective, "", &mut differ);
        assert!(differ.is_empty(), "{}", differ.join("\n"));
        let given = include_str!("../../../config/gateway.toml");
        for key in ["head_timeout", "max_keys", "unknown_limits", "ratelimit", "level", "verify"] {
            assert!(given.contains(&format!("\n{key} = ")), "{key} is not in the shipped file");
        }
    }
}
