//! What every request to an identity server needs: a client, a deadline, a clock and metrics.
//!
//! Not here: what is requested (`jwks`, `introspection`).

use std::sync::Arc;
use std::time::Duration;

use crate::time::{Clock, Tick, UnixTime};
use reqwest::Client;

/// The kinds and outcomes of requests to identity servers, in metrics.
pub const QUERIES: [[&str; 2]; 4] = [
    ["keys", "answered"],
    ["keys", "failed"],
    ["introspection", "answered"],
    ["introspection", "failed"],
];

/// The metrics of requests to identity servers.
pub trait IdentityMetrics: Send + Sync + 'static {
    /// Counts a request for `keys`, or one of `introspection`.
    fn requested(&self, kind: &'static str, answered: bool, took: Duration);

    /// Shows how many keys the last fetch that succeeded returned, and when.
    fn fetched(&self, keys: usize, at: UnixTime);
}

/// A client for an identity server.
#[derive(Clone)]
pub(super) struct IdentityServer {
    pub(super) client: Client,
    /// The deadline of each request.
    pub(super) timeout: Duration,
    pub(super) clock: Clock,
    pub(super) metrics: Arc<dyn IdentityMetrics>,
}

impl IdentityServer {
    /// Awaits a request that began at `started`, and counts it as one of `kind`.
    pub(super) async fn count<T, E>(
        &self,
        kind: &'static str,
        started: Tick,
        request: impl Future<Output = Result<T, E>>,
    ) -> Result<T, E> {
        let response = request.await;
        let took = self.clock.now().tick.since(started);
        self.metrics.requested(kind, response.is_ok(), took);
        response
    }
}
