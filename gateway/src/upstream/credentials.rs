//! The files of an upstream's TLS: the roots that the gateway trusts, and its client certificate.
//!
//! # Invariants
//!
//! 1. Files that would make Pingora fail at a connection are reported as configuration errors, with
//!    their place in the settings.
//! 2. A private key is never printed.
//!
//! # Not here
//!
//! Connecting (`upstream`), when the files are read again (`operations::background`).

use std::fmt;
use std::hash::{Hash, Hasher};
use std::path::Path;
use std::sync::Arc;

use pingora_core::protocols::tls::CaType;
use pingora_core::utils::tls::{CertKey, WrappedX509, parse_x509};
use rustls::pki_types::CertificateDer;
use weir_common::config::certificates;
use weir_common::config::document::Document;
use weir_common::config::files;
use weir_common::config::shown_certificate::ShownCertificate;
use x509_parser::prelude::{FromDer, X509Certificate};

use crate::settings::upstream::UpstreamSettings;

/// The content of one upstream's files, as DER.
#[derive(Clone, Default, PartialEq, Eq, Hash)]
pub struct Credentials {
    roots: Vec<Vec<u8>>,
    chain: Vec<Vec<u8>>,
    key: Vec<u8>,
    /// The first certificate of the chain.
    certificate: Option<ShownCertificate>,
}

impl fmt::Debug for Credentials {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{} roots, {} certificates", self.roots.len(), self.chain.len())
    }
}

/// Reads an upstream's files, and reports problems to `document`.
#[must_use]
pub fn read(upstream: &UpstreamSettings, document: &Document) -> Credentials {
    let Some(tls) = &upstream.tls else { return Credentials::default() };
    let file = |key, path: &'_ Option<String>| {
        path.clone().map(|path| File {
            document,
            key: format!("upstreams.{}.{key}", upstream.name),
            path,
        })
    };
    let roots = file("ca", &tls.ca).map(|file| roots(&file)).unwrap_or_default();
    let shown = file("client_certificate", &tls.certificate).zip(file("client_key", &tls.key));
    let (chain, key) = shown.map(|(chain, key)| pair(&chain, &key)).unwrap_or_default();
    let ders: Vec<_> = chain.iter().map(|one| CertificateDer::from(one.as_slice())).collect();
    let path = tls.certificate.as_deref().unwrap_or_default();
    let certificate = ShownCertificate::of(path, &ders);
    Credentials { roots, chain, key, certificate }
}

/// A file, and the setting that names it.
struct File<'d> {
    document: &'d Document,
    key: String,
    path: String,
}

impl File<'_> {
    fn fault(&self, why: &str) {
        self.document.fault_in(&self.key, format!("`{}` {why}", self.path));
    }

    /// Its text; a file that cannot be read is reported.
    fn text(&self) -> Option<String> {
        let read = files::read(Path::new(&self.path));
        read.map_err(|why| self.fault(&format!("cannot be read: {why}"))).ok()
    }

    /// Its certificates as `read` finds them; what is wrong with them is reported.
    fn certificates(
        &self,
        read: impl Fn(&str) -> Result<Vec<CertificateDer<'static>>, String>,
    ) -> Vec<Vec<u8>> {
        let Some(text) = self.text() else { return Vec::new() };
        let found = read(&text).map_err(|why| self.fault(&why)).unwrap_or_default();
        let broken = |one: &&CertificateDer<'_>| X509Certificate::from_der(one.as_ref()).is_err();
        if found.iter().find(broken).is_some() {
            self.fault("has a certificate that cannot be read");
            return Vec::new();
        }
        found.iter().map(|one| one.as_ref().to_vec()).collect()
    }
}

fn roots(file: &File<'_>) -> Vec<Vec<u8>> {
    file.certificates(|text| Ok(certificates::roots(text)?.certificates))
}

/// A chain, and the private key of its first certificate.
fn pair(chain_file: &File<'_>, key_file: &File<'_>) -> (Vec<Vec<u8>>, Vec<u8>) {
    let chain = chain_file.certificates(certificates::chain);
    let Some(text) = key_file.text().filter(|_| !chain.is_empty()) else {
        return Default::default();
    };
    let Some(key) = certificates::key(&text).map_err(|why| key_file.fault(&why)).ok() else {
        return Default::default();
    };
    let bytes = key.secret_der().to_vec();
    let shown = chain.iter().map(|one| CertificateDer::from(one.clone())).collect();
    if let Err(why) = certificates::pair(shown, key) {
        key_file.fault(&format!("does not match `{}`: {why}", chain_file.path));
    }
    (chain, bytes)
}

impl Credentials {
    /// The roots that a server's certificate must chain to; none for the system's roots.
    #[must_use]
    pub fn ca(&self) -> Option<Arc<CaType>> {
        let roots = || self.roots.iter().map(|root| WrappedX509::new(root.clone(), parse_x509));
        (!self.roots.is_empty()).then(|| roots().collect())
    }

    /// The client certificate, if there is one.
    #[must_use]
    pub fn shown(&self) -> Option<Arc<CertKey>> {
        let pair = || Arc::new(CertKey::new(self.chain.clone(), self.key.clone()));
        (!self.chain.is_empty()).then(pair)
    }

    /// The client certificate's file and end, if there is one.
    #[must_use]
    pub fn certificate(&self) -> Option<&ShownCertificate> {
        self.certificate.as_ref()
    }

    /// A hash that differs between credentials: connections are not shared between them.
    #[must_use]
    pub fn number(&self, upstream: &str) -> u64 {
        let mut hasher = std::hash::DefaultHasher::new();
        (self, upstream).hash(&mut hasher);
        hasher.finish()
    }
}
