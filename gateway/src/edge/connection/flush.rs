//! Writes pending bytes, and closes the connection.
//!
//! Invariant: every wait here ends once the client has read nothing for `write_timeout`.
//!
//! Not here: timing the client (`deadlines`).

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::PoisonError;
use std::task::{Context, Poll, ready};

use tokio::io::AsyncWrite;

use crate::edge::connection::Connection;
use crate::edge::connection::response_head::closing_response;
use crate::response::refusal::Refusal;

impl Connection {
    /// Writes all pending bytes, our own response included, as far as the socket accepts them.
    pub(super) fn poll_send(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let pending = self.pending.get_mut().unwrap_or_else(PoisonError::into_inner);
        self.outgoing.append(&mut pending.answer);
        if let Some(final_response) = &mut self.final_response {
            self.outgoing.append(final_response);
        }
        while !self.outgoing.is_empty() {
            let wrote = Pin::new(&mut self.socket).poll_write(cx, &self.outgoing);
            let sent = ready!(self.poll_progress(cx, wrote))?;
            self.outgoing.drain(..sent);
        }
        Poll::Ready(Ok(()))
    }

    /// Writes pending bytes and then `bytes`. Returns how many of `bytes` were written.
    pub(super) fn poll_pass(
        &mut self,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        while !self.outgoing.is_empty() {
            let both = [IoSlice::new(&self.outgoing), IoSlice::new(bytes)];
            let wrote = Pin::new(&mut self.socket).poll_write_vectored(cx, &both);
            let sent = ready!(self.poll_progress(cx, wrote))?;
            let of_outgoing = sent.min(self.outgoing.len());
            self.outgoing.drain(..of_outgoing);
            if sent > of_outgoing {
                return Poll::Ready(Ok(sent - of_outgoing));
            }
        }
        let wrote = Pin::new(&mut self.socket).poll_write(cx, bytes);
        self.poll_progress(cx, wrote)
    }

    /// Sends what TLS has buffered, as far as the socket accepts it now: Pingora flushes a body of
    /// known length only at its end, and may wait long for the rest of it.
    pub(super) fn push(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        if !self.socket.has_unsent() {
            return Ok(());
        }
        match Pin::new(&mut self.socket).poll_flush(cx) {
            Poll::Ready(pushed) => pushed,
            Poll::Pending => Ok(()),
        }
    }

    /// Closes our side, after TLS has sent what it has buffered.
    pub(super) fn poll_end(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let ended = Pin::new(&mut self.socket).poll_shutdown(cx);
        self.poll_progress(cx, ended)
    }

    /// Makes a refusal the last response, unless one is set already.
    pub(super) fn set_final_response(&mut self, refusal: &Refusal) {
        if self.final_response.is_none() {
            self.refusals.with_label_values(&[refusal.reason()]).inc();
            self.final_response = Some(closing_response(refusal));
        }
    }

    /// Sends pending bytes and `refusal`, then fails, on which Pingora drops the connection.
    pub(super) fn poll_fail(
        &mut self,
        cx: &mut Context<'_>,
        refusal: Option<Refusal>,
    ) -> Poll<io::Result<()>> {
        if let Some(refusal) = refusal {
            self.set_final_response(&refusal);
        }
        ready!(self.poll_send(cx))?;
        if self.socket.is_secure() {
            // Otherwise buffered bytes are lost, and an end without close_notify is a truncation.
            ready!(self.poll_end(cx))?;
        }
        Poll::Ready(Err(io::Error::new(
            io::ErrorKind::TimedOut,
            "the connection's time or room is up",
        )))
    }
}
