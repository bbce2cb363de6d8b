//! Reads without threads, for simulations, which decide when each runs and when its caller gets the
//! result.
//!
//! Writes may happen in between, as with a read on a thread of its own.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use rusqlite::ffi;
use tokio::sync::{Notify, OwnedSemaphorePermit};

use crate::store::sqlite::error::Fault;

/// Reads that callers wait for.
#[derive(Debug, Default)]
pub struct ManualReads {
    begin: Notify,
    deliver: Notify,
    waiting: AtomicUsize,
    failing: AtomicBool,
}

impl ManualReads {
    /// Reads when [`ManualReads::begin`] is called, and gives the result, and the permit back, when
    /// [`ManualReads::deliver`] is.
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

    /// Begins the reads that have not begun.
    pub fn begin(&self) {
        self.begin.notify_waiters();
    }

    /// Gives callers the results of reads that have been made.
    pub fn deliver(&self) {
        self.deliver.notify_waiters();
    }

    /// Whether reads that begin from now on fail.
    pub fn set_failing(&self, failing: bool) {
        self.failing.store(failing, Ordering::Relaxed);
    }
}
