//! One client's connection, as Pingora reads and writes it.
//!
//! Pingora has no deadline for a whole request head, keeps an idle connection for ever, repairs
//! a broken request line, takes chunked bodies that are none and answers what it cannot parse in
//! its own words. All five are mended here, below it, where every byte passes.
//!
//! # Invariants
//!
//! 1. A head that is not whole when its deadline comes, or grows past its cap, is answered and
//!    closed; so is an idle connection closed, without an answer, and one whose client takes
//!    nothing of what there is for it, be it ours or what TLS keeps of it.
//! 2. A head is held back until the first bytes of its body, or until we would wait: the two
//!    leave in one write, and nothing waits for more to be written.
//! 3. What is written beside an answer stands in its head, once: header lines are put in as
//!    text here, at a fifth of what a header map costs (docs/performance.md).
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
    /// HTTP/2 frames many requests into one stream of bytes: `http2` has the bounds of that.
    is_http2: bool,
    /// A byte of the next request that a probe has met.
    met: Option<u8>,
    peer: SocketAddr,
    digest: Arc<SocketDigest>,
    clock: Clock,
    allowance: Allowance,
    /// What is refused before it is a request is counted here, for it never becomes a request.
    refusals: IntCounterVec,
    phase: AtomicU8,
    /// When the connection became idle: what `Phase::Idle` is timed from.
    idle_from: AtomicU64,
    head: Head,
    /// What was read last of a head, and perhaps beyond its end.
    early: Vec<u8>,
    chunks: Mutex<Chunks>,
    silence: Silence,
    /// The body of the request in progress.
    upload: Arc<Upload>,
    /// Whether the request line had bytes that Pingora repairs without a word.
    repaired: AtomicBool,
    /// What goes out before anything else: a head that waits for its body, or a whole answer.
    outgoing: Vec<u8>,
    /// What `proxy` wants written, which sees the connection only through a shared reference.
    pending: Mutex<PendingResponse>,
    /// What is left of our own last words.
    farewell: Option<Vec<u8>>,
    /// Since when the client has read nothing of what there is for it.
    stalled_from: Option<Tick>,
    /// What the socket had taken by the last write.
    taken: u64,
    alarm: Option<(Tick, Pin<Box<Sleep>>)>,
    /// Whether tunnels end.
    going: watch::Receiver<bool>,
    /// How many requests there have been.
    requests: AtomicU32,
    /// The header value with the client's certificate, where it has sent one.
    client_certificate: Option<Arc<str>>,
    _permits: Box<dyn Any + Send + Sync>,
}

impl Connection {
    /// Takes a connection over.
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
            met: None,
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
            farewell: None,
            stalled_from: None,
            taken: 0,
            alarm: None,
            going,
            _permits: permits,
        }
    }

    /// The connection below a Pingora session, where there is one of ours.
    #[must_use]
    pub fn of(stream: Option<&Stream>) -> Option<&Self> {
        stream.and_then(|stream| stream.as_any().downcast_ref())
    }

    /// The other end of the socket.
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

    /// The client's certificate as `Client-Cert` has it (RFC 9440), where it has shown one.
    #[must_use]
    pub fn client_certificate(&self) -> Option<&Arc<str>> {
        self.client_certificate.as_ref()
    }

    /// How many requests there have been, the one in progress included.
    #[must_use]
    pub fn requests(&self) -> u32 {
        self.requests.load(Ordering::Relaxed)
    }

    /// The body of the request in progress, one after another.
    #[must_use]
    pub fn upload(&self) -> &Arc<Upload> {
        &self.upload
    }

    /// Whether the request line was mended before we saw it.
    #[must_use]
    pub fn was_repaired(&self) -> bool {
        self.repaired.load(Ordering::Relaxed)
    }

    /// Says that the head of `session` has been read.
    pub fn head_is_read(&self, session: Option<&HttpSession>) {
        session.into_iter().for_each(|session| self.watch_body(session));
        self.phase.store(Phase::Request as u8, Ordering::Relaxed);
        self.requests.fetch_add(1, Ordering::Relaxed);
        let mut pending = self.pending();
        pending.awaits_head = true;
        pending.lines.clear();
    }

    /// Adds header lines, each with its line end, to the head of this request's answer.
    pub fn add_lines(&self, lines: &[u8]) {
        self.pending().lines.extend_from_slice(lines);
    }

    /// Answers this request in the place of Pingora, which then has nothing to write.
    pub fn answer(&self, answer: Vec<u8>) {
        let mut pending = self.pending();
        // What has begun is not begun again in the middle.
        if std::mem::take(&mut pending.awaits_head) {
            pending.answer = answer;
        }
    }

    fn pending(&self) -> MutexGuard<'_, PendingResponse> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From `now` on nothing may pass for `max` and no longer, either way, until this request is
    /// over.
    pub fn set_silence_max(&self, max: Duration, now: Tick) {
        self.silence.bear(max, now);
    }

    /// Whether nothing has passed for too long.
    #[must_use]
    pub fn was_silent(&self) -> bool {
        self.silence.is_over()
    }

    /// Says that the request is over, at `now`.
    pub fn request_is_over(&self, now: Tick) {
        self.idle_from.store(now.0, Ordering::Relaxed);
        self.silence.bear(Duration::ZERO, now);
        self.repaired.store(false, Ordering::Relaxed);
        self.phase.store(Phase::Idle as u8, Ordering::Relaxed);
    }

    fn phase(&self) -> Phase {
        Phase::of(self.phase.load(Ordering::Relaxed))
    }

    /// Takes note of bytes that have just been read.
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

    /// Pingora reads one byte to learn whether a client has gone while its answer is made, and
    /// gives the request up where one is there. It is the next request's, and is left to it.
    fn poll_probe(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if !self.outgoing.is_empty() {
            let _ = self.poll_send(cx)?;
        }
        self.push(cx)?;
        if self.met.is_none() {
            let mut byte = [0];
            let mut next = ReadBuf::new(&mut byte);
            if Pin::new(&mut self.socket).poll_read(cx, &mut next)?.is_pending() {
                let refusal = ready!(self.poll_deadlines(cx));
                return self.part(cx, refusal);
            }
            self.met = next.filled().first().copied();
        }
        match self.met {
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
            // An idle connection keeps nothing of its last request.
            me.early = Vec::new();
        }
        if me.phase() == Phase::Head && me.head.bytes > me.allowance.head_bytes_max {
            return me.part(cx, Some(Refusal::HeadTooLarge));
        }
        // A probe comes with an array of one byte; a reader of a body brings a buffer of room
        // that nothing has been written to yet.
        let is_probe = buf.capacity() == 1 && buf.initialized().len() == 1;
        if me.phase() == Phase::Request && is_probe {
            return me.poll_probe(cx);
        }
        if me.has_left() {
            return me.poll_away(cx);
        }
        if me.poll_leave(cx, buf)?.is_ready() {
            return Poll::Ready(Ok(()));
        }
        let before = buf.filled().len();
        if let Some(byte) = me.met.take() {
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
                    Poll::Ready(refusal) => me.part(cx, refusal),
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
            // No request has been handed to us, so this is Pingora's own answer to what it could
            // not parse. Ours takes its place.
            me.part_with(&Refusal::NotHttp);
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
        // What TLS has taken from us waits there for the client, and not for ever either.
        let flushed = Pin::new(&mut self.socket).poll_flush(cx);
        self.poll_progress(cx, flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_send(cx))?;
        self.poll_close(cx)
    }
}
