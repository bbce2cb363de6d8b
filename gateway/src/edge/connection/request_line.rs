//! Checks each request line as it arrives, for what Pingora does not report.
//!
//! Pingora escapes spaces and control bytes in a request line, and drops a fragment, before
//! `proxy` sees the target. Here they are detected.

use weir_common::time::Tick;

/// The progress of a connection in its current request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// No byte of the next request has arrived.
    Idle,
    /// Part of a head has arrived.
    Head,
    /// Pingora has read the head.
    Request,
}

impl Phase {
    /// The phase that is stored as `bits`.
    pub(super) fn of(bits: u8) -> Self {
        match bits {
            0 => Self::Idle,
            1 => Self::Head,
            _ => Self::Request,
        }
    }
}

/// A head that is being read.
#[derive(Debug, Default)]
pub struct Head {
    /// Its length so far.
    pub(super) bytes: u64,
    /// When it must be complete; set at the first wait for more of it.
    pub(super) deadline: Option<Tick>,
    spaces: u8,
    line_ended: bool,
}

impl Head {
    /// Reads the next bytes; true where the request line has invalid bytes or too many spaces.
    pub fn has_oddities(&mut self, bytes: &[u8]) -> bool {
        self.bytes += bytes.len() as u64;
        if self.line_ended {
            return false;
        }
        for byte in bytes {
            match byte {
                b'\n' if self.spaces == 0 => {}
                b'\n' => {
                    self.line_ended = true;
                    break;
                }
                b' ' => self.spaces = self.spaces.saturating_add(1),
                b'\r' => {}
                0..b' ' | 0x7f | b'#' => return true,
                _ => {}
            }
        }
        self.spaces > 2
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_odd(pieces: &[&str]) -> bool {
        let mut head = Head::default();
        pieces.iter().any(|piece| head.has_oddities(piece.as_bytes()))
    }

    #[test]
    fn a_request_line_has_two_spaces_and_nothing_that_would_be_repaired() {
        assert!(!is_odd(&["GET /a HTTP/1.1\r\nhost: a b c\r\nx:\ty\r\n\r\n"]));
        assert!(!is_odd(&["\r\n\r\nGET /a HT", "TP/1.1\r\na: b c d\r\n"]));
        assert!(is_odd(&["GET /a b HTTP/1.1\r\n"]));
        assert!(is_odd(&["GET /a ", "b HTTP/1.1\r\n"]));
        assert!(is_odd(&["GET  /a HTTP/1.1\r\n"]));
        assert!(is_odd(&["GET\t/a HTTP/1.1\r\n"]));
        assert!(is_odd(&["GET /\u{0} HTTP/1.1\r\n"]));
        assert!(is_odd(&["GET /a#b HTTP/1.1\r\n"]));
    }
}
