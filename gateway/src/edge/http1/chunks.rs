//! Decodes a chunked body (RFC 9112, 7.1), and refuses what two parsers could read differently:
//! where they see different ends of a body, one reads the rest as a request.
//!
//! Invariant: a body that has ended stays so; after a malformed one the connection is not read.
//!
//! Not here: how a malformed body is refused (`proxy`), how long one may take
//! (`http1::buffered_connection`).

use bytes::{Buf, BytesMut};

use crate::edge::http1::piece::Piece;

/// The longest size line with extensions, or trailer line.
const LINE_BYTES_MAX: usize = 8 << 10;

/// All lines of a trailer.
const TRAILER_BYTES_MAX: usize = 64 << 10;

/// Hexadecimal digits of a size: as many as fit a `u64`.
const DIGITS_MAX: usize = 16;

/// A larger chunk is no number in some languages.
const SIZE_MAX: u64 = i64::MAX.unsigned_abs();

/// The progress of a chunked body.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Chunks {
    state: State,
    /// The length of the trailer so far.
    trailer: usize,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    #[default]
    Size,
    Data {
        left: u64,
    },
    /// The line end after the data.
    DataEnd,
    Trailer,
    /// The body has ended.
    Over,
    Broken,
}

impl Chunks {
    /// Removes the next piece of the body from the start of `buffer`.
    pub(super) fn next(&mut self, buffer: &mut BytesMut) -> Piece {
        loop {
            match &mut self.state {
                State::Over => return Piece::End,
                State::Broken => return Piece::Broken,
                State::Data { .. } if buffer.is_empty() => return Piece::Partial,
                State::Data { left } => {
                    let count = buffer.len().min(usize::try_from(*left).unwrap_or(usize::MAX));
                    *left -= count as u64;
                    if *left == 0 {
                        self.state = State::DataEnd;
                    }
                    return Piece::Data(buffer.split_to(count).freeze());
                }
                State::Size | State::DataEnd | State::Trailer => {
                    let end = buffer.iter().position(|byte| *byte == b'\n').map(|at| at + 1);
                    if end.unwrap_or(buffer.len()) > LINE_BYTES_MAX {
                        self.state = State::Broken;
                    } else if let Some(end) = end {
                        self.read_line(buffer.get(..end).unwrap_or_default());
                        buffer.advance(end);
                    } else if is_start(self.state, buffer) {
                        return Piece::Partial;
                    } else {
                        self.state = State::Broken;
                    }
                }
            }
        }
    }

    /// Reads a line, which includes its line feed.
    fn read_line(&mut self, line: &[u8]) {
        if self.state == State::Trailer {
            self.trailer += line.len();
        }
        let is_long = self.trailer > TRAILER_BYTES_MAX;
        self.state = if is_long { State::Broken } else { after(self.state, line) };
    }

    pub(super) fn is_over(&self) -> bool {
        self.state == State::Over
    }
}

/// The state after a line, which includes its line feed.
fn after(state: State, line: &[u8]) -> State {
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

/// Whether a line without its end may still become valid: a client that waits for a response sends
/// no more.
fn is_start(state: State, line: &[u8]) -> bool {
    let text = line.strip_suffix(b"\r").unwrap_or(line);
    let first = match state {
        State::DataEnd => text.is_empty(),
        State::Size => line.first().is_none_or(u8::is_ascii_hexdigit),
        _ => text.is_empty() || token(text).is_some(),
    };
    first && text.iter().all(is_text)
}

fn is_text(byte: &u8) -> bool {
    *byte == b'\t' || !byte.is_ascii_control()
}

/// The size in a line. Its extensions are ignored, but must be well-formed.
fn size(line: &[u8]) -> Option<u64> {
    let digits = line.iter().take_while(|byte| byte.is_ascii_hexdigit()).count();
    let (digits, extensions) = line.split_at_checked(digits)?;
    let is_valid = (1..=DIGITS_MAX).contains(&digits.len()) && are_extensions(extensions);
    let digits = std::str::from_utf8(digits).ok().filter(|_| is_valid)?;
    u64::from_str_radix(digits, 16).ok().filter(|size| *size <= SIZE_MAX)
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

#[cfg(test)]
mod tests {
    use super::*;

    /// The state after a body, and its data: the same if it arrives whole or byte by byte.
    fn decoded(body: &[u8]) -> (State, Vec<u8>) {
        let decode = |pieces: &mut dyn Iterator<Item = &[u8]>| {
            let (mut chunks, mut buffer, mut data) =
                (Chunks::default(), BytesMut::new(), Vec::new());
            for piece in pieces {
                buffer.extend_from_slice(piece);
                while let Piece::Data(more) = chunks.next(&mut buffer) {
                    data.extend_from_slice(&more);
                }
            }
            (chunks.state, data)
        };
        let whole = decode(&mut std::iter::once(body));
        assert_eq!(whole, decode(&mut body.chunks(1)), "{:?}", body.escape_ascii().to_string());
        whole
    }

    fn read(body: &str) -> State {
        decoded(body.as_bytes()).0
    }

    #[test]
    fn the_data_is_that_of_all_chunks() {
        let body = b"4\r\na\r\nb\r\n10;x\r\n0123456789abcdef\r\n0\r\nX: y\r\n\r\nrest";
        assert_eq!(decoded(body), (State::Over, b"a\r\nb0123456789abcdef".to_vec()));
    }

    #[test]
    fn a_trailer_has_a_largest_size() {
        let field = "X: y\r\n";
        let trailer = |fields: usize| format!("0\r\n{}\r\n", field.repeat(fields));
        let most = (TRAILER_BYTES_MAX - 2) / field.len();
        assert_eq!(read(&trailer(most)), State::Over);
        assert_eq!(read(&trailer(most + 1)), State::Broken);
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
            "8000000000000000\r\n",
            "4\ra",
            "4;\0",
            "4\r\nabcde",
            "0\r\n x",
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
