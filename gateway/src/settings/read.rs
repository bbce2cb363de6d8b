//! Reads `gateway.toml`: each key with its bounds, its default and its description, in one place.

use serde_json::json;
use weir_common::config::document::table::Table;
use weir_common::config::document::{Document, Parsed, Spanned, suggestion};
use weir_common::directory::values_by_limit;
use weir_common::identifier::IdForm;
use weir_common::log::events;

use crate::settings::cors::cors;
use crate::settings::directory::directory;
use crate::settings::limit::limit;
use crate::settings::server::server;
use crate::settings::spellings::Spellings;
use crate::settings::store;
use crate::settings::upstream::upstream;
use crate::settings::{
    Headers, Log, REFUSED, RawLimit, RawPlan, RawPlane, RawRoute, RawSettings, RouteCost, Settings,
};
use weir_common::config::trusted_url::check_url;
use weir_common::identity::settings::{IdentitySettings, Verify};

/// Reads `gateway.toml`; reports problems to `document`.
#[must_use]
pub fn read(document: &Document) -> Parsed<RawSettings> {
    document.read(raw_settings)
}

/// The tables are read in the order in which they are documented.
fn raw_settings(root: &mut Table<'_>) -> RawSettings {
    let server = root.table("server", "Sockets, threads, deadlines.", server);
    let store = root.table("store", "Where the counters of limits are.", store::store);
    let doc = "Which headers clients get in addition to X-RateLimit-*.";
    let headers = root.table("headers", doc, |table| Headers {
        ratelimit: table.flag(
            "ratelimit",
            false,
            "Also send the IETF draft's RateLimit and RateLimit-Policy, with every limit.",
        ),
    });
    let log = root.table("log", "What is logged.", log);
    let doc = "Where warnings of limits go: see limits.NAME.warn_at.";
    let warnings_url = root.table("warnings", doc, |table| {
        let doc =
            "Each warning is posted there as JSON, at most four at a time; what fails is lost.";
        let url = table.text("url", doc)?;
        check_url(table, "url", &url, "put a relay in front").map(String::from)
    });
    let (identity, token_planes) = root.table("identity", "How clients authenticate.", |table| {
        let settings = IdentitySettings::read(table);
        let planes = table.texts("planes", "The planes whose routes need a token.");
        if settings.verify != Verify::Nothing && planes.is_empty() {
            let missing =
                "`planes` is missing: list those that need tokens, as planes = [\"control\"]";
            table.fault(missing);
        }
        (settings, planes)
    });
    let workspaces = root.table("identifiers", "What identifiers look like.", |table| {
        let doc = "The prefix of workspaces' identifiers; \"\": none.";
        IdForm::read(table, "workspace_prefix", IdForm::workspace(), doc)
    });
    let doc = "Where tenants are looked up.";
    let (directory, unknown_limits) = root.table("directory", doc, directory);
    let planes = root.tables("planes", "Planes, each a set of hosts.", |_, table| RawPlane {
        hosts: table.texts("hosts", "Host names; the first label may be {instance}."),
        cors: table.table("cors", "Which origins may read responses in a browser.", cors),
    });
    let upstreams = root.tables("upstreams", "Upstreams, each a set of servers.", upstream);
    let doc = "Quotas, and what each is kept for.";
    let mut limits = root.tables("limits", doc, |_, table| limit(table));
    if !limits.iter().any(|(name, _)| name.value == REFUSED) {
        limits.push((Spanned { value: REFUSED.to_owned(), at: 0 }, RawLimit::refused()));
    }
    let doc = "Plans of workspaces and organisations.";
    let plans = root.tables("plans", doc, |_, table| RawPlan {
        per_instance_limits: table.flag(
            "per_instance_limits",
            false,
            "Whether instances of its workspaces may have limits of their own.",
        ),
        limits: values_by_limit(table),
    });
    let doc = "Which limits and which upstream a request has; the most specific route wins.";
    let routes = root.list("routes", doc, route);
    let upstreams = upstreams.into_iter().map(|(_, upstream)| upstream).collect();
    let settings = Settings {
        server,
        store,
        headers,
        log,
        warnings_url,
        identity,
        workspaces,
        directory,
        upstreams,
    };
    RawSettings { settings, token_planes, unknown_limits, planes, limits, plans, routes }
}

fn log(table: &mut Table<'_>) -> Log {
    Log {
        level: table.choice("level", &events::LEVELS, "The least level written to standard error."),
        access: table.choice(
            "access",
            &[("stdout", true), ("off", false)],
            "Where the access log goes: one JSON line per request.",
        ),
    }
}

fn route(table: &mut Table<'_>) -> RawRoute {
    for key in ["plane", "path"] {
        table.require(key);
    }
    let cost = cost(table);
    let answers_limits = table.choice(
        "answer",
        &[("upstream", false), ("limits", true)],
        "limits: the gateway itself answers, with what the request's tenants have used.",
    );
    if !answers_limits {
        table.need("upstream");
    }
    RawRoute {
        at: table.at(),
        plane: table.text("plane", "Its plane."),
        methods: table
            .some_texts("methods", "Its methods; all where not given. GET includes HEAD."),
        path: table
            .text("path", "Literal segments, {workspace}, {organisation}, and {*rest} last."),
        spellings: spellings(table),
        exempt: table.flag("exempt", false, "No limit applies, and no limit headers are sent."),
        anonymous: table.choice(
            "verify",
            &[("plane", false), ("none", true)],
            "none: no token is needed, whatever [identity] says of the plane.",
        ),
        limits: table.texts("limits", "The limits that apply, all or nothing."),
        upstream: table.text("upstream", "Its upstream."),
        batch_items_max: table.number(
            "batch_items_max",
            1..=1_000_000,
            "The body is a JSON array of at most so many items; it is buffered until counted.",
        ),
        body_bytes_max: table.bytes(
            "body_bytes_max",
            1..=1 << 40,
            "The largest body; a larger one is 413. A batch has 1MiB, and 64MiB at most.",
        ),
        cost,
        answers_limits,
        public: table.flag("public", false, "answer = \"limits\": may be read without a token."),
    }
}

/// The most that one request may cost.
const COST_MAX: u64 = 1_000_000;

fn cost(table: &mut Table<'_>) -> Option<Spanned<RouteCost>> {
    let mut cost = None;
    let shape = json!({"type": ["integer", "string"], "minimum": 1, "maximum": COST_MAX,
                       "examples": ["items"]});
    let doc = "What a request costs in each of its limits, 1 where not given. \"items\": as much \
               as its batch has items, charged before the upstream sees the body.";
    let at = table.parsed("cost", doc, shape, |value| {
        let number = value.as_u64().filter(|number| (1..=COST_MAX).contains(number));
        cost = match number.and_then(|number| u32::try_from(number).ok()) {
            Some(number) => Some(RouteCost::Fixed(number)),
            None => (value == "items").then_some(RouteCost::Items),
        };
        let wanted = || format!("a whole number from 1 to {COST_MAX}, or \"items\"");
        cost.map(drop).ok_or_else(wanted)
    });
    cost.zip(at).map(|(value, at)| Spanned { value, at })
}

/// Reads the names of the spellings that a route accepts.
fn spellings(table: &mut Table<'_>) -> Spellings {
    const NAMES: [&str; 3] = ["trailing_slash", "escapes", "escaped_slash"];
    let given = table.texts(
        "spellings",
        "Paths that other routes refuse: trailing_slash, escapes (%3A), escaped_slash (%2F).",
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

    /// Compares each default of a schema with the active value, and collects those that differ.
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
        assert!(made.settings.server.idle_timeout > Duration::from_secs(60));
    }

    #[test]
    fn an_empty_list_of_methods_or_algorithms_is_refused_since_it_would_allow_any() {
        let document =
            Document::new("g", "[[routes]]\nmethods = []\n[identity.jwt]\nalgorithms = []\n");
        let _ = read(&document);
        let diagnostics = document.diagnostics();
        for expected in ["g:2:11: `methods` is empty", "g:4:14: `algorithms` is empty"] {
            let is_this = |found: String| found.starts_with(expected);
            assert!(diagnostics.iter().map(ToString::to_string).any(is_this), "{diagnostics:?}");
        }
    }

    #[test]
    fn the_shipped_file_has_the_defaults() {
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
