//! Which connection gives way once a listener has as many as it may: of those that wait for a
//! request of a verified caller, the one that has waited longest.
//!
//! # Invariant
//!
//! 1. A connection that stays never gives way.
//!
//! Not here: whose requests let a connection stay (`http_server`, the handlers of each program).

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

/// Ends its connection when it is dropped.
#[derive(Debug)]
struct Place {
    _permit: OwnedSemaphorePermit,
    _stays: oneshot::Sender<Infallible>,
}

/// The connections of a listener that wait.
#[derive(Debug, Default)]
pub(super) struct Newcomers(Mutex<Waiting>);

#[derive(Debug, Default)]
struct Waiting {
    /// By number: the first has waited longest.
    places: BTreeMap<u64, Place>,
    newest: u64,
}

impl Waiting {
    /// Adds a place behind all others, and returns its number.
    fn add(&mut self, place: Place) -> u64 {
        self.newest += 1;
        self.places.insert(self.newest, place);
        self.newest
    }
}

/// A connection, until it ends.
#[derive(Debug)]
pub(super) struct Newcomer {
    newcomers: Arc<Newcomers>,
    standing: Mutex<Standing>,
}

#[derive(Debug)]
struct Standing {
    /// Its number among those that wait, or its last one.
    number: u64,
    /// Its place, while it stays.
    place: Option<Place>,
}

impl Newcomers {
    /// Admits a connection, and returns what completes when it has to give way. `None` if there is
    /// no permit and none gives way.
    pub(super) fn admit(
        self: &Arc<Self>,
        connections: &Arc<Semaphore>,
    ) -> Option<(Newcomer, oneshot::Receiver<Infallible>)> {
        let permit = || Arc::clone(connections).try_acquire_owned().ok();
        let permit = permit().or_else(|| {
            drop(self.waiting().places.pop_first()?);
            permit()
        })?;
        let (stays, gives_way) = oneshot::channel();
        let number = self.waiting().add(Place { _permit: permit, _stays: stays });
        let standing = Mutex::new(Standing { number, place: None });
        Some((Newcomer { newcomers: Arc::clone(self), standing }, gives_way))
    }

    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Newcomer {
    /// From now on the connection does not give way. False if it has given way already.
    pub(super) fn stays(&self) -> bool {
        let mut standing = self.standing();
        if standing.place.is_none() {
            standing.place = self.newcomers.waiting().places.remove(&standing.number);
        }
        standing.place.is_some()
    }

    /// From now on the connection gives way, after those that wait already.
    pub(super) fn waits(&self) {
        let mut standing = self.standing();
        if let Some(place) = standing.place.take() {
            standing.number = self.newcomers.waiting().add(place);
        }
    }

    fn standing(&self) -> MutexGuard<'_, Standing> {
        self.standing.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Newcomer {
    fn drop(&mut self) {
        let number = self.standing().number;
        drop(self.newcomers.waiting().places.remove(&number));
    }
}
