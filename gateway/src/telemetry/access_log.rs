//! The access log: one JSON line per request, on standard output.
//!
//! A thread of its own writes lines out; what nothing reads is dropped and counted.
//!
//! Not here: what a line says (`proxy::access_line`).

use std::io::Write;
use std::sync::Arc;
use std::time::Duration;

use prometheus::IntCounter;
use weir_common::log::json_lines::{Added, LineLog};

/// The log, shared by those who write lines and the one who writes them out.
pub struct AccessLog {
    lines: LineLog,
    dropped: IntCounter,
}

impl AccessLog {
    /// A log that counts what it must drop in `dropped`.
    #[must_use]
    pub fn new(dropped: IntCounter) -> Arc<Self> {
        Arc::new(Self { lines: LineLog::default(), dropped })
    }

    /// Adds the line of one request, with its end.
    pub fn add(&self, line: &[u8]) {
        if self.lines.add(line) == Added::Dropped {
            self.dropped.inc();
        }
    }

    /// Writes lines out until the log is closed and nothing is left. Runs on a thread of its own.
    pub fn write_out(&self, to: impl Write) {
        self.lines.write_out(to);
    }

    /// Says whether another process writes to the same place.
    pub fn share(&self, shared: bool) {
        self.lines.share(shared);
    }

    /// Lets [`AccessLog::write_out`] end, and waits until everything is written, or for `grace`.
    pub fn close(&self, grace: Duration) {
        self.lines.close(grace);
    }
}
