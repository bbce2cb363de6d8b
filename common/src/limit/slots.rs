//! Decides whether a request fits "N per window" for an N of up to ten million. (core)
//!
//! The window is divided into slots of equal length, the *grain*: a 1,024th of the window, rounded
//! up to a microsecond. Each admission counts until the window has passed since the *end* of its
//! slot. Only slots with admissions are stored, 8 bytes each, at most [`SLOTS_MAX`]: a key with
//! many requests uses as much memory as a log of 2,052 requests, and a key with few uses little.
//!
//! # Invariants
//!
//! 1. At most N requests are admitted in any interval of the window's length.
//! 2. A client is refused too early by at most one grain: when an exact log of its admissions, each
//!    moved to the end of its slot, admits a request, it is never refused.
//! 3. A refusal changes nothing.
//! 4. `retry_at` is exact: refused one tick before it, admitted at it.
//! 5. A decision takes time in the logarithm of the slots, a charge amortised constant time,
//!    whatever a request costs.
//! 6. A change of the window never counts an admission for a shorter time than the new window.
//!
//! # Not here
//!
//! Quotas of up to [`EXACT_MAX`] requests (`rolling`), storage and locks
//! of states (the gateway's `limit::memory`).

use std::collections::VecDeque;
use std::time::Duration;

use crate::limit::decision::{Decision, Usage};
use crate::limit::rolling::{EXACT_MAX, RollingQuota};
use crate::time::{Tick, micros};

/// Slots of a window: a client is refused too early by at most so small a part of it.
pub const GRAINS: u64 = 1_024;

/// The most slots of a key: those of a window, and the two that it covers in part. Beyond it, the
/// two oldest become one.
pub const SLOTS_MAX: usize = 1_026;

/// Slots for which a key has room at first.
const ROOM_MIN: usize = 4;

/// Room for so many slots, 512 bytes, is never given back.
const ROOM_KEPT: usize = 64;

/// The admissions of one key in the last window: 8 bytes, and the slots if there is an admission.
#[derive(Clone, Debug, Default)]
pub struct Slots(Option<Box<Admissions>>);

#[derive(Clone, Debug)]
struct Admissions {
    /// The length of a slot in microseconds.
    grain: u64,
    /// The number of the newest slot: its first tick divided by the grain.
    newest: u64,
    /// The count of the last slot that has left the window.
    gone: u32,
    /// Oldest first.
    slots: VecDeque<Slot>,
}

/// A slot with admissions.
#[derive(Clone, Copy, Debug)]
struct Slot {
    /// The low half of its number.
    number: u32,
    /// How many were admitted in it and in all earlier slots, without the high half.
    count: u32,
}

/// The length of a slot for `window`: a microsecond at least.
#[must_use]
pub fn grain(window: Duration) -> Duration {
    Duration::from_micros(grain_micros(micros(window)))
}

fn grain_micros(window: u64) -> u64 {
    window.div_ceil(GRAINS).max(1)
}

impl Slots {
    /// Decides whether `cost` more fit at `now`. Changes nothing.
    pub fn decide(&self, quota: RollingQuota, cost: u32, now: Tick) -> Decision {
        if cost > quota.requests {
            return Decision::TooLarge;
        }
        match &self.0 {
            Some(admissions) => admissions.decide(quota, cost, now),
            None => Decision::Admit,
        }
    }

    /// Records an admission of `cost` that [`Slots::decide`] allowed at the same `now`.
    ///
    /// A `now` before the newest slot counts as being in it.
    pub fn charge(&mut self, quota: RollingQuota, cost: u32, now: Tick) -> Usage {
        self.fit(quota, now);
        let grain = grain_micros(micros(quota.window));
        let admissions = self.0.get_or_insert_with(|| Box::new(Admissions::new(grain)));
        admissions.forget(micros(quota.window), now);
        admissions.add(now, cost);
        self.usage(quota, now)
    }

    /// The key's usage at `now`.
    #[must_use]
    pub fn usage(&self, quota: RollingQuota, now: Tick) -> Usage {
        let window = micros(quota.window);
        let (used, free_at) = self.0.as_deref().map_or((0, now), |admissions| {
            (admissions.live(window, now), admissions.end(admissions.newest).plus(quota.window))
        });
        Usage {
            limit: quota.requests,
            remaining: quota.requests.saturating_sub(used),
            full_at: if used == 0 { now } else { free_at },
        }
    }

    /// Divides the time into slots of the grain of the quota's window. Must precede a decision
    /// under a quota whose window has changed. An admission then counts from the last tick at which
    /// it can have been, and no later than `now`.
    pub fn fit(&mut self, quota: RollingQuota, now: Tick) {
        let window = micros(quota.window);
        let grain = grain_micros(window);
        let Some(admissions) = self.0.as_deref().filter(|own| own.grain != grain) else { return };
        let mut other = Admissions::new(grain);
        for (at, count) in admissions.counts() {
            let at = at.min(now);
            // What has left the window may lie more slots back than a number can say.
            if at.0.saturating_add(window) > now.0 {
                other.add(at, count);
            }
        }
        self.0 = (!other.slots.is_empty()).then(|| Box::new(other));
    }

    /// Whether [`Slots::fit`] has nothing to do, and neither the quota nor the admissions fit into
    /// a log that counts them one by one.
    #[must_use]
    pub fn suits(&self, quota: RollingQuota) -> bool {
        let grain = grain_micros(micros(quota.window));
        self.0.as_ref().is_none_or(|admissions| admissions.grain == grain)
            && quota.requests.max(self.count()) > EXACT_MAX
    }

    /// Slots of this length with so many admissions at each of these ticks, oldest first.
    #[must_use]
    pub fn of(grain: Duration, counts: impl IntoIterator<Item = (Tick, u32)>) -> Self {
        let mut admissions = Admissions::new(micros(grain).max(1));
        for (at, count) in counts {
            admissions.add(at, count);
        }
        Self((!admissions.slots.is_empty()).then(|| Box::new(admissions)))
    }

    /// The length of a slot; zero if there is no admission.
    #[must_use]
    pub fn grain(&self) -> Duration {
        self.0.as_ref().map_or(Duration::ZERO, |own| Duration::from_micros(own.grain))
    }

    /// How many admissions there are in each slot, and the slot's last tick, oldest first.
    pub fn counts(&self) -> impl Iterator<Item = (Tick, u32)> {
        self.0.iter().flat_map(|admissions| admissions.counts())
    }

    /// How many admissions there are, those included that have left the window since the last
    /// charge.
    #[must_use]
    pub fn count(&self) -> u32 {
        self.0.as_ref().map_or(0, |admissions| admissions.total())
    }

    /// The end of the newest slot; tick 0 if there is no admission.
    #[must_use]
    pub fn newest_end(&self) -> Tick {
        self.0.as_ref().map_or(Tick(0), |admissions| admissions.end(admissions.newest))
    }
}

impl Admissions {
    fn new(grain: u64) -> Self {
        Self { grain, newest: 0, gone: 0, slots: VecDeque::new() }
    }

    fn decide(&self, quota: RollingQuota, cost: u32, now: Tick) -> Decision {
        let surplus = self.total().saturating_add(cost).saturating_sub(quota.requests);
        let nth = self.slots.partition_point(|slot| slot.count.wrapping_sub(self.gone) < surplus);
        let free_at = match self.slots.get(nth) {
            Some(slot) if surplus > 0 => self.end_of(slot).plus(quota.window),
            _ => return Decision::Admit,
        };
        if free_at <= now { Decision::Admit } else { Decision::Refuse { retry_at: free_at } }
    }

    fn total(&self) -> u32 {
        self.slots.back().map_or(0, |slot| slot.count.wrapping_sub(self.gone))
    }

    /// How many of the oldest slots have left the window.
    fn expired(&self, window: u64, now: Tick) -> usize {
        self.slots.partition_point(|slot| self.end_of(slot).0.saturating_add(window) <= now.0)
    }

    /// How many admissions are in the window.
    fn live(&self, window: u64, now: Tick) -> u32 {
        let expired = self.expired(window, now).checked_sub(1);
        let gone = expired.and_then(|nth| self.slots.get(nth)).map_or(self.gone, |slot| slot.count);
        self.slots.back().map_or(0, |slot| slot.count.wrapping_sub(gone))
    }

    /// Drops the slots that have left the window.
    fn forget(&mut self, window: u64, now: Tick) {
        while let Some(slot) = self.slots.front()
            && self.end_of(slot).0.saturating_add(window) <= now.0
        {
            self.gone = slot.count;
            self.slots.pop_front();
        }
        if self.slots.capacity() > ROOM_KEPT && self.slots.len() < self.slots.capacity() / 4 {
            self.slots.shrink_to(2 * self.slots.len());
        }
    }

    /// Adds `count` admissions at `at`, or in the newest slot if that is later.
    fn add(&mut self, at: Tick, count: u32) {
        let number = (at.0 / self.grain).max(self.newest);
        let total = self.slots.back().map_or(self.gone, |slot| slot.count);
        // A sum above 32 bits, which no quota comes near, stays at its maximum.
        let total = total.wrapping_add(count.min(u32::MAX - self.total()));
        if let Some(slot) = self.slots.back_mut().filter(|_| number == self.newest) {
            slot.count = total;
            return;
        }
        if self.slots.len() == SLOTS_MAX {
            // The next slot's count includes that of the one dropped.
            self.slots.pop_front();
        }
        if self.slots.len() == self.slots.capacity() {
            let grown = (self.slots.len() / 2).clamp(ROOM_MIN, SLOTS_MAX - self.slots.len());
            self.slots.reserve_exact(grown);
        }
        self.newest = number;
        self.slots.push_back(Slot { number: low_half(number), count: total });
    }

    /// The tick after the last one of a slot.
    fn end_of(&self, slot: &Slot) -> Tick {
        let back = low_half(self.newest).wrapping_sub(slot.number);
        self.end(self.newest - u64::from(back))
    }

    fn end(&self, number: u64) -> Tick {
        Tick(number.saturating_add(1).saturating_mul(self.grain))
    }

    fn counts(&self) -> impl Iterator<Item = (Tick, u32)> {
        let earlier = std::iter::once(self.gone).chain(self.slots.iter().map(|slot| slot.count));
        self.slots.iter().zip(earlier).map(|(slot, earlier)| {
            (Tick(self.end_of(slot).0 - 1), slot.count.wrapping_sub(earlier))
        })
    }
}

#[expect(clippy::cast_possible_truncation, reason = "the low half is what is asked for")]
fn low_half(number: u64) -> u32 {
    number as u32
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const HOUR: Duration = Duration::from_secs(3_600);
    const MILLION: RollingQuota = RollingQuota { requests: 1_000_000, window: HOUR };

    /// The simplest correct version: every admission ever, counted anew for each decision.
    #[derive(Default)]
    struct Model(Vec<(u64, u64)>);

    impl Model {
        /// How many count at `now`, if each counts from the time that `moved` makes of its own.
        fn used(&self, window: Duration, now: u64, moved: impl Fn(u64) -> u64) -> u64 {
            let live = |(then, _): &&(u64, u64)| now < moved(*then) + micros(window);
            self.0.iter().filter(live).map(|(_, count)| count).sum()
        }
    }

    /// The end of the slot of `at`.
    fn end_of_slot(window: Duration, at: u64) -> u64 {
        let grain = micros(grain(window));
        (at / grain + 1) * grain
    }

    fn steps() -> impl Strategy<Value = Vec<(u64, u32, usize)>> {
        let wait = prop_oneof![Just(0), 1..5_000_u64, 1..20_000_000_u64, 1..4_000_000_000_u64];
        let cost = prop_oneof![1..5_u32, 1..30_000_u32, 1..90_000_u32];
        prop::collection::vec((wait, cost, 0..3_usize), 1..120)
    }

    fn agrees_with_the_model(
        quotas: [RollingQuota; 3],
        steps: &[(u64, u32, usize)],
        mut now: u64,
    ) -> Result<(), TestCaseError> {
        let (mut slots, mut model) = (Slots::default(), Model::default());
        let window = quotas[0].window;
        let end = |at| end_of_slot(window, at);
        for (wait, cost, nth) in steps {
            now += wait;
            let (quota, cost) = (quotas[*nth], *cost);
            let fits = |now: u64, moved: &dyn Fn(u64) -> u64| {
                model.used(window, now, moved) + u64::from(cost) <= u64::from(quota.requests)
            };
            match slots.decide(quota, cost, Tick(now)) {
                Decision::Admit => {
                    prop_assert!(fits(now, &|at| at), "{cost} at {now} are too many");
                    prop_assert!(fits(now, &end), "{cost} at {now} come before a slot ends");
                    let usage = slots.charge(quota, cost, Tick(now));
                    model.0.push((now, cost.into()));
                    let left = u64::from(quota.requests) - model.used(window, now, end);
                    prop_assert_eq!(u64::from(usage.remaining), left);
                    prop_assert_eq!(usage.full_at, Tick(end(now) + micros(window)));
                    prop_assert_eq!(slots.usage(quota, Tick(now)), usage);
                }
                Decision::Refuse { retry_at } => {
                    prop_assert!(!fits(now, &end), "refused {cost} at {now}, which fit");
                    prop_assert!(!fits(retry_at.0 - 1, &end), "told to wait too long");
                    prop_assert!(fits(retry_at.0, &end), "told to come too early");
                    let grain = micros(grain(window));
                    prop_assert!(grain <= micros(window) / 1_024 + 1);
                    prop_assert!(
                        now + grain > retry_at.0 || !fits(retry_at.0 - grain - 1, &|at| at),
                        "refused by more than a grain too long"
                    );
                }
                Decision::TooLarge => prop_assert!(cost > quota.requests),
            }
        }
        Ok(())
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(300))]

        #[test]
        fn a_random_sequence_is_decided_as_by_counting_from_the_ends_of_slots(
            steps in steps(), requests in 65_537..300_000_u32, start in 0..u64::MAX / 4,
        ) {
            let quota = RollingQuota { requests, window: HOUR };
            agrees_with_the_model([quota; 3], &steps, start)?;
        }

        #[test]
        fn a_quota_that_changes_forgets_and_forgives_nothing(steps in steps()) {
            let quota = |requests| RollingQuota { requests, window: HOUR };
            let quotas = [quota(60), quota(100_000), quota(250_000)];
            agrees_with_the_model(quotas, &steps, 1_000_000_000_000)?;
        }

        #[test]
        fn a_short_window_has_slots_of_a_microsecond(
            waits in prop::collection::vec((0..400_u64, 1..40_000_u32, 0..3_usize), 1..200),
            start in (1_u64 << 32) - 20_000..(1_u64 << 32) + 20_000,
        ) {
            let quota = RollingQuota { requests: 80_000, window: Duration::from_millis(1) };
            agrees_with_the_model([quota; 3], &waits, start)?;
        }

        #[test]
        fn a_change_of_the_window_never_forgets(
            waits in prop::collection::vec((0..900_000_000_u64, 1..30_000_u32), 1..60),
            windows in prop::collection::vec(3_600..200_000_u64, 1..4),
        ) {
            let (mut slots, mut model, mut now) = (Slots::default(), Model::default(), 1 << 40);
            let longest = Duration::from_secs(200_000);
            for (wait, cost) in waits {
                now += wait;
                let _ = slots.charge(RollingQuota { window: longest, ..MILLION }, cost, Tick(now));
                model.0.push((now, cost.into()));
            }
            // No charge comes between: under the shorter window it would drop what has left it.
            for seconds in windows {
                let quota = RollingQuota { window: Duration::from_secs(seconds), ..MILLION };
                let mut other = slots.clone();
                other.fit(quota, Tick(now));
                prop_assert_eq!(other.grain(), grain(quota.window));
                for later in [0, 1_000_000, 900_000_000, 4_000_000_000] {
                    let usage = other.usage(quota, Tick(now + later));
                    let used = u64::from(quota.requests - usage.remaining);
                    let least = model.used(quota.window, now + later, |at| at);
                    prop_assert!(used >= least.min(1_000_000), "{} of {}", used, least);
                    let slack = micros(grain(quota.window)) + micros(grain(longest));
                    let most = model.used(quota.window, now + later, |at| at + slack);
                    prop_assert!(used <= most, "{} of {}", used, most);
                }
            }
        }
    }

    #[test]
    fn an_admission_counts_until_the_window_after_its_slot() {
        let quota = RollingQuota { requests: 100_000, window: Duration::from_micros(1_024_000) };
        let mut slots = Slots::default();
        let _ = slots.charge(quota, 100_000, Tick(5_000_001));
        let retry_at = Tick(5_001_000 + 1_024_000);
        assert_eq!(slots.decide(quota, 1, Tick(5_000_001)), Decision::Refuse { retry_at });
        assert_eq!(slots.decide(quota, 1, Tick(retry_at.0 - 1)), Decision::Refuse { retry_at });
        assert_eq!(slots.decide(quota, 1, retry_at), Decision::Admit);
        assert_eq!(slots.usage(quota, retry_at).remaining, 100_000);
    }

    #[test]
    fn a_clock_read_before_the_newest_slot_gains_nothing() {
        let mut slots = Slots::default();
        let _ = slots.charge(MILLION, 1_000_000, Tick(7_200_000_000));
        assert!(matches!(slots.decide(MILLION, 1, Tick(0)), Decision::Refuse { .. }));
        let _ = slots.charge(MILLION, 1, Tick(0));
        assert_eq!(slots.counts().count(), 1);
    }

    #[test]
    fn a_key_uses_8_bytes_for_each_slot_and_at_most_8_kib() {
        assert_eq!((size_of::<Slots>(), size_of::<Slot>()), (8, 8));
        let mut slots = Slots::default();
        let _ = slots.charge(MILLION, 1, Tick(1 << 40));
        let room = |slots: &Slots| slots.0.as_ref().unwrap().slots.capacity();
        assert_eq!(room(&slots), ROOM_MIN);
        for nth in 0..20_000 {
            let _ = slots.charge(MILLION, 40, Tick((1 << 40) + nth * 1_000_000));
            assert!(room(&slots) <= SLOTS_MAX);
        }
        assert!(slots.counts().count() >= 1_024);
        for nth in 0..10 {
            let _ = slots.charge(MILLION, 1, Tick((1 << 41) + nth * 1_800_000_000));
        }
        assert!(room(&slots) <= ROOM_KEPT && slots.counts().count() <= 4);
    }

    #[test]
    fn beyond_the_most_slots_the_oldest_count_longer() {
        let mut slots = Slots::of(Duration::from_secs(1), (0..3_000).map(|n| (Tick(n << 22), 2)));
        assert_eq!((slots.counts().count(), slots.count()), (SLOTS_MAX, 6_000));
        let _ = slots.charge(MILLION, u32::MAX, Tick(3_000 << 22));
        assert_eq!(slots.usage(MILLION, Tick(3_000 << 22)).remaining, 0);
    }

    #[test]
    fn slots_are_the_list_of_their_counts() {
        let mut slots = Slots::default();
        for nth in 0..500 {
            let _ = slots.charge(MILLION, 7, Tick((1 << 40) + nth * 2_000_000));
        }
        let copy = Slots::of(slots.grain(), slots.counts());
        assert_eq!(copy.counts().collect::<Vec<_>>(), slots.counts().collect::<Vec<_>>());
        let later = Tick((1 << 40) + 3_900_000_000);
        assert_eq!(copy.usage(MILLION, later), slots.usage(MILLION, later));
        assert_eq!(copy.newest_end(), slots.newest_end());
        assert_eq!(Slots::of(Duration::ZERO, []).counts().count(), 0);
    }

    #[test]
    fn a_cost_above_the_quota_never_fits() {
        assert_eq!(Slots::default().decide(MILLION, 1_000_001, Tick(0)), Decision::TooLarge);
    }
}
