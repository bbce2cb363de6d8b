//! Who may call, and for what: bearer tokens, of which only hashes are known.
//!
//! # Invariants
//!
//! 1. Whether a workspace exists is told to nobody who may not see it: the denial is
//!    [`Denial::Hidden`], answered just as if nothing were there.
//! 2. A token is found by its SHA-256. How long that takes says nothing about the token.
//! 3. Tokens are made of 32 random bytes; nobody guesses one, so a plain hash is enough.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use http::HeaderMap;
use http::header::AUTHORIZATION;
use sha2::{Digest, Sha256};
use weir_common::config::document::{Document, Spanned, Table, suggestion};
use weir_common::identifier::IdForm;

use crate::http_server::{Reply, problems};

/// What stands in the file for every workspace.
const EVERY: &str = "*";

/// What a token may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// Look at webhooks and deliveries.
    WebhooksRead,
    /// Register, change and delete webhooks, and have deliveries sent again.
    WebhooksWrite,
    /// Send events.
    EventsWrite,
}

impl Scope {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::WebhooksRead, Self::WebhooksWrite, Self::EventsWrite];

    /// Its name in the file.
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
    /// What the operator calls it.
    pub name: Arc<str>,
    reach: Reach,
    scopes: Vec<Scope>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Reach {
    Every,
    These(Vec<String>),
}

impl Token {
    /// Whether it may see this workspace.
    #[must_use]
    pub fn sees(&self, workspace: &str) -> bool {
        match &self.reach {
            Reach::Every => true,
            Reach::These(names) => names.iter().any(|name| name == workspace),
        }
    }
}

/// Why a caller may not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Denial {
    /// No token was sent.
    Missing,
    /// What was sent is no token that is known.
    Unknown,
    /// The token may not do this.
    Scope(Scope),
    /// The token may not see this workspace, or nothing is there.
    Hidden,
}

impl Denial {
    /// What the caller is told (RFC 6750).
    #[must_use]
    pub fn reply(self) -> Reply {
        let problem = |status, detail: String| {
            Reply::problem(&problems::plain(
                status,
                if status == 401 { "unauthorized" } else { "insufficient-scope" },
                if status == 401 { "Not signed in" } else { "Not permitted" },
                detail,
            ))
        };
        match self {
            Self::Missing => problem(401, "Send `Authorization: Bearer <token>`, once.".to_owned())
                .with("www-authenticate", "Bearer"),
            Self::Unknown => problem(401, "No such token is registered.".to_owned())
                .with("www-authenticate", "Bearer error=\"invalid_token\""),
            Self::Scope(scope) => {
                let name = scope.name();
                problem(403, format!("This call needs a token with the scope `{name}`.")).with(
                    "www-authenticate",
                    format!("Bearer error=\"insufficient_scope\", scope=\"{name}\""),
                )
            }
            Self::Hidden => problems::not_found(),
        }
    }
}

/// The tokens that are known, hashed.
#[derive(Clone, Debug, Default)]
pub struct Tokens {
    by_hash: HashMap<[u8; 32], Token>,
}

impl Tokens {
    /// Reads `document`, which then holds the mistakes. `workspaces` is what their identifiers
    /// look like.
    #[must_use]
    pub fn read(document: &Document, workspaces: &IdForm) -> Self {
        Self::read_with_schema(document, workspaces).0
    }

    /// Reads `document`, and gives the JSON Schema of such a file beside what it holds.
    #[must_use]
    pub fn read_with_schema(document: &Document, workspaces: &IdForm) -> (Self, serde_json::Value) {
        let entry_of = |table: &mut Table<'_>| entry_of(table, workspaces);
        let reading = document.read(|root| root.list("tokens", "Who may call.", entry_of));
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

    /// How many there are.
    #[must_use]
    pub fn count(&self) -> usize {
        self.by_hash.len()
    }

    /// Whose call this is, where it may do `scope` to `workspace`; to none yet, where not given.
    pub fn authorise(
        &self,
        headers: &HeaderMap,
        scope: Scope,
        workspace: Option<&str>,
    ) -> Result<&Token, Denial> {
        let text = bearer(headers)?;
        let hash: [u8; 32] = Sha256::digest(text).into();
        let token = self.by_hash.get(&hash).ok_or(Denial::Unknown)?;
        if !token.scopes.contains(&scope) {
            return Err(Denial::Scope(scope));
        }
        match workspace {
            Some(workspace) if !token.sees(workspace) => Err(Denial::Hidden),
            _ => Ok(token),
        }
    }
}

/// The token that a call carries. Two of them are none: nobody knows which one was checked.
fn bearer(headers: &HeaderMap) -> Result<&[u8], Denial> {
    let mut values = headers.get_all(AUTHORIZATION).into_iter();
    let value = match (values.next(), values.next()) {
        (None, _) => return Err(Denial::Missing),
        (Some(value), None) => value.as_bytes(),
        (Some(_), Some(_)) => return Err(Denial::Unknown),
    };
    let mut parts = value.splitn(2, |byte| *byte == b' ');
    let scheme = parts.next().unwrap_or_default();
    if !scheme.eq_ignore_ascii_case(b"bearer") {
        return Err(Denial::Missing);
    }
    let text = parts.next().unwrap_or_default().trim_ascii();
    if text.is_empty() { Err(Denial::Unknown) } else { Ok(text) }
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
    let name = table.text("name", "What you call it.");
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
    let workspaces =
        table.texts("workspaces", "Whose objects it may see: identifiers, or \"*\" for all.");
    if workspaces.is_empty() && table.has("workspaces") {
        table.fault("workspaces is empty: name at least one workspace, or \"*\" for all");
    }
    for one in workspaces.iter().filter(|one| one.value != EVERY && !form.allows(&one.value)) {
        let remedy = "identifiers.workspace_prefix sets another";
        let text = format!("workspaces must hold \"*\" or {form}, not `{}`; {remedy}", one.value);
        table.fault_at(one.at, text);
    }
    let scopes = table.texts("scopes", "webhooks:read, webhooks:write, events:write.");
    if scopes.is_empty() && table.has("scopes") {
        table.fault("scopes is empty: name at least one scope");
    }
    let scopes = scopes.into_iter().filter_map(|scope| scope_of(table, &scope)).collect();
    let reach = if workspaces.iter().any(|one| one.value == EVERY) {
        Reach::Every
    } else {
        Reach::These(workspaces.into_iter().map(|one| one.value).collect())
    };
    let shown = name.as_ref().map_or("", |name| name.value.as_str());
    Entry { hash, token: Token { name: shown.into(), reach, scopes }, name }
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

/// A new token, and the entry that makes it known: the token itself is shown once and kept by
/// nobody here.
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

/// Text as a TOML file quotes it.
struct Quoted<'a>(&'a str);

impl fmt::Display for Quoted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // A JSON string is a TOML basic string, but for DEL, which TOML wants escaped.
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
            Err(denial) => format!("{denial:?}"),
        }
    }

    #[test]
    fn a_known_token_may_do_what_it_says_where_it_says() {
        let (acme, all) = (bearer_of(1), bearer_of(2));
        assert_eq!(check(&[&acme], Scope::WebhooksRead, Some("ws_a")), "acme");
        assert_eq!(check(&[&acme], Scope::WebhooksRead, None), "acme");
        assert_eq!(check(&[&acme], Scope::WebhooksRead, Some("ws_b")), "Hidden");
        assert_eq!(check(&[&acme], Scope::EventsWrite, Some("ws_a")), "Scope(EventsWrite)");
        assert_eq!(check(&[&all], Scope::EventsWrite, Some("ws_z")), "all \"of\" them\n");
    }

    #[test]
    fn the_scheme_is_read_in_any_case_and_nothing_else_is() {
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
    fn every_mistake_in_the_file_has_its_place() {
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
            "t.toml:9:15: workspaces must hold \"*\" or `ws_` and letters, digits, _ or -, 64 at \
             most, not `w/s`; identifiers.workspace_prefix sets another",
            "t.toml:11:1: tokens.name is missing",
            "t.toml:12:10: another token has the same hash",
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn who_sent_no_token_is_told_so_otherwise_than_who_sent_a_wrong_one() {
        let challenge = |denial: Denial| {
            let reply = denial.reply();
            let found = reply.headers.iter().find(|(name, _)| *name == "www-authenticate");
            (reply.status, found.map(|(_, value)| value.clone()).unwrap_or_default())
        };
        assert_eq!(challenge(Denial::Missing), (401, "Bearer".to_owned()));
        assert_eq!(challenge(Denial::Unknown), (401, "Bearer error=\"invalid_token\"".to_owned()));
        assert_eq!(challenge(Denial::Scope(Scope::EventsWrite)).0, 403);
        assert_eq!(Denial::Hidden.reply().body, problems::not_found().body);
    }
}
