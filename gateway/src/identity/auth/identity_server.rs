//! What every request to an identity server needs: a client, a deadline, a clock and counters.
//!
//! Not here: what is requested (`jwks`, `introspection`).

use std::sync::Arc;
use std::time::Duration;

use reqwest::Client;
use weir_common::time::{Clock, Tick};

use crate::telemetry::metrics::Metrics;

/// A client for an identity server.
#[derive(Clone)]
pub(super) struct IdentityServer {
    pub(super) client: Client,
    /// The deadline of each request.
    pub(super) timeout: Duration,
    pub(super) clock: Clock,
    pub(super) metrics: Arc<Metrics>,
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
        self.metrics.identity_request(kind, response.is_ok(), took);
        response
    }
}
