//! Serves an accepted connection by the protocol that its client chose.
//!
//! Not here: how connections are accepted (`edge::listener`), the phases of a request (`proxy`).

use std::sync::Arc;

use async_trait::async_trait;

use crate::config::shared::Shared;
use crate::edge::connection::Connection;
use crate::edge::drain::Drain;
use crate::edge::http1::{self, Http1, Http1Bounds};
use crate::edge::http2::{self, GOAWAY_WAIT, Http2, Http2Bounds};
use crate::edge::listener;
use crate::proxy::arrival::RequestHandler;
use crate::request::target::Malformed;
use crate::request::upload::Upload;
use crate::response::refusal::Refusal;

/// Serves accepted connections.
pub(super) struct Front {
    /// Handles each request.
    pub requests: Arc<RequestHandler>,
    /// What all requests share.
    pub shared: Arc<Shared>,
}

#[async_trait]
impl listener::Front for Front {
    async fn serve(&self, connection: Connection, end: Drain) {
        if connection.is_http2() {
            self.serve_http2(connection, end).await;
        } else {
            self.serve_http1(connection, end).await;
        }
    }
}

impl Front {
    async fn serve_http1(&self, connection: Connection, end: Drain) {
        let shared = &self.shared;
        let bounds = {
            let server = &shared.active.load().settings.server;
            Http1Bounds {
                head_timeout: server.head_timeout,
                head_bytes_max: server.caps.head_bytes_max,
                idle_timeout: server.idle_timeout,
                requests_max: server.caps.requests_per_connection_max,
            }
        };
        let upload = Upload::new(shared.clock.clone());
        let http1 = Http1 {
            handler: self.requests.clone(),
            upload: upload.clone(),
            close_idle: end.close_idle,
            close_tunnels: end.close_tunnels,
        };
        upload.within(http1::serve(http1, connection, bounds)).await;
    }

    async fn serve_http2(&self, connection: Connection, end: Drain) {
        let shared = &self.shared;
        let bounds = {
            let server = &shared.active.load().settings.server;
            Http2Bounds {
                preface_timeout: server.head_timeout,
                idle_timeout: server.idle_timeout,
                goaway_wait: GOAWAY_WAIT,
                head_bytes_max: server.caps.head_bytes_max,
                requests_max: server.caps.requests_per_connection_max,
                streams_max: server.caps.streams_max,
                per_address_max: server.caps.connections_per_address_max,
            }
        };
        let reason = Refusal::Malformed(Malformed::HostForm).reason();
        let http2 = Http2 {
            handler: self.requests.clone(),
            client: connection.client().clone(),
            open: connection.open(),
            clock: shared.clock.clone(),
            rejected: shared.metrics.refusals.with_label_values(&[reason]),
            waiting: shared.metrics.requests_waiting.clone(),
        };
        http2::serve(http2, Box::new(connection), bounds, end.close_after_response).await;
    }
}
