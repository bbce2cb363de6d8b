//! Parses a signed token in compact form (RFC 7515).
//!
//! Not here: the check of the signature (`keys`), the claims in the payload (`claims`).

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::Value;

use crate::json;
use crate::token::{Algorithm, Flaw, TOKEN_BYTES_MAX};

/// The accepted values of `typ`, if there is one: other types of token have other purposes.
const TYPES: [&str; 4] = ["jwt", "at+jwt", "application/jwt", "application/at+jwt"];

/// A token's parts, untrusted until the signature is verified.
pub(super) struct Jws<'t> {
    /// The algorithm that its header names.
    pub(super) algorithm: Algorithm,
    /// The key that its header names.
    pub(super) key_id: Option<String>,
    /// The signed bytes.
    pub(super) signed: &'t [u8],
    /// Its payload, decoded.
    pub(super) payload: Vec<u8>,
    /// Its signature, decoded.
    pub(super) signature: Vec<u8>,
}

impl<'t> Jws<'t> {
    /// Parses a token.
    pub(super) fn read(token: &'t str) -> Result<Self, Flaw> {
        if token.len() > TOKEN_BYTES_MAX {
            return Err(Flaw::Malformed);
        }
        let (signed, signature) = token.rsplit_once('.').ok_or(Flaw::Malformed)?;
        let (header, payload) = signed.split_once('.').ok_or(Flaw::Malformed)?;
        let header = json::object(&decoded(header)?).map_err(|_| Flaw::Malformed)?;
        // No extension is understood here, so none may be critical (RFC 7515, 4.1.11).
        if header.contains_key("crit") {
            return Err(Flaw::Malformed);
        }
        let kind = text(header.get("typ"))?.map(str::to_ascii_lowercase);
        if kind.is_some_and(|kind| !TYPES.contains(&kind.as_str())) {
            return Err(Flaw::Malformed);
        }
        let algorithm = text(header.get("alg"))?.ok_or(Flaw::Malformed)?;
        Ok(Self {
            algorithm: Algorithm::named(algorithm).ok_or(Flaw::Algorithm)?,
            key_id: text(header.get("kid"))?.map(str::to_owned),
            signed: signed.as_bytes(),
            payload: decoded(payload)?,
            signature: decoded(signature)?,
        })
    }
}

/// Decodes base64url without padding; refuses any spelling but the canonical one.
fn decoded(part: &str) -> Result<Vec<u8>, Flaw> {
    URL_SAFE_NO_PAD.decode(part).map_err(|_| Flaw::Malformed)
}

fn text(value: Option<&Value>) -> Result<Option<&str>, Flaw> {
    match value {
        None => Ok(None),
        Some(Value::String(text)) => Ok(Some(text)),
        Some(_) => Err(Flaw::Malformed),
    }
}
