//! Decides requests by leases of tokens, renews these with calls, and returns those not used.
//!
//! # Invariants
//!
//! 1. A request is decided here only if all its limits have a lease that holds enough; all are
//!    spent, or none.
//! 2. What is spent is in the memory store, as a witness of it, before the request is answered; a
//!    process whose counters have moved spends nothing.
//! 3. While a call renews a lease, others of its key wait for it, no longer than for a call.
//!
//! # Not here
//!
//! Slots of requests in flight (`shared::slot_leasing`), what is known of one key
//! (`shared::token_lease`), what the store grants (`decide.lua`).

use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use arrayvec::ArrayVec;
use tokio::sync::Notify;
use weir_common::limit::decision::{Decision, Usage};
use weir_common::time::Tick;

use super::super::key::{Key, KeyMap};
use super::super::memory::MemoryStore;
use super::super::{CHECKS_MAX, CheckResult, LimitCheck, Quota, Verdict};
use super::call::{CallMode, LeaseRequest, ReturnedLease, SharedCheck};
use super::connecting::is_on;
use super::remote::{self, RemoteError};
use super::reply::SharedResult;
use super::servers::errors::CallError;
use super::servers::node::Over;
use super::servers::nodes::NodeSet;
use super::sharded::{Sharded, lock};
use super::token_lease::{KeyLease, Spent};
use super::{Checks, SharedStore, is_in_flight, local};

/// Entries of one shard from which on those that no longer matter are dropped.
const SWEEP_FROM: usize = 64;

/// How many calls of others a request waits for: each may bring less than all that wait need.
const WAITS_MAX: usize = 4;

/// How many leases one heartbeat returns at most; the others end by themselves.
const RETURNS_MAX: usize = 512;

/// How long a heartbeat returns leases; those that it has taken out and not returned end by
/// themselves.
const RETURN_MAX: Duration = Duration::from_millis(250);

/// For how long a key that was reset has no lease: until the reset is complete everywhere.
const BARRED_FOR: Duration = Duration::from_secs(2);

/// The leases of all keys.
#[derive(Debug, Default)]
pub(super) struct Leases {
    shards: Sharded<LeaseShard>,
    /// The number of the newest call that may bring a lease.
    calls: AtomicU64,
}

#[derive(Debug, Default)]
struct LeaseShard {
    keys: Mutex<LeaseTable>,
    /// Notified when a call has ended that may have brought a lease.
    renewed: Notify,
}

#[derive(Debug, Default)]
struct LeaseTable {
    by_key: KeyMap<KeyLease>,
    /// Entries at which the next sweep is due.
    sweep_at: usize,
}

/// What one call returns and brings of a key's tokens. Others wait until it is dropped.
pub(super) struct LeaseTurn<'l> {
    leases: &'l Leases,
    key: Key,
    /// The number of the call, where it may bring a lease.
    number: Option<u64>,
    /// Whether the request could have been decided by leases.
    leasable: bool,
    /// What the call says of leases.
    pub(super) request: Option<LeaseRequest>,
}

/// A request that waits.
struct Waiting<'l>(&'l Leases, &'l LimitCheck);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let Self(leases, check) = self;
        leases.with(check.key, |own| own.stop_waiting(check.cost));
    }
}

impl Leases {
    /// Starts a call at `now` that decides these checks: it returns their leases and, where it
    /// charges, may bring new ones.
    pub(super) fn begin(
        &self,
        gateway: u64,
        checks: &[LimitCheck],
        (charge, now): (bool, Tick),
    ) -> ArrayVec<LeaseTurn<'_>, CHECKS_MAX> {
        let leasable = charge && checks.iter().all(is_leased);
        let turn = |check: &LimitCheck| {
            let (mut number, mut request) = (None, None);
            if is_bucket(check) {
                let mut table = self.shards.part(check.key).lock();
                if leasable {
                    table.make_room(now);
                    table.by_key.entry(check.key).or_default();
                }
                if let Some(own) = table.by_key.get_mut(&check.key) {
                    let returned = own.take();
                    let mut wanted = 0;
                    if charge {
                        let call = self.calls.fetch_add(1, Ordering::Relaxed) + 1;
                        number = own.renewal().is_none().then_some(call);
                        wanted = own.renew(call, now);
                    }
                    let says = returned.is_some() || wanted > 0;
                    request = says.then_some(LeaseRequest { gateway, returned, wanted });
                }
            }
            LeaseTurn { leases: self, key: check.key, number, leasable, request }
        };
        checks.iter().map(turn).collect()
    }

    /// Waits for the call that renews the lease of a check's key; false where there is none.
    async fn renewed(&self, check: &LimitCheck) -> bool {
        let shard = self.shards.part(check.key);
        let renewal = || shard.lock().by_key.get(&check.key).and_then(KeyLease::renewal);
        let Some(number) = renewal() else { return false };
        self.with(check.key, |own| own.wait(check.cost));
        let _waiting = Waiting(self, check);
        loop {
            // It listens before it looks: the call may end in between.
            let mut notified = pin!(shard.renewed.notified());
            notified.as_mut().enable();
            if renewal() != Some(number) {
                return true;
            }
            notified.await;
        }
    }

    /// Spends of all these checks, or of none.
    fn spend(&self, checks: &[LimitCheck], latest: Tick) -> Option<ArrayVec<Spent, CHECKS_MAX>> {
        let mut all = ArrayVec::new();
        for check in checks {
            let mut table = self.shards.part(check.key).lock();
            let spent = table.by_key.get_mut(&check.key).and_then(|own| own.spend(check, latest));
            drop(table);
            let Some(spent) = spent else {
                self.refund(checks, &all);
                return None;
            };
            all.push(spent);
        }
        Some(all)
    }

    fn refund(&self, checks: &[LimitCheck], all: &[Spent]) {
        for (check, spent) in checks.iter().zip(all) {
            self.with(check.key, |own| own.refund(check.cost, *spent));
        }
    }

    /// Drops the lease of a key, because it was reset. It has none before `barred_until`.
    pub(super) fn forget(&self, key: Key, barred_until: Tick) {
        let shard = self.shards.part(key);
        shard.lock().by_key.entry(key).or_default().forget(barred_until);
        shard.renewed.notify_waiters();
    }

    /// Drops all leases: the store may have lost them.
    pub(super) fn forget_all(&self) {
        for shard in self.shards.parts() {
            shard.lock().by_key.values_mut().for_each(|own| own.forget(Tick(0)));
            shard.renewed.notify_waiters();
        }
    }

    /// Takes out leases of some checks that are not used, or all of those.
    fn take_idle(
        &self,
        (now, all): (Tick, bool),
        is_there: impl Fn(&LimitCheck) -> bool,
    ) -> Vec<(LimitCheck, ReturnedLease)> {
        let mut idle = Vec::new();
        for shard in self.shards.parts() {
            let mut table = shard.lock();
            let left = RETURNS_MAX.saturating_sub(idle.len());
            let there = table.by_key.values_mut().filter(|own| own.check().is_some_and(&is_there));
            let own = there.filter_map(|own| own.take_idle(now, all));
            idle.extend(own.take(left));
        }
        idle
    }

    fn with(&self, key: Key, act: impl FnOnce(&mut KeyLease)) {
        if let Some(own) = self.shards.part(key).lock().by_key.get_mut(&key) {
            act(own);
        }
    }
}

impl LeaseShard {
    fn lock(&self) -> MutexGuard<'_, LeaseTable> {
        lock(&self.keys)
    }
}

impl LeaseTable {
    /// Drops entries that no longer matter at `now`, each time that their number has doubled.
    fn make_room(&mut self, now: Tick) {
        if self.by_key.len() >= self.sweep_at.max(SWEEP_FROM) {
            self.by_key.retain(|_, own| own.matters(now));
            self.sweep_at = 2 * self.by_key.len();
        }
    }
}

impl LeaseTurn<'_> {
    /// Records what the call brought, at the store's time `now`.
    pub(super) fn finish(mut self, check: &LimitCheck, found: &SharedResult, now: Tick) {
        let usage = remote::result(check, found).usage;
        let usage = Usage { remaining: found.remaining, ..usage };
        let brought = found.lease.map(|lease| (lease, usage, check));
        let number = self.number.take();
        self.leases.with(self.key, |own| {
            if self.leasable && found.receipt.is_some() {
                own.charged(check.cost, now);
            }
            if let Some(number) = number {
                own.renewed(number, brought, now);
            }
        });
        self.leases.shards.part(self.key).renewed.notify_waiters();
    }
}

impl Drop for LeaseTurn<'_> {
    fn drop(&mut self) {
        if let Some(number) = self.number {
            self.leases.with(self.key, |own| own.renewed(number, None, Tick(0)));
            self.leases.shards.part(self.key).renewed.notify_waiters();
        }
    }
}

impl SharedStore {
    /// The verdict on a request that needs no call; none where the store must be asked.
    #[must_use]
    pub fn without_call(
        &self,
        store: &MemoryStore,
        checks: &[LimitCheck],
        now: Tick,
    ) -> Option<Verdict> {
        let remembered = self.remembered(store, checks, now);
        remembered.or_else(|| self.by_leases(store, checks, now))
    }

    /// Admits a request by leases alone.
    fn by_leases(&self, store: &MemoryStore, checks: &[LimitCheck], now: Tick) -> Option<Verdict> {
        if checks.is_empty() || !checks.iter().all(is_leased) {
            return None;
        }
        let known = self.nodes.known();
        let time = self.time_of(&known, checks);
        let [earliest, latest] = time.range(now);
        let checks = self.effective(store, checks, latest);
        let mut entered = self.slots.enter(store, &checks, latest)?;
        let buckets: Checks = checks.iter().copied().filter(is_bucket).collect();
        let spent = self.leases.spend(&buckets, latest)?;
        // Where another process has become the witness, the tokens are lost to this one.
        // The earliest time: the store's debt is never less than what this gateway claims.
        buckets.iter().try_for_each(|check| store.record(check, earliest)).ok()?;
        let (mut spent, mut used) = (spent.into_iter(), entered.keep().into_iter());
        let usage = |check: &LimitCheck| match is_bucket(check) {
            true => spent.next().map(|spent| spent.usage),
            false => used.next(),
        };
        let admitted = |usage| local(time, CheckResult { decision: Decision::Admit, usage });
        let answers = checks.iter().filter_map(usage).map(admitted).collect();
        self.counts.leased.fetch_add(1, Ordering::Relaxed);
        Some(Verdict::new(answers, true))
    }

    /// Waits for calls of others that renew what these checks need; none where the request needs a
    /// call of its own.
    pub(super) async fn wait_for_lease(
        &self,
        store: &MemoryStore,
        checks: &[LimitCheck],
    ) -> Option<Verdict> {
        if !checks.iter().all(is_leased) {
            return None;
        }
        let waits = async {
            for _ in 0..WAITS_MAX {
                let mut waited = false;
                for check in checks.iter().filter(|check| is_bucket(check)) {
                    waited |= self.leases.renewed(check).await;
                }
                if !waited {
                    return None;
                }
                let now = self.clock.now().tick;
                if let Some(verdict) = self.without_call(store, checks, now) {
                    return Some(verdict);
                }
            }
            None
        };
        tokio::time::timeout(self.config.timeout, waits).await.ok().flatten()
    }

    /// Drops the lease of a key that is reset.
    pub(super) fn forget_lease(&self, key: Key) {
        let latest = self.time(self.clock.now().tick);
        self.leases.forget(key, latest.plus(BARRED_FOR));
    }

    /// The tokens that this gateway may spend without a call.
    #[must_use]
    pub fn leased_tokens(&self) -> u64 {
        let now = self.time(self.clock.now().tick);
        let of = |shard: &LeaseShard| -> u64 {
            shard.lock().by_key.values().map(|own| u64::from(own.unspent(now))).sum()
        };
        self.leases.shards.parts().map(of).sum()
    }

    /// Returns a server's leases that are not used, or all of them, with calls that charge nothing.
    pub(super) async fn return_leases(
        &self,
        known: &NodeSet,
        over: Over<'_>,
        all: bool,
    ) -> Result<(), RemoteError> {
        let started_at = self.clock.now().tick;
        let [_, now] = over.node.time.range(started_at);
        let there = |check: &LimitCheck| is_on(known, over.node, check.slot);
        let mut idle = self.leases.take_idle((now, all), there);
        idle.sort_by_key(|(check, _)| check.slot);
        // The keys of one call have one slot.
        for one_slot in idle.chunk_by(|(one, _), (other, _)| one.slot == other.slot) {
            for some in one_slot.chunks(CHECKS_MAX) {
                let gateway = self.id_bits;
                let calls: Vec<SharedCheck> = some
                    .iter()
                    .map(|(check, returned)| {
                        let returned = Some(*returned);
                        let lease = Some(LeaseRequest { gateway, returned, wanted: 0 });
                        SharedCheck { lease, ..remote::unclaimed(check) }
                    })
                    .collect();
                match self.call(over, &calls, CallMode::Preview).await {
                    // It cannot read one of them: the lease ends by itself.
                    Err(RemoteError::Call(CallError::Faulty(why))) => self.report_fault(&why),
                    Err(RemoteError::Call(CallError::Moving)) => {}
                    called => drop(called?),
                }
                if self.clock.now().tick.since(started_at) > RETURN_MAX {
                    return Ok(());
                }
            }
        }
        Ok(())
    }
}

/// Whether a check can be decided by leases.
fn is_leased(check: &LimitCheck) -> bool {
    is_bucket(check) || is_in_flight(check)
}

/// Whether a check is one of a bucket.
fn is_bucket(check: &LimitCheck) -> bool {
    matches!(check.quota, Quota::Bucket(_))
}
