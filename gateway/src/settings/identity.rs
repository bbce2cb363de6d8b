//! Reads how a client proves who it is.
//!
//! Not here: which routes need a token (`rules::compile`), whether one holds (`auth`).

use std::path::Path;
use std::time::Duration;

use weir_common::config::document::{Spanned, Table};

use crate::settings::values::{WAIT, number};

/// `[identity]`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Where the table starts in the file.
    pub at: usize,
    /// How.
    pub verify: Verify,
    /// The planes whose routes need a token.
    pub planes: Vec<Spanned<String>>,
    /// The claim that names the workspace, or several of them.
    pub workspace_claim: String,
    /// The claim that names the organisation.
    pub organisation_claim: String,
    /// How long an identity server may take.
    pub timeout: Duration,
    /// Verified tokens that are remembered.
    pub cache_max: usize,
    /// A file with the root that signs the identity server's certificate, PEM.
    pub ca: Option<Spanned<String>>,
}

impl Identity {
    /// The files that are named and used.
    pub fn files(&self) -> impl Iterator<Item = &Path> {
        let secret = match &self.verify {
            Verify::Introspection(asked) => asked.client_secret_file.as_ref(),
            Verify::Nothing | Verify::Jwt(_) => None,
        };
        let ca = self.ca.as_ref().filter(|_| self.verify != Verify::Nothing);
        ca.into_iter().chain(secret).map(|path| Path::new(path.value.as_str()))
    }
}

/// How tokens are verified.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verify {
    /// Not at all: ids from the route are believed, and the upstream authorises.
    Nothing,
    /// By their signature (RFC 7519).
    Jwt(Jwt),
    /// By asking the server that issued them (RFC 7662).
    Introspection(Introspection),
}

/// `[identity.jwt]`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Jwt {
    /// Where the keys are (RFC 7517).
    pub jwks_url: Spanned<String>,
    /// What `iss` must be.
    pub issuer: Spanned<String>,
    /// One of these must be in `aud`.
    pub audience: Vec<Spanned<String>>,
    /// Signatures that are taken: RS256, ES256, EdDSA.
    pub algorithms: Vec<Spanned<String>>,
    /// How far clocks may differ.
    pub leeway: Duration,
    /// How often keys are fetched anew, beside when an unknown one is met.
    pub refresh: Duration,
}

/// `[identity.introspection]`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Introspection {
    /// Where tokens are asked about.
    pub url: Spanned<String>,
    /// What `iss` must be, where given.
    pub issuer: Option<Spanned<String>>,
    /// One of these must be in `aud`, where given.
    pub audience: Vec<Spanned<String>>,
    /// Who we are to that server.
    pub client_id: Option<Spanned<String>>,
    /// A file with our secret.
    pub client_secret_file: Option<Spanned<String>>,
    /// How long a good answer is kept.
    pub ttl: Duration,
    /// How long a bad one is.
    pub negative_ttl: Duration,
}

pub(super) fn identity(table: &mut Table<'_>) -> Identity {
    let seconds = Duration::from_secs;
    let at = table.at();
    let kinds = [("none", 0), ("jwt", 1), ("introspection", 2)];
    let doc = "none: the upstream authorises; jwt: by signature; introspection: by asking.";
    let kind = table.choice("verify", &kinds, doc);
    let planes = table.texts("planes", "The planes whose routes need a token.");
    if kind > 0 && planes.is_empty() {
        table.fault("`planes` is missing: list those that need tokens, as planes = [\"control\"]");
    }
    let of_jwt = table.table("jwt", "How a token's signature is verified.", |t| jwt(t, kind == 1));
    let asked = table.table("introspection", "Who is asked about a token.", |table| {
        introspection(table, kind == 2)
    });
    let claim = |table: &mut Table<'_>, key: &str, default: &str, doc: &str| {
        let claim = table.text(key, doc);
        table.set_default(key, default.into());
        if let Some(empty) = claim.as_ref().filter(|claim| claim.value.is_empty()) {
            table.fault_at(empty.at, format!("`{key}` is empty: name a claim, such as {default}"));
        }
        claim.map_or_else(|| default.to_owned(), |claim| claim.value)
    };
    Identity {
        at,
        verify: match kind {
            1 => Verify::Jwt(of_jwt),
            2 => Verify::Introspection(asked),
            _ => Verify::Nothing,
        },
        planes,
        workspace_claim: claim(
            table,
            "workspace_claim",
            "workspace_id",
            "The claim with the workspace, or a list of them; dots lead into objects.",
        ),
        organisation_claim: claim(
            table,
            "organisation_claim",
            "organisation_id",
            "The claim with the organisation.",
        ),
        timeout: table.span_or("timeout", WAIT, seconds(2), "How long the server may take."),
        cache_max: number(table.number_or(
            "cache_max",
            1..=100_000_000,
            100_000,
            "Verified tokens that are remembered, by their hash.",
        )),
        ca: table.text("ca", "A PEM file of the root that the server's certificate has."),
    }
}

/// Signatures that can be taken.
const ALGORITHMS: [&str; 3] = ["RS256", "ES256", "EdDSA"];

fn jwt(table: &mut Table<'_>, needed: bool) -> Jwt {
    let seconds = Duration::from_secs;
    let at = table.at();
    let nothing = || Spanned { value: String::new(), at };
    if needed {
        for key in ["jwks_url", "issuer", "audience"] {
            table.need(key);
        }
    }
    let mut algorithms = table.texts("algorithms", "Signatures taken: RS256, ES256, EdDSA.");
    table.set_default("algorithms", ALGORITHMS.to_vec().into());
    if algorithms.is_empty() {
        algorithms = ALGORITHMS.map(|name| Spanned { value: name.to_owned(), at }).to_vec();
    }
    for name in &algorithms {
        if !ALGORITHMS.contains(&name.value.as_str()) {
            let all = ALGORITHMS.join(", ");
            let text = format!("unknown algorithm `{}`; known: {all}", name.value);
            table.fault_at(name.at, text);
        }
    }
    let jwks_url = table.text("jwks_url", "Where the keys are.").unwrap_or_else(nothing);
    let issuer = table.text("issuer", "What `iss` must be.");
    let audience = table.texts("audience", "One of these must be in `aud`.");
    if needed && table.has("audience") && audience.is_empty() {
        table.fault("`audience` is empty: list the names that `aud` of a token may have");
    }
    for empty in issuer.iter().chain(&audience).filter(|one| one.value.is_empty()) {
        table.fault_at(empty.at, "an empty text is not allowed here: write what a token must have");
    }
    Jwt {
        jwks_url,
        issuer: issuer.unwrap_or_else(nothing),
        audience,
        algorithms,
        leeway: table.span_or(
            "leeway",
            Duration::ZERO..=seconds(600),
            seconds(30),
            "How far clocks may differ.",
        ),
        refresh: table.span_or(
            "refresh",
            WAIT,
            seconds(600),
            "How often keys are fetched anew, beside when an unknown one is met.",
        ),
    }
}

fn introspection(table: &mut Table<'_>, needed: bool) -> Introspection {
    let at = table.at();
    let nothing = || Spanned { value: String::new(), at };
    if needed {
        table.need("url");
    }
    let client_id = table.text("client_id", "Who we are to that server.");
    let client_secret_file =
        table.text("client_secret_file", "A file whose first line is our secret.");
    if client_id.is_some() != client_secret_file.is_some() {
        table.fault("`client_id` and `client_secret_file` need each other: set both or neither");
    }
    Introspection {
        url: table.text("url", "Where tokens are asked about.").unwrap_or_else(nothing),
        issuer: table.text("issuer", "What `iss` must be, where given."),
        audience: table.texts("audience", "One of these must be in `aud`, where given."),
        client_id,
        client_secret_file,
        ttl: table.span_or(
            "ttl",
            WAIT,
            Duration::from_secs(30),
            "How long a good answer is kept: as long may a revoked token be taken.",
        ),
        negative_ttl: table.span_or(
            "negative_ttl",
            WAIT,
            Duration::from_secs(10),
            "How long a bad answer is kept.",
        ),
    }
}
