//! The standard streams: nothing is read while the client does not read what is written to it, so
//! that what it sends without reading answers does not fill the memory.
//!
//! Not here: the protocol (`server`).

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Whether a write waits for the client, and who waits for its end.
#[derive(Debug, Default)]
struct Pressure {
    is_blocked: bool,
    reader: Option<Waker>,
}

type Shared = Arc<Mutex<Pressure>>;

/// The stream from the client.
#[derive(Debug)]
pub(crate) struct InputStream<R> {
    stream: R,
    pressure: Shared,
}

/// The stream to the client.
#[derive(Debug)]
pub(crate) struct OutputStream<W> {
    stream: W,
    pressure: Shared,
}

/// Both streams of one client.
pub(crate) fn paired<R, W>(input: R, output: W) -> (InputStream<R>, OutputStream<W>) {
    let pressure = Shared::default();
    let input = InputStream { stream: input, pressure: Arc::clone(&pressure) };
    (input, OutputStream { stream: output, pressure })
}

impl<R: AsyncRead + Unpin> AsyncRead for InputStream<R> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        {
            let mut pressure = self.pressure.lock().unwrap_or_else(PoisonError::into_inner);
            if pressure.is_blocked {
                pressure.reader = Some(cx.waker().clone());
                return Poll::Pending;
            }
        }
        Pin::new(&mut self.stream).poll_read(cx, into)
    }
}

impl<W> OutputStream<W> {
    /// Notes whether a write waits.
    fn noted<T>(&self, written: Poll<T>) -> Poll<T> {
        let mut pressure = self.pressure.lock().unwrap_or_else(PoisonError::into_inner);
        pressure.is_blocked = written.is_pending();
        if written.is_ready()
            && let Some(reader) = pressure.reader.take()
        {
            reader.wake();
        }
        written
    }
}

impl<W: AsyncWrite + Unpin> AsyncWrite for OutputStream<W> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.noted(written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        pieces: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, pieces);
        self.noted(written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(cx);
        self.noted(flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};
    use tokio::time::timeout;

    use super::*;

    /// What a pipe holds here.
    const HELD: usize = 8;

    #[tokio::test(start_paused = true)]
    async fn nothing_is_read_while_the_client_does_not_read() {
        let (mut client, ours) = duplex(HELD);
        let (mut input, mut output) = paired(&b"calls"[..], ours);
        let mut one = [0];
        input.read_exact(&mut one).await.unwrap();
        let writing = async move { output.write_all(&[b'x'; 2 * HELD]).await };
        let reading = async {
            let early = timeout(Duration::from_secs(60), input.read_exact(&mut one)).await;
            assert!(early.is_err(), "it reads on");
            client.read_exact(&mut [0; 2 * HELD]).await.unwrap();
            let late = timeout(Duration::from_secs(60), input.read_exact(&mut one)).await;
            late.expect("it reads again").unwrap();
        };
        let (written, ()) = tokio::join!(writing, reading);
        written.unwrap();
        assert_eq!(one, *b"a");
    }
}
