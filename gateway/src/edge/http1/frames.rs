//! Follows the frames of a WebSocket in one direction (RFC 6455, 5.2) to find where they end.
//!
//! Invariant: after bytes that are not frames no boundary is reported.
//!
//! Not here: what happens at a boundary (`http1::tunnel`), payloads.

/// The longest frame header: two bytes, eight of length, four of mask.
const HEAD_BYTES_MAX: usize = 14;

const CLOSE: u8 = 8;

/// Frames in one direction.
#[derive(Clone, Copy, Debug)]
pub(super) struct Frames {
    /// Whether they are masked: those of a client are, those of a server are not.
    masked: bool,
    state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Between,
    Head {
        bytes: [u8; HEAD_BYTES_MAX],
        count: usize,
    },
    Payload {
        left: u64,
        closes: bool,
    },
    /// A close frame has passed; no frame follows.
    Closed,
    /// Bytes that are not frames have passed.
    Lost,
}

impl Frames {
    pub(super) fn new(masked: bool) -> Self {
        Self { masked, state: State::Between }
    }

    /// Whether the next byte starts a frame.
    pub(super) fn is_between(&self) -> bool {
        self.state == State::Between
    }

    /// Ends this direction with our close frame.
    pub(super) fn close(&mut self) {
        self.state = State::Closed;
    }

    /// Follows all of `bytes`.
    pub(super) fn follow(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let count = self.follow_frame(bytes);
            bytes = bytes.get(count..).unwrap_or_default();
        }
    }

    /// Follows `bytes` to the end of the first frame in them, and returns how many bytes that
    /// took; all where no frame ends.
    pub(super) fn follow_frame(&mut self, bytes: &[u8]) -> usize {
        for (at, byte) in bytes.iter().enumerate() {
            self.state = match self.state {
                State::Between => self.head([0; HEAD_BYTES_MAX], 0, *byte),
                State::Head { bytes, count } => self.head(bytes, count, *byte),
                State::Payload { left, closes } => {
                    let rest = bytes.len() - at;
                    let passing = rest.min(usize::try_from(left).unwrap_or(usize::MAX));
                    self.state = payload(left - passing as u64, closes);
                    return at + passing;
                }
                State::Closed | State::Lost => return bytes.len(),
            };
            if self.is_between() {
                return at + 1;
            }
        }
        bytes.len()
    }

    fn head(&self, mut bytes: [u8; HEAD_BYTES_MAX], count: usize, byte: u8) -> State {
        if let Some(place) = bytes.get_mut(count) {
            *place = byte;
        }
        let count = count + 1;
        let [first, second, long @ ..] = bytes;
        if count < 2 {
            return State::Head { bytes, count };
        }
        let (of_length, length) = match second & 0x7f {
            126 => (2, u64::from(u16::from_be_bytes([long[0], long[1]]))),
            127 => {
                let [a, b, c, d, e, f, g, h, ..] = long;
                (8, u64::from_be_bytes([a, b, c, d, e, f, g, h]))
            }
            length => (0, u64::from(length)),
        };
        let opcode = first & 0xf;
        let is_control = opcode >= CLOSE;
        let is_known = matches!(opcode, 0..=2 | 8..=10);
        let is_short = first & 0x80 != 0 && second & 0x7f <= 125;
        if !is_known || (is_control && !is_short) || (second & 0x80 != 0) != self.masked {
            return State::Lost;
        }
        if count < 2 + of_length + if self.masked { 4 } else { 0 } {
            return State::Head { bytes, count };
        }
        // The topmost bit of a length must be 0.
        if length >> 63 != 0 { State::Lost } else { payload(length, opcode == CLOSE) }
    }
}

fn payload(left: u64, closes: bool) -> State {
    match (left, closes) {
        (0, false) => State::Between,
        (0, true) => State::Closed,
        (left, closes) => State::Payload { left, closes },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(first: u8, length: usize, masked: bool) -> Vec<u8> {
        let mask = if masked { 0x80 } else { 0 };
        let mut bytes = vec![first];
        match length {
            0..=125 => bytes.push(mask | length as u8),
            126..=0xffff => {
                bytes.push(mask | 126);
                bytes.extend((length as u16).to_be_bytes());
            }
            _ => {
                bytes.push(mask | 127);
                bytes.extend((length as u64).to_be_bytes());
            }
        }
        if masked {
            bytes.extend([0x88, 0x02, 0x03, 0xe9]);
        }
        bytes.extend(std::iter::repeat_n(0x88, length));
        bytes
    }

    #[test]
    fn each_frame_ends_where_it_ends_however_its_bytes_arrive() {
        for masked in [false, true] {
            let lengths = [0, 1, 125, 126, 65_535, 65_536];
            let all = lengths.map(|length| frame(0x82, length, masked));
            let bytes: Vec<u8> = all.concat();
            for size in [1, 2, 3, 7, 1_000, bytes.len()] {
                let mut frames = Frames::new(masked);
                let (mut ends, mut at) = (Vec::new(), 0);
                for piece in bytes.chunks(size) {
                    let mut piece = piece;
                    while !piece.is_empty() {
                        let count = frames.follow_frame(piece);
                        at += count;
                        piece = &piece[count..];
                        if frames.is_between() {
                            ends.push(at);
                        }
                    }
                }
                let expected = all.iter().scan(0, |at, frame| {
                    *at += frame.len();
                    Some(*at)
                });
                assert_eq!(ends, expected.collect::<Vec<_>>(), "in pieces of {size}");
            }
        }
    }

    #[test]
    fn behind_a_close_frame_and_in_what_is_no_frame_nothing_is_a_boundary() {
        for (masked, bytes) in [
            (false, frame(0x88, 2, false)),
            (true, frame(0x88, 0, true)),
            // Masked by a server, unmasked by a client, unknown opcode, long or fragmented ping.
            (false, frame(0x82, 1, true)),
            (true, frame(0x82, 1, false)),
            (false, frame(0x83, 1, false)),
            (false, frame(0x89, 126, false)),
            (false, frame(0x09, 1, false)),
            (false, [0x82, 0x7f, 0x80, 0, 0, 0, 0, 0, 0, 0].to_vec()),
            (false, b"PING\r\n\r\n".to_vec()),
        ] {
            let mut frames = Frames::new(masked);
            frames.follow(&bytes);
            frames.follow(&frame(0x82, 3, masked));
            assert!(!frames.is_between(), "{bytes:x?}");
        }
    }
}
