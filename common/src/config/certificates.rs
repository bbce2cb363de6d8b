//! Reads certificates and private keys from the text of PEM files. (core)
//!
//! An error is the end of a sentence that begins with the file's name.
//!
//! Invariant: no error has any part of a key.

use rustls::crypto::ring::default_provider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;
use rustls::{Error, RootCertStore};
use x509_parser::prelude::{FromDer, X509Certificate};

use crate::time::UnixTime;

/// Certificates that others must chain to, in both forms that callers need.
#[derive(Debug)]
pub struct Roots {
    /// At least one.
    pub certificates: Vec<CertificateDer<'static>>,
    /// The same.
    pub store: RootCertStore,
}

/// When a certificate expires; none where it cannot be read.
#[must_use]
pub fn expires(certificate: &CertificateDer<'_>) -> Option<UnixTime> {
    let (_, certificate) = X509Certificate::from_der(certificate).ok()?;
    let seconds = u64::try_from(certificate.validity().not_after.timestamp()).unwrap_or_default();
    Some(UnixTime(seconds.saturating_mul(1_000_000)))
}

/// The private keys that are supported.
pub const KEY_KINDS: &str = "RSA of 2,048 to 4,096 bits, ECDSA with P-256 or P-384, and Ed25519";

/// Why a chain and a key are no pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PairError {
    /// The chain is empty, or begins with something else.
    #[error("its first certificate cannot be read")]
    Certificate,
    /// The key belongs to another certificate.
    #[error("the key is not that of the certificate")]
    OtherKey,
    /// Keys of this kind or size are not supported.
    #[error("the key is of a kind that is not supported: {KEY_KINDS} are")]
    KeyKind,
}

/// The certificates of a text, at least one.
///
/// # Errors
///
/// If the text has none, or is damaged.
pub fn chain(pem: &str) -> Result<Vec<CertificateDer<'static>>, String> {
    let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem.as_bytes()).collect();
    match chain {
        Ok(chain) if chain.is_empty() => Err("has no certificate in PEM".to_owned()),
        Ok(chain) => Ok(chain),
        Err(_) => Err("has a block of PEM that is damaged".to_owned()),
    }
}

/// The roots of a text, at least one.
///
/// # Errors
///
/// As [`chain`], and if a certificate cannot be a root.
pub fn roots(pem: &str) -> Result<Roots, String> {
    let (certificates, mut store) = (chain(pem)?, RootCertStore::empty());
    for root in &certificates {
        let added = store.add(root.clone());
        added.map_err(|why| format!("has a certificate that cannot be a root: {why}"))?;
    }
    Ok(Roots { certificates, store })
}

/// The private key of a text.
///
/// # Errors
///
/// If the text has none that is read without a passphrase.
pub fn key(pem: &str) -> Result<PrivateKeyDer<'static>, String> {
    // The parser's error has the bytes of a line: of the whole key where that is one line.
    PrivateKeyDer::from_pem_slice(pem.as_bytes()).map_err(|_| {
        if pem.contains("ENCRYPTED") {
            "is encrypted: `openssl pkey` writes it as it is read here".to_owned()
        } else {
            "has no private key in PEM".to_owned()
        }
    })
}

/// A chain with the key of its first certificate.
///
/// # Errors
///
/// If they are no pair.
pub fn pair(
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
) -> Result<CertifiedKey, PairError> {
    if chain.is_empty() {
        return Err(PairError::Certificate);
    }
    CertifiedKey::from_der(chain, key, &default_provider()).map_err(|why| match why {
        Error::InconsistentKeys(_) => PairError::OtherKey,
        Error::InvalidCertificate(_) => PairError::Certificate,
        _ => PairError::KeyKind,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROOT: &str = include_str!("../../../dispatcher/src/delivery/fixtures/ca.pem");

    #[test]
    fn what_is_wrong_with_a_text_is_named() {
        let fault = |text: &str| roots(text).map(|_| ()).unwrap_err();
        assert_eq!(fault(""), "has no certificate in PEM");
        let key = "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n";
        assert_eq!(fault(key), "has no certificate in PEM");
        let (first, _) = ROOT.split_at(ROOT.len() / 2);
        assert_eq!(fault(first), "has a block of PEM that is damaged");
        let none = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
        assert!(chain(none).is_ok());
        let why = fault(&format!("{ROOT}{none}"));
        assert!(why.starts_with("has a certificate that cannot be a root: "), "{why}");
    }

    #[test]
    fn an_error_has_no_part_of_a_key() {
        let good = include_str!("../../../dispatcher/src/delivery/fixtures/server.key");
        assert!(key(good).is_ok());
        let (one_line, escaped) = (good.replace('\n', ""), good.replace('\n', "\\n"));
        let damaged = good.replace("MI", "M*");
        for text in ["", &one_line, &escaped, &damaged, &good.replace("-----\n", "----\n")] {
            assert_eq!(key(text).unwrap_err(), "has no private key in PEM");
        }
        let encrypted = good.replace("PRIVATE", "ENCRYPTED PRIVATE");
        assert!(key(&encrypted).unwrap_err().starts_with("is encrypted: "));
    }

    #[test]
    fn certificates_are_found_between_lines_of_text() {
        let roots = roots(&format!("a root\n{ROOT}\nand again\n{ROOT}")).unwrap();
        assert_eq!((roots.certificates.len(), roots.store.len()), (2, 2));
    }
}
