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
//! Where frames start (`http1::frames`), when a stop ends (`app::serving`).

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::Context;

use bytes::{Bytes, BytesMut};
use tokio::sync::watch;

use crate::edge::drain::wait_until_true;
use crate::edge::http1::frames::Frames;

/// A server's close frame with 1001.
const TO_CLIENT: [u8; 4] = [0x88, 0x02, 0x03, 0xe9];

/// A client's close frame with 1001. Clients mask their frames; a mask of zeros is valid.
const TO_SERVER: [u8; 8] = [0x88, 0x82, 0, 0, 0, 0, 0x03, 0xe9];

/// A WebSocket, and the state of its frames in each direction.
pub(super) struct Tunnel {
    from_client: Frames,
    to_client: Frames,
    /// Ready once tunnels have to close.
    close_tunnels: Pin<Box<dyn Future<Output = ()> + Send + Sync>>,
    leaving: bool,
    /// Whether our close frame is on its way to each side.
    closed_to_client: bool,
    closed_to_server: bool,
}

impl Tunnel {
    pub(super) fn new(mut close_tunnels: watch::Receiver<bool>) -> Self {
        Self {
            from_client: Frames::new(true),
            to_client: Frames::new(false),
            close_tunnels: Box::pin(async move { wait_until_true(&mut close_tunnels).await }),
            leaving: false,
            closed_to_client: false,
            closed_to_server: false,
        }
    }

    /// Checks whether tunnels have to close, and then adds our close frame for the client to
    /// `outgoing` if a frame has just ended.
    pub(super) fn check(&mut self, cx: &mut Context<'_>, outgoing: &mut Vec<u8>) {
        self.leaving = self.leaving || self.close_tunnels.as_mut().poll(cx).is_ready();
        self.close_to_client(outgoing);
    }

    /// Removes what the server gets next from the bytes that the client has sent: while closing, up
    /// to the end of a frame, then our close frame, then nothing.
    pub(super) fn next_to_server(&mut self, buffer: &mut BytesMut) -> Option<Bytes> {
        if self.leaving && self.from_client.is_between() {
            self.from_client.close();
            self.closed_to_server = true;
            buffer.clear();
            return Some(Bytes::from_static(&TO_SERVER));
        }
        if self.closed_to_server {
            // Unread bytes at the close would make the client lose our close frame.
            buffer.clear();
        }
        if buffer.is_empty() {
            return None;
        }
        let count = match self.leaving {
            true => self.from_client.follow_frame(buffer),
            false => {
                self.from_client.follow(buffer);
                buffer.len()
            }
        };
        Some(buffer.split_to(count).freeze())
    }

    /// Adds `bytes` from the server to what the client gets: while closing, up to the end of a
    /// frame, then our close frame, then nothing.
    pub(super) fn pass_to_client(&mut self, mut bytes: &[u8], outgoing: &mut Vec<u8>) {
        if !self.leaving {
            self.to_client.follow(bytes);
            return outgoing.extend_from_slice(bytes);
        }
        while !self.closed_to_client && !bytes.is_empty() {
            let (frame, rest) = bytes.split_at(self.to_client.follow_frame(bytes));
            outgoing.extend_from_slice(frame);
            self.close_to_client(outgoing);
            bytes = rest;
        }
    }

    /// Whether the server gets our close frame, so that the tunnel ends when the server closes it.
    pub(super) fn server_has_close(&self) -> bool {
        self.closed_to_server
    }

    fn close_to_client(&mut self, outgoing: &mut Vec<u8>) {
        if self.leaving && !self.closed_to_client && self.to_client.is_between() {
            self.to_client.close();
            self.closed_to_client = true;
            outgoing.extend_from_slice(&TO_CLIENT);
        }
    }
}

impl fmt::Debug for Tunnel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tunnel").field("leaving", &self.leaving).finish_non_exhaustive()
    }
}
