//! Sends requests to servers that the operator configured: identity servers, directories.
//!
//! Invariant: each request has one deadline over all of it, and a response of bounded size.
//!
//! Not here: what is requested, what a response means, how long it is valid.

use std::error::Error;
use std::time::Duration;

use http::HeaderMap;
use reqwest::{Certificate, Client, ClientBuilder, RequestBuilder, Url, redirect};

use crate::config::{certificates, files};

/// Largest accepted response; no JWKS, introspection response or directory entry needs more.
const RESPONSE_BYTES_MAX: usize = 1 << 20;

/// Idle connections kept to one server.
const IDLE_MAX: usize = 16;

/// Why there is no response.
#[derive(Clone, Debug, thiserror::Error)]
pub enum RequestError {
    /// There was no connection: the server has seen nothing of the request.
    #[error("{0}")]
    Unreachable(String),
    /// No complete response arrived in time: the server may have carried out the request.
    #[error("{0}")]
    BrokenOff(String),
    /// The response is larger than [`RESPONSE_BYTES_MAX`].
    #[error("an answer of more than {RESPONSE_BYTES_MAX} bytes")]
    TooLarge,
}

/// A response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Response {
    /// The status.
    pub status: u16,
    /// The header fields.
    pub headers: HeaderMap,
    /// The body.
    pub body: Vec<u8>,
}

/// A client that trusts the roots in the file `ca`, or the system's roots without one.
///
/// # Errors
///
/// If the file cannot be read, or has no roots.
pub fn client(ca: Option<&str>, timeout: Duration) -> Result<Client, String> {
    built(builder(ca, timeout)?)
}

/// The builder of such a client.
///
/// # Errors
///
/// As [`client`].
pub fn builder(ca: Option<&str>, timeout: Duration) -> Result<ClientBuilder, String> {
    let builder = Client::builder()
        // The operator configured this URL: no `HTTP_PROXY` and no redirect leads elsewhere.
        .no_proxy()
        .redirect(redirect::Policy::none())
        .pool_max_idle_per_host(IDLE_MAX)
        .timeout(timeout);
    Ok(match ca {
        None => builder,
        Some(path) => {
            let roots = files::read_as(path, certificates::roots)?;
            let roots = roots.certificates.iter().map(|root| Certificate::from_der(root));
            builder.tls_certs_only(roots.collect::<Result<Vec<_>, _>>().map_err(|why| chain(&why))?)
        }
    })
}

/// The client that a builder makes.
///
/// # Errors
///
/// If the system has no roots that it could trust.
pub fn built(builder: ClientBuilder) -> Result<Client, String> {
    builder.build().map_err(|why| chain(&why))
}

/// Sends a request and reads its response.
///
/// # Errors
///
/// If no response of bounded size arrives before the client's deadline.
pub async fn send(request: RequestBuilder) -> Result<Response, RequestError> {
    let failed = |why: reqwest::Error| {
        let is_unsent = why.is_connect() || why.is_builder();
        let text = chain(&why.without_url());
        if is_unsent { RequestError::Unreachable(text) } else { RequestError::BrokenOff(text) }
    };
    let mut response = request.send().await.map_err(failed)?;
    let status = response.status().as_u16();
    let headers = std::mem::take(response.headers_mut());
    let mut body = Vec::new();
    while let Some(chunk) = response.chunk().await.map_err(failed)? {
        if body.len() + chunk.len() > RESPONSE_BYTES_MAX {
            return Err(RequestError::TooLarge);
        }
        body.extend_from_slice(&chunk);
    }
    Ok(Response { status, headers, body })
}

/// A URL for a log: without user, password, query and fragment.
#[must_use]
pub fn shown(url: &str) -> String {
    let Ok(mut url) = Url::parse(url) else { return "a URL that cannot be read".to_owned() };
    // These fail for URLs without a host, which have no user or password.
    let _ = (url.set_username(""), url.set_password(None));
    url.set_query(None);
    url.set_fragment(None);
    url.into()
}

/// An error and its chain of sources: an operator needs the innermost one.
fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        text = format!("{text}: {cause}");
        next = cause.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_is_shown_without_its_credentials() {
        let url = "https://user:hidden@id.example:8443/oauth/keys?key=hidden#hidden";
        assert_eq!(shown(url), "https://id.example:8443/oauth/keys");
    }
}
