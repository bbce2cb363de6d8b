//! Checks the limits of a request, where the counters are.
//!
//! They are in this process, or during and after an upgrade in another one, or in a store that
//! gateways share. [`Limiter::check`] never waits. It returns [`NeedsWait`] where one of the latter
//! two must be called, and the request then uses [`Limiter::check_waiting`].
//!
//! # Invariants
//!
//! 1. The counters have one owner: a request is charged there, or not at all.
//! 2. Only the owner of the counters applies boosts.
//! 3. No check waits longer than [`CHECK_WAIT`]; when the owner is lost, every check fails.
//! 4. A request that is counted as in flight is released once, by [`Held`], whatever becomes of it;
//!    while the counters are elsewhere, by a message to their owner.
//!
//! # Not here
//!
//! How counters and boosts move (`operations::upgrade`), what a limit allows (`rules`).

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use arrayvec::ArrayVec;
use tokio::sync::{Notify, mpsc, oneshot, watch};
use weir_common::limit::decision::Usage;
use weir_common::time::{Clock, Moment, Tick, UnixTime};

use super::boost::{Boost, Boosts, Unset};
use super::held::{Held, Releases};
use super::key::Key;
use super::memory::{MemoryStore, Moved};
use super::shared::sync_state::{SyncedKey, SyncedKeys};
use super::shared::{SharedStore, Undecided};
use super::{CHECKS_MAX, LimitCheck, Quota, Verdict};

/// How long a request waits for a check elsewhere: the longest transfer of the counters, and two
/// seconds for the response.
pub const CHECK_WAIT: Duration = Duration::from_secs(12);

/// The check must wait: [`Limiter::check_waiting`] checks in the shared store, or in the process
/// that owns the counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NeedsWait;

/// The counters cannot be reached: the process that owned them has ended, or the shared store is
/// away and an enforced limit refuses without it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unreachable;

/// Every limit's counters and boosts, or the connection to the process that owns them.
#[derive(Debug)]
pub struct Limiter {
    clock: Clock,
    /// The counters; where there is a shared store, what this process was given by it.
    pub store: MemoryStore,
    /// The store that gateways share, where there is one.
    pub shared: Option<Arc<SharedStore>>,
    /// Raised allowances.
    pub boosts: Boosts,
    owner: watch::Sender<LimitOwner>,
    /// Keys of requests that have ended since the counters moved; their owner must be told.
    ended: Mutex<Vec<Key>>,
    /// Notified when there are some.
    has_ended: Notify,
}

/// Which process owns the counters.
#[derive(Clone, Debug)]
pub enum LimitOwner {
    /// This one.
    Here,
    /// None now: the counters are being transferred, or restored after a failed transfer.
    Moving,
    /// The process that reads from this channel.
    There(mpsc::Sender<RemoteCheck>),
    /// That process has ended.
    Lost,
}

impl Releases for Limiter {
    fn release(&self, key: Key) {
        Self::release(self, key);
    }
}

/// The checks of one request, for the process that owns the counters.
#[derive(Debug)]
pub struct RemoteCheck {
    /// Without boosts: the owner of the counters applies them.
    pub checks: ArrayVec<LimitCheck, CHECKS_MAX>,
    /// Receives the verdict.
    pub answer: oneshot::Sender<RemoteVerdict>,
}

/// The response of the process that owns the counters.
#[derive(Debug)]
pub struct RemoteVerdict {
    /// Its verdict.
    pub verdict: Verdict,
    /// The allowances that were checked, with boosts, in the order of the checks.
    pub quotas: ArrayVec<Quota, CHECKS_MAX>,
}

impl Limiter {
    /// A limiter that owns empty counters, with room for `unknown_max` keys that the directory
    /// does not know.
    #[must_use]
    pub fn new(clock: Clock, unknown_max: usize) -> Self {
        let (store, boosts) = (MemoryStore::new(unknown_max), Boosts::default());
        let owner = watch::Sender::new(LimitOwner::Here);
        let (ended, has_ended) = (Mutex::default(), Notify::new());
        Self { clock, store, shared: None, boosts, owner, ended, has_ended }
    }

    /// A moment as the counters of this process count it: the shared store's, where there is one.
    #[must_use]
    pub fn moment(&self, now: Moment) -> Moment {
        self.shared.as_ref().map_or(now, |shared| shared.moment(now))
    }

    /// The counters of this process, and `now` as they count it.
    #[must_use]
    pub fn own(&self, now: Tick) -> (&MemoryStore, Tick) {
        let counted = self.shared.as_ref().map_or(now, |shared| shared.time(now));
        (&self.store, counted)
    }

    /// Whether the key of a check that only this process counts has more than `reserve` left. True
    /// while the counters are another process's.
    #[must_use]
    pub fn has_local_room(&self, check: &LimitCheck, reserve: u32, now: Tick) -> bool {
        let (store, now) = self.own(now);
        store.usage(check, now).map_or(true, |usage| usage.remaining > reserve)
    }

    /// Charges a check that only this process counts. Of concurrent ones the last may not fit, and
    /// is not charged.
    pub fn charge_local(&self, check: &LimitCheck, now: Tick) {
        let (store, now) = self.own(now);
        let _ = store.judge(&[*check], now);
    }

    /// A moment as the counters of this process count it, at the earliest: what has ended by then
    /// counts nowhere.
    #[must_use]
    pub fn earliest(&self, now: Moment) -> Moment {
        self.shared.as_ref().map_or(now, |shared| {
            let [earliest, _] = shared.times(now.tick);
            Moment { tick: earliest, unix: UnixTime(earliest.0) }
        })
    }

    /// The keys that a shared store counts: see [`SharedStore::synced`].
    pub fn synced(&self) -> SyncedKeys<impl Iterator<Item = SyncedKey>> {
        let synced = self.shared.as_ref().map(|shared| shared.synced());
        let (resets, keys) = synced.map(|own| (own.resets, own.keys)).unzip();
        SyncedKeys { resets: resets.unwrap_or_default(), keys: keys.into_iter().flatten() }
    }

    /// Lets heartbeats tell a shared store of the keys of an earlier process.
    pub fn restore_synced(&self, synced: &SyncedKeys) {
        self.shared.iter().for_each(|shared| shared.restore_synced(synced));
    }

    /// Drops the states of one shard that equal a fresh one at `now`, and that the shared store
    /// cannot count any more. `nth` is taken modulo the number of shards.
    pub fn sweep(&self, nth: usize, now: Moment) {
        self.store.sweep(nth, self.earliest(now).tick);
    }

    /// Checks every limit at `now`, and charges all or none. Applies boosts to `checks`. The caller
    /// must [hold](Self::hold) what the verdict counts as in flight.
    pub fn check(&self, checks: &mut [LimitCheck], now: Tick) -> Result<Verdict, NeedsWait> {
        self.boosts.apply(checks, now);
        match &self.shared {
            None => self.store.decide(checks, now, true).map_err(|Moved| NeedsWait),
            Some(shared) => shared.without_call(&self.store, checks, now).ok_or(NeedsWait),
        }
    }

    /// Makes the verdict on `checks` hold what it counts as in flight.
    pub fn hold(self: &Arc<Self>, verdict: &mut Verdict, checks: &[LimitCheck]) {
        if checks.iter().any(|check| matches!(check.quota, Quota::Concurrency(_))) {
            verdict.held = Held::of(self.clone(), verdict.keys_in_flight(checks));
        }
    }

    /// Whether every limit would admit a request of the same costs now; the verdict charges
    /// nothing. Applies boosts to `checks`.
    pub fn preview(&self, checks: &mut [LimitCheck], now: Tick) -> Result<Verdict, NeedsWait> {
        self.boosts.apply(checks, now);
        match &self.shared {
            None => self.store.decide(checks, now, false).map_err(|Moved| NeedsWait),
            Some(shared) => shared.remembered(&self.store, checks, now).ok_or(NeedsWait),
        }
    }

    /// Counts one request of a key in flight less.
    pub fn release(&self, key: Key) {
        if self.store.release(key).is_ok() {
            return;
        }
        let mut ended = self.ended.lock().unwrap_or_else(PoisonError::into_inner);
        // The counters may have come back before the lock was free.
        if self.store.release(key).is_err() {
            ended.push(key);
            self.has_ended.notify_one();
        }
    }

    /// Waits for keys whose requests have ended, and which the owner of the counters must release.
    pub async fn next_ended(&self) -> Vec<Key> {
        loop {
            let ended =
                std::mem::take(&mut *self.ended.lock().unwrap_or_else(PoisonError::into_inner));
            if !ended.is_empty() {
                return ended;
            }
            self.has_ended.notified().await;
        }
    }

    /// Checks every limit in the shared store, or in the process that owns the counters. Stores the
    /// allowances that were checked in `checks`.
    pub async fn check_waiting(
        self: &Arc<Self>,
        checks: &mut [LimitCheck],
    ) -> Result<Verdict, Unreachable> {
        let checked = tokio::time::timeout(CHECK_WAIT, self.find_owner_and_check(checks));
        checked.await.unwrap_or(Err(Unreachable))
    }

    async fn find_owner_and_check(
        self: &Arc<Self>,
        checks: &mut [LimitCheck],
    ) -> Result<Verdict, Unreachable> {
        let mut owner = self.owner.subscribe();
        loop {
            let now_is = owner.borrow_and_update().clone();
            match now_is {
                LimitOwner::Here => {
                    let now = self.clock.now();
                    as_of(checks, now);
                    // Where this fails, another transfer has started and has changed `owner`.
                    if let Some(mut verdict) = self.check_here(checks, now.tick).await? {
                        self.hold(&mut verdict, checks);
                        return Ok(verdict);
                    }
                }
                LimitOwner::Moving => owner.changed().await.map_err(|_| Unreachable)?,
                LimitOwner::There(sender) => {
                    as_of(checks, self.clock.now());
                    return check_there(&sender, checks).await;
                }
                LimitOwner::Lost => return Err(Unreachable),
            }
        }
    }

    /// Checks and charges every limit by the counters of this process, or in the shared store;
    /// `None` where the counters have moved.
    async fn check_here(
        &self,
        checks: &mut [LimitCheck],
        now: Tick,
    ) -> Result<Option<Verdict>, Unreachable> {
        match (self.check(checks, now), &self.shared) {
            (Err(NeedsWait), Some(shared)) => match shared.check(&self.store, checks, true).await {
                Err(Undecided::Away) => Err(Unreachable),
                checked => Ok(checked.ok()),
            },
            (checked, _) => Ok(checked.ok()),
        }
    }

    /// The usage of a check's key, wherever it is counted. The check has its boost already.
    pub async fn usage(&self, check: &LimitCheck, now: Tick) -> Result<Usage, Unreachable> {
        let Some(shared) = &self.shared else {
            return self.store.usage(check, now).map_err(|_| Unreachable);
        };
        let found = shared.check(&self.store, std::slice::from_ref(check), false).await;
        let found = found.map_err(|_| Unreachable)?;
        found.answers().next().map(|answer| answer.usage).ok_or(Unreachable)
    }

    /// Makes the keys of these checks ones that have used nothing.
    pub async fn reset(&self, checks: &[&LimitCheck]) -> Result<(), Unreachable> {
        if let Some(shared) = &self.shared {
            return shared.reset(&self.store, checks).await.map_err(|_| Unreachable);
        }
        checks.iter().try_for_each(|check| self.store.reset(check.key)).map_err(|_| Unreachable)
    }

    /// Raises the allowance of a key, in all gateways that share a store.
    pub async fn boost(&self, key: Key, boost: Boost, now: Tick) -> Result<(), Unset> {
        let _change = self.boosts.begin_own_change();
        let earlier = self.boosts.of(key, now);
        self.boosts.set(key, boost, now)?;
        let Some(shared) = &self.shared else { return Ok(()) };
        if shared.publish(key, boost).await.is_err() {
            self.restore_boost(key, earlier, now)?;
            return Err(Unset::Moved(Moved));
        }
        Ok(())
    }

    /// Sets what a boost was before a change that the shared store did not take.
    fn restore_boost(&self, key: Key, earlier: Option<Boost>, now: Tick) -> Result<(), Unset> {
        match earlier {
            Some(earlier) => self.boosts.set(key, earlier, now),
            None => Ok(self.boosts.clear(key)?),
        }
    }

    /// Ends the boost of a key.
    pub async fn unboost(&self, key: Key) -> Result<(), Unreachable> {
        let _change = self.boosts.begin_own_change();
        let now = self.clock.now().tick;
        let ended = self.boosts.of(key, now);
        self.boosts.clear(key).map_err(|_| Unreachable)?;
        let Some(shared) = &self.shared else { return Ok(()) };
        if shared.publish_end(key, ended).await.is_err() {
            // The others have it still.
            self.restore_boost(key, ended, now).map_err(|_| Unreachable)?;
            return Err(Unreachable);
        }
        Ok(())
    }

    /// Records which process owns the counters from now on. Where that is this one, all shards are
    /// open again.
    pub fn set_owner(&self, owner: LimitOwner) {
        let mut ended = self.ended.lock().unwrap_or_else(PoisonError::into_inner);
        if matches!(owner, LimitOwner::Here) {
            for key in std::mem::take(&mut *ended) {
                // Cannot fail: the shards are open.
                let _ = self.store.release(key);
            }
        }
        self.owner.send_replace(owner);
    }
}

async fn check_there(
    sender: &mpsc::Sender<RemoteCheck>,
    checks: &mut [LimitCheck],
) -> Result<Verdict, Unreachable> {
    let (answer, answered) = oneshot::channel();
    let own = checks.iter().copied().take(CHECKS_MAX).collect();
    sender.send(RemoteCheck { checks: own, answer }).await.map_err(|_| Unreachable)?;
    let RemoteVerdict { verdict, quotas } = answered.await.map_err(|_| Unreachable)?;
    for (check, quota) in checks.iter_mut().zip(quotas) {
        check.quota = quota;
    }
    Ok(verdict)
}

/// Makes checks that were made earlier ones of `now`: without boosts, in the calendar period of
/// that moment.
pub fn as_of(checks: &mut [LimitCheck], now: Moment) {
    for check in checks {
        check.lasting = check.lasting.at(now);
        check.quota = check.lasting;
    }
}
