//! Holds a batch's body back until it is counted, then plays it to the upstream.
//!
//! Pingora writes the head upstream before it shows us the first byte of a body, and replays no
//! more than 64 KiB. So the body is read first, and the session is wrapped in one whose body is
//! what was read; once the request is over the real session comes back, connection and all.
//!
//! # Invariants
//!
//! 1. An upstream sees no byte, not even a connection, of a body that is refused.
//! 2. What all held bodies take together has a limit.
//!
//! # Not here
//!
//! Counting (`batch`), whether a body is held at all (`rules`).

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use bytes::{Bytes, BytesMut};
use http::HeaderMap;
use pingora_core::protocols::Digest;
use pingora_core::protocols::http::custom::CustomMessageWrite;
use pingora_core::protocols::http::custom::server::Session as CustomSession;
use pingora_core::protocols::http::{HttpTask, ServerSession};
use pingora_core::protocols::l4::socket::SocketAddr;
use pingora_core::{Error, ErrorType, Result};
use pingora_http::{RequestHeader, ResponseHeader};

use crate::refuse::Refusal;

/// The room that held bodies share, and what is taken of it.
#[derive(Debug, Default)]
pub struct Room {
    taken: AtomicU64,
}

/// Some of the room, given back when dropped.
#[derive(Debug)]
pub struct Taken {
    room: Arc<Room>,
    bytes: u64,
}

impl Taken {
    /// Takes `bytes` more, unless the whole would then be more than `bytes_max`.
    fn take(&mut self, bytes: u64, bytes_max: u64) -> bool {
        let fits = |taken: u64| Some(taken + bytes).filter(|taken| *taken <= bytes_max);
        let fits = self.room.taken.try_update(Ordering::Relaxed, Ordering::Relaxed, fits).is_ok();
        self.bytes += if fits { bytes } else { 0 };
        fits
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        self.room.taken.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// How a body may be read.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Bytes of this body.
    pub bytes_max: u64,
    /// Bytes of all bodies held.
    pub held_bytes_max: u64,
    /// Between two reads.
    pub timeout: Duration,
}

/// A body that was read.
#[derive(Debug)]
pub struct Held {
    /// All of it.
    pub body: Bytes,
    /// The room it takes.
    pub taken: Taken,
}

/// Why a body was not read.
#[derive(Debug)]
pub enum Unread {
    /// We say no.
    Refused(Refusal),
    /// The client is gone, or what it sends is no body.
    Broken(Box<Error>),
}

/// Reads a whole body.
pub async fn read(
    session: &mut ServerSession,
    room: &Arc<Room>,
    limits: Limits,
) -> Result<Held, Unread> {
    let too_large = || Unread::Refused(Refusal::BodyTooLarge { bytes_max: limits.bytes_max });
    if announced(session).is_some_and(|bytes| bytes > limits.bytes_max) {
        return Err(too_large());
    }
    invite_body(session).await.map_err(Unread::Broken)?;
    // Room is taken as bytes come: what is only announced must not crowd out what is there.
    let mut taken = Taken { room: room.clone(), bytes: 0 };
    let mut body = BytesMut::new();
    loop {
        // HTTP/2 sessions have no deadline of their own for a body.
        let read = tokio::time::timeout(limits.timeout, session.read_request_body()).await;
        let Ok(read) = read else { return Err(Unread::Refused(Refusal::BodyTimeout)) };
        match read {
            Ok(Some(chunk)) => {
                if (body.len() + chunk.len()) as u64 > limits.bytes_max {
                    return Err(too_large());
                }
                if !taken.take(chunk.len() as u64, limits.held_bytes_max) {
                    return Err(Unread::Refused(Refusal::Busy));
                }
                body.extend_from_slice(&chunk);
            }
            Ok(None) => return Ok(Held { body: body.freeze(), taken }),
            Err(error) if *error.etype() == ErrorType::ReadTimedout => {
                return Err(Unread::Refused(Refusal::BodyTimeout));
            }
            Err(error) => return Err(Unread::Broken(error)),
        }
    }
}

/// Tells a client that waits for it to send its body: nobody else will, for the upstream is asked
/// only once the body is here.
async fn invite_body(session: &mut ServerSession) -> Result<()> {
    let expect = session.req_header().headers.get(http::header::EXPECT);
    if expect.is_some_and(|expect| expect.as_bytes().eq_ignore_ascii_case(b"100-continue")) {
        session.write_continue_response().await?;
        // Pingora takes this for an answer before the end of the body, and would close.
        session.set_keepalive(Some(0));
    }
    Ok(())
}

/// The `Content-Length`, where there is one.
fn announced(session: &ServerSession) -> Option<u64> {
    let value = session.req_header().headers.get(http::header::CONTENT_LENGTH)?;
    value.to_str().ok()?.trim().parse().ok()
}

/// Where the real session comes back to.
pub type Slot = Arc<Mutex<Option<Box<ServerSession>>>>;

/// Wraps `session` in one whose body is `body`. [`unwrap`] gives it back.
pub fn wrap(session: &mut ServerSession, body: Bytes) -> Slot {
    let slot = Slot::default();
    let real = std::mem::replace(session, ServerSession::new_custom(Box::new(())));
    let replay =
        Replay { real: Some(Box::new(real)), sent: body.is_empty(), body, slot: slot.clone() };
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
    slot: Slot,
}

impl Replay {
    fn real(&self) -> &ServerSession {
        self.real.as_deref().expect("the session is there until this is dropped")
    }

    fn real_mut(&mut self) -> &mut ServerSession {
        self.real.as_deref_mut().expect("the session is there until this is dropped")
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
        self.real_mut().write_response_header(head).await
    }

    async fn write_response_header_ref(&mut self, head: &ResponseHeader, _end: bool) -> Result<()> {
        self.real_mut().write_response_header_ref(head).await
    }

    async fn write_body(&mut self, data: Bytes, end: bool) -> Result<()> {
        self.real_mut().write_response_body(data, end).await
    }

    async fn write_trailers(&mut self, trailers: HeaderMap) -> Result<()> {
        self.real_mut().write_response_trailers(trailers).await
    }

    async fn response_duplex_vec(&mut self, tasks: Vec<HttpTask>) -> Result<bool> {
        self.real_mut().response_duplex_vec(tasks).await
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn held_bodies_share_their_room_and_give_it_back() {
        let room = Arc::new(Room::default());
        let taken = || Taken { room: room.clone(), bytes: 0 };
        let (mut first, mut second) = (taken(), taken());
        assert!(first.take(60, 100));
        assert!(!second.take(41, 100));
        assert!(second.take(40, 100));
        drop((first, second));
        assert!(taken().take(100, 100));
    }
}
