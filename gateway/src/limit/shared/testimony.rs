//! Tells the store what this gateway was given, where the store may have lost or missed it.
//!
//! # Invariants
//!
//! 1. A key counts as told only once a call in time has brought all that the gateway knew of it.
//! 2. A key that the store cannot read keeps no other from being told.
//! 3. An admission that the store has is told with the stamp that it has there, so that it counts
//!    once, also after this gateway has counted by its share.
//!
//! # Not here
//!
//! When a key is owed (`shared::standing`), the form of calls (`shared::call`).

use std::sync::atomic::Ordering;
use std::time::Duration;

use log::Level;
use serde_json::json;
use weir_common::limit::rolling::EXACT_MAX;
use weir_common::limit::slots;
use weir_common::limit::state::State;
use weir_common::log::events;
use weir_common::time::{Tick, UnixTime, micros};

use super::super::memory::Store;
use super::super::{CHECKS_MAX, LimitCheck, Quota};
use super::call::{CallMode, SharedCheck, TESTIMONY_MAX, Testimony};
use super::connecting::is_on;
use super::remote::{Over, RemoteError, shared};
use super::reply::SharedOutcome;
use super::servers::errors::CallError;
use super::servers::nodes::NodeSet;
use super::{SharedStore, is_in_flight};

/// How long a heartbeat tells the store what it may have missed; the next one goes on.
const TESTIFY_MAX: Duration = Duration::from_secs(1);

/// How often a key that the store cannot read is logged.
const FAULTS_EVERY: Duration = Duration::from_secs(60);

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

    /// Tells the store what this gateway has admitted alone.
    pub(super) async fn testify(
        &self,
        (known, over): (&NodeSet, Over<'_>),
        store: &Store,
    ) -> Result<(), RemoteError> {
        let started_at = self.clock.now().tick;
        let [_, now] = over.node.time.range(started_at);
        let owed = self.standings.owed(now, |check| is_on(known, over.node, check.slot));
        // The keys of one call have one slot.
        let each = if self.nodes.is_cluster() { 1 } else { CHECKS_MAX };
        for owed in owed.chunks(each) {
            match self.testify_some(over, store, owed).await {
                Ok(()) => {}
                // The next heartbeat repeats it.
                Err(RemoteError::Late) => return Ok(()),
                Err(RemoteError::Call(CallError::Moving)) => {}
                // It cannot read one of them.
                Err(RemoteError::Call(CallError::Faulty(_))) => {
                    for one in owed {
                        let told = self.testify_some(over, store, &[*one]).await;
                        if let Err(RemoteError::Call(CallError::Faulty(why))) = &told {
                            self.report_fault(why);
                            self.standings.settle(one.0.key, one.1);
                        } else {
                            told?;
                        }
                    }
                }
                Err(error) => return Err(error),
            }
            if self.clock.now().tick.since(started_at) > TESTIFY_MAX {
                break;
            }
        }
        Ok(())
    }

    /// Tells the store of a few keys with one call, and of more pieces before it.
    async fn testify_some(
        &self,
        over: Over<'_>,
        store: &Store,
        owed: &[(LimitCheck, u32)],
    ) -> Result<(), RemoteError> {
        let mut calls = Vec::with_capacity(CHECKS_MAX);
        for (check, _) in owed.iter().filter(|(check, _)| !is_in_flight(check)) {
            calls.push(self.testify_pieces(over, store, check).await?);
        }
        self.send_testimony(over, &calls).await?;
        owed.iter().for_each(|(check, owed)| self.standings.settle(check.key, *owed));
        Ok(())
    }

    async fn send_testimony(
        &self,
        over: Over<'_>,
        calls: &[SharedCheck],
    ) -> Result<(), RemoteError> {
        let (reply, _) = self.call(over, calls, CallMode::Preview).await?;
        // A late call has told the store nothing.
        if reply.outcome == SharedOutcome::Late { Err(RemoteError::Late) } else { Ok(()) }
    }

    /// Logs that the store cannot read a key, once in a while: a reset of the key mends it.
    pub(super) fn report_fault(&self, why: &str) {
        let now = self.clock.now().tick;
        let last = self.fault_reported.load(Ordering::Relaxed);
        if last > 0 && now.since(Tick(last)) < FAULTS_EVERY {
            return;
        }
        self.fault_reported.store(now.0.max(1), Ordering::Relaxed);
        let fields = [("error", json!(why))];
        events::event(Level::Error, "shared store cannot read a key", &fields);
    }

    /// Sends all pieces of a testimony but the last, which the returned check has.
    pub(super) async fn testify_pieces(
        &self,
        over: Over<'_>,
        store: &Store,
        check: &LimitCheck,
    ) -> Result<SharedCheck, RemoteError> {
        let mut call = shared(store, check, None);
        let testimony = testimony(store, check);
        let (pieces, last) = testimony.as_chunks::<TESTIMONY_MAX>();
        for piece in pieces {
            call.testimony = piece.to_vec();
            self.send_testimony(over, std::slice::from_ref(&call)).await?;
        }
        call.testimony = last.to_vec();
        Ok(call)
    }
}

/// All that this gateway was given of a window that can still count, oldest first.
fn testimony(store: &Store, check: &LimitCheck) -> Vec<Testimony> {
    let Quota::Rolling(quota) = check.quota else { return Vec::new() };
    // The store has the ends of slots, where a share may have counted one by one.
    let slot = (quota.requests > EXACT_MAX).then(|| micros(slots::grain(quota.window)));
    let stamp = |at: Tick| slot.map_or(at.0, |slot| (at.0 / slot + 1) * slot);
    let given = store.look(check.key, |state| {
        let mut given: Vec<Testimony> = Vec::new();
        let mut put = |stamp: u64, count: u32| match given.last_mut() {
            Some(last) if last.stamp.0 == stamp => last.count += count,
            _ => given.push(Testimony { stamp: UnixTime(stamp), count }),
        };
        match state {
            State::Log(log) => log.times().for_each(|at| put(stamp(at), 1)),
            State::Slots(slots) => slots.counts().for_each(|(at, count)| put(at.0 + 1, count)),
            State::Bucket(_) | State::Count(_) | State::InFlight(_) => {}
        }
        given
    });
    let oldest = |given: &Testimony, newest: u64| given.stamp.0 + check.horizon.window > newest;
    let mut given = given.unwrap_or_default();
    let newest = given.last().map_or(0, |last| last.stamp.0);
    given.retain(|one| oldest(one, newest));
    given
}

#[cfg(test)]
mod tests {
    use weir_common::limit::rolling::RollingQuota;

    use super::super::super::key::{Key, LimitTag};
    use super::*;

    #[test]
    fn what_a_share_counts_one_by_one_is_testified_in_the_slots_that_the_store_has() {
        let quota =
            |requests| Quota::Rolling(RollingQuota { requests, window: Duration::from_secs(600) });
        let check = LimitCheck::new(Key::from_bits(7), LimitTag::from_bits(1), quota(100_000));
        let (store, at) = (Store::new(16), Tick(1_795_000_000_000_000));
        let told = || {
            let told = testimony(&store, &check);
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
