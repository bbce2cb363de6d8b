//! Encrypts the secrets, signing keys, custom headers and client certificates of webhooks for the
//! disk, and decrypts them.
//!
//! # Invariants
//!
//! 1. What is sealed opens only with the key, for the webhook and as the content that it was sealed
//!    with: a copy in another row or column does not open.
//! 2. The same text sealed twice has different bytes: the caller passes a random nonce.
//!
//! Not here: where the key is kept (`store::sqlite::key_file`), where nonces come from.

use std::fmt;

use chacha20poly1305::aead::{Aead, KeyInit, Payload};
use chacha20poly1305::{XChaCha20Poly1305, XNonce};
use hmac::{Hmac, Mac};
use sha2::Sha256;
use weir_common::secret::Secret;

use crate::domain::id::WebhookId;
use crate::domain::session::LINK_KEY_BYTES;

/// Bytes of a key.
pub const KEY_BYTES: usize = 32;

/// Bytes of a nonce: enough that random ones never collide.
pub const NONCE_BYTES: usize = 24;

/// What is sealed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    /// A key that signs deliveries.
    Secret,
    /// Custom headers.
    Headers,
    /// The seed of an Ed25519 key.
    SigningKey,
    /// A client certificate and its key.
    ClientCertificate,
}

/// The bytes were not sealed with this key for this webhook, or are damaged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("was sealed with another key or for another webhook, or is damaged")]
pub struct Unopened;

/// Seals and opens with one key.
#[derive(Clone)]
pub struct Sealer {
    cipher: XChaCha20Poly1305,
    /// Signs links into the dashboard.
    links: Secret<[u8; LINK_KEY_BYTES]>,
}

impl Sealer {
    /// Uses this key, which is needed for as long as the sealed secrets are kept.
    #[must_use]
    pub fn new(key: &Secret<[u8; KEY_BYTES]>) -> Self {
        let links = derived(key, b"weir dashboard links");
        Self { cipher: XChaCha20Poly1305::new(key.expose().into()), links }
    }

    /// The key that signs links into the dashboard on a day.
    #[must_use]
    pub fn link_key(&self, day: u64) -> Secret<[u8; LINK_KEY_BYTES]> {
        derived(&self.links, &day.to_be_bytes())
    }

    /// The sealed form: the nonce, then the ciphertext.
    #[must_use]
    pub fn seal(
        &self,
        (webhook, content): (WebhookId, Content),
        plain: &str,
        nonce: [u8; NONCE_BYTES],
    ) -> Vec<u8> {
        let aad = associated(webhook, content);
        let payload = Payload { msg: plain.as_bytes(), aad: &aad };
        let hidden = self.cipher.encrypt(&XNonce::from(nonce), payload);
        let hidden = hidden.expect("it is shorter than the 256 GiB that a nonce is good for");
        [nonce.as_slice(), &hidden].concat()
    }

    /// What was sealed.
    ///
    /// # Errors
    ///
    /// If it was sealed with another key, for another webhook or as another content, or is damaged.
    pub fn open(
        &self,
        (webhook, content): (WebhookId, Content),
        sealed: &[u8],
    ) -> Result<Secret<String>, Unopened> {
        let (nonce, hidden) = sealed.split_first_chunk::<NONCE_BYTES>().ok_or(Unopened)?;
        let aad = associated(webhook, content);
        let payload = Payload { msg: hidden, aad: &aad };
        let plain = self.cipher.decrypt(&XNonce::from(*nonce), payload).map_err(|_| Unopened)?;
        String::from_utf8(plain).map(Secret::new).map_err(|_| Unopened)
    }
}

/// A key that does not lead back to the one it comes from.
fn derived(key: &Secret<[u8; KEY_BYTES]>, purpose: &[u8]) -> Secret<[u8; KEY_BYTES]> {
    let mac = Hmac::<Sha256>::new_from_slice(key.expose());
    let mut mac = mac.expect("HMAC accepts keys of any length");
    mac.update(purpose);
    Secret::new(mac.finalize().into_bytes().into())
}

/// What a seal is bound to: the webhook, and the content unless it is a secret.
fn associated(webhook: WebhookId, content: Content) -> Vec<u8> {
    let content: &[u8] = match content {
        Content::Secret => b"",
        Content::Headers => b"headers",
        Content::SigningKey => b"signing key",
        Content::ClientCertificate => b"client certificate",
    };
    [&webhook.0.to_be_bytes()[..], content].concat()
}

impl fmt::Debug for Sealer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Sealer")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: (WebhookId, Content) = (WebhookId(1), Content::Secret);
    const TWO: (WebhookId, Content) = (WebhookId(2), Content::Secret);

    fn sealer(key: u8) -> Sealer {
        Sealer::new(&Secret::new([key; KEY_BYTES]))
    }

    #[test]
    fn what_is_sealed_opens_again_and_does_not_show_meanwhile() {
        let sealed = sealer(1).seal(ONE, "whsec_abc", [9; NONCE_BYTES]);
        assert_eq!(sealer(1).open(ONE, &sealed), Ok(Secret::new("whsec_abc".to_owned())));
        assert!(!sealed.windows(5).any(|part| part == b"whsec"));
        assert_ne!(sealed, sealer(1).seal(ONE, "whsec_abc", [8; NONCE_BYTES]));
    }

    #[test]
    fn another_key_webhook_or_content_opens_nothing() {
        let sealed = sealer(1).seal(ONE, "whsec_abc", [9; NONCE_BYTES]);
        assert_eq!(sealer(2).open(ONE, &sealed), Err(Unopened));
        assert_eq!(sealer(1).open(TWO, &sealed), Err(Unopened));
        for content in [Content::Headers, Content::SigningKey] {
            assert_eq!(sealer(1).open((ONE.0, content), &sealed), Err(Unopened));
        }
    }

    #[test]
    fn each_day_and_key_has_its_own_key_for_links() {
        assert_eq!(sealer(1).link_key(1), sealer(1).link_key(1));
        assert_ne!(sealer(1).link_key(1), sealer(1).link_key(2));
        assert_ne!(sealer(1).link_key(1), sealer(2).link_key(1));
    }

    #[test]
    fn a_bit_that_has_fallen_over_is_noticed() {
        let sealed = sealer(1).seal(ONE, "whsec_abc", [9; NONCE_BYTES]);
        for at in 0..sealed.len() {
            let mut damaged = sealed.clone();
            damaged[at] ^= 1;
            assert_eq!(sealer(1).open(ONE, &damaged), Err(Unopened), "byte {at}");
        }
        assert_eq!(sealer(1).open(ONE, &sealed[..NONCE_BYTES - 1]), Err(Unopened));
    }
}
