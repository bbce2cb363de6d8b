//! A response: its status, its header fields and its body.
//!
//! Not here: refusals (`problems`).

use bytes::Bytes;
use http::header::CONTENT_LENGTH;
use http::{HeaderName, HeaderValue, Response, StatusCode};
use http_body_util::Full;
use serde_json::Value;

use crate::problem::{self, Problem};

/// A response.
#[derive(Clone, Debug)]
pub struct Reply {
    /// Its status.
    pub status: u16,
    /// Its header fields, with `Content-Type` if there is a body.
    pub headers: Vec<(&'static str, String)>,
    /// Its body.
    pub body: Bytes,
}

impl Reply {
    /// A response with a body of this media type.
    #[must_use]
    pub fn new(status: u16, media_type: &str, body: impl Into<Bytes>) -> Self {
        let headers = vec![("content-type", media_type.to_owned())];
        Self { status, headers, body: body.into() }
    }

    /// A response with a JSON body.
    #[must_use]
    pub fn json(status: u16, value: &Value) -> Self {
        Self::new(status, "application/json", value.to_string())
    }

    /// A response with a problem's status and body.
    #[must_use]
    pub fn problem(problem: &Problem) -> Self {
        Self::new(problem.status, problem::MEDIA_TYPE, problem.body())
    }

    /// Adds a header field.
    #[must_use]
    pub fn with(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.headers.push((name, value.into()));
        self
    }

    /// The response as sent: with the fields that every response has, and without a body to a HEAD.
    pub(super) fn into_response(self, is_head: bool) -> Response<Full<Bytes>> {
        let mut response = Response::new(Full::new(Bytes::new()));
        *response.status_mut() =
            StatusCode::from_u16(self.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let headers = response.headers_mut();
        headers.insert("cache-control", HeaderValue::from_static("no-store"));
        headers.insert("x-content-type-options", HeaderValue::from_static("nosniff"));
        for (name, value) in self.headers {
            // A name or value that is invalid in a header is left out, not changed.
            if let (Ok(name), Ok(value)) =
                (HeaderName::try_from(name), HeaderValue::try_from(value))
            {
                headers.insert(name, value);
            }
        }
        if is_head {
            headers.insert(CONTENT_LENGTH, HeaderValue::from(self.body.len()));
        } else {
            *response.body_mut() = Full::new(self.body);
        }
        response
    }
}
