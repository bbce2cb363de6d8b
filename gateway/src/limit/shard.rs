//! One shard of the store: the states of some keys, and room for a bounded number of unknown ones.
//!
//! # Invariants
//!
//! 1. A state is dropped only when it equals a fresh one under every plan that its key may have at
//!    that time: [`CounterEntry::stays`].
//! 2. Unknown keys beyond the bound share a few states, which count as known. So do requests in
//!    flight, which connections bound.
//!
//! Not here: locks, and which shard a key is in (`limit::memory`).

use hashbrown::HashTable;
use weir_common::limit::decision::{Decision, Usage};
use weir_common::time::Tick;

use super::key::Key;
use super::{LimitCheck, Quota, State};

/// The shortest time between two sweeps of a full shard, in microseconds: in a flood of unknown
/// keys not every request may cause a sweep.
const SWEEP_PAUSE: u64 = 1_000_000;

/// The states of one shard. In this order, the cache line of the lock has what each decision reads,
/// and a decision writes to no other: two cores exchange one line for it.
#[derive(Debug, Default)]
#[repr(C)]
pub(super) struct Table {
    pub(super) entries: HashTable<CounterEntry>,
    /// Whether another process has the states now.
    pub(super) moved: bool,
    /// How many entries the directory does not know.
    pub(super) unknown_keys: usize,
    pub(super) unknown_keys_max: usize,
    pub(super) shards: usize,
    /// Charges to a shared state because the shard had no room.
    pub(super) overflowed: u64,
    pub(super) swept_at: Tick,
    /// No state is dropped before this tick: a change of quotas changed which states equal a
    /// fresh one.
    pub(super) keep_until: Tick,
}

/// The state that applies to a check.
pub(super) struct Lookup {
    /// The key of that state: the check's own, or a shared one.
    key: Key,
    /// Its index in the table, if it exists.
    place: Option<usize>,
}

/// One entry of the store.
#[derive(Clone, Debug)]
pub struct CounterEntry {
    /// Identifies the limit and the owner of the allowance.
    pub key: Key,
    /// When the state equals a fresh one under every plan.
    pub forgotten_at: Tick,
    /// What has been used.
    pub state: State,
    /// Whether the directory knew the key.
    pub known: bool,
}

impl Table {
    /// Finds the state that applies to `check`: its own, or a shared one where there is no room.
    /// Room that the request's `earlier` checks in this shard take when they are charged is not
    /// free.
    pub(super) fn look_up<'c>(
        &mut self,
        check: &LimitCheck,
        now: Tick,
        earlier: impl Iterator<Item = (&'c LimitCheck, &'c Lookup)> + Clone,
    ) -> Lookup {
        let own = self.lookup(check.key);
        if own.place.is_some() || is_bounded(check) || self.has_room(earlier.clone()) {
            return own;
        }
        if now.0 >= self.swept_at.0 + SWEEP_PAUSE {
            self.sweep(now);
            if self.has_room(earlier) {
                return own;
            }
        }
        self.lookup(check.key.overflow(check.limit, self.shards))
    }

    fn lookup(&self, key: Key) -> Lookup {
        let place = self.entries.find_bucket_index(key.hash(), |entry| entry.key == key);
        Lookup { key, place }
    }

    /// Whether one more unknown key may have an entry, beside those of `earlier` checks.
    fn has_room<'c>(
        &mut self,
        earlier: impl Iterator<Item = (&'c LimitCheck, &'c Lookup)>,
    ) -> bool {
        let new = earlier.filter(|(check, lookup)| {
            let is_own = lookup.key == check.key;
            is_own && !is_bounded(check) && lookup.entry(&mut self.entries).is_none()
        });
        self.unknown_keys + new.count() < self.unknown_keys_max
    }

    pub(super) fn decide(&mut self, lookup: &Lookup, check: &LimitCheck, now: Tick) -> Decision {
        match lookup.entry(&mut self.entries) {
            Some(entry) => entry.state.decide(&check.quota, check.cost, now),
            None => State::fresh(check.quota).decide(&check.quota, check.cost, now),
        }
    }

    pub(super) fn usage(&mut self, lookup: &Lookup, check: &LimitCheck, now: Tick) -> Usage {
        match lookup.entry(&mut self.entries) {
            Some(entry) => entry.state.usage(&check.quota, now),
            None => State::fresh(check.quota).usage(&check.quota, now),
        }
    }

    pub(super) fn charge(&mut self, lookup: &Lookup, check: &LimitCheck, now: Tick) -> Usage {
        let key = lookup.key;
        // There are only a few shared entries: they do not count as unknown keys.
        let shared = key != check.key;
        if shared {
            self.overflowed += 1;
        }
        let known = shared || is_bounded(check);
        if let Some(entry) = lookup.entry(&mut self.entries) {
            if known && !entry.known {
                entry.known = true;
                self.unknown_keys -= 1;
            }
            return entry.charge(check, now);
        }
        let mut entry =
            CounterEntry { key, forgotten_at: now, state: State::fresh(check.quota), known };
        let usage = entry.charge(check, now);
        self.unknown_keys += usize::from(!known);
        self.entries.insert_unique(key.hash(), entry, |entry| entry.key.hash());
        usage
    }

    pub(super) fn find(&mut self, key: Key) -> Option<&mut CounterEntry> {
        self.entries.find_mut(key.hash(), |entry| entry.key == key)
    }

    pub(super) fn sweep(&mut self, now: Tick) {
        self.swept_at = now;
        if now < self.keep_until {
            return;
        }
        self.entries.retain(|entry| entry.stays(self.keep_until, now));
        self.unknown_keys = self.entries.iter().filter(|entry| !entry.known).count();
        if self.entries.capacity() > 4 * (self.entries.len() + 4) {
            self.entries.shrink_to(2 * self.entries.len(), |entry| entry.key.hash());
        }
    }
}

impl Table {
    /// Records an admission that a shared store has stamped, in the order of the stamps.
    pub(super) fn record(&mut self, lookup: &Lookup, check: &LimitCheck, at: Tick) {
        match lookup.entry(&mut self.entries) {
            Some(entry) if entry.state.is_after(at) => entry.insert(check, at),
            _ => drop(self.charge(lookup, check, at)),
        }
    }
}

/// Whether something else bounds how many entries there are: the directory, or connections, whose
/// requests in flight must be released by their own key.
fn is_bounded(check: &LimitCheck) -> bool {
    check.known || matches!(check.quota, Quota::Concurrency(_))
}

impl Lookup {
    /// The key of the state.
    pub(super) fn key(&self) -> Key {
        self.key
    }

    /// The entry that was looked up, if it exists now. An insertion or a sweep for another check
    /// may have moved it: then it is found by its key.
    fn entry<'t>(&self, among: &'t mut HashTable<CounterEntry>) -> Option<&'t mut CounterEntry> {
        let is_own = |entry: &CounterEntry| entry.key == self.key;
        let place = self.place.filter(|place| among.get_bucket(*place).is_some_and(is_own));
        let place = place.or_else(|| among.find_bucket_index(self.key.hash(), is_own));
        place.and_then(|place| among.get_bucket_mut(place))
    }
}

impl CounterEntry {
    /// Whether the state must not be dropped yet; no state is dropped before `keep_until`.
    pub(super) fn stays(&self, keep_until: Tick, now: Tick) -> bool {
        now < self.forgotten_at.max(keep_until)
    }

    fn insert(&mut self, check: &LimitCheck, at: Tick) {
        self.state.insert(check.cost, at);
        self.forgotten_at = self.state.forgotten_at(check.horizon);
    }

    fn charge(&mut self, check: &LimitCheck, now: Tick) -> Usage {
        let usage = self.state.charge(&check.quota, check.cost, now);
        self.forgotten_at = self.state.forgotten_at(check.horizon);
        usage
    }
}
