//! A weir-dispatcher under measurement, with the shipped settings except for loopback
//! addresses, and its webhooks.
//!
//! Its database is in the folder for temporary files. That folder should be on a real disk, because
//! the dispatcher waits for the disk before it acknowledges an event or releases a slot.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::flags::fail;
use crate::lab::{Folder, Process, free_address, get};
use crate::post::{Aim, connect, exchange};

const SHIPPED: &str = include_str!("../../config/dispatcher.toml");
const DIRECTORY: &str = include_str!("../../config/directory.toml");

/// Webhooks of one workspace.
pub const PER_WORKSPACE: usize = 5;

/// Event types to which only one webhook of a workspace subscribes, in order.
const OF_ONE: [&str; PER_WORKSPACE] =
    ["session.started", "session.ended", "user.updated", "user.deleted", "tenant.created"];

/// The event type to which all webhooks subscribe.
const OF_ALL: &str = "plan.changed";

/// The name that an admin listener without a token is called by.
pub const ADMIN_HOST: &str = "localhost";

/// Connections that webhooks are registered on.
const REGISTRARS: usize = 16;

/// A running dispatcher.
pub struct Dispatcher {
    /// The process.
    pub process: Process,
    /// The targets of events.
    pub aim: Aim,
    /// The address of the customers' API.
    pub api: SocketAddr,
    /// The address of the admin API.
    pub admin: SocketAddr,
    workspaces: Vec<String>,
}

impl Dispatcher {
    /// Starts a dispatcher with this deadline for attempts.
    #[must_use]
    pub fn start(folder: &Folder, program: &Path, deadline: &str, log: bool) -> Self {
        let log = format!("attempts = \"{}\"", if log { "stdout" } else { "off" });
        let deadline = format!("deadline = \"{deadline}\"");
        let own = [("deadline = \"10s\"", deadline), ("attempts = \"stdout\"", log)];
        Self::start_with(folder, program, &own)
    }

    /// Starts a dispatcher in a folder that may contain an earlier database, with `own` changes to
    /// the shipped settings: the shipped text, and its replacement.
    #[must_use]
    pub fn start_with(folder: &Folder, program: &Path, own: &[(&str, String)]) -> Self {
        let token = token(folder, program);
        let [api, ingest, admin] = [free_address(), free_address(), free_address()];
        let path = |name: &str| format!("\"{}\"", folder.path(name).display());
        let changes = [
            ("\"127.0.0.1:9003\"", format!("\"{api}\"")),
            ("\"127.0.0.1:9004\"", format!("\"{ingest}\"")),
            ("\"127.0.0.1:9005\"", format!("\"{admin}\"")),
            ("\"data/dispatcher.db\"", path("dispatcher.db")),
            ("\"data/secrets.key\"", path("secrets.key")),
            ("\"config/tokens.toml\"", path("tokens.toml")),
            ("\"config/directory.toml\"", path("directory.toml")),
            ("allow_http = false", "allow_http = true".to_owned()),
            ("allow_networks = []", "allow_networks = [\"127.0.0.0/8\"]".to_owned()),
        ];
        drop(folder.write("directory.toml", DIRECTORY));
        let mut text = SHIPPED.to_owned();
        for (shipped, ours) in changes.iter().chain(own) {
            if !text.contains(shipped) {
                fail(&format!("config/dispatcher.toml no longer says {shipped}"));
            }
            text = text.replace(shipped, ours);
        }
        let config = folder.write("dispatcher.toml", &text).display().to_string();
        let mut process =
            Process::start(folder, "dispatcher", program, &["run", "--config", &config]);
        process.wait_for(ingest);
        let aim = Aim { address: ingest, token, kinds: Vec::new() };
        Self { process, aim, api, admin, workspaces: Vec::new() }
    }

    /// Registers a webhook for each of these URLs, [`PER_WORKSPACE`] to a workspace. The names of
    /// these workspaces begin with `prefix`.
    pub fn register(&mut self, prefix: &str, urls: &[String]) {
        let count = urls.len().div_ceil(PER_WORKSPACE);
        let names: Vec<String> = (0..count).map(|nth| format!("ws_{prefix}{nth}")).collect();
        let next = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for _ in 0..REGISTRARS {
                scope.spawn(|| {
                    let mut stream = connect(self.api);
                    while let Some((nth, url)) = {
                        let nth = next.fetch_add(1, Ordering::Relaxed);
                        urls.get(nth).map(|url| (nth, url))
                    } {
                        let name = names.get(nth / PER_WORKSPACE).map_or("", String::as_str);
                        let own = OF_ONE.get(nth % PER_WORKSPACE).copied().unwrap_or(OF_ALL);
                        let body =
                            format!("{{\"url\":\"{url}\",\"events\":[\"{own}\",\"{OF_ALL}\"]}}");
                        let request = format!(
                            "POST /v1/workspaces/{name}/webhooks HTTP/1.1\r\nHost: weir\r\n\
                             Authorization: Bearer {}\r\nContent-Type: application/json\r\n\
                             Content-Length: {}\r\n\r\n{body}",
                            self.aim.token,
                            body.len()
                        );
                        let answer = exchange(&mut stream, request.as_bytes(), &mut Vec::new());
                        if !answer.starts_with("HTTP/1.1 201 ") {
                            fail(&format!("a webhook was not registered:\n{answer}"));
                        }
                    }
                });
            }
        });
        self.workspaces.extend(names);
    }

    /// Events for one webhook each: every webhook of the workspaces with `prefix`, in turn.
    #[must_use]
    pub fn one_each(&self, prefix: &str) -> Aim {
        // By kind first, so that consecutive events belong to different workspaces, as in
        // production.
        let kinds = OF_ONE
            .iter()
            .flat_map(|kind| self.of(prefix).map(move |workspace| (workspace.clone(), *kind)));
        Aim { kinds: kinds.collect(), ..self.aim.clone() }
    }

    /// Events for all webhooks of one workspace each: every workspace with `prefix`, in turn.
    #[must_use]
    pub fn all_of_each(&self, prefix: &str) -> Aim {
        let kinds = self.of(prefix).map(|workspace| (workspace.clone(), OF_ALL));
        Aim { kinds: kinds.collect(), ..self.aim.clone() }
    }

    fn of(&self, prefix: &str) -> impl Iterator<Item = &String> + use<'_> {
        let prefix = format!("ws_{prefix}");
        self.workspaces.iter().filter(move |name| name.starts_with(&prefix))
    }

    /// The value of a metric without labels; ends the process if it is missing.
    #[must_use]
    pub fn metric(&self, name: &str) -> f64 {
        let text = get(self.admin, ADMIN_HOST, "/metrics");
        let name = format!("weir_dispatcher_{name} ");
        let value = text.lines().find_map(|line| line.strip_prefix(&name));
        let value = value.and_then(|value| value.trim().parse().ok());
        value.unwrap_or_else(|| fail(&format!("/metrics has no {name}:\n{text}")))
    }
}

/// Creates a token with all scopes for all workspaces, and writes the token file.
fn token(folder: &Folder, program: &Path) -> String {
    let made = Command::new(program)
        .args(["token", "--name", "bench", "--workspace", "*"])
        .args(["--scope", "webhooks:write", "--scope", "webhooks:read", "--scope", "events:write"])
        .output()
        .unwrap_or_else(|error| fail(&format!("cannot start {program:?}: {error}")));
    let made = String::from_utf8_lossy(&made.stdout).into_owned();
    let Some((token, file)) = made.split_once('\n') else { fail("no token was made") };
    drop(folder.write("tokens.toml", file));
    token.to_owned()
}
