//! Certificates in PEM, as files that an operator names have them. (core)
//!
//! An error is the end of a sentence that begins with the file's name.
//!
//! Not here: private keys, which each caller needs in another form.

use rustls::RootCertStore;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;

/// Certificates that others must chain to, in both forms that callers need.
#[derive(Debug)]
pub struct Roots {
    /// At least one.
    pub certificates: Vec<CertificateDer<'static>>,
    /// The same.
    pub store: RootCertStore,
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
        Err(_) => Err("is not PEM from its first to its last line".to_owned()),
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
