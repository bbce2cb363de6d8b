//! Reads without threads, for simulations, which decide when reads run and when callers get the
//! results.
//!
//! Writes may happen between a read and the return of its result, as with a read on a thread.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use rusqlite::ffi;
use tokio::sync::{Notify, OwnedSemaphorePermit};

use crate::store::sqlite::error::Fault;

/// Waiting reads.
#[derive(Debug, Default)]
pub struct ManualReads {
    begin: Notify,
    deliver: Notify,
    waiting: AtomicUsize,
    failing: AtomicBool,
}

impl ManualReads {
    /// Runs `read` when [`ManualReads::begin`] is called; returns its result, and the permit, when
    /// [`ManualReads::deliver`] is called.
    pub(super) async fn run<T>(
        &self,
        _permit: OwnedSemaphorePermit,
        read: impl FnOnce() -> Result<T, Fault>,
    ) -> Result<T, Fault> {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        self.begin.notified().await;
        let found = if self.failing.load(Ordering::Relaxed) {
            let error = ffi::Error::new(ffi::SQLITE_IOERR_READ);
            Err(Fault::Sql(rusqlite::Error::SqliteFailure(error, None)))
        } else {
            read()
        };
        self.deliver.notified().await;
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        found
    }

    /// Whether any caller waits.
    pub fn any(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) > 0
    }

    /// Runs the reads that have not run.
    pub fn begin(&self) {
        self.begin.notify_waiters();
    }

    /// Returns the results of reads that have run to their callers.
    pub fn deliver(&self) {
        self.deliver.notify_waiters();
    }

    /// Sets whether reads that start from now on fail.
    pub fn set_failing(&self, failing: bool) {
        self.failing.store(failing, Ordering::Relaxed);
    }
}
