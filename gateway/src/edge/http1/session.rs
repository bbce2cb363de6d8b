//! One HTTP/1 request as a session of Pingora's.
//!
//! # Invariants
//!
//! 1. A body that is malformed or ends early fails, and its connection is not kept.
//! 2. A response that is not whole breaks off its connection; one that is whole and written before
//!    the end of the request closes it.
//! 3. The connection returns to its owner when the session is dropped, however the request ends.
//!
//! # Not here
//!
//! Whether a request is forwarded (`proxy`), the connection's next request (`http1`).

use std::future::poll_fn;
use std::io;
use std::sync::{Arc, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::{StatusCode, Version, header};
use pingora_core::protocols::http::HttpTask;
use pingora_core::{Error, ErrorType, OrErr, Result};
use pingora_http::{RequestHeader, ResponseHeader};
use tokio::sync::watch;
use weir_common::time::Tick;

use crate::edge::exchange::{Exchange, Replay};
use crate::edge::http1::body::{Body, RetryBuffer};
use crate::edge::http1::buffered_connection::BufferedConnection;
use crate::edge::http1::head::Head;
use crate::edge::http1::piece::Piece;
use crate::edge::http1::response::{Framing, write_head};
use crate::edge::http1::returned::{Returned, Slot, Then};
use crate::edge::http1::tunnel::Tunnel;

/// The type of the error of a malformed request body.
pub const BROKEN_BODY: ErrorType = ErrorType::Custom("BrokenBody");

/// Bytes to read at a time after a request: they belong to the next one.
const NEXT_READ: usize = 64;

/// A request and its response.
pub(super) struct Http1Session {
    /// `Some` until dropped.
    pub(super) buffered: Option<Box<BufferedConnection>>,
    slot: Slot,
    exchange: Arc<Exchange>,
    /// Ready when tunnels have to close.
    close_tunnels: watch::Receiver<bool>,
    pub(super) request: Box<Head>,
    body: Body,
    pub(super) replay: Replay,
    pub(super) retry_buffer: Option<RetryBuffer>,
    pub(super) read_timeout: Option<Duration>,
    /// Since when more of the body is awaited.
    awaited_from: Option<Tick>,
    client_has_closed: bool,
    pub(super) response: Option<Box<ResponseHeader>>,
    framing: Framing,
    is_tunnel: bool,
    tunnel: Option<Tunnel>,
    is_complete: bool,
    pub(super) received: usize,
    pub(super) sent: usize,
}

impl Http1Session {
    pub(super) fn new(
        buffered: Box<BufferedConnection>,
        request: Box<Head>,
        slot: Slot,
        exchange: Arc<Exchange>,
        close_tunnels: watch::Receiver<bool>,
    ) -> Self {
        Self {
            buffered: Some(buffered),
            slot,
            exchange,
            close_tunnels,
            body: Body::new(request.framing),
            request,
            replay: Replay::default(),
            retry_buffer: None,
            read_timeout: None,
            awaited_from: None,
            client_has_closed: false,
            response: None,
            framing: Framing::Awaited,
            is_tunnel: false,
            tunnel: None,
            is_complete: false,
            received: 0,
            sent: 0,
        }
    }

    pub(super) fn head(&self) -> &RequestHeader {
        &self.request.request
    }

    pub(super) fn replayed(&self) -> Option<&Bytes> {
        Replay::body(&self.exchange)
    }

    pub(super) fn is_upgrade(&self) -> bool {
        let head = self.head();
        head.version == Version::HTTP_11 && head.headers.contains_key(header::UPGRADE)
    }

    pub(super) fn was_upgraded(&self) -> bool {
        self.is_tunnel
    }

    /// Whether the request has no body, or one that turned out to be empty: then a server that is
    /// tried after another gets none.
    pub(super) fn has_no_body(&self) -> bool {
        self.body.is_over() && self.received == 0
    }

    /// Whether the client has sent its body to the end.
    pub(super) fn is_read(&self) -> bool {
        self.body.is_over()
    }

    /// Reads the next piece of the body.
    pub(super) async fn read(&mut self) -> Result<Option<Bytes>> {
        if let Some(body) = Replay::body(&self.exchange) {
            return Ok(self.replay.next(body));
        }
        self.awaited_from = None;
        poll_fn(|cx| self.poll_read(cx)).await
    }

    fn poll_read(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Bytes>>> {
        loop {
            match self.next_piece(cx) {
                Piece::Data(bytes) => {
                    self.received += bytes.len();
                    self.retry_buffer.iter_mut().for_each(|buffer| buffer.add(&bytes));
                    return Poll::Ready(Ok(Some(bytes)));
                }
                Piece::End => return Poll::Ready(Ok(None)),
                Piece::Broken => {
                    return Poll::Ready(Error::e_explain(BROKEN_BODY, "no chunked body").down());
                }
                Piece::Partial => {}
            }
            let size = self.body.read_size();
            let Some(buffered) = &mut self.buffered else { return Poll::Ready(Ok(None)) };
            match buffered.poll_fill(cx, size) {
                Poll::Ready(Ok(1..)) => {
                    buffered.upload.received();
                    self.note_passage();
                }
                Poll::Ready(Ok(_)) => match &self.tunnel {
                    // The tunnel ends when the server closes it.
                    Some(tunnel) if tunnel.server_has_close() => return Poll::Pending,
                    _ => return Poll::Ready(self.end_of_client()),
                },
                Poll::Ready(Err(error)) => return Poll::Ready(read_failed(error)),
                Poll::Pending => {
                    buffered.release_buffer();
                    buffered.upload.awaited();
                    return self.poll_wait(cx);
                }
            }
        }
    }

    fn next_piece(&mut self, cx: &mut Context<'_>) -> Piece {
        let Some(buffered) = &mut self.buffered else { return Piece::End };
        let Some(tunnel) = &mut self.tunnel else { return self.body.next(&mut buffered.buffer) };
        tunnel.check(cx, &mut buffered.outgoing);
        tunnel.next_to_server(&mut buffered.buffer).map_or(Piece::Partial, Piece::Data)
    }

    /// The client has closed its side before the end of its body.
    fn end_of_client(&mut self) -> Result<Option<Bytes>> {
        if self.is_tunnel {
            self.body.end();
            return Ok(None);
        }
        Error::e_explain(ErrorType::ConnectionClosed, "the client has closed").down()
    }

    /// Before a wait for the client: sends what is left to send, and sets the timers.
    fn poll_wait(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Bytes>>> {
        let Some(buffered) = &mut self.buffered else { return Poll::Pending };
        if let Err(error) = buffered.send_now(cx) {
            return Poll::Ready(read_failed(error));
        }
        if let Some(ends) = self.exchange.silence().ends()
            && buffered.poll_deadline(cx, ends).is_ready()
        {
            self.exchange.silence().set_exceeded();
            return Poll::Ready(read_failed(io::ErrorKind::TimedOut.into()));
        }
        if let Some(timeout) = self.read_timeout.filter(|_| !self.body.is_over()) {
            let from = *self.awaited_from.get_or_insert_with(|| buffered.connection.now());
            if buffered.poll_deadline(cx, from.plus(timeout)).is_ready() {
                let late = Error::e_explain(ErrorType::ReadTimedout, "the body did not come");
                return Poll::Ready(late.down());
            }
        }
        Poll::Pending
    }

    /// After the end of the body: ready only when the client closes its side, or fails. What it
    /// sends belongs to its next request.
    pub(super) async fn await_close(&mut self) -> Result<Option<Bytes>> {
        poll_fn(|cx| {
            let Some(buffered) = &mut self.buffered else { return Poll::Pending };
            if !self.client_has_closed && buffered.buffer.is_empty() {
                match buffered.poll_fill(cx, NEXT_READ) {
                    Poll::Ready(Ok(0)) => self.client_has_closed = true,
                    Poll::Ready(Err(error)) => return Poll::Ready(read_failed(error)),
                    Poll::Ready(Ok(_)) | Poll::Pending => {}
                }
            }
            if self.client_has_closed {
                return Poll::Ready(self.end_of_client());
            }
            self.poll_wait(cx)
        })
        .await
    }

    fn note_passage(&self) {
        if self.exchange.silence().is_timed()
            && let Some(buffered) = &self.buffered
        {
            self.exchange.silence().restart(buffered.connection.now());
        }
    }

    /// Writes parts of a response. Returns whether it has ended.
    pub(super) async fn write(&mut self, tasks: Vec<HttpTask>) -> Result<bool> {
        let (mut ends, mut waits) = (false, false);
        for task in tasks {
            (ends, waits) = match task {
                // A head waits for the first part of its body. If that does not follow at once,
                // the wait for the client sends it.
                HttpTask::Header(head, ends) => (ends, self.begin(head) && self.has_no_body()),
                HttpTask::Body(data, ends) | HttpTask::UpgradedBody(data, ends) => {
                    self.write_part(data.unwrap_or_default()).await?;
                    (ends, false)
                }
                HttpTask::Trailer(_) | HttpTask::Done => (true, false),
                HttpTask::Failed(error) => {
                    self.flush().await?;
                    return Err(error);
                }
            };
        }
        if ends {
            self.finish().await?;
        } else if !waits || self.framing.is_over() {
            self.flush().await?;
        }
        Ok(ends || self.framing.is_over())
    }

    /// Starts the response with `head`. Returns whether it is the final one.
    pub(super) fn begin(&mut self, head: Box<ResponseHeader>) -> bool {
        let Some(buffered) = &mut self.buffered else { return false };
        if self.framing != Framing::Awaited {
            return true; // Pingora writes no second response.
        }
        let is_switch = head.status == StatusCode::SWITCHING_PROTOCOLS;
        if head.status.is_informational() && !is_switch {
            // HTTP/1.0 has no interim responses (RFC 9110, 15.2).
            if self.request.request.version != Version::HTTP_10 {
                write_head(&head, true, "", &mut buffered.outgoing);
            }
            self.response = Some(head);
            return false;
        }
        let method = &self.request.request.method;
        self.framing = Framing::of(method, &head, is_switch);
        if self.framing == Framing::Close || !self.body.is_over() {
            self.exchange.close();
        }
        if is_switch {
            self.is_tunnel = true;
            self.body.switch();
            let protocol = head.headers.get(header::UPGRADE).map(|protocol| protocol.as_bytes());
            if protocol.is_some_and(|protocol| protocol.eq_ignore_ascii_case(b"websocket")) {
                self.tunnel = Some(Tunnel::new(self.close_tunnels.clone()));
            }
        }
        let keeps = !self.exchange.closes();
        write_head(&head, keeps, self.exchange.lines(), &mut buffered.outgoing);
        self.response = Some(head);
        true
    }

    pub(super) async fn write_part(&mut self, data: Bytes) -> Result<()> {
        let Some(buffered) = self.buffered.as_mut().filter(|_| !data.is_empty()) else {
            return Ok(());
        };
        let written = match &mut self.tunnel {
            Some(tunnel) => {
                self.sent += data.len();
                tunnel.pass_to_client(&data, &mut buffered.outgoing);
                buffered.send(Bytes::new()).await
            }
            None => {
                let part = self.framing.begin(data, &mut buffered.outgoing);
                self.sent += part.len();
                let sent = buffered.send(part).await;
                self.framing.end(&mut buffered.outgoing);
                sent
            }
        };
        self.note_passage();
        written.or_err(ErrorType::WriteError, "the response").down()
    }

    pub(super) async fn flush(&mut self) -> Result<()> {
        let Some(buffered) = &mut self.buffered else { return Ok(()) };
        buffered.flush().await.or_err(ErrorType::WriteError, "the response").down()
    }

    /// Ends the response: with its last chunk, or as a whole where one is set.
    pub(super) async fn finish(&mut self) -> Result<()> {
        let Some(buffered) = &mut self.buffered else { return Ok(()) };
        let answer = self.exchange.response().filter(|_| self.framing == Framing::Awaited);
        if let Some(answer) = answer {
            buffered.outgoing.extend_from_slice(answer);
            self.framing = Framing::Over;
        }
        if !self.framing.finish(&mut buffered.outgoing) {
            return Error::e_explain(ErrorType::WriteError, "the response is not whole").down();
        }
        self.flush().await?;
        self.is_complete = self.framing == Framing::Over;
        if self.is_tunnel {
            self.body.end();
        }
        Ok(())
    }

    fn then(&self) -> Then {
        // What follows a malformed head may be anything.
        let is_read = self.body.is_over() && self.request.malformed.is_none();
        match (self.is_complete, is_read) {
            (false, _) if self.framing == Framing::Close && !self.is_tunnel => Then::Reset,
            (false, _) => Then::BreakOff,
            (true, true) if !self.exchange.closes() && !self.client_has_closed => Then::Keep,
            (true, true) => Then::Close,
            (true, false) => Then::Linger,
        }
    }
}

impl Drop for Http1Session {
    fn drop(&mut self) {
        let then = self.then();
        if let Some(buffered) = self.buffered.take() {
            *self.slot.lock().unwrap_or_else(PoisonError::into_inner) =
                Some(Returned { buffered, then });
        }
    }
}

/// Marks errors as the client's.
trait Down<T> {
    fn down(self) -> Result<T>;
}

impl<T> Down<T> for Result<T> {
    fn down(self) -> Self {
        self.map_err(|error| error.into_down())
    }
}

fn read_failed<T>(error: io::Error) -> Result<T> {
    Err(error).or_err(ErrorType::ReadError, "the request").down()
}
