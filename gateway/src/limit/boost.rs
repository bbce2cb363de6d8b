//! Allowances that an operator has raised for a while.
//!
//! Not here: what is asked of the store with them (`limit`), who may raise one (`admin`).

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use weir_common::time::Tick;

use super::{Ask, Key, Quota};

/// More boosts than this are a plan that nobody wrote down.
const BOOSTS_MAX: usize = 10_000;

/// A raised allowance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Boost {
    /// How much is allowed.
    pub quota: Quota,
    /// Until when.
    pub until: Tick,
}

/// All that are in force.
#[derive(Debug, Default)]
pub struct Boosts {
    by_key: Mutex<HashMap<Key, Boost>>,
    /// How many there are: nearly always none, which a request sees without the lock.
    count: AtomicUsize,
}

impl Boosts {
    /// Puts a boost in the place of an earlier one. False where there are too many.
    pub fn set(&self, key: Key, boost: Boost, now: Tick) -> bool {
        let mut by_key = self.by_key.lock().unwrap_or_else(PoisonError::into_inner);
        by_key.retain(|_, boost| now < boost.until);
        let fits = by_key.len() < BOOSTS_MAX || by_key.contains_key(&key);
        if fits {
            by_key.insert(key, boost);
        }
        self.count.store(by_key.len(), Ordering::Relaxed);
        fits
    }

    /// Takes a boost away.
    pub fn clear(&self, key: Key) {
        let mut by_key = self.by_key.lock().unwrap_or_else(PoisonError::into_inner);
        by_key.remove(&key);
        self.count.store(by_key.len(), Ordering::Relaxed);
    }

    /// The boost of a key that is in force at `now`.
    pub fn of(&self, key: Key, now: Tick) -> Option<Boost> {
        if self.count.load(Ordering::Relaxed) == 0 {
            return None;
        }
        let by_key = self.by_key.lock().unwrap_or_else(PoisonError::into_inner);
        by_key.get(&key).copied().filter(|boost| now < boost.until)
    }

    /// Gives each ask the allowance that is in force for it.
    pub fn apply(&self, asks: &mut [Ask], now: Tick) {
        for ask in asks {
            if let Some(boost) = self.of(ask.key, now) {
                ask.quota = boost.quota;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use weir_common::rolling;

    use super::super::key::{Scope, Seed};
    use super::*;

    #[test]
    fn a_boost_holds_until_its_time_is_over() {
        let seed = Seed::new([1; 16]);
        let limit = seed.limit("w");
        let key = Key::new(seed.owner(Scope::Workspace, b"ws"), limit);
        let of =
            |requests| Quota::Rolling(rolling::Quota { requests, window: Duration::from_secs(60) });
        let ask = Ask { key, limit, quota: of(60), lasting: of(60), enforced: true, known: true };
        let boosts = Boosts::default();
        let quota_at = |now| {
            let mut asks = [ask];
            boosts.apply(&mut asks, Tick(now));
            asks[0].quota.limit()
        };
        assert_eq!(quota_at(0), 60);
        assert!(boosts.set(key, Boost { quota: of(100), until: Tick(10) }, Tick(0)));
        assert_eq!([quota_at(9), quota_at(10)], [100, 60]);
        boosts.clear(key);
        assert_eq!(quota_at(5), 60);
    }
}
