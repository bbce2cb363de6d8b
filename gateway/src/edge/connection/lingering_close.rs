//! Closes a connection whose client is still sending, so that it can read the response.
//!
//! Bytes that are unread at the close make the kernel send a reset, at which clients give up
//! before they look for an answer, or lose the one they had (RFC 9112, 9.6).
//!
//! Invariant: this costs a connection for so long and so many bytes at most.
//!
//! Not here: when a body is left unread (`reply`).

use std::future::Future;
use std::io;
use std::mem::MaybeUninit;
use std::pin::Pin;
use std::sync::PoisonError;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, ReadBuf};
use tokio::time::Sleep;

use crate::edge::connection::Connection;

/// A client that has not noticed by then that it was answered does not look while it sends.
const LINGER_TIME_MAX: Duration = Duration::from_secs(5);

/// More than the buffers between two ends hold: who sends more has not stopped.
const LINGER_BYTES_MAX: usize = 16 << 20;

/// What is read at a time, to be thrown away.
const READ_BYTES: usize = 16 << 10;

/// An HTTP/2 client that has read our goodbye sends no more than what was on its way: the word
/// that it has room, and answers to PINGs. A round trip around the world is over by then.
const GOODBYE_TIME_MAX: Duration = Duration::from_millis(500);

/// A close that waits for the client to stop sending.
#[derive(Debug)]
pub(super) struct LingeringClose {
    /// How long.
    time_max: Duration,
    /// Until when; nothing before our side is closed.
    until: Option<Pin<Box<Sleep>>>,
    discarded: usize,
}

impl LingeringClose {
    /// The close of a connection whose client knows that it ends.
    pub(super) fn briefly() -> Self {
        Self { time_max: GOODBYE_TIME_MAX, until: None, discarded: 0 }
    }
}

impl Connection {
    /// Says that a body was left unread, and that the connection closes.
    pub fn leaves_body(&self) {
        self.pending().linger =
            Some(LingeringClose { time_max: LINGER_TIME_MAX, ..LingeringClose::briefly() });
    }

    /// Closes our side, and reads away what is still coming where that is due.
    pub(super) fn poll_close(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Some(mut linger) = self.lingering().take() else { return self.poll_end(cx) };
        let closed = self.poll_lingering_close(cx, &mut linger);
        if closed.is_pending() {
            *self.lingering() = Some(linger);
        }
        closed
    }

    fn lingering(&mut self) -> &mut Option<LingeringClose> {
        &mut self.pending.get_mut().unwrap_or_else(PoisonError::into_inner).linger
    }

    fn poll_lingering_close(
        &mut self,
        cx: &mut Context<'_>,
        linger: &mut LingeringClose,
    ) -> Poll<io::Result<()>> {
        if linger.until.is_none() {
            ready!(self.poll_end(cx))?;
        }
        let sleep = || Box::pin(tokio::time::sleep(linger.time_max));
        let until = linger.until.get_or_insert_with(sleep);
        while linger.discarded <= LINGER_BYTES_MAX && until.as_mut().poll(cx).is_pending() {
            let mut bytes = [MaybeUninit::uninit(); READ_BYTES];
            let mut rest = ReadBuf::uninit(&mut bytes);
            ready!(Pin::new(&mut self.socket).poll_read(cx, &mut rest))?;
            if rest.filled().is_empty() {
                break;
            }
            linger.discarded += rest.filled().len();
        }
        Poll::Ready(Ok(()))
    }
}
