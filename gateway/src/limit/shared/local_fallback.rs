//! Decides without the store: by this gateway's share of each allowance, and by what it was given
//! itself.
//!
//! # Invariants
//!
//! 1. An admission leaves a window of at most [`EXACT_MAX`] requests here no earlier than by the
//!    store's clock, however late the reply was that showed it.
//! 2. What a call under way may still be given counts as admitted.
//! 3. What is admitted alone before the first reply counts for its window after that at the most,
//!    also where this machine's clock was ahead of the store's.
//! 4. A window's stamps have its own unit, and nothing else is charged later than the store's clock
//!    can be: no limit counts otherwise because of those beside it.
//!
//! # Not here
//!
//! When the store counts as away (`shared::servers::availability`).

use std::sync::Arc;

use arrayvec::ArrayVec;
use weir_common::limit::decision::{Decision, Usage};
use weir_common::limit::quota::Quota;
use weir_common::limit::rolling::{EXACT_MAX, RollingQuota};
use weir_common::limit::state::State;
use weir_common::time::{Moment, Tick, UnixTime};

use super::super::memory::{MemoryStore, Moved};
use super::super::{CHECKS_MAX, CheckResult, LimitCheck, StoreFailure, Verdict};
use super::call::Stamping;
use super::connecting::is_on;
use super::servers::node::StoreNode;
use super::servers::nodes::NodeSet;
use super::servers::store_time::{STEP, StoreTime};
use super::share::FleetPosition;
use super::{Checks, SharedStore, Undecided, is_in_flight, local};

/// When a client whose gateway has no share should come back, in microseconds: the store may be
/// back then.
const RETRY_AFTER: u64 = 1_000_000;

/// How many gateways can have stamps of their own.
const STAMP_CLASSES: u64 = 1_024;

impl SharedStore {
    /// Decides by shares; an error where an enforced limit refuses instead. Where another process
    /// has the counters, that decides.
    pub(super) fn alone(
        &self,
        store: &MemoryStore,
        time: &StoreTime,
        checks: &[LimitCheck],
        charge: bool,
    ) -> Result<Verdict, Undecided> {
        let refuses = |check: &LimitCheck| {
            check.enforced && check.on_failure == StoreFailure::Refuse && !is_in_flight(check)
        };
        if checks.iter().any(refuses) {
            return Err(match store.have_moved(checks) {
                true => Undecided::Moved,
                false => Undecided::Away,
            });
        }
        self.by_share(store, time, checks, charge).map_err(|Moved| Undecided::Moved)
    }

    /// When a check is decided. Of a window that is a time from `now` on which no other gateway
    /// gives to what it admits alone: a stamp names its admission in the store, so two gateways
    /// must not give the same.
    fn own_stamp(&self, check: &LimitCheck, now: Tick) -> Tick {
        let Quota::Rolling(quota) = check.quota else { return now };
        let unit = Stamping::of(quota, check.horizon.window).unit;
        let (step, own) = (unit * STAMP_CLASSES, unit * (self.id_bits % STAMP_CLASSES));
        let at = now.0 - now.0 % step + own;
        Tick(if at < now.0 { at + step } else { at })
    }

    /// Corrects what this gateway has admitted alone by its machine's clock, where the first reply
    /// of a server shows that it was ahead: what is after the server's latest time counts as of
    /// then.
    pub(super) fn bring_back(
        &self,
        known: &NodeSet,
        node: &Arc<StoreNode>,
        store: &MemoryStore,
        [guessed, now]: [Tick; 2],
    ) {
        let [_, latest] = node.time.range(now);
        if guessed.since(latest) <= STEP {
            return;
        }
        for owed in self.sync_states.owed(latest, |check| is_on(known, node, check.slot)) {
            let at = self.own_stamp(&owed.check, latest);
            // Where another process has the counters, it corrects them.
            let _ = store.bring_back(owed.check.key, at);
        }
    }

    /// The check of a share of which calls under way may still be given their costs.
    fn with_under_way(&self, check: &LimitCheck) -> LimitCheck {
        let others = self.under_way.cost(check.key);
        LimitCheck { cost: check.cost.saturating_add(others), ..*check }
    }

    /// Decides by this gateway's shares, at the latest time that the keys' server can have.
    pub(super) fn by_share(
        &self,
        store: &MemoryStore,
        time: &StoreTime,
        checks: &[LimitCheck],
        charge: bool,
    ) -> Result<Verdict, Moved> {
        let [earliest, now] = time.range(self.clock.now().tick);
        let place = self.place();
        let shares: Checks = checks.iter().filter_map(|check| share(check, place, now)).collect();
        let stamps: ArrayVec<Tick, CHECKS_MAX> =
            shares.iter().map(|share| self.own_stamp(share, now)).collect();
        let stamped = shares.iter().zip(&stamps);
        // Nothing leaves a window before the store's clock has certainly reached its end.
        let lasting = stamped.map(|(share, at)| lasting(store, share, [earliest, *at]));
        let lasting: Checks = lasting.collect();
        let with_others: Checks = lasting.iter().map(|check| self.with_under_way(check)).collect();
        let has_none = |check: &LimitCheck| {
            check.enforced && is_shared_out(check) && share(check, place, now).is_none()
        };
        let lacks = checks.iter().any(has_none);
        let mut verdict = store.decide(&with_others, now, false)?;
        if charge && !lacks && verdict.is_admitted() {
            verdict = store.decide_at(&lasting, stamps.clone(), true)?;
            let charged = verdict.answers().zip(shares.iter().zip(stamps));
            let admits = |answer: &CheckResult| answer.decision == Decision::Admit;
            for (answer, (share, at)) in charged.filter(|(answer, _)| admits(answer)) {
                let owed = owed_check(checks, share);
                match is_in_flight(share) {
                    true => self.slots.note(store, share, now),
                    false => self.sync_states.owe(owed, answer.usage, (UnixTime(at.0), now)),
                }
            }
        }
        let mut found = verdict.answers().zip(&shares).peekable();
        let answers = checks.iter().map(|check| {
            let answer = match found.next_if(|(_, share)| share.key == check.key) {
                Some((answer, _)) => of_whole(check, answer, now),
                None if has_none(check) => {
                    let retry_at = retry_at(now);
                    let limit = check.quota.limit();
                    let usage = Usage { limit, remaining: 0, full_at: retry_at };
                    CheckResult { decision: Decision::Refuse { retry_at }, usage }
                }
                None => self.unasked(check, now),
            };
            local(time, answer)
        });
        Ok(Verdict::new(answers.collect(), verdict.is_admitted() && !lacks))
    }
}

/// When the store may be back.
fn retry_at(now: Tick) -> Tick {
    Tick(now.0 + RETRY_AFTER)
}

/// The answer for a share as one for the whole allowance. A cost above the share, or above what
/// calls under way leave of it, is refused for now: the store may admit it.
fn of_whole(check: &LimitCheck, of_share: &CheckResult, now: Tick) -> CheckResult {
    let limit = check.quota.limit();
    let decision = match of_share.decision {
        Decision::TooLarge if check.cost <= limit => Decision::Refuse { retry_at: retry_at(now) },
        other => other,
    };
    CheckResult { decision, usage: Usage { limit, ..of_share.usage } }
}

/// Whether this gateway decides a check by its share.
fn is_shared_out(check: &LimitCheck) -> bool {
    is_in_flight(check) || check.on_failure == StoreFailure::LocalShare
}

/// The check of a gateway's share of an allowance; none where it gets nothing, or does not check.
fn share(check: &LimitCheck, place: FleetPosition, now: Tick) -> Option<LimitCheck> {
    let moment = Moment { tick: now, unix: UnixTime(now.0) };
    let quota = place.share(check.quota.at(moment)).filter(|_| is_shared_out(check))?;
    Some(LimitCheck { quota, lasting: quota, ..*check })
}

/// The check by which the store is told what a share has admitted: of a window the limit's, whose
/// stamps the store has. What a share has spent of a bucket is in units of the share's rate.
fn owed_check<'c>(checks: &'c [LimitCheck], share: &'c LimitCheck) -> &'c LimitCheck {
    let mut windows = checks.iter().filter(|check| matches!(check.quota, Quota::Rolling(_)));
    windows.find(|check| check.key == share.key).unwrap_or(share)
}

/// The check of a share at a time from the second of these on, while the store's clock may be as
/// early as the first: its window is longer by what lies between them.
fn lasting(store: &MemoryStore, share: &LimitCheck, [earliest, now]: [Tick; 2]) -> LimitCheck {
    let newest = store.look(share.key, |state| match state {
        State::Log(log) => log.newest(),
        _ => Tick(0),
    });
    let now = now.max(newest.unwrap_or_default());
    match share.quota {
        // The slots of larger ones would be others.
        Quota::Rolling(own) if own.requests <= EXACT_MAX => {
            let quota = RollingQuota { window: own.window + now.since(earliest), ..own };
            LimitCheck { quota: Quota::Rolling(quota), ..*share }
        }
        _ => *share,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;
    use std::time::Duration;

    use weir_common::limit::token_bucket::{BucketQuota, Rate};
    use weir_common::time::Clock;

    use super::super::super::key::{Key, LimitTag, Seed};
    use super::super::super::limiter::Limiter;
    use super::super::super::snapshot;
    use super::super::SharedConfig;
    use super::super::servers::address::{ServerAddress, StoreAddress, StoreLogin, Topology};
    use super::super::servers::login::Tcp;
    use super::*;

    const START: u64 = 1_795_000_000_000_000;

    /// A gateway alone, whose store replied last after so many milliseconds: that took as long.
    fn alone(clock: &Clock, took: u64) -> (SharedStore, StoreTime) {
        let login = StoreLogin::default();
        let config = SharedConfig {
            address: StoreAddress {
                topology: Topology::Single,
                servers: vec![ServerAddress { host: "store".to_owned(), port: 1 }],
                login,
                sentinel_password_file: None,
                acknowledge: 0,
            },
            timeout: Duration::from_millis(20),
            gateways_min: 1,
            fingerprint: "f".to_owned(),
            id: "0".to_owned(),
        };
        let time = StoreTime::new(clock.now());
        let answered = clock.now().tick;
        time.learn(UnixTime(START), (Tick(answered.0 - 1_000 * took), answered));
        (SharedStore::new(config, clock.clone(), Arc::<Tcp>::default()), time)
    }

    #[test]
    fn a_snapshot_has_what_the_store_may_still_count() {
        let clock = Clock::manual(UnixTime(START));
        clock.advance(Duration::from_secs(10));
        let (shared, _) = alone(&clock, 0);
        let answered = clock.now().tick;
        let late = (Tick(answered.0 - 200_000), answered);
        shared.time.learn(UnixTime(START), late);
        shared.nodes.known().nodes.iter().for_each(|node| {
            node.time.learn(UnixTime(START), late);
        });
        let mut limiter = Limiter::new(clock.clone(), 16);
        limiter.shared = Some(Arc::new(shared));
        let quota = RollingQuota { requests: 2, window: Duration::from_millis(600) };
        let quota = Quota::Rolling(quota);
        let check = LimitCheck::new(Key::from_bits(7), LimitTag::from_bits(1), quota);
        limiter.store.record(&check, Tick(START)).unwrap();
        let kept = || {
            let now = limiter.earliest(clock.now());
            let kept = (&limiter.store, limiter.synced());
            let bytes = snapshot::write(kept, Seed::new([0; 16]), b"", now);
            snapshot::read(&bytes, now).unwrap().restore(&MemoryStore::new(16))
        };
        clock.advance(Duration::from_millis(450));
        assert_eq!(kept(), 1, "the latest time is past the window, the earliest is not");
        clock.advance(Duration::from_millis(150));
        assert_eq!(kept(), 0);
    }

    #[tokio::test]
    async fn another_process_decides_that_has_taken_the_counters_over_meanwhile() {
        let clock = Clock::manual(UnixTime(START));
        let (shared, _) = alone(&clock, 0);
        let store = MemoryStore::new(16);
        let window = Duration::from_secs(60);
        let quota = Quota::Rolling(RollingQuota { requests: 4, window });
        let check = LimitCheck::new(Key::from_bits(7), LimitTag::from_bits(1), quota);
        let refusing = LimitCheck { on_failure: StoreFailure::Refuse, ..check };
        let decided = async |check| {
            let found = shared.check(&store, &[check], true).await;
            found.map(|verdict| verdict.is_admitted())
        };
        assert_eq!(decided(check).await, Ok(true));
        assert_eq!(decided(refusing).await, Err(Undecided::Away));
        let _closed: Vec<_> = (0..store.shards()).map(|nth| store.close(nth)).collect();
        for check in [check, refusing] {
            assert_eq!(decided(check).await, Err(Undecided::Moved));
        }
    }

    #[test]
    fn what_is_under_way_counts_as_admitted() {
        let clock = Clock::manual(UnixTime(START));
        let (shared, time) = alone(&clock, 0);
        let store = MemoryStore::new(16);
        let quota = RollingQuota { requests: 4, window: Duration::from_secs(60) };
        let quota = Quota::Rolling(quota);
        let check = LimitCheck::new(Key::from_bits(7), LimitTag::from_bits(1), quota);
        let decide = || {
            let verdict = shared.by_share(&store, &time, &[check], true).unwrap();
            verdict.answers().next().unwrap().decision
        };
        let under_way = shared.under_way.begin(&[check, check]);
        assert_eq!([decide(), decide()], [Decision::Admit; 2]);
        assert!(matches!(decide(), Decision::Refuse { .. }));
        let more = shared.under_way.begin(&[LimitCheck { cost: 9, ..check }]);
        assert!(matches!(decide(), Decision::Refuse { .. }), "it is not too large");
        drop((under_way, more));
        assert_eq!(decide(), Decision::Admit);
    }

    #[test]
    fn a_request_that_costs_more_than_a_share_may_come_again() {
        let clock = Clock::manual(UnixTime(START));
        let (shared, time) = alone(&clock, 0);
        shared.place.store(FleetPosition { nth: 1, of: 2 }.packed(), Ordering::Relaxed);
        let window = Duration::from_secs(60);
        let quota = Quota::Rolling(RollingQuota { requests: 100, window });
        let check = LimitCheck::new(Key::from_bits(7), LimitTag::from_bits(1), quota);
        let decided = |cost| {
            let check = LimitCheck { cost, ..check };
            let verdict = shared.by_share(&MemoryStore::new(16), &time, &[check], true).unwrap();
            verdict.answers().next().unwrap().decision
        };
        assert_eq!(decided(50), Decision::Admit);
        for cost in [51, 100] {
            assert!(matches!(decided(cost), Decision::Refuse { .. }), "{cost}");
        }
        assert_eq!(decided(101), Decision::TooLarge);
    }

    /// When a gateway alone admits a request of these limits, if one comes each millisecond from
    /// each of ten moments on.
    fn admitted_alone(quotas: &[Quota], millis: u64) -> Vec<Vec<u64>> {
        let begun = |nth: u64| {
            let clock = Clock::manual(UnixTime(START));
            let (shared, time) = alone(&clock, 0);
            let store = MemoryStore::new(16);
            clock.advance(Duration::from_millis(430 * nth));
            let check = |(nth, quota): (u128, &Quota)| {
                LimitCheck::new(Key::from_bits(nth << 96 | nth), LimitTag::from_bits(nth), *quota)
            };
            let checks: Vec<LimitCheck> = (7..).zip(quotas).map(check).collect();
            let admits = |_: &u64| {
                clock.advance(Duration::from_millis(1));
                let verdict = shared.by_share(&store, &time, &checks, true);
                verdict.unwrap().is_admitted()
            };
            (0..millis).filter(admits).collect()
        };
        (0..10).map(begun).collect()
    }

    #[test]
    fn a_window_of_a_month_changes_nothing_of_the_limits_beside_it() {
        let rolling = |requests, seconds| {
            let window = Duration::from_secs(seconds);
            Quota::Rolling(RollingQuota { requests, window })
        };
        let month = rolling(50_000, 31 * 86_400);
        let rate = Rate::per_second(50);
        for other in [Quota::Bucket(BucketQuota { rate, burst: 200 }), rolling(50, 1)] {
            let beside = admitted_alone(&[other, month], 5_000);
            assert_eq!(beside, admitted_alone(&[other], 5_000), "{other:?}");
        }
    }

    #[test]
    fn a_window_is_owed_by_its_limit_and_not_by_a_share() {
        let clock = Clock::manual(UnixTime(START));
        let (shared, time) = alone(&clock, 0);
        shared.place.store(FleetPosition { nth: 1, of: 2 }.packed(), Ordering::Relaxed);
        let window = Duration::from_secs(600);
        let quota = Quota::Rolling(RollingQuota { requests: 100_000, window });
        let check = LimitCheck::new(Key::from_bits(7), LimitTag::from_bits(1), quota);
        let verdict = shared.by_share(&MemoryStore::new(16), &time, &[check], true);
        assert!(verdict.unwrap().is_admitted());
        let owed = shared.sync_states.owed(Tick(START), |_| true);
        assert_eq!(owed.into_iter().map(|owed| owed.check).collect::<Vec<_>>(), [check]);
    }

    #[test]
    fn an_admission_counts_until_the_store_has_certainly_reached_the_end_of_its_window() {
        let clock = Clock::manual(UnixTime(START));
        clock.advance(Duration::from_secs(10));
        let (shared, time) = alone(&clock, 200);
        let store = MemoryStore::new(16);
        let window = Duration::from_millis(600);
        let quota = Quota::Rolling(RollingQuota { requests: 2, window });
        let check = LimitCheck::new(Key::from_bits(7), LimitTag::from_bits(1), quota);
        let admits = || {
            let verdict = shared.by_share(&store, &time, &[check], true);
            verdict.unwrap().is_admitted()
        };
        store.record(&check, Tick(START)).unwrap();
        clock.advance(Duration::from_millis(450));
        assert_eq!([admits(), admits()], [true, false], "the latest time is past the window");
        clock.advance(Duration::from_millis(149));
        assert!(!admits());
        // A stamp of its own is at most a millisecond later.
        clock.advance(Duration::from_millis(3));
        assert_eq!([admits(), admits()], [true, false], "the first has left it");
    }
}
