//! Builds HTTP clients: trusted certificates, no redirects, no proxies.
//!
//! Not here: which addresses may be called (`egress`), deadlines (`client`).

use std::sync::Arc;
use std::time::Duration;

use reqwest::{Client, ClientBuilder, redirect};
use rustls::ClientConfig;
use rustls::crypto::ring;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls_platform_verifier::Verifier;

/// The `User-Agent`.
pub(crate) const AGENT: &str = concat!("Weir/", env!("CARGO_PKG_VERSION"));

/// Why no client can be built.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// `egress.extra_ca` cannot be read.
    #[error("egress.extra_ca: cannot read certificates from {path}: {why}")]
    Certificates {
        /// The file.
        path: String,
        /// The error.
        why: String,
    },
    /// No system certificates, or no cipher suites.
    #[error("cannot set up TLS, are the system's CA certificates installed?")]
    Tls(#[from] rustls::Error),
    /// The HTTP library refused the settings.
    #[error("cannot build an HTTP client")]
    Build(#[from] reqwest::Error),
}

/// TLS settings that trust the system's certificates and those of `extra_ca`.
pub(crate) fn tls(extra_ca: Option<&str>) -> Result<ClientConfig, ClientError> {
    let extra = extra_ca.map_or(Ok(Vec::new()), certificates)?;
    let provider = Arc::new(ring::default_provider());
    let verifier = Verifier::new_with_extra_roots(extra, provider.clone())?;
    let mut tls = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .dangerous() // Safe: this verifier verifies.
        .with_custom_certificate_verifier(Arc::new(verifier))
        .with_no_client_auth();
    tls.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(tls)
}

fn certificates(path: &str) -> Result<Vec<CertificateDer<'static>>, ClientError> {
    let failed = |why: String| ClientError::Certificates { path: path.to_owned(), why };
    let found = CertificateDer::pem_file_iter(path).and_then(Iterator::collect);
    let found: Vec<_> = found.map_err(|e| failed(e.to_string()))?;
    if found.is_empty() {
        return Err(failed("the file has no certificates".to_owned()));
    }
    Ok(found)
}

/// An HTTP/1.1 client without redirects, proxies, decompression and retries.
pub(crate) fn builder(tls: ClientConfig, connect_timeout: Duration) -> ClientBuilder {
    Client::builder()
        .tls_backend_preconfigured(tls)
        .http1_only()
        .no_proxy()
        .redirect(redirect::Policy::none())
        .retry(reqwest::retry::never())
        .referer(false)
        .user_agent(AGENT)
        .tcp_nodelay(true)
        .connect_timeout(connect_timeout)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_without_certificates_is_an_error_with_its_name() {
        for path in ["does/not/exist.pem", "Cargo.toml"] {
            let why = tls(Some(path)).expect_err("it has none").to_string();
            assert!(why.contains(path) && why.contains("egress.extra_ca"), "{why}");
        }
    }
}
