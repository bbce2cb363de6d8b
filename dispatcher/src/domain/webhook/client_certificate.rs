//! The client certificate that an owner gives a webhook, for a receiver that verifies its clients.
//! (core)
//!
//! Invariant: `Debug` shows the subject and the end alone.
//!
//! Not here: whether the key belongs to the certificate, and the handshake
//! (`delivery::client_certificate`), how both are sealed on disk (`store::encryption`).

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use weir_common::time::UnixTime;

/// Characters of a chain in PEM: a handful of certificates.
pub const CHAIN_CHARS_MAX: usize = 16 * 1024;

/// Characters of a key in PEM: an RSA key of 8,192 bits has 6,400.
pub const KEY_CHARS_MAX: usize = 8 * 1024;

/// A certificate and its key, and what is shown of them. A clone is a pointer.
#[derive(Clone)]
pub struct ClientCertificate(Arc<Parts>);

#[derive(PartialEq, Eq, Serialize, Deserialize)]
struct Parts {
    chain: String,
    key: String,
    subject: String,
    expires_at: u64,
    identity: CertificateId,
}

/// Tells certificates apart: connections of one are not used with another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct CertificateId(pub [u8; 32]);

impl ClientCertificate {
    /// A certificate whose chain and key are valid PEM and belong together.
    #[must_use]
    pub fn new(
        (chain, key): (String, String),
        subject: String,
        expires_at: UnixTime,
        identity: CertificateId,
    ) -> Self {
        Self(Arc::new(Parts { chain, key, subject, expires_at: expires_at.0, identity }))
    }

    /// The certificates in PEM, the client's own first.
    #[must_use]
    pub fn chain(&self) -> &str {
        &self.0.chain
    }

    /// The private key in PEM. Never shown.
    #[must_use]
    pub fn key(&self) -> &str {
        &self.0.key
    }

    /// Whose certificate it is.
    #[must_use]
    pub fn subject(&self) -> &str {
        &self.0.subject
    }

    /// Until when it is valid.
    #[must_use]
    pub fn expires_at(&self) -> UnixTime {
        UnixTime(self.0.expires_at)
    }

    /// What tells it from others.
    #[must_use]
    pub fn identity(&self) -> CertificateId {
        self.0.identity
    }

    /// The form that is sealed.
    #[must_use]
    pub fn stored(&self) -> Option<String> {
        serde_json::to_string(&*self.0).ok()
    }

    /// The certificate of its stored form; `None` if that is damaged.
    #[must_use]
    pub fn of_stored(stored: &str) -> Option<Self> {
        serde_json::from_str(stored).ok().map(|parts| Self(Arc::new(parts)))
    }
}

impl PartialEq for ClientCertificate {
    fn eq(&self, other: &Self) -> bool {
        self.0.identity == other.0.identity
    }
}

impl fmt::Debug for ClientCertificate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} until {}", self.0.subject, self.expires_at().rfc3339())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stored_certificate_is_the_same_and_prints_no_key() {
        let pem = ("-- chain --".to_owned(), "-- key --".to_owned());
        let (subject, end) = ("CN=weir".to_owned(), UnixTime(1_800_000_000_000_000));
        let one = ClientCertificate::new(pem, subject, end, CertificateId([7; 32]));
        let again = ClientCertificate::of_stored(&one.stored().unwrap()).unwrap();
        assert_eq!(again, one);
        assert_eq!((again.chain(), again.key()), ("-- chain --", "-- key --"));
        assert_eq!((again.subject(), again.expires_at()), ("CN=weir", end));
        assert_eq!(format!("{one:?}"), "CN=weir until 2027-01-15T08:00:00.000Z");
        assert_eq!(ClientCertificate::of_stored("{}"), None);
    }
}
