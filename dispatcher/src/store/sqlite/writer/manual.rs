//! The writer without its thread, for simulations, which decide when it runs and read its database.
//!
//! It runs the same code as the thread, batch by batch.

use std::fs::File;

use rusqlite::Connection;

use crate::store::sqlite::writer::session::WriteSession;
use crate::store::sqlite::writer::{Thread, Writer};

/// The writer, which runs when it is stepped.
pub struct ManualWriter {
    thread: Option<Thread>,
    /// Locked until the connection is closed.
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

    /// The connection that writes; `None` once the store was closed.
    #[must_use]
    pub fn connection(&self) -> Option<&Connection> {
        self.thread.as_ref().map(|thread| &thread.session.conn)
    }
}

impl Writer {
    /// A handle, and a writer that runs when it is stepped.
    pub(in crate::store::sqlite) fn manual(
        session: WriteSession,
        lock: File,
    ) -> (Self, ManualWriter) {
        let (writer, thread) = Self::over(session);
        (writer, ManualWriter { thread: Some(thread), _lock: lock })
    }
}
