//! A webhook's Ed25519 key, whose public half verifies deliveries without a shared secret. (core)
//!
//! Not here: what is signed (`delivery::signature`), how the seed is stored (`store`).

use std::fmt;
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use ring::signature::{
    ED25519, ED25519_PUBLIC_KEY_LEN, Ed25519KeyPair, KeyPair, UnparsedPublicKey,
};
use weir_common::secret::Secret;

/// Bytes of a seed, as RFC 8032 has them.
pub const SEED_BYTES: usize = 32;

/// The prefix of a public key in Standard Webhooks.
const PUBLIC_PREFIX: &str = "whpk_";

/// A key pair. It prints as its public key.
#[derive(Clone)]
pub struct SigningKey(Arc<Pair>);

struct Pair {
    seed: Secret<[u8; SEED_BYTES]>,
    keys: Ed25519KeyPair,
}

impl SigningKey {
    /// The pair of a seed.
    #[must_use]
    pub fn of_seed(seed: [u8; SEED_BYTES]) -> Self {
        let keys = Ed25519KeyPair::from_seed_unchecked(&seed).expect("it has the length of a seed");
        Self(Arc::new(Pair { seed: Secret::new(seed), keys }))
    }

    /// The pair that was [stored](Self::stored); `None` if the text is damaged.
    #[must_use]
    pub fn of_stored(text: &str) -> Option<Self> {
        STANDARD.decode(text).ok()?.try_into().ok().map(Self::of_seed)
    }

    /// The seed as text, to be sealed.
    #[must_use]
    pub fn stored(&self) -> Secret<String> {
        Secret::new(STANDARD.encode(self.0.seed.expose()))
    }

    /// The public key as Standard Webhooks writes it: `whpk_` and the base64 of 32 bytes.
    #[must_use]
    pub fn public(&self) -> String {
        format!("{PUBLIC_PREFIX}{}", STANDARD.encode(self.0.keys.public_key()))
    }

    /// The signature of a message.
    #[must_use]
    pub fn sign(&self, message: &[u8]) -> [u8; 64] {
        let signature = self.0.keys.sign(message);
        signature.as_ref().try_into().expect("a signature of Ed25519 has 64 bytes")
    }
}

/// The public half, as a receiver has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PublicKey([u8; ED25519_PUBLIC_KEY_LEN]);

impl PublicKey {
    /// The key of its text, [`SigningKey::public`]; `None` if it is not one.
    #[must_use]
    pub fn of_text(text: &str) -> Option<Self> {
        STANDARD.decode(text.strip_prefix(PUBLIC_PREFIX)?).ok()?.try_into().ok().map(Self)
    }

    /// Whether the key's other half signed this message.
    #[must_use]
    pub fn has_signed(&self, message: &[u8], signature: &[u8]) -> bool {
        UnparsedPublicKey::new(&ED25519, self.0).verify(message, signature).is_ok()
    }
}

impl PartialEq for SigningKey {
    fn eq(&self, other: &Self) -> bool {
        self.0.keys.public_key().as_ref() == other.0.keys.public_key().as_ref()
    }
}

impl fmt::Debug for SigningKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.public())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_vector_of_rfc_8032_is_met() {
        let text = |hex: &str| hex::decode(hex).expect("it is hex");
        let seed = text("9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60");
        let public = text("d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a");
        let signature = text(concat!(
            "e5564300c360ac729086e2cc806e828a84877f1eb8e5d974d873e06522490155",
            "5fb8821590a33bacc61e39701cf9b46bd25bf5f0595bbe24655141438e7a100b",
        ));
        let key = SigningKey::of_seed(seed.try_into().expect("it has 32 bytes"));
        assert_eq!(key.public(), format!("whpk_{}", STANDARD.encode(public)));
        assert_eq!(key.sign(b"")[..], signature);
        let public = PublicKey::of_text(&key.public()).expect("it is one");
        assert!(public.has_signed(b"", &signature) && !public.has_signed(b"x", &signature));
        assert!(!public.has_signed(b"", &signature[1..]));
        assert_eq!(PublicKey::of_text("whpk_c2hvcnQ="), None);
        assert_eq!(PublicKey::of_text(&key.public()[5..]), None);
    }

    #[test]
    fn a_stored_key_is_the_same_and_its_seed_never_prints() {
        let key = SigningKey::of_seed([7; SEED_BYTES]);
        let stored = key.stored();
        assert_eq!(SigningKey::of_stored(stored.expose()), Some(key.clone()));
        assert_ne!(SigningKey::of_seed([8; SEED_BYTES]), key);
        assert_eq!(SigningKey::of_stored("c2hvcnQ="), None);
        assert_eq!(format!("{key:?} {stored:?}"), format!("{} ***", key.public()));
    }
}
