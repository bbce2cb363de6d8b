//! One shard of the store: the states of some keys, and room for a bounded number of unknown ones.
//!
//! # Invariants
//!
//! 1. A state is dropped only when it equals a fresh one under every plan that its key may have at
//!    that time: [`CounterEntry::stays`].
//! 2. Unknown keys beyond the bound share a few states, which count as known. So do requests in
//!    flight, which connections bound.
//! 3. What a key may have used of a shared state counts on once there is room: the key's own state
//!    starts as a copy of that one.
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

/// So many of a shared state's numbers, of 4 to 8 bytes, take about as much memory as an entry: a
/// request that adds one entry may copy as many.
const COPIED: u64 = 16;

/// The states of one shard. In this order, the cache line of the lock has what each decision reads,
/// and a decision writes to no other: two cores exchange one line for it.
#[derive(Debug, Default)]
#[repr(C)]
pub(super) struct Table {
    pub(super) entries: HashTable<CounterEntry>,
    /// Whether another process has the states now.
    pub(super) moved: bool,
    /// Whether it may have shared states.
    pub(super) has_shared: bool,
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

    /// The entry that an unknown key without one of its own may have used.
    fn shared(
        &mut self,
        lookup: &Lookup,
        check: &LimitCheck,
        now: Tick,
    ) -> Option<&mut CounterEntry> {
        if !self.has_shared || lookup.is_shared(check) || is_bounded(check) {
            return None;
        }
        let keep_until = self.keep_until;
        let shared = self.find(check.key.overflow(check.limit, self.shards))?;
        shared.stays(keep_until, now).then_some(shared)
    }

    pub(super) fn decide(&mut self, lookup: &Lookup, check: &LimitCheck, now: Tick) -> Decision {
        if let Some(entry) = lookup.entry(&mut self.entries) {
            return entry.state.decide(&check.quota, check.cost, now);
        }
        match self.shared(lookup, check, now) {
            Some(shared) => shared.state.decide(&check.quota, check.cost, now),
            None => State::fresh(check.quota).decide(&check.quota, check.cost, now),
        }
    }

    pub(super) fn usage(&mut self, lookup: &Lookup, check: &LimitCheck, now: Tick) -> Usage {
        if let Some(entry) = lookup.entry(&mut self.entries) {
            return entry.state.usage(&check.quota, now);
        }
        match self.shared(lookup, check, now) {
            Some(shared) => shared.state.usage(&check.quota, now),
            None => State::fresh(check.quota).usage(&check.quota, now),
        }
    }

    pub(super) fn charge(&mut self, lookup: &Lookup, check: &LimitCheck, now: Tick) -> Usage {
        if let Some(entry) = lookup.entry(&mut self.entries) {
            self.overflowed += u64::from(lookup.is_shared(check));
            if !entry.known && lookup.is_known(check) {
                entry.known = true;
                self.unknown_keys -= 1;
            }
            return entry.charge(check, now);
        }
        let state = match self.shared(lookup, check, now) {
            Some(shared) if !shared.is_copied(now) => {
                let usage = shared.charge(check, now);
                self.overflowed += 1;
                return usage;
            }
            Some(shared) => shared.state.clone(),
            None => State::fresh(check.quota),
        };
        self.charge_first(state, lookup, check, now)
    }

    /// Charges `state`, in an entry for the key that was looked up, which has none.
    fn charge_first(
        &mut self,
        state: State,
        lookup: &Lookup,
        check: &LimitCheck,
        now: Tick,
    ) -> Usage {
        if lookup.is_shared(check) {
            self.overflowed += 1;
        }
        let (key, known) = (lookup.key, lookup.is_known(check));
        let mut entry = CounterEntry { key, forgotten_at: now, state, known };
        let usage = entry.charge(check, now);
        self.insert(entry);
        usage
    }

    /// Inserts an entry whose key has none.
    pub(super) fn insert(&mut self, entry: CounterEntry) {
        self.unknown_keys += usize::from(!entry.known);
        self.has_shared |= entry.key.is_shared();
        self.entries.insert_unique(entry.key.hash(), entry, |entry| entry.key.hash());
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
        self.has_shared = self.has_shared && self.entries.iter().any(|entry| entry.key.is_shared());
        if self.entries.capacity() > 4 * (self.entries.len() + 4) {
            self.entries.shrink_to(2 * self.entries.len(), |entry| entry.key.hash());
        }
    }
}

impl Table {
    /// Records an admission that a shared store has stamped, in the order of the stamps.
    pub(super) fn record(&mut self, lookup: &Lookup, check: &LimitCheck, at: Tick) {
        // It was charged to a shared entry in the store as well.
        self.overflowed += u64::from(check.key.is_shared());
        match lookup.entry(&mut self.entries) {
            Some(entry) if entry.state.is_after(at) => entry.insert(check, at),
            Some(_) => drop(self.charge(lookup, check, at)),
            // What the key may have used before is in the shared store.
            None => drop(self.charge_first(State::fresh(check.quota), lookup, check, at)),
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

    /// Whether unknown keys share the state.
    fn is_shared(&self, check: &LimitCheck) -> bool {
        self.key != check.key
    }

    /// Whether the entry does not count as an unknown key's: there are only a few shared ones.
    fn is_known(&self, check: &LimitCheck) -> bool {
        self.is_shared(check) || is_bounded(check)
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

    /// Whether the request at `now` copies this state, which unknown keys share, for its own key.
    /// One of so many does: a copy is as long as the state, and many keys may come for one.
    fn is_copied(&self, now: Tick) -> bool {
        let numbers = match &self.state {
            State::Log(log) => log.count().into(),
            State::Slots(slots) => slots.counts().count() as u64,
            State::Bucket(_) | State::Count(_) | State::InFlight(_) => 0,
        };
        now.0.is_multiple_of(1 + numbers / COPIED)
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
