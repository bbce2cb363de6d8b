//! Lines of JSON for monitoring, written by a separate thread.
//!
//! A line is added to a buffer. No caller waits for the program that reads the lines: those that do
//! not fit, or that the output does not take, are dropped and counted. Of a line that the output
//! took in part, the next line does not become the rest.
//!
//! Not here: building a line (`line`).

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use prometheus::IntCounter;

/// Bytes that may wait to be written: a second of a busy gateway's lines.
const BUFFER_MAX: usize = 16 << 20;

/// The longest that a line waits to be written together with later ones.
const FLUSH_EVERY: Duration = Duration::from_millis(50);

/// Buffers are used again, of this size at most: a new one would grow while callers wait.
const KEPT_MAX: usize = 4 << 20;

/// Bytes that a pipe keeps together, however many processes write to it (`PIPE_BUF` on Linux).
const PIECE_MAX: usize = 4_096;

/// The same while no other process writes: another may begin to, and then each piece is written to
/// its end.
const UNSHARED_PIECE_MAX: usize = 64 << 10;

/// Lines to be written, shared by the threads that add them and the one that writes them.
#[derive(Debug)]
pub struct LineLog {
    /// Lines that were not written: the buffer was full, or the output failed.
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
        // Without the buffer of `Stdout`, which would keep what a full disk did not take.
        let stdout = File::from(io::stdout().as_fd().try_clone_to_owned()?);
        let thread = thread::Builder::new().name(thread.to_owned());
        thread.spawn(move || lines.write_out(stdout)).map(drop)
    }

    /// Writes lines out until the log is closed and nothing is left; `to` has no buffer of its own.
    /// Runs on a thread of its own.
    pub fn write_out(&self, mut to: impl Write) {
        let (mut bytes, mut breaks_off) = (Vec::new(), false);
        loop {
            bytes.clear();
            bytes.shrink_to(KEPT_MAX);
            let mut buffer = self.lock();
            while buffer.bytes.is_empty() && !buffer.closed {
                buffer = self.wake.wait(buffer).unwrap_or_else(PoisonError::into_inner);
            }
            if !buffer.closed {
                // Wait for more lines; closing the log ends the wait.
                let gathering = self.wake.wait_timeout(buffer, FLUSH_EVERY);
                buffer = gathering.unwrap_or_else(PoisonError::into_inner).0;
            }
            std::mem::swap(&mut bytes, &mut buffer.bytes);
            let closed = buffer.closed;
            drop(buffer);
            // The output may be shared from now on while a piece is written.
            let size = || if self.lock().shared { PIECE_MAX } else { UNSHARED_PIECE_MAX };
            for piece in pieces(&bytes, size) {
                // A line that broke off stays alone in its line.
                if breaks_off && to.write_all(b"\n").is_err() {
                    self.dropped.inc_by(lines(piece));
                    continue;
                }
                let (taken, left) = piece.split_at(written(&mut to, piece));
                breaks_off = taken.last().is_some_and(|byte| *byte != b'\n');
                // The output is closed, or its disk is full.
                self.dropped.inc_by(lines(left));
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

/// Writes bytes as far as the output takes them, and returns how many those are.
fn written(to: &mut impl Write, bytes: &[u8]) -> usize {
    let mut taken = 0;
    while let Some(rest) = bytes.get(taken..).filter(|rest| !rest.is_empty()) {
        match to.write(rest) {
            Ok(0) => break,
            Ok(more) => taken += more,
            Err(why) if why.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => break,
        }
    }
    taken
}

/// How many lines end in a piece.
fn lines(piece: &[u8]) -> u64 {
    piece.iter().filter(|byte| **byte == b'\n').count() as u64
}

/// Pieces of whole lines, each of at most as many bytes as `size` says then; a longer line is a
/// piece of its own.
fn pieces(bytes: &[u8], size: impl Fn() -> usize) -> impl Iterator<Item = &[u8]> {
    let mut rest = bytes;
    std::iter::from_fn(move || {
        let size = size();
        let ends = |part: &[u8]| part.iter().rposition(|byte| *byte == b'\n');
        let fits = rest.get(..size).map_or(Some(rest.len()), |part| ends(part).map(|at| at + 1));
        let first = || rest.iter().position(|byte| *byte == b'\n').map_or(rest.len(), |at| at + 1);
        let (piece, after) = rest.split_at_checked(fits.unwrap_or_else(first))?;
        rest = after;
        (!piece.is_empty()).then_some(piece)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

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

    /// Adds a line during each of the first two writes, and closes the log during the second.
    struct Adds<'l>(&'l LineLog, Vec<Vec<u8>>);

    impl Write for Adds<'_> {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            if self.1.len() < 2 {
                self.0.add(b"later\n");
            }
            if self.1.len() == 1 {
                self.0.close(Duration::ZERO);
            }
            self.1.push(bytes.to_vec());
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_line_that_is_added_during_a_write_is_written_once_after_it() {
        let log = log();
        log.add(b"first\n");
        let mut to = Adds(&log, Vec::new());
        log.write_out(&mut to);
        assert_eq!(to.1, [&b"first\n"[..], b"later\n", b"later\n"]);
    }

    #[test]
    fn what_does_not_fit_is_dropped_and_counted() {
        let log = log();
        log.add(&vec![b'x'; BUFFER_MAX]);
        assert_eq!(log.dropped.get(), 0);
        log.add(b"y");
        assert_eq!(log.dropped.get(), 1);
    }

    /// An output that takes the first bytes and then fails, as a full disk does.
    struct Full(usize);

    impl Write for Full {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let taken = bytes.len().min(self.0);
            self.0 -= taken;
            if taken == 0 { Err(io::ErrorKind::StorageFull.into()) } else { Ok(taken) }
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// An output whose disk is full once, in the middle of a line.
    struct FullOnce {
        written: Vec<u8>,
        room: usize,
        fails: usize,
    }

    impl Write for FullOnce {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            if self.room == 0 && self.fails > 0 {
                self.fails -= 1;
                return Err(io::ErrorKind::StorageFull.into());
            }
            let room = if self.fails > 0 { self.room } else { usize::MAX };
            let taken = bytes.len().min(room);
            self.room = self.room.saturating_sub(taken);
            self.written.extend_from_slice(&bytes[..taken]);
            Ok(taken)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_line_that_broke_off_is_alone_in_its_line() {
        // Lines of 100 bytes, 40 in a piece: where it breaks off, how often, and what is lost.
        for (room, fails, dropped, line) in [
            (150, 1, 39, Some("1=====")),
            (150, 2, 79, Some("1=====")),
            (4_000, 1, 40, None),
            (4_001, 1, 40, Some("4")),
        ] {
            let log = log();
            log.share(true);
            for n in 0..120 {
                log.add(format!("{n:=<99}\n").as_bytes());
            }
            log.close(Duration::ZERO);
            let mut to = FullOnce { written: Vec::new(), room, fails };
            log.write_out(&mut to);
            let text = String::from_utf8(to.written).unwrap();
            let broken: Vec<&str> = text.lines().filter(|line| line.len() != 99).collect();
            assert_eq!(broken.len(), usize::from(line.is_some()), "{room}: {broken:?}");
            assert!(broken.iter().zip(line).all(|(own, line)| own.starts_with(line)), "{broken:?}");
            assert_eq!(log.dropped.get(), dropped, "{room} {fails}");
            assert_eq!(text.lines().count() - broken.len() + dropped as usize, 120);
        }
    }

    #[test]
    fn what_the_output_does_not_take_is_counted() {
        let log = log();
        log.share(true);
        for n in 0..80 {
            log.add(format!("{n:=<99}\n").as_bytes());
        }
        log.close(Duration::ZERO);
        log.write_out(Full(4_000));
        assert_eq!(log.dropped.get(), 40, "the second piece of forty lines");
    }

    /// Shares the log during the first write.
    struct Shares<'l>(&'l LineLog, Vec<usize>);

    impl Write for Shares<'_> {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.share(true);
            self.1.push(bytes.len());
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn once_there_are_other_writers_the_rest_is_written_in_small_pieces() {
        let log = log();
        (0..1_000).for_each(|n| log.add(format!("{n:=<99}\n").as_bytes()));
        log.close(Duration::ZERO);
        let mut to = Shares(&log, Vec::new());
        log.write_out(&mut to);
        let (first, rest) = to.1.split_first().unwrap();
        assert_eq!(*first, 65_500);
        assert!(rest.iter().all(|size| *size == 4_000 || *size == 2_500), "{rest:?}");
    }

    #[test]
    fn with_other_writers_lines_are_written_whole_in_small_pieces() {
        let lines: Vec<u8> = (0..200).flat_map(|n| format!("{n:=<99}\n").into_bytes()).collect();
        let all: Vec<&[u8]> = pieces(&lines, || PIECE_MAX).collect();
        assert_eq!(all.concat(), lines);
        assert!(all.iter().all(|piece| piece.len() <= PIECE_MAX && piece.ends_with(b"\n")));
        assert!(all.len() <= 5, "{}", all.len());
        assert_eq!(pieces(&lines, || lines.len()).count(), 1);
        let long = [vec![b'x'; 2 * PIECE_MAX], b"\ny\n".to_vec()].concat();
        let all: Vec<&[u8]> = pieces(&long, || PIECE_MAX).collect();
        assert_eq!(all, [&long[..2 * PIECE_MAX + 1], b"y\n"]);
        assert_eq!(pieces(b"", || 0).count(), 0);
    }
}
