//! A stream that fails if its peer reads responses, or sends request heads, too slowly.
//!
//! # Invariants
//!
//! 1. From the first write that blocks until everything is flushed, at most `answer` passes; then
//!    writing fails. A peer that reads a few bytes now and then does not extend the time; the next
//!    piece of a streamed body does, which hyper takes once most of the earlier ones are written.
//! 2. Between a response and the first byte of the next request, at most `idle` passes; from that
//!    byte, or from the start of the connection, at most `head` until the request's head is
//!    complete; then reading fails. Sending a few bytes now and then does not extend the time.
//!
//! Not here: how long a body may take (`body`).

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::Sleep;

/// How long to wait for a peer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Timeouts {
    /// For a whole request head, from its first byte.
    pub(super) head: Duration,
    /// For the first byte of the next request.
    pub(super) idle: Duration,
    /// For the peer to read what is written.
    pub(super) answer: Duration,
}

/// Counts heads read and responses ready on a connection: odd while a request is handled.
#[derive(Debug, Default)]
pub(super) struct RequestPhase {
    phase: AtomicUsize,
    /// Pieces of streamed bodies so far.
    pieces: AtomicUsize,
    /// The caller's share, until its response is written.
    share: Mutex<Option<OwnedSemaphorePermit>>,
}

impl RequestPhase {
    /// A request head is complete, or its response is ready.
    pub(super) fn next(&self) {
        self.phase.fetch_add(1, Ordering::Relaxed);
    }

    /// Holds a permit until the response is written, in place of an earlier one.
    pub(super) fn hold(&self, permit: Option<OwnedSemaphorePermit>) {
        *self.share.lock().unwrap_or_else(PoisonError::into_inner) = permit;
    }

    /// Everything is written: if that was a response, its caller's share is free again.
    fn flushed(&self) {
        if self.phase.load(Ordering::Relaxed).is_multiple_of(2) {
            self.hold(None);
        }
    }

    /// Another piece of a streamed body is about to be written.
    pub(super) fn piece(&self) {
        self.pieces.fetch_add(1, Ordering::Relaxed);
    }
}

/// A stream with timeouts for its peer.
pub(super) struct TimedStream<S> {
    stream: S,
    timeouts: Timeouts,
    /// Runs from the first write that blocks until everything is flushed.
    waiting: Option<Pin<Box<Sleep>>>,
    phase: Arc<RequestPhase>,
    /// Pieces at the last write.
    pieces: usize,
    /// The phase at the last read, whether its request's first byte has arrived, and the timer.
    seen: usize,
    begun: bool,
    reading: Option<Pin<Box<Sleep>>>,
}

impl<S: Unpin> TimedStream<S> {
    pub(super) fn new(stream: S, timeouts: Timeouts, phase: Arc<RequestPhase>) -> Self {
        let (waiting, reading) = (None, None);
        Self { stream, timeouts, waiting, phase, pieces: 0, seen: 0, begun: true, reading }
    }

    pub(super) fn into_stream(self) -> S {
        self.stream
    }

    /// The result of a write, or an error once the peer has had its time to read.
    fn bounded<T>(
        &mut self,
        cx: &mut Context<'_>,
        written: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        let pieces = self.phase.pieces.load(Ordering::Relaxed);
        if pieces != self.pieces {
            (self.pieces, self.waiting) = (pieces, None);
        }
        if written.is_pending() && self.waiting.is_none() {
            self.waiting = Some(Box::pin(tokio::time::sleep(self.timeouts.answer)));
        }
        let over =
            self.waiting.as_mut().is_some_and(|waiting| waiting.as_mut().poll(cx).is_ready());
        if over { Poll::Ready(Err(io::ErrorKind::TimedOut.into())) } else { written }
    }

    /// The result of a read, or an error once the peer has had its time to send a head.
    fn in_time(
        &mut self,
        cx: &mut Context<'_>,
        read: Poll<io::Result<()>>,
    ) -> Poll<io::Result<()>> {
        let phase = self.phase.phase.load(Ordering::Relaxed);
        if phase != self.seen {
            (self.seen, self.begun, self.reading) = (phase, false, None);
        }
        if phase % 2 == 1 {
            return read; // A body, which is timed where it is read.
        }
        if read.is_ready() {
            if !self.begun {
                (self.begun, self.reading) = (true, None);
            }
            return read;
        }
        let within = if self.begun { self.timeouts.head } else { self.timeouts.idle };
        let reading = self.reading.get_or_insert_with(|| Box::pin(tokio::time::sleep(within)));
        ready!(reading.as_mut().poll(cx));
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for TimedStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let read = Pin::new(&mut self.stream).poll_read(cx, into);
        self.in_time(cx, read)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for TimedStream<S> {
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

    /// hyper flushes once everything is written: the next write that blocks starts a new timer.
    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(Pin::new(&mut self.stream).poll_flush(cx))?;
        self.waiting = None;
        self.phase.flushed();
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

    const ANSWER: Duration = Duration::from_millis(100);
    const HEAD: Duration = Duration::from_secs(10);
    const IDLE: Duration = Duration::from_secs(60);

    fn timed<S: Unpin>(stream: S) -> (TimedStream<S>, Arc<RequestPhase>) {
        let phase = Arc::new(RequestPhase::default());
        let timeouts = Timeouts { head: HEAD, idle: IDLE, answer: ANSWER };
        (TimedStream::new(stream, timeouts, phase.clone()), phase)
    }

    /// Checks that reading fails after this time, and not before.
    async fn fails_after(stream: &mut TimedStream<tokio::io::DuplexStream>, time: Duration) {
        let a_moment = Duration::from_millis(2);
        let early = tokio::time::timeout(time - a_moment, stream.read_u8()).await;
        assert!(early.is_err(), "{early:?} within {time:?}");
        let late = tokio::time::timeout(2 * a_moment, stream.read_u8()).await;
        let late = late.map(|read| read.map_err(|error| error.kind()));
        assert!(matches!(late, Ok(Err(io::ErrorKind::TimedOut))), "{late:?} after {time:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn the_first_head_and_one_that_has_begun_have_less_time_than_an_idle_connection() {
        let (ours, _theirs) = duplex(64);
        fails_after(&mut timed(ours).0, HEAD).await;
        let answered = |ours| {
            let (stream, phase) = timed(ours);
            phase.next();
            phase.next();
            stream
        };
        let (ours, _theirs) = duplex(64);
        fails_after(&mut answered(ours), IDLE).await;
        let (ours, mut theirs) = duplex(64);
        let mut stream = answered(ours);
        theirs.write_all(b"G").await.expect("it is open");
        stream.read_u8().await.expect("it came");
        fails_after(&mut stream, HEAD).await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_head_that_drips_has_no_more_time_and_a_body_is_not_timed_here() {
        let (ours, mut theirs) = duplex(64);
        let (mut stream, _) = timed(ours);
        let dripping = async {
            loop {
                tokio::time::sleep(HEAD / 4).await;
                theirs.write_all(b"x").await.expect("it is open");
            }
        };
        let reading = async { while stream.read_u8().await.is_ok() {} };
        tokio::select! {
            () = dripping => unreachable!("it drips for ever"),
            ended = tokio::time::timeout(HEAD + HEAD / 8, reading) => ended.expect("it ends"),
        }
        let (ours, _theirs) = duplex(64);
        let (mut stream, phase) = timed(ours);
        phase.next();
        assert!(tokio::time::timeout(10 * IDLE, stream.read_u8()).await.is_err());
    }

    #[tokio::test]
    async fn taking_a_little_now_and_then_prolongs_nothing() {
        let (ours, mut theirs) = duplex(1);
        let (mut stream, _) = timed(ours);
        let trickle = async {
            let mut each = tokio::time::interval(ANSWER / 20);
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

    #[tokio::test(start_paused = true)]
    async fn each_piece_of_a_streamed_body_has_its_own_time() {
        let (ours, _theirs) = duplex(1);
        let (mut stream, phase) = timed(ours);
        stream.write_all(b"a").await.expect("it fits");
        let most = ANSWER - Duration::from_millis(2);
        for _ in 0..3 {
            phase.piece();
            let write = tokio::time::timeout(most, stream.write_all(b"b")).await;
            assert!(write.is_err(), "{write:?}");
        }
        let late = tokio::time::timeout(ANSWER, stream.write_all(b"b")).await;
        let late = late.expect("it ends").map_err(|error| error.kind());
        assert_eq!(late, Err(io::ErrorKind::TimedOut));
    }

    #[tokio::test]
    async fn a_finished_write_has_no_timeout() {
        let (ours, mut theirs) = duplex(1);
        let (mut stream, _) = timed(ours);
        let mut read = [0; 2];
        let (written, _) = tokio::join!(stream.write_all(b"ab"), theirs.read_exact(&mut read));
        written.expect("it is taken");
        assert!(stream.waiting.is_some());
        stream.flush().await.expect("it is taken");
        assert!(stream.waiting.is_none());
    }
}
