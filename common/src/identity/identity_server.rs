//! What every request to an identity server needs: a client, a deadline, a clock and metrics.
//!
//! Not here: what is requested (`jwks`, `introspection`).

use std::time::Duration;

use prometheus::{Gauge, HistogramVec, IntCounterVec, IntGauge};
use reqwest::Client;

use crate::time::{Clock, Tick, UnixTime};

/// The kinds and outcomes of requests to identity servers, in metrics.
pub const QUERIES: [[&str; 2]; 4] = [
    ["keys", "answered"],
    ["keys", "failed"],
    ["introspection", "answered"],
    ["introspection", "failed"],
];

/// The metrics of requests to identity servers.
#[derive(Clone)]
pub struct IdentityMetrics {
    /// Requests, by kind and outcome: [`QUERIES`].
    pub requests: IntCounterVec,
    /// How long they took, by kind.
    pub duration: HistogramVec,
    /// The number of keys that the last fetch that succeeded returned.
    pub keys: IntGauge,
    /// When that was, in Unix seconds.
    pub fetched: Gauge,
}

impl IdentityMetrics {
    pub(super) fn fetched(&self, keys: usize, at: UnixTime) {
        self.keys.set(i64::try_from(keys).unwrap_or(i64::MAX));
        self.fetched.set(Duration::from_micros(at.0).as_secs_f64());
    }
}

/// A client for an identity server.
#[derive(Clone)]
pub(super) struct IdentityServer {
    pub(super) client: Client,
    /// The deadline of each request.
    pub(super) timeout: Duration,
    pub(super) clock: Clock,
    pub(super) metrics: IdentityMetrics,
}

impl IdentityServer {
    /// Awaits a request that began at `started`, and counts it as one of `kind`.
    pub(super) async fn count<T, E>(
        &self,
        kind: &str,
        started: Tick,
        request: impl Future<Output = Result<T, E>>,
    ) -> Result<T, E> {
        let response = request.await;
        let took = self.clock.now().tick.since(started);
        let outcome = if response.is_ok() { "answered" } else { "failed" };
        self.metrics.requests.with_label_values(&[kind, outcome]).inc();
        self.metrics.duration.with_label_values(&[kind]).observe(took.as_secs_f64());
        response
    }
}
