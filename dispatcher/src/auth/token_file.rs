//! The file of registered tokens (`auth.tokens`): the SHA-256 of each, its workspaces and scopes.
//!
//! Invariant: a token is looked up by its SHA-256, so the time of a lookup reveals nothing about
//! it. A token is 32 random bytes and cannot be guessed, so a plain hash is enough.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use sha2::{Digest, Sha256};
use weir_common::config::document::table::Table;
use weir_common::config::document::{Document, Spanned, suggestion};
use weir_common::identifier::IdForm;

use crate::auth::{Scope, Token, WorkspaceAccess};
use crate::domain::session::Issuer;

/// The entry for every workspace.
const ALL_WORKSPACES: &str = "*";

/// The registered tokens, by hash.
#[derive(Clone, Debug, Default)]
pub struct Tokens {
    by_hash: HashMap<[u8; 32], Arc<Token>>,
}

impl Tokens {
    /// Parses `document`, which collects the errors; `workspaces` is the form of their identifiers.
    #[must_use]
    pub fn read(document: &Document, workspaces: &IdForm) -> Self {
        Self::read_with_schema(document, workspaces).0
    }

    /// Parses `document`, and returns the JSON Schema of such a file as well.
    #[must_use]
    pub fn read_with_schema(document: &Document, workspaces: &IdForm) -> (Self, serde_json::Value) {
        let entry_of = |table: &mut Table<'_>| entry_of(table, workspaces);
        let reading =
            document.read(|root| root.list("tokens", "The tokens that may call.", entry_of));
        let mut tokens = Self::default();
        let mut names = HashMap::new();
        for Entry { name, hash, token } in reading.made {
            if let Some(name) = name
                && names.insert(name.value.clone(), ()).is_some()
            {
                document
                    .fault(name.at, format!("another token already has the name `{}`", name.value));
            }
            let Some(Spanned { value: hash, at }) = hash else { continue };
            if tokens.by_hash.insert(hash, Arc::new(token)).is_some() {
                document.fault(at, "another token has the same hash");
            }
        }
        (tokens, reading.schema)
    }

    /// The number of tokens.
    #[must_use]
    pub fn count(&self) -> usize {
        self.by_hash.len()
    }

    /// The entry of a token, if it is registered.
    #[must_use]
    pub fn registered(&self, token: &str) -> Option<&Arc<Token>> {
        self.with_hash(&Sha256::digest(token).into())
    }

    /// The entry with this SHA-256.
    #[must_use]
    pub fn with_hash(&self, hash: &[u8; 32]) -> Option<&Arc<Token>> {
        self.by_hash.get(hash)
    }
}

struct Entry {
    name: Option<Spanned<String>>,
    hash: Option<Spanned<[u8; 32]>>,
    token: Token,
}

/// The name of a token, unless it is blank.
pub fn name_of(text: &str) -> Result<String, String> {
    if text.trim().is_empty() {
        return Err("is empty: logs and lists show it".to_owned());
    }
    Ok(text.to_owned())
}

fn entry_of(table: &mut Table<'_>, form: &IdForm) -> Entry {
    table.require("name");
    table.require("sha256");
    table.require("workspaces");
    table.require("scopes");
    let name = table.text("name", "A name of your choice, unique in this file.");
    if let Some(name) = &name
        && let Err(why) = name_of(&name.value)
    {
        table.fault_at(name.at, format!("name {why}"));
    }
    let hash = table.sha256("sha256", "The SHA-256 of the token, in 64 hex digits.");
    let workspaces = table.texts(
        "workspaces",
        "The workspaces that the token covers: identifiers, or \"*\" for all.",
    );
    if workspaces.is_empty() && table.has("workspaces") {
        table.fault("workspaces is empty: name at least one workspace, or \"*\" for all");
    }
    for one in
        workspaces.iter().filter(|one| one.value != ALL_WORKSPACES && !form.allows(&one.value))
    {
        let remedy = "identifiers.workspace_prefix sets another";
        let text = format!("workspaces must list \"*\" or {form}, not `{}`; {remedy}", one.value);
        table.fault_at(one.at, text);
    }
    let scopes = table
        .texts("scopes", "What the token may do: webhooks:read, webhooks:write, events:write.");
    if scopes.is_empty() && table.has("scopes") {
        table.fault("scopes is empty: name at least one scope");
    }
    let scopes = scopes.into_iter().filter_map(|scope| scope_of(table, &scope)).collect();
    let workspaces = if workspaces.iter().any(|one| one.value == ALL_WORKSPACES) {
        WorkspaceAccess::All
    } else {
        let workspaces = workspaces.into_iter().map(|one| one.value.into()).collect();
        WorkspaceAccess::Reach { workspaces: Some(workspaces), organisations: None }
    };
    let shown = name.as_ref().map_or("", |name| name.value.as_str());
    let issuer =
        Issuer::Registered(hash.as_ref().map(|hash| hex::encode(hash.value)).unwrap_or_default());
    let token = Token { name: shown.into(), workspaces, scopes, issuer, until: None };
    Entry { hash, token, name }
}

fn scope_of(table: &Table<'_>, text: &Spanned<String>) -> Option<Scope> {
    let found = Scope::ALL.into_iter().find(|scope| scope.name() == text.value);
    if found.is_none() {
        let names = Scope::ALL.map(Scope::name);
        let hint = suggestion(&text.value, &names)
            .unwrap_or_else(|| format!("known: {}", names.join(", ")));
        table.fault_at(text.at, format!("unknown scope `{}`; {hint}", text.value));
    }
    found
}

/// A new token, and its entry for `tokens.toml`. The token itself is not stored.
#[must_use]
pub fn entry(
    name: &str,
    workspaces: &[String],
    scopes: &[Scope],
    random: [u8; 32],
) -> (String, String) {
    let token = format!("weir_{}", URL_SAFE_NO_PAD.encode(random));
    let hash = hex::encode(Sha256::digest(token.as_bytes()));
    let list = |items: Vec<&str>| {
        items.into_iter().map(|item| Quoted(item).to_string()).collect::<Vec<_>>().join(", ")
    };
    let text = format!(
        "[[tokens]]\nname = {}\nsha256 = \"{hash}\"\nworkspaces = [{}]\nscopes = [{}]\n",
        Quoted(name),
        list(workspaces.iter().map(String::as_str).collect()),
        list(scopes.iter().map(|scope| scope.name()).collect()),
    );
    (token, text)
}

/// Displays a text as a TOML string.
struct Quoted<'a>(&'a str);

impl fmt::Display for Quoted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // A JSON string is a TOML basic string, except for DEL, which TOML requires escaped.
        let text = serde_json::Value::from(self.0).to_string();
        f.write_str(&text.replace('\u{7f}', "\\u007F"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_error_in_the_file_has_its_place() {
        let hash = "0f".repeat(32);
        let text = format!(
            "[[tokens]]\nname = \"a\"\nsha256 = \"0g\"\nworkspaces = []\n\
             scopes = [\"webhook:read\", \"x\"]\n\
             [[tokens]]\nname = \"a\"\nsha256 = \"{hash}\"\nworkspaces = [\"w/s\"]\nscopes = []\n\
             [[tokens]]\nsha256 = \"{hash}\"\nworkspaces = [\"*\"]\nscopes = [\"events:write\"]\n\
             [[tokens]]\nname = \" \"\n"
        );
        let document = Document::new("t.toml", &text);
        let _ = Tokens::read(&document, &IdForm::workspace());
        let found: Vec<String> = document.diagnostics().iter().map(ToString::to_string).collect();
        let expected = [
            "t.toml:1:1: workspaces is empty: name at least one workspace, or \"*\" for all",
            "t.toml:3:10: sha256 must be 64 hex digits, not 2 characters",
            "t.toml:5:11: unknown scope `webhook:read`; did you mean `webhooks:read`?",
            "t.toml:5:27: unknown scope `x`; known: webhooks:read, webhooks:write, events:write",
            "t.toml:6:1: scopes is empty: name at least one scope",
            "t.toml:7:8: another token already has the name `a`",
            "t.toml:9:15: workspaces must list \"*\" or `ws_` and letters, digits, _ or -, 64 at \
             most, not `w/s`; identifiers.workspace_prefix sets another",
            "t.toml:11:1: tokens.name is missing",
            "t.toml:12:10: another token has the same hash",
            "t.toml:15:1: tokens.scopes is missing",
            "t.toml:15:1: tokens.sha256 is missing",
            "t.toml:15:1: tokens.workspaces is missing",
            "t.toml:16:8: name is empty: logs and lists show it",
        ];
        assert_eq!(found, expected);
    }
}
