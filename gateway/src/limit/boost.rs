//! Allowances that an operator has raised for a while.
//!
//! Not here: what is asked of the store with them (`limit`), who may raise one (`operations`).

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use weir_common::directory::Values;
use weir_common::limit::{rolling, token_bucket};
use weir_common::time::Tick;

use super::memory::Moved;
use super::{Key, LimitCheck, Quota};

/// More boosts than this belong into a plan.
const BOOSTS_MAX: usize = 10_000;

/// A raised allowance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Boost {
    /// The numbers that are raised. Algorithm and window are the limit's, as they are active when
    /// a request comes.
    pub raised: Values,
    /// Until when.
    pub until: Tick,
}

impl Boost {
    /// What a key may use that may use `own` without this: never less.
    #[must_use]
    pub fn raise(&self, own: Quota) -> Quota {
        let more = |own: u32, raised: Option<u32>| own.max(raised.unwrap_or_default());
        match own {
            Quota::Rolling(own) => Quota::Rolling(rolling::Quota {
                requests: more(own.requests, self.raised.requests),
                ..own
            }),
            Quota::Bucket(own) => Quota::Bucket(token_bucket::BucketQuota {
                rate: more(own.rate, self.raised.rate),
                burst: more(own.burst, self.raised.burst),
            }),
        }
    }
}

#[derive(Debug, Default)]
struct Table {
    by_key: HashMap<Key, Boost>,
    /// Whether they are another process's now.
    moved: bool,
}

/// No boost was set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unset {
    /// There are as many as there may be.
    #[error("there are too many boosts")]
    TooMany,
    /// They are another process's.
    #[error(transparent)]
    Moved(#[from] Moved),
}

/// All that are active.
#[derive(Debug, Default)]
pub struct Boosts {
    table: Mutex<Table>,
    /// How many there are: nearly always none, which a request sees without the lock.
    count: AtomicUsize,
}

impl Boosts {
    /// Puts a boost in the place of an earlier one.
    pub fn set(&self, key: Key, boost: Boost, now: Tick) -> Result<(), Unset> {
        let mut table = self.open()?;
        let by_key = &mut table.by_key;
        by_key.retain(|_, boost| now < boost.until);
        let fits = by_key.len() < BOOSTS_MAX || by_key.contains_key(&key);
        if fits {
            by_key.insert(key, boost);
        }
        self.count.store(by_key.len(), Ordering::Relaxed);
        if fits { Ok(()) } else { Err(Unset::TooMany) }
    }

    /// Takes a boost away.
    pub fn clear(&self, key: Key) -> Result<(), Moved> {
        let mut table = self.open()?;
        table.by_key.remove(&key);
        self.count.store(table.by_key.len(), Ordering::Relaxed);
        Ok(())
    }

    /// The boost of a key that is active at `now`.
    pub fn of(&self, key: Key, now: Tick) -> Option<Boost> {
        if self.count.load(Ordering::Relaxed) == 0 {
            return None;
        }
        self.lock().by_key.get(&key).copied().filter(|boost| now < boost.until)
    }

    /// All of them, which are another process's from now on.
    pub fn close(&self) -> Vec<(Key, Boost)> {
        let mut table = self.lock();
        table.moved = true;
        table.by_key.iter().map(|(key, boost)| (*key, *boost)).collect()
    }

    /// They are ours again, as they were.
    pub fn reopen(&self) {
        self.lock().moved = false;
    }

    fn open(&self) -> Result<MutexGuard<'_, Table>, Moved> {
        let table = self.lock();
        if table.moved { Err(Moved) } else { Ok(table) }
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives each check the allowance that is active for it.
    pub fn apply(&self, checks: &mut [LimitCheck], now: Tick) {
        for check in checks {
            if let Some(boost) = self.of(check.key, now) {
                check.quota = boost.raise(check.lasting);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::key::{Scope, Seed};
    use super::*;

    #[test]
    fn a_boost_applies_until_it_expires() {
        let seed = Seed::new([1; 16]);
        let limit = seed.limit("w");
        let key = Key::new(seed.owner(Scope::Workspace, b"ws"), limit);
        let of =
            |requests| Quota::Rolling(rolling::Quota { requests, window: Duration::from_secs(60) });
        let check =
            LimitCheck { key, limit, quota: of(60), lasting: of(60), enforced: true, known: true };
        let boosts = Boosts::default();
        let quota_at = |now| {
            let mut checks = [check];
            boosts.apply(&mut checks, Tick(now));
            checks[0].quota.limit()
        };
        assert_eq!(quota_at(0), 60);
        let raised = Values { requests: Some(100), ..Values::default() };
        boosts.set(key, Boost { raised, until: Tick(10) }, Tick(0)).unwrap();
        assert_eq!([quota_at(9), quota_at(10)], [100, 60]);
        boosts.clear(key).unwrap();
        assert_eq!(quota_at(5), 60);
    }

    #[test]
    fn a_boost_raises_numbers_and_leaves_the_rest_to_the_limit() {
        let rolling = |requests, seconds| {
            let window = Duration::from_secs(seconds);
            Quota::Rolling(rolling::Quota { requests, window })
        };
        let bucket = |rate, burst| Quota::Bucket(token_bucket::BucketQuota { rate, burst });
        let boost = |requests, rate, burst| Boost {
            raised: Values { requests, rate, burst },
            until: Tick(10),
        };
        let of_window = boost(Some(18), None, None);
        assert_eq!(of_window.raise(rolling(6, 1)), rolling(18, 1));
        assert_eq!(of_window.raise(rolling(6, 300)), rolling(18, 300), "the window is active now");
        assert_eq!(of_window.raise(rolling(20, 300)), rolling(20, 300), "never less");
        assert_eq!(of_window.raise(bucket(5, 9)), bucket(5, 9), "another algorithm by now");
        assert_eq!(boost(None, Some(50), None).raise(bucket(5, 9)), bucket(50, 9));
        assert_eq!(boost(None, Some(1), Some(90)).raise(bucket(5, 9)), bucket(5, 90));
    }

    #[test]
    fn what_has_moved_is_not_changed_here() {
        let boosts = Boosts::default();
        let key = Key::from_bits(1);
        let raised = Values { requests: Some(9), ..Values::default() };
        let boost = Boost { raised, until: Tick(10) };
        boosts.set(key, boost, Tick(0)).unwrap();
        assert_eq!(boosts.close(), [(key, boost)]);
        assert_eq!(boosts.set(key, boost, Tick(0)), Err(Unset::Moved(Moved)));
        assert_eq!(boosts.clear(key), Err(Moved));
        boosts.reopen();
        assert_eq!(boosts.of(key, Tick(0)), Some(boost));
        boosts.clear(key).unwrap();
    }
}
