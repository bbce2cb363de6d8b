//! Verifies signed tokens, and reads their claims (RFC 7519, as narrowed by RFC 9068 and RFC 8725).
//!
//! # Invariants
//!
//! 1. A signature is checked with the key's algorithm, never with the one that the token names: a
//!    token that names another is refused.
//! 2. No claim is read before the signature is verified.
//! 3. What can be read in two ways is refused: padding, unknown critical headers, duplicate
//!    members.
//!
//! # Not here
//!
//! Where tokens and keys come from, how long a result is cached, what a claim permits.

pub mod claims;
mod jws;
pub mod keys;
pub mod reach;

use std::time::Duration;

use crate::time::UnixTime;
use crate::token::claims::Claims;
use crate::token::jws::Jws;
use crate::token::keys::KeySet;

/// The longest token: a longer one exceeds the header limits of common servers.
pub const TOKEN_BYTES_MAX: usize = 8 * 1024;

/// Signature algorithms. All use public keys: the verifier needs no secret of the issuer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Algorithm {
    /// RSASSA-PKCS1-v1_5 with SHA-256, by keys of 2048 to 8192 bits (RFC 7518).
    Rs256,
    /// ECDSA on P-256 with SHA-256 (RFC 7518).
    Es256,
    /// Ed25519 (RFC 8037; RFC 9864 spells it `Ed25519`).
    EdDsa,
}

impl Algorithm {
    /// The algorithm of this name, if it is accepted.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        match name {
            "RS256" => Some(Self::Rs256),
            "ES256" => Some(Self::Es256),
            "EdDSA" | "Ed25519" => Some(Self::EdDsa),
            _ => None,
        }
    }
}

/// What a token must meet, apart from its signature.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Terms {
    /// What `iss` must be, byte for byte.
    pub issuer: String,
    /// One of these must be in `aud`.
    pub audience: Vec<String>,
    /// The accepted algorithms.
    pub algorithms: Vec<Algorithm>,
    /// How far the issuer's clock and ours may differ.
    pub leeway: Duration,
}

/// A valid token.
#[derive(Clone, Debug, PartialEq)]
pub struct Verified {
    /// Its claims.
    pub claims: Claims,
    /// When it expires, with the leeway.
    pub expires: UnixTime,
}

/// Why a token is not valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flaw {
    /// It cannot be parsed, can be read in two ways, or is too long.
    Malformed,
    /// Its algorithm is not accepted, or is not that of the key that it names.
    Algorithm,
    /// None of our keys made the signature; a newer key may have.
    UnknownKey,
    /// The key that it names did not sign it.
    Signature,
    /// Its issuer is another one.
    Issuer,
    /// It is meant for another audience.
    Audience,
    /// It has expired, or has no `exp`.
    Expired,
    /// It is not valid yet.
    Early,
    /// Its issuer reports it as inactive (introspection).
    Inactive,
}

impl Flaw {
    /// Its name in metrics.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Malformed => "malformed",
            Self::Algorithm => "algorithm",
            Self::UnknownKey => "unknown_key",
            Self::Signature => "signature",
            Self::Issuer => "issuer",
            Self::Audience => "audience",
            Self::Expired => "expired",
            Self::Early => "early",
            Self::Inactive => "inactive",
        }
    }

    /// The reason, for the operator.
    #[must_use]
    pub fn detail(self) -> &'static str {
        match self {
            Self::Malformed => "it is no token, or it can be read in two ways",
            Self::Algorithm => "its algorithm is not accepted, or is not that of its key",
            Self::UnknownKey => "its `kid` is not in the issuer's set of keys",
            Self::Signature => "its signature was not made with the key that it names",
            Self::Issuer => "its `iss` is not the configured issuer",
            Self::Audience => "its `aud` has none of the configured audiences",
            Self::Expired => "its `exp` has passed, or is missing",
            Self::Early => "its `nbf` or `iat` is still to come",
            Self::Inactive => "its issuer says that it is not active",
        }
    }

    /// The reason, for the client: only those that RFC 6750 names.
    #[must_use]
    pub fn message(self) -> &'static str {
        match self {
            Self::Malformed => "The token is malformed",
            Self::Expired => "The token has expired",
            Self::Early => "The token is not valid yet",
            _ => "The token is not valid",
        }
    }
}

/// Verifies a token in compact form with the keys of its issuer.
///
/// # Errors
///
/// The first flaw found.
pub fn verify(token: &str, keys: &KeySet, terms: &Terms, now: UnixTime) -> Result<Verified, Flaw> {
    let jws = Jws::read(token)?;
    if !terms.algorithms.contains(&jws.algorithm) {
        return Err(Flaw::Algorithm);
    }
    keys.check(&jws)?;
    let claims = Claims::read(&jws.payload).ok_or(Flaw::Malformed)?;
    claims.check_issuer(&terms.issuer)?;
    claims.check_audience(&terms.audience)?;
    let expires = claims.check_time(now, terms.leeway)?.ok_or(Flaw::Expired)?;
    Ok(Verified { claims, expires })
}

#[cfg(test)]
mod tests;
