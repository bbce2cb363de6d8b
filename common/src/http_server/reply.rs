//! A response: its status, its header fields and its body.
//!
//! Not here: refusals (`problems`).

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::header::CONTENT_LENGTH;
use http::{HeaderName, HeaderValue, Response, StatusCode};
use hyper::body::{Body, Frame, SizeHint};
use serde_json::Value;

use crate::http_server::write_timeout::RequestPhase;
use crate::problem::{self, Problem};

/// A response.
#[derive(Debug)]
pub struct Reply {
    /// Its status.
    pub status: u16,
    /// Its header fields, with `Content-Type` if there is a body.
    pub headers: Vec<(&'static str, String)>,
    /// Its body, or the first piece of it.
    pub body: Bytes,
    /// The other pieces.
    pub rest: Option<Rest>,
}

/// The rest of a body, made a piece at a time as the client reads; dropped with its connection.
pub struct Rest(Pin<Box<dyn Future<Output = NextPiece> + Send>>);

/// The next piece and the rest after it; `None` after the last.
pub type NextPiece = Result<Option<(Bytes, Rest)>, BrokenOff>;

/// The rest of a body cannot be made: the response is broken off, so that its client notices.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("the rest of the body cannot be made")]
pub struct BrokenOff;

impl Rest {
    /// A rest of which `next` makes the next piece.
    pub fn new(next: impl Future<Output = NextPiece> + Send + 'static) -> Self {
        Self(Box::pin(next))
    }
}

impl fmt::Debug for Rest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Rest")
    }
}

impl Reply {
    /// A response with a body of this media type.
    #[must_use]
    pub fn new(status: u16, media_type: &str, body: impl Into<Bytes>) -> Self {
        let headers = vec![("content-type", media_type.to_owned())];
        Self { status, headers, body: body.into(), rest: None }
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
    pub(super) fn into_response(
        self,
        is_head: bool,
        phase: Arc<RequestPhase>,
    ) -> Response<ReplyBody> {
        let mut response = Response::new(ReplyBody { first: None, rest: None, phase });
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
        if !is_head {
            let body = response.body_mut();
            body.first = Some(self.body).filter(|first| !first.is_empty());
            body.rest = self.rest;
        } else if self.rest.is_none() {
            headers.insert(CONTENT_LENGTH, HeaderValue::from(self.body.len()));
        }
        response
    }
}

/// The body of a response, as hyper reads it.
pub(super) struct ReplyBody {
    first: Option<Bytes>,
    rest: Option<Rest>,
    phase: Arc<RequestPhase>,
}

impl Body for ReplyBody {
    type Data = Bytes;
    type Error = BrokenOff;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BrokenOff>>> {
        if let Some(first) = self.first.take() {
            return Poll::Ready(Some(Ok(Frame::data(first))));
        }
        let Some(Rest(next)) = &mut self.rest else { return Poll::Ready(None) };
        let next = ready!(next.as_mut().poll(cx));
        self.rest = None;
        Poll::Ready(next.transpose().map(|next| {
            let (piece, rest) = next?;
            self.rest = Some(rest);
            self.phase.piece();
            Ok(Frame::data(piece))
        }))
    }

    fn is_end_stream(&self) -> bool {
        self.first.is_none() && self.rest.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        let first = self.first.as_ref().map_or(0, |first| first.len() as u64);
        if self.rest.is_none() {
            return SizeHint::with_exact(first);
        }
        let mut hint = SizeHint::new();
        hint.set_lower(first);
        hint
    }
}
