//! Verifies tokens as the settings have it, and remembers those that hold by their SHA-256.
//!
//! # Invariants
//!
//! 1. No token is kept, only its hash, and never longer than it holds.
//! 2. Any number of requests with one token ask one question.
//! 3. What was verified by keys that are no longer the issuer's is verified again.
//!
//! Not here: what is asked of a token (`weir_common::token`), where keys come from (`jwks`).

use std::sync::Arc;
use std::time::{Duration, Instant};

use moka::Expiry;
use moka::future::Cache;
use ring::digest;
use serde_json::Value;
use weir_common::secret::Secret;
use weir_common::time::{Clock, Moment, Tick, UnixTime};
use weir_common::token::{self, Algorithm, Flaw, Terms};

use crate::identity::auth::authorization::Claims;
use crate::identity::auth::identity_server::IdentityServer;
use crate::identity::auth::introspection::{Inspector, Unavailable};
use crate::identity::auth::jwks::{Jwks, Keys, Renewed};
use crate::identity::auth::refusals::Refusals;
use crate::identity::http_client;
use crate::settings::{Identity, Verify};
use crate::telemetry::metrics::Metrics;

/// Tokens that are remembered as bad. Whoever sends more is soon out of allowance.
const BAD_MAX: u64 = 10_000;

/// Good answers are forgotten at the latest after this: so long may clocks be wrong.
const KEPT_MAX: Duration = Duration::from_secs(24 * 3_600);

/// What is asked about where nothing but the answer itself matters: no server has issued it.
const NOBODYS: &str = "weir-gateway.check";

type Hash = [u8; 32];

/// What verifies tokens.
pub struct Verifier {
    origin: Origin,
    means: Means,
    workspace_claim: String,
    organisation_claim: String,
    good: Cache<Hash, Known>,
    bad: Cache<Hash, Flaw>,
    patience: Duration,
    refusals: Refusals,
}

/// What a verifier was made of: one of the same need not be made again.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Origin {
    /// `[identity]`, each value in force.
    pub settings: Value,
    /// The files that it names, as they were read.
    pub files: Files,
}

/// The files that `[identity]` names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Files {
    /// The root of the server's certificate.
    pub ca: Option<String>,
    /// Our secret.
    pub client_secret: Option<Secret<String>>,
}

enum Means {
    Jwt(Jwks, Terms),
    Introspection(Inspector),
}

/// A token that holds.
#[derive(Clone)]
struct Known {
    claims: Arc<Claims>,
    expires: UnixTime,
    /// How long that is from when it was found.
    lasts: Duration,
    /// By which keys.
    edition: u64,
}

/// Why a token lets in nobody.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Denied {
    /// It does not hold.
    Flawed(Flaw),
    /// Nobody can say whether it does.
    Unavailable,
}

/// A token that was found to hold, and whether that was known already.
pub(super) struct Held {
    pub(super) claims: Arc<Claims>,
    pub(super) remembered: bool,
}

impl Verifier {
    /// What verifies tokens as the settings have it; nothing where they have nothing verified.
    /// `earlier` is handed on where it was made of the same, and its keys where they are needed.
    #[must_use]
    pub fn new(
        settings: &Identity,
        origin: Origin,
        earlier: Option<&Arc<Self>>,
        metrics: &Arc<Metrics>,
        clock: &Clock,
    ) -> Option<Arc<Self>> {
        if settings.verify == Verify::Nothing {
            return None;
        }
        if let Some(same) = earlier.filter(|earlier| earlier.origin == origin) {
            return Some(same.clone());
        }
        let ca = settings.ca.as_ref().map(|path| path.value.as_str());
        // A file that has become unreadable since it was checked: no token is believed, and no
        // other root either.
        let client = http_client::client(ca, settings.timeout).ok()?;
        let server = IdentityServer {
            client,
            timeout: settings.timeout,
            clock: clock.clone(),
            metrics: metrics.clone(),
        };
        let means = match &settings.verify {
            Verify::Nothing => return None,
            Verify::Jwt(jwt) => {
                let earlier = earlier.and_then(|earlier| earlier.ring());
                let url = &jwt.jwks_url.value;
                let ring = Jwks::new(url, server, jwt.refresh, earlier);
                let named = |name: &weir_common::reader::At<String>| Algorithm::named(&name.value);
                let terms = Terms {
                    issuer: jwt.issuer.value.clone(),
                    audience: jwt.audience.iter().map(|one| one.value.clone()).collect(),
                    algorithms: jwt.algorithms.iter().filter_map(named).collect(),
                    leeway: jwt.leeway,
                };
                Means::Jwt(ring, terms)
            }
            Verify::Introspection(asked) => {
                let secret = origin.files.client_secret.as_ref();
                Means::Introspection(Inspector::new(asked, secret, server))
            }
        };
        let negative = match &settings.verify {
            Verify::Introspection(asked) => asked.negative_ttl,
            _ => Duration::ZERO,
        };
        Some(Arc::new(Self {
            means,
            origin,
            workspace_claim: settings.workspace_claim.clone(),
            organisation_claim: settings.organisation_claim.clone(),
            good: Cache::builder()
                .max_capacity(u64::try_from(settings.cache_max).unwrap_or(u64::MAX))
                .expire_after(AsLongAsItHolds)
                .build(),
            bad: Cache::builder().max_capacity(BAD_MAX).time_to_live(negative).build(),
            patience: settings.timeout,
            refusals: Refusals::default(),
        }))
    }

    /// The keys, where tokens are verified by them.
    pub(super) fn ring(&self) -> Option<&Jwks> {
        match &self.means {
            Means::Jwt(ring, _) => Some(ring),
            Means::Introspection(_) => None,
        }
    }

    /// Takes note of a token that was refused.
    pub(super) fn refused(&self, flaw: Flaw, now: Tick) {
        self.refusals.tell(flaw, now);
    }

    /// Judges a token by what its server says now; an error says why that says nothing.
    pub(super) async fn try_once(
        &self,
        token: &str,
        now: Moment,
    ) -> Result<Result<Claims, Flaw>, String> {
        let judged = match &self.means {
            Means::Jwt(ring, terms) => {
                let keys = ring.ask().await?;
                token::verify(token, &keys, terms, now.unix).map(|verified| verified.claims)
            }
            Means::Introspection(inspector) => {
                inspector.try_once(token, now.unix).await?.map(|(claims, _)| claims)
            }
        };
        let claims = |claims| Claims::of(&claims, &self.workspace_claim, &self.organisation_claim);
        Ok(judged.map(claims))
    }

    /// Asks the server once for what every token needs; an error says what is wrong with it.
    pub async fn reach(&self, now: Moment) -> Result<(), String> {
        match &self.means {
            Means::Jwt(ring, _) => ring.ask().await.map(drop),
            Means::Introspection(inspector) => {
                inspector.try_once(NOBODYS, now.unix).await.map(drop)
            }
        }
    }

    /// What keeps tokens from being verified now.
    #[must_use]
    pub fn trouble(&self) -> Option<&'static str> {
        match &self.means {
            Means::Jwt(ring, _) => ring.keys().is_none().then_some(
                "identity.jwt.jwks_url has not given any keys yet: every token is answered 503",
            ),
            Means::Introspection(inspector) => inspector.is_failing().then_some(
                "identity.introspection.url does not answer: tokens that are not remembered are \
                 answered 503",
            ),
        }
    }

    /// How many tokens are remembered.
    #[must_use]
    pub fn remembered(&self) -> u64 {
        self.good.entry_count() + self.bad.entry_count()
    }

    /// Verifies a token. `may_query` says whether a server may be queried for it.
    pub(super) async fn verify(
        &self,
        token: &str,
        now: Moment,
        may_query: impl Fn() -> bool,
    ) -> Result<Held, Denied> {
        let hash = hash(token);
        if let Some(known) = self.good.get(&hash).await {
            if now.unix < known.expires && known.edition == self.edition() {
                return Ok(Held { claims: known.claims, remembered: true });
            }
            self.good.invalidate(&hash).await;
        }
        let known = match &self.means {
            Means::Jwt(ring, terms) => {
                let known = self.by_keys(ring, terms, token, now, may_query).await?;
                self.good.insert(hash, known.clone()).await;
                known
            }
            Means::Introspection(inspector) => {
                if let Some(flaw) = self.bad.get(&hash).await {
                    return Err(Denied::Flawed(flaw));
                }
                if !may_query() {
                    return Err(Denied::Unavailable);
                }
                let asking = self.by_asking(inspector, token, hash, now);
                let asked = self.good.try_get_with(hash, asking);
                // Who waits for the question of another waits no longer than for one of its own.
                let asked = tokio::time::timeout(self.patience, asked).await;
                asked.map_err(|_| Denied::Unavailable)?.map_err(|why| *why)?
            }
        };
        Ok(Held { claims: known.claims, remembered: false })
    }

    async fn by_keys(
        &self,
        ring: &Jwks,
        terms: &Terms,
        token: &str,
        now: Moment,
        may_query: impl Fn() -> bool,
    ) -> Result<Known, Denied> {
        let had = ring.keys();
        let verified = |keys: &Keys| {
            token::verify(token, &keys.set, terms, now.unix)
                .map(|verified| self.known(&verified.claims, verified.expires, now, keys.edition))
        };
        let first = had.as_deref().map(verified);
        match first {
            Some(Ok(known)) => return Ok(known),
            Some(Err(flaw)) if flaw != Flaw::UnknownKey => return Err(Denied::Flawed(flaw)),
            _ if !may_query() => return Err(Denied::Unavailable),
            _ => {}
        }
        if ring.renewed(had.as_deref()).await == Renewed::No {
            return Err(Denied::Unavailable);
        }
        let keys = ring.keys().ok_or(Denied::Unavailable)?;
        verified(&keys).map_err(Denied::Flawed)
    }

    async fn by_asking(
        &self,
        inspector: &Inspector,
        token: &str,
        hash: Hash,
        now: Moment,
    ) -> Result<Known, Denied> {
        // Whoever asked before us may have learned it since we looked.
        if let Some(flaw) = self.bad.get(&hash).await {
            return Err(Denied::Flawed(flaw));
        }
        match inspector.ask(token, now).await {
            Ok(Ok((claims, expires))) => Ok(self.known(&claims, expires, now, 0)),
            Ok(Err(flaw)) => {
                self.bad.insert(hash, flaw).await;
                Err(Denied::Flawed(flaw))
            }
            Err(Unavailable) => Err(Denied::Unavailable),
        }
    }

    fn known(&self, claims: &token::Claims, expires: UnixTime, now: Moment, edition: u64) -> Known {
        let claims = Claims::of(claims, &self.workspace_claim, &self.organisation_claim);
        let lasts = expires.since(now.unix).min(KEPT_MAX);
        Known { claims: Arc::new(claims), expires, lasts, edition }
    }

    fn edition(&self) -> u64 {
        self.ring().map_or(0, Jwks::edition)
    }
}

struct AsLongAsItHolds;

impl Expiry<Hash, Known> for AsLongAsItHolds {
    fn expire_after_create(&self, _: &Hash, known: &Known, _: Instant) -> Option<Duration> {
        Some(known.lasts)
    }

    fn expire_after_update(
        &self,
        _: &Hash,
        known: &Known,
        _: Instant,
        _: Option<Duration>,
    ) -> Option<Duration> {
        Some(known.lasts)
    }
}

fn hash(token: &str) -> Hash {
    let digest = digest::digest(&digest::SHA256, token.as_bytes());
    digest.as_ref().try_into().expect("SHA-256 has 32 bytes")
}
