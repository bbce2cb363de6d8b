//! A Pingora session whose request body we supply: buffered, or read with a timeout.
//!
//! Pingora has no timeout for the body of an HTTP/2 request, and replays at most 64 KiB of a body
//! that was read before an upstream is called. Both need a wrapper around the real session, to
//! which everything but the body is passed on.
//!
//! # Invariants
//!
//! 1. A buffered body is returned whole, once, and again to every retry.
//! 2. A client that has to send or to read, and does not, is waited for until its timeout and no
//!    longer.
//!
//! # Not here
//!
//! When a body is buffered (`buffering`), and when a session is paced (`http2`).

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
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

use crate::config::shared::Shared;
use crate::request::upload::Upload;

/// How much of a response is written within one write timeout: a DATA frame of the usual size.
const PIECE_BYTES: usize = 16 * 1024;

/// Receives the real session when its wrapper is dropped.
pub type Slot = Arc<Mutex<Option<Box<ServerSession>>>>;

/// Where a session's request body comes from.
enum Body {
    /// From the client, with a timeout.
    Paced {
        /// The timeout of each piece.
        piece_timeout: Option<Duration>,
        /// Tracks whether the client is waited for.
        upload: Arc<Upload>,
    },
    /// It has been read already.
    Buffered {
        /// All of it.
        whole: Bytes,
        /// Whether it has been returned.
        sent: bool,
    },
}

/// A session whose request body we supply.
pub struct SessionOverride {
    /// `Some` until dropped.
    real: Option<Box<ServerSession>>,
    body: Body,
    /// Receives the real session on drop, where it is needed again.
    slot: Option<Slot>,
    /// Shows whether a stop has started, which Pingora does not pass on to a custom session.
    shared: Option<Arc<Shared>>,
}

impl SessionOverride {
    /// Wraps `real`, each piece of whose body must arrive within the read timeout.
    #[must_use]
    pub fn paced(real: ServerSession, upload: Arc<Upload>) -> ServerSession {
        Self::session(real, Body::Paced { piece_timeout: None, upload }, None, None)
    }

    /// Wraps `real` with `body` as the body of its request; dropping puts `real` into `slot`.
    #[must_use]
    pub fn buffered(
        real: ServerSession,
        body: Bytes,
        slot: Slot,
        shared: Arc<Shared>,
    ) -> ServerSession {
        let sent = body.is_empty();
        Self::session(real, Body::Buffered { whole: body, sent }, Some(slot), Some(shared))
    }

    fn session(
        real: ServerSession,
        body: Body,
        slot: Option<Slot>,
        shared: Option<Arc<Shared>>,
    ) -> ServerSession {
        ServerSession::new_custom(Box::new(Self { real: Some(Box::new(real)), body, slot, shared }))
    }

    /// The real session, to write a response head; during a stop the connection then closes.
    fn answering(&mut self) -> &mut ServerSession {
        if self.shared.as_ref().is_some_and(|shared| !shared.ready.load(Ordering::Relaxed)) {
            self.real_mut().set_keepalive(None);
        }
        self.real_mut()
    }

    fn real(&self) -> &ServerSession {
        self.real.as_deref().expect("the session is there until this is dropped")
    }

    fn real_mut(&mut self) -> &mut ServerSession {
        self.real.as_deref_mut().expect("the session is there until this is dropped")
    }
}

impl Drop for SessionOverride {
    fn drop(&mut self) {
        if let Some(slot) = &self.slot {
            *slot.lock().unwrap_or_else(PoisonError::into_inner) = self.real.take();
        }
    }
}

#[async_trait]
impl CustomSession for SessionOverride {
    async fn read_body_bytes(&mut self) -> Result<Option<Bytes>> {
        match &mut self.body {
            Body::Buffered { sent: true, .. } => Ok(None),
            Body::Buffered { whole, sent } => {
                *sent = true;
                Ok(Some(whole.clone()))
            }
            Body::Paced { piece_timeout, upload } => {
                let (piece_timeout, upload) = (*piece_timeout, upload.clone());
                upload.awaited();
                let read = self.real_mut().read_request_body();
                let read = match piece_timeout {
                    None => read.await,
                    Some(piece_timeout) => tokio::time::timeout(piece_timeout, read)
                        .await
                        .unwrap_or_else(|_| is_late()),
                };
                upload.received();
                read.map_err(|error| error.into_down())
            }
        }
    }

    async fn read_body_or_idle(&mut self, no_body_expected: bool) -> Result<Option<Bytes>> {
        if no_body_expected || self.is_body_done() {
            // The body has ended, so this returns when the client disconnects.
            return self.real_mut().read_body_or_idle(true).await;
        }
        self.read_body_bytes().await
    }

    async fn drain_request_body(&mut self) -> Result<()> {
        match &mut self.body {
            Body::Buffered { sent, .. } => *sent = true,
            Body::Paced { .. } => return self.real_mut().drain_request_body().await,
        }
        Ok(())
    }

    fn is_body_done(&mut self) -> bool {
        match &self.body {
            Body::Buffered { sent, .. } => *sent,
            Body::Paced { .. } => self.real_mut().is_body_done(),
        }
    }

    fn is_body_empty(&mut self) -> bool {
        match &self.body {
            Body::Buffered { whole, .. } => whole.is_empty(),
            Body::Paced { .. } => self.real_mut().is_body_empty(),
        }
    }

    // A retry replays a buffered body of any size.

    fn enable_retry_buffering(&mut self) {
        if let Body::Paced { .. } = self.body {
            self.real_mut().enable_retry_buffering();
        }
    }

    fn retry_buffer_truncated(&self) -> bool {
        match self.body {
            Body::Buffered { .. } => false,
            Body::Paced { .. } => self.real().retry_buffer_truncated(),
        }
    }

    fn get_retry_buffer(&self) -> Option<Bytes> {
        match &self.body {
            Body::Buffered { whole, sent } => (*sent && !whole.is_empty()).then(|| whole.clone()),
            Body::Paced { .. } => self.real().get_retry_buffer(),
        }
    }

    fn set_read_timeout(&mut self, timeout: Option<Duration>) {
        if let Body::Paced { piece_timeout, .. } = &mut self.body {
            *piece_timeout = timeout;
        }
        self.real_mut().set_read_timeout(timeout);
    }

    async fn response_duplex_vec(&mut self, tasks: Vec<HttpTask>) -> Result<bool> {
        let tasks = match self.body {
            Body::Buffered { .. } => tasks,
            Body::Paced { .. } => in_pieces(tasks),
        };
        self.answering().response_duplex_vec(tasks).await
    }

    // Everything else is passed on to the real session.

    fn req_header(&self) -> &RequestHeader {
        self.real().req_header()
    }

    fn req_header_mut(&mut self) -> &mut RequestHeader {
        self.real_mut().req_header_mut()
    }

    async fn write_response_header(&mut self, head: Box<ResponseHeader>, _end: bool) -> Result<()> {
        self.answering().write_response_header(head).await
    }

    async fn write_response_header_ref(&mut self, head: &ResponseHeader, _end: bool) -> Result<()> {
        self.answering().write_response_header_ref(head).await
    }

    async fn write_body(&mut self, data: Bytes, end: bool) -> Result<()> {
        self.real_mut().write_response_body(data, end).await
    }

    async fn write_trailers(&mut self, trailers: HeaderMap) -> Result<()> {
        self.real_mut().write_response_trailers(trailers).await
    }

    fn get_read_timeout(&self) -> Option<Duration> {
        self.real().get_read_timeout()
    }

    fn set_write_timeout(&mut self, timeout: Option<Duration>) {
        self.real_mut().set_write_timeout(timeout);
    }

    fn get_write_timeout(&self) -> Option<Duration> {
        self.real().get_write_timeout()
    }

    fn set_total_drain_timeout(&mut self, timeout: Option<Duration>) {
        self.real_mut().set_total_drain_timeout(timeout);
    }

    fn get_total_drain_timeout(&self) -> Option<Duration> {
        self.real().get_total_drain_timeout()
    }

    fn request_summary(&self) -> String {
        self.real().request_summary()
    }

    fn response_written(&self) -> Option<&ResponseHeader> {
        self.real().response_written()
    }

    async fn shutdown(&mut self, _code: u32, _context: &str) {
        self.real_mut().shutdown().await;
    }

    async fn finish(&mut self) -> Result<()> {
        self.real_mut().finish_body().await
    }

    async fn finish_custom(&mut self) -> Result<()> {
        Ok(())
    }

    fn body_bytes_sent(&self) -> usize {
        self.real().body_bytes_sent()
    }

    fn body_bytes_read(&self) -> usize {
        self.real().body_bytes_read()
    }

    fn digest(&self) -> Option<&Digest> {
        self.real().digest()
    }

    fn digest_mut(&mut self) -> Option<&mut Digest> {
        self.real_mut().digest_mut()
    }

    fn client_addr(&self) -> Option<&SocketAddr> {
        self.real().client_addr()
    }

    fn server_addr(&self) -> Option<&SocketAddr> {
        self.real().server_addr()
    }

    fn pseudo_raw_h1_request_header(&self) -> Bytes {
        self.real().to_h1_raw()
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
type Messages = Box<dyn futures_core::Stream<Item = Result<Bytes>> + Unpin + Send + Sync + 'static>;

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

fn no_messages() -> Result<()> {
    Error::e_explain(ErrorType::InternalError, "HTTP has no custom messages")
}
