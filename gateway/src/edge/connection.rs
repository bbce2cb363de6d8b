//! One client's connection: a socket whose every write is timed, and which closes so that its
//! client can read the last response.
//!
//! # Invariants
//!
//! 1. A write ends once the client has read nothing for `write_timeout`; bytes that TLS has
//!    buffered count as unread.
//! 2. The close of a connection whose client may still be sending lingers.
//!
//! # Not here
//!
//! Accepting connections (`listener`), requests on them (`http1`, `http2`).

mod lingering_close;
mod pingora;
pub mod socket;

use std::future::Future;
use std::io::{self, IoSlice};
use std::mem;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsRawFd;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use pingora_core::protocols::SocketDigest;
use pingora_core::protocols::l4::socket::SocketAddr as PingoraAddress;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Sleep;
use weir_common::time::{Clock, Tick};

use crate::edge::connection::lingering_close::LingeringClose;
use crate::edge::connection::socket::{Handshaken, Socket};
use crate::edge::open_connection::OpenConnection;

/// The client of a connection.
#[derive(Clone, Debug)]
pub struct Client {
    /// Its address: the socket's, or that in a PROXY header.
    pub peer: IpAddr,
    /// Whether the connection is TLS.
    pub is_secure: bool,
    /// Its certificate as the value of `Client-Cert` (RFC 9440), where it has sent one.
    pub certificate: Option<Arc<str>>,
}

/// A connection.
pub struct Connection {
    socket: Socket,
    peer: SocketAddr,
    client: Client,
    digest: Arc<SocketDigest>,
    clock: Clock,
    /// Time in which the client reads none of the bytes to send.
    write_timeout: Duration,
    /// Since when bytes are pending and the client has read none.
    stalled_from: Option<Tick>,
    /// `Socket::taken` at the last write.
    taken: u64,
    alarm: Option<(Tick, Pin<Box<Sleep>>)>,
    /// How it closes where the client may still be sending unread bytes.
    linger: Option<LingeringClose>,
    open: Arc<OpenConnection>,
}

impl Connection {
    /// A connection whose handshakes are complete.
    #[must_use]
    pub fn new(handshaken: Handshaken, clock: Clock, write_timeout: Duration) -> Self {
        let Handshaken { socket, peer, open } = handshaken;
        let digest = SocketDigest::from_raw_fd(socket.as_raw_fd());
        // The cell is empty: it was made in the line above.
        let _ = digest.peer_addr.set(Some(PingoraAddress::Inet(peer)));
        let client = Client {
            peer: peer.ip(),
            is_secure: socket.is_secure(),
            certificate: socket.client_certificate(),
        };
        Self {
            linger: socket.speaks_http2().then(LingeringClose::briefly),
            socket,
            peer,
            client,
            digest: Arc::new(digest),
            clock,
            write_timeout,
            stalled_from: None,
            taken: 0,
            alarm: None,
            open,
        }
    }

    /// Its client.
    #[must_use]
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// Where it counts as open.
    #[must_use]
    pub fn open(&self) -> Arc<OpenConnection> {
        self.open.clone()
    }

    /// Whether the client chose HTTP/2.
    #[must_use]
    pub fn is_http2(&self) -> bool {
        self.socket.speaks_http2()
    }

    /// Ends it by a reset, or over TLS without a `close_notify`: what was sent is not whole.
    pub(super) fn reset(self) {
        if let Socket::Plain(socket) = &self.socket {
            // A socket that fails here has ended.
            let _ = socket.set_zero_linger();
        }
    }

    /// The present time.
    pub(super) fn now(&self) -> Tick {
        self.clock.now().tick
    }

    /// Writes `first` and then `second`, as much as the socket accepts. Returns how many bytes it
    /// has accepted; fails once the client has read nothing for `write_timeout`.
    pub(super) fn poll_write_both(
        &mut self,
        cx: &mut Context<'_>,
        first: &[u8],
        second: &[u8],
    ) -> Poll<io::Result<usize>> {
        let socket = Pin::new(&mut self.socket);
        let wrote = match (first, second) {
            ([], only) | (only, []) => socket.poll_write(cx, only),
            _ => socket.poll_write_vectored(cx, &[IoSlice::new(first), IoSlice::new(second)]),
        };
        self.poll_progress(cx, wrote)
    }

    /// Sends what TLS has buffered, as far as the socket accepts it now.
    pub(super) fn push(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        if !self.socket.has_unsent() {
            return Ok(());
        }
        let flushed = Pin::new(&mut self.socket).poll_flush(cx);
        match self.poll_progress(cx, flushed) {
            Poll::Ready(pushed) => pushed,
            Poll::Pending => Ok(()),
        }
    }

    /// Ready once `deadline` has passed; until then a timer wakes the task.
    pub(super) fn poll_alarm(
        &mut self,
        cx: &mut Context<'_>,
        now: Tick,
        deadline: Tick,
    ) -> Poll<()> {
        if now >= deadline {
            return Poll::Ready(());
        }
        let set = || (deadline, Box::pin(tokio::time::sleep(deadline.since(now))));
        let (fires_at, alarm) = self.alarm.get_or_insert_with(set);
        // A timer that fires early is set again; one that would fire late is moved.
        while *fires_at > deadline || alarm.as_mut().poll(cx).is_ready() {
            (*fires_at, *alarm) = set();
        }
        Poll::Pending
    }

    /// Checks the result of a write: fails once the client has read nothing for `write_timeout`.
    /// Bytes that TLS buffers while its socket accepts none count as unread.
    fn poll_progress<T>(
        &mut self,
        cx: &mut Context<'_>,
        wrote: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        let is_ready = wrote.is_ready();
        if is_ready && !self.socket.has_unsent() {
            self.stalled_from = None;
            return wrote;
        }
        let taken = self.socket.taken();
        if taken != mem::replace(&mut self.taken, taken) {
            self.stalled_from = None;
        }
        let now = self.now();
        let from = *self.stalled_from.get_or_insert(now);
        if is_ready {
            return wrote;
        }
        ready!(self.poll_alarm(cx, now, from.plus(self.write_timeout)));
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the client takes nothing")))
    }

    /// Closes our side, after TLS has sent what it has buffered.
    fn poll_end(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let ended = Pin::new(&mut self.socket).poll_shutdown(cx);
        self.poll_progress(cx, ended)
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_read(cx, buf)
    }
}

impl AsyncWrite for Connection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.poll_write_both(cx, &[], bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        // The write timeout applies to bytes that TLS has buffered, too.
        let flushed = Pin::new(&mut self.socket).poll_flush(cx);
        self.poll_progress(cx, flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_close(cx)
    }
}
