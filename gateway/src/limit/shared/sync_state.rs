//! What a gateway knows of keys in the shared store: its newest admission there, and refusals that
//! still hold.
//!
//! # Invariants
//!
//! 1. A remembered refusal never refuses a request that the store would admit: it holds for the
//!    same quota and at least the same cost, until the earliest time at which the store can have
//!    reached its end.
//! 2. A key may be forgotten at any time: a call without a claim brings what the gateway admitted
//!    instead.
//! 3. Where the gateway has admitted something alone, each call brings that to the store, until one
//!    has done so in time.
//! 4. What the store may have lost stays owed until a heartbeat, or a call that brings all, has
//!    told it. Calls claim the newest admission meanwhile: a store that lacks it says so.
//!
//! # Not here
//!
//! What the gateway was given itself (`limit::memory`), the calls (`shared::call`).

use std::cmp;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use weir_common::limit::decision::{Decision, Usage};
use weir_common::time::{Tick, UnixTime};

use super::super::key::{Key, KeyMap};
use super::super::{CheckResult, LimitCheck, Quota};
use super::sharded::Sharded;

/// An admission of this gateway that the store has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Claim {
    /// Its number in its key.
    pub sequence: u64,
    /// When it was charged.
    pub stamp: UnixTime,
    /// What was charged.
    pub count: u32,
}

/// Entries of one shard from which on those that no longer matter are dropped.
const SWEEP_FROM: usize = 64;

/// What is known of each key. Times are the store's.
#[derive(Debug, Default)]
pub struct SyncStates {
    shards: Sharded<Mutex<Shard>>,
    /// How often all refusals were forgotten.
    forgotten: AtomicU64,
}

#[derive(Debug, Default)]
struct Shard {
    by_key: KeyMap<SyncState>,
    /// Entries at which the next sweep is due.
    sweep_at: usize,
}

/// What is known of one key.
#[derive(Clone, Debug)]
struct SyncState {
    /// The newest admission of this gateway that the store has, and the connection over which it
    /// was charged; 0 where the store was told it.
    claim: Option<(Claim, u64)>,
    /// What the store may lack, and how much of that it was told.
    missed: Missed,
    told: Missed,
    /// The stamp from which on the store was not told what was admitted alone.
    alone_from: UnixTime,
    /// The stamp up to which heartbeats have told what the store may have lost.
    told_to: UnixTime,
    /// No heartbeat tells it before this time: the store could not read the key.
    tell_at: Tick,
    /// The last check of the key.
    check: Box<LimitCheck>,
    usage: Usage,
    refusal: Option<Refusal>,
}

/// How often the store may have come to lack something of a key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Missed {
    /// How often the gateway has admitted something alone.
    alone: u32,
    /// How often the store may have lost all.
    lost: u32,
}

/// What a call can say of a key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Known {
    /// The newest admission of this gateway that the store has, as far as the gateway knows.
    pub claim: Option<Claim>,
    /// The stamp from which on the store was not told what was admitted alone; none where it was.
    pub alone_from: Option<UnixTime>,
    /// What a call that is sent now may tell.
    pub missed: Missed,
}

/// A key that the store counts, as a later process of this gateway must know it to tell the store
/// of it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SyncedKey {
    /// The last check of the key.
    pub check: LimitCheck,
    /// What was used by then; its time is the store's.
    pub usage: Usage,
}

/// What a later process of this gateway must know to tell the store of keys.
#[derive(Debug, Default)]
pub struct SyncedKeys<K = Vec<SyncedKey>> {
    /// The number of the newest reset of other gateways that was applied to them.
    pub resets: u64,
    /// The keys.
    pub keys: K,
}

/// A key that the store must be told of.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Owed {
    /// The last check of the key.
    pub check: LimitCheck,
    /// What the store may lack.
    pub missed: Missed,
    /// The stamp from which on it must be told: earlier heartbeats have told what is before it.
    pub from: UnixTime,
}

/// What a call has told the store of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Brought {
    /// Which admission is the newest: nothing new.
    Newest,
    /// What was admitted alone.
    Alone,
    /// All that the gateway was given.
    All,
}

/// A refusal that holds until its end.
#[derive(Clone, Debug)]
struct Refusal {
    quota: Quota,
    cost: u32,
    retry_at: Tick,
    /// It is not remembered for longer: tokens of a lease may come back before `retry_at`.
    until: Tick,
}

/// What a call has taught beside its result.
#[derive(Clone, Copy, Debug)]
pub struct Learned {
    /// What the store has charged, and over which connection.
    pub claim: Option<(Claim, u64)>,
    /// The store's time.
    pub now: Tick,
    /// When a refusal may end before its time.
    pub until: Option<Tick>,
    /// What [`SyncStates::forgotten`] was before the call was sent.
    pub forgotten: u64,
}

impl Shard {
    /// Drops entries that no longer matter at `now`, each time that their number has doubled.
    fn make_room(&mut self, now: Tick) {
        if self.by_key.len() >= self.sweep_at.max(SWEEP_FROM) {
            self.by_key.retain(|_, sync_state| now < sync_state.usage.full_at);
            self.sweep_at = 2 * self.by_key.len();
        }
    }
}

impl SyncState {
    fn of(check: &LimitCheck, usage: Usage) -> Self {
        let (missed, told) = (Missed::default(), Missed::default());
        let (check, tell_at) = (Box::new(*check), Tick(0));
        let (alone_from, told_to) = (UnixTime(0), UnixTime(0));
        let (claim, refusal) = (None, None);
        Self { claim, missed, told, alone_from, told_to, tell_at, check, usage, refusal }
    }

    fn lose(&mut self) {
        self.told_to = UnixTime(0);
        self.missed.lost = self.missed.lost.wrapping_add(1);
    }
}

impl SyncStates {
    /// The refusal of a check that holds at `latest`, the latest time that the store can have.
    #[must_use]
    pub fn refusal(&self, check: &LimitCheck, latest: Tick) -> Option<CheckResult> {
        let shard = self.shards.lock(check.key);
        let sync_state = shard.by_key.get(&check.key)?;
        let refusal = sync_state.refusal.as_ref()?;
        let holds = is_same(&refusal.quota, &check.quota)
            && check.cost >= refusal.cost
            && latest < refusal.until;
        let decision = Decision::Refuse { retry_at: refusal.retry_at };
        holds.then_some(CheckResult { decision, usage: sync_state.usage })
    }

    /// The usage of a key when the store last reported it, unless all of it is back at `now`.
    #[must_use]
    pub fn usage(&self, check: &LimitCheck, now: Tick) -> Option<Usage> {
        let shard = self.shards.lock(check.key);
        let sync_state = shard.by_key.get(&check.key)?;
        let limit = check.quota.limit();
        let holds = sync_state.usage.limit == limit && now < sync_state.usage.full_at;
        holds.then_some(sync_state.usage)
    }

    /// What a call says of a key.
    #[must_use]
    pub fn known(&self, key: Key) -> Known {
        let shard = self.shards.lock(key);
        let Some(own) = shard.by_key.get(&key) else { return Known::default() };
        let is_owed = own.missed.alone != own.told.alone;
        Known {
            claim: own.claim.map(|(claim, _)| claim),
            alone_from: is_owed.then_some(own.alone_from),
            missed: own.missed,
        }
    }

    /// Records that the gateway has admitted a request of a check's key alone, at this stamp or
    /// later.
    pub fn owe(&self, check: &LimitCheck, usage: Usage, (stamp, now): (UnixTime, Tick)) {
        let mut shard = self.shards.lock(check.key);
        shard.make_room(now);
        let own = shard.by_key.entry(check.key).or_insert_with(|| SyncState::of(check, usage));
        let is_first = own.missed.alone == own.told.alone;
        own.alone_from = if is_first { stamp } else { own.alone_from.min(stamp) };
        own.told_to = own.told_to.min(stamp);
        own.missed.alone = own.missed.alone.wrapping_add(1);
        (own.usage, *own.check) = (usage, *check);
    }

    /// Records that the store may have lost all that it knew of some checks' keys.
    pub fn owe_all(&self, is_lost: impl Fn(&LimitCheck) -> bool) {
        for mut shard in self.shards.locked() {
            let lost = shard.by_key.values_mut().filter(|sync_state| is_lost(&sync_state.check));
            lost.for_each(SyncState::lose);
        }
    }

    /// Records that the store lacks what this gateway was given of a check's key, or may lack it:
    /// the next heartbeat tells all, if that is not owed already.
    pub fn lack(&self, check: &LimitCheck, usage: Usage) {
        let mut shard = self.shards.lock(check.key);
        let own = shard.by_key.entry(check.key).or_insert_with(|| SyncState::of(check, usage));
        (own.usage, *own.check) = (usage, *check);
        if own.missed.lost == own.told.lost {
            own.lose();
        }
    }

    /// The keys whose usage has not ended before `now`, those of one part after another.
    pub fn synced(&self, now: Tick) -> impl Iterator<Item = SyncedKey> {
        self.shards.locked().flat_map(move |shard| {
            let matter = shard.by_key.values().filter(|own| now < own.usage.full_at);
            let synced = matter.map(|own| SyncedKey { check: *own.check, usage: own.usage });
            synced.collect::<Vec<_>>()
        })
    }

    /// The keys that a server must be told of; those whose usage ended before `now` matter no more.
    #[must_use]
    pub fn owed(&self, now: Tick, is_there: impl Fn(&LimitCheck) -> bool) -> Vec<Owed> {
        let mut all = Vec::new();
        for shard in self.shards.locked() {
            let matters = |own: &&SyncState| {
                let matters = now < own.usage.full_at && now >= own.tell_at;
                own.missed != own.told && matters && is_there(&own.check)
            };
            let owed = shard.by_key.values().filter(matters);
            let owed =
                owed.map(|own| Owed { check: *own.check, missed: own.missed, from: own.told_to });
            all.extend(owed);
        }
        all
    }

    /// Records that a heartbeat has told the store what was owed of a key up to a stamp. Where the
    /// store may have lost it meanwhile, it does not count.
    pub fn record_progress(&self, owed: &Owed, stamp: UnixTime) {
        let mut shard = self.shards.lock(owed.check.key);
        let own = shard.by_key.get_mut(&owed.check.key);
        if let Some(own) = own.filter(|own| own.missed.lost == owed.missed.lost) {
            own.told_to = stamp;
        }
    }

    /// Lets heartbeats tell a key no more before a time. It stays owed.
    pub fn postpone(&self, key: Key, tell_at: Tick) {
        if let Some(own) = self.shards.lock(key).by_key.get_mut(&key) {
            own.tell_at = tell_at;
        }
    }

    /// Records what the store was told of a key, as the gateway knew it when the store might lack
    /// `missed`; `newest` is the newest admission of that. Where the store may have lost it
    /// meanwhile, it does not count.
    pub fn settle(&self, key: Key, (told, missed): (Brought, Missed), newest: Option<Claim>) {
        let mut shard = self.shards.lock(key);
        let Some(own) = shard.by_key.get_mut(&key) else { return };
        if told == Brought::Newest || own.missed.lost != missed.lost {
            return;
        }
        own.told.alone = missed.alone;
        if told == Brought::All {
            (own.told.lost, own.told_to) = (missed.lost, UnixTime(0));
        }
        // What was admitted alone meanwhile has this stamp or a later one.
        if let Some(newest) = newest {
            own.alone_from = newest.stamp;
            let is_newer = own.claim.is_none_or(|(claim, _)| claim.stamp < newest.stamp);
            own.claim = if is_newer { Some((newest, 0)) } else { own.claim };
        }
    }

    /// Records what the store decided.
    pub fn learn(&self, check: &LimitCheck, answer: &CheckResult, learned: Learned) {
        let Learned { claim, now, until, forgotten } = learned;
        let refusal = match answer.decision {
            Decision::Refuse { retry_at } => {
                let until = until.unwrap_or(retry_at).min(retry_at);
                Some(Refusal { quota: check.quota, cost: check.cost, retry_at, until })
            }
            Decision::Admit | Decision::TooLarge => None,
        };
        let mut shard = self.shards.lock(check.key);
        shard.make_room(now);
        let known =
            shard.by_key.entry(check.key).or_insert_with(|| SyncState::of(check, answer.usage));
        (known.usage, *known.check) = (answer.usage, *check);
        // What has made all of them to be forgotten may be newer than this one.
        known.refusal = refusal.filter(|_| forgotten == self.forgotten());
        if let Some(made) = claim {
            known.claim = match known.claim {
                Some(own) => newer(own, made),
                None => Some(made),
            };
        }
    }

    /// Forgets the refusal of one key, because its allowance was reset.
    pub fn forget(&self, key: Key) {
        self.shards.lock(key).by_key.remove(&key);
    }

    /// How often all refusals were forgotten.
    #[must_use]
    pub fn forgotten(&self) -> u64 {
        self.forgotten.load(Ordering::SeqCst)
    }

    /// Forgets all refusals, those of calls under way included: resets of other gateways may have
    /// been missed, or a server may have lost what it refused by.
    pub fn forget_refusals(&self) {
        self.forgotten.fetch_add(1, Ordering::SeqCst);
        for mut shard in self.shards.locked() {
            shard.by_key.values_mut().for_each(|sync_state| sync_state.refusal = None);
        }
    }
}

/// The newer of two claims, each with the connection that it was made over: replies may arrive in
/// another order than they were given. Of two connections it is the later reply's: a key may have
/// moved to the server of the older one. None where the store counted anew between the two, as
/// after a loss: the later one says nothing of the earlier one, so the next call brings all.
fn newer(own: (Claim, u64), made: (Claim, u64)) -> Option<(Claim, u64)> {
    let ((earlier, before), (later, over)) = (own, made);
    if over != before {
        return Some(made);
    }
    let stamps = later.stamp.cmp(&earlier.stamp);
    let numbers = later.sequence.cmp(&earlier.sequence);
    (stamps == numbers).then_some(if stamps == cmp::Ordering::Less { own } else { made })
}

/// Whether two quotas decide alike. A calendar's also has the period of a decision.
pub(super) fn is_same(one: &Quota, other: &Quota) -> bool {
    match (one, other) {
        (Quota::Calendar(one), Quota::Calendar(other)) => {
            (one.requests, one.calendar) == (other.requests, other.calendar)
        }
        _ => one == other,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use weir_common::limit::rolling::RollingQuota;

    use super::super::super::key::LimitTag;
    use super::super::sharded::SHARDS;
    use super::*;

    fn check(requests: u32, cost: u32) -> LimitCheck {
        let quota = Quota::Rolling(RollingQuota { requests, window: Duration::from_secs(60) });
        let made = LimitCheck::new(Key::from_bits(7), LimitTag::from_bits(1), quota);
        LimitCheck { cost, ..made }
    }

    /// What a call over the first connection has taught.
    fn learned(claim: Option<Claim>, now: u64) -> Learned {
        let claim = claim.map(|claim| (claim, 1));
        Learned { claim, now: Tick(now), until: None, forgotten: 0 }
    }

    fn refused(sync_states: &SyncStates, requests: u32, cost: u32) {
        let usage = Usage { limit: requests, remaining: 0, full_at: Tick(200) };
        let decision = Decision::Refuse { retry_at: Tick(100) };
        let answer = CheckResult { decision, usage };
        sync_states.learn(&check(requests, cost), &answer, learned(None, 50));
    }

    #[test]
    fn a_refusal_holds_until_its_end_for_the_same_quota_and_no_smaller_cost() {
        let sync_states = SyncStates::default();
        refused(&sync_states, 60, 2);
        let holds =
            |requests, cost, at| sync_states.refusal(&check(requests, cost), Tick(at)).is_some();
        assert!(holds(60, 2, 99) && holds(60, 3, 99));
        assert!(!holds(60, 2, 100), "it has ended");
        assert!(!holds(60, 1, 99), "a smaller cost may fit");
        assert!(!holds(61, 2, 99), "a raised limit may admit it");
        sync_states.forget_refusals();
        assert!(!holds(60, 2, 99));
    }

    #[test]
    fn a_refusal_whose_call_was_sent_before_all_were_forgotten_is_not_remembered() {
        let sync_states = SyncStates::default();
        sync_states.forget_refusals();
        refused(&sync_states, 60, 1);
        assert!(sync_states.refusal(&check(60, 1), Tick(99)).is_none());
        assert!(sync_states.usage(&check(60, 1), Tick(99)).is_some());
    }

    #[test]
    fn a_refusal_that_a_returned_lease_may_end_is_remembered_no_longer_than_the_lease_lasts() {
        let sync_states = SyncStates::default();
        let usage = Usage { limit: 60, remaining: 0, full_at: Tick(900) };
        let decision = Decision::Refuse { retry_at: Tick(800) };
        for (until, lasts) in [(Some(Tick(100)), 100), (Some(Tick(850)), 800), (None, 800)] {
            let learned = Learned { until, ..learned(None, 50) };
            sync_states.learn(&check(60, 1), &CheckResult { decision, usage }, learned);
            let found = |at| sync_states.refusal(&check(60, 1), Tick(at)).map(|one| one.decision);
            assert_eq!((found(lasts - 1), found(lasts)), (Some(decision), None));
        }
    }

    fn claim(sequence: u64, stamp: u64) -> Claim {
        Claim { sequence, stamp: UnixTime(stamp), count: 1 }
    }

    #[test]
    fn what_was_admitted_alone_reaches_the_store_with_each_call_until_one_has_brought_it() {
        let (sync_states, check) = (SyncStates::default(), check(60, 1));
        let usage = Usage { limit: 60, remaining: 5, full_at: Tick(200) };
        let answer = CheckResult { decision: Decision::Admit, usage };
        let owe = |stamp| sync_states.owe(&check, usage, (UnixTime(stamp), Tick(60)));
        let known = || sync_states.known(check.key);
        let says = || (known().claim.map(|own| own.stamp.0), known().alone_from.map(|at| at.0));
        sync_states.learn(&check, &answer, learned(Some(claim(4, 54)), 60));
        assert_eq!(says(), (Some(54), None));
        owe(61);
        // The reply to a call that was sent before.
        sync_states.learn(&check, &answer, learned(Some(claim(5, 55)), 60));
        assert_eq!(says(), (Some(55), Some(61)));
        let before = known().missed;
        owe(63);
        assert_eq!(says(), (Some(55), Some(61)));
        sync_states.settle(check.key, (Brought::Alone, before), Some(claim(0, 62)));
        assert_eq!(says(), (Some(62), Some(62)), "not all was told");
        sync_states.settle(check.key, (Brought::Alone, known().missed), Some(claim(0, 63)));
        assert_eq!(says(), (Some(63), None));
        assert!(sync_states.owed(Tick(60), |_| true).is_empty());
    }

    #[test]
    fn what_the_store_may_have_lost_is_claimed_at_once_and_owed_until_all_was_replayed() {
        let (sync_states, check) = (SyncStates::default(), check(60, 1));
        let usage = Usage { limit: 60, remaining: 5, full_at: Tick(200) };
        let answer = CheckResult { decision: Decision::Admit, usage };
        sync_states.learn(&check, &answer, learned(Some(claim(4, 54)), 60));
        sync_states.owe_all(|_| true);
        let known = sync_states.known(check.key);
        assert_eq!((known.claim, known.alone_from), (Some(claim(4, 54)), None));
        let owed = |now| sync_states.owed(Tick(now), |_| true).len();
        assert_eq!([owed(199), owed(200)], [1, 0], "all of it is back");
        for told in [Brought::Newest, Brought::Alone] {
            sync_states.settle(check.key, (told, known.missed), Some(claim(4, 54)));
            assert_eq!(owed(60), 1, "{told:?}");
        }
        sync_states.postpone(check.key, Tick(70));
        assert_eq!([owed(69), owed(70)], [0, 1], "the store could not read it");
        sync_states.postpone(check.key, Tick(0));
        let from = || sync_states.owed(Tick(60), |_| true).first().map(|owed| owed.from.0);
        let partly = sync_states.owed(Tick(60), |_| true)[0];
        sync_states.record_progress(&partly, UnixTime(51));
        assert_eq!(from(), Some(51), "the next heartbeat goes on");
        sync_states.owe(&check, usage, (UnixTime(50), Tick(60)));
        assert_eq!(from(), Some(50));
        sync_states.lack(&check, usage);
        assert_eq!(from(), Some(50), "it is owed already");
        sync_states.owe_all(|_| true);
        sync_states.record_progress(&partly, UnixTime(52));
        assert_eq!(from(), Some(0), "the store may have lost it again");
        sync_states.settle(check.key, (Brought::All, known.missed), Some(claim(0, 58)));
        assert_eq!((owed(60), sync_states.known(check.key).claim), (1, Some(claim(4, 54))));
        let missed = sync_states.known(check.key).missed;
        sync_states.settle(check.key, (Brought::All, missed), Some(claim(0, 58)));
        assert_eq!((owed(60), sync_states.known(check.key).claim), (0, Some(claim(0, 58))));
    }

    #[test]
    fn the_newest_admission_is_claimed_and_none_of_a_store_that_counts_anew() {
        let check = check(60, 1);
        let usage = Usage { limit: 60, remaining: 5, full_at: Tick(200) };
        let answer = CheckResult { decision: Decision::Admit, usage };
        let claimed = |admissions: &[(u64, u64)]| {
            let sync_states = SyncStates::default();
            for (sequence, stamp) in admissions {
                let (sequence, stamp) = (*sequence, UnixTime(*stamp));
                let claim = Claim { sequence, stamp, count: 1 };
                sync_states.learn(&check, &answer, learned(Some(claim), 60));
            }
            let claim = sync_states.known(check.key).claim;
            claim.map(|claim| (claim.sequence, claim.stamp.0))
        };
        assert_eq!(claimed(&[(0, 51), (1, 52)]), Some((1, 52)));
        assert_eq!(claimed(&[(1, 52), (0, 51)]), Some((1, 52)), "replies in another order");
        assert_eq!(claimed(&[(0, 51), (0, 52)]), None, "two in one place");
        assert_eq!(claimed(&[(9, 51), (3, 52)]), None, "it counts from 0 again");
        assert_eq!(claimed(&[(3, 52), (9, 51)]), None, "in another order");
        assert_eq!(claimed(&[(9, 51), (3, 52), (4, 53)]), Some((4, 53)));
    }

    #[test]
    fn a_claim_follows_its_key_to_another_server_and_back() {
        let (sync_states, check) = (SyncStates::default(), check(60, 1));
        let usage = Usage { limit: 60, remaining: 5, full_at: Tick(200) };
        let answer = CheckResult { decision: Decision::Admit, usage };
        for (sequence, over) in (0..).zip([1, 2, 1]) {
            let claim = claim(sequence, 51 + sequence);
            let made = Learned { claim: Some((claim, over)), ..learned(None, 60) };
            sync_states.learn(&check, &answer, made);
            assert_eq!(sync_states.known(check.key).claim, Some(claim), "over {over}");
        }
    }

    #[test]
    fn an_admission_ends_a_refusal() {
        let sync_states = SyncStates::default();
        refused(&sync_states, 60, 1);
        let usage = Usage { limit: 60, remaining: 5, full_at: Tick(200) };
        let answer = CheckResult { decision: Decision::Admit, usage };
        sync_states.learn(&check(60, 1), &answer, learned(None, 60));
        assert!(sync_states.refusal(&check(60, 1), Tick(70)).is_none());
        assert_eq!(sync_states.usage(&check(60, 1), Tick(199)), Some(usage));
        assert_eq!(sync_states.usage(&check(60, 1), Tick(200)), None, "all of it is back");
    }

    #[test]
    fn keys_that_matter_no_more_are_dropped_while_the_store_is_away() {
        let sync_states = SyncStates::default();
        for nth in 0..100_000 {
            let check = LimitCheck { key: Key::from_bits(nth << 96 | nth), ..check(60, 1) };
            let now = u64::try_from(nth).unwrap();
            let usage = Usage { limit: 60, remaining: 5, full_at: Tick(now + 1) };
            sync_states.owe(&check, usage, (UnixTime(now), Tick(now)));
        }
        let kept = sync_states.shards.locked().map(|shard| shard.by_key.len());
        assert!(kept.sum::<usize>() <= SHARDS * SWEEP_FROM);
    }
}
