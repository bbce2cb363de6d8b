//! Allowances that an operator has raised for a limited time.
//!
//! Not here: the checks that use them (`limit`), who may set one (`operations`).

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use weir_common::directory::values::Values;
use weir_common::time::Tick;

use super::memory::Moved;
use super::{Key, LimitCheck};

/// The most boosts at a time; an operator who needs more should change a plan.
const BOOSTS_MAX: usize = 10_000;

/// How often in a row boosts are not replaced because of changes that are made here: those of other
/// gateways arrive within a second.
const NOT_REPLACED_MAX: u32 = 2;

/// A raised allowance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Boost {
    /// The raised numbers; the others are those of the active limit when a request arrives.
    pub raised: Values,
    /// When the boost ends.
    pub until: Tick,
}

#[derive(Debug, Default)]
struct Table {
    by_key: HashMap<Key, Boost>,
    /// Whether another process has the boosts now.
    moved: bool,
    /// How often in a row they were not replaced.
    not_replaced: u32,
    /// Changes that were made here and published, and how many of them are under way.
    own_changes: u64,
    own_under_way: u32,
}

impl Table {
    fn own_changes(&self) -> Option<u64> {
        (self.own_under_way == 0).then_some(self.own_changes)
    }
}

/// Why no boost was set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unset {
    /// There are `BOOSTS_MAX` already.
    #[error("there are too many boosts")]
    TooMany,
    /// Another process has the boosts.
    #[error(transparent)]
    Moved(#[from] Moved),
}

/// All boosts.
#[derive(Debug, Default)]
pub struct Boosts {
    table: Mutex<Table>,
    /// How many boosts there are: usually none, which a request can see without the lock.
    count: AtomicUsize,
}

/// A change that is made here and published; it ends when this is dropped.
#[derive(Debug)]
pub struct OwnChange<'b>(&'b Boosts);

impl Drop for OwnChange<'_> {
    fn drop(&mut self) {
        self.0.lock().own_under_way -= 1;
    }
}

impl Boosts {
    /// Sets the boost of a key, or replaces an earlier one.
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

    /// Removes a boost.
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

    /// All boosts.
    #[must_use]
    pub fn all(&self) -> Vec<(Key, Boost)> {
        self.lock().by_key.iter().map(|(key, boost)| (*key, *boost)).collect()
    }

    /// Begins a change that is made here and published.
    pub fn begin_own_change(&self) -> OwnChange<'_> {
        let mut table = self.lock();
        table.own_changes += 1;
        table.own_under_way += 1;
        OwnChange(self)
    }

    /// How many changes were made here; none while one is under way.
    #[must_use]
    pub fn own_changes(&self) -> Option<u64> {
        self.lock().own_changes()
    }

    /// Replaces all boosts by those that gateways have in common. False, and nothing is replaced,
    /// after they have moved, and where a change was made here since
    /// [`own_changes`](Self::own_changes) was `before`: it may be missing among them. Changes here
    /// do not prevent that three times in a row.
    pub fn replace(&self, boosts: Vec<(Key, Boost)>, before: Option<u64>) -> bool {
        let mut table = self.lock();
        let may_miss_some = before.is_none() || before != table.own_changes();
        if table.moved {
            return false;
        }
        if may_miss_some && table.not_replaced < NOT_REPLACED_MAX {
            table.not_replaced += 1;
            return false;
        }
        table.not_replaced = 0;
        table.by_key = boosts.into_iter().collect();
        self.count.store(table.by_key.len(), Ordering::Relaxed);
        true
    }

    /// Closes the table and returns all boosts, so that they can be sent to another process.
    pub fn close(&self) -> Vec<(Key, Boost)> {
        self.lock().moved = true;
        self.all()
    }

    /// Opens the table again, unchanged, because the transfer to another process failed.
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

    /// Applies the active boost of each check's key to the check.
    pub fn apply(&self, checks: &mut [LimitCheck], now: Tick) {
        for check in checks {
            if let Some(boost) = self.of(check.key, now) {
                check.quota = boost.raised.raise(check.lasting);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use weir_common::limit::rolling::RollingQuota;

    use super::super::Quota;
    use super::super::key::{Scope, Seed};
    use super::*;

    #[test]
    fn a_boost_applies_until_it_expires() {
        let seed = Seed::new([1; 16]);
        let limit = seed.limit("w");
        let key = Key::new(seed.owner(Scope::Workspace, b"ws"), limit);
        let of =
            |requests| Quota::Rolling(RollingQuota { requests, window: Duration::from_secs(60) });
        let check = LimitCheck::new(key, limit, of(60));
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
    fn what_has_moved_is_not_changed_here() {
        let boosts = Boosts::default();
        let key = Key::from_bits(1);
        let raised = Values { requests: Some(9), ..Values::default() };
        let boost = Boost { raised, until: Tick(10) };
        boosts.set(key, boost, Tick(0)).unwrap();
        assert_eq!(boosts.close(), [(key, boost)]);
        assert_eq!(boosts.set(key, boost, Tick(0)), Err(Unset::Moved(Moved)));
        assert_eq!(boosts.clear(key), Err(Moved));
        assert!(!boosts.replace(Vec::new(), boosts.own_changes()));
        boosts.reopen();
        assert_eq!(boosts.of(key, Tick(0)), Some(boost));
        boosts.clear(key).unwrap();
    }

    #[test]
    fn a_boost_that_is_set_while_those_of_all_gateways_are_read_stays() {
        let (boosts, key) = (Boosts::default(), Key::from_bits(1));
        let raised = Values { requests: Some(9), ..Values::default() };
        let is_set = || boosts.of(key, Tick(0)).is_some();
        let before = boosts.own_changes();
        let change = boosts.begin_own_change();
        assert_eq!(boosts.own_changes(), None);
        boosts.set(key, Boost { raised, until: Tick(10) }, Tick(0)).unwrap();
        assert!(!boosts.replace(Vec::new(), before) && is_set());
        drop(change);
        assert!(!boosts.replace(Vec::new(), before) && is_set());
        assert!(boosts.replace(Vec::new(), boosts.own_changes()) && !is_set());
    }

    #[test]
    fn those_of_other_gateways_arrive_while_boosts_are_set_here_all_the_time() {
        let boosts = Boosts::default();
        let _change = boosts.begin_own_change();
        let replaced = [(); 4].map(|()| boosts.replace(Vec::new(), boosts.own_changes()));
        assert_eq!(replaced, [false, false, true, false]);
    }
}
