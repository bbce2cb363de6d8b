//! Checks a chunked body as it arrives, for what Pingora does not refuse (RFC 9112, 7.1).
//!
//! Pingora accepts a size line without a digit as the last chunk, and any byte in an extension or
//! a trailer. Where two parsers see different ends of a body, one reads the rest as a request.
//!
//! Invariant: a body that has ended stays so; after a malformed one the connection is not read.
//!
//! Not here: how a malformed body is refused, and how long a body may take (both `proxy`).

use std::io;
use std::sync::PoisonError;

use http::header;
use pingora_core::protocols::http::v1::server::HttpSession;

use crate::edge::connection::Connection;

/// The longest size line with extensions, or trailer line: Pingora's limit of the former.
const LINE_BYTES_MAX: usize = 8 << 10;

/// Hexadecimal digits of a size: Pingora's limit, and as many as fit a `u64`.
const DIGITS_MAX: usize = 16;

/// The progress of a chunked body.
#[derive(Debug, Default)]
pub(super) struct Chunks {
    state: State,
    /// The start of a line whose end has not arrived.
    line: Vec<u8>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    Size,
    Data {
        left: u64,
    },
    /// The line end after the data.
    DataEnd,
    Trailer,
    /// The body has ended, or the request has no chunked body.
    #[default]
    Over,
    Broken,
}

impl Chunks {
    fn begin(&mut self) {
        self.state = State::Size;
    }

    pub(super) fn are_broken(&self) -> bool {
        self.state == State::Broken
    }

    /// Reads the next bytes.
    pub(super) fn read(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() && !matches!(self.state, State::Over | State::Broken) {
            if let State::Data { left } = &mut self.state {
                let count = bytes.len().min(usize::try_from(*left).unwrap_or(usize::MAX));
                *left -= count as u64;
                bytes = bytes.get(count..).unwrap_or_default();
                if *left == 0 {
                    self.state = State::DataEnd;
                }
                continue;
            }
            let end = bytes.iter().position(|byte| *byte == b'\n');
            let (piece, rest) = bytes.split_at(end.map_or(bytes.len(), |at| at + 1));
            bytes = rest;
            self.line.extend_from_slice(piece);
            if self.line.len() > LINE_BYTES_MAX {
                self.state = State::Broken;
            } else if end.is_some() {
                self.state = after(self.state, &self.line);
                self.line.clear();
            }
        }
    }
}

/// The state after a line, which includes its line feed.
fn after(state: State, line: &[u8]) -> State {
    let is_text = |byte: &u8| *byte == b'\t' || !byte.is_ascii_control();
    let Some(line) = line.strip_suffix(b"\r\n").filter(|line| line.iter().all(is_text)) else {
        return State::Broken;
    };
    match state {
        State::Size => match size(line) {
            Some(0) => State::Trailer,
            Some(left) => State::Data { left },
            None => State::Broken,
        },
        State::DataEnd if line.is_empty() => State::Size,
        State::Trailer if line.is_empty() => State::Over,
        State::Trailer if is_field(line) => State::Trailer,
        _ => State::Broken,
    }
}

/// The size in a line. Its extensions are ignored, but must be well-formed.
fn size(line: &[u8]) -> Option<u64> {
    let digits = line.iter().take_while(|byte| byte.is_ascii_hexdigit()).count();
    let (digits, extensions) = line.split_at_checked(digits)?;
    let is_valid = (1..=DIGITS_MAX).contains(&digits.len()) && are_extensions(extensions);
    let digits = std::str::from_utf8(digits).ok().filter(|_| is_valid)?;
    u64::from_str_radix(digits, 16).ok()
}

/// `*( BWS ";" BWS name [ BWS "=" BWS value ] )`
fn are_extensions(mut rest: &[u8]) -> bool {
    while !rest.is_empty() {
        let Some(name) = blank(rest).strip_prefix(b";") else { return false };
        let Some(behind) = token(blank(name)) else { return false };
        rest = match blank(behind).strip_prefix(b"=").map(blank) {
            None => behind,
            Some(value) => match token(value).or_else(|| quoted(value)) {
                Some(behind) => behind,
                None => return false,
            },
        };
    }
    true
}

/// The text after leading blanks.
fn blank(text: &[u8]) -> &[u8] {
    let is_blank = |byte: &u8| matches!(byte, b' ' | b'\t');
    let count = text.iter().take_while(|byte| is_blank(byte)).count();
    text.get(count..).unwrap_or_default()
}

/// The text after a leading token.
fn token(text: &[u8]) -> Option<&[u8]> {
    let is_part = |byte: &u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(byte);
    let count = text.iter().take_while(|byte| is_part(byte)).count();
    text.get(count..).filter(|_| count > 0)
}

/// The text after a leading quoted string.
fn quoted(text: &[u8]) -> Option<&[u8]> {
    let mut rest = text.strip_prefix(b"\"")?;
    loop {
        rest = match rest {
            [b'"', behind @ ..] => return Some(behind),
            [b'\\', _, behind @ ..] | [_, behind @ ..] => behind,
            [] => return None,
        };
    }
}

/// A field of a trailer, on one line.
fn is_field(line: &[u8]) -> bool {
    token(line).is_some_and(|behind| behind.starts_with(b":"))
}

impl Connection {
    /// Starts to check a chunked body, with the part of it that was read with the head.
    pub(super) fn watch_body(&self, session: &HttpSession) {
        if !session.req_header().headers.contains_key(header::TRANSFER_ENCODING) {
            return;
        }
        let mut chunks = self.chunks.lock().unwrap_or_else(PoisonError::into_inner);
        chunks.begin();
        chunks.read(self.beyond_head(session));
    }

    /// The bytes after a head that were read with it.
    pub(super) fn beyond_head(&self, session: &HttpSession) -> &[u8] {
        let head = session.get_headers_raw_bytes().len() as u64;
        let beyond = usize::try_from(self.head.bytes.saturating_sub(head)).unwrap_or(usize::MAX);
        self.early.get(self.early.len().saturating_sub(beyond)..).unwrap_or_default()
    }

    /// Whether the chunked body is malformed.
    #[must_use]
    pub fn has_broken_body(&self) -> bool {
        self.chunks.lock().unwrap_or_else(PoisonError::into_inner).are_broken()
    }

    /// Fails after a malformed body: where the next request starts is unknown.
    pub(super) fn refuse_to_read_on(&mut self) -> io::Result<()> {
        if self.chunks.get_mut().unwrap_or_else(PoisonError::into_inner).are_broken() {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "no chunked body"));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The state after a body, which is the same if it arrives whole or byte by byte.
    fn read(body: &str) -> State {
        let [mut whole, mut bytes] = [(); 2].map(|()| Chunks::default());
        whole.begin();
        bytes.begin();
        whole.read(body.as_bytes());
        body.bytes().for_each(|byte| bytes.read(&[byte]));
        assert_eq!(whole.state, bytes.state, "{body:?}");
        whole.state
    }

    #[test]
    fn a_body_that_is_one_ends_where_it_ends() {
        let zeros = format!("{:016x}\r\nabcd\r\n0\r\n\r\n", 4);
        for body in [
            "0\r\n\r\n",
            "000\r\n\r\n",
            "4\r\nabcd\r\n0\r\n\r\n",
            "4\r\n\r\n\r\n\r\n0\r\n\r\n",
            "A\r\n0123456789\r\na\r\n0123456789\r\n0\r\n\r\nrest\n\r",
            "4;a\r\nabcd\r\n0;b=c\r\n\r\n",
            "4 ; a = \"b \\\" ; \\\\\";c\t;\td=e\r\nabcd\r\n0\r\n\r\n",
            "0\r\nTrailer: x\r\nOther:\r\n\r\n",
            &zeros,
        ] {
            assert_eq!(read(body), State::Over, "{body:?}");
        }
    }

    #[test]
    fn what_two_parsers_could_read_differently_is_broken() {
        for body in [
            "\r\nabcd\r\n0\r\n\r\n",
            "\n",
            ";a\r\n",
            " 4\r\n",
            "4 \r\n",
            "+4\r\n",
            "-4\r\n",
            "0x4\r\n",
            "4h\r\n",
            "4_0\r\n",
            "00000000000000004\r\n",
            "4\n",
            "4\rx\n",
            "4\r\r\n",
            "4;\r\n",
            "4;a\n",
            "4;a\0\r\n",
            "4;a\rb\r\n",
            "4;a=\r\n",
            "4;a=\"b\r\n",
            "4;a=\"b\\\"\r\n",
            "4;a b\r\n",
            "4;a \r\n",
            "4,a\r\n",
            "4\r\nabcde\r\n",
            "4\r\nabcd\n",
            "4\r\nabcd\r\r\n",
            "4\r\nabcd0\r\n",
            "0\r\n\n",
            "0\r\nx\r\n",
            "0\r\n x: y\r\n",
            "0\r\nx : y\r\n",
            "0\r\nx: y\n",
            "0\r\nx: a\rb\r\n",
            "0\r\n: y\r\n",
        ] {
            assert_eq!(read(body), State::Broken, "{body:?}");
        }
        assert_eq!(read(&format!("4;{}", "a".repeat(LINE_BYTES_MAX))), State::Broken);
    }

    #[test]
    fn a_body_without_its_end_is_neither() {
        for body in ["", "4", "4\r", "4\r\nabc", "4\r\nabcd", "4\r\nabcd\r\n", "0\r\n", "0\r\n\r"] {
            assert!(!matches!(read(body), State::Over | State::Broken), "{body:?}");
        }
    }
}
