//! Reads how clients authenticate: `[identity]`.
//!
//! Not here: which calls need a token, whether one is valid (`verifier`).

use std::time::Duration;

use crate::config::document::table::Table;
use crate::config::document::{Spanned, WAIT};
use crate::config::trusted_url::check_url;
use crate::token::{Algorithm, Terms};

/// `[identity]`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IdentitySettings {
    /// How tokens are verified.
    pub verify: Verify,
    /// The claim that names the workspace, or several of them.
    pub workspace_claim: String,
    /// The claim that names the organisation.
    pub organisation_claim: String,
    /// How long a request to an identity server may take.
    pub timeout: Duration,
    /// The most valid tokens in the cache.
    pub cache_max: usize,
    /// A file with the root of the identity server's certificate, PEM.
    pub ca: Option<String>,
}

/// How tokens are verified.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verify {
    /// Not at all: ids from the route are trusted, and the upstream authorises.
    Nothing,
    /// By their signature (RFC 7519).
    Jwt(Jwt),
    /// By introspection at the server that issued them (RFC 7662).
    Introspection(Introspection),
}

/// `[identity.jwt]`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Jwt {
    /// The URL of the JWKS (RFC 7517).
    pub jwks_url: String,
    /// The issuer, audience, algorithms and times that a token must have.
    pub terms: Terms,
    /// How often the JWKS is fetched, apart from when a token names an unknown key.
    pub refresh: Duration,
}

/// `[identity.introspection]`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Introspection {
    /// The URL of the introspection endpoint.
    pub url: String,
    /// What `iss` must be, where given.
    pub issuer: Option<String>,
    /// One of these must be in `aud`, where given.
    pub audience: Vec<String>,
    /// The gateway's client id at that server.
    pub client_id: Option<String>,
    /// A file with the client's secret.
    pub client_secret_file: Option<String>,
    /// How long an active token is cached.
    pub ttl: Duration,
    /// How long an inactive token is cached.
    pub negative_ttl: Duration,
}

impl IdentitySettings {
    /// Reads `[identity]`.
    #[must_use]
    pub fn read(table: &mut Table<'_>) -> Self {
        let seconds = Duration::from_secs;
        let kinds = [("none", 0), ("jwt", 1), ("introspection", 2)];
        let doc = "none: no token is verified; jwt: by signature; introspection: at the issuer.";
        let kind = table.choice("verify", &kinds, doc);
        let of_jwt =
            table.table("jwt", "How a token's signature is verified.", |t| jwt(t, kind == 1));
        let introspection = table.table("introspection", "Which server introspects tokens.", |t| {
            introspection(t, kind == 2)
        });
        Self {
            verify: match kind {
                1 => Verify::Jwt(of_jwt),
                2 => Verify::Introspection(introspection),
                _ => Verify::Nothing,
            },
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
            timeout: table.span_or(
                "timeout",
                WAIT,
                seconds(2),
                "How long a request to the identity server may take.",
            ),
            cache_max: number(table.number_or(
                "cache_max",
                1..=100_000_000,
                100_000,
                "Valid tokens in the cache, each as a hash.",
            )),
            ca: plain(table.text("ca", "A PEM file with the root of the server's certificate.")),
        }
    }

    /// The files that it names.
    pub fn files(&self) -> impl Iterator<Item = &String> {
        let secret = match &self.verify {
            Verify::Introspection(introspection) => introspection.client_secret_file.as_ref(),
            Verify::Nothing | Verify::Jwt(_) => None,
        };
        let ca = self.ca.as_ref().filter(|_| self.verify != Verify::Nothing);
        ca.into_iter().chain(secret)
    }
}

/// Reads the name of a claim.
#[must_use]
pub fn claim(table: &mut Table<'_>, key: &str, default: &str, doc: &str) -> String {
    let claim = table.text(key, doc);
    table.set_default(key, default.into());
    if let Some(empty) = claim.as_ref().filter(|claim| claim.value.is_empty()) {
        table.fault_at(empty.at, format!("`{key}` is empty: name a claim, such as {default}"));
    }
    claim.map_or_else(|| default.to_owned(), |claim| claim.value)
}

/// The signature algorithms that can be verified.
const ALGORITHMS: [&str; 3] = ["RS256", "ES256", "EdDSA"];

fn jwt(table: &mut Table<'_>, needed: bool) -> Jwt {
    let seconds = Duration::from_secs;
    if needed {
        for key in ["jwks_url", "issuer", "audience"] {
            table.need(key);
        }
    }
    let algorithms = algorithms(table);
    let jwks_url = table.text("jwks_url", "The URL of the JWKS.");
    if let Some(url) = jwks_url.as_ref().filter(|_| needed) {
        check_url(table, "jwks_url", url, "keys are public");
    }
    let issuer = table.text("issuer", "What `iss` must be.");
    let audience = table.texts("audience", "One of these must be in `aud`.");
    if needed && table.has("audience") && audience.is_empty() {
        table.fault("`audience` is empty: list the names that `aud` of a token may have");
    }
    for empty in issuer.iter().chain(&audience).filter(|one| one.value.is_empty()) {
        table.fault_at(empty.at, "an empty text is not allowed here: write what a token must have");
    }
    Jwt {
        jwks_url: plain(jwks_url).unwrap_or_default(),
        terms: Terms {
            issuer: plain(issuer).unwrap_or_default(),
            audience: plain_all(audience),
            algorithms,
            leeway: table.span_or(
                "leeway",
                Duration::ZERO..=seconds(600),
                seconds(30),
                "How far the issuer's clock and ours may differ.",
            ),
        },
        refresh: table.span_or(
            "refresh",
            WAIT,
            seconds(600),
            "How often the JWKS is fetched, apart from when a token names an unknown key.",
        ),
    }
}

fn algorithms(table: &mut Table<'_>) -> Vec<Algorithm> {
    let names = table.some_texts("algorithms", "Signatures accepted: RS256, ES256, EdDSA.");
    table.set_default("algorithms", ALGORITHMS.to_vec().into());
    for name in names.iter().filter(|name| !ALGORITHMS.contains(&name.value.as_str())) {
        let all = ALGORITHMS.join(", ");
        table.fault_at(name.at, format!("unknown algorithm `{}`; known: {all}", name.value));
    }
    let given: Vec<_> = names.iter().filter_map(|name| Algorithm::named(&name.value)).collect();
    let all = || ALGORITHMS.into_iter().filter_map(Algorithm::named).collect();
    if names.is_empty() { all() } else { given }
}

fn introspection(table: &mut Table<'_>, needed: bool) -> Introspection {
    if needed {
        table.need("url");
    }
    let client_id = table.text("client_id", "The gateway's client id at that server.");
    let client_secret_file =
        table.text("client_secret_file", "A file whose first line is the client's secret.");
    if client_id.is_some() != client_secret_file.is_some() {
        table.fault("`client_id` and `client_secret_file` need each other: set both or neither");
    }
    let url = table.text("url", "The URL of the introspection endpoint.");
    if let Some(url) = url.as_ref().filter(|_| needed) {
        check_url(table, "url", url, "use client_id");
    }
    Introspection {
        url: plain(url).unwrap_or_default(),
        issuer: plain(table.text("issuer", "What `iss` must be, where given.")),
        audience: plain_all(table.texts("audience", "One of these must be in `aud`, where given.")),
        client_id: plain(client_id),
        client_secret_file: plain(client_secret_file),
        ttl: table.span_or(
            "ttl",
            WAIT,
            Duration::from_secs(30),
            "How long an active token is cached: a revoked one is accepted as long.",
        ),
        negative_ttl: table.span_or(
            "negative_ttl",
            WAIT,
            Duration::from_secs(10),
            "How long an inactive token is cached.",
        ),
    }
}

fn plain(text: Option<Spanned<String>>) -> Option<String> {
    text.map(|text| text.value)
}

fn plain_all(texts: Vec<Spanned<String>>) -> Vec<String> {
    texts.into_iter().map(|text| text.value).collect()
}

fn number(value: u64) -> usize {
    usize::try_from(value).unwrap_or(usize::MAX)
}
