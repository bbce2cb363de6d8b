//! The writer without its thread, for simulations, which decide when it runs, and read the
//! database.
//!
//! It runs the thread's own code, batch by batch.

use std::fs::File;

use rusqlite::Connection;

use crate::store::sqlite::writer::session::WriteSession;
use crate::store::sqlite::writer::{Thread, Writer};

/// What the thread would run.
pub struct ManualWriter {
    thread: Option<Thread>,
    /// Held until the connection is closed.
    _lock: File,
}

impl ManualWriter {
    /// Executes one batch; returns whether there was any work.
    pub fn step(&mut self) -> bool {
        let Some(thread) = &mut self.thread else { return false };
        let worked = thread.work_once();
        let Some(answer) = thread.ending.take() else { return worked };
        if let Some(thread) = self.thread.take() {
            thread.end(answer);
        }
        true
    }

    /// The connection that writes; none once the store was closed.
    #[must_use]
    pub fn connection(&self) -> Option<&Connection> {
        self.thread.as_ref().map(|thread| &thread.session.conn)
    }
}

impl Writer {
    /// One that works when it is stepped.
    pub(in crate::store::sqlite) fn manual(
        session: WriteSession,
        lock: File,
    ) -> (Self, ManualWriter) {
        let (writer, thread) = Self::over(session);
        (writer, ManualWriter { thread: Some(thread), _lock: lock })
    }
}
