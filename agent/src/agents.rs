//! The file of agents that call over HTTP: the SHA-256 of each one's bearer, and the token of the
//! API that it acts with.
//!
//! # Invariants
//!
//! 1. Each bearer acts with a token of its own, for one workspace: two never share one.
//! 2. A bearer is looked up by its SHA-256, so the time of a lookup reveals nothing about it.

use std::collections::HashMap;
use std::path::Path;

use sha2::{Digest, Sha256};
use weir_common::config::document::table::Table;
use weir_common::config::document::{Document, Spanned};
use weir_common::config::files;
use weir_common::identifier::is_identifier;
use weir_common::secret::Secret;

/// Agents of one listener: each has a share of its connections, which would be too few beyond.
pub(crate) const AGENTS_MAX: usize = 128;

/// An agent.
#[derive(Debug)]
pub(crate) struct Agent {
    pub(crate) name: String,
    pub(crate) workspace: String,
    pub(crate) read_only: bool,
    pub(crate) token: Secret<String>,
}

/// The agents by the SHA-256 of their bearers.
pub(crate) type Agents = HashMap<[u8; 32], Agent>;

/// The SHA-256 of a text.
pub(crate) fn sha256(text: &str) -> [u8; 32] {
    Sha256::digest(text).into()
}

/// Parses `document`, which collects the errors, and reads the files that it names.
pub(crate) fn read(document: &Document) -> Agents {
    let entries = document.read(|root| root.list("agents", "The agents that may call.", entry_of));
    let (mut agents, mut names, mut tokens) = (Agents::new(), HashMap::new(), HashMap::new());
    for Entry { name, hash, token_file, workspace, read_only } in entries.made {
        let (Some(name), Some(hash), Some(file), Some(workspace)) =
            (name, hash, token_file, workspace)
        else {
            continue;
        };
        if names.insert(name.value.clone(), ()).is_some() {
            document.fault(name.at, format!("another agent has the name `{}`", name.value));
        }
        let token = match files::first_line(Path::new(&file.value)) {
            Ok(token) => token,
            Err(why) => {
                document.fault(file.at, format!("cannot read `{}`: {why}", file.value));
                continue;
            }
        };
        if let Some(other) = tokens.insert(sha256(token.expose()), name.value.clone()) {
            let why = format!("`{other}` has the same token: each agent needs one of its own");
            document.fault(file.at, why);
        }
        if hash.value == sha256(token.expose()) {
            let why = "the bearer is the token itself: an agent must not know it";
            document.fault(hash.at, why);
        }
        let agent = Agent { name: name.value, workspace: workspace.value, read_only, token };
        if agents.insert(hash.value, agent).is_some() {
            document.fault(hash.at, "another agent has the same bearer");
        }
    }
    if agents.len() > AGENTS_MAX {
        let why = format!("has {} agents; one listener is for {AGENTS_MAX}", agents.len());
        document.fault(0, why);
    }
    if agents.is_empty() && document.count() == 0 {
        document.fault(0, "names no agent: add [[agents]]");
    }
    agents
}

struct Entry {
    name: Option<Spanned<String>>,
    hash: Option<Spanned<[u8; 32]>>,
    token_file: Option<Spanned<String>>,
    workspace: Option<Spanned<String>>,
    read_only: bool,
}

fn entry_of(table: &mut Table<'_>) -> Entry {
    for key in ["name", "sha256", "token_file", "workspace"] {
        table.require(key);
    }
    let name = identifier(table, "name", "Its name in the log, and of its folder of secrets.");
    let hash = table.sha256("sha256", "The SHA-256 of its bearer, in 64 hex digits.");
    let token_file = table.text("token_file", "A file whose first line is its API token.");
    let workspace = identifier(table, "workspace", "The one workspace that it acts for.");
    let read_only = table.flag("read_only", false, "Whether it is offered only tools that read.");
    Entry { name, hash, token_file, workspace, read_only }
}

fn identifier(table: &mut Table<'_>, key: &str, doc: &str) -> Option<Spanned<String>> {
    let text = table.text(key, doc)?;
    if is_identifier(&text.value) {
        return Some(text);
    }
    let why =
        format!("{key} must be 1 to 64 of A-Z a-z 0-9 _ -, and one alone, not `{}`", text.value);
    table.fault_at(text.at, why);
    None
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn every_error_in_the_file_has_its_place() {
        let folder = std::env::temp_dir().join(format!("weir-agents-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let file = folder.join("token");
        fs::write(&file, "hidden\n").unwrap();
        let entry = |name: &str, hash: &str, workspace: &str| {
            let file = file.display();
            format!(
                "[[agents]]\nname = \"{name}\"\nsha256 = \"{hash}\"\ntoken_file = \"{file}\"\n\
                 workspace = \"{workspace}\"\n"
            )
        };
        let [one, own] = [hex::encode(sha256("bearer")), hex::encode(sha256("hidden"))];
        let text = [
            entry("a", &one, "ws_acme"),
            entry("a", &one, "ws_acme"),
            entry("b", "0f", "*"),
            entry("c", &own, "ws_acme"),
            "[[agents]]\nnmae = \"d\"\n".to_owned(),
        ];
        let document = Document::new("a.toml", &text.concat());
        read(&document);
        let found: Vec<String> = document.diagnostics().iter().map(ToString::to_string).collect();
        fs::remove_dir_all(&folder).unwrap();
        let text = found.join("\n");
        for expected in [
            "a.toml:7:8: another agent has the name `a`",
            "a.toml:8:10: another agent has the same bearer",
            "a.toml:9:14: `a` has the same token",
            "a.toml:13:10: sha256 must be 64 hex digits, not 2 characters",
            "a.toml:15:13: workspace must be",
            "a.toml:18:10: the bearer is the token itself",
            "a.toml:21:1: agents.name is missing",
            "nmae",
        ] {
            assert!(text.contains(expected), "{expected} is missing in:\n{text}");
        }
        assert!(!text.contains("hidden"), "{text}");
    }

    #[test]
    fn a_file_without_agents_is_refused() {
        let document = Document::new("a.toml", "");
        assert!(read(&document).is_empty());
        assert_eq!(document.count(), 1);
    }
}
