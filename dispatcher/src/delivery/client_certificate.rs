//! Reads the client certificate that an owner gives a webhook, and shows it in handshakes.
//!
//! Invariant: a key that is accepted belongs to its certificate.
//!
//! Not here: what is kept of it (`domain::webhook::client_certificate`); that no TLS session of one
//! certificate is resumed with another, for none is resumed (`http_client`).

use std::sync::Arc;

use rustls::ClientConfig;
use rustls::pki_types::CertificateDer;
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use sha2::{Digest, Sha256};
use weir_common::config::certificates::{self, KEY_KINDS, PairError};
use weir_common::time::UnixTime;
use x509_parser::prelude::{FromDer, X509Certificate};

use crate::domain::webhook::client_certificate::{CertificateId, ClientCertificate};

/// Certificates of a chain, at most: handshakes become slow with more, and receivers refuse them.
const CHAIN_MAX: usize = 8;

/// Characters of a subject that are shown.
const SUBJECT_CHARS_MAX: usize = 256;

/// Why a certificate cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum CertificateError {
    #[error("must be certificates in PEM, the client's own first")]
    Chain,
    #[error("must have at most {CHAIN_MAX} certificates")]
    ChainLength,
    #[error("has a certificate that expired on {}", .0.rfc3339())]
    Expired(UnixTime),
    #[error("must be a private key in PEM, without a passphrase: PKCS #8, PKCS #1 or SEC 1")]
    Key,
    #[error("is of a kind that is not supported: {KEY_KINDS} are")]
    KeyKind,
    #[error("does not belong to the certificate")]
    OtherKey,
}

impl CertificateError {
    /// The member that is wrong.
    pub(crate) fn member(&self) -> &'static str {
        match self {
            Self::Chain | Self::ChainLength | Self::Expired(_) => "certificate",
            Self::Key | Self::KeyKind | Self::OtherKey => "key",
        }
    }
}

/// The certificate of a chain and a key in PEM.
pub(crate) fn read(
    chain: &str,
    key: &str,
    now: UnixTime,
) -> Result<ClientCertificate, CertificateError> {
    let (subject, expires_at) = described(chain)?;
    if expires_at <= now {
        return Err(CertificateError::Expired(expires_at));
    }
    certified(chain, key)?;
    // The lengths keep a text from moving between the two.
    let hash = Sha256::new()
        .chain_update((chain.len() as u64).to_be_bytes())
        .chain_update(chain)
        .chain_update(key);
    let pem = (chain.to_owned(), key.to_owned());
    Ok(ClientCertificate::new(pem, subject, expires_at, CertificateId(hash.finalize().into())))
}

/// The TLS settings of deliveries with this certificate instead of the platform's.
pub(super) fn tls_with(
    of_all: &ClientConfig,
    certificate: &ClientCertificate,
) -> Result<ClientConfig, CertificateError> {
    let own = certified(certificate.chain(), certificate.key())?;
    let mut tls = of_all.clone();
    tls.client_auth_cert_resolver = Arc::new(SingleCertAndKey::from(own));
    Ok(tls)
}

/// The subject and the end of the first certificate of a chain.
fn described(chain: &str) -> Result<(String, UnixTime), CertificateError> {
    let chain = certificates(chain)?;
    let first = chain.first().ok_or(CertificateError::Chain)?;
    let (_, first) = X509Certificate::from_der(first).map_err(|_| CertificateError::Chain)?;
    let seconds = u64::try_from(first.validity().not_after.timestamp()).unwrap_or_default();
    let subject = first.subject().to_string();
    let subject = subject.chars().filter(|one| !one.is_control()).take(SUBJECT_CHARS_MAX);
    Ok((subject.collect(), UnixTime(seconds.saturating_mul(1_000_000))))
}

fn certificates(chain: &str) -> Result<Vec<CertificateDer<'static>>, CertificateError> {
    let all = certificates::chain(chain).map_err(|_| CertificateError::Chain)?;
    if all.len() > CHAIN_MAX {
        return Err(CertificateError::ChainLength);
    }
    Ok(all)
}

fn certified(chain: &str, key: &str) -> Result<CertifiedKey, CertificateError> {
    let chain = certificates(chain)?;
    let key = certificates::key(key).map_err(|_| CertificateError::Key)?;
    certificates::pair(chain, key).map_err(|why| match why {
        PairError::Certificate => CertificateError::Chain,
        PairError::OtherKey => CertificateError::OtherKey,
        PairError::KeyKind => CertificateError::KeyKind,
    })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use base64::Engine;
    use base64::engine::general_purpose::STANDARD;

    use super::*;

    const NOW: UnixTime = UnixTime(1_800_000_000_000_000);

    fn fixture(name: &str) -> String {
        fs::read_to_string(format!("src/delivery/fixtures/{name}")).expect("it is there")
    }

    fn member(chain: &str, key: &str) -> Result<String, (&'static str, CertificateError)> {
        let found = read(chain, key, NOW).map(|one| one.subject().to_owned());
        found.map_err(|why| (why.member(), why))
    }

    /// An Ed25519 key, as RFC 8410 has it in PKCS #8.
    fn other_key() -> String {
        let der = [hex::decode("302e020100300506032b657004220420").expect("hex"), vec![7; 32]];
        let text = STANDARD.encode(der.concat());
        format!("-----BEGIN PRIVATE KEY-----\n{text}\n-----END PRIVATE KEY-----\n")
    }

    #[test]
    fn a_certificate_with_its_key_is_read_and_differs_from_another() {
        let (chain, key) = (fixture("server.pem"), fixture("server.key"));
        let one = read(&chain, &key, NOW).expect("it is valid");
        assert!(one.subject().starts_with("CN="), "{}", one.subject());
        assert!(one.expires_at() > NOW);
        let spaced = read(&format!("{chain}\n"), &key, NOW).expect("it is valid");
        assert_ne!(spaced.identity(), one.identity());
        let tls = http_client_tls();
        let own = tls_with(&tls, &one).expect("it was read");
        assert!(own.client_auth_cert_resolver.has_certs());
        assert!(!tls.client_auth_cert_resolver.has_certs());
    }

    fn http_client_tls() -> ClientConfig {
        crate::delivery::http_client::tls().expect("the system has certificates")
    }

    #[test]
    fn what_cannot_be_used_is_named() {
        let (chain, key) = (fixture("server.pem"), fixture("server.key"));
        for text in
            ["", "x", &key, "-----BEGIN CERTIFICATE-----\neA==\n-----END CERTIFICATE-----\n"]
        {
            assert_eq!(member(text, &key), Err(("certificate", CertificateError::Chain)), "{text}");
        }
        for text in ["", "x", &chain] {
            assert_eq!(member(&chain, text), Err(("key", CertificateError::Key)), "{text}");
        }
        assert_eq!(member(&chain, &other_key()), Err(("key", CertificateError::OtherKey)));
        let long = chain.repeat(CHAIN_MAX + 1);
        assert_eq!(member(&long, &key), Err(("certificate", CertificateError::ChainLength)));
        let later = UnixTime(u64::MAX / 2);
        assert!(matches!(read(&chain, &key, later), Err(CertificateError::Expired(_))));
    }
}
