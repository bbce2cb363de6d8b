//! Decodes the body of a request as it arrives.
//!
//! Not here: waiting for bytes (`http1::buffered_connection`), where a body ends
//! (`request::framing`).

use bytes::{Bytes, BytesMut};

use crate::edge::http1::chunks::Chunks;
use crate::edge::http1::piece::Piece;
use crate::request::framing::Framing;

/// Bytes to read at a time where it is not known that more come.
const SMALL_READ: usize = 4 << 10;

/// Bytes to read at a time, at most.
const LARGE_READ: usize = 64 << 10;

/// A body up to this size can be sent to another server.
const KEPT_BYTES_MAX: usize = 64 << 10;

/// The progress of a request's body.
#[derive(Debug)]
pub struct Body(State);

#[derive(Debug)]
enum State {
    /// Bytes left.
    Length(u64),
    Chunked(Chunks),
    /// The bytes of another protocol, until the client closes its side.
    Tunnel,
    /// The other protocol has ended.
    Over,
}

impl Body {
    /// A body of which nothing has arrived.
    #[must_use]
    pub fn new(framing: Framing) -> Self {
        Self(match framing {
            Framing::Length(length) => State::Length(length),
            Framing::Chunked => State::Chunked(Chunks::default()),
        })
    }

    /// From here on the bytes are those of another protocol.
    pub(super) fn switch(&mut self) {
        self.0 = State::Tunnel;
    }

    /// Ends the other protocol.
    pub(super) fn end(&mut self) {
        self.0 = State::Over;
    }

    /// Removes the next piece from the start of `buffer`.
    pub fn next(&mut self, buffer: &mut BytesMut) -> Piece {
        match &mut self.0 {
            State::Length(0) | State::Over => Piece::End,
            State::Chunked(chunks) => chunks.next(buffer),
            _ if buffer.is_empty() => Piece::Partial,
            State::Tunnel => Piece::Data(buffer.split().freeze()),
            State::Length(left) => {
                let count = buffer.len().min(usize::try_from(*left).unwrap_or(usize::MAX));
                *left -= count as u64;
                Piece::Data(buffer.split_to(count).freeze())
            }
        }
    }

    /// Whether its end has been reached.
    pub(super) fn is_over(&self) -> bool {
        match &self.0 {
            State::Length(left) => *left == 0,
            State::Chunked(chunks) => chunks.is_over(),
            State::Tunnel => false,
            State::Over => true,
        }
    }

    /// How many bytes to read at a time.
    pub(super) fn read_size(&self) -> usize {
        match &self.0 {
            State::Length(left) => {
                usize::try_from(*left).unwrap_or(LARGE_READ).clamp(SMALL_READ, LARGE_READ)
            }
            State::Chunked(_) | State::Tunnel => LARGE_READ / 4,
            State::Over => SMALL_READ,
        }
    }
}

/// The start of a body, kept for a server that is tried after another.
#[derive(Debug, Default)]
pub(super) struct RetryBuffer {
    bytes: Bytes,
    is_truncated: bool,
}

impl RetryBuffer {
    /// Adds the next piece.
    pub(super) fn add(&mut self, piece: &Bytes) {
        if self.is_truncated || self.bytes.len() + piece.len() > KEPT_BYTES_MAX {
            *self = Self { bytes: Bytes::new(), is_truncated: true };
        } else if self.bytes.is_empty() {
            self.bytes = piece.clone();
        } else {
            // In place: a body may come byte by byte.
            let kept = std::mem::take(&mut self.bytes).try_into_mut();
            let mut kept = kept.unwrap_or_else(|shared| BytesMut::from(&shared[..]));
            kept.extend_from_slice(piece);
            self.bytes = kept.freeze();
        }
    }

    /// Whether the start is lost: the body was longer than is kept.
    pub(super) fn is_truncated(&self) -> bool {
        self.is_truncated
    }

    /// What has been added.
    pub(super) fn bytes(&self) -> Option<Bytes> {
        (!self.bytes.is_empty()).then(|| self.bytes.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_of_known_length_ends_after_as_many_bytes() {
        let mut body = Body::new(Framing::Length(5));
        let mut buffer = BytesMut::from("abc");
        assert_eq!(body.next(&mut buffer), Piece::Data("abc".into()));
        assert_eq!(body.next(&mut buffer), Piece::Partial);
        buffer.extend_from_slice(b"deGET");
        assert_eq!(body.next(&mut buffer), Piece::Data("de".into()));
        assert_eq!(body.next(&mut buffer), Piece::End);
        assert_eq!(&buffer[..], b"GET");
    }

    #[test]
    fn the_start_of_a_body_is_kept_whole_or_not_at_all() {
        let mut buffer = RetryBuffer::default();
        assert_eq!(buffer.bytes(), None);
        buffer.add(&"ab".into());
        buffer.add(&"c".into());
        assert_eq!(buffer.bytes(), Some("abc".into()));
        buffer.add(&vec![b'x'; KEPT_BYTES_MAX - 3].into());
        assert!(!buffer.is_truncated());
        buffer.add(&"y".into());
        buffer.add(&"z".into());
        assert_eq!((buffer.bytes(), buffer.is_truncated()), (None, true));
    }

    #[test]
    fn the_start_of_a_body_is_not_copied_again_for_each_piece() {
        let (mut buffer, mut moves, mut place) = (RetryBuffer::default(), 0, std::ptr::null());
        for at in 0..KEPT_BYTES_MAX {
            buffer.add(&vec![u8::try_from(at % 251).unwrap()].into());
            moves += usize::from(buffer.bytes.as_ptr() != place);
            place = buffer.bytes.as_ptr();
        }
        assert!(moves < 50, "{moves}");
        let whole: Vec<u8> =
            (0..KEPT_BYTES_MAX).map(|at| u8::try_from(at % 251).unwrap()).collect();
        assert_eq!(buffer.bytes(), Some(whole.into()));
    }

    #[test]
    fn what_is_read_at_a_time_is_bounded() {
        for (length, expected) in [(1, SMALL_READ), (5_000, 5_000), (u64::MAX, LARGE_READ)] {
            assert_eq!(Body::new(Framing::Length(length)).read_size(), expected);
        }
    }
}
