//! Tells the store what this gateway was given, where the store may have lost or missed it.
//!
//! # Invariants
//!
//! 1. A key counts as told only once a call in time has brought all that the gateway knew of it.
//! 2. A key that the store cannot read keeps no other from being told, and stays owed.
//! 3. A request's call brings one piece at most: where the store lacks more, heartbeats tell it,
//!    and the requests of that key alone are decided without it meanwhile.
//! 4. A heartbeat tells for a bounded time: of a key with many stamps the next one goes on where it
//!    has stopped, so that no slots of requests in flight end meanwhile.
//! 5. An admission that the store has is told with the stamp that it has there, so that it counts
//!    once, also after this gateway has counted by its share.
//!
//! # Not here
//!
//! When a key is owed (`shared::sync_state`), the form of calls (`shared::call`).

use std::time::Duration;

use log::Level;
use serde_json::json;
use weir_common::limit::decision::Usage;
use weir_common::limit::rolling::EXACT_MAX;
use weir_common::limit::slots;
use weir_common::limit::state::State;
use weir_common::log::events;
use weir_common::time::{Tick, UnixTime, micros};

use super::super::memory::MemoryStore;
use super::super::{CHECKS_MAX, LimitCheck, Quota};
use super::SharedStore;
use super::call::{CallMode, REPLAY_MAX, ReplayedAdmission, SharedCheck};
use super::connecting::is_on;
use super::remote::{RemoteError, shared};
use super::reply::SharedOutcome;
use super::servers::errors::CallError;
use super::servers::join;
use super::servers::node::Over;
use super::servers::nodes::NodeSet;
use super::sync_state::{Brought, Claim, Known, Owed, SyncStates, SyncedKey, SyncedKeys};

/// How long a heartbeat tells the store what it may have missed; the next one goes on. Until then
/// this gateway hears of no reset.
const REPLAY_FOR_MAX: Duration = Duration::from_millis(250);

/// How many calls travel at once: requests wait behind them for some milliseconds at most.
const AT_ONCE: usize = 8;

/// When heartbeats try again to tell a key that the store cannot read.
const FAULTY_AFTER: Duration = Duration::from_secs(5);

/// What the script says where a calendar's period is none that it can be in.
const CLOCKS_DIFFER: &str = "the clocks differ by a period";

impl SharedStore {
    /// The earliest and the latest time that a server of the store can have at a tick of this
    /// machine. What has ended by the earliest counts nowhere.
    #[must_use]
    pub fn times(&self, now: Tick) -> [Tick; 2] {
        let known = self.nodes.known();
        let times = known.nodes.iter().map(|node| node.time.range(now));
        let all = times.reduce(|[first, last], [from, to]| [first.min(from), last.max(to)]);
        all.unwrap_or_else(|| self.time.range(now))
    }

    /// The keys of which a later process of this gateway must tell the store where that has lost
    /// or missed them.
    pub fn synced(&self) -> SyncedKeys<impl Iterator<Item = SyncedKey>> {
        let [earliest, _] = self.times(self.clock.now().tick);
        // The number is read first: a reset that is applied meanwhile is applied again later.
        SyncedKeys { resets: self.changes.resets(), keys: self.sync_states.synced(earliest) }
    }

    /// Records that the store may lack what an earlier process of this gateway was given of these
    /// keys: heartbeats tell it.
    pub fn restore_synced(&self, synced: &SyncedKeys) {
        self.changes.restore_resets(synced.resets);
        synced.keys.iter().for_each(|own| self.sync_states.lack(&own.check, own.usage));
    }

    /// Tells the store what this gateway has admitted alone.
    pub(super) async fn replay(
        &self,
        known: &NodeSet,
        over: Over<'_>,
        store: &MemoryStore,
    ) -> Result<(), RemoteError> {
        let started_at = self.clock.now().tick;
        let [_, now] = over.node.time.range(started_at);
        let telling = Telling { over, store, until: started_at.plus(REPLAY_FOR_MAX) };
        let owed = self.sync_states.owed(now, |check| is_on(known, over.node, check.slot));
        // The keys of one call have one slot.
        let each = if self.nodes.is_cluster() { 1 } else { CHECKS_MAX };
        for some in owed.chunks(each * AT_ONCE) {
            let calls = some.chunks(each).map(|owed| self.replay_each(telling, owed));
            let told = join::all(calls).await;
            match told.into_iter().collect::<Result<(), RemoteError>>() {
                Ok(()) => {}
                // The next heartbeat repeats it.
                Err(RemoteError::Late) => return Ok(()),
                Err(error) => return Err(error),
            }
            if self.is_over(telling) {
                break;
            }
        }
        Ok(())
    }

    /// Whether the time of a heartbeat is over in which it tells.
    fn is_over(&self, telling: Telling<'_>) -> bool {
        self.clock.now().tick > telling.until
    }

    /// Tells the store of a few keys, one by one where it cannot read one of them.
    async fn replay_each(&self, telling: Telling<'_>, owed: &[Owed]) -> Result<(), RemoteError> {
        match self.replay_some(telling, owed).await {
            Err(RemoteError::Call(CallError::Moving)) => Ok(()),
            Err(RemoteError::Call(CallError::Faulty(_))) => {
                for one in owed {
                    let told = self.replay_some(telling, std::slice::from_ref(one)).await;
                    if let Err(RemoteError::Call(CallError::Faulty(why))) = &told {
                        self.report_fault(why);
                        let [_, now] = telling.over.node.time.range(self.clock.now().tick);
                        self.sync_states.postpone(one.check.key, now.plus(FAULTY_AFTER));
                    } else {
                        told?;
                    }
                }
                Ok(())
            }
            told => told,
        }
    }

    /// Tells the store of a few keys, by calls of one piece, and as much as one piece for keys of
    /// few stamps together.
    async fn replay_some(&self, telling: Telling<'_>, owed: &[Owed]) -> Result<(), RemoteError> {
        let (mut together, mut calls, mut stamps) = (Vec::new(), Vec::new(), 0);
        for one in owed {
            let Some(call) = self.replay_pieces(telling, one).await? else { break };
            if stamps + call.replayed.len() > REPLAY_MAX {
                self.replay_last(telling, &together, &calls).await?;
                (together, calls, stamps) = (Vec::new(), Vec::new(), 0);
                if self.is_over(telling) {
                    break;
                }
            }
            stamps += call.replayed.len();
            together.push(*one);
            calls.push(call);
        }
        self.replay_last(telling, &together, &calls).await
    }

    /// Tells the store the last pieces of a few keys with one call.
    async fn replay_last(
        &self,
        telling: Telling<'_>,
        owed: &[Owed],
        calls: &[SharedCheck],
    ) -> Result<(), RemoteError> {
        if calls.is_empty() {
            return Ok(());
        }
        self.send_replayed(telling.over, calls).await?;
        for (owed, call) in owed.iter().zip(calls) {
            let newest = call.replayed.last().map(Claim::of_replayed);
            self.sync_states.settle(owed.check.key, (Brought::All, owed.missed), newest);
        }
        Ok(())
    }

    async fn send_replayed(
        &self,
        over: Over<'_>,
        calls: &[SharedCheck],
    ) -> Result<(), RemoteError> {
        let (reply, _) = self.call(over, calls, CallMode::Preview).await?;
        // A late call has told the store nothing.
        if reply.outcome == SharedOutcome::Late { Err(RemoteError::Late) } else { Ok(()) }
    }

    /// Logs that the store cannot read a key, once in a while: a reset of the key mends it, unless
    /// the clocks differ.
    pub(super) fn report_fault(&self, why: &str) {
        if self.fault_log.due((), self.clock.now().tick).is_none() {
            return;
        }
        let message = match why.contains(CLOCKS_DIFFER) {
            true => "clocks of the shared store and the gateway differ by a period",
            false => "shared store cannot read a key",
        };
        events::event(Level::Error, message, &[("error", json!(why))]);
    }

    /// A check of a request, and what its call tells the store of its key: `has_lost` where that
    /// has lost what was claimed; `now` is its earliest time. An error where a heartbeat must tell
    /// it first.
    pub(super) fn with_replay(
        (sync_states, store): (&SyncStates, &MemoryStore),
        check: &LimitCheck,
        (known, has_lost): (Known, bool),
        now: Tick,
    ) -> Result<(SharedCheck, Brought), RemoteError> {
        let claim = known.claim.filter(|_| !has_lost);
        let (from, told) = match (check.quota, claim, known.alone_from) {
            (Quota::Rolling(_), Some(_), None) => {
                return Ok((shared(store, check, claim, now), Brought::Newest));
            }
            (Quota::Rolling(_), Some(_), Some(from)) => (from, Brought::Alone),
            _ => (UnixTime(0), Brought::All),
        };
        let replayed = replayed(store, check, from);
        let Some(newest) = replayed.get(REPLAY_MAX..).and_then(<[ReplayedAdmission]>::last) else {
            return Ok((SharedCheck { replayed, ..shared(store, check, claim, now) }, told));
        };
        if told == Brought::All {
            sync_states.lack(check, usage(check, &replayed));
        }
        if has_lost || known.alone_from.is_some() {
            return Err(RemoteError::Lacks);
        }
        Ok((shared(store, check, Some(Claim::of_replayed(newest)), now), Brought::Newest))
    }

    /// Sends all pieces of what is owed of a key but the last, which the returned check has; none
    /// where the time is over before.
    async fn replay_pieces(
        &self,
        telling: Telling<'_>,
        owed: &Owed,
    ) -> Result<Option<SharedCheck>, RemoteError> {
        let [now, _] = telling.over.node.time.range(self.clock.now().tick);
        let mut call = shared(telling.store, &owed.check, None, now);
        let replayed = replayed(telling.store, &owed.check, owed.from);
        let mut pieces = replayed.chunks(REPLAY_MAX);
        let last = pieces.next_back().unwrap_or_default();
        for piece in pieces {
            if self.is_over(telling) {
                return Ok(None);
            }
            call.replayed = piece.to_vec();
            self.send_replayed(telling.over, std::slice::from_ref(&call)).await?;
            if let Some(newest) = piece.last() {
                self.sync_states.record_progress(owed, newest.stamp);
            }
        }
        call.replayed = last.to_vec();
        Ok(Some(call))
    }
}

/// How a heartbeat tells a server.
#[derive(Clone, Copy)]
struct Telling<'t> {
    over: Over<'t>,
    /// Where this gateway keeps what it was given.
    store: &'t MemoryStore,
    /// The tick after which it tells no further piece.
    until: Tick,
}

impl Claim {
    /// The claim of an admission that the store was told: its number there is not known.
    pub(super) fn of_replayed(told: &ReplayedAdmission) -> Self {
        Self { sequence: 0, stamp: told.stamp, count: told.count }
    }
}

/// The usage of a window by what this gateway was given of it.
fn usage(check: &LimitCheck, given: &[ReplayedAdmission]) -> Usage {
    let limit = check.quota.limit();
    let used = given.iter().fold(0, |sum: u32, one| sum.saturating_add(one.count));
    let newest = given.last().map_or(0, |last| last.stamp.0);
    let full_at = Tick(newest.saturating_add(check.horizon.window));
    Usage { limit, remaining: limit.saturating_sub(used), full_at }
}

/// What this gateway was given of a window from a stamp on that can still count, oldest first.
fn replayed(store: &MemoryStore, check: &LimitCheck, from: UnixTime) -> Vec<ReplayedAdmission> {
    let Quota::Rolling(quota) = check.quota else { return Vec::new() };
    // The store has the ends of slots, where a share may have counted one by one.
    let slot = (quota.requests > EXACT_MAX).then(|| micros(slots::grain(quota.window)));
    let stamp = |at: Tick| slot.map_or(at.0, |slot| (at.0 / slot + 1) * slot);
    let given = store.look(check.key, |state| {
        let mut given: Vec<ReplayedAdmission> = Vec::new();
        let mut put = |stamp: u64, count: u32| match given.last_mut() {
            Some(last) if last.stamp.0 == stamp => last.count += count,
            _ => given.push(ReplayedAdmission { stamp: UnixTime(stamp), count }),
        };
        match state {
            State::Log(log) => log.times().for_each(|at| put(stamp(at), 1)),
            State::Slots(slots) => slots.counts().for_each(|(at, count)| put(at.0 + 1, count)),
            State::Bucket(_) | State::Count(_) | State::InFlight(_) => {}
        }
        given
    });
    let counts = |given: &ReplayedAdmission, newest: u64| {
        given.stamp >= from && given.stamp.0 + check.horizon.window > newest
    };
    let mut given = given.unwrap_or_default();
    let newest = given.last().map_or(0, |last| last.stamp.0);
    given.retain(|one| counts(one, newest));
    given
}

#[cfg(test)]
mod tests {
    use weir_common::limit::rolling::RollingQuota;

    use super::super::super::key::{Key, LimitTag};
    use super::*;

    #[test]
    fn a_request_claims_a_large_window_and_leaves_it_to_a_heartbeat_where_the_store_lacks_it() {
        let window = Duration::from_secs(600);
        let quota = Quota::Rolling(RollingQuota { requests: EXACT_MAX, window });
        let check = LimitCheck::new(Key::from_bits(7), LimitTag::from_bits(1), quota);
        let (store, sync_states, at) =
            (MemoryStore::new(16), SyncStates::default(), 1_795_000_000_000_000_u64);
        let last = at + u64::from(EXACT_MAX) - 1;
        (at..=last).for_each(|at| store.record(&check, Tick(at)).unwrap());
        let call = |has_lost| {
            let known = sync_states.known(check.key);
            let (states, now) = ((&sync_states, &store), Tick(last));
            let made = SharedStore::with_replay(states, &check, (known, has_lost), now);
            made.map(|(call, told)| (call.replayed.len(), call.claim.is_some(), told)).ok()
        };
        let owed = || sync_states.owed(Tick(last), |_| true).len();
        // After an upgrade nothing is known of what the store has.
        assert_eq!((call(false), owed()), (Some((0, true, Brought::Newest)), 1));
        assert_eq!(call(true), None);
        let told = |stamp| Some(Claim { sequence: 0, stamp: UnixTime(stamp), count: 1 });
        sync_states.settle(
            check.key,
            (Brought::All, sync_states.known(check.key).missed),
            told(last),
        );
        assert_eq!((call(false), owed()), (Some((0, true, Brought::Newest)), 0));
        // Over another connection it claims the same.
        sync_states.owe_all(|_| true);
        assert_eq!((call(false), owed()), (Some((0, true, Brought::Newest)), 1));
        // What was admitted alone meanwhile is brought, without all the rest.
        sync_states.owe(&check, usage(&check, &[]), (UnixTime(last + 1), Tick(last)));
        (last + 1..last + 3).for_each(|at| store.record(&check, Tick(at)).unwrap());
        assert_eq!(call(false), Some((2, true, Brought::Alone)));
        let missed = sync_states.known(check.key).missed;
        (last + 3..last + 5_000).for_each(|at| store.record(&check, Tick(at)).unwrap());
        assert_eq!(call(false), None, "more than one call brings");
        sync_states.owe(&check, usage(&check, &[]), (UnixTime(last + 5_000), Tick(last)));
        sync_states.settle(check.key, (Brought::All, missed), told(last + 4_999));
        assert_eq!(call(false), Some((1, true, Brought::Alone)), "a heartbeat has told the others");
    }

    #[test]
    fn what_a_share_counts_one_by_one_is_replayed_in_the_slots_that_the_store_has() {
        let quota =
            |requests| Quota::Rolling(RollingQuota { requests, window: Duration::from_secs(600) });
        let check = LimitCheck::new(Key::from_bits(7), LimitTag::from_bits(1), quota(100_000));
        let (store, at) = (MemoryStore::new(16), Tick(1_795_000_000_000_000));
        let told = || {
            let told = replayed(&store, &check, UnixTime(0));
            told.iter().map(|one| (one.stamp.0 - at.0, one.count)).collect::<Vec<_>>()
        };
        store.record(&LimitCheck { cost: 30_000, ..check }, at).unwrap();
        let [(end, 30_000)] = told()[..] else { panic!("{:?}", told()) };
        let share = LimitCheck { quota: quota(50_000), ..check };
        for later in [at, at.plus(Duration::from_secs(1))] {
            assert!(store.judge(&[share], later).unwrap().is_admitted());
        }
        let [(same, 30_001), (next, 1)] = told()[..] else { panic!("{:?}", told()) };
        assert!(same == end && next > end);
        store.record(&check, at.plus(Duration::from_secs(1))).unwrap();
        assert_eq!(told(), [(end, 30_001), (next, 2)]);
    }
}
