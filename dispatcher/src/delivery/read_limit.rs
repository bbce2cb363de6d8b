//! A stream that limits the bytes read for one response, and shows when its request was sent.
//!
//! Invariant: between two calls of [`Meter::begin`] at most `most` bytes are read from the stream;
//! the next read fails.

use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::Notify;

/// Counts the bytes of a response.
#[derive(Debug, Default)]
pub(crate) struct Meter {
    count: AtomicUsize,
    /// Whether bytes of the request were written.
    is_sent: AtomicBool,
    sent: Notify,
}

impl Meter {
    /// Restarts the count for the next response, and expects its request.
    pub(crate) fn begin(&self) {
        self.count.store(0, Ordering::Relaxed);
        self.is_sent.store(false, Ordering::Release);
    }

    /// The bytes since [`Meter::begin`].
    pub(crate) fn count(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }

    /// Waits until the first bytes since [`Meter::begin`] were written.
    pub(crate) async fn sent(&self) {
        let mut sent = pin!(self.sent.notified());
        sent.as_mut().enable();
        if !self.is_sent.load(Ordering::Acquire) {
            sent.await;
        }
    }

    fn wrote(&self, written: &Poll<io::Result<usize>>) {
        let any = matches!(written, Poll::Ready(Ok(1..)));
        if any && !self.is_sent.load(Ordering::Relaxed) {
            self.is_sent.store(true, Ordering::Release);
            self.sent.notify_waiters();
        }
    }
}

/// Why a stream was read no further.
#[derive(Debug, thiserror::Error)]
#[error("the answer is longer than {most} bytes")]
pub(crate) struct OverLimit {
    most: usize,
}

/// A stream with its limit.
pub(crate) struct Metered<S> {
    stream: S,
    meter: Arc<Meter>,
    most: usize,
}

impl<S> Metered<S> {
    pub(crate) fn new(stream: S, meter: Arc<Meter>, most: usize) -> Self {
        Self { stream, meter, most }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Metered<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let left = self.most.saturating_sub(self.meter.count());
        if left == 0 {
            let over = OverLimit { most: self.most };
            return Poll::Ready(Err(io::Error::new(io::ErrorKind::InvalidData, over)));
        }
        let before = into.filled().len();
        if left >= into.remaining() {
            ready!(Pin::new(&mut self.stream).poll_read(cx, into))?;
        } else {
            // Only near the limit: it has to be zeroed.
            let mut part = ReadBuf::new(into.initialize_unfilled_to(left));
            ready!(Pin::new(&mut self.stream).poll_read(cx, &mut part))?;
            let count = part.filled().len();
            into.advance(count);
        }
        let count = into.filled().len() - before;
        self.meter.count.fetch_add(count, Ordering::Relaxed);
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Metered<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.meter.wrote(&written);
        written
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, pieces);
        self.meter.wrote(&written);
        written
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncReadExt;

    use super::*;

    #[tokio::test]
    async fn no_byte_beyond_the_limit_is_read_until_the_next_response_begins() {
        let meter = Arc::new(Meter::default());
        let mut stream = Metered::new(&b"0123456789abc"[..], meter.clone(), 8);
        let mut into = Vec::new();
        let ended = stream.read_to_end(&mut into).await.map_err(|error| error.kind());
        assert_eq!((ended, &into[..]), (Err(io::ErrorKind::InvalidData), &b"01234567"[..]));
        assert_eq!((meter.count(), stream.stream), (8, &b"89abc"[..]));
        meter.begin();
        stream.read_to_end(&mut into).await.expect("five bytes are left");
        assert_eq!(meter.count(), 5);
    }
}
