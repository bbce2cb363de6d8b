//! One client's connection, as Pingora reads and writes it.
//!
//! Pingora has no deadline for a whole request head, keeps an idle connection for ever, repairs
//! a broken request line and answers what it cannot parse in its own words. All four are mended
//! here, below it, where every byte passes.
//!
//! # Invariants
//!
//! 1. A head that is not whole when its deadline comes, or grows past its cap, is answered and
//!    closed; so is an idle connection closed, without an answer, and one whose client takes
//!    nothing of what there is for it.
//! 2. A head is held back until the first bytes of its body, or until we would wait: the two
//!    leave in one write, and nothing waits for more to be written.
//! 3. What is to be said beside an answer stands in its head, once: header lines are put in as
//!    text here, at a fifth of what a header map costs (docs/performance.md).
//!
//! # Not here
//!
//! Accepting connections (`listen`), deadlines of request bodies (Pingora's, set in `proxy`).

pub mod head;
mod said;
mod socket;
mod traits;

use std::future::Future;
use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::os::fd::AsRawFd;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use pingora_core::protocols::l4::socket::SocketAddr as PingoraAddress;
use pingora_core::protocols::{SocketDigest, Stream};
use prometheus::IntCounterVec;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Sleep;
use weir_common::time::{Clock, Tick};

use self::head::{Head, Phase};
use self::said::{Said, last_words};
pub use self::socket::Socket;
use crate::refuse::Refusal;

/// What a connection may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Allowance {
    /// A whole request head.
    pub head_timeout: Duration,
    /// Bytes of a request head.
    pub head_bytes_max: u64,
    /// Without a request.
    pub idle_timeout: Duration,
    /// Between two writes that the client takes anything of.
    pub write_timeout: Duration,
}

/// A connection.
pub struct Connection {
    socket: Socket,
    /// HTTP/2 frames many requests into one stream of bytes: Pingora's own bounds apply there.
    is_http2: bool,
    /// A byte of the next request that a probe has met.
    met: Option<u8>,
    peer: SocketAddr,
    digest: Arc<SocketDigest>,
    clock: Clock,
    allowance: Allowance,
    /// What is refused before it is a request is counted here, for nobody else sees it.
    refusals: IntCounterVec,
    phase: AtomicU8,
    /// When the connection became idle: what `Phase::Idle` is timed from.
    idle_from: AtomicU64,
    head: Head,
    /// Whether the request line had bytes that Pingora repairs without a word.
    repaired: AtomicBool,
    /// What goes out before anything else: a head that waits for its body, or a whole answer.
    held: Vec<u8>,
    /// What `proxy` wants said, which sees the connection only through a shared reference.
    said: Mutex<Said>,
    /// What is left of our own last words.
    farewell: Option<Vec<u8>>,
    /// Since when the client has taken nothing of what there is for it.
    stalled_from: Option<Tick>,
    alarm: Option<(Tick, Pin<Box<Sleep>>)>,
    /// Something to be dropped with the connection: the room it takes.
    _room: Box<dyn std::any::Any + Send + Sync>,
}

impl Connection {
    /// Takes a connection over. `room` is dropped with it.
    pub fn new(
        socket: Socket,
        peer: SocketAddr,
        clock: Clock,
        allowance: Allowance,
        refusals: IntCounterVec,
        room: Box<dyn std::any::Any + Send + Sync>,
    ) -> Self {
        let digest = SocketDigest::from_raw_fd(socket.as_raw_fd());
        // The cell is empty: it was made in the line above.
        let _ = digest.peer_addr.set(Some(PingoraAddress::Inet(peer)));
        let idle_from = AtomicU64::new(clock.now().tick.0);
        Self {
            is_http2: socket.speaks_http2(),
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
            repaired: AtomicBool::new(false),
            held: Vec::new(),
            said: Mutex::default(),
            farewell: None,
            stalled_from: None,
            alarm: None,
            _room: room,
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

    /// Whether it is TLS.
    #[must_use]
    pub fn is_secure(&self) -> bool {
        self.socket.is_secure()
    }

    /// Whether the request line was mended before we saw it.
    #[must_use]
    pub fn was_repaired(&self) -> bool {
        self.repaired.load(Ordering::Relaxed)
    }

    /// Says that the head has been read.
    pub fn head_is_read(&self) {
        self.phase.store(Phase::Request as u8, Ordering::Relaxed);
        let mut said = self.said();
        said.awaits_head = true;
        said.lines.clear();
    }

    /// Adds header lines, each with its line end, to the head of this request's answer.
    pub fn add_lines(&self, lines: &[u8]) {
        self.said().lines.extend_from_slice(lines);
    }

    /// Answers this request in the place of Pingora, which then has nothing to write.
    pub fn answer(&self, answer: Vec<u8>) {
        let mut said = self.said();
        // What has begun is not begun again in the middle.
        if std::mem::take(&mut said.awaits_head) {
            said.answer = answer;
        }
    }

    fn said(&self) -> MutexGuard<'_, Said> {
        self.said.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Says that the request is over, at `now`.
    pub fn request_is_over(&self, now: Tick) {
        self.idle_from.store(now.0, Ordering::Relaxed);
        self.repaired.store(false, Ordering::Relaxed);
        self.phase.store(Phase::Idle as u8, Ordering::Relaxed);
    }

    fn phase(&self) -> Phase {
        Phase::of(self.phase.load(Ordering::Relaxed))
    }

    /// Takes note of bytes that have just been read.
    fn note(&mut self, bytes: &[u8]) {
        if self.phase() == Phase::Request || bytes.is_empty() {
            return;
        }
        if self.phase() == Phase::Idle {
            self.head = Head::default();
            self.phase.store(Phase::Head as u8, Ordering::Relaxed);
        }
        if self.head.has_oddities(bytes) {
            self.repaired.store(true, Ordering::Relaxed);
        }
    }

    /// While there is nothing to read: whether the wait has been too long, and if not, an alarm.
    fn poll_patience(&mut self, cx: &mut Context<'_>) -> Poll<Option<Refusal>> {
        let now = self.clock.now().tick;
        let (deadline, refusal) = match self.phase() {
            Phase::Request => return Poll::Pending,
            Phase::Idle => {
                let from = Tick(self.idle_from.load(Ordering::Relaxed));
                (from.plus(self.allowance.idle_timeout), None)
            }
            Phase::Head => {
                let timeout = self.allowance.head_timeout;
                (
                    *self.head.deadline.get_or_insert_with(|| now.plus(timeout)),
                    Some(Refusal::HeadTimeout),
                )
            }
        };
        self.poll_alarm(cx, now, deadline).map(|()| refusal)
    }

    /// Whether `deadline` has come; if not, the task is woken when it has.
    fn poll_alarm(&mut self, cx: &mut Context<'_>, now: Tick, deadline: Tick) -> Poll<()> {
        if now >= deadline {
            return Poll::Ready(());
        }
        let set = || (deadline, Box::pin(tokio::time::sleep(deadline.since(now))));
        let (goes_off, alarm) = self.alarm.get_or_insert_with(set);
        // An alarm that goes off early is set anew; one that would go off late is moved.
        while *goes_off > deadline || alarm.as_mut().poll(cx).is_ready() {
            (*goes_off, *alarm) = set();
        }
        Poll::Pending
    }

    /// What came of a write: a client that has taken nothing for too long is given up.
    fn poll_taken(
        &mut self,
        cx: &mut Context<'_>,
        wrote: Poll<io::Result<usize>>,
    ) -> Poll<io::Result<usize>> {
        if wrote.is_ready() {
            self.stalled_from = None;
            return wrote;
        }
        let now = self.clock.now().tick;
        let from = *self.stalled_from.get_or_insert(now);
        ready!(self.poll_alarm(cx, now, from.plus(self.allowance.write_timeout)));
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the client takes nothing")))
    }

    /// Pingora reads one byte to learn whether a client has gone while its answer is made, and
    /// gives the request up where one is there. It is the next request's, and is left to it.
    fn poll_probe(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if !self.held.is_empty() {
            let _ = self.poll_send(cx)?;
        }
        if self.met.is_none() {
            let mut byte = [0];
            let mut next = ReadBuf::new(&mut byte);
            ready!(Pin::new(&mut self.socket).poll_read(cx, &mut next))?;
            self.met = next.filled().first().copied();
        }
        match self.met {
            None => Poll::Ready(Ok(())),
            // Whoever makes the answer wakes the task; the byte waits until then.
            Some(_) => Poll::Pending,
        }
    }

    /// Writes what is held back, and our last words, as far as the socket takes them.
    fn poll_send(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let said = self.said.get_mut().unwrap_or_else(PoisonError::into_inner);
        self.held.append(&mut said.answer);
        if let Some(farewell) = &mut self.farewell {
            self.held.append(farewell);
        }
        while !self.held.is_empty() {
            let wrote = Pin::new(&mut self.socket).poll_write(cx, &self.held);
            let sent = ready!(self.poll_taken(cx, wrote))?;
            self.held.drain(..sent);
        }
        Poll::Ready(Ok(()))
    }

    /// Makes a refusal our last words, unless they have been said already.
    fn part_with(&mut self, refusal: &Refusal) {
        if self.farewell.is_none() {
            self.refusals.with_label_values(&[refusal.reason()]).inc();
            self.farewell = Some(last_words(refusal));
        }
    }

    /// Answers in our own words, and ends the connection.
    fn part(&mut self, cx: &mut Context<'_>, refusal: Option<Refusal>) -> Poll<io::Result<()>> {
        if let Some(refusal) = refusal {
            self.part_with(&refusal);
        }
        ready!(self.poll_send(cx))?;
        Poll::Ready(Err(io::Error::new(
            io::ErrorKind::TimedOut,
            "the connection's time or room is up",
        )))
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
        if me.phase() == Phase::Head && me.head.bytes > me.allowance.head_bytes_max {
            return me.part(cx, Some(Refusal::HeadTooLarge));
        }
        // A probe comes with an array of one byte; whoever reads a body brings a buffer of room
        // that nothing has been written to yet.
        let is_probe = buf.capacity() == 1 && buf.initialized().len() == 1;
        if me.phase() == Phase::Request && is_probe {
            return me.poll_probe(cx);
        }
        if let Some(byte) = me.met.take() {
            buf.put_slice(&[byte]);
            me.note(&[byte]);
            return Poll::Ready(Ok(()));
        }
        let before = buf.filled().len();
        match Pin::new(&mut me.socket).poll_read(cx, buf) {
            Poll::Ready(Ok(())) => {
                me.note(buf.filled().get(before..).unwrap_or_default());
                Poll::Ready(Ok(()))
            }
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            Poll::Pending => {
                if !me.held.is_empty() {
                    let _ = me.poll_send(cx)?;
                }
                match me.poll_patience(cx) {
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
            return me.poll_taken(cx, wrote);
        }
        if me.phase() == Phase::Head {
            // No request has been handed to us, so this is Pingora's own answer to what it could
            // not parse. Ours takes its place.
            let connect = bytes.starts_with(b"HTTP/1.1 405");
            let refusal = if connect { Refusal::Connect } else { Refusal::NotHttp };
            me.part_with(&refusal);
            return Poll::Ready(Ok(bytes.len()));
        }
        let said = me.said.get_mut().unwrap_or_else(PoisonError::into_inner);
        if said.complete(bytes, &mut me.held) {
            return Poll::Ready(Ok(bytes.len()));
        }
        while !me.held.is_empty() {
            let both = [IoSlice::new(&me.held), IoSlice::new(bytes)];
            let wrote = Pin::new(&mut me.socket).poll_write_vectored(cx, &both);
            let sent = ready!(me.poll_taken(cx, wrote))?;
            let of_held = sent.min(me.held.len());
            me.held.drain(..of_held);
            if sent > of_held {
                return Poll::Ready(Ok(sent - of_held));
            }
        }
        let wrote = Pin::new(&mut me.socket).poll_write(cx, bytes);
        me.poll_taken(cx, wrote)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_send(cx))?;
        Pin::new(&mut self.socket).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_send(cx))?;
        Pin::new(&mut self.socket).poll_shutdown(cx)
    }
}
