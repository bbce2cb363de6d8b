//! A few connections that only read: they never wait for the writer, nor it for them.
//!
//! Customers have some, and the worker has its own, so that nobody's list delays a delivery.
//!
//! # Invariants
//!
//! 1. A look sees all that was committed before it was asked for, and nothing that is not
//!    committed when it ends: whoever was told that something is on disk finds it there.
//! 2. All of a look is of one moment.
//! 3. No more looks go on than may, whoever has stopped waiting for theirs.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use log::Level;
use rusqlite::{Connection, OpenFlags};
use tokio::sync::Semaphore;
use weir_common::log::events;

use crate::blocking_pool::Threads;
use crate::store::StoreError;
use crate::store::sqlite::error::Fault;
use crate::store::sqlite::pragmas::BUSY_TIMEOUT;
use crate::store::sqlite::read_pool::executor::Lookout;
use crate::store::sqlite::wal::reader_gate::Door;
use crate::store::sqlite::writer::gone;

pub(crate) mod executor;

/// Looks of customers that go on at one time. More threads than cores would only wait for each
/// other.
pub(super) const CUSTOMERS_MAX: usize = 4;

/// Looks of the worker that go on at one time: a long one holds up no other.
pub(super) const WORKERS_MAX: usize = 2;

/// Memory for pages, in KiB, of each.
const CACHE_KIB: i64 = 4 * 1_024;

/// The connections.
#[derive(Clone, Debug)]
pub(super) struct Readers(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    path: PathBuf,
    door: Arc<Door>,
    permits: Arc<Semaphore>,
    idle: Mutex<Vec<Connection>>,
    lookout: Lookout,
    /// Whether the last look failed for a reason that the next one meets as well.
    failing: AtomicBool,
}

impl Readers {
    /// At most so many of the database at `path`, which is there and of our version. They come
    /// in by this door.
    pub(super) fn new(path: PathBuf, door: Arc<Door>, most: usize) -> Self {
        Self::at(Lookout::Own(Threads::new("store-reader", most)), path, door, most)
    }

    fn at(lookout: Lookout, path: PathBuf, door: Arc<Door>, most: usize) -> Self {
        Self(Arc::new(Shared {
            path,
            door,
            permits: Arc::new(Semaphore::new(most)),
            idle: Mutex::default(),
            lookout,
            failing: AtomicBool::new(false),
        }))
    }

    /// Has `look` look at the database as it was when it began.
    pub(super) async fn read<T, L>(&self, look: L) -> Result<T, StoreError>
    where
        T: Send + 'static,
        L: FnOnce(&Connection) -> Result<T, Fault> + Send + 'static,
    {
        let permit = Arc::clone(&self.0.permits).acquire_owned().await.map_err(|_| gone())?;
        let shared = Arc::clone(&self.0);
        let looked = self.0.lookout.look(permit, move || shared.look(look)).await;
        let looked = looked.map_err(|error| StoreError::Damaged(error.to_string().into()))?;
        self.0.note(looked.as_ref().err());
        looked.map_err(|fault| fault.told())
    }

    /// Lets nobody in any more, and closes what is idle.
    pub(super) fn close(&self) {
        self.0.permits.close();
        self.0.idle.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }
}

impl Shared {
    /// Writes down that looks have begun to fail, or to succeed again: not each of them.
    fn note(&self, fault: Option<&Fault>) {
        let fault = fault.filter(|fault| fault.is_the_disks());
        if self.failing.swap(fault.is_some(), Ordering::Relaxed) == fault.is_some() {
            return;
        }
        match fault.map(|fault| fault.to_string().into()) {
            Some(cause) => events::event(Level::Error, "store_cannot_read", &[("cause", cause)]),
            None => events::event(Level::Info, "store_reads_again", &[]),
        }
    }

    fn look<T>(&self, look: impl FnOnce(&Connection) -> Result<T, Fault>) -> Result<T, Fault> {
        let idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let conn = idle.map_or_else(|| self.open(), Ok)?;
        let _inside = self.door.enter();
        // One snapshot for the whole look: a list and what is said of its rows belong together.
        let seen = conn.unchecked_transaction().map_err(Fault::from).and_then(|_seen| look(&conn));
        if !self.permits.is_closed() {
            self.idle.lock().unwrap_or_else(PoisonError::into_inner).push(conn);
        }
        seen
    }

    fn open(&self) -> Result<Connection, Fault> {
        let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let conn = Connection::open_with_flags(&self.path, flags)?;
        conn.busy_timeout(BUSY_TIMEOUT)?;
        conn.pragma_update(None, "cache_size", -CACHE_KIB)?;
        conn.pragma_update(None, "temp_store", "MEMORY")?;
        conn.set_prepared_statement_cache_capacity(64);
        #[cfg(test)]
        let conn = crate::store::sqlite::tests::watch::looked_on(conn)?;
        Ok(conn)
    }
}
