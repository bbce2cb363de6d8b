//! Combines certificates and keys, and reports what is wrong with them.
//!
//! # Invariant
//!
//! A key that does not belong to its certificate is never accepted.
//!
//! # Not here
//!
//! Which certificate a client gets (`sni`), where the files are (`tls`).

use std::sync::Arc;

use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;
use weir_common::config::certificates::{self, PairError};
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::{FromDer, X509Certificate};

/// A certificate with its key.
#[derive(Debug)]
pub(super) struct Pair {
    /// The chain and key for handshakes.
    pub(super) certified: Arc<CertifiedKey>,
    /// The host names it is for, in lower case; a wildcard begins with `*.`.
    pub(super) names: Vec<String>,
}

/// Combines a certificate, the chain to its root, and its key.
pub(super) fn pair(
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
) -> Result<Pair, PairError> {
    let certified = certificates::pair(chain, key)?;
    let unreadable = PairError::Certificate;
    let first = certified.end_entity_cert().map_err(|_| unreadable)?;
    let (_, parsed) = X509Certificate::from_der(first).map_err(|_| unreadable)?;
    let alternatives = parsed.subject_alternative_name().map_err(|_| unreadable)?;
    let alternatives = alternatives.map(|found| found.value.general_names.as_slice());
    let names = alternatives.unwrap_or_default().iter().filter_map(|name| match name {
        GeneralName::DNSName(name) => Some(name.to_ascii_lowercase()),
        _ => None,
    });
    Ok(Pair { names: names.collect(), certified: Arc::new(certified) })
}
