//! Parses raw HTTP/1.1 messages, for both ends of the harness.
//!
//! Invariant: the raw bytes of a head are kept unchanged: not unfolded, trimmed or changed in case.

use std::io::{self, Read};

/// Larger than any head a test sends on purpose.
const HEAD_BYTES_MAX: usize = 4 * 1024 * 1024;

/// How a message's body ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Framing {
    /// There is no body.
    Empty,
    /// After this number of bytes.
    Length(u64),
    /// With an empty chunk.
    Chunked,
    /// At the end of the connection.
    UntilClose,
}

/// The head of a message, raw and parsed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Head {
    /// Every byte, the empty line included.
    pub raw: Vec<u8>,
    /// The request or status line.
    pub start: String,
    /// Names and values in the order of arrival; names keep their case.
    pub fields: Vec<(String, String)>,
}

impl Head {
    /// Splits raw bytes at line ends and first colons.
    pub fn parse(raw: Vec<u8>) -> Self {
        let text = String::from_utf8_lossy(&raw).into_owned();
        let mut lines = text.split("\r\n");
        let start = lines.next().unwrap_or_default().to_owned();
        let fields = lines
            .filter_map(|line| line.split_once(':'))
            .map(|(name, value)| (name.to_owned(), value.trim().to_owned()))
            .collect();
        Self { raw, start, fields }
    }

    /// The first value of a field, whatever the case of its name.
    pub fn field(&self, name: &str) -> Option<&str> {
        self.all(name).into_iter().next()
    }

    /// All values of a field, whatever the case of its name.
    pub fn all(&self, name: &str) -> Vec<&str> {
        let same = |field: &&(String, String)| field.0.eq_ignore_ascii_case(name);
        self.fields.iter().filter(same).map(|(_, value)| value.as_str()).collect()
    }

    /// The framing of the body after this head, or `otherwise` if the head has none.
    pub fn framing(&self, otherwise: Framing) -> Framing {
        if self.field("transfer-encoding").is_some_and(|coding| coding.contains("chunked")) {
            return Framing::Chunked;
        }
        match self.field("content-length").and_then(|length| length.parse().ok()) {
            Some(0) => Framing::Empty,
            Some(length) => Framing::Length(length),
            None => otherwise,
        }
    }
}

/// A stream, and the bytes that were read ahead from it.
#[derive(Debug)]
pub struct Reader<S> {
    stream: S,
    ahead: Vec<u8>,
}

impl<S: Read> Reader<S> {
    /// Reads from `stream`, of which nothing has been read yet.
    pub fn new(stream: S) -> Self {
        Self { stream, ahead: Vec::new() }
    }

    /// The stream underneath.
    pub fn stream(&self) -> &S {
        &self.stream
    }

    /// The stream underneath, for writing.
    pub fn stream_mut(&mut self) -> &mut S {
        &mut self.stream
    }

    /// The stream underneath; panics if bytes were read ahead.
    #[track_caller]
    pub fn into_stream(self) -> S {
        assert!(self.ahead.is_empty(), "something was read ahead");
        self.stream
    }

    /// The next message's head; `None` if the peer ended the connection before its first byte.
    pub fn head(&mut self) -> io::Result<Option<Head>> {
        match self.until(b"\r\n\r\n") {
            Ok(raw) => Ok(Some(Head::parse(raw))),
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof && self.ahead.is_empty() => {
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// Reads up to and including the first `needle`.
    pub fn until(&mut self, needle: &[u8]) -> io::Result<Vec<u8>> {
        let mut searched = 0;
        loop {
            let found =
                self.ahead[searched..].windows(needle.len()).position(|part| part == needle);
            if let Some(at) = found {
                let end = searched + at + needle.len();
                return Ok(self.ahead.drain(..end).collect());
            }
            if self.ahead.len() > HEAD_BYTES_MAX {
                return Err(io::Error::other("no end of the head in sight"));
            }
            searched = (self.ahead.len() + 1).saturating_sub(needle.len());
            if self.fill()? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
    }

    /// Reads a body to its end, and passes each piece of its content to `piece` as it arrives.
    pub fn body(&mut self, framing: Framing, piece: &mut dyn FnMut(&[u8])) -> io::Result<()> {
        match framing {
            Framing::Empty => Ok(()),
            Framing::Length(length) => self.exact(length, piece),
            Framing::Chunked => self.chunks(piece),
            Framing::UntilClose => loop {
                let ready = std::mem::take(&mut self.ahead);
                piece(&ready);
                if self.fill()? == 0 {
                    return Ok(());
                }
            },
        }
    }

    /// Reads the bytes that are available; empty at the end of the connection.
    pub fn some(&mut self) -> io::Result<Vec<u8>> {
        if self.ahead.is_empty() {
            self.fill()?;
        }
        Ok(std::mem::take(&mut self.ahead))
    }

    fn exact(&mut self, length: u64, piece: &mut dyn FnMut(&[u8])) -> io::Result<()> {
        let mut missing = length;
        while missing > 0 {
            if self.ahead.is_empty() && self.fill()? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            let count = self.ahead.len().min(usize::try_from(missing).unwrap_or(usize::MAX));
            let ready: Vec<u8> = self.ahead.drain(..count).collect();
            piece(&ready);
            missing -= count as u64;
        }
        Ok(())
    }

    fn chunks(&mut self, piece: &mut dyn FnMut(&[u8])) -> io::Result<()> {
        loop {
            let line = String::from_utf8_lossy(&self.until(b"\r\n")?).into_owned();
            let digits = line.trim().split(';').next().unwrap_or_default().to_owned();
            let length = u64::from_str_radix(&digits, 16)
                .map_err(|_| io::Error::other(format!("{line:?} is no chunk size")))?;
            if length == 0 {
                return self.trailer();
            }
            self.exact(length, piece)?;
            if self.until(b"\r\n")? != b"\r\n" {
                return Err(io::Error::other("a chunk is longer than it says"));
            }
        }
    }

    fn trailer(&mut self) -> io::Result<()> {
        while self.until(b"\r\n")? != b"\r\n" {}
        Ok(())
    }

    fn fill(&mut self) -> io::Result<usize> {
        let mut piece = vec![0; 64 * 1024];
        let count = loop {
            match self.stream.read(&mut piece) {
                // A child process that stops or goes on interrupts it.
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                other => break other?,
            }
        };
        self.ahead.extend_from_slice(&piece[..count]);
        Ok(count)
    }
}
