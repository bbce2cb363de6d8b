//! Authenticates requests: reads and verifies their tokens.
//!
//! # Invariants
//!
//! 1. No identity server is queried if the caller's `may_query` returns false.
//! 2. Every wait for an identity server has a deadline, and their number is bounded.
//! 3. No token is logged, shown or stored; only its hash is stored.
//!
//! # Not here
//!
//! Which routes need a token (`rules`), what is charged without a valid one (`admission`).

pub mod authorization;
mod bearer;
mod identity_server;
mod introspection;
mod jwks;
mod jwks_schedule;
pub mod verifier;

use std::future;
use std::sync::Arc;

use http::HeaderMap;
use tokio::sync::Notify;
use weir_common::time::Moment;
use weir_common::token::Flaw;

use crate::identity::auth::bearer::Bearer;
use crate::identity::auth::verifier::Unverified;
use crate::response::refusal::Refusal;
use crate::telemetry::metrics::Metrics;

use crate::identity::auth::authorization::Claims;
use crate::identity::auth::verifier::Verifier;

/// Verifies the token of a request. Without a verifier no token is valid; `may_query` decides
/// whether an identity server may be queried for it.
pub async fn verify(
    verifier: Option<&Verifier>,
    headers: &HeaderMap,
    now: Moment,
    metrics: &Metrics,
    may_query: impl Fn() -> bool,
) -> Result<Arc<Claims>, Refusal> {
    let (word, verdict) = outcome(verifier, headers, now, may_query).await;
    metrics.token_verifications.with_label_values(&[word]).inc();
    if let Err(Refusal::Unauthenticated { flaw: Some(flaw) }) = &verdict
        && let Some(verifier) = verifier
    {
        verifier.log_refusal(*flaw, now.tick);
    }
    verdict
}

/// Keeps the keys of the `active` verifier fresh. `reloaded` is notified when a reload may have
/// replaced it; a fetch for a replaced verifier is cancelled.
pub async fn refresh_jwks(active: impl Fn() -> Option<Arc<Verifier>>, reloaded: &Notify) {
    loop {
        let verifier = active();
        let keep_fresh = async {
            match verifier.as_ref().and_then(|verifier| verifier.jwks()) {
                Some(jwks) => jwks.keep_fresh().await,
                None => future::pending().await,
            }
        };
        let replaced = async {
            let address = |verifier: &Option<Arc<Verifier>>| verifier.as_ref().map(Arc::as_ptr);
            while address(&active()) == address(&verifier) {
                reloaded.notified().await;
            }
        };
        tokio::select! { () = keep_fresh => {}, () = replaced => {} }
    }
}

/// Why a token is not accepted: the client's refusal, and the reason for an operator.
pub type Unaccepted = (Refusal, String);

/// Verifies the token in `headers`, if there is one, outside of any request: queries the identity
/// server and bypasses the cache.
pub async fn try_once(
    verifier: Option<&Verifier>,
    headers: &HeaderMap,
    now: Moment,
) -> Result<Option<Claims>, Unaccepted> {
    let flawed = |flaw: Flaw| {
        let why = format!("{}: {}", flaw.word(), flaw.detail());
        (Refusal::Unauthenticated { flaw: Some(flaw) }, why)
    };
    let token = match bearer::read(headers) {
        Bearer::Missing => return Ok(None),
        Bearer::Doubled => {
            return Err((Refusal::TwoTokens, "there are two `Authorization`".to_owned()));
        }
        Bearer::Malformed => return Err(flawed(Flaw::Malformed)),
        Bearer::Token(token) => token,
    };
    let unavailable = |why: String| (Refusal::IdentityUnavailable, why);
    let verifier = verifier.ok_or_else(|| unavailable("identity.ca cannot be read".to_owned()))?;
    match verifier.try_once(token, now).await {
        Ok(Ok(claims)) => Ok(Some(claims)),
        Ok(Err(flaw)) => Err(flawed(flaw)),
        Err(why) => Err(unavailable(why)),
    }
}

/// The outcome's label in metrics, and the outcome.
async fn outcome(
    verifier: Option<&Verifier>,
    headers: &HeaderMap,
    now: Moment,
    may_query: impl Fn() -> bool,
) -> (&'static str, Result<Arc<Claims>, Refusal>) {
    let unauthenticated = |flaw| Err(Refusal::Unauthenticated { flaw });
    let token = match bearer::read(headers) {
        Bearer::Missing => return ("missing", unauthenticated(None)),
        Bearer::Doubled => return ("doubled", Err(Refusal::TwoTokens)),
        Bearer::Malformed => return ("malformed", unauthenticated(Some(Flaw::Malformed))),
        Bearer::Token(token) => token,
    };
    let unavailable = ("unavailable", Err(Refusal::IdentityUnavailable));
    let Some(verifier) = verifier else { return unavailable };
    match verifier.verify(token, now, may_query).await {
        Ok(token) => (if token.cached { "cached" } else { "verified" }, Ok(token.claims)),
        Err(Unverified::Flawed(flaw)) => (flaw.word(), unauthenticated(Some(flaw))),
        Err(Unverified::Unavailable) => unavailable,
    }
}
