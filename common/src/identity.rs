//! Verifies the access tokens of callers: by keys that their issuer publishes, or at the issuer.
//!
//! # Invariants
//!
//! 1. No identity server is queried for a caller that gets no turn ([`QueryTurns`]).
//! 2. Every wait for an identity server has a deadline, and their number is bounded.
//! 3. No token is logged, shown or stored; only its hash is stored.
//!
//! Not here: which calls need a token, what a claim permits (each program).

pub mod bearer;
pub mod identity_server;
mod introspection;
mod jwks;
mod jwks_schedule;
pub mod settings;
mod valid_token;
pub mod verifier;

use std::future;
use std::sync::Arc;
use std::time::Duration;

use http::HeaderMap;
use tokio::sync::Notify;

use crate::config::document::{Diagnostic, Document};
use crate::identity::bearer::Bearer;
use crate::identity::verifier::{Unverified, Verifier};
use crate::time::Moment;
use crate::token::Flaw;

/// Why the token of a call is not accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unaccepted {
    /// The call has none.
    Missing,
    /// The call has more than one `Authorization` header.
    Doubled,
    /// It is not valid.
    Flawed(Flaw),
    /// It cannot be verified now.
    Unavailable,
}

/// Why a query of an identity server has not found a token valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fruitless {
    /// It is not.
    Invalid,
    /// The server has not answered, and may still be working.
    Unanswered,
}

/// What a caller needs a turn for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Query {
    /// The next fetch of the keys, which all callers share.
    Keys,
    /// An introspection of its own.
    Introspection,
}

/// Bounds the queries of identity servers that one caller's tokens cause.
pub trait QueryTurns: Sync {
    /// Held while a server is queried.
    type Turn: Send;

    /// The caller: its requests with one token share a turn.
    fn caller(&self) -> u128;

    /// Waits for a turn; none where the caller may cause no query.
    fn turn(&self, query: Query) -> impl Future<Output = Option<Self::Turn>> + Send;

    /// Charges the caller for a query that has not found its token valid.
    fn charge(&self, why: Fruitless);
}

/// Waits for a turn for at most `patience`; the query that it is for has a deadline of its own.
async fn turn_within<Q: QueryTurns>(
    patience: Duration,
    turns: &Q,
    query: Query,
) -> Option<Q::Turn> {
    tokio::time::timeout(patience, turns.turn(query)).await.ok().flatten()
}

/// Charges a caller for a query without an answer when it ends, or is dropped while the server
/// works on it.
struct Charged<'q, Q: QueryTurns>(Option<&'q Q>);

impl<Q: QueryTurns> Charged<'_, Q> {
    /// Charges the caller for an answer.
    fn end(mut self, why: Fruitless) {
        if let Some(turns) = self.0.take() {
            turns.charge(why);
        }
    }
}

impl<Q: QueryTurns> Drop for Charged<'_, Q> {
    fn drop(&mut self) {
        if let Some(turns) = self.0 {
            turns.charge(Fruitless::Unanswered);
        }
    }
}

/// Callers whose queries are not bounded.
#[derive(Clone, Copy, Debug)]
pub struct Unbounded;

impl QueryTurns for Unbounded {
    type Turn = ();

    fn caller(&self) -> u128 {
        0
    }

    async fn turn(&self, _: Query) -> Option<()> {
        Some(())
    }

    fn charge(&self, _: Fruitless) {}
}

/// Verifies the token of a call; also returns the outcome's label in metrics. Without a verifier no
/// token can be verified; an identity server is queried in one of the caller's `turns`.
pub async fn verify<T: Send + Sync + 'static>(
    verifier: Option<&Verifier<T>>,
    headers: &HeaderMap,
    now: Moment,
    turns: &impl QueryTurns,
) -> (&'static str, Result<Arc<T>, Unaccepted>) {
    let token = match bearer::read(headers) {
        Bearer::Missing => return ("missing", Err(Unaccepted::Missing)),
        Bearer::Doubled => return ("doubled", Err(Unaccepted::Doubled)),
        Bearer::Malformed => return ("malformed", Err(Unaccepted::Flawed(Flaw::Malformed))),
        Bearer::Token(token) => token,
    };
    let Some(verifier) = verifier else { return ("unavailable", Err(Unaccepted::Unavailable)) };
    match verifier.verify(token, now, turns).await {
        Ok(token) => (if token.cached { "cached" } else { "verified" }, Ok(token.claims)),
        Err(Unverified::Flawed(flaw)) => {
            verifier.log_refusal(flaw, now.tick);
            (flaw.word(), Err(Unaccepted::Flawed(flaw)))
        }
        Err(Unverified::Unavailable) => ("unavailable", Err(Unaccepted::Unavailable)),
    }
}

/// Fetches the keys that tokens are verified by, where there are none yet: before the verifier is
/// active.
///
/// # Errors
///
/// Why there are still none.
pub async fn first_keys<T: Send + Sync + 'static>(verifier: &Verifier<T>) -> Result<(), String> {
    match verifier.jwks() {
        Some(jwks) => jwks.first().await,
        None => Ok(()),
    }
}

/// Fetches the keys of `new` before it replaces `earlier`; reports in the settings' `document`
/// why there are none. Where `earlier` cannot verify tokens either, nothing would be lost: if it
/// could not lately, its server is tried again, for a single token may go without an answer.
pub async fn keyless<T: Send + Sync + 'static>(
    new: Option<&Verifier<T>>,
    earlier: Option<&Verifier<T>>,
    document: impl FnOnce() -> Document,
) -> Vec<Diagnostic> {
    let Some(new) = new else { return Vec::new() };
    let Err(why) = first_keys(new).await else { return Vec::new() };
    if let Some(earlier) = earlier
        && earlier.trouble().is_some()
        && earlier.reach().await.is_err()
    {
        return Vec::new();
    }
    let document = document();
    document.fault_in("identity.jwt.jwks_url", format!("keys cannot be fetched: {why}"));
    document.diagnostics()
}

/// Keeps the keys of the `active` verifier fresh. `reloaded` is notified when a reload may have
/// replaced it; a fetch for a replaced verifier is cancelled.
pub async fn refresh_jwks<T: Send + Sync + 'static>(
    active: impl Fn() -> Option<Arc<Verifier<T>>>,
    reloaded: &Notify,
) {
    loop {
        let verifier = active();
        let keep_fresh = async {
            match verifier.as_ref().and_then(|verifier| verifier.jwks()) {
                Some(jwks) => jwks.keep_fresh().await,
                None => future::pending().await,
            }
        };
        let replaced = async {
            let address = |verifier: &Option<Arc<Verifier<T>>>| verifier.as_ref().map(Arc::as_ptr);
            while address(&active()) == address(&verifier) {
                reloaded.notified().await;
            }
        };
        tokio::select! { () = keep_fresh => {}, () = replaced => {} }
    }
}
