//! A response that the gateway itself generates, as a value. (core)
//!
//! Invariant: a response to HEAD has the fields of one to GET, and no body (RFC 9110, 9.3.2).
//!
//! Not here: its content (`refusal`, `grpc`, `request::cors`), how it is sent (`proxy::respond`).

use http::StatusCode;

/// A response of the gateway.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply {
    /// The HTTP status.
    pub status: u16,
    /// Header lines, each with its CRLF, without `Content-Length`, `Date` and `Connection`.
    pub lines: String,
    /// The body; must be empty for a 204.
    pub body: Vec<u8>,
    /// Whether the connection must close after it, even if the whole request has been read.
    pub closes: bool,
    /// Whether, over HTTP/2, it is sent before the request body has ended: a gRPC client may stream
    /// its body for as long as the call lasts.
    pub at_once: bool,
}

impl Reply {
    /// A response without header lines.
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

    /// The value of `Content-Length`, if the status allows one (RFC 9110, 8.6).
    #[must_use]
    pub fn length(&self) -> Option<usize> {
        (self.status != StatusCode::NO_CONTENT.as_u16()).then_some(self.body.len())
    }

    /// The whole response as HTTP/1.1 bytes.
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
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(reply: &Reply, keep: bool, with_body: bool) -> String {
        String::from_utf8(reply.to_http1("now", keep, with_body)).unwrap()
    }

    #[test]
    fn an_answer_is_complete_and_its_length_is_right() {
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
