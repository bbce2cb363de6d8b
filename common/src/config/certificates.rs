//! Reads certificates from the text of PEM files. (core)
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
    fn certificates_are_found_between_lines_of_text() {
        let roots = roots(&format!("a root\n{ROOT}\nand again\n{ROOT}")).unwrap();
        assert_eq!((roots.certificates.len(), roots.store.len()), (2, 2));
    }
}
