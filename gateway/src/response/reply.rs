//! Writes an answer of our own, in the place of Pingora where a connection of ours lies below it.
//!
//! # Invariants
//!
//! 1. What follows on a connection can be told apart: a body that was not read away closes it.
//! 2. The answer to HEAD has the fields of the one to GET, and no body (RFC 9110, 9.3.2).
//!
//! # Not here
//!
//! What the answer is (`refusal`, `grpc`, `cors`), and what every answer says (`forwarding`).

use http::{Method, StatusCode, Version, header};
use pingora_core::protocols::http::HttpTask;
use pingora_core::protocols::http::date::get_cached_date;
use pingora_core::{Error, ErrorType, Result};
use pingora_http::ResponseHeader;
use pingora_proxy::Session;

use crate::edge::connection::Connection;
use crate::proxy::context::Exchange;
use crate::proxy::{body, forwarding};

/// An answer of our own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply {
    /// The HTTP status.
    pub status: u16,
    /// Header lines, each with its line end; those that frame the answer are not among them.
    pub lines: String,
    /// The body; none is sent where the status has none.
    pub body: Vec<u8>,
    /// Whether the connection must close after it, whatever has been read.
    pub closes: bool,
    /// Whether it goes out while the body is still coming, where the protocol allows that: a call
    /// of gRPC may be sending for as long as it lasts.
    pub at_once: bool,
}

impl Reply {
    /// An answer without header lines.
    #[must_use]
    pub fn new(status: u16, body: impl Into<Vec<u8>>) -> Self {
        let lines = String::with_capacity(1_024);
        Self { status, lines, body: body.into(), closes: false, at_once: false }
    }

    /// Adds a header.
    pub fn push(&mut self, name: &str, value: &str) {
        for part in [name, ": ", value, "\r\n"] {
            self.lines.push_str(part);
        }
    }

    /// The length that is said, where one may be said (RFC 9110, 8.6).
    fn length(&self) -> Option<usize> {
        (self.status != StatusCode::NO_CONTENT.as_u16()).then_some(self.body.len())
    }

    /// The whole answer as HTTP/1.1 has it.
    #[must_use]
    pub fn to_http1(&self, date: &str, keep: bool, with_body: bool) -> Vec<u8> {
        let status = StatusCode::from_u16(self.status).unwrap_or_default();
        let mut digits = itoa::Buffer::new();
        let length = match self.length() {
            Some(length) => ["Content-Length: ", digits.format(length), "\r\n"],
            None => [""; 3],
        };
        let before =
            ["HTTP/1.1 ", status.as_str(), " ", status.canonical_reason().unwrap_or_default()];
        let connection = if keep { "keep-alive\r\n" } else { "close\r\n" };
        let after = ["Date: ", date, "\r\nConnection: ", connection, &self.lines, "\r\n"];
        let body = if with_body { self.body.as_slice() } else { &[] };
        let mut bytes = Vec::with_capacity(self.lines.len() + body.len() + 128);
        for part in before.iter().chain(&["\r\n"]).chain(&length).chain(&after) {
            bytes.extend_from_slice(part.as_bytes());
        }
        bytes.extend_from_slice(body);
        bytes
    }

    /// Sends it, and keeps the connection where what follows on it can be told apart.
    pub async fn send(mut self, session: &mut Session, exchange: &mut Exchange) -> Result<()> {
        self.lines.push_str(&forwarding::lines(exchange));
        let with_body = session.req_header().method != Method::HEAD;
        if session.req_header().version == Version::HTTP_2 {
            return self.send_by_http2(session, with_body).await;
        }
        if self.closes {
            session.set_keepalive(None);
        } else {
            body::drain(&mut session.downstream_session).await;
        }
        let is_broken = Connection::of(session.stream()).is_some_and(Connection::has_broken_body);
        if is_broken || !session.downstream_session.is_body_done() {
            session.set_keepalive(None);
        }
        let Some(connection) = Connection::of(session.stream()) else {
            return Error::e_explain(ErrorType::InternalError, "no connection to answer on");
        };
        let keep = session.downstream_session.as_http1().is_some_and(|h1| h1.will_keepalive());
        let date = get_cached_date();
        exchange.answered_bytes = if with_body { self.body.len() } else { 0 };
        connection.answer(self.to_http1(date.to_str().unwrap_or_default(), keep, with_body));
        Ok(())
    }

    /// Sends it on a stream of HTTP/2, whose end stands in the head where there is no body:
    /// clients of gRPC ask for that.
    ///
    /// A small body is read first here, too: some clients lose track of an answer that comes before
    /// they have sent one.
    async fn send_by_http2(self, session: &mut Session, with_body: bool) -> Result<()> {
        let waits = session.req_header().headers.contains_key(header::EXPECT);
        if !self.at_once && !waits {
            body::drain(&mut session.downstream_session).await;
        }
        let mut head = ResponseHeader::build_no_case(self.status, Some(16))?;
        if let Some(length) = self.length() {
            head.insert_header(header::CONTENT_LENGTH, length)?;
        }
        forwarding::add_text(&mut head, &self.lines)?;
        let with_body = with_body && !self.body.is_empty();
        let mut tasks = vec![HttpTask::Header(Box::new(head), !with_body)];
        tasks.extend(with_body.then(|| HttpTask::Body(Some(self.body.into()), true)));
        session.downstream_session.response_duplex_vec(tasks).await.map(drop)
    }
}

/// Ends an exchange whose answer came before the end of the body, so that the client can still read
/// the answer. Pingora would close the connection at once, or reset the stream of HTTP/2, which is
/// right (RFC 9113, 8.1), but makes some clients forget what they have just been told.
pub async fn close(session: &mut Session) {
    body::await_end(&mut session.downstream_session).await;
    let unread = !session.downstream_session.is_body_done();
    let closes = session.downstream_session.as_http1().is_some_and(|h1| !h1.will_keepalive());
    if let Some(connection) = Connection::of(session.stream()).filter(|_| unread && closes) {
        connection.leaves_body();
        session.downstream_session.shutdown().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(reply: &Reply, keep: bool, with_body: bool) -> String {
        String::from_utf8(reply.to_http1("now", keep, with_body)).unwrap()
    }

    #[test]
    fn an_answer_is_whole_and_as_long_as_it_says() {
        let mut reply = Reply::new(404, "gone");
        reply.push("X", "y");
        assert_eq!(
            written(&reply, false, true),
            "HTTP/1.1 404 Not Found\r\nContent-Length: 4\r\nDate: now\r\nConnection: close\r\n\
             X: y\r\n\r\ngone"
        );
    }

    #[test]
    fn the_answer_to_head_lacks_the_body_and_nothing_else() {
        let reply = Reply::new(429, "wait");
        let whole = written(&reply, true, true);
        assert_eq!(whole.strip_suffix("wait").unwrap(), written(&reply, true, false));
        assert!(whole.contains("Connection: keep-alive\r\n"));
    }

    #[test]
    fn no_content_has_no_length() {
        assert!(!written(&Reply::new(204, ""), true, true).contains("Content-Length"));
    }
}
