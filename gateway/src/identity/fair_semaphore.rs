//! Shares permits among keys, so that few keys leave room for others however many they want.
//!
//! # Invariants
//!
//! 1. At most `permits` permits are out, unless there were more when these were granted.
//! 2. A key without a permit gets one while any is left. A key with some gets another only while
//!    more than it has are left besides half of all.
//! 3. So a key waits for its first permit only while more than half as many keys as there are
//!    permits have one.
//! 4. Of the keys that wait the one with the fewest permits is next; of several, the one that got
//!    none for longest, however many wait for it.
//!
//! # Not here
//!
//! What a permit is for (`auth::address_turns`, `directory::turns`, `listener::turns`).

use std::collections::{BTreeMap, HashMap};
use std::hash::Hash;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;

/// Permits that keys share.
#[derive(Debug)]
pub struct FairSemaphore<K> {
    state: Mutex<State<K>>,
}

#[derive(Debug)]
struct State<K> {
    permits: usize,
    /// Permits that are out.
    out: usize,
    /// The keys that have a permit or wait for one.
    shares: HashMap<K, Share>,
    /// The keys that wait, by their permits and then `Share::since`.
    waiting: BTreeMap<(usize, u64), K>,
    /// The number of the next waiter, or grant.
    next: u64,
}

/// What one key has.
#[derive(Debug, Default)]
struct Share {
    /// Its permits that are out.
    out: usize,
    /// The number of its latest grant; before one, of its first waiter.
    since: u64,
    /// Its waiters, by their number.
    waiters: BTreeMap<u64, oneshot::Sender<()>>,
}

/// A permit, or the place of a waiter for one: returned when dropped.
#[derive(Debug)]
pub struct FairPermit<'s, K: Copy + Eq + Hash> {
    of: &'s FairSemaphore<K>,
    key: K,
    number: u64,
}

impl<K: Copy + Eq + Hash> FairSemaphore<K> {
    /// `permits` permits for all keys.
    #[must_use]
    pub fn new(permits: usize) -> Self {
        let (shares, waiting) = (HashMap::new(), BTreeMap::new());
        Self { state: Mutex::new(State { permits, out: 0, shares, waiting, next: 0 }) }
    }

    /// Changes the number of permits to what `change` makes of it and of how many are out. Those
    /// that are out stay.
    pub fn resize(&self, change: impl FnOnce(usize, usize) -> usize) {
        let mut state = self.lock();
        state.permits = change(state.permits, state.out);
        state.grant();
    }

    /// Waits for a permit. Dropping the future leaves the queue.
    pub async fn acquire(&self, key: K) -> FairPermit<'_, K> {
        let (permit, granted) = self.line_up(key);
        // A sender is dropped only after it has sent, or together with `permit`.
        let _ = granted.await;
        permit
    }

    fn line_up(&self, key: K) -> (FairPermit<'_, K>, oneshot::Receiver<()>) {
        let (sender, granted) = oneshot::channel();
        let mut state = self.lock();
        let number = state.next;
        state.next += 1;
        state.change(key, |share| {
            if share.is_idle() {
                share.since = number;
            }
            share.waiters.insert(number, sender);
        });
        state.grant();
        (FairPermit { of: self, key, number }, granted)
    }
}

impl<K> FairSemaphore<K> {
    fn lock(&self) -> MutexGuard<'_, State<K>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<K: Copy + Eq + Hash> State<K> {
    /// Changes what a key has, and its place among those that wait.
    fn change<T>(&mut self, key: K, change: impl FnOnce(&mut Share) -> T) -> T {
        let share = self.shares.entry(key).or_default();
        if let Some(place) = share.place() {
            self.waiting.remove(&place);
        }
        let changed = change(share);
        match share.place() {
            Some(place) => _ = self.waiting.insert(place, key),
            None if share.is_idle() => _ = self.shares.remove(&key),
            None => {}
        }
        changed
    }

    /// Grants what may be granted.
    fn grant(&mut self) {
        // If the key with the fewest permits may have no more, no other may.
        while let Some((&(has, _), &key)) = self.waiting.first_key_value() {
            let kept = if has == 0 { 0 } else { self.permits / 2 + has };
            if self.permits.saturating_sub(self.out) <= kept {
                return;
            }
            self.out += 1;
            let number = self.next;
            self.next += 1;
            self.change(key, |share| {
                (share.out, share.since) = (share.out + 1, number);
                // A receiver that is gone is about to return its permit.
                share.waiters.pop_first().map(|(_, waiter)| waiter.send(()))
            });
        }
    }
}

impl Share {
    fn is_idle(&self) -> bool {
        self.out == 0 && self.waiters.is_empty()
    }

    fn place(&self) -> Option<(usize, u64)> {
        (!self.waiters.is_empty()).then_some((self.out, self.since))
    }
}

impl<K: Copy + Eq + Hash> Drop for FairPermit<'_, K> {
    fn drop(&mut self) {
        let mut state = self.of.lock();
        let had_one = state.change(self.key, |share| {
            let had_one = share.waiters.remove(&self.number).is_none();
            share.out -= usize::from(had_one);
            had_one
        });
        if had_one {
            state.out -= 1;
            state.grant();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Lined<'s> = (FairPermit<'s, u32>, oneshot::Receiver<()>);

    /// Lines up; whether a permit is granted at once.
    fn take<'s>(semaphore: &'s FairSemaphore<u32>, key: u32) -> (bool, Lined<'s>) {
        let (permit, mut granted) = semaphore.line_up(key);
        (granted.try_recv().is_ok(), (permit, granted))
    }

    fn has(semaphore: &FairSemaphore<u32>, key: u32) -> usize {
        semaphore.lock().shares.get(&key).map_or(0, |share| share.out)
    }

    #[test]
    fn one_key_has_a_quarter_of_the_permits_and_each_further_one_less() {
        let semaphore = FairSemaphore::new(64);
        let mut all = Vec::new();
        let mut shares = Vec::new();
        for key in 0..8 {
            all.extend((0..20).map(|_| take(&semaphore, key)));
            shares.push(has(&semaphore, key));
        }
        assert_eq!(shares, [16, 8, 4, 2, 1, 1, 1, 1]);
        drop(all);
        assert!(semaphore.lock().shares.is_empty() && semaphore.lock().waiting.is_empty());
    }

    #[test]
    fn keys_that_want_as_much_as_they_get_come_to_have_equal_shares() {
        let semaphore = FairSemaphore::new(64);
        let mut all: Vec<_> = (0..4)
            .flat_map(|key| (0..60).map(move |_| key))
            .map(|key| take(&semaphore, key))
            .collect();
        // Each permit goes back once, the oldest first.
        all.drain(..40);
        all.drain(20..60);
        let shares: Vec<_> = (0..4).map(|key| has(&semaphore, key)).collect();
        assert!(shares.iter().all(|share| (5..=8).contains(share)), "{shares:?}");
    }

    #[test]
    fn thirty_two_keys_keep_a_further_one_from_no_first_permit() {
        let mut dice = 7_u64;
        let mut roll = |sides: usize| {
            dice = dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            usize::try_from(dice >> 33).unwrap() % sides
        };
        let semaphore = FairSemaphore::new(64);
        let mut all = Vec::new();
        for nth in 0..20_000 {
            if roll(5) < 3 || all.is_empty() {
                all.push(take(&semaphore, u32::try_from(roll(32)).unwrap()));
            } else {
                all.swap_remove(roll(all.len()));
            }
            if all.len() > 600 {
                all.drain(..roll(600));
            }
            assert!(semaphore.lock().out <= 64);
            assert!(take(&semaphore, 99).0, "after {nth} steps");
        }
    }

    #[test]
    fn the_next_permit_is_for_the_key_with_the_fewest_and_a_waiter_that_leaves_has_none() {
        let semaphore = FairSemaphore::new(4);
        let mut held: Vec<_> = (0..4).map(|key| take(&semaphore, key).1).collect();
        let (at_once, more) = take(&semaphore, 0);
        let (_, mut first) = take(&semaphore, 4);
        let (_, mut second) = take(&semaphore, 5);
        assert!(!at_once);
        drop(more);
        held.pop();
        assert!(first.1.try_recv().is_ok() && second.1.try_recv().is_err());
        drop(first);
        assert!(second.1.try_recv().is_ok());
        assert_eq!(semaphore.lock().out, 4);
    }
}
