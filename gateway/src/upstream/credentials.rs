//! What the files of an upstream's TLS hold: whom we believe there, and what we show.
//!
//! # Invariants
//!
//! 1. What Pingora would stumble over when a connection is made is a mistake of the configuration
//!    instead, with its place.
//! 2. A private key is never printed.
//!
//! # Not here
//!
//! Connecting (`upstream`), when the files are read again (`background`).

use std::fmt;
use std::hash::{Hash, Hasher};
use std::path::Path;
use std::sync::Arc;

use pingora_core::protocols::tls::CaType;
use pingora_core::utils::tls::{CertKey, WrappedX509, parse_x509};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};
use weir_common::config::document::{Document, Spanned};
use weir_common::config::files;
use x509_parser::prelude::{FromDer, X509Certificate};

use crate::settings;

/// What the files of one upstream hold, as DER.
#[derive(Clone, Default, PartialEq, Eq, Hash)]
pub struct Credentials {
    roots: Vec<Vec<u8>>,
    chain: Vec<Vec<u8>>,
    key: Vec<u8>,
}

impl fmt::Debug for Credentials {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{} roots, {} certificates", self.roots.len(), self.chain.len())
    }
}

/// The files that an upstream's credentials stand in.
pub fn paths(upstream: &settings::Upstream) -> impl Iterator<Item = &Path> {
    let files = upstream.tls.iter().flat_map(|tls| [&tls.ca, &tls.certificate, &tls.key]);
    files.flatten().map(|file| Path::new(&file.value))
}

/// Reads an upstream's files. What is wrong with them is left in `document`.
#[must_use]
pub fn read(upstream: &settings::Upstream, document: &Document) -> Credentials {
    let Some(tls) = &upstream.tls else { return Credentials::default() };
    let fault = |file: &Spanned<String>, why: String| {
        document.fault(file.at, format!("`{}`: {why}", file.value));
    };
    let roots = tls.ca.as_ref().map(|file| roots(file, &fault)).unwrap_or_default();
    let shown = tls.certificate.as_ref().zip(tls.key.as_ref());
    let (chain, key) = shown.map(|(chain, key)| pair(chain, key, &fault)).unwrap_or_default();
    Credentials { roots, chain, key }
}

fn roots(file: &Spanned<String>, fault: &impl Fn(&Spanned<String>, String)) -> Vec<Vec<u8>> {
    let roots = certificates(file, fault);
    let mut store = RootCertStore::empty();
    for root in &roots {
        if let Err(why) = store.add(CertificateDer::from(root.clone())) {
            fault(file, format!("a certificate in it cannot be a root: {why}"));
        }
    }
    roots
}

/// A chain and the key to its first certificate.
fn pair(
    chain_file: &Spanned<String>,
    key_file: &Spanned<String>,
    fault: &impl Fn(&Spanned<String>, String),
) -> (Vec<Vec<u8>>, Vec<u8>) {
    let chain = certificates(chain_file, fault);
    let Some(text) = text(key_file, fault).filter(|_| !chain.is_empty()) else {
        return Default::default();
    };
    let key = match PrivateKeyDer::from_pem_slice(text.as_bytes()) {
        Ok(key) => key,
        Err(_) => {
            fault(key_file, "has no private key in PEM".to_owned());
            return Default::default();
        }
    };
    let bytes = key.secret_der().to_vec();
    let shown = chain.iter().map(|one| CertificateDer::from(one.clone())).collect();
    let config = ClientConfig::builder().with_root_certificates(RootCertStore::empty());
    if let Err(why) = config.with_client_auth_cert(shown, key) {
        fault(key_file, format!("does not go with `{}`: {why}", chain_file.value));
    }
    (chain, bytes)
}

fn certificates(file: &Spanned<String>, fault: &impl Fn(&Spanned<String>, String)) -> Vec<Vec<u8>> {
    let Some(text) = text(file, fault) else { return Vec::new() };
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(text.as_bytes()).collect();
    let found = found.unwrap_or_default();
    if found.is_empty() {
        fault(file, "has no certificate in PEM".to_owned());
    }
    let broken = |one: &&CertificateDer<'_>| X509Certificate::from_der(one.as_ref()).is_err();
    if found.iter().find(broken).is_some() {
        fault(file, "has a certificate that cannot be read".to_owned());
        return Vec::new();
    }
    found.iter().map(|one| one.as_ref().to_vec()).collect()
}

/// A file's text; nothing where it cannot be read, which has then been said.
fn text(file: &Spanned<String>, fault: &impl Fn(&Spanned<String>, String)) -> Option<String> {
    let read = files::read(Path::new(&file.value));
    read.map_err(|why| fault(file, format!("cannot be read: {why}"))).ok()
}

impl Credentials {
    /// The roots that a server's certificate must lead to; the system's where there are none.
    #[must_use]
    pub fn ca(&self) -> Option<Arc<CaType>> {
        let roots = || self.roots.iter().map(|root| WrappedX509::new(root.clone(), parse_x509));
        (!self.roots.is_empty()).then(|| roots().collect())
    }

    /// What we show.
    #[must_use]
    pub fn shown(&self) -> Option<Arc<CertKey>> {
        let pair = || Arc::new(CertKey::new(self.chain.clone(), self.key.clone()));
        (!self.chain.is_empty()).then(pair)
    }

    /// A number that other credentials do not have: connections are not shared between them.
    #[must_use]
    pub fn number(&self, upstream: &str) -> u64 {
        let mut hasher = std::hash::DefaultHasher::new();
        (self, upstream).hash(&mut hasher);
        hasher.finish()
    }
}
