//! Limits how many requests for one key run at a time.
//!
//! # Invariants
//!
//! 1. At most `permits` permits of one key are out at a time.
//! 2. A key uses memory only while a permit of it is out or waited for.
//!
//! # Not here
//!
//! What a permit is for (`directory::turns`, `auth::address_turns`).

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// A semaphore for each key that is in use.
#[derive(Debug)]
pub struct KeyedSemaphore<K> {
    permits: usize,
    by_key: Mutex<HashMap<K, Arc<Semaphore>>>,
}

/// A permit, returned when dropped.
#[derive(Debug)]
pub struct KeyedPermit<'s, K: Copy + Eq + Hash> {
    of: &'s KeyedSemaphore<K>,
    key: K,
    semaphore: Arc<Semaphore>,
    permit: Option<OwnedSemaphorePermit>,
}

impl<K: Copy + Eq + Hash> KeyedSemaphore<K> {
    /// `permits` permits for each key.
    #[must_use]
    pub fn new(permits: usize) -> Self {
        Self { permits, by_key: Mutex::default() }
    }

    /// Waits for a permit. Dropping the future leaves the queue.
    pub async fn acquire(&self, key: K) -> KeyedPermit<'_, K> {
        let new = || Arc::new(Semaphore::new(self.permits));
        let semaphore = self.lock().entry(key).or_insert_with(new).clone();
        let mut permit = KeyedPermit { of: self, key, semaphore, permit: None };
        // No semaphore is ever closed.
        permit.permit = permit.semaphore.clone().acquire_owned().await.ok();
        permit
    }

    /// A permit, if one is left.
    pub fn try_acquire(&self, key: K) -> Option<KeyedPermit<'_, K>> {
        let new = || Arc::new(Semaphore::new(self.permits));
        let semaphore = self.lock().entry(key).or_insert_with(new).clone();
        let permit = semaphore.clone().try_acquire_owned().ok();
        let permit = KeyedPermit { of: self, key, semaphore, permit };
        permit.permit.is_some().then_some(permit)
    }
}

impl<K> KeyedSemaphore<K> {
    fn lock(&self) -> MutexGuard<'_, HashMap<K, Arc<Semaphore>>> {
        self.by_key.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<K: Copy + Eq + Hash> Drop for KeyedPermit<'_, K> {
    fn drop(&mut self) {
        self.permit = None;
        let mut by_key = self.of.lock();
        // Two references are the map's and this one: other permits and waiters have one each.
        if Arc::strong_count(&self.semaphore) == 2 {
            by_key.remove(&self.key);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use super::*;

    /// Whether the future is ready at its first poll.
    async fn at_once<T>(future: impl Future<Output = T>) -> Option<T> {
        let mut future = pin!(future);
        std::future::poll_fn(|context| {
            std::task::Poll::Ready(match future.as_mut().poll(context) {
                std::task::Poll::Ready(value) => Some(value),
                std::task::Poll::Pending => None,
            })
        })
        .await
    }

    fn run(test: impl Future<Output = ()>) {
        tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(test);
    }

    #[test]
    fn a_key_has_so_many_permits_and_another_has_its_own() {
        run(async {
            let semaphore = KeyedSemaphore::new(2);
            let (one, _two) = (semaphore.acquire("a").await, semaphore.acquire("a").await);
            assert!(at_once(semaphore.acquire("a")).await.is_none());
            assert!(at_once(semaphore.acquire("b")).await.is_some());
            drop(one);
            assert!(at_once(semaphore.acquire("a")).await.is_some());
        });
    }

    #[test]
    fn a_key_is_removed_with_its_last_permit_even_where_a_waiter_left() {
        run(async {
            let semaphore = KeyedSemaphore::new(1);
            let permit = semaphore.acquire("a").await;
            assert!(at_once(semaphore.acquire("a")).await.is_none(), "left without a permit");
            assert_eq!(semaphore.lock().len(), 1);
            drop(permit);
            assert_eq!(semaphore.lock().len(), 0);
        });
    }
}
