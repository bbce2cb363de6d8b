//! A few connections that only read: readers and the writer do not wait for each other.
//!
//! The API and the worker have separate ones, so that no list delays a delivery.
//!
//! # Invariants
//!
//! 1. A read sees everything that was committed before its call, and nothing uncommitted: what was
//!    acknowledged is found.
//! 2. A read is one snapshot.
//! 3. The number of reads at a time is bounded, also if callers no longer wait for theirs.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use log::Level;
use rusqlite::{Connection, OpenFlags};
use tokio::sync::Semaphore;
use weir_common::log::events;

use crate::blocking_pool::Threads;
use crate::store::StoreError;
use crate::store::sqlite::error::Fault;
use crate::store::sqlite::pragmas::{ConnectionHook, prepare_reader};
use crate::store::sqlite::read_pool::executor::ReadExecutor;
use crate::store::sqlite::wal::reader_gate::ReaderGate;
use crate::store::sqlite::writer::closed;

pub mod executor;

/// Reads of customers at a time. More threads than cores would only wait for each other.
pub(super) const CUSTOMERS_MAX: usize = 4;

/// Reads of the worker at a time: a single long one delays no other.
pub(super) const WORKERS_MAX: usize = 2;

/// How readers open their connections.
#[derive(Clone)]
pub(super) struct Source {
    /// The database, which exists and has our version.
    pub(super) path: PathBuf,
    /// The gate that each read passes.
    pub(super) gate: Arc<ReaderGate>,
    pub(super) hook: ConnectionHook,
    /// The file of the database, which stays open until SQLite has closed it everywhere: closing it
    /// releases the locks that this process has on it. <https://sqlite.org/howtocorrupt.html>,
    /// section 2.2.
    pub(super) database: Arc<File>,
}

impl Source {
    pub(super) fn of(path: &Path, gate: Arc<ReaderGate>, hook: ConnectionHook) -> io::Result<Self> {
        Ok(Self { path: path.to_owned(), gate, hook, database: Arc::new(File::open(path)?) })
    }
}

/// A pool of read-only connections.
#[derive(Clone)]
pub(super) struct Readers(Arc<Shared>);

struct Shared {
    permits: Arc<Semaphore>,
    idle: Mutex<Vec<Connection>>,
    executor: ReadExecutor,
    /// Whether the last read failed because of the disk.
    failing: AtomicBool,
    /// Dropped after the connections.
    source: Source,
}

impl Readers {
    /// A pool of at most `most` connections to the database that `to` describes.
    pub(super) fn new(to: &Source, executor: ReadExecutor, most: usize) -> Self {
        Self(Arc::new(Shared {
            source: to.clone(),
            permits: Arc::new(Semaphore::new(most)),
            idle: Mutex::default(),
            executor,
            failing: AtomicBool::new(false),
        }))
    }

    /// Like [`Readers::new`], with `most` threads of its own.
    pub(super) fn on_threads(to: &Source, most: usize) -> Self {
        Self::new(to, ReadExecutor::Own(Threads::new("store-reader", most)), most)
    }

    /// Runs `read` on a snapshot of the database, taken when it starts.
    pub(super) async fn read<T, R>(&self, read: R) -> Result<T, StoreError>
    where
        T: Send + 'static,
        R: FnOnce(&Connection) -> Result<T, Fault> + Send + 'static,
    {
        let permit = Arc::clone(&self.0.permits).acquire_owned().await.map_err(|_| closed())?;
        let shared = Arc::clone(&self.0);
        let found = self.0.executor.run(permit, move || shared.read(read)).await;
        let found = found.map_err(|error| StoreError::Damaged(error.to_string().into()))?;
        self.0.note(found.as_ref().err());
        found.map_err(|fault| fault.store_error())
    }

    /// Refuses further reads, and closes idle connections.
    pub(super) fn close(&self) {
        self.0.permits.close();
        self.0.idle.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }
}

impl Shared {
    /// Logs that reads started to fail, or to succeed again, but not each failure.
    fn note(&self, fault: Option<&Fault>) {
        let fault = fault.filter(|fault| fault.is_disk_failure());
        if self.failing.swap(fault.is_some(), Ordering::Relaxed) == fault.is_some() {
            return;
        }
        match fault.map(|fault| fault.to_string().into()) {
            Some(cause) => events::event(Level::Error, "store reads failing", &[("cause", cause)]),
            None => events::event(Level::Info, "store reads recovered", &[]),
        }
    }

    fn read<T>(&self, read: impl FnOnce(&Connection) -> Result<T, Fault>) -> Result<T, Fault> {
        let idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let conn = idle.map_or_else(|| self.open(), Ok)?;
        let _inside = self.source.gate.enter();
        // One snapshot for the whole read: a list and the details of its rows are consistent.
        let found =
            conn.unchecked_transaction().map_err(Fault::from).and_then(|_snapshot| read(&conn));
        if !self.permits.is_closed() {
            self.idle.lock().unwrap_or_else(PoisonError::into_inner).push(conn);
        }
        found
    }

    fn open(&self) -> Result<Connection, Fault> {
        let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let mut conn = Connection::open_with_flags(&self.source.path, flags)?;
        prepare_reader(&conn)?;
        (self.source.hook)(&mut conn)?;
        Ok(conn)
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::SemaphorePermit;

    use super::*;

    impl Readers {
        pub(in crate::store::sqlite) fn permits_free(&self) -> usize {
            self.0.permits.available_permits()
        }

        /// Acquires all permits, so that reads wait until they are released.
        pub(in crate::store::sqlite) fn acquire_all(&self) -> SemaphorePermit<'_> {
            let all = u32::try_from(CUSTOMERS_MAX).unwrap_or_default();
            self.0.permits.try_acquire_many(all).expect("nothing is read")
        }
    }
}
