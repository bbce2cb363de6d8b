//! Says who calls: reads the token of a request, and verifies it where its route needs one.
//!
//! # Invariants
//!
//! 1. A request that needs a token and has no valid one is charged to its address alone, and an
//!    address that has used up its allowance has nobody asked.
//! 2. No wait for an identity server is without a deadline, and none is unbounded in number.
//! 3. No token is written down, told or kept; its hash is.
//!
//! # Not here
//!
//! Which routes need a token (`rules`), what a tenant may use (`limit`).

mod authorization;
mod bearer;
mod introspection;
mod jwks;
mod jwks_schedule;
mod refusals;
mod verifier;

use std::net::IpAddr;
use std::sync::Arc;

use http::HeaderMap;
use pingora_http::RequestHeader;
use weir_common::time::{Moment, Tick};
use weir_common::token::Flaw;

use crate::config::active::Force;
use crate::config::shared::Parts;
use crate::identity::auth::bearer::Bearer;
use crate::identity::auth::verifier::Denied;
use crate::response::refusal::Refusal;
use crate::rules::{Charges, Route};

pub use crate::identity::auth::authorization::{
    Claims, agree, claimed, is_foreign, needs_directory,
};
pub use crate::identity::auth::jwks::keep;
pub use crate::identity::auth::verifier::{Files, Origin, Verifier};

/// Verifies the token of a request that comes from `address`, where its route needs one.
pub async fn verify(
    parts: &Parts,
    force: &Force,
    route: &Route,
    head: &RequestHeader,
    address: IpAddr,
    now: Moment,
) -> Result<Option<Arc<Claims>>, Refusal> {
    if !route.needs_token {
        return Ok(None);
    }
    // Boxed: requests that need no token have no room for it to carry around.
    let (word, verdict) = Box::pin(judge(parts, force, head, address, now)).await;
    parts.metrics.token_verifications.with_label_values(&[word]).inc();
    if let Err(Refusal::Unauthenticated { flaw: Some(flaw) }) = &verdict
        && let Some(verifier) = &force.verifier
    {
        verifier.refused(*flaw, now.tick);
    }
    verdict.map(Some)
}

/// Why a token is not accepted: as its client is told, and as an operator is.
pub type Unaccepted = (Refusal, String);

/// What becomes of the token in `report` outside of any request, if there is one. Its server is
/// asked anew, and nothing is remembered.
pub async fn try_once(
    force: &Force,
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
    let verifier = force.verifier.as_ref();
    let verifier = verifier.ok_or_else(|| unavailable("identity.ca cannot be read".to_owned()))?;
    match verifier.try_once(token, now).await {
        Ok(Ok(claims)) => Ok(Some(claims)),
        Ok(Err(flaw)) => Err(flawed(flaw)),
        Err(why) => Err(unavailable(why)),
    }
}

/// The word that metrics have for what came of a token, and what did.
async fn judge(
    parts: &Parts,
    force: &Force,
    head: &RequestHeader,
    address: IpAddr,
    now: Moment,
) -> (&'static str, Result<Arc<Claims>, Refusal>) {
    let unauthenticated = |flaw| Err(Refusal::Unauthenticated { flaw });
    let token = match bearer::read(&head.headers) {
        Bearer::Missing => return ("missing", unauthenticated(None)),
        Bearer::Doubled => return ("doubled", Err(Refusal::TwoTokens)),
        Bearer::Malformed => return ("malformed", unauthenticated(Some(Flaw::Malformed))),
        Bearer::Token(token) => token,
    };
    let unavailable = ("unavailable", Err(Refusal::IdentityUnavailable));
    let Some(verifier) = &force.verifier else { return unavailable };
    let may_ask = || !is_spent(parts, force, address, now.tick);
    match verifier.verify(parts, token, now, may_ask).await {
        Ok(held) => (if held.remembered { "remembered" } else { "verified" }, Ok(held.claims)),
        Err(Denied::Flawed(flaw)) => (flaw.word(), unauthenticated(Some(flaw))),
        Err(Denied::Unavailable) => unavailable,
    }
}

/// Whether an address has used up what it may ask without a token that holds.
fn is_spent(parts: &Parts, force: &Force, address: IpAddr, now: Tick) -> bool {
    let mut charges = Charges::default();
    force.rules.charge_stranger(address, &mut charges);
    parts.limiter.is_used_up(&mut charges.asks, now)
}
