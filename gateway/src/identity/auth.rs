//! Authenticates requests: what a verified token reaches, and the refusal of one that is not.
//!
//! # Not here
//!
//! Whether a token is valid (`weir_common::identity`), which routes need one (`rules`), what is
//! charged without a valid one (`admission`).

pub mod address_turns;
pub mod authorization;

use std::sync::Arc;

use http::HeaderMap;
use weir_common::identity::bearer::{self, Bearer};
use weir_common::identity::{self, QueryTurns, Unaccepted};
use weir_common::time::Moment;
use weir_common::token::Flaw;

use crate::identity::auth::authorization::Claims;
use crate::response::refusal::Refusal;
use crate::telemetry::metrics::Metrics;

/// Verifies tokens, and reads what the gateway needs of their claims.
pub type Verifier = identity::verifier::Verifier<Claims>;

/// Verifies the token of a request. Without a verifier no token is valid; an identity server is
/// queried in one of the address's `turns`.
pub async fn verify(
    verifier: Option<&Verifier>,
    headers: &HeaderMap,
    now: Moment,
    metrics: &Metrics,
    turns: &impl QueryTurns,
) -> Result<Arc<Claims>, Refusal> {
    let (word, verified) = identity::verify(verifier, headers, now, turns).await;
    metrics.token_verifications.with_label_values(&[word]).inc();
    verified.map_err(|why| match why {
        Unaccepted::Missing => Refusal::Unauthenticated { flaw: None },
        Unaccepted::Doubled => Refusal::TwoTokens,
        Unaccepted::Flawed(flaw) => Refusal::Unauthenticated { flaw: Some(flaw) },
        Unaccepted::Unavailable => Refusal::IdentityUnavailable,
    })
}

/// Why a token is not accepted: the client's refusal, and the reason for an operator.
pub type TokenRefusal = (Refusal, String);

/// Verifies the token in `headers`, if there is one, outside of any request: queries the identity
/// server and bypasses the cache.
pub async fn try_once(
    verifier: Option<&Verifier>,
    headers: &HeaderMap,
    now: Moment,
) -> Result<Option<Claims>, TokenRefusal> {
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
