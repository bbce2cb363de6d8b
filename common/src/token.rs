//! Says whether a signed token holds, and what it claims (RFC 7519, as RFC 9068 and RFC 8725 narrow
//! it).
//!
//! # Invariants
//!
//! 1. A signature is checked by the algorithm of the key, never by what the token asks for: a
//!    token that names another is refused.
//! 2. No claim is looked at before the signature holds.
//! 3. What has two readings has none: padding, unknown critical headers, a member that stands
//!    twice.
//!
//! # Not here
//!
//! Where tokens and keys come from, for how long a verdict is kept, whom a claim lets in.

pub mod claims;
mod jws;
pub mod keys;

use std::time::Duration;

use crate::time::UnixTime;
use crate::token::claims::Claims;
use crate::token::jws::Jws;
use crate::token::keys::KeySet;

/// A longer token fits into no header of usual servers, and costs more to read than to send.
pub const TOKEN_BYTES_MAX: usize = 8 * 1024;

/// How a token may be signed. None of them has a secret that we would have to share.
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
    /// The algorithm of this name, where it is one that we take.
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

/// What is asked of a token beside its signature.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Terms {
    /// What `iss` must be, byte for byte.
    pub issuer: String,
    /// One of these must be in `aud`.
    pub audience: Vec<String>,
    /// How it may be signed.
    pub algorithms: Vec<Algorithm>,
    /// How far the issuer's clock and ours may differ.
    pub leeway: Duration,
}

/// A token that holds.
#[derive(Clone, Debug, PartialEq)]
pub struct Verified {
    /// What it says.
    pub claims: Claims,
    /// When it ceases to hold, with the leeway.
    pub expires: UnixTime,
}

/// Why a token does not hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flaw {
    /// It is no token, or has two readings, or is longer than any.
    Malformed,
    /// It is signed in a way that is not taken, or not that of the key it names.
    Algorithm,
    /// No key that we have made it; one that we do not have yet may have.
    UnknownKey,
    /// The key it names did not sign it.
    Signature,
    /// Its issuer is another one.
    Issuer,
    /// It is meant for another audience.
    Audience,
    /// It is over, or does not say when it will be.
    Expired,
    /// It does not hold yet.
    Early,
    /// Its issuer says that it is inactive.
    Inactive,
}

impl Flaw {
    /// The word that metrics know it by.
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

    /// The reason, for the client: those that RFC 6750 names, and no more.
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

/// Verifies a token in compact form by the keys of its issuer.
///
/// # Errors
///
/// The first thing that is wrong with it.
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
