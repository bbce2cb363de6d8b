//! Stores the states of limits in this process, in shards of bounded size.
//!
//! Each shard is a table behind a lock that is held briefly. A request locks the shards of all its
//! keys, in the order of the shards, checks every limit, and charges all or none.
//!
//! # Invariants
//!
//! 1. Requests cannot deadlock: locks are acquired in one fixed order.
//! 2. A refused request charges nothing.
//! 3. A state is dropped only when it equals a fresh one under every plan that its key may have at
//!    that time. Sweeps, snapshots and upgrades all decide this by [`CounterEntry::stays`].
//! 4. Unknown keys use bounded memory and never evict a key that the directory knows. Beyond the
//!    bound, unknown keys share a few states: they may be refused too early, but are never
//!    admitted beyond their limit.
//! 5. A state is in one process. A closed shard returns [`Moved`] for every check, charges nothing,
//!    and reports no usage until it is opened again.
//!
//! # Not here
//!
//! What a check is (`limit`), when shards are swept (`operations`).

use std::collections::HashMap;
use std::iter;

use arrayvec::ArrayVec;
use hashbrown::HashTable;
use weir_common::limit::decision::{Decision, Usage};
use weir_common::limit::rolling::Log;
use weir_common::time::Tick;

use super::key::Key;
use super::shard::{CounterEntry, Lookup, Table};
use super::{CHECKS_MAX, CheckResult, LimitCheck, State, Verdict};
use crate::sync::{Mutex, MutexGuard, PoisonError};

/// Enough that two cores rarely contend for one shard, and that sweeping one takes microseconds.
pub const SHARDS: usize = 256;

/// Every state of every limit of this process.
#[derive(Debug)]
pub struct MemoryStore {
    shards: Box<[Shard]>,
}

/// Each shard has its own cache lines, because other cores lock its neighbours.
#[derive(Debug)]
#[repr(align(128))]
struct Shard(Mutex<Table>);

/// The locked tables of a request's checks, each with the index of its shard.
type Tables<'s> = ArrayVec<(usize, MutexGuard<'s, Table>), CHECKS_MAX>;

/// One check of a request, and the state that applies to it.
struct Checked<'c> {
    check: &'c LimitCheck,
    /// When it is decided.
    at: Tick,
    /// The index of its table among those that are locked.
    table: usize,
    lookup: Lookup,
    decision: Decision,
}

/// Another process has the states, and must be queried.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the counters have moved to another process")]
pub struct Moved;

/// The states of a closed shard.
#[derive(Debug)]
pub struct Closed {
    entries: HashTable<CounterEntry>,
    unknown_keys: usize,
    keep_until: Tick,
}

impl Closed {
    /// Every state that must not be dropped yet.
    pub fn each(&self, now: Tick) -> impl Iterator<Item = &CounterEntry> {
        self.entries.iter().filter(move |kept| kept.stays(self.keep_until, now))
    }
}

/// How full the store is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fill {
    /// Entries.
    pub keys: usize,
    /// Entries of keys that the directory does not know.
    pub unknown_keys: usize,
    /// Charges to a shared state since the start.
    pub overflowed: u64,
}

impl MemoryStore {
    /// A store with room for `unknown_keys_max` keys that the directory does not know.
    #[must_use]
    pub fn new(unknown_keys_max: usize) -> Self {
        Self::with_shards(unknown_keys_max, SHARDS)
    }

    /// A store with `shards` shards, a power of two.
    #[must_use]
    pub fn with_shards(unknown_keys_max: usize, shards: usize) -> Self {
        let unknown_keys_max = unknown_keys_max.div_ceil(shards);
        let empty = || Table { unknown_keys_max, shards, ..Table::default() };
        Self { shards: (0..shards).map(|_| Shard(Mutex::new(empty()))).collect() }
    }

    /// Checks all limits at `now`. If every enforced one admits the request, charges all that admit
    /// it: an observed limit that would refuse is not charged.
    ///
    /// More than [`CHECKS_MAX`] checks are a bug of the caller; the surplus is ignored.
    pub fn judge(&self, checks: &[LimitCheck], now: Tick) -> Result<Verdict, Moved> {
        self.decide(checks, now, true)
    }

    /// As [`MemoryStore::judge`]; where it does not `charge`, all states stay as they are.
    pub fn decide(&self, checks: &[LimitCheck], now: Tick, charge: bool) -> Result<Verdict, Moved> {
        self.decide_at(checks, iter::repeat(now), charge)
    }

    /// As [`MemoryStore::decide`], each check at a time of its own.
    pub fn decide_at(
        &self,
        checks: &[LimitCheck],
        times: impl IntoIterator<Item = Tick>,
        charge: bool,
    ) -> Result<Verdict, Moved> {
        let checks = checks.get(..CHECKS_MAX).unwrap_or(checks);
        let mut tables = Tables::new();
        self.lock(checks, &mut tables);
        // All locks are held here, so no shard can close before the request is charged.
        if tables.iter().any(|(_, table)| table.moved) {
            return Err(Moved);
        }
        // All are looked up before one is decided, so that the processor waits for their entries
        // together.
        let mut checked: ArrayVec<Checked, CHECKS_MAX> = ArrayVec::new();
        for (check, at) in checks.iter().zip(times) {
            let shard = check.key.shard(self.shards.len());
            let nth = tables.iter().position(|(other, _)| *other == shard);
            let Some((table, (_, own))) = nth.and_then(|nth| Some((nth, tables.get_mut(nth)?)))
            else {
                continue;
            };
            let earlier = checked.iter().filter(|other| other.table == table);
            let earlier = earlier.map(|other| (other.check, &other.lookup));
            let lookup = own.look_up(check, at, earlier);
            checked.push(Checked { check, at, table, lookup, decision: Decision::TooLarge });
        }
        let mut admitted = true;
        for Checked { check, at, table, lookup, decision } in &mut checked {
            let Some((_, table)) = tables.get_mut(*table) else { continue };
            *decision = table.decide(lookup, check, *at);
            admitted &= !check.enforced || *decision == Decision::Admit;
        }
        let mut answers = ArrayVec::new();
        for Checked { check, at, table, lookup, decision } in &checked {
            let Some((_, table)) = tables.get_mut(*table) else { continue };
            let usage = if charge && admitted && *decision == Decision::Admit {
                table.charge(lookup, check, *at)
            } else {
                table.usage(lookup, check, *at)
            };
            answers.push(CheckResult { decision: *decision, usage });
        }
        Ok(Verdict::new(answers, admitted))
    }

    /// Locks the shards of all checks, each once, in ascending order.
    fn lock<'s>(&'s self, checks: &[LimitCheck], tables: &mut Tables<'s>) {
        let shard = |check: &LimitCheck| check.key.shard(self.shards.len());
        let mut next = checks.iter().map(shard).min();
        while let Some(shard_of_next) = next {
            if let Some(own) = self.shards.get(shard_of_next) {
                tables.push((shard_of_next, lock(own)));
            }
            next = checks.iter().map(shard).filter(|other| *other > shard_of_next).min();
        }
    }

    /// The usage of the key of `check` at `now`; a key without a state has used nothing, or what it
    /// may have used of a shared one.
    pub fn usage(&self, check: &LimitCheck, now: Tick) -> Result<Usage, Moved> {
        let mut table = self.table(check.key);
        if table.moved {
            return Err(Moved);
        }
        let lookup = table.look_up(check, now, iter::empty());
        Ok(table.usage(&lookup, check, now))
    }

    /// Deletes the state of a key, so that it has used nothing. Requests in flight stay counted:
    /// their end is what releases them.
    pub fn reset(&self, key: Key) -> Result<(), Moved> {
        self.change(key, |state, has_shared| match state {
            State::InFlight(_) => false,
            // The entry stays: without one the key would be taken for one that may have used a
            // shared state. Any algorithm starts from an empty log.
            state if has_shared => {
                *state = State::Log(Log::default());
                false
            }
            _ => true,
        })
    }

    /// Counts one request of a key in flight less.
    pub fn release(&self, key: Key) -> Result<(), Moved> {
        self.change(key, |state, _| {
            state.release();
            matches!(state, State::InFlight(own) if own.count() == 0)
        })
    }

    /// Counts what was used of a key after `at`, by a clock that was ahead, as used then.
    pub fn bring_back(&self, key: Key, at: Tick) -> Result<(), Moved> {
        self.change(key, |state, _| {
            state.bring_back(at);
            false
        })
    }

    /// Applies `change` to the state of a key, and deletes it where that returns true. `change` is
    /// told whether the shard may have shared states.
    fn change(&self, key: Key, change: impl FnOnce(&mut State, bool) -> bool) -> Result<(), Moved> {
        let mut table = self.table(key);
        if table.moved {
            return Err(Moved);
        }
        let has_shared = table.has_shared;
        let found = table.entries.find_entry(key.hash(), |entry| entry.key == key);
        if let Ok(mut entry) = found
            && change(&mut entry.get_mut().state, has_shared)
        {
            let (entry, _) = entry.remove();
            table.unknown_keys -= usize::from(!entry.known);
        }
        Ok(())
    }

    /// Whether another process has the states of some of these checks.
    #[must_use]
    pub fn have_moved(&self, checks: &[LimitCheck]) -> bool {
        checks.iter().any(|check| self.table(check.key).moved)
    }

    /// The key of the state that applies to a check: its own, or one that unknown keys share.
    #[must_use]
    pub fn effective(&self, check: &LimitCheck, now: Tick) -> Key {
        self.table(check.key).look_up(check, now, iter::empty()).key()
    }

    /// Records what a shared store has charged at its time `at`, without deciding.
    pub fn record(&self, check: &LimitCheck, at: Tick) -> Result<(), Moved> {
        let mut table = self.table(check.key);
        if table.moved {
            return Err(Moved);
        }
        let lookup = table.look_up(check, at, iter::empty());
        table.record(&lookup, check, at);
        Ok(())
    }

    /// Shows the state of a key to `look`; none where there is none.
    pub fn look<T>(&self, key: Key, look: impl FnOnce(&State) -> T) -> Option<T> {
        self.table(key).find(key).map(|entry| look(&entry.state))
    }

    /// How many shards there are.
    pub fn shards(&self) -> usize {
        self.shards.len()
    }

    /// Closes one shard and returns its states, so that they can be sent to another process.
    pub fn close(&self, nth: usize) -> Option<Closed> {
        let mut table = lock(self.shards.get(nth)?);
        table.moved = true;
        let unknown_keys = std::mem::take(&mut table.unknown_keys);
        let entries = std::mem::take(&mut table.entries);
        Some(Closed { entries, unknown_keys, keep_until: table.keep_until })
    }

    /// Opens one shard again with its states, because the transfer to another process failed.
    pub fn reopen(&self, nth: usize, closed: Closed) {
        let Some(shard) = self.shards.get(nth) else { return };
        let mut table = lock(shard);
        let Closed { entries, unknown_keys, .. } = closed;
        (table.entries, table.unknown_keys) = (entries, unknown_keys);
        table.moved = false;
    }

    /// Drops the states of one shard that equal a fresh one. `nth` is taken modulo the number of
    /// shards.
    pub fn sweep(&self, nth: usize, now: Tick) {
        if let Some(shard) = self.shards.get(nth % self.shards.len()) {
            lock(shard).sweep(now);
        }
    }

    /// Drops no state before `until`: after a change of quotas, states that nearly equalled a fresh
    /// one no longer do.
    pub fn keep_until(&self, until: Tick) {
        for shard in &self.shards {
            let mut table = lock(shard);
            table.keep_until = table.keep_until.max(until);
        }
    }

    /// The tick before which no state is dropped.
    pub fn kept_until(&self) -> Tick {
        self.shards.first().map_or(Tick(0), |shard| lock(shard).keep_until)
    }

    /// Calls `show` with every state that must not be dropped yet, one shard at a time.
    pub fn each(&self, now: Tick, mut show: impl FnMut(&CounterEntry)) {
        for shard in &self.shards {
            let table = lock(shard);
            table
                .entries
                .iter()
                .filter(|kept| kept.stays(table.keep_until, now))
                .for_each(&mut show);
        }
    }

    /// Inserts a state that an earlier process wrote.
    pub fn restore(&self, kept: CounterEntry) {
        self.table(kept.key).insert(kept);
    }

    /// How many requests are in flight, by key.
    pub fn in_flight(&self) -> HashMap<Key, u32> {
        let mut all = HashMap::new();
        for shard in &self.shards {
            for entry in &lock(shard).entries {
                if let State::InFlight(own) = &entry.state {
                    all.insert(entry.key, own.count());
                }
            }
        }
        all
    }

    /// How full the store is.
    pub fn fill(&self) -> Fill {
        self.shards.iter().fold(Fill::default(), |fill, shard| {
            let table = lock(shard);
            Fill {
                keys: fill.keys + table.entries.len(),
                unknown_keys: fill.unknown_keys + table.unknown_keys,
                overflowed: fill.overflowed + table.overflowed,
            }
        })
    }

    fn table(&self, key: Key) -> MutexGuard<'_, Table> {
        let shard =
            self.shards.get(key.shard(self.shards.len())).expect("a shard is below their number");
        lock(shard)
    }
}

/// Ignores poisoning: only arithmetic can panic under the lock, and it leaves the table intact.
fn lock(shard: &Shard) -> MutexGuard<'_, Table> {
    shard.0.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;
    use weir_common::limit::rolling::RollingQuota;
    use weir_common::time::{Moment, UnixTime};

    use super::super::key::{Scope, Seed};
    use super::super::shared::sync_state::SyncedKeys;
    use super::super::{Quota, snapshot};
    use super::*;

    const SEED: [u8; 16] = [3; 16];

    /// A check of `name` by the limit `limit`, which allows `requests` a minute.
    fn check(limit: &str, requests: u32, name: &str) -> LimitCheck {
        let seed = Seed::new(SEED);
        let quota = Quota::Rolling(RollingQuota { requests, window: Duration::from_secs(60) });
        let limit = seed.limit(limit);
        let key = Key::new(seed.owner(Scope::Workspace, name.as_bytes()), limit);
        LimitCheck::new(key, limit, quota)
    }

    fn admitted(store: &MemoryStore, checks: &[LimitCheck], times: usize) -> usize {
        (0..times).filter(|_| store.judge(checks, Tick(1)).unwrap().is_admitted()).count()
    }

    fn remaining(store: &MemoryStore, check: &LimitCheck) -> u32 {
        store.usage(check, Tick(1)).unwrap().remaining
    }

    #[test]
    fn keys_of_one_shard_are_checked_under_one_lock() {
        let store = MemoryStore::with_shards(1_000, 1);
        let checks = [check("a", 2, "x"), check("b", 3, "x"), check("c", 4, "x")];
        assert_eq!(admitted(&store, &checks, 10), 2);
        assert_eq!(checks.map(|check| remaining(&store, &check)), [0, 1, 2]);
    }

    #[test]
    fn a_state_that_an_insertion_moves_is_found_again() {
        let store = MemoryStore::with_shards(1_000, 1);
        let observed = LimitCheck { enforced: false, ..check("trial", 1, "ws") };
        let enforced = check("workspace", 9, "ws");
        assert!(store.judge(&[observed, enforced], Tick(1)).unwrap().is_admitted());
        for nth in 0..50 {
            let checks = [check("w", 5, &format!("new{nth}")), observed, enforced];
            let enough = nth < 8;
            let verdict = store.judge(&checks, Tick(1)).unwrap();
            let left: Vec<u32> = verdict.answers().map(|answer| answer.usage.remaining).collect();
            assert_eq!(left, if enough { [4, 0, 7 - nth] } else { [5, 0, 0] });
        }
    }

    #[test]
    fn a_sweep_drops_what_is_fresh_and_nothing_else() {
        let store = MemoryStore::with_shards(1_000, 1);
        let (early, late) = (check("w", 5, "early"), check("w", 5, "late"));
        let _ = store.judge(&[early], Tick(0));
        let _ = store.judge(&[late], Tick(30_000_000));
        store.sweep(0, Tick(59_999_999));
        assert_eq!(store.fill().keys, 2);
        store.sweep(0, Tick(60_000_000));
        assert_eq!(store.fill().keys, 1);
        assert_eq!(store.fill().unknown_keys, 1);
    }

    #[test]
    fn nothing_is_dropped_while_changed_quotas_are_new() {
        let store = MemoryStore::with_shards(1_000, 1);
        let _ = store.judge(&[check("w", 5, "ws")], Tick(0));
        store.keep_until(Tick(90_000_000));
        store.sweep(0, Tick(70_000_000));
        assert_eq!(store.fill().keys, 1);
        store.sweep(0, Tick(90_000_000));
        assert_eq!(store.fill().keys, 0);
    }

    #[test]
    fn room_that_has_become_free_is_used_again() {
        let store = MemoryStore::with_shards(1, 1);
        assert_eq!(admitted(&store, &[check("w", 5, "first")], 1), 1);
        let later = Tick(120_000_000);
        assert!(store.judge(&[check("w", 5, "second")], later).unwrap().is_admitted());
        assert_eq!(store.fill().overflowed, 0);
    }

    #[test]
    fn what_a_shared_store_has_charged_to_a_shared_entry_is_an_overflow() {
        let (store, own) = (MemoryStore::with_shards(1, 1), check("w", 100, "own"));
        let shared = LimitCheck { key: own.key.overflow(own.limit, 1), known: true, ..own };
        store.record(&own, Tick(0)).unwrap();
        assert_eq!(store.fill().overflowed, 0);
        store.record(&shared, Tick(0)).unwrap();
        store.record(&shared, Tick(1)).unwrap();
        assert_eq!(store.fill().overflowed, 2);
    }

    /// A store with room for one unknown key, and two keys that share a state, of which they have
    /// used 20 at `Tick(30_000_000)`. The room is free from `Tick(60_000_000)` on.
    fn overflowed() -> (MemoryStore, [LimitCheck; 2]) {
        let store = MemoryStore::with_shards(1, 1);
        let left = check("w", 100, "left");
        let shares = |check: &LimitCheck| {
            let shared = |check: &LimitCheck| check.key.overflow(check.limit, 1);
            shared(check) == shared(&left) && check.key != left.key
        };
        let right = (0..).map(|nth| check("w", 100, &format!("{nth}"))).find(shares).unwrap();
        let _ = store.judge(&[check("w", 100, "first")], Tick(0));
        for check in [left, right].iter().cycle().take(20) {
            let _ = store.judge(&[*check], Tick(30_000_000));
        }
        assert_eq!(store.fill(), Fill { keys: 2, unknown_keys: 1, overflowed: 20 });
        (store, [left, right])
    }

    fn remaining_after(store: &MemoryStore, check: &LimitCheck, now: u64) -> u32 {
        let verdict = store.judge(&[*check], Tick(now)).unwrap();
        verdict.answers().next().unwrap().usage.remaining
    }

    #[test]
    fn a_key_that_shared_a_state_has_its_own_once_there_is_room_and_starts_with_a_copy() {
        let (store, [left, right]) = overflowed();
        assert_eq!(remaining_after(&store, &left, 61_000_000), 79);
        assert_eq!(store.fill(), Fill { keys: 2, unknown_keys: 1, overflowed: 20 });
        assert_eq!(remaining_after(&store, &right, 61_000_000), 79, "no room is left");
        assert_eq!(remaining_after(&store, &left, 90_000_000), 98, "what was shared has expired");
    }

    #[test]
    fn a_long_state_is_copied_by_few_requests() {
        let (store, [left, right]) = overflowed();
        assert_eq!(remaining_after(&store, &left, 61_000_001), 79);
        assert_eq!(store.fill(), Fill { keys: 1, unknown_keys: 0, overflowed: 21 });
        assert_eq!(remaining_after(&store, &right, 61_000_002), 78);
        assert_eq!(store.fill(), Fill { keys: 2, unknown_keys: 1, overflowed: 21 });
    }

    #[test]
    fn a_key_that_was_reset_has_used_nothing_of_a_shared_state() {
        let (store, [left, _]) = overflowed();
        assert_eq!(remaining_after(&store, &left, 61_000_000), 79);
        store.reset(left.key).unwrap();
        store.sweep(0, Tick(62_000_000));
        assert_eq!(remaining_after(&store, &left, 62_000_000), 99);
    }

    #[derive(Clone, Debug)]
    enum Step {
        Wait(u64),
        Request(u8, u8),
        Sweep,
        Restart,
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            4 => (1..40_000_000_u64).prop_map(Step::Wait),
            8 => (0..6_u8, 1..30_u8).prop_map(|(name, times)| Step::Request(name, times)),
            2 => Just(Step::Sweep),
            1 => Just(Step::Restart),
        ]
    }

    fn restarted(store: &MemoryStore, now: Tick) -> MemoryStore {
        let moment = Moment { tick: now, unix: UnixTime(now.0) };
        let bytes =
            snapshot::write((store, SyncedKeys::<[_; 0]>::default()), Seed::new(SEED), b"", moment);
        let next = MemoryStore::with_shards(2, 1);
        let _ = snapshot::read(&bytes, moment).unwrap().restore(&next);
        next
    }

    proptest! {
        /// Remembers every admission of each key, and counts those of the last minute.
        #[test]
        fn no_unknown_key_is_ever_admitted_beyond_its_limit(
            requests in prop_oneof![Just(3), Just(40)],
            steps in prop::collection::vec(step(), 1..80),
        ) {
            let (mut store, mut now) = (MemoryStore::with_shards(2, 1), Tick(1_000_000_000));
            let mut admitted: Vec<(u8, Tick)> = Vec::new();
            for step in steps {
                match step {
                    Step::Wait(wait) => now = Tick(now.0 + wait),
                    Step::Sweep => store.sweep(0, now),
                    Step::Restart => store = restarted(&store, now),
                    Step::Request(name, times) => for _ in 0..times {
                        let check = check("w", requests, &name.to_string());
                        if store.judge(&[check], now).unwrap().is_admitted() {
                            admitted.push((name, now));
                        }
                        let counts = |(own, at): &&(u8, Tick)| {
                            *own == name && at.0 + 60_000_000 > now.0
                        };
                        let used = admitted.iter().filter(counts).count();
                        prop_assert!(used <= requests as usize, "{} of {}", used, requests);
                    },
                }
            }
        }
    }

    #[test]
    fn two_unknown_keys_of_one_request_do_not_take_the_same_room() {
        let store = MemoryStore::with_shards(1, 1);
        let full = Fill { keys: 2, unknown_keys: 1, overflowed: 1 };
        let both = [check("w", 5, "ws"), check("address", 5, "::1")];
        assert!(store.judge(&both, Tick(1)).unwrap().is_admitted());
        assert_eq!(store.fill(), full);
        // The second check's sweep drops the first one's entry, which needs its room again.
        let later = Tick(120_000_000);
        assert!(store.judge(&both, later).unwrap().is_admitted());
        assert_eq!(store.fill(), Fill { overflowed: 2, ..full });
    }

    #[test]
    fn an_unknown_key_that_enters_the_directory_frees_its_entry() {
        let store = MemoryStore::with_shards(1, 1);
        let unknown = check("w", 5, "ws");
        let _ = store.judge(&[unknown], Tick(1));
        let _ = store.judge(&[LimitCheck { known: true, ..unknown }], Tick(1));
        assert_eq!(store.fill(), Fill { keys: 1, unknown_keys: 0, overflowed: 0 });
        assert_eq!(remaining(&store, &unknown), 3);
    }

    #[test]
    fn parallel_requests_never_get_more_than_the_limit() {
        let store = MemoryStore::new(1_000);
        let checks = [check("workspace", 60, "ws"), check("organisation", 600, "org")];
        let total: usize = std::thread::scope(|scope| {
            let threads: Vec<_> =
                (0..8).map(|_| scope.spawn(|| admitted(&store, &checks, 100))).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).sum()
        });
        assert_eq!(total, 60);
        assert_eq!(remaining(&store, &checks[1]), 540);
    }

    #[test]
    fn what_is_closed_answers_nothing_and_opened_again_has_forgotten_nothing() {
        let store = MemoryStore::with_shards(10, 2);
        let checks: Vec<LimitCheck> = (0..8).map(|n| check("w", 5, &format!("{n}"))).collect();
        let both = |shard: usize| checks.iter().find(|check| check.key.shard(2) == shard).unwrap();
        let (left, right) = (*both(0), *both(1));
        assert_eq!(admitted(&store, &[left, right], 2), 2);
        let closed = store.close(0).unwrap();
        for checks in [&[left][..], &[left, right], &[right, left]] {
            assert_eq!(store.judge(checks, Tick(1)).unwrap_err(), Moved);
        }
        assert_eq!(store.usage(&left, Tick(1)), Err(Moved));
        assert_eq!(store.reset(left.key), Err(Moved));
        store.sweep(0, Tick(1));
        assert_eq!(remaining(&store, &right), 3, "nothing was charged beside what had moved");
        assert_eq!(closed.each(Tick(1)).count(), 1);
        store.reopen(0, closed);
        assert_eq!([left, right].map(|check| remaining(&store, &check)), [3, 3]);
        assert_eq!(store.fill().unknown_keys, 2);
    }
}
