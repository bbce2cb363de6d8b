//! Verifies tokens by JWKS or introspection, and caches valid ones by their SHA-256.
//!
//! # Invariants
//!
//! 1. No token is stored, only its hash, and never for longer than the token is valid.
//! 2. Any number of concurrent requests with one token introspect it once.
//! 3. A token that was verified by keys that have since changed is verified again.
//! 4. A failed introspection is not cached.
//!
//! Not here: what makes a token valid (`token`), where keys come from (`jwks`).

use std::borrow::Cow;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use crate::log::events;
use crate::time::{Clock, Moment, Tick, UnixTime};
use crate::token::claims::Claims;
use crate::token::{self, Flaw, Terms};
use log::Level;
use moka::future::Cache;
use ring::digest;
use serde_json::{Value, json};

use crate::config::document::Document;
use crate::config::files;
use crate::http_client;
use crate::identity::identity_server::{IdentityMetrics, IdentityServer};
use crate::identity::introspection::IntrospectionClient;
use crate::identity::jwks::{Jwks, Keys};
use crate::identity::settings::{IdentitySettings, Verify};
use crate::identity::valid_token::{ValidToken, WhileValid};
use crate::identity::{Charged, Fruitless, Query, QueryTurns, turn_within};
use crate::log::limiter::LogLimiter;
use crate::secret::Secret;

/// Invalid tokens that are cached. A client that sends more soon exceeds its limit.
const INVALID_MAX: u64 = 10_000;

/// No token is cached for longer than this, which bounds the effect of a wrong clock.
const CACHED_MAX: Duration = Duration::from_secs(24 * 3_600);

/// Time between two log lines about tokens refused for one reason.
const REFUSAL_LOG_EVERY: Duration = Duration::from_secs(60);

type Hash = [u8; 32];

/// Verifies tokens, and reads a `T` from the claims of each.
pub struct Verifier<T> {
    source: VerifierSource,
    method: Method,
    read: ReadClaims<T>,
    valid: Cache<Hash, ValidToken<T>>,
    invalid: Cache<Hash, Flaw>,
    /// The tokens that callers wait for; caches nothing.
    waiting: Cache<(u128, Hash), ValidToken<T>>,
    timeout: Duration,
    refusal_log: LogLimiter<&'static str>,
}

/// What a program reads from the claims of a valid token.
pub type ReadClaims<T> = Box<dyn Fn(&Claims) -> T + Send + Sync>;

/// What a verifier is built from: a reload with an equal source keeps the verifier.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VerifierSource {
    /// The active values of `[identity]`.
    pub settings: Value,
    /// The content of the files that it names.
    pub files: IdentityFiles,
    /// The claims that are read although `[identity]` does not name them: no cached token may lack
    /// one that was added since.
    pub more_claims: Vec<Arc<str>>,
}

/// The content of the files that `[identity]` names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IdentityFiles {
    /// The root certificates for the server.
    pub ca: Option<String>,
    /// Our secret.
    pub client_secret: Option<Secret<String>>,
}

impl IdentityFiles {
    /// Reads the files that `settings` name, and reports problems to `document`.
    #[must_use]
    pub fn read(settings: &IdentitySettings, document: &Document) -> Self {
        let mut read = Self::default();
        if settings.verify == Verify::Nothing {
            return read;
        }
        if let Some(ca) = &settings.ca {
            if let Err(why) = http_client::client(Some(ca), settings.timeout) {
                document.fault_in("identity.ca", why);
            }
            read.ca = files::read(Path::new(ca)).ok();
        }
        if let Verify::Introspection(introspection) = &settings.verify
            && let Some(path) = &introspection.client_secret_file
        {
            let key = "identity.introspection.client_secret_file";
            read.client_secret = files::secret(path, key, document);
        }
        read
    }
}

enum Method {
    Jwt(Jwks, Terms),
    Introspection(IntrospectionClient),
}

/// Why a token is not accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unverified {
    /// It is invalid.
    Flawed(Flaw),
    /// It cannot be verified now.
    Unavailable,
}

/// A valid token, and whether it was cached.
pub(super) struct Verified<T> {
    pub(super) claims: Arc<T>,
    pub(super) cached: bool,
}

impl<T: Send + Sync + 'static> Verifier<T> {
    /// A verifier by these settings; `None` if tokens are not verified, or if the `ca` file cannot
    /// be read. Returns `earlier` if its source is equal; otherwise uses its keys until the first
    /// fetch.
    #[must_use]
    pub fn new(
        settings: &IdentitySettings,
        source: VerifierSource,
        read: ReadClaims<T>,
        earlier: Option<&Arc<Self>>,
        (metrics, clock): (IdentityMetrics, &Clock),
    ) -> Option<Arc<Self>> {
        if settings.verify == Verify::Nothing {
            return None;
        }
        if let Some(same) = earlier.filter(|earlier| earlier.source == source) {
            return Some(same.clone());
        }
        // If the file has become unreadable since it was checked, no token is accepted, rather
        // than trusting other roots.
        let client = http_client::client(settings.ca.as_deref(), settings.timeout).ok()?;
        let server =
            IdentityServer { client, timeout: settings.timeout, clock: clock.clone(), metrics };
        let method = match &settings.verify {
            Verify::Nothing => return None,
            Verify::Jwt(jwt) => {
                let earlier = earlier.and_then(|earlier| earlier.jwks());
                let jwks = Jwks::new(&jwt.jwks_url, server, jwt.refresh, earlier);
                Method::Jwt(jwks, jwt.terms.clone())
            }
            Verify::Introspection(introspection) => {
                let secret = source.files.client_secret.as_ref();
                Method::Introspection(IntrospectionClient::new(introspection, secret, server))
            }
        };
        let negative = match &settings.verify {
            Verify::Introspection(introspection) => introspection.negative_ttl,
            _ => Duration::ZERO,
        };
        Some(Arc::new(Self {
            method,
            read,
            source,
            valid: Cache::builder()
                .max_capacity(u64::try_from(settings.cache_max).unwrap_or(u64::MAX))
                .expire_after(WhileValid)
                .build(),
            invalid: Cache::builder().max_capacity(INVALID_MAX).time_to_live(negative).build(),
            waiting: Cache::builder().max_capacity(0).time_to_live(Duration::ZERO).build(),
            timeout: settings.timeout,
            refusal_log: LogLimiter::new(REFUSAL_LOG_EVERY),
        }))
    }

    /// The keys, if tokens are verified by keys.
    pub(super) fn jwks(&self) -> Option<&Jwks> {
        match &self.method {
            Method::Jwt(jwks, _) => Some(jwks),
            Method::Introspection(_) => None,
        }
    }

    /// Logs why a token was refused, without the token; each reason every [`REFUSAL_LOG_EVERY`].
    pub(super) fn log_refusal(&self, flaw: Flaw, now: Tick) {
        if let Some(count) = self.refusal_log.due(flaw.word(), now) {
            let fields = [
                ("reason", json!(flaw.word())),
                ("detail", json!(flaw.detail())),
                ("count", json!(count)),
            ];
            events::event(Level::Warn, "tokens rejected", &fields);
        }
    }

    /// Verifies a token by querying its server now.
    ///
    /// # Errors
    ///
    /// Why the server cannot be used.
    pub async fn try_once(&self, token: &str, now: Moment) -> Result<Result<T, Flaw>, String> {
        let judged = match &self.method {
            Method::Jwt(jwks, terms) => {
                let keys = jwks.request().await?;
                token::verify(token, &keys, terms, now.unix).map(|verified| verified.claims)
            }
            Method::Introspection(client) => {
                let introspected = client.try_once(token, now.unix).await;
                introspected.map_err(|why| why.to_string())?.map(|(claims, _)| claims)
            }
        };
        Ok(judged.map(|claims| (self.read)(&claims)))
    }

    /// Sends one probe to the identity server.
    ///
    /// # Errors
    ///
    /// Why it cannot be used.
    pub async fn reach(&self) -> Result<(), String> {
        match &self.method {
            Method::Jwt(jwks, _) => jwks.request().await.map(drop),
            Method::Introspection(client) => client.probe().await.map_err(|why| why.to_string()),
        }
    }

    /// Why tokens cannot be verified now, if so.
    #[must_use]
    pub fn trouble(&self) -> Option<Cow<'static, str>> {
        match &self.method {
            Method::Jwt(jwks, _) => jwks.keys().is_none().then_some(Cow::Borrowed(
                "identity.jwt.jwks_url has not given any keys yet: every token is answered 503",
            )),
            Method::Introspection(client) => client.failed_since().map(|since| {
                let seconds = since.as_secs();
                Cow::Owned(format!(
                    "identity.introspection.url failed the last introspection, {seconds} s ago: \
                     while it fails, tokens that are not remembered are answered 503"
                ))
            }),
        }
    }

    /// How many tokens are cached.
    #[must_use]
    pub fn cached(&self) -> u64 {
        self.valid.entry_count() + self.invalid.entry_count()
    }

    /// Verifies a token; a server is queried for it in one of `turns`.
    pub(super) async fn verify(
        &self,
        token: &str,
        now: Moment,
        turns: &impl QueryTurns,
    ) -> Result<Verified<T>, Unverified> {
        let hash = hash(token);
        if let Some(token) = self.valid.get(&hash).await {
            if now.unix < token.expires && token.edition == self.edition() {
                return Ok(Verified { claims: token.claims, cached: true });
            }
            self.valid.invalidate(&hash).await;
        }
        let valid = match &self.method {
            Method::Jwt(jwks, terms) => {
                let valid = self.by_keys((jwks, terms), token, now, turns).await?;
                self.valid.insert(hash, valid.clone()).await;
                valid
            }
            Method::Introspection(client) => {
                if let Some(flaw) = self.invalid.get(&hash).await {
                    return Err(Unverified::Flawed(flaw));
                }
                let in_turn = self.in_turn(client, (token, hash), turns);
                let waited = self.waiting.try_get_with((turns.caller(), hash), in_turn);
                waited.await.map_err(|why| *why)?
            }
        };
        Ok(Verified { claims: valid.claims, cached: false })
    }

    async fn by_keys(
        &self,
        (jwks, terms): (&Jwks, &Terms),
        token: &str,
        now: Moment,
        turns: &impl QueryTurns,
    ) -> Result<ValidToken<T>, Unverified> {
        let had = jwks.keys();
        let verified = |keys: &Keys| {
            token::verify(token, &keys.set, terms, now.unix).map(|verified| {
                self.valid_token(&verified.claims, verified.expires, now, keys.edition)
            })
        };
        let first = had.as_deref().map(verified);
        match first {
            Some(Ok(valid)) => return Ok(valid),
            Some(Err(flaw)) if flaw != Flaw::UnknownKey => return Err(Unverified::Flawed(flaw)),
            _ => {}
        }
        let turn = turn_within(self.timeout, turns, Query::Keys).await;
        let _turn = turn.ok_or(Unverified::Unavailable)?;
        let keys = jwks.newer(had.as_deref()).await.ok_or(Unverified::Unavailable)?;
        verified(&keys).map_err(|flaw| {
            turns.charge(Fruitless::Invalid);
            Unverified::Flawed(flaw)
        })
    }

    /// Introspects a token in a turn of its caller. Callers share an introspection once they have
    /// their turns, so that none waits for another's turn.
    async fn in_turn(
        &self,
        client: &IntrospectionClient,
        (token, hash): (&str, Hash),
        turns: &impl QueryTurns,
    ) -> Result<ValidToken<T>, Unverified> {
        let turn = turn_within(self.timeout, turns, Query::Introspection).await;
        let _turn = turn.ok_or(Unverified::Unavailable)?;
        let introspected = self.by_introspection(client, (token, hash), turns);
        self.valid.try_get_with(hash, introspected).await.map_err(|why| *why)
    }

    async fn by_introspection(
        &self,
        client: &IntrospectionClient,
        (token, hash): (&str, Hash),
        turns: &impl QueryTurns,
    ) -> Result<ValidToken<T>, Unverified> {
        // Another request may have introspected it since the check in `verify`.
        if let Some(flaw) = self.invalid.get(&hash).await {
            return Err(Unverified::Flawed(flaw));
        }
        let mut charged = Charged(Some(turns));
        match client.introspect(token).await {
            Ok((Ok((claims, expires)), now)) => {
                charged.0 = None;
                Ok(self.valid_token(&claims, expires, now, 0))
            }
            Ok((Err(flaw), _)) => {
                charged.end(Fruitless::Invalid);
                self.invalid.insert(hash, flaw).await;
                Err(Unverified::Flawed(flaw))
            }
            Err(why) => {
                charged.0 = charged.0.filter(|_| why.may_be_working());
                Err(Unverified::Unavailable)
            }
        }
    }

    fn valid_token(
        &self,
        claims: &Claims,
        expires: UnixTime,
        now: Moment,
        edition: u64,
    ) -> ValidToken<T> {
        let claims = (self.read)(claims);
        let lasts = expires.since(now.unix).min(CACHED_MAX);
        ValidToken { claims: Arc::new(claims), expires, lasts, edition }
    }

    fn edition(&self) -> u64 {
        self.jwks().map_or(0, Jwks::edition)
    }
}

fn hash(token: &str) -> Hash {
    let digest = digest::digest(&digest::SHA256, token.as_bytes());
    digest.as_ref().try_into().expect("SHA-256 has 32 bytes")
}
