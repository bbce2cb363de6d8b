//! Passes lines of the program's own log to a thread that writes them.
//!
//! # Invariants
//!
//! 1. While standard error is read, a line is written before its caller continues, also the last.
//! 2. If it is not read, one caller waits for [`CALLER_WAIT`] and later ones do not wait: a full
//!    pipe must not block the program, nor its stop.
//! 3. Each line is one write, which a pipe keeps together.
//! 4. Waiting lines take bounded memory. The number of dropped ones is logged once there is room.

use std::io::Write;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// How long a caller waits for its line to be written: an active reader needs far less.
const CALLER_WAIT: Duration = Duration::from_millis(100);

/// Bytes that may wait to be written: some thousands of lines.
const WAITING_MAX: usize = 1 << 20;

/// Lines that wait to be written.
#[derive(Debug, Default)]
pub(crate) struct Outlet {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    waiting: Vec<u8>,
    /// How many lines were pushed, and how many of them are written.
    pushed: u64,
    out: u64,
    /// Whether a caller timed out, and nothing has been written since.
    stuck: bool,
    /// Lines dropped for lack of room.
    dropped: u64,
}

impl Outlet {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Queues a line that ends in a newline, and waits until it is written (invariants 1 and 2).
    pub(crate) fn write_line(&self, line: &[u8]) {
        let mut state = self.lock();
        if state.waiting.len() + line.len() > WAITING_MAX {
            state.dropped += 1;
            return;
        }
        let own = state.push(line);
        self.changed.notify_all();
        if state.stuck {
            return;
        }
        let waits = |state: &mut State| state.out < own && !state.stuck;
        let waited = self.changed.wait_timeout_while(state, CALLER_WAIT, waits);
        let (mut state, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
        if timeout.timed_out() {
            state.stuck = true;
            self.changed.notify_all();
        }
    }

    /// Waits until lines are queued, then writes them; `dropped` makes the line that reports the
    /// number of dropped ones.
    pub(crate) fn write_some(&self, to: &mut impl Write, dropped: impl FnOnce(u64) -> Vec<u8>) {
        let some = self.changed.wait_while(self.lock(), |state| state.waiting.is_empty());
        let mut state = some.unwrap_or_else(PoisonError::into_inner);
        let (bytes, pushed) = (std::mem::take(&mut state.waiting), state.pushed);
        drop(state);
        // One at a time: lines that another process, such as a successor, writes to the same pipe
        // then come between our lines and not into them.
        for line in bytes.split_inclusive(|byte| *byte == b'\n') {
            // Standard error is closed: there is nowhere to report that.
            let _ = to.write_all(line);
        }
        let mut state = self.lock();
        (state.out, state.stuck) = (pushed, false);
        if state.dropped > 0 {
            let line = dropped(std::mem::take(&mut state.dropped));
            state.push(&line);
        }
        self.changed.notify_all();
    }
}

impl State {
    fn push(&mut self, line: &[u8]) -> u64 {
        self.waiting.extend_from_slice(line);
        self.pushed += 1;
        self.pushed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counted(count: u64) -> Vec<u8> {
        format!("{count} dropped\n").into_bytes()
    }

    #[test]
    fn a_line_is_written_before_its_caller_continues() {
        let (outlet, out) = (Outlet::default(), Mutex::new(Vec::new()));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for _ in 0..100 {
                    let mut piece = Vec::new();
                    outlet.write_some(&mut piece, counted);
                    out.lock().unwrap().extend(piece);
                }
            });
            for line in 0..100 {
                outlet.write_line(format!("{line}\n").as_bytes());
                assert_eq!(outlet.lock().out, line + 1, "nothing waits");
            }
        });
        let all: String = (0..100).map(|line| format!("{line}\n")).collect();
        assert_eq!(String::from_utf8(out.into_inner().unwrap()).unwrap(), all);
    }

    /// Keeps each write apart.
    #[derive(Default)]
    struct Pieces(Vec<String>);

    impl Write for Pieces {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.push(String::from_utf8_lossy(bytes).into_owned());
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn lines_that_waited_together_are_written_one_by_one() {
        let (outlet, mut out) = (Outlet::default(), Pieces::default());
        for line in ["first\n", "second\n"] {
            outlet.write_line(line.as_bytes());
        }
        outlet.write_some(&mut out, counted);
        assert_eq!(out.0, ["first\n", "second\n"]);
    }

    #[test]
    fn no_caller_waits_for_a_blocked_reader_and_dropped_lines_are_reported() {
        let outlet = Outlet::default();
        let line = [b"a".repeat(1_023), b"\n".to_vec()].concat();
        // If each of them waited, this would take seven minutes.
        for _ in 0..4_096 {
            outlet.write_line(&line);
        }
        assert!(outlet.lock().stuck);
        let mut out = Vec::new();
        outlet.write_some(&mut out, counted);
        assert_eq!(out.len(), WAITING_MAX, "what waits is bounded");
        assert!(!outlet.lock().stuck, "there is a reader again");
        outlet.write_some(&mut out, counted);
        assert!(out.ends_with(b"a\n3072 dropped\n"));
    }
}
