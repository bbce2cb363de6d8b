//! The certificates that clients are shown.
//!
//! Not here: the sockets they are shown on (`listen`).

use std::io;
use std::sync::Arc;

use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

use crate::settings::Https;

/// What a listener needs for handshakes, from the first of its entries.
pub fn config(entry: &Https) -> io::Result<Arc<ServerConfig>> {
    let unreadable = |path: &str, why: String| io::Error::other(format!("`{path}`: {why}"));
    let chain = CertificateDer::pem_file_iter(&entry.certificate.value)
        .and_then(Iterator::collect::<Result<Vec<_>, _>>)
        .map_err(|why| unreadable(&entry.certificate.value, why.to_string()))?;
    let key = PrivateKeyDer::from_pem_file(&entry.key.value)
        .map_err(|why| unreadable(&entry.key.value, why.to_string()))?;
    let mut config = ServerConfig::builder()
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .map_err(|why| unreadable(&entry.certificate.value, why.to_string()))?;
    config.alpn_protocols = ["h2", "http/1.1", "http/1.0"].map(Into::into).to_vec();
    Ok(Arc::new(config))
}
