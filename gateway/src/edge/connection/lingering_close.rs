//! Closes a connection whose client is still sending, so that it can read the response.
//!
//! If bytes are unread at the close, the kernel sends a reset, at which a client may stop before
//! it reads the response, or lose one that has arrived (RFC 9112, 9.6).
//!
//! Invariant: once our side is closed, a close lingers for at most `LINGER_TIME_MAX`, and discards
//! about `LINGER_BYTES_MAX`.
//!
//! Not here: when a body is left unread (`http1`).

use std::future::Future;
use std::io;
use std::mem::MaybeUninit;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, ReadBuf};
use tokio::time::Sleep;

use crate::edge::connection::Connection;

/// A client that has not read the response within this time does not read while it sends.
const LINGER_TIME_MAX: Duration = Duration::from_secs(5);

/// More than the buffers between client and gateway: a client that sends more has not stopped.
const LINGER_BYTES_MAX: usize = 16 << 20;

/// Bytes to read at a time, and discard.
const READ_BYTES: usize = 16 << 10;

/// After GOAWAY an HTTP/2 client sends only what was on its way: WINDOW_UPDATE, and replies to
/// PING. A round trip around the world takes less than this.
const GOAWAY_TIME_MAX: Duration = Duration::from_millis(500);

/// A close that waits for the client to stop sending.
#[derive(Debug)]
pub(super) struct LingeringClose {
    /// How long it may take, once our side is closed.
    time_max: Duration,
    /// When it ends; set once our side is closed.
    until: Option<Pin<Box<Sleep>>>,
    discarded: usize,
}

impl LingeringClose {
    /// The close of an HTTP/2 connection, whose client has received GOAWAY.
    pub(super) fn briefly() -> Self {
        Self { time_max: GOAWAY_TIME_MAX, until: None, discarded: 0 }
    }
}

impl Connection {
    /// Records that a body was left unread, so that the close lingers.
    pub fn leaves_body(&mut self) {
        self.linger =
            Some(LingeringClose { time_max: LINGER_TIME_MAX, ..LingeringClose::briefly() });
    }

    /// Closes our side; if a lingering close is due, then discards what still arrives.
    pub(super) fn poll_close(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Some(mut linger) = self.linger.take() else { return self.poll_end(cx) };
        let closed = self.poll_lingering_close(cx, &mut linger);
        if closed.is_pending() {
            self.linger = Some(linger);
        }
        closed
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
