//! What a gateway knows of keys of a shared store, in parts, so that workers rarely wait for each
//! other.
//!
//! Not here: the counters of this process (`limit::memory`), which also move between processes.

use std::sync::{Mutex, MutexGuard, PoisonError};

use super::super::key::Key;

/// Enough that workers rarely contend for one.
pub(super) const SHARDS: usize = 64;

/// One part for the keys of each shard.
#[derive(Debug)]
pub(super) struct Sharded<T> {
    parts: Box<[T]>,
}

impl<T: Default> Default for Sharded<T> {
    fn default() -> Self {
        Self { parts: (0..SHARDS).map(|_| T::default()).collect() }
    }
}

impl<T> Sharded<T> {
    /// The part that a key is in.
    pub(super) fn part(&self, key: Key) -> &T {
        self.parts.get(key.shard(SHARDS)).expect("a shard is below their number")
    }

    /// All parts.
    pub(super) fn parts(&self) -> impl Iterator<Item = &T> {
        self.parts.iter()
    }
}

impl<T> Sharded<Mutex<T>> {
    /// The part that a key is in, locked.
    pub(super) fn lock(&self, key: Key) -> MutexGuard<'_, T> {
        lock(self.part(key))
    }

    /// Each part in turn, locked.
    pub(super) fn locked(&self) -> impl Iterator<Item = MutexGuard<'_, T>> {
        self.parts().map(lock)
    }
}

/// Locks a part: a panic elsewhere leaves it as consistent as it was.
pub(super) fn lock<T>(part: &Mutex<T>) -> MutexGuard<'_, T> {
    part.lock().unwrap_or_else(PoisonError::into_inner)
}
