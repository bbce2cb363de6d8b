//! Decides whether a request fits "N per window", over every interval of that length. (core)
//!
//! The state is a log of the admissions of the last window, oldest first, in a ring of 4-byte
//! timestamps: 4 bytes per request for a window of up to 30 minutes, 8 bytes for a longer one. The
//! ring grows by half at a time, and shrinks when less than a quarter of it is in use. The log does
//! not depend on N: lowering a quota and raising it again loses no admission.
//!
//! # Invariants
//!
//! 1. At most N requests are admitted in any interval of the window's length, and a client that
//!    keeps within N is never refused.
//! 2. A refusal changes nothing.
//! 3. `retry_at` is exact: refused one tick before it, admitted at it.
//! 4. A decision takes constant time, a charge amortised constant time for each request.
//! 5. A log has at most the newest [`EXACT_MAX`] admissions: a larger quota needs `slots`.
//!
//! # Not here
//!
//! Quotas of more than [`EXACT_MAX`] requests (`slots`), and which of both applies (`state`).
//! Storage and locks of states (the gateway's `limit::memory`), the headers of a response.

use std::time::Duration;

use crate::limit::decision::{Decision, Usage};
use crate::time::{Tick, micros};

/// The most requests per window of any quota.
pub const REQUESTS_MAX: u32 = 10_000_000;

/// The most requests per window that are counted one by one. A full log of as many has 256 KiB of
/// timestamps, or 512 KiB for a window above 30 minutes.
pub const EXACT_MAX: u32 = 65_536;

/// A month: few processes run for longer than that.
pub const WINDOW_MAX: Duration = Duration::from_secs(31 * 24 * 3_600);

/// Up to this window a timestamp is 32 bits of microseconds (71 minutes): ages stay below twice the
/// window.
const NARROW_WINDOW_MAX: Duration = Duration::from_secs(30 * 60);

/// Capacity of a key's first ring. A busy gateway sees most keys only a few times.
const RING_MIN: usize = 4;

/// A ring up to this capacity, 1 KiB or 2 KiB, never shrinks: a key that pauses and returns soon
/// would grow it anew each time.
const RING_KEPT: usize = 256;

/// Up to so many expired admissions are dropped one by one: a charge rarely finds more than one.
const DROPPED_ONE_BY_ONE: usize = 8;

/// At most `requests` in any stretch of `window`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RollingQuota {
    /// From 1 to [`REQUESTS_MAX`].
    pub requests: u32,
    /// Up to [`WINDOW_MAX`].
    pub window: Duration,
}

/// The admissions of one key in the last window: 32 bytes, and the ring.
#[derive(Clone, Debug, Default)]
pub struct Log {
    /// The newest admission.
    newest: Tick,
    /// The low 32 bits of each admission's tick, followed by the high 32 bits if `wide`.
    ring: Box<[u32]>,
    /// How many admissions there are.
    len: u32,
    /// The place of the oldest timestamp, below [`EXACT_MAX`]; the others follow it, wrapping at
    /// the end.
    oldest: u16,
    /// Whether a timestamp takes two entries, because the window is too long for 32 bits.
    wide: bool,
}

impl Log {
    /// Decides whether `cost` more fit at `now`. Changes nothing.
    ///
    /// A `now` before the newest admission counts as that admission's time. A quota above
    /// [`EXACT_MAX`] is decided as if the log had every admission, which it may not.
    pub fn decide(&self, quota: RollingQuota, cost: u32, now: Tick) -> Decision {
        if cost > quota.requests {
            return Decision::TooLarge;
        }
        let now = now.max(self.newest);
        let surplus = self.len.saturating_add(cost).saturating_sub(quota.requests);
        let window = micros(quota.window);
        if surplus == 0 || self.lapsed(window, now) {
            return Decision::Admit;
        }
        let age = self.age(surplus - 1, now);
        if age >= window {
            return Decision::Admit;
        }
        Decision::Refuse { retry_at: Tick(now.0 + (window - age)) }
    }

    /// Records an admission of `cost` that [`Log::decide`] allowed at the same `now`.
    pub fn charge(&mut self, quota: RollingQuota, cost: u32, now: Tick) -> Usage {
        let now = now.max(self.newest);
        let window = micros(quota.window);
        self.fit(quota, now);
        self.forget(window, now);
        self.newest = now;
        self.push(now, cost);
        Usage {
            limit: quota.requests,
            remaining: quota.requests.saturating_sub(self.len),
            full_at: Tick(now.0.saturating_add(window)),
        }
    }

    /// Moves an admission at `from` to the later time `to`, at or before the present; the log has
    /// one at `from`, or one that counts as later. Takes as long as there are admissions between.
    pub fn postpone(&mut self, from: Tick, to: Tick) {
        let Some(age) = self.newest.0.checked_sub(from.0) else { return };
        let mut nth = self.expired(age.saturating_add(1), self.newest);
        while nth + 1 < self.len && self.time(nth + 1) < to {
            self.set(nth, self.time(nth + 1));
            nth += 1;
        }
        if nth < self.len && self.time(nth) < to {
            self.newest = self.newest.max(to);
            self.set(nth, to);
        }
    }

    /// Removes one admission at exactly this time, if the log has one. Takes as long as there are
    /// later ones.
    pub fn remove(&mut self, at: Tick) {
        let Some(age) = self.newest.0.checked_sub(at.0) else { return };
        let nth = self.expired(age.saturating_add(1), self.newest);
        if nth >= self.len || self.time(nth) != at {
            return;
        }
        for later in nth + 1..self.len {
            self.set(later - 1, self.time(later));
        }
        self.len -= 1;
        if let Some(last) = self.len.checked_sub(1) {
            self.newest = self.time(last);
        }
    }

    /// The key's usage at `now`.
    #[must_use]
    pub fn usage(&self, quota: RollingQuota, now: Tick) -> Usage {
        let now = now.max(self.newest);
        let used = self.len - self.expired(micros(quota.window), now);
        Usage {
            limit: quota.requests,
            remaining: quota.requests.saturating_sub(used),
            full_at: if used == 0 { now } else { self.full_at(quota) },
        }
    }

    /// Whether the log has 64-bit timestamps, for a window too long for 32 bits.
    #[must_use]
    pub fn is_wide(&self) -> bool {
        self.wide
    }

    /// Whether a log for `window` has 64-bit timestamps.
    #[must_use]
    pub fn needs_wide(window: Duration) -> bool {
        window > NARROW_WINDOW_MAX
    }

    /// A log of these admissions, oldest first: the newest [`EXACT_MAX`] of them.
    #[must_use]
    pub fn of(wide: bool, times: impl IntoIterator<Item = Tick>) -> Self {
        Self::of_counts(wide, times.into_iter().map(|time| (time, 1)))
    }

    /// A log of so many admissions at each of these ticks, oldest first: the newest [`EXACT_MAX`]
    /// of them.
    #[must_use]
    pub fn of_counts(wide: bool, counts: impl IntoIterator<Item = (Tick, u32)>) -> Self {
        let mut log = Self { wide, ..Self::default() };
        for (time, count) in counts {
            log.newest = log.newest.max(time);
            log.push(log.newest, count);
        }
        log
    }

    /// How many admissions the log has, those included that have left the window since the last
    /// charge.
    #[must_use]
    pub fn count(&self) -> u32 {
        self.len
    }

    /// The newest admission; tick 0 if there is none.
    #[must_use]
    pub fn newest(&self) -> Tick {
        if self.len == 0 { Tick(0) } else { self.newest }
    }

    /// The ticks of the admissions in the log, oldest first.
    pub fn times(&self) -> impl Iterator<Item = Tick> {
        (0..self.len).map(|nth| self.time(nth))
    }

    /// When every admission has left the window: the state then equals a fresh one.
    #[must_use]
    pub fn full_at(&self, quota: RollingQuota) -> Tick {
        if self.len == 0 { Tick(0) } else { self.newest.plus(quota.window) }
    }

    /// Whether [`Log::fit`] has nothing to do, and the log counts every request of the quota.
    #[must_use]
    pub fn suits(&self, quota: RollingQuota) -> bool {
        quota.requests <= EXACT_MAX && self.wide == Self::needs_wide(quota.window)
    }

    /// Makes the timestamps as wide as the window needs. Must precede a decision under a quota
    /// whose window has changed; does not change the usage.
    pub fn fit(&mut self, quota: RollingQuota, now: Tick) {
        if self.wide != Self::needs_wide(quota.window) {
            self.change_width(quota, now);
        }
    }

    #[cold]
    fn change_width(&mut self, quota: RollingQuota, now: Tick) {
        let times: Vec<Tick> = self.times().collect();
        *self = Self { newest: self.newest, wide: !self.wide, ..Self::default() };
        for time in times.into_iter().filter(|time| time.plus(quota.window) > now) {
            self.push(time, 1);
        }
    }

    // From here on windows and ages are in microseconds: this is the gateway's hottest path, and
    // converting them to a Duration costs a division each time.

    /// Whether every admission has left the window.
    fn lapsed(&self, window: u64, now: Tick) -> bool {
        self.len == 0 || now.0.saturating_sub(self.newest.0) >= window
    }

    /// How many of the oldest admissions have left the window.
    fn expired(&self, window: u64, now: Tick) -> u32 {
        if self.lapsed(window, now) {
            return self.len;
        }
        let (mut low, mut high) = (0, self.len);
        while low < high {
            let middle = low.midpoint(high);
            if self.age(middle, now) >= window { low = middle + 1 } else { high = middle }
        }
        low
    }

    /// Drops the admissions that have left the window.
    fn forget(&mut self, window: u64, now: Tick) {
        if self.lapsed(window, now) {
            (self.oldest, self.len) = (0, 0);
        }
        for _ in 0..DROPPED_ONE_BY_ONE {
            if self.len == 0 || self.age(0, now) < window {
                return self.shrink();
            }
            self.drop_oldest(1);
        }
        self.drop_oldest(self.expired(window, now));
        self.shrink();
    }

    fn drop_oldest(&mut self, count: u32) {
        let next = usize::from(self.oldest) + count as usize;
        let next = if next >= self.capacity() { next - self.capacity() } else { next };
        self.oldest = u16::try_from(next).expect("a place is below EXACT_MAX");
        self.len -= count;
    }

    /// How long before `now` the nth oldest was admitted.
    fn age(&self, nth: u32, now: Tick) -> u64 {
        let place = self.place(nth as usize);
        let low = self.ring.get(place).copied().unwrap_or_default();
        if self.wide {
            let high = self.ring.get(place + 1).copied().unwrap_or_default();
            now.0 - (u64::from(high) << 32 | u64::from(low))
        } else {
            u64::from(low_half(now).wrapping_sub(low))
        }
    }

    /// How many timestamps fit into the ring at its present size.
    fn capacity(&self) -> usize {
        self.ring.len() >> u32::from(self.wide)
    }

    /// The index in the ring of the nth oldest timestamp, or of the next one to be added.
    fn place(&self, nth: usize) -> usize {
        let slot = usize::from(self.oldest) + nth;
        let wrapped = if slot >= self.capacity() { slot - self.capacity() } else { slot };
        wrapped << u32::from(self.wide)
    }

    /// Adds `count` admissions at `at`; beyond [`EXACT_MAX`] the oldest are dropped.
    fn push(&mut self, at: Tick, count: u32) {
        let count = count.min(EXACT_MAX);
        self.drop_oldest((self.len + count).saturating_sub(EXACT_MAX));
        let needed = (self.len + count) as usize;
        if needed > self.capacity() {
            let grown = self.capacity() + self.capacity() / 2;
            self.resize(grown.max(needed).clamp(RING_MIN, EXACT_MAX as usize));
        }
        for _ in 0..count {
            self.set(self.len, at);
            self.len += 1;
        }
    }

    /// The tick of the nth oldest admission.
    fn time(&self, nth: u32) -> Tick {
        Tick(self.newest.0.saturating_sub(self.age(nth, self.newest)))
    }

    /// Writes the nth oldest timestamp, or the next one to be added.
    fn set(&mut self, nth: u32, at: Tick) {
        let place = self.place(nth as usize);
        if let Some(low) = self.ring.get_mut(place) {
            *low = low_half(at);
        }
        if let Some(high) = self.ring.get_mut(place + 1).filter(|_| self.wide) {
            *high = low_half(Tick(at.0 >> 32));
        }
    }

    /// Makes a large ring smaller of which less than a quarter is in use. It then is half full, so
    /// that many requests pass before the next change of its size.
    fn shrink(&mut self) {
        let len = self.len as usize;
        if self.capacity() > RING_KEPT && len < self.capacity() / 4 {
            self.resize((2 * len).max(RING_MIN));
        }
    }

    /// Replaces the ring by one of `capacity`, with the oldest timestamp in front.
    fn resize(&mut self, capacity: usize) {
        let width = 1 << u32::from(self.wide);
        self.ring.rotate_left(usize::from(self.oldest) * width);
        self.oldest = 0;
        let mut ring = Vec::with_capacity(capacity * width);
        ring.extend(self.ring.iter().take(self.len as usize * width));
        ring.resize(capacity * width, 0);
        self.ring = ring.into_boxed_slice();
    }
}

#[expect(clippy::cast_possible_truncation, reason = "the low half is what is asked for")]
fn low_half(tick: Tick) -> u32 {
    tick.0 as u32
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use proptest::prelude::*;

    use super::*;

    const MINUTE: Duration = Duration::from_secs(60);

    /// The simplest correct version: every time ever admitted, counted anew for each decision.
    #[derive(Default)]
    struct Model(VecDeque<u64>);

    impl Model {
        fn used(&self, window: Duration, now: u64) -> u32 {
            let live = |then: &&u64| now - **then < micros(window);
            u32::try_from(self.0.iter().filter(live).count()).expect("a test is small")
        }

        fn fits(&self, quota: RollingQuota, cost: u32, now: u64) -> bool {
            self.used(quota.window, now) + cost <= quota.requests
        }
    }

    /// One step of a random sequence: wait, then request `cost` under one of several quotas.
    #[derive(Clone, Debug)]
    struct Step {
        wait: u64,
        cost: u32,
        quota: usize,
    }

    fn steps(quotas: usize) -> impl Strategy<Value = Vec<Step>> {
        let wait = prop_oneof![Just(0), 1..50_u64, 1..2_000_000_u64, 1..90_000_000_u64];
        let step = (wait, 1..4_u32, 0..quotas);
        prop::collection::vec(
            step.prop_map(|(wait, cost, quota)| Step { wait, cost, quota }),
            1..400,
        )
    }

    fn agrees_with_the_model(quotas: &[RollingQuota], steps: &[Step]) -> Result<(), TestCaseError> {
        let (mut log, mut model) = (Log::default(), Model::default());
        let mut now = 1_000_000_000_000;
        for step in steps {
            now += step.wait;
            let quota = quotas[step.quota];
            let fits = model.fits(quota, step.cost, now);
            log.fit(quota, Tick(now));
            match log.decide(quota, step.cost, Tick(now)) {
                Decision::Admit => {
                    prop_assert!(fits, "admitted {step:?} at {now}, which is one too many");
                    let usage = log.charge(quota, step.cost, Tick(now));
                    model.0.extend(std::iter::repeat_n(now, step.cost as usize));
                    let left = quota.requests - model.used(quota.window, now);
                    prop_assert_eq!(usage.remaining, left);
                    prop_assert_eq!(usage.full_at, Tick(now + micros(quota.window)));
                    prop_assert_eq!(log.usage(quota, Tick(now)), usage);
                }
                Decision::Refuse { retry_at } => {
                    prop_assert!(!fits, "refused {step:?} at {now}, which fits");
                    prop_assert!(
                        !model.fits(quota, step.cost, retry_at.0 - 1),
                        "told to wait too long"
                    );
                    prop_assert!(
                        model.fits(quota, step.cost, retry_at.0),
                        "told to come too early"
                    );
                    let left = quota.requests.saturating_sub(model.used(quota.window, now));
                    prop_assert_eq!(log.usage(quota, Tick(now)).remaining, left);
                }
                Decision::TooLarge => prop_assert!(step.cost > quota.requests),
            }
        }
        Ok(())
    }

    #[test]
    fn a_removed_admission_counts_no_longer() {
        let times = |log: &Log| log.times().map(|time| time.0).collect::<Vec<_>>();
        for (wide, window) in [(false, MINUTE), (true, 60 * MINUTE)] {
            let mut log = Log::of(wide, [1, 2, 2, 5, 9].map(Tick));
            for (at, left) in [(3, &[1, 2, 2, 5, 9][..]), (2, &[1, 2, 5, 9]), (9, &[1, 2, 5])] {
                log.remove(Tick(at));
                assert_eq!(times(&log), left);
            }
            let quota = RollingQuota { requests: 3, window };
            assert_eq!(log.full_at(quota), Tick(5).plus(window));
            assert_ne!(log.decide(quota, 1, Tick(20)), Decision::Admit);
            log.remove(Tick(1));
            assert_eq!(log.decide(quota, 1, Tick(20)), Decision::Admit);
            [2, 5, 7].into_iter().for_each(|at| log.remove(Tick(at)));
            assert_eq!(log.count(), 0);
        }
    }

    #[test]
    fn more_admissions_than_any_quota_admits_count_as_its_newest() {
        let day = Duration::from_secs(24 * 3_600);
        let quota = |requests, window| RollingQuota { requests, window };
        for wide in [false, true] {
            let mut log = Log::of(wide, (1..=100_000).map(Tick));
            assert_eq!(log.times().count(), EXACT_MAX as usize);
            let window = if wide { day } else { MINUTE };
            for _ in 0..70_000 {
                let _ = log.charge(quota(10, window), 1, Tick(200_000));
            }
            for requests in [1, 10, EXACT_MAX] {
                let Decision::Refuse { retry_at } =
                    log.decide(quota(requests, window), 1, Tick(200_000))
                else {
                    panic!("{requests} are admitted again")
                };
                assert_eq!(retry_at, Tick(200_000).plus(window));
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(300))]

        #[test]
        fn a_random_sequence_is_decided_as_by_counting(steps in steps(1), requests in 1..20_u32) {
            agrees_with_the_model(&[RollingQuota { requests, window: MINUTE }], &steps)?;
        }

        #[test]
        fn a_quota_that_changes_forgets_and_forgives_nothing(steps in steps(3)) {
            let quota = |requests| RollingQuota { requests, window: MINUTE };
            agrees_with_the_model(&[quota(3), quota(12), quota(5)], &steps)?;
        }

        #[test]
        fn a_window_of_hours_is_as_exact_as_one_of_a_minute(
            steps in steps(1), requests in 1..9_u32,
        ) {
            let window = Duration::from_secs(3 * 3_600);
            agrees_with_the_model(&[RollingQuota { requests, window }], &steps)?;
        }

        #[test]
        fn a_moved_admission_counts_as_one_of_its_new_time(
            times in prop::collection::vec(0..50_u64, 1..40),
            moves in prop::collection::vec((0..40_usize, 0..60_u64), 1..20),
            wide in any::<bool>(),
        ) {
            let mut model: Vec<Tick> = times.into_iter().map(Tick).collect();
            model.sort_unstable();
            let window = Duration::from_secs(if wide { 3_600 } else { 60 });
            let quota = RollingQuota { requests: 100, window };
            let mut log = Log::default();
            for time in &model {
                let _ = log.charge(quota, 1, *time);
            }
            for (nth, to) in moves {
                let nth = nth % model.len();
                let from = model[nth];
                model[nth] = from.max(Tick(to));
                model.sort_unstable();
                log.postpone(from, Tick(to));
                prop_assert!(log.times().eq(model.iter().copied()), "{model:?}");
                prop_assert_eq!(log.newest(), model[model.len() - 1]);
            }
        }

        #[test]
        fn a_client_that_keeps_within_the_limit_is_never_refused(
            waits in prop::collection::vec(0..20_000_000_u64, 1..300), requests in 1..20_u32,
        ) {
            let quota = RollingQuota { requests, window: MINUTE };
            let (mut log, mut sent, mut now) = (Log::default(), Model::default(), 0);
            for wait in waits {
                now += wait;
                if sent.fits(quota, 1, now) {
                    sent.0.push_back(now);
                    prop_assert_eq!(log.decide(quota, 1, Tick(now)), Decision::Admit);
                    let _ = log.charge(quota, 1, Tick(now));
                }
            }
        }
    }

    #[test]
    fn the_window_slides_by_the_microsecond() {
        let quota = RollingQuota { requests: 2, window: MINUTE };
        let mut log = Log::default();
        for now in [Tick(5), Tick(10)] {
            assert_eq!(log.decide(quota, 1, now), Decision::Admit);
            let _ = log.charge(quota, 1, now);
        }
        let retry_at = Tick(60_000_005);
        assert_eq!(log.decide(quota, 1, Tick(60_000_004)), Decision::Refuse { retry_at });
        assert_eq!(log.decide(quota, 1, retry_at), Decision::Admit);
    }

    #[test]
    fn a_window_that_grows_past_the_narrow_stamps_keeps_what_it_knows() {
        let minute = RollingQuota { requests: 2, window: MINUTE };
        let day = RollingQuota { requests: 2, window: Duration::from_secs(86_400) };
        let mut log = Log::default();
        let _ = log.charge(minute, 1, Tick(5_000_000_000));
        let _ = log.charge(minute, 1, Tick(5_000_000_007));
        log.fit(day, Tick(5_000_000_010));
        let retry_at = Tick(5_000_000_000 + 86_400_000_000);
        assert_eq!(log.decide(day, 1, Tick(5_000_000_010)), Decision::Refuse { retry_at });
        log.fit(minute, Tick(5_000_000_010));
        let retry_at = Tick(5_060_000_000);
        assert_eq!(log.decide(minute, 1, Tick(5_000_000_010)), Decision::Refuse { retry_at });
    }

    /// 32 bits of microseconds are 71 minutes: a narrow timestamp read later than that would seem
    /// to be of the last minutes.
    #[test]
    fn a_narrow_log_that_widens_hours_later_keeps_its_times() {
        let day = RollingQuota { requests: 2, window: Duration::from_secs(86_400) };
        for minutes in [70, 72, 143, 600] {
            let then = Tick(5_000_000_000);
            let times = [then, then.plus(MINUTE / 2)];
            let mut log = Log::of(false, times);
            let later = then.plus(MINUTE * minutes);
            log.fit(day, later);
            assert_eq!(log.times().collect::<Vec<_>>(), times, "after {minutes} minutes");
            let retry_at = then.plus(day.window);
            assert_eq!(log.decide(day, 1, later), Decision::Refuse { retry_at });
        }
    }

    #[test]
    fn a_log_is_the_list_of_its_times() {
        for window in [MINUTE, Duration::from_secs(7_200)] {
            let quota = RollingQuota { requests: 50, window };
            let mut log = Log::default();
            let times: Vec<Tick> = (0..40).map(|n| Tick(9_000_000_000 + n * 100_000)).collect();
            for time in &times {
                log.fit(quota, *time);
                assert!(log.charge(quota, 1, *time).remaining < 50);
            }
            assert_eq!(log.times().collect::<Vec<_>>(), times);
            let copy = Log::of(log.is_wide(), log.times());
            let later = Tick(9_030_000_000);
            assert_eq!(copy.usage(quota, later), log.usage(quota, later));
        }
    }

    #[test]
    fn a_cost_above_the_quota_never_fits() {
        let quota = RollingQuota { requests: 2, window: MINUTE };
        assert_eq!(Log::default().decide(quota, 3, Tick(0)), Decision::TooLarge);
    }

    #[test]
    fn a_clock_read_before_the_last_charge_counts_as_that_charge() {
        let quota = RollingQuota { requests: 1, window: MINUTE };
        let mut log = Log::default();
        let _ = log.charge(quota, 1, Tick(100));
        let retry_at = Tick(60_000_100);
        assert_eq!(log.decide(quota, 1, Tick(90)), Decision::Refuse { retry_at });
    }

    #[test]
    fn a_request_uses_4_bytes_in_30_minutes_and_8_in_a_longer_window() {
        for (seconds, bytes) in [(60, 4), (1_800, 4), (1_801, 8), (86_400, 8)] {
            let window = Duration::from_secs(seconds);
            let quota = RollingQuota { requests: EXACT_MAX, window };
            let mut log = Log::default();
            (0..u64::from(EXACT_MAX)).for_each(|now| {
                assert_eq!(log.decide(quota, 1, Tick(now)), Decision::Admit);
                let _ = log.charge(quota, 1, Tick(now));
            });
            assert_eq!(size_of_val(&*log.ring), bytes * EXACT_MAX as usize, "{seconds} s");
        }
    }

    #[test]
    fn a_spike_leaves_a_small_ring_after_the_window() {
        for window in [MINUTE, Duration::from_secs(7_200)] {
            let quota = RollingQuota { requests: EXACT_MAX, window };
            let (mut log, mut now) = (Log::default(), Tick(9_000_000_000));
            for _ in 0..60_000 {
                now = Tick(now.0 + 100);
                let _ = log.charge(quota, 1, now);
            }
            assert!(log.capacity() >= 60_000);
            for _ in 0..10 {
                now = now.plus(window / 4);
                let _ = log.charge(quota, 1, now);
            }
            assert!(log.capacity() <= RING_KEPT, "{} places", log.capacity());
            assert_eq!(log.usage(quota, now).remaining, EXACT_MAX - 4);
        }
    }

    #[test]
    fn sizes_change_rarely_however_the_load_swings() {
        let quota = RollingQuota { requests: EXACT_MAX, window: MINUTE };
        let (mut log, mut now, mut copied, mut charged) = (Log::default(), Tick(0), 0, 0);
        for swing in 0..40 {
            for _ in 0..if swing % 2 == 0 { 20_000 } else { 50 } {
                now = Tick(now.0 + if swing % 2 == 0 { 3_000 } else { 1_200_000 });
                let before = log.capacity();
                let _ = log.charge(quota, 1, now);
                charged += 1;
                copied += if log.capacity() == before { 0 } else { log.len };
                assert!(log.capacity() >= before || log.capacity() >= 2 * (log.len as usize - 1));
            }
        }
        assert!(copied < 5 * charged, "{copied} timestamps copied for {charged} requests");
    }

    #[test]
    fn a_cost_counts_as_so_many_requests() {
        let quota = RollingQuota { requests: EXACT_MAX, window: MINUTE };
        let mut log = Log::default();
        assert_eq!(log.charge(quota, 60_000, Tick(5)).remaining, 5_536);
        assert_eq!(log.decide(quota, 5_536, Tick(5)), Decision::Admit);
        let retry_at = Tick(60_000_005);
        assert_eq!(log.decide(quota, 5_537, Tick(5)), Decision::Refuse { retry_at });
        assert_eq!(log.charge(quota, u32::MAX, Tick(6)).remaining, 0);
        assert_eq!(log.times().count(), EXACT_MAX as usize);
    }

    #[test]
    fn a_full_minute_of_sixty_uses_at_most_260_bytes() {
        let quota = RollingQuota { requests: 60, window: MINUTE };
        let mut log = Log::default();
        (0..60).for_each(|now| assert!(log.charge(quota, 1, Tick(now)).remaining < 60));
        assert!(size_of_val(&*log.ring) <= 260 && size_of::<Log>() == 32);
    }
}
