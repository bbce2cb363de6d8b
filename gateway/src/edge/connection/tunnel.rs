//! Closes a WebSocket at the end of a stop: sends a close frame with 1001 (going away) to each
//! side (RFC 6455, 7.4.1).
//!
//! # Invariants
//!
//! 1. A close frame is sent between two frames, never within one, and nothing follows it.
//! 2. Where a close frame or bytes that are not frames have passed in a direction, we send no
//!    close frame in it.
//!
//! # Not here
//!
//! Where frames start (`connection::frames`), when a stop ends (`app::serving`).

use std::fmt;
use std::future::Future;
use std::io;
use std::mem::MaybeUninit;
use std::pin::Pin;
use std::sync::PoisonError;
use std::task::{Context, Poll};

use http::header;
use pingora_core::protocols::http::v1::server::HttpSession;
use pingora_http::ResponseHeader;
use tokio::io::{AsyncRead, ReadBuf};
use tokio::sync::watch;

use crate::edge::connection::Connection;
use crate::edge::connection::frames::Frames;
use crate::edge::drain::turned;

/// A server's close frame with 1001.
const TO_CLIENT: [u8; 4] = [0x88, 0x02, 0x03, 0xe9];

/// A client's close frame with 1001. Clients mask their frames; a mask of zeros is valid.
const TO_SERVER: [u8; 8] = [0x88, 0x82, 0, 0, 0, 0, 0x03, 0xe9];

/// Bytes to read at a time, and discard.
const READ_BYTES: usize = 4 << 10;

/// A WebSocket, and the state of its frames in each direction.
pub(super) struct Tunnel {
    from_client: Frames,
    to_client: Frames,
    /// Ready once tunnels have to close.
    going: Pin<Box<dyn Future<Output = ()> + Send + Sync>>,
    leaving: bool,
    /// Whether our close frame is on its way to each side.
    closed_to_client: bool,
    closed_to_server: bool,
}

impl Tunnel {
    fn new(mut going: watch::Receiver<bool>) -> Self {
        Self {
            from_client: Frames::new(true),
            to_client: Frames::new(false),
            going: Box::pin(async move { turned(&mut going).await }),
            leaving: false,
            closed_to_client: false,
            closed_to_server: false,
        }
    }

    /// The part of `bytes` to send to the client now: while closing, up to the end of a frame;
    /// after our close frame, nothing.
    pub(super) fn passing<'b>(&self, bytes: &'b [u8]) -> &'b [u8] {
        if self.closed_to_client {
            return &[];
        }
        if !self.leaving {
            return bytes;
        }
        let count = self.to_client.clone().follow_frame(bytes);
        bytes.get(..count).unwrap_or(bytes)
    }

    /// Records bytes that were sent to the client.
    pub(super) fn passed(&mut self, bytes: &[u8]) {
        self.to_client.follow(bytes);
    }
}

impl fmt::Debug for Tunnel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tunnel").field("leaving", &self.leaving).finish_non_exhaustive()
    }
}

impl Connection {
    /// Follows the frames of the tunnel from here on, if `answer` switches to WebSocket.
    pub fn follow_frames(&self, session: Option<&HttpSession>, answer: &ResponseHeader) {
        let protocol = answer.headers.get(header::UPGRADE).map(|protocol| protocol.as_bytes());
        if !protocol.is_some_and(|protocol| protocol.eq_ignore_ascii_case(b"websocket")) {
            return;
        }
        let mut tunnel = Tunnel::new(self.going.clone());
        tunnel.from_client.follow(session.map(|one| self.beyond_head(one)).unwrap_or_default());
        self.pending().tunnel = Some(Box::new(tunnel));
    }

    /// The tunnel, once the head of its 101 is written.
    pub(super) fn tunnel(&mut self) -> Option<&mut Tunnel> {
        let pending = self.pending.get_mut().unwrap_or_else(PoisonError::into_inner);
        pending.tunnel.as_deref_mut().filter(|_| !pending.awaits_head)
    }

    /// Before a read from the client: if tunnels have to close, sends close frames at frame
    /// boundaries. Ready where `buf` has the one for the server, and nothing else is read.
    pub(super) fn poll_closing(
        &mut self,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let Some(tunnel) = self.tunnel() else { return Poll::Pending };
        tunnel.leaving = tunnel.leaving || tunnel.going.as_mut().poll(cx).is_ready();
        if !tunnel.leaving {
            return Poll::Pending;
        }
        self.close_to_client();
        // What the socket does not accept now is sent before anything that is written next.
        let _ = self.poll_send(cx)?;
        let Some(tunnel) = self.tunnel() else { return Poll::Pending };
        if tunnel.from_client.is_between() && buf.remaining() >= TO_SERVER.len() {
            buf.put_slice(&TO_SERVER);
            tunnel.from_client.close();
            tunnel.closed_to_server = true;
            return Poll::Ready(Ok(()));
        }
        Poll::Pending
    }

    /// Queues our close frame for the client, if the tunnel closes and a frame has just ended.
    pub(super) fn close_to_client(&mut self) {
        let Some(tunnel) = self.tunnel() else { return };
        if tunnel.leaving && tunnel.to_client.is_between() {
            tunnel.to_client.close();
            tunnel.closed_to_client = true;
            self.outgoing.extend_from_slice(&TO_CLIENT);
        }
    }

    /// Whether the server gets our close frame, so that what the client sends is discarded.
    pub(super) fn server_has_close(&mut self) -> bool {
        self.tunnel().is_some_and(|tunnel| tunnel.closed_to_server)
    }

    /// Discards what the client still sends: unread bytes at the close would make it lose our
    /// close frame. The tunnel ends when the server closes it.
    pub(super) fn poll_discard(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        loop {
            let mut bytes = [MaybeUninit::uninit(); READ_BYTES];
            let mut rest = ReadBuf::uninit(&mut bytes);
            match Pin::new(&mut self.socket).poll_read(cx, &mut rest) {
                Poll::Ready(Ok(())) if !rest.filled().is_empty() => {}
                _ => return Poll::Pending,
            }
        }
    }

    /// Follows the frames in what was just read from the client. While the tunnel closes, truncates
    /// `buf` at the first frame boundary, where our close frame goes.
    pub(super) fn pass_to_server(&mut self, buf: &mut ReadBuf<'_>, before: usize) {
        let Some(tunnel) = self.tunnel() else { return };
        let bytes = buf.filled().get(before..).unwrap_or_default();
        if !tunnel.leaving {
            return tunnel.from_client.follow(bytes);
        }
        let count = tunnel.from_client.follow_frame(bytes);
        buf.set_filled(before + count);
    }
}
