//! Holds a batch's body back until it is counted, then plays it to the upstream.
//!
//! Pingora writes the head upstream before it shows us the first byte of a body, and replays no
//! more than 64 KiB. So the body is read first, and the session is wrapped in one whose body is
//! what was read; once the request is over the real session comes back, connection and all.
//!
//! # Invariants
//!
//! 1. An upstream sees no byte, not even a connection, of a body that is refused.
//! 2. The real session comes back, however the request ends.
//!
//! # Not here
//!
//! Reading a body (`body`), counting (`batch`), whether one is held at all (`rules`).

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

use crate::parts::Parts;

/// Where the real session comes back to.
pub type Slot = Arc<Mutex<Option<Box<ServerSession>>>>;

/// Wraps `session` in one whose body is `body`. [`unwrap`] gives it back.
pub fn wrap(session: &mut ServerSession, body: Bytes, parts: &Arc<Parts>) -> Slot {
    let slot = Slot::default();
    let real = std::mem::replace(session, ServerSession::new_custom(Box::new(())));
    let (parts, sent) = (parts.clone(), body.is_empty());
    let replay = Replay { real: Some(Box::new(real)), sent, body, parts, slot: slot.clone() };
    *session = ServerSession::new_custom(Box::new(replay));
    slot
}

/// Puts the real session back in the place of the one that [`wrap`] made.
pub fn unwrap(session: &mut ServerSession, slot: &Slot) {
    // Dropping the wrapper is what hands the real one over.
    *session = ServerSession::new_custom(Box::new(()));
    if let Some(real) = slot.lock().unwrap_or_else(PoisonError::into_inner).take() {
        *session = *real;
    }
}

/// A session whose request body has been read already.
struct Replay {
    /// There until dropped.
    real: Option<Box<ServerSession>>,
    body: Bytes,
    sent: bool,
    parts: Arc<Parts>,
    slot: Slot,
}

impl Replay {
    fn real(&self) -> &ServerSession {
        self.real.as_deref().expect("the session is there until this is dropped")
    }

    fn real_mut(&mut self) -> &mut ServerSession {
        self.real.as_deref_mut().expect("the session is there until this is dropped")
    }

    /// The session, about to answer. Pingora keeps from it that a stop has begun.
    fn answering(&mut self) -> &mut ServerSession {
        if !self.parts.ready.load(Ordering::Relaxed) {
            self.real_mut().set_keepalive(None);
        }
        self.real_mut()
    }
}

impl Drop for Replay {
    fn drop(&mut self) {
        *self.slot.lock().unwrap_or_else(PoisonError::into_inner) = self.real.take();
    }
}

#[async_trait]
impl CustomSession for Replay {
    async fn read_body_bytes(&mut self) -> Result<Option<Bytes>> {
        if self.sent {
            return Ok(None);
        }
        self.sent = true;
        Ok(Some(self.body.clone()))
    }

    async fn read_body_or_idle(&mut self, no_body_expected: bool) -> Result<Option<Bytes>> {
        if no_body_expected || self.sent {
            // Nothing more is to come, and so this tells when the client hangs up.
            return self.real_mut().read_body_or_idle(true).await;
        }
        self.read_body_bytes().await
    }

    async fn drain_request_body(&mut self) -> Result<()> {
        self.sent = true;
        Ok(())
    }

    fn is_body_done(&mut self) -> bool {
        self.sent
    }

    fn is_body_empty(&mut self) -> bool {
        self.body.is_empty()
    }

    // The whole body is at hand: a retry replays it at any size.
    fn enable_retry_buffering(&mut self) {}

    fn retry_buffer_truncated(&self) -> bool {
        false
    }

    fn get_retry_buffer(&self) -> Option<Bytes> {
        (self.sent && !self.body.is_empty()).then(|| self.body.clone())
    }

    // The rest is the real session's.

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

    async fn response_duplex_vec(&mut self, tasks: Vec<HttpTask>) -> Result<bool> {
        self.answering().response_duplex_vec(tasks).await
    }

    fn set_read_timeout(&mut self, timeout: Option<Duration>) {
        self.real_mut().set_read_timeout(timeout);
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

/// Messages of a protocol that is not ours; the trait wants them all the same.
type Messages = Box<dyn futures_core::Stream<Item = Result<Bytes>> + Unpin + Send + Sync + 'static>;

fn no_messages() -> Result<()> {
    Error::e_explain(ErrorType::InternalError, "HTTP has no custom messages")
}
