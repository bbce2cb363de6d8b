//! Takes a signed token in compact form apart (RFC 7515).
//!
//! Not here: whether the signature holds (`keys`), what the payload says (`claims`).

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::Value;

use crate::json;
use crate::token::{Algorithm, Flaw, TOKEN_BYTES_MAX};

/// What `typ` may be where it is there: a token of another type is meant for something else.
const TYPES: [&str; 4] = ["jwt", "at+jwt", "application/jwt", "application/at+jwt"];

/// A token's parts. Nothing in it is to be believed before the signature holds.
pub(super) struct Jws<'t> {
    /// How it says that it is signed.
    pub(super) algorithm: Algorithm,
    /// Which key it says that it is signed with.
    pub(super) key_id: Option<String>,
    /// What is signed.
    pub(super) signed: &'t [u8],
    /// What it says.
    pub(super) payload: Vec<u8>,
    /// Its signature.
    pub(super) signature: Vec<u8>,
}

impl<'t> Jws<'t> {
    /// Takes a token apart.
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

/// What base64url without padding stands for, where it is the only spelling of it.
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
