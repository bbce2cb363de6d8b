//! Which connection gives way once a listener has as many as it may: of those that no request was
//! accepted from yet, the one that has waited longest.
//!
//! # Invariant
//!
//! 1. A connection that a request was accepted from never gives way.
//!
//! Not here: which requests are accepted (the handlers of each program).

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

/// Ends its connection when it is dropped.
#[derive(Debug)]
struct Place {
    _permit: OwnedSemaphorePermit,
    _stays: oneshot::Sender<Infallible>,
}

/// The connections of a listener that no request was accepted from yet.
#[derive(Debug, Default)]
pub(super) struct Newcomers {
    /// By number: the first has waited longest.
    places: Mutex<BTreeMap<u64, Place>>,
}

/// A connection, until it ends.
#[derive(Debug)]
pub(super) struct Newcomer {
    newcomers: Arc<Newcomers>,
    number: u64,
    /// Its place, once a request was accepted.
    place: OnceLock<Place>,
}

impl Newcomers {
    /// Admits the connection of this number, which is higher than those before, and returns what
    /// completes when it has to give way. `None` if there is no permit and none gives way.
    pub(super) fn admit(
        self: &Arc<Self>,
        number: u64,
        connections: &Arc<Semaphore>,
    ) -> Option<(Newcomer, oneshot::Receiver<Infallible>)> {
        let permit = || Arc::clone(connections).try_acquire_owned().ok();
        let permit = permit().or_else(|| {
            drop(self.places().pop_first()?);
            permit()
        })?;
        let (stays, gives_way) = oneshot::channel();
        self.places().insert(number, Place { _permit: permit, _stays: stays });
        let newcomers = Arc::clone(self);
        Some((Newcomer { newcomers, number, place: OnceLock::new() }, gives_way))
    }

    fn places(&self) -> MutexGuard<'_, BTreeMap<u64, Place>> {
        self.places.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Newcomer {
    /// A request of the connection was accepted: from now on it does not give way. False if it has
    /// given way already.
    pub(super) fn stays(&self) -> bool {
        let take = || self.newcomers.places().remove(&self.number);
        self.place.get().is_some() || take().is_some_and(|place| self.place.set(place).is_ok())
    }
}

impl Drop for Newcomer {
    fn drop(&mut self) {
        drop(self.newcomers.places().remove(&self.number));
    }
}
