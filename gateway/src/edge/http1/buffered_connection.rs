//! The bytes of a connection: those read and not yet used, and those not yet sent.
//!
//! # Invariants
//!
//! 1. Reading and sending may be cancelled at any await: what was read stays in the buffer.
//! 2. A head that is incomplete at its deadline, or exceeds its cap, is refused. A connection
//!    without a request ends after `idle_timeout`.
//! 3. While nothing is read or sent, a connection holds no buffer.
//!
//! # Not here
//!
//! What the bytes mean (`http1::head`, `http1::body`, `http1::response`), how long a write may take
//! (`connection`).

use std::future::{Future, poll_fn};
use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes, BytesMut};
use tokio::io::{AsyncReadExt, AsyncWrite, AsyncWriteExt};
use weir_common::time::Tick;

use crate::edge::connection::Connection;
use crate::edge::http1::Http1Bounds;
use crate::edge::http1::head::{self, Head, Parsed};
use crate::request::upload::Upload;
use crate::response::refusal::Refusal;

/// Bytes of a head to read at a time.
const HEAD_READ: usize = 4 << 10;

/// A part of a body that is shorter is copied behind its head: cheaper than a second buffer in the
/// same write.
const COPIED_MAX: usize = 8 << 10;

/// A connection with its buffers.
pub(super) struct BufferedConnection {
    pub(super) connection: Connection,
    /// Bytes that were read and not yet used.
    pub(super) buffer: BytesMut,
    /// Bytes to be sent before any others.
    pub(super) outgoing: Vec<u8>,
    /// The body of the request in progress; each request of the connection reuses it.
    pub(super) upload: Arc<Upload>,
}

/// Why no head was read.
#[derive(Debug)]
pub(super) enum NoHead {
    /// The connection has ended, or has to.
    Closed,
    /// No request came in time.
    Idle,
    /// What came is answered, and the connection closes.
    Refused(Refusal),
}

impl BufferedConnection {
    /// Reads the next head. `cut` is ready when a connection without a request has to end.
    pub(super) async fn head(
        &mut self,
        bounds: &Http1Bounds,
        mut cut: Pin<&mut (impl Future<Output = ()> + Send)>,
    ) -> Result<Box<Head>, NoHead> {
        let (mut idle_from, mut head_from) = (None, None);
        let mut is_news = !self.buffer.is_empty();
        poll_fn(|cx| {
            loop {
                if std::mem::take(&mut is_news) {
                    self.skip_empty_lines();
                    let refused = |refusal| Poll::Ready(Err(NoHead::Refused(refusal)));
                    let parsed = head::parse(&mut self.buffer);
                    let is_too_long = self.buffer.len() as u64 > bounds.head_bytes_max;
                    match parsed {
                        Parsed::Whole(head) => return Poll::Ready(Ok(head)),
                        Parsed::TooManyFields => return refused(Refusal::HeadTooLarge),
                        Parsed::Partial if is_too_long => return refused(Refusal::HeadTooLarge),
                        Parsed::Partial => {}
                        Parsed::NotHttp => return refused(Refusal::NotHttp),
                    }
                }
                match self.poll_fill(cx, HEAD_READ) {
                    Poll::Ready(Ok(read @ 1..)) => {
                        is_news = head::is_news(&self.buffer, read, bounds.head_bytes_max);
                    }
                    Poll::Ready(_) => return Poll::Ready(Err(NoHead::Closed)),
                    Poll::Pending => break,
                }
            }
            self.release_buffer();
            if self.connection.push(cx).is_err() || cut.as_mut().poll(cx).is_ready() {
                return Poll::Ready(Err(NoHead::Closed));
            }
            let now = self.connection.now();
            let (ends, why) = if self.buffer.is_empty() {
                (idle_from.get_or_insert(now).plus(bounds.idle_timeout), NoHead::Idle)
            } else {
                let ends = head_from.get_or_insert(now).plus(bounds.head_timeout);
                (ends, NoHead::Refused(Refusal::HeadTimeout))
            };
            self.connection.poll_alarm(cx, now, ends).map(|()| Err(why))
        })
        .await
    }

    /// Drops empty lines before a head (RFC 9112, 2.2): after them a connection is still idle.
    fn skip_empty_lines(&mut self) {
        let is_end = |byte: &&u8| matches!(**byte, b'\r' | b'\n');
        let count = self.buffer.iter().take_while(is_end).count();
        self.buffer.advance(count);
    }

    /// Whether the client has sent more than was read: a close would lose what it has not read yet.
    pub(super) async fn has_unread(&mut self) -> bool {
        poll_fn(|cx| Poll::Ready(matches!(self.poll_fill(cx, 1), Poll::Ready(Ok(1..))))).await
    }

    /// Reads up to `size` bytes or more into the buffer. Returns how many; 0 at the end.
    pub(super) fn poll_fill(
        &mut self,
        cx: &mut Context<'_>,
        size: usize,
    ) -> Poll<io::Result<usize>> {
        self.buffer.reserve(size);
        pin!(self.connection.read_buf(&mut self.buffer)).poll(cx)
    }

    /// Frees an empty buffer, before a wait.
    pub(super) fn release_buffer(&mut self) {
        if self.buffer.is_empty() {
            self.buffer = BytesMut::new();
        }
    }

    /// Before a wait for the client: sends what is left to send, as far as the socket accepts it
    /// now. A body of known length is flushed only at its end, and the rest of it may take long.
    pub(super) fn send_now(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        if let Poll::Ready(sent) = self.poll_send(cx, &[]) {
            sent?;
        }
        self.connection.push(cx)
    }

    /// Sends the outgoing bytes and then `bytes`. Ready with the number of `bytes` that the socket
    /// has accepted, once that is some or all.
    fn poll_send(&mut self, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        while !self.outgoing.is_empty() || !bytes.is_empty() {
            let sent = ready!(self.connection.poll_write_both(cx, &self.outgoing, bytes))?;
            if sent == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            let of_outgoing = sent.min(self.outgoing.len());
            self.outgoing.drain(..of_outgoing);
            if sent > of_outgoing {
                return Poll::Ready(Ok(sent - of_outgoing));
            }
        }
        Poll::Ready(Ok(0))
    }

    /// Sends a part of a body after the outgoing bytes; a short one waits there for the next flush.
    pub(super) async fn send(&mut self, mut bytes: Bytes) -> io::Result<()> {
        if bytes.len() < COPIED_MAX {
            self.outgoing.extend_from_slice(&bytes);
            if self.outgoing.len() < COPIED_MAX {
                return Ok(());
            }
            bytes.clear();
        }
        while !self.outgoing.is_empty() || !bytes.is_empty() {
            let sent = poll_fn(|cx| self.poll_send(cx, &bytes)).await?;
            let _ = bytes.split_to(sent);
        }
        Ok(())
    }

    /// Sends all outgoing bytes, and what TLS has buffered.
    pub(super) async fn flush(&mut self) -> io::Result<()> {
        poll_fn(|cx| {
            ready!(self.poll_send(cx, &[]))?;
            Pin::new(&mut self.connection).poll_flush(cx)
        })
        .await
    }

    /// Ready once `ends` has passed.
    pub(super) fn poll_deadline(&mut self, cx: &mut Context<'_>, ends: Tick) -> Poll<()> {
        let now = self.connection.now();
        self.connection.poll_alarm(cx, now, ends)
    }

    /// Sends all outgoing bytes, and closes the connection.
    pub(super) async fn close(mut self: Box<Self>) {
        // A client that has gone needs neither.
        if self.flush().await.is_ok() {
            let _ = self.connection.shutdown().await;
        }
    }
}
