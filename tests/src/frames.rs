//! HTTP/2 frames as bytes on the wire (RFC 9113, 4.1), valid or not.
//!
//! It checks and adds nothing, so that a test can write invalid frames.

/// The connection preface, which a client sends first (RFC 9113, 3.4).
pub const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// The largest payload that every server accepts.
pub const FRAME_BYTES: usize = 16_384;

/// Kinds of frames.
#[allow(missing_docs, reason = "names of RFC 9113, 6")]
pub mod kind {
    pub const DATA: u8 = 0;
    pub const HEADERS: u8 = 1;
    pub const PRIORITY: u8 = 2;
    pub const RST_STREAM: u8 = 3;
    pub const SETTINGS: u8 = 4;
    pub const PUSH_PROMISE: u8 = 5;
    pub const PING: u8 = 6;
    pub const GOAWAY: u8 = 7;
    pub const WINDOW_UPDATE: u8 = 8;
    pub const CONTINUATION: u8 = 9;
}

/// Flags of frames.
#[allow(missing_docs, reason = "names of RFC 9113, 6")]
pub mod flag {
    pub const ACK: u8 = 1;
    pub const END_STREAM: u8 = 1;
    pub const END_HEADERS: u8 = 4;
    pub const PADDED: u8 = 8;
    pub const PRIORITY: u8 = 32;
}

/// Names of error codes (RFC 9113, 7), by number.
const CODES: [&str; 14] = [
    "NO_ERROR",
    "PROTOCOL_ERROR",
    "INTERNAL_ERROR",
    "FLOW_CONTROL_ERROR",
    "SETTINGS_TIMEOUT",
    "STREAM_CLOSED",
    "FRAME_SIZE_ERROR",
    "REFUSED_STREAM",
    "CANCEL",
    "COMPRESSION_ERROR",
    "CONNECT_ERROR",
    "ENHANCE_YOUR_CALM",
    "INADEQUATE_SECURITY",
    "HTTP_1_1_REQUIRED",
];

/// The name of an error code.
pub fn code_name(code: u32) -> &'static str {
    usize::try_from(code).ok().and_then(|code| CODES.get(code)).unwrap_or(&"unknown")
}

/// One frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// A value of [`kind`], or an unknown one.
    pub kind: u8,
    /// Values of [`flag`], combined.
    pub flags: u8,
    /// The stream; 0 is the connection.
    pub stream: u32,
    /// The bytes after the nine of the frame header.
    pub payload: Vec<u8>,
}

impl Frame {
    /// A frame.
    pub fn new(kind: u8, flags: u8, stream: u32, payload: impl Into<Vec<u8>>) -> Self {
        Self { kind, flags, stream, payload: payload.into() }
    }

    /// HEADERS with all of these fields, and END_HEADERS.
    pub fn headers<N: AsRef<[u8]>, V: AsRef<[u8]>>(
        stream: u32,
        fields: &[(N, V)],
        end: bool,
    ) -> Self {
        let flags = flag::END_HEADERS | if end { flag::END_STREAM } else { 0 };
        Self::new(kind::HEADERS, flags, stream, block(fields))
    }

    /// HEADERS, followed by CONTINUATION if these fields do not fit into one frame.
    pub fn head<N: AsRef<[u8]>, V: AsRef<[u8]>>(
        stream: u32,
        fields: &[(N, V)],
        end: bool,
    ) -> Vec<Self> {
        let block = block(fields);
        let pieces: Vec<&[u8]> = block.chunks(FRAME_BYTES).collect();
        let frame = |(nth, piece): (usize, &&[u8])| {
            let kind = if nth == 0 { kind::HEADERS } else { kind::CONTINUATION };
            let last = if nth + 1 == pieces.len() { flag::END_HEADERS } else { 0 };
            let end = if nth == 0 && end { flag::END_STREAM } else { 0 };
            Self::new(kind, last | end, stream, *piece)
        };
        pieces.iter().enumerate().map(frame).collect()
    }

    /// DATA.
    pub fn data(stream: u32, bytes: impl Into<Vec<u8>>, end: bool) -> Self {
        Self::new(kind::DATA, if end { flag::END_STREAM } else { 0 }, stream, bytes)
    }

    /// SETTINGS, each a number and a value.
    pub fn settings(settings: &[(u16, u32)]) -> Self {
        let mut payload = Vec::new();
        for (name, value) in settings {
            payload.extend(name.to_be_bytes());
            payload.extend(value.to_be_bytes());
        }
        Self::new(kind::SETTINGS, 0, 0, payload)
    }

    /// SETTINGS with ACK.
    pub fn settings_ack() -> Self {
        Self::new(kind::SETTINGS, flag::ACK, 0, [])
    }

    /// RST_STREAM.
    pub fn reset(stream: u32, code: u32) -> Self {
        Self::new(kind::RST_STREAM, 0, stream, code.to_be_bytes())
    }

    /// PING.
    pub fn ping(bytes: [u8; 8]) -> Self {
        Self::new(kind::PING, 0, 0, bytes)
    }

    /// WINDOW_UPDATE.
    pub fn window(stream: u32, by: u32) -> Self {
        Self::new(kind::WINDOW_UPDATE, 0, stream, by.to_be_bytes())
    }

    /// The same frame with other flags.
    pub fn flags(self, flags: u8) -> Self {
        Self { flags, ..self }
    }

    /// Its bytes on the wire.
    pub fn bytes(&self) -> Vec<u8> {
        let length = u32::try_from(self.payload.len()).unwrap().to_be_bytes();
        let mut bytes = length[1..].to_vec();
        bytes.extend([self.kind, self.flags]);
        bytes.extend(self.stream.to_be_bytes());
        bytes.extend(&self.payload);
        bytes
    }

    /// Removes the first complete frame from `bytes`, and returns it.
    pub fn take(bytes: &mut Vec<u8>) -> Option<Self> {
        let head: [u8; 9] = bytes.get(..9)?.try_into().unwrap();
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
        let payload = bytes.get(9..9 + length)?.to_vec();
        bytes.drain(..9 + length);
        let stream = u32::from_be_bytes([head[5] & 0x7f, head[6], head[7], head[8]]);
        Some(Self { kind: head[3], flags: head[4], stream, payload })
    }

    /// The 32-bit number at an offset of the payload; 0 if the payload is too short.
    pub fn number(&self, at: usize) -> u32 {
        let bytes = self.payload.get(at..at + 4).unwrap_or(&[0; 4]);
        u32::from_be_bytes(bytes.try_into().unwrap())
    }
}

/// A field block (RFC 7541) without indexing and Huffman coding.
pub fn block<N: AsRef<[u8]>, V: AsRef<[u8]>>(fields: &[(N, V)]) -> Vec<u8> {
    let mut block = Vec::new();
    for (name, value) in fields {
        block.push(0);
        text(&mut block, name.as_ref());
        text(&mut block, value.as_ref());
    }
    block
}

fn text(block: &mut Vec<u8>, text: &[u8]) {
    let mut length = text.len();
    if length < 127 {
        block.push(u8::try_from(length).unwrap());
    } else {
        block.push(127);
        length -= 127;
        while length >= 128 {
            block.push(u8::try_from(length % 128 + 128).unwrap());
            length /= 128;
        }
        block.push(u8::try_from(length).unwrap());
    }
    block.extend(text);
}
