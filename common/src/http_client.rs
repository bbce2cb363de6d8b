//! Sends requests to servers that the operator configured: identity servers, directories.
//!
//! Invariant: each request has one deadline over all of it, its repetition included, and a response
//! of bounded size.
//!
//! Not here: what is requested, what a response means, how long it is valid.

use std::error::Error;
use std::io;
use std::iter::successors;
use std::time::Duration;

use http::HeaderMap;
use reqwest::{Certificate, Client, ClientBuilder, RequestBuilder, Url, redirect, retry};

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
    /// No response arrived in time: the server may have carried out the request.
    #[error("{0}")]
    BrokenOff(String),
    /// A response began, and its body did not end in time.
    #[error("an answer that breaks off: {0}")]
    Incomplete(String),
    /// The response is larger than [`RESPONSE_BYTES_MAX`].
    #[error("an answer of more than {RESPONSE_BYTES_MAX} bytes")]
    TooLarge,
}

impl RequestError {
    /// Whether the server responded, if only in part.
    #[must_use]
    pub fn is_answer(&self) -> bool {
        matches!(self, Self::Incomplete(_) | Self::TooLarge)
    }
}

/// Any host: all requests of a client may be repeated.
struct AnyHost;

impl PartialEq<&str> for AnyHost {
    fn eq(&self, _: &&str) -> bool {
        true
    }
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

/// A client that trusts the roots in the file `ca`, or the system's roots without one. Its requests
/// must be safe to repeat: a server may close a kept connection just as a request arrives, so one
/// whose connection closes without a response is sent once more.
///
/// # Errors
///
/// If the file cannot be read, or has no roots.
pub fn client(ca: Option<&str>, timeout: Duration) -> Result<Client, String> {
    let once_more = retry::for_host(AnyHost).max_retries_per_request(1).classify_fn(|attempt| {
        let is_closed = attempt.error().is_some_and(is_closed);
        if is_closed { attempt.retryable() } else { attempt.success() }
    });
    built(builder(ca, timeout)?.retry(once_more))
}

/// The builder of a client with the same roots that sends each request once.
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
    let broken_off = |why: reqwest::Error| RequestError::Incomplete(chain(&why.without_url()));
    while let Some(chunk) = response.chunk().await.map_err(broken_off)? {
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

/// Whether the server closed the connection instead of responding.
fn is_closed(error: &(dyn Error + 'static)) -> bool {
    successors(Some(error), |&error| error.source()).any(|cause| {
        let by_hyper = cause.downcast_ref().is_some_and(hyper::Error::is_incomplete_message);
        by_hyper || cause.downcast_ref().is_some_and(is_reset)
    })
}

/// Whether the other end of a connection closed it before it had read or answered what was sent.
pub fn is_reset(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe)
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
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;
    use tokio::task::JoinSet;

    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(10);

    /// Sends two requests to a server that answers `answered` on each connection and closes it at
    /// the next; returns how many answers came, and how many requests arrived.
    fn two_requests(answered: usize) -> (usize, usize) {
        // Another test may have installed it already.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let seen = Arc::new(AtomicUsize::new(0));
        let count = seen.clone();
        let test = async move {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let url = format!("http://{}", listener.local_addr().unwrap());
            let mut server = JoinSet::new();
            server.spawn(async move {
                loop {
                    let (mut stream, _) = listener.accept().await.unwrap();
                    for nth in 0.. {
                        if stream.read(&mut [0; 4096]).await.unwrap_or_default() == 0 {
                            break;
                        }
                        count.fetch_add(1, Ordering::Relaxed);
                        if nth == answered {
                            break;
                        }
                        let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}";
                        stream.write_all(answer).await.unwrap();
                    }
                }
            });
            let client = client(None, TIMEOUT).unwrap();
            let mut answers = 0;
            for _ in 0..2 {
                answers += usize::from(send(client.post(&url).body("token")).await.is_ok());
            }
            answers
        };
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        let answers = runtime.enable_all().build().unwrap().block_on(test);
        (answers, seen.load(Ordering::Relaxed))
    }

    #[test]
    fn a_request_whose_kept_connection_closes_is_sent_once_more_and_no_oftener() {
        assert_eq!(two_requests(1), (2, 3), "the second, and the second again");
        assert_eq!(two_requests(0), (0, 4), "each of the two, and each again");
    }

    #[test]
    fn a_url_is_shown_without_its_credentials() {
        let url = "https://user:hidden@id.example:8443/oauth/keys?key=hidden#hidden";
        assert_eq!(shown(url), "https://id.example:8443/oauth/keys");
    }
}
