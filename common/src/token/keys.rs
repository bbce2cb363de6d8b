//! The public keys that an issuer signs with, and whether one of them made a signature (RFC 7517).
//!
//! # Invariants
//!
//! 1. A key's type alone decides its algorithm; neither a token nor the key's own `alg` can change
//!    it.
//! 2. The signatures checked for one token do not grow with the number of keys.
//!
//! A key that cannot be used here (another type or use, too small, with a secret in it) is ignored,
//! as RFC 7517 recommends; a set that cannot be read is an error.
//!
//! # Not here
//!
//! Where the keys come from and when they are fetched (the gateway's `identity::auth`).

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::signature::{
    ECDSA_P256_SHA256_FIXED, ED25519, RSA_PKCS1_2048_8192_SHA256, RsaPublicKeyComponents,
    UnparsedPublicKey,
};
use serde_json::{Map, Value};

use crate::json;
use crate::token::jws::Jws;
use crate::token::{Algorithm, Flaw};

/// The most keys in a set: issuers that rotate keys have two or three.
pub const KEYS_MAX: usize = 100;

/// The most keys tried for one token: two with one `kid` during a rotation, and some to spare.
const TRIES_MAX: usize = 4;

/// The size of RSA keys in bits: smaller ones are not safe, larger ones cost too much to verify.
const RSA_BITS: std::ops::RangeInclusive<usize> = 2048..=8192;

/// RSA exponents are 3, 17 or 65537; larger ones only cost time.
const EXPONENT_BYTES_MAX: usize = 4;

/// The bytes of a coordinate of P-256, and of an Ed25519 key.
const COORDINATE_BYTES: usize = 32;

/// Members that only a private or a symmetric key has.
const SECRET_MEMBERS: [&str; 7] = ["d", "k", "p", "q", "dp", "dq", "qi"];

/// The keys of an issuer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeySet {
    keys: Vec<Key>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Key {
    id: Option<String>,
    public: Public,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Public {
    /// Modulus and exponent.
    Rsa(Vec<u8>, Vec<u8>),
    /// A point on P-256, uncompressed.
    P256(Vec<u8>),
    Ed25519(Vec<u8>),
}

/// Why a set of keys cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unusable {
    /// It is not a JWK set (RFC 7517).
    #[error("the answer is no JSON object with a list of `keys`, or a member in it stands twice")]
    Malformed,
    /// It has more than [`KEYS_MAX`] keys.
    #[error("more than {KEYS_MAX} keys")]
    TooMany,
    /// None of its keys can verify a token.
    #[error("no key in it is for RS256 (2048 to 8192 bits), ES256 or EdDSA (Ed25519)")]
    Empty,
}

impl KeySet {
    /// Reads a set.
    ///
    /// # Errors
    ///
    /// If it is malformed or too large, or has no key that can verify a token.
    pub fn read(bytes: &[u8]) -> Result<Self, Unusable> {
        let set = json::object(bytes).map_err(|_| Unusable::Malformed)?;
        let keys = set.get("keys").and_then(Value::as_array).ok_or(Unusable::Malformed)?;
        if keys.len() > KEYS_MAX {
            return Err(Unusable::TooMany);
        }
        let keys: Vec<Key> = keys.iter().filter_map(Value::as_object).filter_map(key).collect();
        if keys.is_empty() { Err(Unusable::Empty) } else { Ok(Self { keys }) }
    }

    /// How many keys are in it.
    #[must_use]
    pub fn len(&self) -> usize {
        self.keys.len()
    }

    /// Whether no token can be verified with it.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    /// Checks that one of the keys made the signature.
    pub(super) fn check(&self, jws: &Jws<'_>) -> Result<(), Flaw> {
        let named = |key: &&Key| jws.key_id.is_none() || key.id == jws.key_id;
        let fits = |key: &&Key| key.public.algorithm() == jws.algorithm;
        let mut tried = self.keys.iter().filter(named).filter(fits).take(TRIES_MAX);
        if tried.any(|key| key.public.made(jws)) {
            return Ok(());
        }
        // With no `kid`, or an unknown one, a newer key than ours may have signed it.
        if jws.key_id.is_none() || !self.keys.iter().any(|key| named(&key)) {
            return Err(Flaw::UnknownKey);
        }
        let fits = self.keys.iter().filter(named).any(|key| fits(&key));
        Err(if fits { Flaw::Signature } else { Flaw::Algorithm })
    }
}

impl Public {
    fn algorithm(&self) -> Algorithm {
        match self {
            Self::Rsa(..) => Algorithm::Rs256,
            Self::P256(_) => Algorithm::Es256,
            Self::Ed25519(_) => Algorithm::EdDsa,
        }
    }

    fn made(&self, jws: &Jws<'_>) -> bool {
        let (signed, signature) = (jws.signed, &jws.signature);
        let verified = match self {
            Self::Rsa(n, e) => RsaPublicKeyComponents { n, e }.verify(
                &RSA_PKCS1_2048_8192_SHA256,
                signed,
                signature,
            ),
            Self::P256(point) => {
                UnparsedPublicKey::new(&ECDSA_P256_SHA256_FIXED, point).verify(signed, signature)
            }
            Self::Ed25519(key) => UnparsedPublicKey::new(&ED25519, key).verify(signed, signature),
        };
        verified.is_ok()
    }
}

/// A key of the set, if it can be used here.
fn key(key: &Map<String, Value>) -> Option<Key> {
    let text = |name: &str| key.get(name).and_then(Value::as_str);
    let is = |name: &str, value: &str| !key.contains_key(name) || text(name) == Some(value);
    let operations = key.get("key_ops");
    let verifies = operations.is_none_or(|operations| {
        operations.as_array().is_some_and(|all| all.iter().any(|one| one == "verify"))
    });
    // A private key in a public list is compromised.
    let public = !SECRET_MEMBERS.iter().any(|name| key.contains_key(*name));
    if !is("use", "sig") || !verifies || !public {
        return None;
    }
    let bytes = |name: &str| URL_SAFE_NO_PAD.decode(text(name)?).ok();
    let coordinate = |name: &str| bytes(name).filter(|bytes| bytes.len() == COORDINATE_BYTES);
    let public = match (text("kty")?, text("crv")) {
        ("RSA", _) => rsa(&bytes("n")?, &bytes("e")?)?,
        ("EC", Some("P-256")) => {
            Public::P256([&[4], &*coordinate("x")?, &*coordinate("y")?].concat())
        }
        ("OKP", Some("Ed25519")) => Public::Ed25519(coordinate("x")?),
        _ => return None,
    };
    let declared = key.contains_key("alg").then(|| text("alg").and_then(Algorithm::named));
    if declared.is_some_and(|declared| declared != Some(public.algorithm())) {
        return None;
    }
    let id = match key.get("kid") {
        None => None,
        Some(id) => Some(id.as_str()?.to_owned()),
    };
    Some(Key { id, public })
}

fn rsa(n: &[u8], e: &[u8]) -> Option<Public> {
    // Some issuers write a leading zero byte, which RFC 7518 does not allow.
    let bare = |bytes: &[u8]| -> Vec<u8> {
        bytes.iter().skip_while(|byte| **byte == 0).copied().collect()
    };
    let (n, e) = (bare(n), bare(e));
    let unused = usize::try_from(n.first()?.leading_zeros()).ok()?;
    let is_valid = RSA_BITS.contains(&(n.len() * 8 - unused))
        && n.last()? & 1 == 1
        && e.len() <= EXPONENT_BYTES_MAX
        && e.last()? & 1 == 1
        && e != [1];
    is_valid.then_some(Public::Rsa(n, e))
}
