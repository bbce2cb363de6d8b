//! Lines of JSON for monitoring: built member by member, and written by a separate thread.
//!
//! A line is added to a buffer. No caller waits for the program that reads the lines: those that do
//! not fit are dropped and counted.
//!
//! Not here: which members a line has, and which it must not have.

use std::fmt::Display;
use std::io::{self, Write};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use prometheus::IntCounter;

use crate::log::visible;

/// Bytes that may wait to be written: a second of a busy gateway's lines.
const BUFFER_MAX: usize = 16 << 20;

/// The longest that a line waits to be written together with later ones.
const FLUSH_EVERY: Duration = Duration::from_millis(50);

/// Bytes that a pipe keeps together, however many processes write to it (`PIPE_BUF` on Linux).
const PIECE_MAX: usize = 4_096;

/// Lines to be written, shared by the threads that add them and the one that writes them.
#[derive(Debug)]
pub struct LineLog {
    /// Lines dropped because the buffer was full.
    dropped: IntCounter,
    buffer: Mutex<Buffer>,
    wake: Condvar,
}

#[derive(Debug, Default)]
struct Buffer {
    bytes: Vec<u8>,
    closed: bool,
    written: bool,
    /// Whether another process writes to the same output.
    shared: bool,
}

impl LineLog {
    /// A log that counts the lines it drops.
    #[must_use]
    pub fn new(dropped: &IntCounter) -> Arc<Self> {
        let (buffer, wake) = (Mutex::default(), Condvar::new());
        Arc::new(Self { dropped: dropped.clone(), buffer, wake })
    }

    /// Adds a line that ends in a newline.
    pub fn add(&self, line: &[u8]) {
        let mut buffer = self.lock();
        if buffer.bytes.len() + line.len() > BUFFER_MAX {
            return self.dropped.inc();
        }
        let was_empty = buffer.bytes.is_empty();
        buffer.bytes.extend_from_slice(line);
        if was_empty {
            self.wake.notify_one();
        }
    }

    /// Starts a thread of this name that writes lines to standard output. It is not joined: if
    /// standard output is not read the thread blocks forever, and the program must still end.
    ///
    /// # Errors
    ///
    /// If the thread cannot be started.
    pub fn write_to_stdout(self: &Arc<Self>, thread: &str) -> io::Result<()> {
        let lines = Arc::clone(self);
        let thread = thread::Builder::new().name(thread.to_owned());
        thread.spawn(move || lines.write_out(io::stdout())).map(drop)
    }

    /// Writes lines out until the log is closed and nothing is left. Runs on a thread of its own.
    pub fn write_out(&self, mut to: impl Write) {
        loop {
            let mut buffer = self.lock();
            while buffer.bytes.is_empty() && !buffer.closed {
                buffer = self.wake.wait(buffer).unwrap_or_else(PoisonError::into_inner);
            }
            if !buffer.closed {
                // Wait for more lines; closing the log ends the wait.
                let gathering = self.wake.wait_timeout(buffer, FLUSH_EVERY);
                buffer = gathering.unwrap_or_else(PoisonError::into_inner).0;
            }
            let bytes = std::mem::take(&mut buffer.bytes);
            let (closed, shared) = (buffer.closed, buffer.shared);
            drop(buffer);
            let size = if shared { PIECE_MAX } else { bytes.len() };
            for piece in pieces(&bytes, size) {
                // Standard output is closed: there is nowhere to report that.
                let _ = to.write_all(piece).and_then(|()| to.flush());
            }
            if closed {
                self.lock().written = true;
                self.wake.notify_all();
                return;
            }
        }
    }

    /// Sets whether another process writes to the same output: then lines are written in pieces
    /// that a pipe keeps together, so that no line starts in the middle of another process's.
    pub fn share(&self, shared: bool) {
        self.lock().shared = shared;
    }

    /// Ends [`LineLog::write_out`], and waits at most `grace` until everything is written.
    pub fn close(&self, grace: Duration) {
        self.lock().closed = true;
        self.wake.notify_all();
        let waiting = |buffer: &mut Buffer| !buffer.written;
        // Written or timed out, nothing remains to be done.
        drop(self.wake.wait_timeout_while(self.lock(), grace, waiting));
    }

    fn lock(&self) -> MutexGuard<'_, Buffer> {
        self.buffer.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Pieces of whole lines, each of at most `size` bytes; a longer line is a piece of its own.
fn pieces(bytes: &[u8], size: usize) -> impl Iterator<Item = &[u8]> {
    let mut rest = bytes;
    std::iter::from_fn(move || {
        let ends = |part: &[u8]| part.iter().rposition(|byte| *byte == b'\n');
        let fits = rest.get(..size).map_or(Some(rest.len()), |part| ends(part).map(|at| at + 1));
        let first = || rest.iter().position(|byte| *byte == b'\n').map_or(rest.len(), |at| at + 1);
        let (piece, after) = rest.split_at_checked(fits.unwrap_or_else(first))?;
        rest = after;
        (!piece.is_empty()).then_some(piece)
    })
}

/// A JSON object that is written member by member: a line is made for every request, and a tree
/// of values would cost more than all other work on it (docs/performance.md).
#[derive(Debug)]
pub struct Line {
    bytes: Vec<u8>,
}

impl Line {
    /// An empty object.
    #[must_use]
    pub fn new() -> Self {
        let mut bytes = Vec::with_capacity(640);
        bytes.push(b'{');
        Self { bytes }
    }

    /// Writes a member's name. Names are constants and need no escapes.
    fn name(&mut self, name: &str) {
        if !self.bytes.ends_with(b"{") {
            self.bytes.push(b',');
        }
        self.bytes.push(b'"');
        self.bytes.extend_from_slice(name.as_bytes());
        self.bytes.extend_from_slice(b"\":");
    }

    /// A text member; the text may have any characters.
    pub fn text(&mut self, name: &str, text: &str) {
        self.name(name);
        let plain = |byte: u8| matches!(byte, b' '..0x7f) && byte != b'"' && byte != b'\\';
        if text.bytes().all(plain) {
            self.bytes.push(b'"');
            self.bytes.extend_from_slice(text.as_bytes());
            self.bytes.push(b'"');
        } else {
            visible::write(&mut self.bytes, text);
        }
    }

    /// A text member, if there is a text.
    pub fn some(&mut self, name: &str, text: Option<&str>) {
        if let Some(text) = text {
            self.text(name, text);
        }
    }

    /// A member whose `Display` output needs no escapes.
    pub fn shown(&mut self, name: &str, shown: impl Display) {
        self.name(name);
        // Writing to memory cannot fail.
        let _ = write!(self.bytes, "\"{shown}\"");
    }

    /// A member that is a number.
    pub fn number(&mut self, name: &str, number: u64) {
        self.raw(name, itoa::Buffer::new().format(number));
    }

    /// A number with three decimals.
    pub fn thousandths(&mut self, name: &str, thousandths: u64) {
        self.number(name, thousandths / 1_000);
        // Writing to memory cannot fail.
        let _ = write!(self.bytes, ".{:03}", thousandths % 1_000);
    }

    /// A member whose value is JSON already.
    pub fn raw(&mut self, name: &str, json: &str) {
        self.name(name);
        self.bytes.extend_from_slice(json.as_bytes());
    }

    /// A member that is a list of objects, each written by `write`.
    pub fn list<T>(
        &mut self,
        name: &str,
        items: impl IntoIterator<Item = T>,
        mut write: impl FnMut(&mut Self, T),
    ) {
        self.name(name);
        self.bytes.push(b'[');
        for (nth, item) in items.into_iter().enumerate() {
            self.bytes.extend_from_slice(if nth > 0 { b",{" } else { b"{" });
            write(self, item);
            self.bytes.push(b'}');
        }
        self.bytes.push(b']');
    }

    /// The whole line, with its newline.
    #[must_use]
    pub fn end(mut self) -> Vec<u8> {
        self.bytes.extend_from_slice(b"}\n");
        self.bytes
    }
}

impl Default for Line {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_json_whatever_it_contains() {
        let mut line = Line::new();
        let odd = "quote \" backslash \\ newline \n bell \u{7} csi \u{9b} del \u{7f} ls \u{2028} é";
        line.text("odd", odd);
        line.thousandths("ms", 12_034);
        line.shown("client", std::net::Ipv6Addr::LOCALHOST);
        line.some("none", None);
        line.raw("exempt", "true");
        line.list("limits", [1, 2], |line, number| line.number("n", number));
        let line = line.end();
        assert_eq!(line.iter().filter(|byte| **byte == b'\n').count(), 1);
        let text = String::from_utf8(line.clone()).unwrap();
        assert!(!text.trim_end().contains(visible::is_unsafe), "{text}");
        let line: serde_json::Value = serde_json::from_slice(&line).unwrap();
        assert_eq!(line["odd"], odd);
        assert_eq!(line["ms"], 12.034);
        assert_eq!(line["client"], "::1");
        assert_eq!(line["limits"][1]["n"], 2);
        assert_eq!(line.as_object().unwrap().len(), 5);
    }

    fn log() -> Arc<LineLog> {
        LineLog::new(&IntCounter::new("dropped", "-").unwrap())
    }

    #[test]
    fn what_was_added_before_the_close_is_written() {
        let log = log();
        log.add(b"{}\n");
        log.close(Duration::ZERO);
        let mut written = Vec::new();
        log.write_out(&mut written);
        assert_eq!(written, b"{}\n");
    }

    #[test]
    fn what_does_not_fit_is_dropped_and_counted() {
        let log = log();
        log.add(&vec![b'x'; BUFFER_MAX]);
        assert_eq!(log.dropped.get(), 0);
        log.add(b"y");
        assert_eq!(log.dropped.get(), 1);
    }

    #[test]
    fn with_other_writers_lines_are_written_whole_in_small_pieces() {
        let lines: Vec<u8> = (0..200).flat_map(|n| format!("{n:=<99}\n").into_bytes()).collect();
        let all: Vec<&[u8]> = pieces(&lines, PIECE_MAX).collect();
        assert_eq!(all.concat(), lines);
        assert!(all.iter().all(|piece| piece.len() <= PIECE_MAX && piece.ends_with(b"\n")));
        assert!(all.len() <= 5, "{}", all.len());
        assert_eq!(pieces(&lines, lines.len()).count(), 1);
        let long = [vec![b'x'; 2 * PIECE_MAX], b"\ny\n".to_vec()].concat();
        let all: Vec<&[u8]> = pieces(&long, PIECE_MAX).collect();
        assert_eq!(all, [&long[..2 * PIECE_MAX + 1], b"y\n"]);
        assert_eq!(pieces(b"", 0).count(), 0);
    }
}
