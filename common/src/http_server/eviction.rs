//! Which connection is evicted once a listener has as many as it may: of those without a request
//! of a verified caller, the one that has waited longest.
//!
//! # Invariant
//!
//! 1. A pinned connection is never evicted.
//!
//! Not here: whose requests pin a connection (`http_server`, the handlers of each program).

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

/// Ends its connection when it is dropped.
#[derive(Debug)]
struct Evictable {
    _permit: OwnedSemaphorePermit,
    _evict: oneshot::Sender<Infallible>,
}

/// The connections of a listener that may be evicted.
#[derive(Debug, Default)]
pub(super) struct EvictableConnections(Mutex<Waiting>);

#[derive(Debug, Default)]
struct Waiting {
    /// By number: the first has waited longest.
    by_number: BTreeMap<u64, Evictable>,
    newest: u64,
}

impl Waiting {
    /// Adds a connection behind all others, and returns its number.
    fn add(&mut self, evictable: Evictable) -> u64 {
        self.newest += 1;
        self.by_number.insert(self.newest, evictable);
        self.newest
    }
}

/// A connection, until it ends.
#[derive(Debug)]
pub(super) struct ConnectionHandle {
    connections: Arc<EvictableConnections>,
    position: Mutex<Position>,
}

#[derive(Debug)]
struct Position {
    /// Its number among those that wait, or its last one.
    number: u64,
    /// Its permit and signal, while it is pinned.
    pinned: Option<Evictable>,
}

impl EvictableConnections {
    /// Admits a connection, and returns what completes when it is evicted. `None` if there is no
    /// permit and none can be evicted.
    pub(super) fn admit(
        self: &Arc<Self>,
        connections: &Arc<Semaphore>,
    ) -> Option<(ConnectionHandle, oneshot::Receiver<Infallible>)> {
        let permit = || Arc::clone(connections).try_acquire_owned().ok();
        let permit = permit().or_else(|| {
            drop(self.waiting().by_number.pop_first()?);
            permit()
        })?;
        let (evict, evicted) = oneshot::channel();
        let number = self.waiting().add(Evictable { _permit: permit, _evict: evict });
        let position = Mutex::new(Position { number, pinned: None });
        Some((ConnectionHandle { connections: Arc::clone(self), position }, evicted))
    }

    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ConnectionHandle {
    /// From now on the connection is not evicted. False if it has been evicted already.
    pub(super) fn pin(&self) -> bool {
        let mut position = self.position();
        if position.pinned.is_none() {
            position.pinned = self.connections.waiting().by_number.remove(&position.number);
        }
        position.pinned.is_some()
    }

    /// From now on the connection may be evicted, after those that wait already.
    pub(super) fn unpin(&self) {
        let mut position = self.position();
        if let Some(evictable) = position.pinned.take() {
            position.number = self.connections.waiting().add(evictable);
        }
    }

    fn position(&self) -> MutexGuard<'_, Position> {
        self.position.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for ConnectionHandle {
    fn drop(&mut self) {
        let number = self.position().number;
        drop(self.connections.waiting().by_number.remove(&number));
    }
}
