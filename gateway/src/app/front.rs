//! Serves an accepted connection by the protocol that its client chose.
//!
//! Not here: how connections are accepted (`edge::listener`), the phases of a request (`proxy`).

use std::sync::Arc;

use async_trait::async_trait;
use pingora_core::apps::{HttpServerApp, ServerApp};
use pingora_core::protocols::Stream;
use pingora_core::server::ShutdownWatch;
use pingora_proxy::HttpProxy;

use crate::config::shared::Shared;
use crate::edge::connection::Connection;
use crate::edge::http2::{self, Bounds, GOAWAY_WAIT, Http2};
use crate::proxy::Proxy;
use crate::request::target::Malformed;
use crate::response::refusal::Refusal;

/// Serves accepted connections.
pub(super) struct Front {
    /// Runs the phases of each request.
    pub proxy: Arc<HttpProxy<Proxy>>,
    /// What all requests share.
    pub shared: Arc<Shared>,
}

#[async_trait]
impl ServerApp for Front {
    async fn process_new(self: &Arc<Self>, stream: Stream, stop: &ShutdownWatch) -> Option<Stream> {
        let connection = Connection::of(Some(&stream));
        if let Some(connection) = connection.filter(|connection| !connection.is_http2()) {
            let upload = connection.upload().clone();
            return upload.within(self.proxy.process_new(stream, stop)).await;
        }
        let server = &self.shared.active.load_full().settings.server;
        let bounds = Bounds {
            preface_timeout: server.head_timeout,
            idle_timeout: server.idle_timeout,
            goaway_wait: GOAWAY_WAIT,
            head_bytes_max: server.caps.head_bytes_max,
            requests_max: server.caps.requests_per_connection_max,
            streams_max: server.caps.streams_max,
        };
        let refusals = &self.shared.metrics.refusals;
        let http2 = Http2 {
            app: self.proxy.clone(),
            clock: self.shared.clock.clone(),
            rejected: refusals
                .with_label_values(&[Refusal::Malformed(Malformed::HostForm).reason()]),
        };
        http2::serve(http2, stream, bounds, stop.clone()).await;
        None
    }

    async fn cleanup(&self) {
        self.proxy.http_cleanup().await;
    }
}
