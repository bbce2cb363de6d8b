//! Counts a request as in flight until it ends. (core)
//!
//! Invariant: what is charged is released once, whatever becomes of the request.
//!
//! Not here: the counters (`limit::memory`), which may be another process's (`limit::limiter`).

use std::fmt;
use std::sync::Arc;

use arrayvec::ArrayVec;

use super::CHECKS_MAX;
use super::key::Key;

/// Where requests in flight are counted.
pub trait Releases: Send + Sync {
    /// Counts one request of a key in flight less.
    fn release(&self, key: Key);
}

/// Counts a request as in flight until dropped.
pub struct Held {
    counters: Arc<dyn Releases>,
    keys: ArrayVec<Key, CHECKS_MAX>,
}

impl Held {
    /// Holds these keys, which have been charged; none where there are no keys.
    pub fn of(counters: Arc<dyn Releases>, keys: impl Iterator<Item = Key>) -> Option<Box<Self>> {
        let keys: ArrayVec<Key, CHECKS_MAX> = keys.collect();
        (!keys.is_empty()).then(|| Box::new(Self { counters, keys }))
    }

    /// The keys, which the caller must release.
    #[must_use]
    pub fn into_keys(mut self) -> ArrayVec<Key, CHECKS_MAX> {
        std::mem::take(&mut self.keys)
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.keys.iter().for_each(|key| self.counters.release(*key));
    }
}

impl fmt::Debug for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Held").field(&self.keys).finish()
    }
}
