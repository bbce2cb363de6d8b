//! Builds HTTP clients: trusted certificates, no redirects, no proxies.
//!
//! Invariant: every connection verifies the receiver's certificate: no TLS session is resumed.
//!
//! Not here: which addresses may be called (`egress`), deadlines (`client`).

use std::sync::Arc;
use std::time::Duration;

use reqwest::{Client, ClientBuilder, redirect};
use rustls::client::{Resumption, WantsClientCert};
use rustls::crypto::ring;
use rustls::pki_types::CertificateDer;
use rustls::sign::SingleCertAndKey;
use rustls::{ClientConfig, ConfigBuilder};
use rustls_platform_verifier::Verifier;
use weir_common::config::certificates::{self, roots};
use weir_common::config::files;

use crate::config::settings::Egress;

/// The `User-Agent`.
pub(crate) const AGENT: &str = concat!("Weir/", env!("CARGO_PKG_VERSION"));

/// Why no client can be built.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// A file cannot be used.
    #[error("{why}")]
    File {
        /// The option that names it.
        key: &'static str,
        /// The error, with the file's path.
        why: String,
    },
    /// No system certificates, or no cipher suites.
    #[error("cannot set up TLS, are the system's CA certificates installed?")]
    Tls(#[from] rustls::Error),
    /// The HTTP library refused the settings.
    #[error("cannot build an HTTP client")]
    Build(#[from] reqwest::Error),
}

/// TLS settings that trust the system's certificates alone.
pub(crate) fn tls() -> Result<ClientConfig, ClientError> {
    Ok(http1(verified(Vec::new())?.with_no_client_auth()))
}

/// The TLS settings of deliveries.
pub(crate) fn tls_of(egress: &Egress) -> Result<ClientConfig, ClientError> {
    let extra = match &egress.extra_ca {
        Some(file) => read(("egress.extra_ca", &file.value), |text| Ok(roots(text)?.certificates))?,
        None => Vec::new(),
    };
    let settings = verified(extra)?;
    let tls = match (&egress.client_certificate, &egress.client_key) {
        (Some(file), Some(key)) => {
            let (file, name) = (&file.value, "egress.client_key");
            let chain = read(("egress.client_certificate", file), certificates::chain)?;
            let own = read((name, &key.value), certificates::key)?;
            let own = certificates::pair(chain, own).map_err(|why| {
                let why = format!("`{}` does not match `{file}`: {why}", key.value);
                ClientError::File { key: name, why }
            })?;
            settings.with_client_cert_resolver(Arc::new(SingleCertAndKey::from(own)))
        }
        _ => settings.with_no_client_auth(),
    };
    Ok(http1(tls))
}

fn http1(mut tls: ClientConfig) -> ClientConfig {
    tls.alpn_protocols = vec![b"http/1.1".to_vec()];
    // A resumed session verifies no certificate: one that expired meanwhile would go unseen. Nor is
    // it bound to the client certificate that it began with. Connections are reused instead.
    tls.resumption = Resumption::disabled();
    tls
}

/// TLS settings that trust the system's certificates and these.
fn verified(
    extra: Vec<CertificateDer<'static>>,
) -> Result<ConfigBuilder<ClientConfig, WantsClientCert>, ClientError> {
    let provider = Arc::new(ring::default_provider());
    let verifier = Verifier::new_with_extra_roots(extra, provider.clone())?;
    Ok(ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .dangerous() // Safe: this verifier verifies.
        .with_custom_certificate_verifier(Arc::new(verifier)))
}

fn read<T>(
    (key, path): (&'static str, &str),
    of: fn(&str) -> Result<T, String>,
) -> Result<T, ClientError> {
    files::read_as(path, of).map_err(|why| ClientError::File { key, why })
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
    use weir_common::config::document::Spanned;

    use super::*;
    use crate::delivery::egress::tests::egress;

    #[test]
    fn a_file_without_certificates_is_an_error_with_its_name() {
        for path in ["does/not/exist.pem", "Cargo.toml"] {
            let extra_ca = Some(Spanned { value: path.to_owned(), at: 0 });
            let why = tls_of(&Egress { extra_ca, ..egress(&[]) }).expect_err("it has none");
            assert!(why.to_string().contains(path), "{why}");
        }
    }
}
