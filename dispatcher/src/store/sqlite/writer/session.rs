//! The state of the writer's thread, which each task may use.

use rusqlite::Connection;
use weir_common::time::Clock;

use crate::store::encryption::Sealer;
use crate::store::sqlite::file_identity::FileIdentity;
use crate::store::sqlite::steady_clock::Steady;
use crate::store::sqlite::wal::limit::WalLimit;
use crate::store::sqlite::writer::counters::Counters;

/// The state of the writer's thread.
pub(in crate::store::sqlite) struct WriteSession {
    pub(in crate::store::sqlite) conn: Connection,
    pub(in crate::store::sqlite) sealer: Sealer,
    pub(in crate::store::sqlite) clock: Clock,
    pub(in crate::store::sqlite) counters: Counters,
    pub(in crate::store::sqlite) steady: Steady,
    /// The workspace whose job ran the last step.
    pub(in crate::store::sqlite) job_turn: i64,
    /// Limits the size of the WAL.
    pub(in crate::store::sqlite) wal: WalLimit,
    /// The identity of the database's files.
    pub(in crate::store::sqlite) files: FileIdentity,
}

impl WriteSession {
    /// Notes the time by both clocks, for the next process.
    pub(super) fn note_clocks(&mut self) {
        self.counters.steady = (self.steady.now(), self.clock.now().unix);
    }
}
