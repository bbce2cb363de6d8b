//! Reads `dispatcher.toml`, each key in one place: its bounds, its default and one line on why.
//!
//! What options mean together is checked where they are read; each mistake has its place.
//!
//! Not here: whether the files that it names can be read (`live_config`), whom we call and how
//! (`read::outbound`).

mod outbound;

use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

use log::LevelFilter;
use weir_common::config::document::{Document, Parsed, Spanned, Table, span_of};
use weir_common::identifier::IdForm;

use crate::config::allowed_fields::Allowed;
use crate::config::settings::{
    Auth, Directory, Identifiers, Ingest, Log, Retention, Secrets, Server, Settings, Store,
    Webhooks,
};

/// Any wait an operator may ask for: from a moment that a clock can tell to a day.
const WAIT: RangeInclusive<Duration> = Duration::from_millis(1)..=Duration::from_secs(86_400);

/// How long things may take that take days: to ten years.
const LONG: RangeInclusive<Duration> =
    Duration::from_millis(1)..=Duration::from_secs(10 * 365 * 86_400);

/// Reads `dispatcher.toml`; its mistakes stay in `document`.
#[must_use]
pub fn read(document: &Document) -> Parsed<Settings> {
    document.read(|root| Settings {
        server: root.table("server", "Sockets, threads, deadlines.", server),
        store: root.table("store", "Where everything is kept.", store),
        auth: root.table("auth", "Who may call.", |table| Auth {
            tokens: file(
                table,
                "tokens",
                "config/tokens.toml",
                "The file of hashed tokens; a change is taken up.",
            ),
        }),
        identifiers: root.table("identifiers", "What identifiers look like.", |table| {
            let doc = "What those of workspaces begin with; \"\": with anything.";
            let workspaces = IdForm::read(table, "workspace_prefix", IdForm::workspace(), doc);
            let doc = "What those of tenants begin with; \"\": with anything.";
            let tenants = IdForm::read(table, "tenant_prefix", IdForm::tenant(), doc);
            Identifiers { workspaces, tenants }
        }),
        secrets: root.table("secrets", "What webhooks' secrets are sealed with.", secrets),
        ingest: root.table("ingest", "What backends may send at one time.", ingest),
        webhooks: root.table("webhooks", "What workspaces may have.", |table| Webhooks {
            per_workspace_max: table.number_or(
                "per_workspace_max",
                1..=10_000,
                20,
                "Webhooks of one workspace: each is sent its own copy of an event.",
            ),
        }),
        signature: root.table("signature", "How deliveries are signed.", outbound::signature),
        egress: root.table("egress", "Whom we call, and how fast.", outbound::egress),
        retry: root.table("retry", "When we call again.", outbound::retry),
        health: root.table(
            "health",
            "When owners are told, and deliveries paused.",
            outbound::health,
        ),
        mail: root.table("mail", "How owners are told.", outbound::mail),
        directory: root.table("directory", "Who the owners are.", directory),
        retention: root.table("retention", "How long what has ended is kept.", |table| Retention {
            delivered: long(table, "delivered", "7d", "What was delivered."),
            failed: long(table, "failed", "30d", "What was given up: time to send it again."),
        }),
        log: root.table("log", "What is written down.", log),
    })
}

fn server(table: &mut Table<'_>) -> Server {
    let listeners = Listeners::read(table);
    listeners.check(table);
    let admin_token_file = table
        .text("admin_token_file", "A file whose first line is the admin listener's bearer token.");
    let admin = &listeners.admin;
    if !admin.value.ip().is_loopback() && admin_token_file.is_none() {
        let message = "server.admin is not a loopback address: set server.admin_token_file as well";
        table.fault_at(admin.at, message);
    }
    Server {
        api: listeners.api.value,
        ingest: listeners.ingest.value,
        admin: admin.value,
        at: [listeners.api.at, listeners.ingest.at, admin.at],
        admin_token_file,
        threads: count(table, "threads", 0..=1_024, 0, "Worker threads; 0: one per core."),
        connections_max: count(
            table,
            "connections_max",
            1..=10_000_000,
            4_096,
            "Connections to each listener at one time; more are closed at once.",
        ),
        head_timeout: wait(table, "head_timeout", "10s", "A whole request head."),
        body_timeout: wait(table, "body_timeout", "30s", "A whole request body."),
        idle_timeout: wait(table, "idle_timeout", "1m", "A connection without a request."),
        shutdown_grace: wait(
            table,
            "shutdown_grace",
            "30s",
            "The longest a stop waits for what is in flight.",
        ),
    }
}

/// Where we listen.
struct Listeners {
    api: Spanned<SocketAddr>,
    ingest: Spanned<SocketAddr>,
    admin: Spanned<SocketAddr>,
}

impl Listeners {
    fn read(table: &mut Table<'_>) -> Self {
        Self {
            api: address(table, "api", 9_003, "Customers' calls, through the gateway."),
            ingest: address(table, "ingest", 9_004, "Events; for backends alone."),
            admin: address(
                table,
                "admin",
                9_005,
                "The operator's address. Loopback, or with a token.",
            ),
        }
    }

    /// No two can listen at one address.
    fn check(&self, table: &Table<'_>) {
        let pairs = [
            ("ingest", &self.ingest, "api", &self.api),
            ("admin", &self.admin, "api", &self.api),
            ("admin", &self.admin, "ingest", &self.ingest),
        ];
        for (name, one, other_name, other) in pairs {
            if overlap(one.value, other.value) {
                // The one that stands in the file is the one to change.
                let at = if one.at == table.at() { other.at } else { one.at };
                let message = format!(
                    "server.{name} and server.{other_name} cannot both listen on {}: give each an \
                     address of its own",
                    one.value
                );
                table.fault_at(at, message);
            }
        }
    }
}

/// Whether one of two listeners would be in the other's way. Port 0 is whichever is free.
fn overlap(one: SocketAddr, other: SocketAddr) -> bool {
    let (all, also) = (one.ip().is_unspecified(), other.ip().is_unspecified());
    one.port() != 0 && one.port() == other.port() && (all || also || one.ip() == other.ip())
}

fn store(table: &mut Table<'_>) -> Store {
    table.choice("kind", &[("sqlite", ())], "sqlite: one file on this machine.");
    let doc = "The database, from the directory the program runs in; on a disk of this machine.";
    let path = file(table, "path", "data/dispatcher.db", doc);
    Store { path: PathBuf::from(path.value), path_at: path.at }
}

fn secrets(table: &mut Table<'_>) -> Secrets {
    let key_file = file(
        table,
        "key_file",
        "data/secrets.key",
        "Made on the first start. Without it no stored secret can be read: keep a copy.",
    );
    let overlap = Duration::ZERO..=*LONG.end();
    let doc = "How long a secret signs on after another has taken its place.";
    Secrets {
        key_file: PathBuf::from(key_file.value),
        key_file_at: key_file.at,
        rotation_overlap: span(table, "rotation_overlap", overlap, "24h", doc),
    }
}

fn ingest(table: &mut Table<'_>) -> Ingest {
    let ingest = Ingest {
        events_max: count(
            table,
            "events_max",
            1..=100_000,
            1_000,
            "Events in one call: all of them are written, or none.",
        ),
        event_bytes_max: bytes(
            table,
            "event_bytes_max",
            256 << 10,
            "The largest event: it is kept, and sent to each webhook.",
        ),
        body_bytes_max: bytes(table, "body_bytes_max", 16 << 20, "The largest call; more is 413."),
        waiting_max: count(
            table,
            "waiting_max",
            1..=1_000_000,
            1_024,
            "Calls that wait to be written; more are 503, to be sent again.",
        ),
        allowed: Allowed::read(table),
    };
    if ingest.event_bytes_max > ingest.body_bytes_max {
        let (event, body) = (ingest.event_bytes_max, ingest.body_bytes_max);
        table.fault(format!(
            "ingest.event_bytes_max is {event} bytes; it must not exceed ingest.body_bytes_max, \
             which is {body} bytes"
        ));
    }
    ingest
}

fn directory(table: &mut Table<'_>) -> Directory {
    table.choice("source", &[("file", ())], "file: read at start, and again when it changes.");
    let doc = "The file, from the directory the program runs in; the gateway's own will do.";
    Directory { path: file(table, "path", "config/directory.toml", doc) }
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
        attempts: table.choice(
            "attempts",
            &[("stdout", true), ("off", false)],
            "Where one JSON line per attempt goes.",
        ),
    }
}

fn address(table: &mut Table<'_>, key: &str, port: u16, doc: &str) -> Spanned<SocketAddr> {
    let text = table.text(key, doc);
    let default = SocketAddr::from((IpAddr::from([127, 0, 0, 1]), port));
    table.set_default(key, default.to_string().into());
    let Some(text) = text else { return Spanned { value: default, at: table.at() } };
    let value = text.value.parse().unwrap_or_else(|_| {
        let message =
            format!("server.{key} must be ip:port, as \"{default}\", not `{}`", text.value);
        table.fault_at(text.at, message);
        default
    });
    Spanned { value, at: text.at }
}

/// The name of a file.
fn file(table: &mut Table<'_>, key: &str, default: &str, doc: &str) -> Spanned<String> {
    let text = table.text(key, doc);
    table.set_default(key, default.into());
    let name = text.unwrap_or(Spanned { value: default.to_owned(), at: table.at() });
    if name.value.is_empty() {
        table.fault_at(name.at, format!("`{key}` names no file, as \"{default}\" does"));
    }
    name
}

fn wait(table: &mut Table<'_>, key: &str, default: &str, doc: &str) -> Duration {
    span(table, key, WAIT, default, doc)
}

fn long(table: &mut Table<'_>, key: &str, default: &str, doc: &str) -> Duration {
    span(table, key, LONG, default, doc)
}

/// A length of time whose default is shown as the contract writes it: 48h, where we would say 2d.
fn span(
    table: &mut Table<'_>,
    key: &str,
    range: RangeInclusive<Duration>,
    default: &str,
    doc: &str,
) -> Duration {
    let span = table.span_or(key, range, span_of(default).unwrap_or_default(), doc);
    table.set_default(key, default.into());
    span
}

fn bytes(table: &mut Table<'_>, key: &str, default: u64, doc: &str) -> usize {
    let bytes = table.bytes_or(key, 1 << 10..=1 << 30, default, doc);
    usize::try_from(bytes).unwrap_or(usize::MAX)
}

fn count(
    table: &mut Table<'_>,
    key: &str,
    range: RangeInclusive<u64>,
    default: u64,
    doc: &str,
) -> usize {
    usize::try_from(table.number_or(key, range, default, doc)).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    fn effective(text: &str) -> Value {
        let document = Document::new("d", text);
        let effective = read(&document).effective;
        assert_eq!(document.diagnostics(), []);
        effective
    }

    #[track_caller]
    fn check(text: &str, expected: &[&str]) {
        let document = Document::new("d", text);
        let _ = read(&document);
        let found: Vec<_> = document.diagnostics().iter().map(ToString::to_string).collect();
        assert_eq!(found, expected, "{text}");
    }

    /// The names of all options in a schema that are no tables.
    fn options(schema: &Value, path: &str, found: &mut Vec<(String, bool)>) {
        for (key, shape) in schema["properties"].as_object().into_iter().flatten() {
            if shape["type"] == "object" {
                options(shape, key, found);
            } else {
                found.push((format!("{path}.{key}"), shape.get("default").is_some()));
            }
        }
    }

    const SHIPPED: &str = include_str!("../../../config/dispatcher.toml");

    #[test]
    fn the_shipped_file_says_what_holds_without_it() {
        assert_eq!(effective(SHIPPED), effective(""));
        let (file, nothing) = (Document::new("d", SHIPPED), Document::new("d", ""));
        let (file, nothing) = (read(&file).made, read(&nothing).made);
        assert_eq!((file.retry, file.egress), (nothing.retry, nothing.egress));
        assert_eq!((file.health, file.retention), (nothing.health, nothing.retention));
    }

    #[test]
    fn the_shipped_file_has_every_option() {
        let mut all = Vec::new();
        options(&read(&Document::new("d", "")).schema, "", &mut all);
        assert!(all.len() > 40, "{all:?}");
        for (option, has_default) in all {
            let (table, key) = option.split_once('.').unwrap();
            let start = SHIPPED.find(&format!("\n[{table}]")).expect(table) + 1;
            let section = &SHIPPED[start..];
            let section = &section[..section.find("\n[").unwrap_or(section.len())];
            let written = if has_default { "\n" } else { "\n# " };
            assert!(section.contains(&format!("{written}{key} = ")), "{option}");
        }
    }

    #[test]
    fn what_is_commented_out_in_the_shipped_file_can_be_put_in() {
        let mut text = String::new();
        for line in SHIPPED.lines() {
            let option = line
                .strip_prefix("# ")
                .filter(|rest| rest.split_once(" = ").is_some_and(|(key, _)| !key.contains(' ')));
            text += option.unwrap_or(line);
            text += "\n";
        }
        let settings = effective(&text);
        assert_eq!(settings["mail"]["smtp"], "***");
        assert!(settings["egress"]["extra_ca"].is_string());
    }

    #[test]
    fn times_are_read_down_to_a_millisecond() {
        let text = "[retry]\ndelays = [\"1ms\"]\ngive_up_after = \"1ms\"\n\
            [health]\nwarn_for = \"30ms\"\npause_after = \"1ms\"\n\
            [egress]\ndeadline = \"1ms\"\nwindow = \"1ms\"";
        let document = Document::new("d", text);
        let settings = read(&document).made;
        assert_eq!(document.diagnostics(), []);
        let millisecond = Duration::from_millis(1);
        assert_eq!(settings.retry.delays, [millisecond]);
        assert_eq!(settings.retry.give_up_after, millisecond);
        assert_eq!(settings.health.pause_after, millisecond);
        assert_eq!((settings.egress.deadline, settings.egress.window), (millisecond, millisecond));
    }

    #[test]
    fn every_mistake_is_reported_at_once_with_its_place() {
        check(
            "[server]\napi = \"here\"\nthreads = -1\n[ingest]\nevent_max = 1\n\
            [health]\nwarn_share = 5\n[retry]\ndelays = [\"1m\", \"soon\"]\n[webhook]\n",
            &[
                "d:2:7: server.api must be ip:port, as \"127.0.0.1:9003\", not `here`",
                "d:3:11: server.threads must be a whole number from 0 to 1024, not -1",
                "d:5:1: unknown key `event_max` in `ingest`; did you mean `events_max`?",
                "d:7:14: health.warn_share must be a share from 0 to 1, such as 0.05, not 5",
                "d:9:17: retry.delays must be a list of times such as \"10s\" (in ms, s, m, \
                 h or d), from 1ms to 365d, not \"soon\"",
                "d:10:2: unknown key `webhook`; did you mean `webhooks`?",
            ],
        );
    }

    #[test]
    fn no_two_listeners_share_an_address() {
        check(
            "[server]\napi = \"127.0.0.1:9004\"",
            &["d:2:7: server.ingest and server.api cannot both listen on 127.0.0.1:9004: give \
               each an address of its own"],
        );
        check(
            "[server]\napi = \"0.0.0.0:80\"\ningest = \"10.0.0.1:80\"",
            &["d:3:10: server.ingest and server.api cannot both listen on 10.0.0.1:80: give each \
               an address of its own"],
        );
        check("[server]\napi = \"10.0.0.2:80\"\ningest = \"10.0.0.1:80\"", &[]);
        let any =
            "[server]\napi = \"127.0.0.1:0\"\ningest = \"127.0.0.1:0\"\nadmin = \"127.0.0.1:0\"";
        check(any, &[]);
    }

    #[test]
    fn an_admin_listener_that_others_reach_needs_a_token() {
        check(
            "[server]\nadmin = \"0.0.0.0:9005\"",
            &["d:2:9: server.admin is not a loopback address: set server.admin_token_file as well"],
        );
        check("[server]\nadmin = \"0.0.0.0:9005\"\nadmin_token_file = \"token\"", &[]);
    }

    #[test]
    fn an_event_fits_a_call_and_a_file_has_a_name() {
        check(
            "[store]\npath = \"\"\n[ingest]\nbody_bytes_max = \"1KiB\"",
            &[
                "d:2:8: `path` names no file, as \"data/dispatcher.db\" does",
                "d:3:1: ingest.event_bytes_max is 262144 bytes; it must not exceed \
                 ingest.body_bytes_max, which is 1024 bytes",
            ],
        );
    }
}
