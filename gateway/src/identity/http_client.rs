//! Asks servers that know what we do not: who a token is, who a tenant belongs to.
//!
//! One question, one deadline over all of it, and an answer of bounded size. Not here: what is
//! asked, what is made of the answer, and for how long it holds.

use std::error::Error;
use std::time::Duration;

use reqwest::{Certificate, Client, RequestBuilder, Url, redirect};
use weir_common::files;

/// More than this is neither a set of keys nor an entry of a directory.
const ANSWER_BYTES_MAX: usize = 1 << 20;

/// Connections that are kept to one server for the next question.
const IDLE_MAX: usize = 16;

/// No answer.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Unanswered {
    /// Nothing that could be read came back in time.
    #[error("{0}")]
    Unreachable(String),
    /// More came back than any answer has.
    #[error("an answer of more than {ANSWER_BYTES_MAX} bytes")]
    TooLarge,
}

/// What came back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The status.
    pub status: u16,
    /// The body.
    pub body: Vec<u8>,
}

/// Whoever asks: by TLS it believes the system's roots, or the one in the file `ca` alone.
pub fn client(ca: Option<&str>, timeout: Duration) -> Result<Client, String> {
    let builder = Client::builder()
        // A proxy from the environment, or another place that an answer points to, is nobody
        // that an operator named.
        .no_proxy()
        .redirect(redirect::Policy::none())
        .pool_max_idle_per_host(IDLE_MAX)
        .timeout(timeout);
    let builder = match ca {
        None => builder,
        Some(path) => {
            let text =
                files::read(path.as_ref()).map_err(|why| format!("cannot read `{path}`: {why}"))?;
            let roots = Certificate::from_pem_bundle(text.as_bytes())
                .map_err(|why| format!("`{path}` holds no certificates: {why}"))?;
            if roots.is_empty() {
                return Err(format!("`{path}` holds no certificates"));
            }
            builder.tls_certs_only(roots)
        }
    };
    builder.build().map_err(|why| chain(&why))
}

/// Asks.
pub async fn ask(question: RequestBuilder) -> Result<Answer, Unanswered> {
    let unreachable = |why: reqwest::Error| Unanswered::Unreachable(chain(&why.without_url()));
    let mut answer = question.send().await.map_err(unreachable)?;
    let status = answer.status().as_u16();
    let mut body = Vec::new();
    while let Some(chunk) = answer.chunk().await.map_err(unreachable)? {
        if body.len() + chunk.len() > ANSWER_BYTES_MAX {
            return Err(Unanswered::TooLarge);
        }
        body.extend_from_slice(&chunk);
    }
    Ok(Answer { status, body })
}

/// A URL as a log may have it: without a user, a password and a query.
#[must_use]
pub fn shown(url: &str) -> String {
    let Ok(mut url) = Url::parse(url) else { return "a URL that cannot be read".to_owned() };
    // These fail for URLs without a host, which have neither.
    let _ = (url.set_username(""), url.set_password(None));
    url.set_query(None);
    url.set_fragment(None);
    url.into()
}

/// An error and what it comes from: what an operator needs is the last of it.
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
