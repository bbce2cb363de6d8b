//! Parses `dispatcher.toml`: each option with its bounds, its default and its documentation.
//!
//! Invariant: all errors are reported at once, each with its place; contradictions between options
//! are among them.
//!
//! Not here: whether the named files can be read (`live_config`), options of deliveries
//! (`read::outbound`) and pages (`read::dashboard`).

mod dashboard;
mod mail;
mod outbound;

use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::path::{Component, Path, PathBuf};
use std::time::Duration;

use weir_common::config::document::table::Table;
use weir_common::config::document::{Document, Parsed, Spanned, WAIT, span_of};
use weir_common::config::server_keys;
use weir_common::directory::settings::HttpDirectory;
use weir_common::identity::settings::{IdentitySettings, claim};
use weir_common::log::events;

use crate::config::settings::{
    Auth, DirectorySource, EventSettings, Identity, IngestSettings, Log, Retention, SecretSettings,
    Server, Settings, StoreSettings, WebhookSettings,
};

/// The range of longer times: 1 ms to ten years.
const LONG: RangeInclusive<Duration> =
    Duration::from_millis(1)..=Duration::from_secs(10 * 365 * 86_400);

/// A hundred a second: more is a load test.
const CHECKS_PER_MINUTE_MAX: u32 = 6_000;

/// Parses `dispatcher.toml`; `document` collects the errors.
#[must_use]
pub fn read(document: &Document) -> Parsed<Settings> {
    let parsed = document.read(|root| Settings {
        server: root.table("server", "Listeners, threads, timeouts.", server),
        store: root.table("store", "The database.", store),
        auth: root.table("auth", "Authentication.", |table| Auth {
            tokens: file(
                table,
                "tokens",
                "config/tokens.toml",
                "The file of hashed tokens; reloaded when it changes.",
            ),
        }),
        identity: root.table(
            "identity",
            "The platform's access tokens, accepted as well as those of auth.tokens.",
            identity,
        ),
        events: root.table("events", "The event catalogue.", |table| EventSettings {
            file: table.text(
                "file",
                "The file of event types, reloaded when it changes; without it the built-in one.",
            ),
        }),
        secrets: root.table("secrets", "Encryption of webhook secrets.", secrets),
        ingest: root.table("ingest", "Limits of calls that send events.", ingest),
        webhooks: root.table("webhooks", "Limits of workspaces.", webhooks),
        signature: root.table("signature", "Signatures of deliveries.", outbound::signature),
        egress: root.table(
            "egress",
            "Outbound requests: limits and allowed addresses.",
            outbound::egress,
        ),
        retry: root.table("retry", "The retry schedule.", outbound::retry),
        attempts: root.table("attempts", "What is kept of attempts.", outbound::attempts),
        health: root.table(
            "health",
            "When owners are warned, and deliveries paused.",
            outbound::health,
        ),
        mail: root.table("mail", "Mails to owners.", mail::mail),
        operator: root.table("operator", "Events for operators.", outbound::operator),
        dashboard: root.table(
            "dashboard",
            "The pages for customers. Without `url` there are none.",
            dashboard::dashboard,
        ),
        directory: root.table("directory", "The owners of workspaces.", directory),
        retention: root.table("retention", "How long ended deliveries are kept.", retention),
        log: root.table("log", "Logs.", log),
    });
    check_key_file(document, &parsed.made);
    parsed
}

/// Reports a key file that the database would overwrite: SQLite removes what it writes itself.
fn check_key_file(document: &Document, settings: &Settings) {
    let Settings { store, secrets, .. } = settings;
    let database = store.path.display();
    let plain = |path: &Path| {
        path.components().filter(|part| *part != Component::CurDir).collect::<PathBuf>()
    };
    let own = ["", "-wal", "-shm", "-journal", ".lock"].map(|end| format!("{database}{end}"));
    if own.iter().any(|path| plain(Path::new(path)) == plain(&secrets.key_file)) {
        let message = format!("`key_file` is a file of the database {database}: name another");
        document.fault(secrets.key_file_at, message);
    }
}

fn identity(table: &mut Table<'_>) -> Identity {
    let settings = IdentitySettings::read(table);
    let doc = "The claim with the token's scopes: words in one text, or a list.";
    let scope_claim = claim(table, "scope_claim", "scope", doc);
    let values = |table: &mut Table<'_>, key: &str, default: &[&str], doc: &str| {
        let given = table.texts(key, doc).into_iter().map(|text| text.value).collect();
        let is_given = table.has(key);
        table.set_default(key, default.into());
        if is_given { given } else { default.iter().map(ToString::to_string).collect() }
    };
    let doc = "Values of that claim that permit to read webhooks and deliveries.";
    let webhooks_read = values(table, "webhooks_read", &["webhooks:read"], doc);
    let doc = "Values that permit to change webhooks, and to redeliver.";
    let webhooks_write = values(table, "webhooks_write", &["webhooks:write"], doc);
    let doc = "Values that permit to send events.";
    let events_write = values(table, "events_write", &["events:write"], doc);
    let doc = "Values with which a token reaches every workspace; for backends.";
    let all_workspaces = values(table, "all_workspaces", &[], doc);
    Identity { settings, scope_claim, webhooks_read, webhooks_write, events_write, all_workspaces }
}

fn retention(table: &mut Table<'_>) -> Retention {
    let doc = "How long delivered deliveries are kept.";
    let delivered = long(table, "delivered", "7d", doc);
    let doc = "How long failed deliveries are kept, and can be redelivered.";
    let failed = long(table, "failed", "30d", doc);
    let doc = "How long headers and answers of attempts are kept, if their delivery is.";
    let answers = long(table, "answers", "7d", doc);
    Retention { delivered, failed, answers }
}

fn server(table: &mut Table<'_>) -> Server {
    let listeners = Listeners::read(table);
    listeners.check(table);
    let connections = "Open connections per listener; further ones are closed.";
    let idle = "Timeout of a connection without a request.";
    let grace = "The longest that a shutdown waits for attempts and requests in flight.";
    Server {
        api: listeners.api.value,
        ingest: listeners.ingest.value,
        admin: listeners.admin.value,
        at: [listeners.api.at, listeners.ingest.at, listeners.admin.at],
        admin_token_file: server_keys::admin_token_file(table, &listeners.admin),
        threads: server_keys::threads(table),
        connections_max: size(server_keys::connections_max(table, 4_096, connections)),
        head_timeout: server_keys::head_timeout(table, "Timeout for a request head."),
        body_timeout: server_keys::body_timeout(table, "Timeout for a request body."),
        idle_timeout: server_keys::idle_timeout(table, Duration::from_secs(60), idle),
        shutdown_grace: server_keys::shutdown_grace(table, grace),
    }
}

/// The addresses of the listeners.
struct Listeners {
    api: Spanned<SocketAddr>,
    ingest: Spanned<SocketAddr>,
    admin: Spanned<SocketAddr>,
}

impl Listeners {
    fn read(table: &mut Table<'_>) -> Self {
        Self {
            api: server_keys::address(
                table,
                "api",
                9_003,
                "The address of the customers' API, behind the gateway.",
            ),
            ingest: server_keys::address(
                table,
                "ingest",
                9_004,
                "The address that accepts events; for backends only.",
            ),
            admin: server_keys::admin(
                table,
                9_005,
                "The admin address: loopback, or with admin_token_file.",
            ),
        }
    }

    /// Reports listeners with the same address.
    fn check(&self, table: &Table<'_>) {
        let pairs = [
            ("ingest", &self.ingest, "api", &self.api),
            ("admin", &self.admin, "api", &self.api),
            ("admin", &self.admin, "ingest", &self.ingest),
        ];
        for (name, one, other_name, other) in pairs {
            if server_keys::overlap(one.value, other.value) {
                // The error points at an address in the file, not at a default.
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

fn store(table: &mut Table<'_>) -> StoreSettings {
    table.choice("kind", &[("sqlite", ())], "sqlite: one file on this machine.");
    let doc = "The database file, relative to the working directory; on a local disk.";
    let path = file(table, "path", "data/dispatcher.db", doc);
    StoreSettings { path: PathBuf::from(path.value), path_at: path.at }
}

fn webhooks(table: &mut Table<'_>) -> WebhookSettings {
    let per_workspace_max = table.number_or(
        "per_workspace_max",
        1..=10_000,
        20,
        "Webhooks of one workspace; each event is delivered to every one that subscribes.",
    );
    let doc = "Tests (`:ping`, `:check`, `verify`) that a workspace may send in any minute.";
    let checks = table.number_or("checks_per_minute", 1..=CHECKS_PER_MINUTE_MAX.into(), 10, doc);
    let checks_per_minute = u32::try_from(checks).unwrap_or(CHECKS_PER_MINUTE_MAX);
    WebhookSettings { per_workspace_max, checks_per_minute }
}

fn secrets(table: &mut Table<'_>) -> SecretSettings {
    let key_file = file(
        table,
        "key_file",
        "data/secrets.key",
        "The encryption key, created on the first start; without it no secret can be read.",
    );
    let overlap = Duration::ZERO..=*LONG.end();
    let doc = "How long the previous secret still signs after a rotation.";
    SecretSettings {
        key_file: PathBuf::from(key_file.value),
        key_file_at: key_file.at,
        rotation_overlap: span(table, "rotation_overlap", overlap, "24h", doc),
    }
}

fn ingest(table: &mut Table<'_>) -> IngestSettings {
    let ingest = IngestSettings {
        events_max: count(
            table,
            "events_max",
            1..=100_000,
            1_000,
            "Events in one call; all of them are stored, or none.",
        ),
        event_bytes_max: bytes(table, "event_bytes_max", 256 << 10, "The largest event."),
        body_bytes_max: bytes(
            table,
            "body_bytes_max",
            16 << 20,
            "The largest body of a call; a larger one is 413.",
        ),
        waiting_max: count(
            table,
            "waiting_max",
            1..=1_000_000,
            1_024,
            "Calls that wait to be stored; further ones are 503.",
        ),
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

fn directory(table: &mut Table<'_>) -> DirectorySource {
    let over_http = table.choice(
        "source",
        &[("file", false), ("http", true)],
        "file: read at start, and reloaded when it changes; http: asked when a mail is due.",
    );
    let is_given = table.has("path");
    let doc = "file: relative to the working directory; the gateway's can be shared.";
    let path = file(table, "path", "config/directory.toml", doc);
    if over_http && is_given {
        // An operator who keeps `path` may expect that its organisations still count.
        table.fault_at(
            path.at,
            "`path` is used only with source = \"file\": with \"http\" owners are fetched, and a \
             token reaches the workspaces that it names, not those of its organisation",
        );
    }
    let requests = "http: requests are GET {url}/workspaces/{id}, whose `owners` get the mails.";
    let http = HttpDirectory::read(table, over_http, requests);
    http.map_or(DirectorySource::File(path), DirectorySource::Http)
}

fn log(table: &mut Table<'_>) -> Log {
    Log {
        level: table.choice(
            "level",
            &events::LEVELS,
            "The lowest level that is logged to standard error.",
        ),
        attempts: table.choice(
            "attempts",
            &[("stdout", true), ("off", false)],
            "Where attempts are logged, one JSON line each.",
        ),
    }
}

/// The path of a file.
fn file(table: &mut Table<'_>, key: &str, default: &str, doc: &str) -> Spanned<String> {
    let text = table.text(key, doc);
    table.set_default(key, default.into());
    let name = text.unwrap_or(Spanned { value: default.to_owned(), at: table.at() });
    if name.value.is_empty() {
        table.fault_at(name.at, format!("`{key}` is empty: name a file, such as \"{default}\""));
    }
    name
}

fn wait(table: &mut Table<'_>, key: &str, default: &str, doc: &str) -> Duration {
    span(table, key, WAIT, default, doc)
}

fn long(table: &mut Table<'_>, key: &str, default: &str, doc: &str) -> Duration {
    span(table, key, LONG, default, doc)
}

/// A duration whose default is printed as written here: 48h, not 2d.
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
    size(table.bytes_or(key, 1 << 10..=1 << 30, default, doc))
}

fn count(
    table: &mut Table<'_>,
    key: &str,
    range: RangeInclusive<u64>,
    default: u64,
    doc: &str,
) -> usize {
    size(table.number_or(key, range, default, doc))
}

fn size(number: u64) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
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
    pub(super) fn check(text: &str, expected: &[&str]) -> Settings {
        let document = Document::new("d", text);
        let settings = read(&document).made;
        let found: Vec<_> = document.diagnostics().iter().map(ToString::to_string).collect();
        assert_eq!(found, expected, "{text}");
        settings
    }

    /// The names of all options in a schema, and whether each has a default.
    fn options(schema: &Value, path: &str, found: &mut Vec<(String, bool)>) {
        for (key, option) in schema["properties"].as_object().into_iter().flatten() {
            let path = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
            if option["type"] == "object" {
                options(option, &path, found);
            } else {
                found.push((path, option.get("default").is_some()));
            }
        }
    }

    const SHIPPED: &str = include_str!("../../../config/dispatcher.toml");

    /// The shipped file, but for the dashboard's URL: it has that of a first try on one machine.
    fn shipped() -> String {
        let url = "\nurl = \"http://api.localhost:8080/dashboard\"";
        assert_eq!(SHIPPED.matches(url).count(), 1);
        SHIPPED.replacen(url, &url.replacen('\n', "\n# ", 1), 1)
    }

    #[test]
    fn the_shipped_file_has_the_defaults() {
        assert_eq!(effective(&shipped()), effective(""));
        let (file, nothing) = (Document::new("d", &shipped()), Document::new("d", ""));
        let (file, nothing) = (read(&file).made, read(&nothing).made);
        assert_eq!((file.retry, file.egress), (nothing.retry, nothing.egress));
        assert_eq!((file.health, file.retention), (nothing.health, nothing.retention));
    }

    #[test]
    fn the_shipped_file_has_every_option() {
        let (mut all, shipped) = (Vec::new(), shipped());
        options(&read(&Document::new("d", "")).schema, "", &mut all);
        assert!(all.len() > 40, "{all:?}");
        for (option, has_default) in all {
            let (table, key) = option.rsplit_once('.').unwrap();
            let places = ["\n", "\n# "].map(|before| format!("{before}[{table}]"));
            let [used, commented] = places.map(|heading| shipped.find(&heading));
            let section = &shipped[used.or(commented).expect(table) + 1..];
            let section = &section[..section.find("\n[").unwrap_or(section.len())];
            let section = &section[..section.find("\n# [").unwrap_or(section.len())];
            let written = if has_default && used.is_some() { "\n" } else { "\n# " };
            assert!(section.contains(&format!("{written}{key} = ")), "{option}");
        }
    }

    #[test]
    fn commented_options_of_the_shipped_file_are_valid() {
        let mut text = String::new();
        for line in SHIPPED.lines() {
            let option = line
                .strip_prefix("# ")
                .filter(|rest| rest.split_once(" = ").is_some_and(|(key, _)| !key.contains(' ')));
            let table = line.strip_prefix("# ").filter(|rest| rest.starts_with('['));
            text += option.or(table).unwrap_or(line);
            text += "\n";
        }
        // `url` and the others are those of a directory over HTTP, which needs no `path`.
        let file = "source = \"file\"\npath = ";
        assert!(text.contains(file), "{text}");
        let settings = effective(&text.replace(file, "source = \"http\"\n# "));
        assert_eq!(settings["mail"]["smtp"], "***");
        assert!(settings["egress"]["extra_ca"].is_string());
    }

    #[test]
    fn times_are_parsed_down_to_a_millisecond() {
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
    fn every_error_is_reported_at_once_with_its_place() {
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
    fn a_key_file_is_no_file_of_the_database() {
        let key =
            |path: &str| format!("[store]\npath = \"a/b.db\"\n[secrets]\nkey_file = \"{path}\"");
        for path in ["a/b.db", "./a/b.db-wal", "a//b.db-shm", "a/b.db-journal", "a/b.db.lock"] {
            let why = "d:4:12: `key_file` is a file of the database a/b.db: name another";
            check(&key(path), &[why]);
        }
        check(&key("a/b.db.key"), &[]);
    }

    #[test]
    fn two_listeners_at_one_address_are_refused() {
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
    fn an_admin_listener_beyond_loopback_needs_a_token() {
        check(
            "[server]\nadmin = \"0.0.0.0:9005\"",
            &["d:2:9: server.admin `0.0.0.0:9005` is not on loopback: set \
               server.admin_token_file, or an address that is"],
        );
        check("[server]\nadmin = \"0.0.0.0:9005\"\nadmin_token_file = \"token\"", &[]);
    }

    #[test]
    fn an_event_larger_than_a_call_and_an_empty_path_are_refused() {
        check(
            "[store]\npath = \"\"\n[ingest]\nbody_bytes_max = \"1KiB\"",
            &[
                "d:2:8: `path` is empty: name a file, such as \"data/dispatcher.db\"",
                "d:3:1: ingest.event_bytes_max is 262144 bytes; it must not exceed \
                 ingest.body_bytes_max, which is 1024 bytes",
            ],
        );
    }
}
