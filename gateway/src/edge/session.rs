//! A Pingora session of an HTTP/2 request, whose body is read with a timeout, or was read before.
//!
//! Pingora has no timeout for the body of an HTTP/2 request, and replays at most 64 KiB of a body
//! that was read before an upstream is called. Both need a wrapper around the real session, to
//! which everything but the body is passed on.
//!
//! # Invariants
//!
//! 1. A body that was read before is returned whole, once, and again to every retry.
//! 2. A client that has to send or to read, and does not, is waited for until its timeout and no
//!    longer.
//!
//! # Not here
//!
//! When a body is buffered (`buffering`), HTTP/1 (`http1::session`).

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use http::HeaderMap;
use pingora_core::protocols::Digest;
use pingora_core::protocols::http::custom::CustomMessageWrite;
use pingora_core::protocols::http::custom::server::Session as CustomSession;
use pingora_core::protocols::http::{HttpTask, ServerSession};
use pingora_core::protocols::l4::socket::SocketAddr;
use pingora_core::{Error, ErrorType, Result};
use pingora_http::{RequestHeader, ResponseHeader};

use crate::edge::exchange::{Exchange, Replay};
use crate::request::upload::Upload;

/// How much of a response is written within one write timeout: a DATA frame of the usual size.
const PIECE_BYTES: usize = 16 * 1024;

/// An HTTP/2 session whose request body we supply.
pub struct SessionOverride {
    real: ServerSession,
    exchange: Arc<Exchange>,
    replay: Replay,
    /// The timeout of each piece of the body.
    piece_timeout: Option<Duration>,
    /// Tracks whether the client is waited for.
    upload: Arc<Upload>,
}

impl SessionOverride {
    /// Wraps `real`, each piece of whose body must arrive within the read timeout.
    #[must_use]
    pub fn wrap(
        real: ServerSession,
        upload: Arc<Upload>,
        exchange: Arc<Exchange>,
    ) -> ServerSession {
        let replay = Replay::default();
        let session = Self { real, exchange, replay, piece_timeout: None, upload };
        ServerSession::new_custom(Box::new(session))
    }

    fn replayed(&self) -> Option<&Bytes> {
        Replay::body(&self.exchange)
    }
}

#[async_trait]
impl CustomSession for SessionOverride {
    async fn read_body_bytes(&mut self) -> Result<Option<Bytes>> {
        if let Some(body) = Replay::body(&self.exchange) {
            return Ok(self.replay.next(body));
        }
        self.upload.awaited();
        let read = self.real.read_request_body();
        let read = match self.piece_timeout {
            None => read.await,
            Some(piece_timeout) => {
                tokio::time::timeout(piece_timeout, read).await.unwrap_or_else(|_| is_late())
            }
        };
        self.upload.received();
        read.map_err(|error| error.into_down())
    }

    async fn read_body_or_idle(&mut self, no_body_expected: bool) -> Result<Option<Bytes>> {
        if no_body_expected || self.is_body_done() {
            // The body has ended, so this returns when the client disconnects.
            return self.real.read_body_or_idle(true).await;
        }
        self.read_body_bytes().await
    }

    async fn drain_request_body(&mut self) -> Result<()> {
        if self.replayed().is_none() {
            return self.real.drain_request_body().await;
        }
        self.replay.discard();
        Ok(())
    }

    fn is_body_done(&mut self) -> bool {
        match Replay::body(&self.exchange) {
            Some(body) => self.replay.is_over(body),
            None => self.real.is_body_done(),
        }
    }

    fn is_body_empty(&mut self) -> bool {
        match Replay::body(&self.exchange) {
            Some(body) => body.is_empty(),
            None => self.real.is_body_empty(),
        }
    }

    // A retry replays a buffered body of any size.

    fn enable_retry_buffering(&mut self) {
        if self.replayed().is_none() {
            self.real.enable_retry_buffering();
        }
    }

    fn retry_buffer_truncated(&self) -> bool {
        self.replayed().is_none() && self.real.retry_buffer_truncated()
    }

    fn get_retry_buffer(&self) -> Option<Bytes> {
        match self.replayed() {
            Some(body) => self.replay.again(body),
            None => self.real.get_retry_buffer(),
        }
    }

    fn set_read_timeout(&mut self, timeout: Option<Duration>) {
        self.piece_timeout = timeout;
        self.real.set_read_timeout(timeout);
    }

    async fn response_duplex_vec(&mut self, tasks: Vec<HttpTask>) -> Result<bool> {
        self.real.response_duplex_vec(in_pieces(tasks)).await
    }

    // Everything else is passed on to the real session.

    fn req_header(&self) -> &RequestHeader {
        self.real.req_header()
    }

    fn req_header_mut(&mut self) -> &mut RequestHeader {
        self.real.req_header_mut()
    }

    async fn write_response_header(&mut self, head: Box<ResponseHeader>, _end: bool) -> Result<()> {
        self.real.write_response_header(head).await
    }

    async fn write_response_header_ref(&mut self, head: &ResponseHeader, _end: bool) -> Result<()> {
        self.real.write_response_header_ref(head).await
    }

    async fn write_body(&mut self, data: Bytes, end: bool) -> Result<()> {
        self.real.write_response_body(data, end).await
    }

    async fn write_trailers(&mut self, trailers: HeaderMap) -> Result<()> {
        self.real.write_response_trailers(trailers).await
    }

    fn get_read_timeout(&self) -> Option<Duration> {
        self.real.get_read_timeout()
    }

    fn set_write_timeout(&mut self, timeout: Option<Duration>) {
        self.real.set_write_timeout(timeout);
    }

    fn get_write_timeout(&self) -> Option<Duration> {
        self.real.get_write_timeout()
    }

    fn set_total_drain_timeout(&mut self, timeout: Option<Duration>) {
        self.real.set_total_drain_timeout(timeout);
    }

    fn get_total_drain_timeout(&self) -> Option<Duration> {
        self.real.get_total_drain_timeout()
    }

    fn request_summary(&self) -> String {
        self.real.request_summary()
    }

    fn response_written(&self) -> Option<&ResponseHeader> {
        self.real.response_written()
    }

    async fn shutdown(&mut self, _code: u32, _context: &str) {
        self.real.shutdown().await;
    }

    async fn finish(&mut self) -> Result<()> {
        self.real.finish_body().await
    }

    async fn finish_custom(&mut self) -> Result<()> {
        Ok(())
    }

    fn body_bytes_sent(&self) -> usize {
        self.real.body_bytes_sent()
    }

    fn body_bytes_read(&self) -> usize {
        self.real.body_bytes_read()
    }

    fn digest(&self) -> Option<&Digest> {
        self.real.digest()
    }

    fn digest_mut(&mut self) -> Option<&mut Digest> {
        self.real.digest_mut()
    }

    fn client_addr(&self) -> Option<&SocketAddr> {
        self.real.client_addr()
    }

    fn server_addr(&self) -> Option<&SocketAddr> {
        self.real.server_addr()
    }

    fn pseudo_raw_h1_request_header(&self) -> Bytes {
        self.real.to_h1_raw()
    }

    fn take_custom_message_reader(&mut self) -> Option<Messages> {
        None
    }

    fn restore_custom_message_reader(&mut self, _reader: Messages) -> Result<()> {
        no_messages()
    }

    fn take_custom_message_writer(&mut self) -> Option<Box<dyn CustomMessageWrite>> {
        None
    }

    fn restore_custom_message_writer(
        &mut self,
        _writer: Box<dyn CustomMessageWrite>,
    ) -> Result<()> {
        no_messages()
    }
}

/// Messages of a custom protocol, which HTTP does not have, but the trait requires.
pub(super) type Messages =
    Box<dyn futures_core::Stream<Item = Result<Bytes>> + Unpin + Send + Sync + 'static>;

fn is_late() -> Result<Option<Bytes>> {
    Error::e_explain(ErrorType::ReadTimedout, "the body did not come")
}

/// Cuts bodies into pieces with a write timeout each, so that a client that reads slowly is not
/// closed as one that has stopped reading.
fn in_pieces(tasks: Vec<HttpTask>) -> Vec<HttpTask> {
    let is_long =
        |task: &HttpTask| matches!(task, HttpTask::Body(Some(data), _) if data.len() > PIECE_BYTES);
    if !tasks.iter().any(is_long) {
        return tasks;
    }
    let mut cut = Vec::with_capacity(tasks.len() * 2);
    for task in tasks {
        match task {
            HttpTask::Body(Some(mut data), end) => {
                while data.len() > PIECE_BYTES {
                    cut.push(HttpTask::Body(Some(data.split_to(PIECE_BYTES)), false));
                }
                cut.push(HttpTask::Body(Some(data), end));
            }
            task => cut.push(task),
        }
    }
    cut
}

pub(super) fn no_messages() -> Result<()> {
    Error::e_explain(ErrorType::InternalError, "HTTP has no custom messages")
}
