//! A directory over HTTP: it serves the entries that a test sets, and can be slow, broken or
//! down.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use crate::answer::Answer;
use crate::config::Config;
use crate::upstream::{Received, Upstream};

type Entries = Arc<Mutex<HashMap<String, Answer>>>;

/// A directory on a free port.
pub struct Directory {
    /// The HTTP server.
    pub server: Upstream,
    entries: Entries,
}

impl Directory {
    /// Starts a directory with the entries of [`crate::config::DIRECTORY`].
    pub fn start() -> Self {
        let directory = Self { server: Upstream::start(), entries: Entries::default() };
        for (path, entry) in [
            ("organisations/org_acme", "{}"),
            ("organisations/org_globex", "{}"),
            ("workspaces/ws_acme", r#"{"organisation": "org_acme", "plan": "free"}"#),
            ("workspaces/ws_quiet", r#"{"organisation": "org_acme", "plan": "free"}"#),
            ("workspaces/ws_big", r#"{"organisation": "org_globex", "plan": "enterprise"}"#),
            (
                "workspaces/ws_special",
                r#"{"organisation": "org_globex", "plan": "enterprise", "name": "Special",
                    "owners": ["a@b.example"], "limits": {"workspace": {"requests": 7}}}"#,
            ),
            ("instances/in_acme", r#"{"workspace": "ws_acme"}"#),
            (
                "instances/in_special",
                r#"{"workspace": "ws_special", "limits": {"instance": {"rate": 1, "burst": 9}}}"#,
            ),
        ] {
            directory.set(path, entry);
        }
        directory.recover();
        directory
    }

    /// Answers with its entries from now on.
    pub fn recover(&self) {
        let entries = self.entries.clone();
        self.server.answer(move |request| {
            let entry = entries.lock().unwrap().get(&path(request)).cloned();
            entry.unwrap_or_else(|| Answer::status(404))
        });
    }

    /// Serves this text for an entry, such as `workspaces/ws_acme`, from now on.
    pub fn set(&self, path: &str, entry: &str) {
        self.answer(path, Answer::ok(entry).field("Content-Type", "application/json"));
    }

    /// Responds to a request for this entry with `answer` from now on.
    pub fn answer(&self, path: &str, answer: Answer) {
        self.entries.lock().unwrap().insert(path.to_owned(), answer);
    }

    /// Responds 404 for an entry from now on.
    pub fn remove(&self, path: &str) {
        self.entries.lock().unwrap().remove(path);
    }

    /// The entries that were requested so far, in order.
    pub fn fetched(&self) -> Vec<String> {
        self.server.look(|seen| seen.requests.iter().map(path).collect())
    }

    /// How often an entry was requested.
    pub fn count(&self, path: &str) -> usize {
        self.fetched().iter().filter(|request| *request == path).count()
    }

    /// A configuration that uses this directory, with these additional lines in its section.
    pub fn within(&self, config: Config, lines: &str) -> Config {
        let url = format!("source = \"http\"\nurl = \"http://{}\"", self.server.address());
        config.without("[directory]").with("[directory]", &format!("{url}\n{lines}"))
    }
}

fn path(request: &Received) -> String {
    String::from_utf8_lossy(&request.target()).trim_start_matches('/').to_owned()
}
