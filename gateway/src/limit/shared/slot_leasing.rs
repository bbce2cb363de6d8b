//! Leases slots of requests in flight, and uses them without a call.
//!
//! # Invariants
//!
//! 1. A key's requests in flight are counted, and its slots change, under one lock; only the end of
//!    a request lowers the count without it.
//! 2. A request that is refused, given up or not answered is not counted as in flight.
//! 3. A heartbeat renews a bounded number of keys: the leases of others end, and their next request
//!    needs a call.
//!
//! # Not here
//!
//! What is known of one key (`shared::slot_lease`), calls that renew (`shared::slot_renewal`), what
//! the store grants (`decide.lua`), who releases a request that has ended (`limit::held`).

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use arrayvec::ArrayVec;
use weir_common::limit::concurrency::ConcurrencyQuota;
use weir_common::limit::decision::Usage;
use weir_common::limit::state::State;
use weir_common::time::Tick;

use super::super::key::{Key, KeyMap};
use super::super::memory::MemoryStore;
use super::super::{CHECKS_MAX, CheckResult, LimitCheck, Quota};
use super::call::SlotRequest;
use super::is_in_flight;
use super::reply::{SharedDecision, SharedResult};
use super::sharded::Sharded;
use super::slot_lease::KeySlots;

/// Entries of one shard from which on those that no longer matter are dropped.
const SWEEP_FROM: usize = 64;

/// How many keys one heartbeat renews: 1,024 calls, which take the store some 100 ms.
const RENEWALS_MAX: usize = 8_192;

/// The slots of all keys.
#[derive(Debug, Default)]
pub(super) struct Slots {
    shards: Sharded<Mutex<SlotTable>>,
    /// The number of the newest call.
    calls: AtomicU64,
}

#[derive(Debug, Default)]
struct SlotTable {
    by_key: KeyMap<KeySlots>,
    /// Entries at which the next sweep is due.
    sweep_at: usize,
}

/// What one call says of a check's slots. Where it counts a request as in flight, that ends unless
/// the call has admitted it.
pub(super) struct SlotTurn<'s> {
    slots: &'s Slots,
    store: &'s MemoryStore,
    /// The key that counts the request as in flight.
    counted: Option<Key>,
    pub(super) request: Option<SlotRequest>,
}

/// A request that counts as in flight in `store`, unless it is kept.
pub(super) struct Entered<'s> {
    store: &'s MemoryStore,
    keys: ArrayVec<Key, CHECKS_MAX>,
    used: ArrayVec<Usage, CHECKS_MAX>,
}

impl Entered<'_> {
    /// Keeps the request, and returns the usage of each of its keys.
    pub(super) fn keep(&mut self) -> ArrayVec<Usage, CHECKS_MAX> {
        self.keys.clear();
        std::mem::take(&mut self.used)
    }
}

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        for key in &self.keys {
            // Fails only where another process has the counters, which has this one, too.
            let _ = self.store.release(*key);
        }
    }
}

impl Slots {
    /// Counts a request as in flight where each of its keys has a slot left at `latest`, the latest
    /// time that the store can have; none where that needs a call.
    pub(super) fn enter<'s>(
        &self,
        store: &'s MemoryStore,
        checks: &[LimitCheck],
        latest: Tick,
    ) -> Option<Entered<'s>> {
        let (keys, used) = (ArrayVec::new(), ArrayVec::new());
        let mut entered = Entered { store, keys, used };
        for check in checks.iter().filter(|check| is_in_flight(check)) {
            let mut table = self.shards.lock(check.key);
            let own = table.by_key.get_mut(&check.key)?;
            let most = own.usable(latest).min(check.quota.limit());
            let in_flight = count(store, check, most, latest)?;
            entered.keys.push(check.key);
            entered.used.push(own.admitted(check, in_flight, latest));
        }
        Some(entered)
    }

    /// Starts a call at `now` that decides these checks for a gateway, and counts the request as in
    /// flight if it is to be charged. None where another process has the counters.
    pub(super) fn begin<'s>(
        &'s self,
        (store, gateway): (&'s MemoryStore, u64),
        checks: &[LimitCheck],
        (charge, now): (bool, Tick),
    ) -> Option<ArrayVec<SlotTurn<'s>, CHECKS_MAX>> {
        let mut turns = ArrayVec::new();
        for check in checks {
            let mut turn = SlotTurn { slots: self, store, counted: None, request: None };
            if is_in_flight(check) {
                let mut table = self.shards.lock(check.key);
                if charge {
                    let in_flight = count(store, check, u32::MAX, now)?;
                    let own = table.own(store, check, now);
                    turn.request = Some(own.begin(check, in_flight, (gateway, self.next_call())));
                    turn.counted = Some(check.key);
                } else {
                    let in_flight = in_flight(store, check.key);
                    let own = table.by_key.get(&check.key);
                    let preview = own.map(|own| own.preview(in_flight, gateway));
                    let fresh = || KeySlots::of(check).preview(in_flight, gateway);
                    turn.request = Some(preview.unwrap_or_else(fresh));
                }
            }
            turns.push(turn);
        }
        Some(turns)
    }

    /// Remembers that a request was counted as in flight without the store, at its time `now`.
    pub(super) fn note(&self, store: &MemoryStore, check: &LimitCheck, now: Tick) {
        self.shards.lock(check.key).own(store, check, now);
    }

    /// The refusal of a check that holds at `latest`, without a call.
    pub(super) fn refusal(
        &self,
        store: &MemoryStore,
        check: &LimitCheck,
        latest: Tick,
    ) -> Option<CheckResult> {
        let table = self.shards.lock(check.key);
        let own = table.by_key.get(&check.key)?;
        own.refusal(check, in_flight(store, check.key), latest)
    }

    /// Drops all slots: the store may have lost them.
    pub(super) fn forget_all(&self) {
        for mut table in self.shards.locked() {
            let newest = self.calls.load(Ordering::Relaxed);
            table.by_key.values_mut().for_each(|own| own.forget(newest));
        }
    }

    /// Starts calls that renew and return the slots of some checks' keys, those that end first
    /// before the others. Returns all slots where no store says what is in flight.
    pub(super) fn renew(
        &self,
        (store, gateway): (Option<&MemoryStore>, u64),
        now: Tick,
        is_there: impl Fn(&LimitCheck) -> bool,
    ) -> Vec<(LimitCheck, SlotRequest)> {
        let mut due: Vec<(Tick, Key)> = Vec::new();
        for mut table in self.shards.locked() {
            table.sweep(store, now);
            let there = table.by_key.iter().filter(|(_, own)| is_there(own.check()));
            due.extend(there.map(|(key, own)| (own.ends(), *key)));
        }
        due.sort_unstable_by_key(|(ends, _)| *ends);
        let renewal = |(_, key): (Tick, Key)| {
            let mut table = self.shards.lock(key);
            let own = table.by_key.get_mut(&key)?;
            let numbers = (gateway, self.next_call());
            let in_flight = store.map(|store| in_flight(store, key));
            let request = match in_flight {
                Some(in_flight) => own.renew(in_flight, numbers, now),
                None => own.end(numbers, now),
            };
            request.map(|request| (*own.check(), request))
        };
        due.into_iter().filter_map(renewal).take(RENEWALS_MAX).collect()
    }

    /// Records the reply to a call that was sent at a heartbeat.
    pub(super) fn renewed(
        &self,
        (key, request): (Key, SlotRequest),
        found: &SharedResult,
        now: Tick,
    ) {
        if let Some(own) = self.shards.lock(key).by_key.get_mut(&key) {
            own.replied(request.sequence, (found, true), now);
        }
    }

    fn next_call(&self) -> u64 {
        self.calls.fetch_add(1, Ordering::Relaxed) + 1
    }
}

impl SlotTable {
    /// The slots of a check's key; before that, entries are dropped that no longer matter, each
    /// time that their number has doubled.
    fn own(&mut self, store: &MemoryStore, check: &LimitCheck, now: Tick) -> &mut KeySlots {
        if self.by_key.len() >= self.sweep_at.max(SWEEP_FROM) {
            self.sweep(Some(store), now);
            self.sweep_at = 2 * self.by_key.len();
        }
        self.by_key.entry(check.key).or_insert_with(|| KeySlots::of(check))
    }

    fn sweep(&mut self, store: Option<&MemoryStore>, now: Tick) {
        let counts = |key: Key| store.is_some_and(|store| in_flight(store, key) > 0);
        self.by_key.retain(|key, own| own.matters(now) || counts(*key));
    }
}

impl SlotTurn<'_> {
    /// Records what the store replied at its time `now`, and whether it has admitted the request,
    /// which is counted as in flight from now on where its limit has admitted it.
    pub(super) fn finish(mut self, found: &SharedResult, admitted: bool, now: Tick) {
        let Some((key, request)) = self.counted.zip(self.request) else { return };
        let mut table = self.slots.shards.lock(key);
        let Some(own) = table.by_key.get_mut(&key) else { return };
        own.stop_waiting();
        own.replied(request.sequence, (found, admitted), now);
        self.counted = None;
        if !admitted || found.decision != SharedDecision::Admit {
            // As above.
            let _ = self.store.release(key);
        }
    }
}

impl Drop for SlotTurn<'_> {
    fn drop(&mut self) {
        if let Some(key) = self.counted {
            let mut table = self.slots.shards.lock(key);
            if let Some(own) = table.by_key.get_mut(&key) {
                own.stop_waiting();
            }
            let _ = self.store.release(key);
        }
    }
}

/// How many requests of a key are in flight.
fn in_flight(store: &MemoryStore, key: Key) -> u32 {
    let count = |state: &State| match state {
        State::InFlight(own) => own.count(),
        _ => 0,
    };
    store.look(key, count).unwrap_or_default()
}

/// Counts a request as in flight where fewer than `most` are. Returns how many there are with it;
/// none where it is not counted.
fn count(store: &MemoryStore, check: &LimitCheck, most: u32, now: Tick) -> Option<u32> {
    let quota = Quota::Concurrency(ConcurrencyQuota { requests: most });
    let check = LimitCheck { quota, enforced: true, ..*check };
    let verdict = store.decide(std::slice::from_ref(&check), now, true).ok()?;
    let counted = verdict.answers().next().filter(|_| verdict.is_admitted())?;
    Some(most - counted.usage.remaining)
}
