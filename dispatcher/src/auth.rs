//! Authenticates and authorises calls by bearer tokens, of which only hashes are stored.
//!
//! # Invariants
//!
//! 1. A token learns nothing about workspaces it may not access: [`AuthRefusal::Hidden`] is the
//!    same 404 as for a workspace that does not exist.
//! 2. A token is looked up by its SHA-256, so the time of a lookup reveals nothing about it.
//! 3. A token is 32 random bytes and cannot be guessed, so a plain hash is enough.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use http::HeaderMap;
use http::header::AUTHORIZATION;
use sha2::{Digest, Sha256};
use weir_common::config::document::table::Table;
use weir_common::config::document::{Document, Spanned, suggestion};
use weir_common::http_server::problems;
use weir_common::http_server::reply::Reply;
use weir_common::identifier::IdForm;

use crate::http_errors;

/// The entry for every workspace.
const ALL_WORKSPACES: &str = "*";

/// A permission of a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// Read webhooks and deliveries.
    WebhooksRead,
    /// Create, change and delete webhooks; redeliver.
    WebhooksWrite,
    /// Send events.
    EventsWrite,
}

impl Scope {
    /// Every scope.
    pub const ALL: [Self; 3] = [Self::WebhooksRead, Self::WebhooksWrite, Self::EventsWrite];

    /// The scope's name in `tokens.toml`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::WebhooksRead => "webhooks:read",
            Self::WebhooksWrite => "webhooks:write",
            Self::EventsWrite => "events:write",
        }
    }
}

/// One token, without its text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Token {
    /// The operator's name for it.
    pub name: Arc<str>,
    workspaces: WorkspaceAccess,
    scopes: Vec<Scope>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum WorkspaceAccess {
    All,
    Only(Vec<String>),
}

impl Token {
    /// Whether the token covers this workspace.
    #[must_use]
    pub fn may_access(&self, workspace: &str) -> bool {
        match &self.workspaces {
            WorkspaceAccess::All => true,
            WorkspaceAccess::Only(names) => names.iter().any(|name| name == workspace),
        }
    }
}

/// Why a call is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AuthRefusal {
    /// The call has no token.
    Missing,
    /// The token is not registered.
    Unknown,
    /// The token lacks this scope.
    Scope(Scope),
    /// The token does not cover this workspace, or the workspace does not exist.
    Hidden,
}

impl AuthRefusal {
    /// The response, with its challenge (RFC 6750).
    #[must_use]
    pub fn reply(self) -> Reply {
        let problem = |status, detail: String| {
            problems::refusal(
                status,
                if status == 401 { "unauthorized" } else { "insufficient-scope" },
                if status == 401 { "Missing or invalid token" } else { "Not permitted" },
                detail,
            )
        };
        match self {
            Self::Missing => {
                problem(401, "Send one `Authorization: Bearer <token>` header.".to_owned())
                    .with("www-authenticate", "Bearer")
            }
            Self::Unknown => problem(401, "This token is not registered.".to_owned())
                .with("www-authenticate", "Bearer error=\"invalid_token\""),
            Self::Scope(scope) => {
                let name = scope.name();
                problem(403, format!("This call needs a token with the scope `{name}`.")).with(
                    "www-authenticate",
                    format!("Bearer error=\"insufficient_scope\", scope=\"{name}\""),
                )
            }
            Self::Hidden => http_errors::not_found(),
        }
    }
}

/// The registered tokens, by hash.
#[derive(Clone, Debug, Default)]
pub struct Tokens {
    by_hash: HashMap<[u8; 32], Token>,
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
            if tokens.by_hash.insert(hash, token).is_some() {
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

    /// The token of a call, if it has `scope` and covers `workspace` (where one is given).
    pub fn authorise(
        &self,
        headers: &HeaderMap,
        scope: Scope,
        workspace: Option<&str>,
    ) -> Result<&Token, AuthRefusal> {
        let text = bearer(headers)?;
        let hash: [u8; 32] = Sha256::digest(text).into();
        let token = self.by_hash.get(&hash).ok_or(AuthRefusal::Unknown)?;
        if !token.scopes.contains(&scope) {
            return Err(AuthRefusal::Scope(scope));
        }
        match workspace {
            Some(workspace) if !token.may_access(workspace) => Err(AuthRefusal::Hidden),
            _ => Ok(token),
        }
    }
}

/// The bearer token of a call. Two `Authorization` headers are refused: a proxy may have checked
/// either of them.
fn bearer(headers: &HeaderMap) -> Result<&[u8], AuthRefusal> {
    let mut values = headers.get_all(AUTHORIZATION).into_iter();
    let value = match (values.next(), values.next()) {
        (None, _) => return Err(AuthRefusal::Missing),
        (Some(value), None) => value.as_bytes(),
        (Some(_), Some(_)) => return Err(AuthRefusal::Unknown),
    };
    let mut parts = value.splitn(2, |byte| *byte == b' ');
    let scheme = parts.next().unwrap_or_default();
    if !scheme.eq_ignore_ascii_case(b"bearer") {
        return Err(AuthRefusal::Missing);
    }
    let text = parts.next().unwrap_or_default().trim_ascii();
    if text.is_empty() { Err(AuthRefusal::Unknown) } else { Ok(text) }
}

struct Entry {
    name: Option<Spanned<String>>,
    hash: Option<Spanned<[u8; 32]>>,
    token: Token,
}

fn entry_of(table: &mut Table<'_>, form: &IdForm) -> Entry {
    table.require("name");
    table.require("sha256");
    table.require("workspaces");
    table.require("scopes");
    let name = table.text("name", "A name of your choice, unique in this file.");
    let text = table.text("sha256", "The SHA-256 of the token, in 64 hex digits.");
    let hash = text.and_then(|text| {
        let mut value = [0; 32];
        if hex::decode_to_slice(&text.value, &mut value).is_ok() {
            return Some(Spanned { value, at: text.at });
        }
        let found = text.value.len();
        table.fault_at(text.at, format!("sha256 must be 64 hex digits, not {found} characters"));
        None
    });
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
        WorkspaceAccess::Only(workspaces.into_iter().map(|one| one.value).collect())
    };
    let shown = name.as_ref().map_or("", |name| name.value.as_str());
    Entry { hash, token: Token { name: shown.into(), workspaces, scopes }, name }
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
    use http::HeaderValue;

    use super::*;

    fn tokens() -> Tokens {
        let one = entry("acme", &["ws_a".to_owned()], &[Scope::WebhooksRead], [1; 32]).1;
        let all = entry("all \"of\" them\n", &["*".to_owned()], &Scope::ALL, [2; 32]).1;
        let document = Document::new("t.toml", &format!("{one}{all}"));
        let tokens = Tokens::read(&document, &IdForm::workspace());
        assert_eq!(document.diagnostics(), []);
        tokens
    }

    fn check(authorization: &[&str], scope: Scope, workspace: Option<&str>) -> String {
        let mut headers = HeaderMap::new();
        for value in authorization {
            headers.append(AUTHORIZATION, HeaderValue::from_str(value).expect("a value"));
        }
        match tokens().authorise(&headers, scope, workspace) {
            Ok(token) => token.name.to_string(),
            Err(refusal) => format!("{refusal:?}"),
        }
    }

    #[test]
    fn a_token_may_use_its_scopes_on_its_workspaces() {
        let (acme, all) = (bearer_of(1), bearer_of(2));
        assert_eq!(check(&[&acme], Scope::WebhooksRead, Some("ws_a")), "acme");
        assert_eq!(check(&[&acme], Scope::WebhooksRead, None), "acme");
        assert_eq!(check(&[&acme], Scope::WebhooksRead, Some("ws_b")), "Hidden");
        assert_eq!(check(&[&acme], Scope::EventsWrite, Some("ws_a")), "Scope(EventsWrite)");
        assert_eq!(check(&[&all], Scope::EventsWrite, Some("ws_z")), "all \"of\" them\n");
    }

    #[test]
    fn the_scheme_is_case_insensitive_and_the_token_is_not() {
        let token = bearer_of(1);
        for scheme in ["bearer ", "BEARER   "] {
            let value = token.replace("Bearer ", scheme);
            assert_eq!(check(&[&value], Scope::WebhooksRead, None), "acme");
        }
        assert_eq!(check(&[], Scope::WebhooksRead, None), "Missing");
        assert_eq!(check(&["Basic YTpi"], Scope::WebhooksRead, None), "Missing");
        assert_eq!(check(&[&token, &token], Scope::WebhooksRead, None), "Unknown");
        for wrong in ["Bearer", "Bearer ", "Bearer weir_x", &token.to_uppercase()] {
            assert_eq!(check(&[wrong], Scope::WebhooksRead, None), "Unknown", "{wrong}");
        }
    }

    fn bearer_of(byte: u8) -> String {
        format!("Bearer {}", entry("", &[], &[], [byte; 32]).0)
    }

    #[test]
    fn every_error_in_the_file_has_its_place() {
        let hash = "0f".repeat(32);
        let text = format!(
            "[[tokens]]\nname = \"a\"\nsha256 = \"0g\"\nworkspaces = []\n\
             scopes = [\"webhook:read\", \"x\"]\n\
             [[tokens]]\nname = \"a\"\nsha256 = \"{hash}\"\nworkspaces = [\"w/s\"]\nscopes = []\n\
             [[tokens]]\nsha256 = \"{hash}\"\nworkspaces = [\"*\"]\nscopes = [\"events:write\"]\n"
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
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn a_missing_and_an_unknown_token_have_different_challenges() {
        let challenge = |refusal: AuthRefusal| {
            let reply = refusal.reply();
            let found = reply.headers.iter().find(|(name, _)| *name == "www-authenticate");
            (reply.status, found.map(|(_, value)| value.clone()).unwrap_or_default())
        };
        assert_eq!(challenge(AuthRefusal::Missing), (401, "Bearer".to_owned()));
        assert_eq!(
            challenge(AuthRefusal::Unknown),
            (401, "Bearer error=\"invalid_token\"".to_owned())
        );
        assert_eq!(challenge(AuthRefusal::Scope(Scope::EventsWrite)).0, 403);
        assert_eq!(AuthRefusal::Hidden.reply().body, http_errors::not_found().body);
    }
}
