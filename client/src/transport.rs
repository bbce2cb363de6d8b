//! The seam between a client and its surroundings: the network, the clock, chance. A client decides
//! nothing by itself about time, so that a test simulates hours of it.
//!
//! Not here: when a call is repeated (`client`).

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use async_trait::async_trait;
use http::HeaderMap;
use http::header::{CONTENT_TYPE, RETRY_AFTER};
use reqwest::{Client, Url};
use weir_common::http_client::{self, RequestError};
use weir_common::secret::Secret;
use weir_common::time::{Clock, Moment};

use crate::call::{Allowance, Answer, Call};

/// The time for one try: the gateway's own deadlines are shorter, but for `read_timeout`.
const TRY_TIMEOUT: Duration = Duration::from_secs(30);

/// Idle connections that are kept for the next call: agents make one call after the other.
const IDLE_MAX: usize = 2;

/// The shortest token that is masked in answers: a shorter one is a word of other texts, too.
const MASKED_BYTES_MIN: usize = 8;

/// Why a try got no answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SendError {
    /// There was no connection: the server has seen nothing of the call.
    NotSent(String),
    /// The connection ended before the answer: the call may have been carried out.
    Unknown(String),
}

/// The surroundings of a client.
#[async_trait]
pub trait Transport: Send + Sync + 'static {
    /// This instant.
    fn now(&self) -> Moment;

    /// A random number.
    fn dice(&self) -> u64;

    /// Waits.
    async fn wait(&self, time: Duration);

    /// Sends a call once. `key` is the same for every try of a change.
    async fn send(&self, call: &Call, key: Option<&str>) -> Result<Answer, SendError>;
}

/// A server over HTTP, and the token that it is called with.
pub struct Server {
    base: Url,
    token: Secret<String>,
    client: Client,
    clock: Clock,
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Server({})", self.base)
    }
}

/// Reads the URL of a server: `https`, or `http` on this machine.
///
/// # Errors
///
/// What is wrong with it.
pub fn base_url(text: &str) -> Result<Url, String> {
    let url = Url::parse(text).map_err(|why| format!("`{text}` is not a URL: {why}"))?;
    let host = url.host_str().unwrap_or_default();
    let address = host.trim_matches(['[', ']']).parse::<IpAddr>();
    let is_local = is_localhost(host) || address.is_ok_and(|address| address.is_loopback());
    let shown = http_client::shown(text);
    match url.scheme() {
        "https" if !host.is_empty() => {}
        "http" if is_local => {}
        _ => {
            return Err(format!(
                "`{shown}` must begin with https://, or with http:// and a host of this machine: \
                 the token would travel in the clear"
            ));
        }
    }
    let is_bare = url.path() == "/" && url.query().is_none() && url.fragment().is_none();
    if !is_bare || !url.username().is_empty() || url.password().is_some() {
        return Err(format!("`{shown}` must be a scheme and a host, without user, path or query"));
    }
    Ok(url)
}

/// Whether a name belongs to this machine whatever a resolver says (RFC 6761).
fn is_localhost(host: &str) -> bool {
    host == "localhost" || host.ends_with(".localhost")
}

impl Server {
    /// The server at `base`, called with `token`. It must have a certificate of the roots in the
    /// file `ca`, or of the system's.
    ///
    /// # Errors
    ///
    /// If the file cannot be read.
    pub fn new(base: Url, token: Secret<String>, ca: Option<&str>) -> Result<Self, String> {
        let mut builder = http_client::builder(ca, TRY_TIMEOUT)?
            .pool_max_idle_per_host(IDLE_MAX)
            .user_agent(concat!("weir-client/", env!("CARGO_PKG_VERSION")));
        let host = base.host_str().unwrap_or_default();
        if is_localhost(host) {
            let port = base.port_or_known_default().unwrap_or(80);
            builder = builder.resolve(host, SocketAddr::from((Ipv4Addr::LOCALHOST, port)));
        }
        let client = http_client::built(builder)?;
        Ok(Self { base, token, client, clock: Clock::system() })
    }
}

#[async_trait]
impl Transport for Server {
    fn now(&self) -> Moment {
        self.clock.now()
    }

    fn dice(&self) -> u64 {
        // Without randomness all waits have the same length, and clients return together.
        getrandom::u64().unwrap_or_default()
    }

    async fn wait(&self, time: Duration) {
        tokio::time::sleep(time).await;
    }

    async fn send(&self, call: &Call, key: Option<&str>) -> Result<Answer, SendError> {
        let url =
            self.base.join(&call.target).map_err(|why| SendError::NotSent(why.to_string()))?;
        let mut request =
            self.client.request(call.method.clone(), url).bearer_auth(self.token.expose());
        if let Some(key) = key {
            request = request.header("idempotency-key", key);
        }
        if let Some(body) = &call.body {
            request = request.header(CONTENT_TYPE, "application/json").body(body.clone());
        }
        let response = http_client::send(request).await.map_err(|why| match why {
            RequestError::Unreachable(why) => SendError::NotSent(why),
            RequestError::BrokenOff(_) | RequestError::Incomplete(_) | RequestError::TooLarge => {
                SendError::Unknown(why.to_string())
            }
        })?;
        let body = masked(response.body, self.token.expose());
        Ok(Answer {
            status: response.status,
            retry_after: text(&response.headers, RETRY_AFTER.as_str()).map(str::to_owned),
            allowance: allowance(&response.headers),
            body: body.into(),
        })
    }
}

/// A body without the token: a proxy's page of an error may repeat what was sent.
fn masked(body: Vec<u8>, token: &str) -> Vec<u8> {
    if token.len() < MASKED_BYTES_MIN {
        return body;
    }
    let text = String::from_utf8_lossy(&body);
    if text.contains(token) { text.replace(token, "***").into_bytes() } else { body }
}

fn text<'h>(headers: &'h HeaderMap, name: &str) -> Option<&'h str> {
    headers.get(name)?.to_str().ok()
}

/// What `X-RateLimit-…` say, if all are there.
fn allowance(headers: &HeaderMap) -> Option<Allowance> {
    let number = |name: &str| text(headers, name)?.parse().ok();
    Some(Allowance {
        limit: text(headers, "x-ratelimit-resource")?.to_owned(),
        allowed: number("x-ratelimit-limit")?,
        remaining: number("x-ratelimit-remaining")?,
        reset: number("x-ratelimit-reset")?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_travels_encrypted_or_not_at_all() {
        for right in [
            "https://api.example.com",
            "https://api.example.com:8443/",
            "http://localhost:8080",
            "http://api.localhost:8080",
            "http://127.0.0.1:8080",
            "http://[::1]:8080",
        ] {
            assert!(base_url(right).is_ok(), "{right}");
        }
        for (wrong, why) in [
            ("http://api.example.com", "https://"),
            ("http://localhost.example.com", "https://"),
            ("http://notlocalhost", "https://"),
            ("ftp://localhost", "https://"),
            ("api.example.com", "not a URL"),
            ("https://user:hidden@api.example.com", "without user"),
            ("https://api.example.com/v1", "without user, path"),
        ] {
            let error = base_url(wrong).unwrap_err();
            assert!(error.contains(why) && !error.contains("hidden"), "{wrong}: {error}");
        }
    }

    #[test]
    fn an_answer_that_repeats_the_token_is_masked() {
        let page = b"<p>Authorization: Bearer hidden-token \xff hidden-token".to_vec();
        let shown = String::from_utf8(masked(page, "hidden-token")).unwrap();
        assert_eq!(shown, "<p>Authorization: Bearer *** \u{fffd} ***");
        let other = b"a list \xff".to_vec();
        assert_eq!(masked(other.clone(), "hidden-token"), other);
        assert_eq!(masked(other.clone(), "a"), other);
    }

    #[test]
    fn headers_are_an_allowance_only_all_together() {
        let mut headers = HeaderMap::new();
        for (name, value) in [
            ("x-ratelimit-resource", "workspace"),
            ("x-ratelimit-limit", "60"),
            ("x-ratelimit-remaining", "59"),
        ] {
            headers.insert(name, value.parse().unwrap());
        }
        assert_eq!(allowance(&headers), None);
        headers.insert("x-ratelimit-reset", "1795608060".parse().unwrap());
        let shown = allowance(&headers).unwrap();
        assert_eq!((shown.limit.as_str(), shown.remaining, shown.allowed), ("workspace", 59, 60));
    }
}
