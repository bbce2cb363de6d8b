//! An issuer of tokens: its keys, tokens signed with them, and its published key set.
//!
//! Not here: tokens made by other libraries (`tests/real/tokens.py`).

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::rand::SystemRandom;
use ring::signature::{Ed25519KeyPair, KeyPair};
use serde_json::{Value, json};

use crate::wait;

/// The issuer of the tests' tokens.
pub const ISSUER: &str = "https://id.test";
/// Their audience.
pub const AUDIENCE: &str = "https://api.test";

/// A key that tokens are signed with.
pub struct Signer {
    id: String,
    key: Ed25519KeyPair,
}

impl Signer {
    /// A new key of this name.
    pub fn new(id: &str) -> Self {
        let pkcs8 = Ed25519KeyPair::generate_pkcs8(&SystemRandom::new()).unwrap();
        let key = Ed25519KeyPair::from_pkcs8(pkcs8.as_ref()).unwrap();
        Self { id: id.to_owned(), key }
    }

    /// The key as its issuer publishes it.
    pub fn jwk(&self) -> Value {
        let x = URL_SAFE_NO_PAD.encode(self.key.public_key().as_ref());
        json!({ "kty": "OKP", "crv": "Ed25519", "use": "sig", "kid": self.id, "x": x })
    }

    /// A token that is valid for a minute, with these additional claims.
    pub fn token(&self, claims: &Value) -> String {
        self.token_named(&self.id, claims)
    }

    /// The same, with another key id in its header.
    pub fn token_named(&self, id: &str, claims: &Value) -> String {
        let now = wait::unix_seconds();
        let mut whole = json!({ "iss": ISSUER, "aud": AUDIENCE, "iat": now, "exp": now + 60 });
        whole.as_object_mut().unwrap().extend(claims.as_object().unwrap().clone());
        let header = json!({ "alg": "EdDSA", "typ": "at+jwt", "kid": id });
        let coded = |part: &Value| URL_SAFE_NO_PAD.encode(part.to_string());
        let signed = format!("{}.{}", coded(&header), coded(&whole));
        let signature = URL_SAFE_NO_PAD.encode(self.key.sign(signed.as_bytes()));
        format!("{signed}.{signature}")
    }
}

/// The JWKS with these keys.
pub fn published(signers: &[&Signer]) -> String {
    let keys: Vec<Value> = signers.iter().map(|signer| signer.jwk()).collect();
    json!({ "keys": keys }).to_string()
}
