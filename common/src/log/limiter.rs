//! Decides whether a repeated problem is logged again.
//!
//! # Invariants
//!
//! 1. Two lines of one key are [`LogLimiter::new`]'s `every` apart, unless it recovered in between.
//! 2. At most [`KEYS_MAX`] keys are tracked; lines of other keys are suppressed.
//!
//! Not here: the log.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::hash::Hash;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::time::Tick;

/// More problems than an operator fixes from one log; metrics count all of them.
const KEYS_MAX: usize = 100;

/// Decides which lines are due; remembers what was logged, by key.
#[derive(Debug)]
pub struct LogLimiter<K> {
    every: Duration,
    logged: Mutex<HashMap<K, Logged>>,
}

/// The last line of one key.
#[derive(Debug)]
struct Logged {
    at: Tick,
    /// Lines suppressed since then.
    suppressed: u64,
}

impl<K: Eq + Hash> LogLimiter<K> {
    /// One line of a key in each `every`.
    #[must_use]
    pub fn new(every: Duration) -> Self {
        Self { every, logged: Mutex::default() }
    }

    /// How many occurrences a line of `key` at `now` stands for; `None` if no line is due.
    #[must_use]
    pub fn due(&self, key: K, now: Tick) -> Option<u64> {
        let mut all = self.lock();
        let is_old = |logged: &Logged| now.since(logged.at) >= self.every;
        if all.len() >= KEYS_MAX {
            all.retain(|_, logged| !is_old(logged));
        }
        let is_full = all.len() >= KEYS_MAX;
        let logged = Logged { at: now, suppressed: 0 };
        match all.entry(key) {
            Entry::Occupied(mut last) if is_old(last.get()) => {
                Some(last.insert(logged).suppressed + 1)
            }
            Entry::Occupied(mut last) => {
                last.get_mut().suppressed += 1;
                None
            }
            Entry::Vacant(_) if is_full => None,
            Entry::Vacant(new) => {
                new.insert(logged);
                Some(1)
            }
        }
    }

    /// Records that the problem of `key` has ended: the next one is logged at once.
    pub fn recovered(&self, key: &K) {
        self.lock().remove(key);
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<K, Logged>> {
        self.logged.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EVERY: Duration = Duration::from_secs(60);

    fn at(seconds: u64) -> Tick {
        Tick(seconds * 1_000_000)
    }

    #[test]
    fn each_key_has_one_line_a_minute_which_counts_those_before_it() {
        let limiter = LogLimiter::new(EVERY);
        assert_eq!(limiter.due("audience", at(0)), Some(1));
        assert_eq!(limiter.due("audience", at(1)), None);
        assert_eq!(limiter.due("expired", at(1)), Some(1), "another key");
        assert_eq!(limiter.due("audience", at(59)), None);
        assert_eq!(limiter.due("audience", at(60)), Some(3));
    }

    #[test]
    fn what_has_recovered_is_logged_at_once_and_no_more_than_a_hundred_keys_are() {
        let limiter = LogLimiter::new(EVERY);
        assert_eq!(limiter.due(0, at(0)), Some(1));
        assert_eq!(limiter.due(0, at(1)), None);
        limiter.recovered(&0);
        assert_eq!(limiter.due(0, at(2)), Some(1));
        let due = (0..500).filter(|key| limiter.due(*key, at(3)).is_some()).count();
        assert_eq!(due, KEYS_MAX - 1);
        assert_eq!(limiter.due(499, at(63)), Some(1));
    }
}
