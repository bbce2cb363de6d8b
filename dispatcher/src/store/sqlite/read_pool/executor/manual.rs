//! Looks without threads: a test says when each begins, and when whoever asked is told.
//!
//! In between others may write: a look on a thread of its own is as old when it is told.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use rusqlite::ffi;
use tokio::sync::{Notify, OwnedSemaphorePermit, SemaphorePermit};

use crate::store::sqlite::error::Fault;
use crate::store::sqlite::read_pool::executor::Lookout;
use crate::store::sqlite::read_pool::{CUSTOMERS_MAX, Readers};
use crate::store::sqlite::wal::reader_gate::Door;

/// Those that were asked for.
#[derive(Debug, Default)]
pub(crate) struct Looks {
    begin: Notify,
    tell: Notify,
    waiting: AtomicUsize,
    /// Whether none succeeds.
    pub(crate) fail: AtomicBool,
}

impl Looks {
    /// Looks when that is said, and tells of it when that is: then it gives back the permit.
    pub(in crate::store::sqlite::read_pool) async fn look<T>(
        &self,
        _permit: OwnedSemaphorePermit,
        look: impl FnOnce() -> Result<T, Fault>,
    ) -> Result<T, Fault> {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        self.begin.notified().await;
        let seen = if self.fail.load(Ordering::Relaxed) {
            let error = ffi::Error::new(ffi::SQLITE_IOERR_READ);
            Err(Fault::Sql(rusqlite::Error::SqliteFailure(error, None)))
        } else {
            look()
        };
        self.tell.notified().await;
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        seen
    }

    /// Whether anybody waits.
    pub(crate) fn any(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) > 0
    }

    /// Lets those begin that wait for it.
    pub(crate) fn begin(&self) {
        self.begin.notify_waiters();
    }

    /// Lets those be told of that have looked.
    pub(crate) fn tell(&self) {
        self.tell.notify_waiters();
    }
}

impl Readers {
    /// As [`Readers::new`], by hand.
    pub(in crate::store::sqlite) fn by_hand(
        path: PathBuf,
        door: Arc<Door>,
        most: usize,
    ) -> (Self, Arc<Looks>) {
        let looks = Arc::default();
        (Self::at(Lookout::ByHand(Arc::clone(&looks)), path, door, most), looks)
    }

    /// As [`Readers::new`], on the runtime's threads.
    pub(in crate::store::sqlite) fn on_the_runtime(
        path: PathBuf,
        door: Arc<Door>,
        most: usize,
    ) -> Self {
        Self::at(Lookout::Runtime, path, door, most)
    }

    pub(in crate::store::sqlite) fn places_free(&self) -> usize {
        self.0.permits.available_permits()
    }

    /// Has others wait until the places are given back.
    pub(in crate::store::sqlite) fn take_all(&self) -> SemaphorePermit<'_> {
        let all = u32::try_from(CUSTOMERS_MAX).unwrap_or_default();
        self.0.permits.try_acquire_many(all).expect("nobody looks")
    }
}
