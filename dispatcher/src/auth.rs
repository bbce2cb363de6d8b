//! Authenticates and authorises calls by bearer tokens: those of a file, of which only hashes are
//! stored, and access tokens of the platform, which are verified as the gateway verifies them.
//!
//! # Invariants
//!
//! 1. A token learns nothing about workspaces it may not access: [`AuthRefusal::Hidden`] is the
//!    same 404 as for a workspace that does not exist.
//! 2. A registered token needs no identity server.
//! 3. A token without a claim for a workspace or an organisation reaches no workspace.

pub mod access_token;
pub mod token_file;

use std::sync::Arc;

use http::HeaderMap;
use weir_common::directory::Directory;
use weir_common::http_server::problems;
use weir_common::http_server::reply::Reply;
use weir_common::identity::bearer::{self, Bearer};
use weir_common::identity::{self, Unaccepted, Unbounded};
use weir_common::time::{Moment, UnixTime};
use weir_common::token::Flaw;
use weir_common::token::reach::reaches;

use crate::auth::access_token::Verifier;
use crate::auth::token_file::Tokens;
use crate::domain::session::{Grant, Issuer, Role};
use crate::http_errors;
use crate::metrics::Metrics;

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

/// What a token permits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Token {
    /// The operator's name for it, or its subject.
    pub name: Arc<str>,
    workspaces: WorkspaceAccess,
    scopes: Vec<Scope>,
    /// Itself, as the issuer of sessions.
    issuer: Issuer,
    /// When it expires, if it does.
    until: Option<UnixTime>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum WorkspaceAccess {
    All,
    Reach { workspaces: Option<Vec<Box<str>>>, organisations: Option<Vec<Box<str>>> },
}

/// Who calls: a token, by the directory that was active when the call arrived.
#[derive(Clone, Debug)]
pub struct Caller {
    token: Arc<Token>,
    directory: Arc<Directory>,
}

impl Caller {
    /// A caller with this token.
    #[must_use]
    pub fn new(token: Arc<Token>, directory: Arc<Directory>) -> Self {
        Self { token, directory }
    }

    /// Whether the caller may access this workspace.
    #[must_use]
    pub fn may_access(&self, workspace: &str) -> bool {
        match &self.token.workspaces {
            WorkspaceAccess::All => true,
            WorkspaceAccess::Reach { workspaces, organisations } => {
                let entry = || self.directory.workspaces.get(workspace)?.organisation.as_ref();
                let organisation = || entry().map(|name| name.value.as_str());
                let organisations = organisations.as_deref();
                reaches(workspaces.as_deref(), organisations, workspace, organisation)
            }
        }
    }

    /// What it may grant to a session of this workspace: its own scopes, or fewer.
    ///
    /// # Errors
    ///
    /// Why it may not.
    pub fn grant(&self, workspace: &str, role: Option<Role>) -> Result<Grant, AuthRefusal> {
        self.check(Scope::WebhooksRead, Some(workspace))?;
        if role == Some(Role::Full) {
            self.check(Scope::WebhooksWrite, Some(workspace))?;
        }
        let Token { scopes, issuer, until, .. } = self.token.as_ref();
        let most = if scopes.contains(&Scope::WebhooksWrite) { Role::Full } else { Role::ReadOnly };
        Ok(Grant {
            workspace: workspace.to_owned(),
            role: role.unwrap_or(most),
            issuer: issuer.clone(),
            until: until.map(|until| until.0),
        })
    }

    /// Checks that the caller has `scope` and may access `workspace`, where one is given.
    ///
    /// # Errors
    ///
    /// Why it may not.
    pub fn check(&self, scope: Scope, workspace: Option<&str>) -> Result<(), AuthRefusal> {
        if !self.token.scopes.contains(&scope) {
            return Err(AuthRefusal::Scope(scope));
        }
        let hidden = workspace.is_some_and(|workspace| !self.may_access(workspace));
        if hidden { Err(AuthRefusal::Hidden) } else { Ok(()) }
    }
}

/// Why a call is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AuthRefusal {
    /// The call has no token.
    Missing,
    /// The call has more than one `Authorization` header.
    Doubled,
    /// The token is not registered.
    Unknown,
    /// The token is no valid access token.
    Flawed(Flaw),
    /// Access tokens cannot be verified now.
    Unavailable,
    /// The token lacks this scope.
    Scope(Scope),
    /// The token does not cover this workspace, or the workspace does not exist.
    Hidden,
}

impl AuthRefusal {
    /// The response, with its challenge (RFC 6750).
    #[must_use]
    pub fn reply(self) -> Reply {
        let invalid = |detail: &str| {
            problems::refusal(401, "unauthorized", "Missing or invalid token", detail.to_owned())
        };
        match self {
            Self::Missing => invalid("Send one `Authorization: Bearer <token>` header.")
                .with("www-authenticate", "Bearer"),
            Self::Doubled => invalid("Send one `Authorization` header: this call has more.")
                .with("www-authenticate", "Bearer error=\"invalid_request\""),
            Self::Unknown => invalid("This token is not registered.")
                .with("www-authenticate", "Bearer error=\"invalid_token\""),
            Self::Flawed(flaw) => {
                let why = flaw.message();
                let challenge =
                    format!("Bearer error=\"invalid_token\", error_description=\"{why}\"");
                invalid(&format!("{why}.")).with("www-authenticate", challenge)
            }
            Self::Unavailable => problems::busy("Tokens cannot be verified now; try again."),
            Self::Scope(scope) => {
                let name = scope.name();
                let detail = format!("This call needs a token with the scope `{name}`.");
                let challenge = format!("Bearer error=\"insufficient_scope\", scope=\"{name}\"");
                problems::refusal(403, "insufficient-scope", "Not permitted", detail)
                    .with("www-authenticate", challenge)
            }
            Self::Hidden => http_errors::not_found(),
        }
    }
}

/// Everybody who may call.
pub struct Callers {
    /// The registered tokens.
    pub tokens: Tokens,
    /// Whether access tokens are accepted as well as registered ones.
    pub verifies: bool,
    /// Verifies access tokens; `None` if none is accepted, or if the file of `identity.ca` has
    /// become unreadable.
    pub verifier: Option<Arc<Verifier>>,
    /// The organisations and owners of workspaces.
    pub directory: Arc<Directory>,
}

impl Callers {
    /// Those with registered tokens.
    #[must_use]
    pub fn new(tokens: Tokens, directory: Directory) -> Self {
        Self { tokens, verifies: false, verifier: None, directory: Arc::new(directory) }
    }

    /// The caller with the token in `headers`, if it has `scope` and covers `workspace` (where one
    /// is given).
    ///
    /// # Errors
    ///
    /// Why the call is refused.
    pub async fn authorise(
        &self,
        headers: &HeaderMap,
        (scope, workspace): (Scope, Option<&str>),
        now: Moment,
        metrics: &Metrics,
    ) -> Result<Caller, AuthRefusal> {
        let registered = match bearer::read(headers) {
            Bearer::Missing => return Err(AuthRefusal::Missing),
            // A proxy may have checked either of two headers.
            Bearer::Doubled => return Err(AuthRefusal::Doubled),
            Bearer::Malformed => None,
            Bearer::Token(token) => self.tokens.registered(token).cloned(),
        };
        let token = match registered {
            Some(token) => token,
            // Boxed: it may fetch keys, and the callers' futures would all have room for that.
            None if self.verifies => Box::pin(self.verify(headers, now, metrics)).await?,
            None => return Err(AuthRefusal::Unknown),
        };
        let caller = Caller::new(token, Arc::clone(&self.directory));
        caller.check(scope, workspace)?;
        Ok(caller)
    }

    /// Who uses a session: no more than its issuer may now, and only in its workspace. `None` if
    /// the issuer was removed, or may not read that workspace any more.
    #[must_use]
    pub fn of_session(&self, grant: &Grant, now: UnixTime) -> Option<Caller> {
        if grant.until.is_some_and(|until| now.0 >= until) {
            return None;
        }
        let mut scopes = match grant.role {
            Role::Full => vec![Scope::WebhooksRead, Scope::WebhooksWrite],
            Role::ReadOnly => vec![Scope::WebhooksRead],
        };
        let name = match &grant.issuer {
            Issuer::Registered(hash) => {
                let hash: [u8; 32] = hex::decode(hash).ok()?.try_into().ok()?;
                let issuer = Arc::clone(self.tokens.with_hash(&hash)?);
                scopes.retain(|scope| issuer.scopes.contains(scope));
                let name = Arc::clone(&issuer.name);
                let issuer = Caller::new(issuer, Arc::clone(&self.directory));
                issuer.check(Scope::WebhooksRead, Some(&grant.workspace)).ok()?;
                name
            }
            Issuer::Platform(subject) => self.verifies.then(|| subject.as_str().into())?,
        };
        let workspaces = WorkspaceAccess::Reach {
            workspaces: Some(vec![grant.workspace.as_str().into()]),
            organisations: None,
        };
        let (issuer, until) = (grant.issuer.clone(), grant.until.map(UnixTime));
        let token = Token { name, workspaces, scopes, issuer, until };
        Some(Caller::new(Arc::new(token), Arc::clone(&self.directory)))
    }

    /// Verifies an access token.
    async fn verify(
        &self,
        headers: &HeaderMap,
        now: Moment,
        metrics: &Metrics,
    ) -> Result<Arc<Token>, AuthRefusal> {
        let verifier = self.verifier.as_deref();
        let (word, verified) = identity::verify(verifier, headers, now, &Unbounded).await;
        metrics.token_verifications.with_label_values(&[word]).inc();
        verified.map_err(|why| match why {
            Unaccepted::Missing => AuthRefusal::Missing,
            Unaccepted::Doubled => AuthRefusal::Doubled,
            Unaccepted::Flawed(flaw) => AuthRefusal::Flawed(flaw),
            Unaccepted::Unavailable => AuthRefusal::Unavailable,
        })
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;
    use http::header::AUTHORIZATION;
    use weir_common::config::document::Document;
    use weir_common::identifier::IdForm;
    use weir_common::time::Clock;

    use super::*;
    use crate::auth::token_file::entry;

    fn callers() -> Callers {
        let one = entry("acme", &["ws_a".to_owned()], &[Scope::WebhooksRead], [1; 32]).1;
        let all = entry("all \"of\" them\n", &["*".to_owned()], &Scope::ALL, [2; 32]).1;
        let document = Document::new("t.toml", &format!("{one}{all}"));
        let tokens = Tokens::read(&document, &IdForm::workspace());
        assert_eq!(document.diagnostics(), []);
        Callers::new(tokens, Directory::default())
    }

    async fn check(authorization: &[&str], scope: Scope, workspace: Option<&str>) -> String {
        let mut headers = HeaderMap::new();
        for value in authorization {
            headers.append(AUTHORIZATION, HeaderValue::from_str(value).expect("a value"));
        }
        let (wanted, now) = ((scope, workspace), Clock::system().now());
        match callers().authorise(&headers, wanted, now, &Metrics::new()).await {
            Ok(caller) => caller.token.name.to_string(),
            Err(refusal) => format!("{refusal:?}"),
        }
    }

    #[tokio::test]
    async fn a_token_may_use_its_scopes_on_its_workspaces() {
        let (acme, all) = (bearer_of(1), bearer_of(2));
        assert_eq!(check(&[&acme], Scope::WebhooksRead, Some("ws_a")).await, "acme");
        assert_eq!(check(&[&acme], Scope::WebhooksRead, None).await, "acme");
        assert_eq!(check(&[&acme], Scope::WebhooksRead, Some("ws_b")).await, "Hidden");
        assert_eq!(check(&[&acme], Scope::EventsWrite, Some("ws_a")).await, "Scope(EventsWrite)");
        assert_eq!(check(&[&all], Scope::EventsWrite, Some("ws_z")).await, "all \"of\" them\n");
    }

    #[tokio::test]
    async fn the_scheme_is_case_insensitive_and_the_token_is_not() {
        let token = bearer_of(1);
        for scheme in ["bearer ", "BEARER   "] {
            let value = token.replace("Bearer ", scheme);
            assert_eq!(check(&[&value], Scope::WebhooksRead, None).await, "acme");
        }
        assert_eq!(check(&[], Scope::WebhooksRead, None).await, "Missing");
        assert_eq!(check(&["Basic YTpi"], Scope::WebhooksRead, None).await, "Missing");
        assert_eq!(check(&[&token, &token], Scope::WebhooksRead, None).await, "Doubled");
        for wrong in ["Bearer", "Bearer ", "Bearer weir_x", &token.to_uppercase()] {
            assert_eq!(check(&[wrong], Scope::WebhooksRead, None).await, "Unknown", "{wrong}");
        }
    }

    fn bearer_of(byte: u8) -> String {
        format!("Bearer {}", entry("", &[], &[], [byte; 32]).0)
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
        let doubled = (401, "Bearer error=\"invalid_request\"".to_owned());
        assert_eq!(challenge(AuthRefusal::Doubled), doubled);
        let expired = challenge(AuthRefusal::Flawed(Flaw::Expired));
        let why = "Bearer error=\"invalid_token\", error_description=\"The token has expired\"";
        assert_eq!(expired, (401, why.to_owned()));
        assert_eq!(challenge(AuthRefusal::Unavailable).0, 503);
        assert_eq!(challenge(AuthRefusal::Scope(Scope::EventsWrite)).0, 403);
        assert_eq!(AuthRefusal::Hidden.reply().body, http_errors::not_found().body);
    }

    #[test]
    fn a_token_of_an_organisation_reaches_the_workspaces_that_the_directory_gives_it() {
        let text = "[organisations.org_1]\n[workspaces.ws_a]\norganisation = \"org_1\"\n\
            [workspaces.ws_b]\n";
        let document = Document::new("t.toml", text);
        let directory = Arc::new(Directory::read(&document, &IdForm::workspace()));
        assert_eq!(document.diagnostics(), []);
        let caller = |workspaces: Option<&str>, organisations: Option<&str>| {
            let list = |name: &str| vec![name.into()];
            let workspaces = WorkspaceAccess::Reach {
                workspaces: workspaces.map(list),
                organisations: organisations.map(list),
            };
            let token = Token {
                name: "".into(),
                workspaces,
                scopes: Vec::new(),
                issuer: Issuer::Platform(String::new()),
                until: None,
            };
            Caller::new(Arc::new(token), Arc::clone(&directory))
        };
        assert!(caller(None, Some("org_1")).may_access("ws_a"));
        assert!(!caller(None, Some("org_1")).may_access("ws_b"));
        assert!(!caller(None, Some("org_1")).may_access("ws_new"));
        assert!(
            !caller(Some("ws_b"), Some("org_1")).may_access("ws_a"),
            "the narrower claim counts"
        );
        assert!(caller(Some("ws_new"), None).may_access("ws_new"));
        assert!(!caller(None, None).may_access("ws_a"));
    }
}
