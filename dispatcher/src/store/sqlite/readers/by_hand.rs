//! Looks without threads: a test says when each begins, and when whoever asked is told.
//!
//! In between others may write: a look on a thread of its own is as old when it is told.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use rusqlite::ffi;
use tokio::sync::Notify;

use super::super::door::Door;
use super::super::fault::Fault;
use super::{Readers, Shared};

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
    /// Looks when that is said, and tells of it when that is.
    pub(super) async fn look<T>(
        &self,
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
        let (mut shared, looks) = (Shared::new(path, door, most), Arc::default());
        shared.by_hand = Some(Arc::clone(&looks));
        (Self(Arc::new(shared)), looks)
    }
}
