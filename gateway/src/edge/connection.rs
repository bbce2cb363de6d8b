//! One client's connection, as Pingora reads and writes it.
//!
//! Pingora has no deadline for a whole request head, keeps an idle connection forever, repairs a
//! malformed request line, accepts malformed chunked bodies, and answers what it cannot parse
//! with a response of its own. All five are fixed here, below it, where every byte passes.
//!
//! # Invariants
//!
//! 1. A head that is incomplete at its deadline, or exceeds its cap, is answered, and the
//!    connection closes. It closes without a response when idle for too long, and when the client
//!    does not read pending bytes, whether ours or buffered by TLS.
//! 2. A response head is buffered until the first bytes of its body, a flush, or a read that would
//!    wait: head and body go out in one write.
//! 3. Lines that we add are put into a response head once, as text: a fifth of the cost of a
//!    header map (docs/performance.md).
//!
//! # Not here
//!
//! Accepting connections (`listener`), deadlines of request bodies (Pingora's, set in `proxy`).

mod chunks;
pub mod deadlines;
mod flush;
mod frames;
mod lingering_close;
mod pingora;
pub mod request_line;
mod response_head;
pub mod socket;
mod tunnel;

use std::any::Any;
use std::io;
use std::net::SocketAddr;
use std::os::fd::AsRawFd;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use pingora_core::protocols::http::v1::server::HttpSession;
use pingora_core::protocols::l4::socket::SocketAddr as PingoraAddress;
use pingora_core::protocols::{SocketDigest, Stream};
use prometheus::IntCounterVec;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::watch;
use tokio::time::Sleep;
use weir_common::time::{Clock, Tick};

use crate::edge::connection::chunks::Chunks;
use crate::edge::connection::deadlines::{Allowance, Silence};
use crate::edge::connection::lingering_close::LingeringClose;
use crate::edge::connection::request_line::{Head, Phase};
use crate::edge::connection::response_head::PendingResponse;
use crate::edge::connection::socket::{Handshaken, Socket};
use crate::request::upload::Upload;
use crate::response::refusal::Refusal;

/// A connection.
pub struct Connection {
    socket: Socket,
    /// On HTTP/2 only writes are timed here; the other bounds are in `http2`.
    is_http2: bool,
    /// A byte of the next request that a probe has read.
    probed: Option<u8>,
    peer: SocketAddr,
    digest: Arc<SocketDigest>,
    clock: Clock,
    allowance: Allowance,
    /// Counts what is refused before Pingora has a request.
    refusals: IntCounterVec,
    phase: AtomicU8,
    /// When the connection became idle: `Phase::Idle` is timed from here.
    idle_from: AtomicU64,
    head: Head,
    /// The last bytes read of a head, and perhaps beyond its end.
    early: Vec<u8>,
    chunks: Mutex<Chunks>,
    silence: Silence,
    /// The body of the request in progress.
    upload: Arc<Upload>,
    /// Whether the request line had bytes that Pingora repairs silently.
    repaired: AtomicBool,
    /// Bytes to send before any others: a head that waits for its body, or a whole response.
    outgoing: Vec<u8>,
    /// What `proxy` adds to a response; a mutex, since `proxy` has only a shared reference.
    pending: Mutex<PendingResponse>,
    /// The last response, sent before we close the connection; empty once it is in `outgoing`.
    final_response: Option<Vec<u8>>,
    /// Since when bytes are pending and the client has read none.
    stalled_from: Option<Tick>,
    /// `Socket::taken` at the last write.
    taken: u64,
    alarm: Option<(Tick, Pin<Box<Sleep>>)>,
    /// Turns true when tunnels have to close.
    going: watch::Receiver<bool>,
    /// Requests so far, the one in progress included.
    requests: AtomicU32,
    /// The value of `Client-Cert`, where the client has sent a certificate.
    client_certificate: Option<Arc<str>>,
    _permits: Box<dyn Any + Send + Sync>,
}

impl Connection {
    /// A connection whose handshakes are complete.
    pub fn new(
        handshaken: Handshaken,
        clock: Clock,
        allowance: Allowance,
        refusals: IntCounterVec,
        going: watch::Receiver<bool>,
    ) -> Self {
        let Handshaken { socket, peer, permits } = handshaken;
        let digest = SocketDigest::from_raw_fd(socket.as_raw_fd());
        // The cell is empty: it was made in the line above.
        let _ = digest.peer_addr.set(Some(PingoraAddress::Inet(peer)));
        let idle_from = AtomicU64::new(clock.now().tick.0);
        let linger = socket.speaks_http2().then(LingeringClose::briefly);
        let pending = PendingResponse { linger, ..PendingResponse::default() };
        Self {
            is_http2: socket.speaks_http2(),
            client_certificate: socket.client_certificate(),
            upload: Upload::new(clock.clone()),
            requests: AtomicU32::new(0),
            socket,
            probed: None,
            peer,
            digest: Arc::new(digest),
            clock,
            allowance,
            refusals,
            phase: AtomicU8::new(Phase::Idle as u8),
            idle_from,
            head: Head::default(),
            early: Vec::new(),
            chunks: Mutex::default(),
            silence: Silence::default(),
            repaired: AtomicBool::new(false),
            outgoing: Vec::new(),
            pending: Mutex::new(pending),
            final_response: None,
            stalled_from: None,
            taken: 0,
            alarm: None,
            going,
            _permits: permits,
        }
    }

    /// The connection below a Pingora session; an HTTP/2 request has no access to its own.
    #[must_use]
    pub fn of(stream: Option<&Stream>) -> Option<&Self> {
        stream.and_then(|stream| stream.as_any().downcast_ref())
    }

    /// The client's address: the socket's, or that in a PROXY header.
    #[must_use]
    pub fn peer(&self) -> SocketAddr {
        self.peer
    }

    /// Whether the client chose HTTP/2.
    #[must_use]
    pub fn is_http2(&self) -> bool {
        self.is_http2
    }

    /// Whether it is TLS.
    #[must_use]
    pub fn is_secure(&self) -> bool {
        self.socket.is_secure()
    }

    /// The client's certificate as the value of `Client-Cert` (RFC 9440), where it has sent one.
    #[must_use]
    pub fn client_certificate(&self) -> Option<&Arc<str>> {
        self.client_certificate.as_ref()
    }

    /// The number of requests so far, the one in progress included.
    #[must_use]
    pub fn requests(&self) -> u32 {
        self.requests.load(Ordering::Relaxed)
    }

    /// The body of the request in progress; each request of the connection reuses it.
    #[must_use]
    pub fn upload(&self) -> &Arc<Upload> {
        &self.upload
    }

    /// Whether Pingora has repaired the request line.
    #[must_use]
    pub fn was_repaired(&self) -> bool {
        self.repaired.load(Ordering::Relaxed)
    }

    /// Records that Pingora has read the head of `session`.
    pub fn head_is_read(&self, session: Option<&HttpSession>) {
        session.into_iter().for_each(|session| self.watch_body(session));
        self.phase.store(Phase::Request as u8, Ordering::Relaxed);
        self.requests.fetch_add(1, Ordering::Relaxed);
        let mut pending = self.pending();
        pending.awaits_head = true;
        pending.lines.clear();
    }

    /// Adds header lines, each with its line end, to the head of this request's response.
    pub fn add_lines(&self, lines: &[u8]) {
        self.pending().lines.extend_from_slice(lines);
    }

    /// Queues a whole response to this request, in place of one by Pingora.
    pub fn answer(&self, answer: Vec<u8>) {
        let mut pending = self.pending();
        // A response whose head is written cannot be replaced.
        if std::mem::take(&mut pending.awaits_head) {
            pending.answer = answer;
        }
    }

    fn pending(&self) -> MutexGuard<'_, PendingResponse> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends the current request once no byte has passed in either direction for `max`, counted
    /// from `now`.
    pub fn set_silence_max(&self, max: Duration, now: Tick) {
        self.silence.allow(max, now);
    }

    /// Whether that maximum of silence was exceeded.
    #[must_use]
    pub fn was_silent(&self) -> bool {
        self.silence.is_exceeded()
    }

    /// Records that the request ended at `now`.
    pub fn request_is_over(&self, now: Tick) {
        self.idle_from.store(now.0, Ordering::Relaxed);
        self.silence.allow(Duration::ZERO, now);
        self.repaired.store(false, Ordering::Relaxed);
        self.phase.store(Phase::Idle as u8, Ordering::Relaxed);
    }

    fn phase(&self) -> Phase {
        Phase::of(self.phase.load(Ordering::Relaxed))
    }

    /// Records bytes that have just been read.
    fn note(&mut self, bytes: &[u8]) {
        if self.phase() == Phase::Request {
            self.upload.received();
        }
        if self.phase() == Phase::Request || bytes.is_empty() {
            self.chunks.get_mut().unwrap_or_else(PoisonError::into_inner).read(bytes);
            return self.note_passage();
        }
        self.early = bytes.to_vec();
        if self.phase() == Phase::Idle {
            self.head = Head::default();
            self.phase.store(Phase::Head as u8, Ordering::Relaxed);
        }
        if self.head.has_oddities(bytes) {
            self.repaired.store(true, Ordering::Relaxed);
        }
    }

    /// While a response is awaited, Pingora reads one byte to detect a disconnect, and aborts the
    /// request if a byte arrives. That byte belongs to the next request, and is kept for it.
    fn poll_probe(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if !self.outgoing.is_empty() {
            let _ = self.poll_send(cx)?;
        }
        self.push(cx)?;
        if self.probed.is_none() {
            let mut byte = [0];
            let mut next = ReadBuf::new(&mut byte);
            if Pin::new(&mut self.socket).poll_read(cx, &mut next)?.is_pending() {
                let refusal = ready!(self.poll_deadlines(cx));
                return self.poll_fail(cx, refusal);
            }
            self.probed = next.filled().first().copied();
        }
        match self.probed {
            None => Poll::Ready(Ok(())),
            // The task that writes the response wakes this one; the byte waits until then.
            Some(_) => Poll::Pending,
        }
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let me = &mut *self;
        if me.is_http2 {
            return Pin::new(&mut me.socket).poll_read(cx, buf);
        }
        me.refuse_to_read_on()?;
        if me.phase() == Phase::Idle {
            // Frees the bytes of the last request's head.
            me.early = Vec::new();
        }
        if me.phase() == Phase::Head && me.head.bytes > me.allowance.head_bytes_max {
            return me.poll_fail(cx, Some(Refusal::HeadTooLarge));
        }
        // A probe passes one initialized byte; a reader of a body passes a buffer that is not
        // initialized.
        let is_probe = buf.capacity() == 1 && buf.initialized().len() == 1;
        if me.phase() == Phase::Request && is_probe {
            return me.poll_probe(cx);
        }
        if me.server_has_close() {
            return me.poll_discard(cx);
        }
        if me.poll_closing(cx, buf)?.is_ready() {
            return Poll::Ready(Ok(()));
        }
        let before = buf.filled().len();
        if let Some(byte) = me.probed.take() {
            buf.put_slice(&[byte]);
            me.note(&[byte]);
            me.pass_to_server(buf, before);
            return Poll::Ready(Ok(()));
        }
        match Pin::new(&mut me.socket).poll_read(cx, buf) {
            Poll::Ready(Ok(())) => {
                me.note(buf.filled().get(before..).unwrap_or_default());
                me.pass_to_server(buf, before);
                Poll::Ready(Ok(()))
            }
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            Poll::Pending => {
                if me.phase() == Phase::Request {
                    me.upload.awaited();
                }
                if !me.outgoing.is_empty() {
                    let _ = me.poll_send(cx)?;
                }
                me.push(cx)?;
                match me.poll_deadlines(cx) {
                    Poll::Pending => Poll::Pending,
                    Poll::Ready(refusal) => me.poll_fail(cx, refusal),
                }
            }
        }
    }
}

impl AsyncWrite for Connection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let me = &mut *self;
        if me.is_http2 {
            let wrote = Pin::new(&mut me.socket).poll_write(cx, bytes);
            return me.poll_progress(cx, wrote);
        }
        if me.phase() == Phase::Head {
            // Pingora has not parsed a request, so this is its own error response. Ours is sent
            // instead.
            me.set_final_response(&Refusal::NotHttp);
            return Poll::Ready(Ok(bytes.len()));
        }
        let pending = me.pending.get_mut().unwrap_or_else(PoisonError::into_inner);
        if pending.complete(bytes, &mut me.outgoing) {
            return Poll::Ready(Ok(bytes.len()));
        }
        me.close_to_client();
        let passing = me.tunnel().map_or(bytes, |tunnel| tunnel.passing(bytes));
        if passing.is_empty() {
            let _ = me.poll_send(cx)?;
            return Poll::Ready(Ok(bytes.len()));
        }
        let sent = ready!(me.poll_pass(cx, passing))?;
        if let Some(tunnel) = me.tunnel() {
            tunnel.passed(passing.get(..sent).unwrap_or_default());
        }
        Poll::Ready(Ok(sent))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_send(cx))?;
        // The write timeout applies to bytes that TLS has buffered, too.
        let flushed = Pin::new(&mut self.socket).poll_flush(cx);
        self.poll_progress(cx, flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_send(cx))?;
        self.poll_close(cx)
    }
}
