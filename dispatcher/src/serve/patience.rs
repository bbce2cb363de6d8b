//! A stream whose peer has to take what is written to it.
//!
//! # Invariants
//!
//! 1. From when the peer first takes no more until it has taken all, a given time passes at most:
//!    then writing fails. Taking a little now and then prolongs nothing.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Sleep;

/// A stream, and how long its peer may let us wait.
pub(super) struct Patient<S> {
    stream: S,
    patience: Duration,
    /// Runs while something is written that the peer has not taken whole.
    waiting: Option<Pin<Box<Sleep>>>,
}

impl<S: Unpin> Patient<S> {
    pub(super) fn new(stream: S, patience: Duration) -> Self {
        Self { stream, patience, waiting: None }
    }

    pub(super) fn into_stream(self) -> S {
        self.stream
    }

    /// What came of a write, or that there were enough of them.
    fn bounded<T>(
        &mut self,
        cx: &mut Context<'_>,
        written: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if written.is_pending() && self.waiting.is_none() {
            self.waiting = Some(Box::pin(tokio::time::sleep(self.patience)));
        }
        let over =
            self.waiting.as_mut().is_some_and(|waiting| waiting.as_mut().poll(cx).is_ready());
        if over { Poll::Ready(Err(io::ErrorKind::TimedOut.into())) } else { written }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Patient<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, into)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Patient<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.bounded(cx, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        pieces: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, pieces);
        self.bounded(cx, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    /// Asked for once everything has been written: the next wait is another one.
    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(Pin::new(&mut self.stream).poll_flush(cx))?;
        self.waiting = None;
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};

    use super::*;

    const PATIENCE: Duration = Duration::from_millis(100);

    #[tokio::test]
    async fn taking_a_little_now_and_then_prolongs_nothing() {
        let (ours, mut theirs) = duplex(1);
        let mut stream = Patient::new(ours, PATIENCE);
        let trickle = async {
            let mut each = tokio::time::interval(PATIENCE / 20);
            loop {
                each.tick().await;
                theirs.read_u8().await.expect("it is open");
            }
        };
        let written = tokio::select! {
            written = stream.write_all(&[0; 100_000]) => written,
            () = trickle => unreachable!("it reads for ever"),
        };
        assert_eq!(written.map_err(|error| error.kind()), Err(io::ErrorKind::TimedOut));
    }

    #[tokio::test]
    async fn what_was_taken_whole_counts_no_more() {
        let (ours, mut theirs) = duplex(1);
        let mut stream = Patient::new(ours, PATIENCE);
        let mut took = [0; 2];
        let (written, _) = tokio::join!(stream.write_all(b"ab"), theirs.read_exact(&mut took));
        written.expect("it is taken");
        assert!(stream.waiting.is_some());
        stream.flush().await.expect("it is taken");
        assert!(stream.waiting.is_none());
    }
}
