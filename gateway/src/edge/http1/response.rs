//! Writes responses: their heads, and the framing of their bodies (RFC 9112, 6.3).
//!
//! Not here: when bytes are sent (`http1::session`).

use std::io::Write;

use bytes::Bytes;
use http::{Method, StatusCode, Version, header};
use pingora_core::protocols::http::date::get_cached_date;
use pingora_http::{HeaderNameVariant, ResponseHeader};

/// How the end of a response's body is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Framing {
    /// No head has been written.
    Awaited,
    /// Bytes left.
    Length(usize),
    Chunked,
    /// By the close of the connection.
    Close,
    /// The body has ended.
    Over,
}

impl Framing {
    /// The framing of a response to `method`.
    pub(super) fn of(method: &Method, head: &ResponseHeader, is_tunnel: bool) -> Self {
        if is_tunnel {
            return Self::Close;
        }
        let is_empty = matches!(head.status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED);
        if is_empty || method == Method::HEAD {
            return Self::Length(0);
        }
        if let Some(coding) = head.headers.get_all(header::TRANSFER_ENCODING).iter().next_back() {
            let last = coding.as_bytes().rsplit(|byte| *byte == b',').next().unwrap_or_default();
            let is_chunked = last.trim_ascii().eq_ignore_ascii_case(b"chunked");
            return if is_chunked { Self::Chunked } else { Self::Close };
        }
        let length = head
            .headers
            .get(header::CONTENT_LENGTH)
            .and_then(|length| length.to_str().ok()?.split(',').next()?.trim().parse().ok());
        length.map_or(Self::Close, Self::Length)
    }

    /// Whether nothing more of the body is awaited.
    pub(super) fn is_over(self) -> bool {
        matches!(self, Self::Length(0) | Self::Over)
    }

    /// The part of `data` to send; adds what precedes it to `outgoing`.
    pub(super) fn begin(&mut self, mut data: Bytes, outgoing: &mut Vec<u8>) -> Bytes {
        match self {
            Self::Awaited | Self::Over => data.clear(),
            Self::Length(left) => {
                data.truncate(*left);
                *left -= data.len();
            }
            Self::Chunked => {
                // Writing to memory does not fail.
                let _ = write!(outgoing, "{:X}\r\n", data.len());
            }
            Self::Close => {}
        }
        data
    }

    /// Adds what follows a part to `outgoing`.
    pub(super) fn end(self, outgoing: &mut Vec<u8>) {
        if self == Self::Chunked {
            outgoing.extend_from_slice(b"\r\n");
        }
    }

    /// Ends the body. False where a part of it is missing.
    pub(super) fn finish(&mut self, outgoing: &mut Vec<u8>) -> bool {
        let is_whole = !matches!(self, Self::Length(1..));
        match self {
            Self::Awaited => return true,
            Self::Chunked => outgoing.extend_from_slice(b"0\r\n\r\n"),
            Self::Length(_) | Self::Close | Self::Over => {}
        }
        *self = Self::Over;
        is_whole
    }
}

/// Adds a head to `outgoing`, with `lines` of our own, each with its line end. That of a final
/// response has our own `Connection`, and `Date` where the upstream has sent none.
pub(super) fn write_head(head: &ResponseHeader, keeps: bool, lines: &str, outgoing: &mut Vec<u8>) {
    let is_final = !head.status.is_informational();
    let version = if head.version == Version::HTTP_10 { "HTTP/1.0 " } else { "HTTP/1.1 " };
    for part in [version, head.status.as_str(), " ", head.get_reason_phrase().unwrap_or_default()] {
        outgoing.extend_from_slice(part.as_bytes());
    }
    outgoing.extend_from_slice(b"\r\n");
    let mut has_date = false;
    let added = head.map(|name, value| {
        let name = match name {
            HeaderNameVariant::Case(name) => name.as_slice(),
            HeaderNameVariant::Titled(name) => name.as_bytes(),
        };
        let is_ours = is_final && name.eq_ignore_ascii_case(b"connection");
        // A 204 has no body, and must not have a coding of one (RFC 9112, 6.1).
        let is_void = head.status == StatusCode::NO_CONTENT
            && name.eq_ignore_ascii_case(b"transfer-encoding");
        if is_ours || is_void {
            return Ok(());
        }
        has_date |= name.eq_ignore_ascii_case(b"date");
        for part in [name, b": ", value.as_bytes(), b"\r\n"] {
            outgoing.extend_from_slice(part);
        }
        Ok(())
    });
    debug_assert!(added.is_ok(), "the closure returns no error");
    if is_final {
        if !has_date {
            for part in [&b"Date: "[..], get_cached_date().as_bytes(), b"\r\n"] {
                outgoing.extend_from_slice(part);
            }
        }
        // A sender of `Upgrade` names it as an option of the connection (RFC 9110, 7.8).
        let names = head.status == StatusCode::UPGRADE_REQUIRED
            && head.headers.contains_key(header::UPGRADE);
        let upgrade = if names { "upgrade, " } else { "" };
        for part in ["Connection: ", upgrade, if keeps { "keep-alive\r\n" } else { "close\r\n" }] {
            outgoing.extend_from_slice(part.as_bytes());
        }
    }
    outgoing.extend_from_slice(lines.as_bytes());
    outgoing.extend_from_slice(b"\r\n");
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head(status: u16, fields: &[(&'static str, &'static str)]) -> ResponseHeader {
        let mut head = ResponseHeader::build(status, None).unwrap();
        for (name, value) in fields {
            head.append_header(*name, *value).unwrap();
        }
        head
    }

    fn written(head: &ResponseHeader, keeps: bool, lines: &str) -> String {
        let mut outgoing = Vec::new();
        write_head(head, keeps, lines, &mut outgoing);
        String::from_utf8(outgoing).unwrap()
    }

    #[test]
    fn a_final_head_has_our_lines_our_connection_and_a_date() {
        let from = head(200, &[("Connection", "x"), ("dAte", "now"), ("A", "b"), ("A", "c")]);
        let expected =
            "HTTP/1.1 200 OK\r\ndAte: now\r\nA: b\r\nA: c\r\nConnection: close\r\nX: y\r\n\r\n";
        assert_eq!(written(&from, false, "X: y\r\n"), expected);
        let text =
            written(&head(204, &[("Transfer-Encoding", "chunked"), ("date", "x")]), true, "");
        assert_eq!(text, "HTTP/1.1 204 No Content\r\ndate: x\r\nConnection: keep-alive\r\n\r\n");
        let text = written(&head(404, &[]), true, "");
        assert!(text.starts_with("HTTP/1.1 404 Not Found\r\nDate: "), "{text}");
        assert!(text.ends_with(" GMT\r\nConnection: keep-alive\r\n\r\n"), "{text}");
    }

    #[test]
    fn a_switch_of_protocols_keeps_the_connection_field_of_the_upstream() {
        let text = written(&head(101, &[("Connection", "Upgrade")]), false, "X: y\r\n");
        let expected = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nX: y\r\n\r\n";
        assert_eq!(text, expected);
    }

    #[test]
    fn a_demand_to_upgrade_names_it_as_an_option_of_the_connection() {
        let demand = head(426, &[("Upgrade", "h2c"), ("Connection", "Upgrade"), ("Date", "x")]);
        let text = written(&demand, true, "");
        assert!(text.ends_with("Date: x\r\nConnection: upgrade, keep-alive\r\n\r\n"), "{text}");
        let without = written(&head(426, &[]), false, "");
        assert!(without.ends_with("\r\nConnection: close\r\n\r\n"), "{without}");
    }

    #[track_caller]
    fn check(
        method: &Method,
        status: u16,
        fields: &[(&'static str, &'static str)],
        expected: Framing,
    ) {
        assert_eq!(Framing::of(method, &head(status, fields), false), expected, "{fields:?}");
    }

    #[test]
    fn the_framing_is_that_of_the_head() {
        let (length, coding) = ("Content-Length", "Transfer-Encoding");
        check(&Method::GET, 200, &[(length, "7")], Framing::Length(7));
        check(&Method::GET, 200, &[(length, "7"), (coding, "chunked")], Framing::Chunked);
        check(&Method::GET, 200, &[(coding, "gzip, Chunked")], Framing::Chunked);
        check(&Method::GET, 200, &[(coding, "gzip")], Framing::Close);
        check(&Method::GET, 200, &[], Framing::Close);
        check(&Method::HEAD, 200, &[(length, "7")], Framing::Length(0));
        check(&Method::GET, 304, &[(length, "7")], Framing::Length(0));
        check(&Method::GET, 204, &[(coding, "chunked")], Framing::Length(0));
        for method in [Method::GET, Method::HEAD] {
            assert_eq!(Framing::of(&method, &head(101, &[]), true), Framing::Close);
        }
    }

    /// What is sent of a body of these parts, and whether it is whole.
    fn body(mut framing: Framing, parts: &[&'static str]) -> (String, bool) {
        let mut outgoing = Vec::new();
        for part in parts {
            let data = framing.begin(Bytes::from_static(part.as_bytes()), &mut outgoing);
            outgoing.extend_from_slice(&data);
            framing.end(&mut outgoing);
        }
        let is_whole = framing.finish(&mut outgoing);
        assert!(framing.finish(&mut outgoing), "it ends once");
        (String::from_utf8(outgoing).unwrap(), is_whole)
    }

    #[test]
    fn a_body_is_framed_and_never_longer_than_announced() {
        assert_eq!(body(Framing::Length(3), &["ab", "cd", "e"]), ("abc".to_owned(), true));
        assert_eq!(body(Framing::Length(3), &["ab"]), ("ab".to_owned(), false));
        assert_eq!(body(Framing::Close, &["ab", "cd"]), ("abcd".to_owned(), true));
        let chunks = "2\r\nab\r\nA\r\n0123456789\r\n0\r\n\r\n";
        assert_eq!(body(Framing::Chunked, &["ab", "0123456789"]), (chunks.to_owned(), true));
    }
}
