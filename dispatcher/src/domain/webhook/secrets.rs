//! The keys that sign a webhook's deliveries. (core)
//!
//! Invariant: the current secret has no end, so every delivery is signed. Only if all were lost it
//! has one, before all time: nothing signs, and the webhook is stopped.
//!
//! Not here: how they sign (`delivery::signature`), how they are stored (`store`).

use sha2::{Digest, Sha256};
use weir_common::secret::Secret;
use weir_common::time::UnixTime;

use crate::domain::webhook::signing_key::SigningKey;

/// Hexadecimal digits of a fingerprint: enough to tell the few secrets of a webhook apart.
const FINGERPRINT_DIGITS: usize = 16;

/// All keys of a webhook.
#[derive(Clone, Debug, PartialEq)]
pub struct Secrets {
    /// The newest secret without an end, which a rotation replaces.
    pub current: SigningSecret,
    /// The others, newest first.
    pub others: Vec<SigningSecret>,
    /// Signs with Ed25519 in addition to them, if the owner asked for it.
    pub signing_key: Option<SigningKey>,
}

/// A secret that signs, together with others or alone.
#[derive(Clone, Debug, PartialEq)]
pub struct SigningSecret {
    /// The secret.
    pub secret: Secret<String>,
    /// When it was made; `None` for one that a version without this knowledge made.
    pub created_at: Option<UnixTime>,
    /// When it ends, in steady time (`DeliveryQueue::steady`); `None`: when it is removed.
    pub until: Option<UnixTime>,
}

impl Secrets {
    /// A single secret.
    #[must_use]
    pub fn of(secret: Secret<String>) -> Self {
        let current = SigningSecret { secret, created_at: None, until: None };
        Self { current, others: Vec::new(), signing_key: None }
    }

    /// What is left once the key that sealed them is lost: nothing signs.
    #[must_use]
    pub fn lost(at: UnixTime) -> Self {
        let mut secrets = Self::of(Secret::new(String::new()));
        (secrets.current.created_at, secrets.current.until) = (Some(at), Some(UnixTime(0)));
        secrets
    }

    /// Since when they are lost; `None` if they are not.
    #[must_use]
    pub fn lost_at(&self) -> Option<UnixTime> {
        self.current.created_at.filter(|_| self.current.until.is_some())
    }

    /// Those that sign at `now`, in steady time; the current one first.
    pub fn active(&self, now: UnixTime) -> impl Iterator<Item = &SigningSecret> {
        let all = std::iter::once(&self.current).chain(&self.others);
        all.filter(move |one| one.signs_at(now))
    }

    /// The texts of those.
    pub fn signing(&self, now: UnixTime) -> impl Iterator<Item = &str> {
        self.active(now).map(|one| one.secret.expose().as_str())
    }
}

impl SigningSecret {
    /// Whether it signs at this time, in steady time.
    #[must_use]
    pub fn signs_at(&self, now: UnixTime) -> bool {
        self.until.is_none_or(|until| now < until)
    }

    /// Names it without showing it: the start of the SHA-256 of the whole text,
    /// in hex.
    #[must_use]
    pub fn fingerprint(&self) -> String {
        let mut hash = hex::encode(Sha256::digest(self.secret.expose().as_bytes()));
        hash.truncate(FINGERPRINT_DIGITS);
        hash
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_signs_before_its_end_and_its_fingerprint_is_what_sha256sum_prints() {
        let mut secrets = Secrets::of(Secret::new("whsec_a".to_owned()));
        let (secret, until) = (Secret::new("whsec_b".to_owned()), Some(UnixTime(9)));
        secrets.others.push(SigningSecret { secret, created_at: None, until });
        let at = |time| secrets.signing(UnixTime(time)).collect::<Vec<_>>().join(" ");
        assert_eq!((at(8), at(9)), ("whsec_a whsec_b".to_owned(), "whsec_a".to_owned()));
        let lost = Secrets::lost(UnixTime(7));
        assert_eq!((lost.signing(UnixTime(0)).count(), lost.lost_at()), (0, Some(UnixTime(7))));
        assert_eq!(secrets.lost_at(), None);
        // printf %s whsec_a | sha256sum | cut -c 1-16
        assert_eq!(secrets.current.fingerprint(), "b080b1702f9779d9");
    }
}
