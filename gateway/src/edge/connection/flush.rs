//! Sends what is left to be sent, and takes leave.
//!
//! Invariant: every wait here ends when the client has taken nothing for `write_timeout`.
//!
//! Not here: how long a client may take (`deadlines`).

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::PoisonError;
use std::task::{Context, Poll, ready};

use tokio::io::AsyncWrite;

use crate::edge::connection::Connection;
use crate::edge::connection::response_head::last_words;
use crate::response::refusal::Refusal;

impl Connection {
    /// Writes what is held back, and our last words, as far as the socket takes them.
    pub(super) fn poll_send(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let pending = self.pending.get_mut().unwrap_or_else(PoisonError::into_inner);
        self.outgoing.append(&mut pending.answer);
        if let Some(farewell) = &mut self.farewell {
            self.outgoing.append(farewell);
        }
        while !self.outgoing.is_empty() {
            let wrote = Pin::new(&mut self.socket).poll_write(cx, &self.outgoing);
            let sent = ready!(self.poll_progress(cx, wrote))?;
            self.outgoing.drain(..sent);
        }
        Poll::Ready(Ok(()))
    }

    /// Writes what is held back and then `bytes`, of which it says how many went.
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

    /// Sends what TLS has taken and the socket has not, as far as it takes it now: Pingora flushes
    /// a body of known length only at its end, and may wait long for what comes before that.
    pub(super) fn push(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        if !self.socket.has_unsent() {
            return Ok(());
        }
        match Pin::new(&mut self.socket).poll_flush(cx) {
            Poll::Ready(pushed) => pushed,
            Poll::Pending => Ok(()),
        }
    }

    /// Sends what is left, and says that nothing follows.
    pub(super) fn poll_end(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let ended = Pin::new(&mut self.socket).poll_shutdown(cx);
        self.poll_progress(cx, ended)
    }

    /// Makes a refusal the last response, unless there is one already.
    pub(super) fn part_with(&mut self, refusal: &Refusal) {
        if self.farewell.is_none() {
            self.refusals.with_label_values(&[refusal.reason()]).inc();
            self.farewell = Some(last_words(refusal));
        }
    }

    /// Answers in our own words, and ends the connection.
    pub(super) fn part(
        &mut self,
        cx: &mut Context<'_>,
        refusal: Option<Refusal>,
    ) -> Poll<io::Result<()>> {
        if let Some(refusal) = refusal {
            self.part_with(&refusal);
        }
        ready!(self.poll_send(cx))?;
        if self.socket.is_secure() {
            // What TLS keeps would be lost, and an end without its word would be a cut.
            ready!(self.poll_end(cx))?;
        }
        Poll::Ready(Err(io::Error::new(
            io::ErrorKind::TimedOut,
            "the connection's time or room is up",
        )))
    }
}
