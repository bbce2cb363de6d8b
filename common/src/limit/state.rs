//! What one key has used of one limit, whichever algorithm the limit uses. (core)
//!
//! # Invariants
//!
//! 1. A change of a limit's algorithm loses and doubles nothing that the state knows:
//!    [`State::fit`] has the conversions. Times that a state does not know count as the latest that
//!    they can have been.
//! 2. A state that has more than [`EXACT_MAX`] requests stays in slots under a lower quota, so that
//!    a quota that is lowered and raised again within its window has forgotten nothing.
//! 3. From [`State::forgotten_at`] on, the state decides as a fresh one does under every quota of
//!    the horizon.
//!
//! # Not here
//!
//! Storage and locks of states (the gateway's `limit::memory`), their form in files and messages
//! (the gateway's `limit::snapshot`).

use crate::limit::calendar::{CalendarQuota, Count};
use crate::limit::concurrency::InFlight;
use crate::limit::decision::{Decision, Usage};
use crate::limit::quota::{Horizon, Quota};
use crate::limit::rolling::{EXACT_MAX, Log, RollingQuota};
use crate::limit::slots::{self, Slots};
use crate::limit::token_bucket::{Bucket, BucketQuota};
use crate::time::{Tick, UnixTime};

/// What one key has used of one limit: 32 bytes, and what it points to.
#[derive(Clone, Debug)]
pub enum State {
    /// Of a rolling window, counted one by one.
    Log(Log),
    /// Of a rolling window with many requests.
    Slots(Slots),
    /// Of a token bucket.
    Bucket(Bucket),
    /// Of a day or a month.
    Count(Count),
    /// Of requests in flight.
    InFlight(InFlight),
}

impl State {
    /// The state of a key that has used nothing.
    #[must_use]
    pub fn fresh(quota: Quota) -> Self {
        match quota {
            Quota::Rolling(own) if own.requests > EXACT_MAX => Self::Slots(Slots::default()),
            Quota::Rolling(_) => Self::Log(Log::default()),
            Quota::Bucket(_) => Self::Bucket(Bucket::default()),
            Quota::Calendar(_) => Self::Count(Count::default()),
            Quota::Concurrency(_) => Self::InFlight(InFlight::default()),
        }
    }

    /// Makes the state one of `quota`'s algorithm and window.
    ///
    /// A bucket knows what was spent of it and the last charge, a count knows what was used in its
    /// period and the newest charge: all of that counts as used at that charge. A window's requests
    /// become what a bucket would have left of them, or those within a calendar's period. Requests
    /// in flight have nothing in common with the others: the state is then a fresh one. A bucket
    /// starts empty at worst where a calendar's period knows more than its burst.
    pub fn fit(&mut self, quota: &Quota, now: Tick) {
        match (&mut *self, *quota) {
            (Self::Log(log), Quota::Rolling(own)) if own.requests <= EXACT_MAX => log.fit(own, now),
            (Self::Slots(slots), Quota::Rolling(own))
                if own.requests.max(slots.count()) > EXACT_MAX =>
            {
                slots.fit(own, now);
            }
            (Self::Bucket(_), Quota::Bucket(_))
            | (Self::Count(_), Quota::Calendar(_))
            | (Self::InFlight(_), Quota::Concurrency(_)) => {}
            (_, Quota::Rolling(own)) => *self = rolling(self.charges(now), own, now),
            // A month's use at once would leave a bucket in debt for hours: it is empty instead.
            (Self::Count(count), Quota::Bucket(own)) => {
                *self = bucket(vec![(count.at(), count.used().min(own.burst))], own);
            }
            (_, Quota::Bucket(own)) => *self = bucket(self.charges(now), own),
            (_, Quota::Calendar(own)) => *self = count(self.charges(now), own),
            (_, Quota::Concurrency(_)) => *self = Self::fresh(*quota),
        }
    }

    /// Decides whether `cost` more fit at `now`. Changes only the form of a state whose quota has
    /// changed: see [`State::fit`].
    pub fn decide(&mut self, quota: &Quota, cost: u32, now: Tick) -> Decision {
        match (&mut *self, quota) {
            (Self::Log(log), Quota::Rolling(own)) if log.suits(*own) => log.decide(*own, cost, now),
            (Self::Slots(slots), Quota::Rolling(own)) if slots.suits(*own) => {
                slots.decide(*own, cost, now)
            }
            (Self::Bucket(bucket), Quota::Bucket(own)) => bucket.decide(*own, cost, now),
            (Self::Count(count), Quota::Calendar(own)) => count.decide(*own, cost),
            (Self::InFlight(in_flight), Quota::Concurrency(own)) => in_flight.decide(*own, now),
            _ => self.refitted(quota, now, |own| own.decide(quota, cost, now)),
        }
    }

    /// Records an admission of `cost` that [`State::decide`] allowed at the same `now`.
    pub fn charge(&mut self, quota: &Quota, cost: u32, now: Tick) -> Usage {
        match (&mut *self, quota) {
            (Self::Log(log), Quota::Rolling(own)) if log.suits(*own) => log.charge(*own, cost, now),
            (Self::Slots(slots), Quota::Rolling(own)) if slots.suits(*own) => {
                slots.charge(*own, cost, now)
            }
            (Self::Bucket(bucket), Quota::Bucket(own)) => bucket.charge(*own, cost, now),
            (Self::Count(count), Quota::Calendar(own)) => count.charge(*own, cost, now),
            (Self::InFlight(in_flight), Quota::Concurrency(own)) => in_flight.charge(*own, now),
            _ => self.refitted(quota, now, |own| own.charge(quota, cost, now)),
        }
    }

    /// Whether the state counts requests one by one, and has one after `at`.
    #[must_use]
    pub fn is_after(&self, at: Tick) -> bool {
        matches!(self, Self::Log(log) if at < log.newest())
    }

    /// Inserts an admission between those that a log has: its time is known exactly.
    pub fn insert(&mut self, cost: u32, at: Tick) {
        if let Self::Log(log) = self {
            let mut counts: Vec<(Tick, u32)> = log.times().map(|time| (time, 1)).collect();
            let place = counts.partition_point(|(time, _)| *time <= at);
            counts.insert(place, (at, cost));
            *log = Log::of_counts(log.is_wide(), counts);
        }
    }

    /// Counts what was used after `at`, by the clock of a machine that was ahead of a shared
    /// store's, as used then: both times of this state are the store's.
    pub fn bring_back(&mut self, at: Tick) {
        match self {
            Self::Log(log) if at < log.newest() => {
                let times: Vec<Tick> = log.times().map(|time| time.min(at)).collect();
                *log = Log::of(log.is_wide(), times);
            }
            Self::Slots(slots) if at < slots.newest_end() => {
                let counts = slots.counts().map(|(end, count)| (end.min(at), count));
                let counts: Vec<(Tick, u32)> = counts.collect();
                *slots = Slots::of(slots.grain(), counts);
            }
            Self::Bucket(bucket) if at < bucket.at() => {
                *bucket = Bucket::of(bucket.spent(), bucket.token(), at);
            }
            // A period that is to come has begun for no store.
            Self::Count(count) if at < count.at() => {
                *count = Count::of(count.used(), count.starts().min(UnixTime(at.0)), at);
            }
            _ => {}
        }
    }

    /// Counts one request in flight less, because it has ended. Other algorithms count requests
    /// that have ended, too.
    pub fn release(&mut self) {
        if let Self::InFlight(in_flight) = self {
            in_flight.release();
        }
    }

    /// The key's usage at `now`.
    #[must_use]
    pub fn usage(&self, quota: &Quota, now: Tick) -> Usage {
        match (self, quota) {
            (Self::Log(log), Quota::Rolling(own)) if log.suits(*own) => log.usage(*own, now),
            (Self::Slots(slots), Quota::Rolling(own)) if slots.suits(*own) => {
                slots.usage(*own, now)
            }
            (Self::Bucket(bucket), Quota::Bucket(own)) => bucket.usage(*own, now),
            (Self::Count(count), Quota::Calendar(own)) => count.usage(*own, now),
            (Self::InFlight(in_flight), Quota::Concurrency(own)) => in_flight.usage(*own, now),
            _ => self.usage_fitted(quota, now),
        }
    }

    /// The tick from which the state decides as a fresh one does under every quota of `horizon`,
    /// unless the wall clock is set back. While requests are in flight: never.
    #[must_use]
    pub fn forgotten_at(&self, horizon: Horizon) -> Tick {
        let (newest, used) = match self {
            Self::Log(log) => (log.newest(), log.count()),
            // Slots of another length may end later by one of theirs.
            Self::Slots(slots) => {
                let window = std::time::Duration::from_micros(horizon.window);
                (slots.newest_end().plus(slots::grain(window)), slots.count())
            }
            Self::Bucket(bucket) => (bucket.at(), bucket.tokens_spent()),
            Self::Count(count) => (count.at(), count.used()),
            Self::InFlight(in_flight) if in_flight.count() > 0 => return Tick(u64::MAX),
            Self::InFlight(_) => (Tick(0), 0),
        };
        let refill = u64::from(used).saturating_mul(horizon.token);
        match used {
            0 => Tick(0),
            _ => Tick(newest.0.saturating_add(horizon.window.max(refill))),
        }
    }

    /// Calls `then` once the state fits the quota. Out of line: as a loop within a decision, this
    /// would cost each decision what the loop does not change, of all algorithms.
    #[cold]
    #[inline(never)]
    fn refitted<T>(&mut self, quota: &Quota, now: Tick, then: impl FnOnce(&mut Self) -> T) -> T {
        self.fit(quota, now);
        then(self)
    }

    /// Out of line for the same reason.
    #[cold]
    #[inline(never)]
    fn usage_fitted(&self, quota: &Quota, now: Tick) -> Usage {
        let mut state = self.clone();
        state.fit(quota, now);
        state.usage(quota, now)
    }

    /// What is known to have been used, and when, oldest first.
    fn charges(&self, now: Tick) -> Vec<(Tick, u32)> {
        let charges = match self {
            Self::Log(log) => log.times().map(|at| (at, 1)).collect(),
            Self::Slots(slots) => slots.counts().map(|(at, count)| (at.min(now), count)).collect(),
            Self::Bucket(bucket) => vec![(bucket.at(), bucket.tokens_spent())],
            Self::Count(count) => vec![(count.at(), count.used())],
            Self::InFlight(_) => Vec::new(),
        };
        charges.into_iter().filter(|(_, count)| *count > 0).collect()
    }
}

/// The state of a rolling window with these charges.
fn rolling(charges: Vec<(Tick, u32)>, quota: RollingQuota, now: Tick) -> State {
    let live = |(at, _): &(Tick, u32)| at.plus(quota.window) > now;
    let charges: Vec<(Tick, u32)> = charges.into_iter().filter(live).collect();
    let used: u64 = charges.iter().map(|(_, count)| u64::from(*count)).sum();
    if used.max(quota.requests.into()) > EXACT_MAX.into() {
        State::Slots(Slots::of(slots::grain(quota.window), charges))
    } else {
        State::Log(Log::of_counts(Log::needs_wide(quota.window), charges))
    }
}

/// The bucket after these charges.
fn bucket(charges: Vec<(Tick, u32)>, quota: BucketQuota) -> State {
    let mut bucket = Bucket::default();
    for (at, count) in charges {
        bucket.owe(quota.rate, count, at);
    }
    State::Bucket(bucket)
}

/// The count of a period with these charges: those before it do not count.
fn count(charges: Vec<(Tick, u32)>, quota: CalendarQuota) -> State {
    let within = charges.iter().filter(|(at, _)| *at >= quota.period.began);
    let used: u64 = within.map(|(_, count)| u64::from(*count)).sum();
    let used = u32::try_from(used).unwrap_or(u32::MAX);
    State::Count(match charges.last().filter(|_| used > 0) {
        Some((at, _)) => Count::of(used, quota.period.starts, *at),
        None => Count::default(),
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;
    use crate::limit::calendar::{Calendar, CalendarUnit, parse_zone};
    use crate::limit::concurrency::ConcurrencyQuota;
    use crate::limit::token_bucket::Rate;
    use crate::time::{Moment, UnixTime, micros};

    const HOUR: Duration = Duration::from_secs(3_600);
    /// June 2, 2026, at half past one in UTC.
    const START: Moment = Moment { tick: Tick(1 << 45), unix: UnixTime(1_780_363_800_000_000) };

    fn rolling_quota(requests: u32) -> Quota {
        Quota::Rolling(RollingQuota { requests, window: HOUR })
    }

    fn bucket_quota(rate: &str, burst: u32) -> Quota {
        Quota::Bucket(BucketQuota { rate: Rate::parse(rate).unwrap(), burst })
    }

    fn calendar_quota(unit: CalendarUnit, requests: u32) -> Quota {
        let calendar = Calendar { unit, zone: parse_zone("Europe/Zurich").unwrap() };
        Quota::Calendar(CalendarQuota::new(requests, calendar))
    }

    /// Quotas of one kind share their states.
    fn kind(quota: Quota) -> (std::mem::Discriminant<Quota>, Option<CalendarUnit>) {
        let unit = if let Quota::Calendar(own) = quota { Some(own.calendar.unit) } else { None };
        (std::mem::discriminant(&quota), unit)
    }

    fn moment(tick: Tick) -> Moment {
        Moment { tick, unix: START.unix_of(tick) }
    }

    /// The simplest correct version: what is known of every charge, moved nowhere.
    #[derive(Default)]
    struct Model {
        charges: Vec<(u64, u64)>,
        before: Option<Quota>,
        /// How many charges there were when the quota changed last.
        found: usize,
        /// Whether a state may know something else.
        is_over: bool,
        /// Whether what has left the window is forgotten, as another algorithm may count it.
        forgets: bool,
    }

    impl Model {
        /// What a state knows is forgotten as an algorithm forgets it.
        fn fit(&mut self, quota: Quota, now: u64) {
            let known = match self.before {
                Some(Quota::Calendar(own)) => Some(self.since(own.period.began.0)),
                Some(Quota::Bucket(own)) => {
                    let token = u128::from(micros(own.rate.period()));
                    let last = self.charges.last().map_or(now, |(at, _)| *at);
                    let [spent, _] = self.spent(own, last);
                    // Another bucket receives parts of a token, too.
                    let whole = if matches!(quota, Quota::Bucket(_)) {
                        spent / token
                    } else {
                        spent.div_ceil(token)
                    };
                    Some(u64::try_from(whole).unwrap())
                }
                _ => None,
            };
            let changes = self.before.is_some_and(|own| match quota {
                Quota::Bucket(_) => own != quota,
                _ => kind(own) != kind(quota),
            });
            let found: u64 = self.charges.iter().take(self.found).map(|(_, cost)| cost).sum();
            let was_in_debt = matches!(self.before, Some(Quota::Bucket(own))
                if found >= u64::from(own.burst));
            let known = known.map(|known| match (self.before, quota) {
                (Some(Quota::Calendar(_)), Quota::Bucket(own)) => known.min(own.burst.into()),
                _ => known,
            });
            if let Some(known) = known.filter(|_| changes) {
                let last = self.charges.last().map(|(at, _)| (*at, known));
                self.charges = last.into_iter().collect();
                // A bucket in debt knows a time before that of its last charge.
                self.is_over = was_in_debt;
            }
            if changes {
                self.found = self.charges.len();
            }
            if let Quota::Rolling(own) = quota
                && self.forgets
            {
                self.charges.retain(|(at, _)| at + micros(own.window) > now);
            }
            self.before = Some(quota);
        }

        fn since(&self, tick: u64) -> u64 {
            self.charges.iter().filter(|(at, _)| *at >= tick).map(|(_, cost)| cost).sum()
        }

        /// What is spent of a bucket, and what of that counts, in parts of a token, each as large
        /// as its period is long.
        fn spent(&self, quota: BucketQuota, now: u64) -> [u128; 2] {
            let refill = u128::from(quota.rate.tokens());
            let token = u128::from(micros(quota.rate.period()));
            let (mut both, mut last) = ([0_u128; 2], 0);
            for (nth, (at, cost)) in self.charges.iter().copied().chain([(now, 0)]).enumerate() {
                let back = u128::from(at - last) * refill;
                both = both.map(|spent| spent.saturating_sub(back) + u128::from(cost) * token);
                if nth + 1 == self.found {
                    // What a bucket finds empties it at worst.
                    both[1] = both[1].min(u128::from(quota.burst) * token);
                }
                last = at;
            }
            both
        }

        fn fits(&self, quota: Quota, cost: u32, now: u64) -> bool {
            let (cost, limit) = (u64::from(cost), u64::from(quota.limit()));
            match quota {
                Quota::Rolling(own) => {
                    self.since((now + 1).saturating_sub(micros(own.window))) + cost <= limit
                }
                Quota::Bucket(own) => {
                    let token = u128::from(micros(own.rate.period()));
                    let [_, counted] = self.spent(own, now);
                    counted + u128::from(cost) * token <= u128::from(limit) * token
                }
                Quota::Calendar(own) => self.since(own.period.began.0) + cost <= limit,
                Quota::Concurrency(_) => true,
            }
        }
    }

    fn steps(quotas: usize) -> impl Strategy<Value = Vec<(u64, u32, usize)>> {
        let wait = prop_oneof![Just(0), 1..5_000_u64, 1..900_000_000_u64, 1..5_000_000_000_u64];
        let cost = prop_oneof![1..5_u32, 1..40_u32, 1..40_000_u32];
        prop::collection::vec((wait, cost, 0..quotas), 1..60)
    }

    /// Whatever a state admits, its model admits. If `exact`, the state of a window refuses
    /// nothing that its model, with each time a slot later, admits.
    fn admits_no_more_than_the_model(
        quotas: &[Quota],
        steps: &[(u64, u32, usize)],
        exact: bool,
    ) -> Result<(), TestCaseError> {
        let mut state = State::fresh(quotas[0]);
        let mut model = Model { forgets: !exact, ..Model::default() };
        let mut now = START.tick.0;
        for (wait, cost, nth) in steps {
            now += wait;
            let (quota, cost) = (quotas[*nth].at(moment(Tick(now))), *cost);
            let mut unfitted = state.clone();
            state.fit(&quota, Tick(now));
            model.fit(quota, now);
            if model.is_over {
                break;
            }
            let decision = state.decide(&quota, cost, Tick(now));
            prop_assert_eq!(unfitted.decide(&quota, cost, Tick(now)), decision);
            match decision {
                Decision::Admit => {
                    prop_assert!(model.fits(quota, cost, now), "{} by {:?}", cost, quota);
                    let usage = state.charge(&quota, cost, Tick(now));
                    let left = state.usage(&quota, Tick(now)).remaining;
                    prop_assert_eq!(left, usage.remaining);
                    model.charges.push((now, cost.into()));
                }
                Decision::Refuse { retry_at } => {
                    prop_assert!(retry_at > Tick(now));
                    let slack = micros(slots::grain(HOUR));
                    if exact && matches!(quota, Quota::Rolling(_)) {
                        prop_assert!(!model.fits(quota, cost, now - slack), "{} refused", cost);
                    }
                }
                Decision::TooLarge => prop_assert!(cost > quota.limit()),
            }
        }
        Ok(())
    }

    fn every_quota() -> Vec<Quota> {
        vec![
            rolling_quota(60),
            rolling_quota(EXACT_MAX),
            rolling_quota(EXACT_MAX + 1),
            rolling_quota(200_000),
            calendar_quota(CalendarUnit::Day, 90_000),
            calendar_quota(CalendarUnit::Month, 300_000),
            bucket_quota("5000/h", 20_000),
            bucket_quota("7/s", 500),
            bucket_quota("90000/d", 100_000),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(150))]

        #[test]
        fn a_quota_that_is_lowered_and_raised_forgets_and_forgives_nothing(steps in steps(4)) {
            admits_no_more_than_the_model(&every_quota()[..4], &steps, true)?;
        }

        #[test]
        fn changes_between_windows_and_calendars_forget_and_double_nothing(steps in steps(6)) {
            admits_no_more_than_the_model(&every_quota()[..6], &steps, false)?;
        }

        #[test]
        fn changes_of_the_algorithm_forget_nothing_that_the_state_knows(steps in steps(9)) {
            admits_no_more_than_the_model(&every_quota(), &steps, false)?;
        }

        #[test]
        fn a_forgotten_state_decides_as_a_fresh_one_under_every_quota(
            steps in steps(9),
            chosen in prop::collection::vec(0..9_usize, 1..4),
            windows in prop::collection::vec(1..100_000_u64, 3),
            fits in prop::collection::vec((0..3_000_000_000_u64, 0..9_usize), 0..4),
        ) {
            let mut quotas: Vec<Quota> = chosen.iter().map(|nth| every_quota()[*nth]).collect();
            for (quota, seconds) in quotas.iter_mut().zip(windows) {
                if let Quota::Rolling(own) = quota {
                    own.window = Duration::from_secs(seconds);
                }
            }
            let horizon = Horizon::of(quotas.iter().copied());
            let (mut state, mut now) = (State::fresh(quotas[0]), START.tick.0);
            let nth = |nth: usize, now| quotas[nth % quotas.len()].at(moment(Tick(now)));
            for (wait, cost, of) in steps {
                now += wait;
                let quota = nth(of, now);
                state.fit(&quota, Tick(now));
                if state.decide(&quota, cost, Tick(now)) == Decision::Admit {
                    let _ = state.charge(&quota, cost, Tick(now));
                }
            }
            for (wait, of) in fits {
                now += wait;
                state.fit(&nth(of, now), Tick(now));
            }
            let forgotten_at = state.forgotten_at(horizon).0.max(now);
            for at in [forgotten_at, forgotten_at + 1, forgotten_at + 7_000_000_000] {
                for quota in &quotas {
                    let quota = quota.at(moment(Tick(at)));
                    let (mut own, fresh) = (state.clone(), State::fresh(quota));
                    own.fit(&quota, Tick(at));
                    let limit = quota.limit();
                    prop_assert_eq!(own.decide(&quota, limit, Tick(at)), Decision::Admit);
                    prop_assert_eq!(own.usage(&quota, Tick(at)), fresh.usage(&quota, Tick(at)));
                }
            }
        }
    }

    #[test]
    fn a_state_uses_32_bytes() {
        assert_eq!(size_of::<State>(), 32);
    }

    /// A state after these costs, an hour's sixtieth apart, and the time of the last.
    fn charged(quota: Quota, costs: &[u32]) -> (State, Tick) {
        let (mut state, mut now) = (State::fresh(quota), START.tick);
        for cost in costs {
            now = now.plus(HOUR / 60);
            let _ = state.charge(&quota.at(moment(now)), *cost, now);
        }
        (state, now)
    }

    /// What is left under `to` after a change from `from`, at once and after a time.
    fn left(from: Quota, costs: &[u32], to: Quota, later: Duration) -> [u32; 2] {
        let (mut state, now) = charged(from, costs);
        [Duration::ZERO, later].map(|later| {
            let now = now.plus(later);
            let quota = to.at(moment(now));
            state.fit(&quota, now);
            state.usage(&quota, now).remaining
        })
    }

    #[test]
    fn a_change_of_the_algorithm_keeps_what_is_known() {
        let day = calendar_quota(CalendarUnit::Day, 100);
        let (exact, many) = (rolling_quota(100), rolling_quota(100_000));
        let bucket = bucket_quota("60/h", 100);
        let (hour, minute) = (HOUR, HOUR / 60);
        // A minute lies between two costs.
        assert_eq!(left(exact, &[9, 20], many, hour), [99_971, 99_980], "to the end of the slot");
        assert_eq!(left(many, &[9, 20], exact, hour), [71, 100]);
        assert_eq!(left(exact, &[9, 20], bucket, minute), [72, 73]);
        assert_eq!(left(exact, &[9, 20], day, hour), [71, 71]);
        assert_eq!(left(day, &[9, 20], exact, hour), [71, 100], "all at the newest");
        assert_eq!(left(day, &[9, 20], bucket, minute), [71, 72]);
        assert_eq!(left(bucket, &[9, 20], exact, hour), [72, 100]);
        assert_eq!(left(bucket, &[9, 20], many, hour), [99_972, 99_972]);
        assert_eq!(left(bucket, &[9, 20], day, hour), [72, 72]);
    }

    #[test]
    fn a_calendar_counts_only_what_was_in_its_period() {
        let (window, day) = (rolling_quota(100), calendar_quota(CalendarUnit::Day, 100));
        let Quota::Calendar(today) = day.at(START) else { panic!("it is a calendar's") };
        let midnight = today.period.ends;
        let mut state = State::fresh(window);
        let _ = state.charge(&window, 9, Tick(midnight.0 - 1));
        let _ = state.charge(&window, 20, midnight);
        let tomorrow = day.at(moment(midnight));
        state.fit(&tomorrow, midnight);
        assert_eq!(state.usage(&tomorrow, midnight).remaining, 80);
    }

    #[test]
    fn many_requests_stay_in_slots_under_a_low_quota() {
        let (low, high) = (rolling_quota(60), rolling_quota(1_000_000));
        let (mut state, now) = charged(high, &[400_000, 500_000]);
        state.fit(&low, now);
        assert_eq!(state.usage(&low, now).remaining, 0);
        state.fit(&high, now);
        assert_eq!(state.usage(&high, now).remaining, 100_000);
        let later = now.plus(2 * HOUR);
        assert_eq!(state.charge(&low, 1, later).remaining, 59);
        state.fit(&low, later);
        assert!(matches!(state, State::Log(_)));
    }

    #[test]
    fn what_has_long_left_a_shorter_window_does_not_come_back() {
        let quota = |requests, window| Quota::Rolling(RollingQuota { requests, window });
        // As long ago as the 32 bits of a time or of a slot's number, which is then the same again.
        // A slot of the long window has 2^23 microseconds.
        let (long, later) =
            (Duration::from_micros(1 << 33), Tick(START.tick.0 + (1 << 32) + (1 << 23) - 1));
        for from in [quota(100, long), quota(100_000, long)] {
            let minute = quota(100, Duration::from_secs(60));
            for to in [minute, quota(100_000, Duration::from_millis(1))] {
                let mut state = State::fresh(from);
                let _ = state.charge(&from, 40, START.tick);
                let _ = state.charge(&from, 2, later);
                state.fit(&to, later);
                assert_eq!(state.usage(&to, later).remaining, to.limit() - 2);
            }
        }
    }

    #[test]
    fn slots_under_lowered_quotas_are_kept_for_a_slot_of_any_length() {
        for seconds in 3_500..3_700 {
            let (mut state, now) = charged(rolling_quota(1_000_000), &[200_000]);
            let window = Duration::from_secs(seconds);
            let low = Quota::Rolling(RollingQuota { requests: 60, window });
            let forgotten_at = state.forgotten_at(Horizon::of([low]));
            state.fit(&low, now.plus(HOUR / 60));
            assert_eq!(state.usage(&low, forgotten_at).remaining, 60);
        }
    }

    #[test]
    fn requests_in_flight_stay_until_they_end() {
        let flight = Quota::Concurrency(ConcurrencyQuota { requests: 3 });
        let mut state = State::fresh(flight);
        assert_eq!(state.charge(&flight, 5, START.tick).remaining, 2);
        let horizon = Horizon::of([flight]);
        assert_eq!(state.forgotten_at(horizon), Tick(u64::MAX));
        let mut other = state.clone();
        other.fit(&rolling_quota(9), START.tick);
        assert_eq!(other.usage(&rolling_quota(9), START.tick).remaining, 9);
        state.release();
        assert_eq!(state.forgotten_at(horizon), Tick(0));
        let (mut window, now) = charged(rolling_quota(9), &[4]);
        window.release();
        assert_eq!(window.usage(&rolling_quota(9), now).remaining, 5);
        window.fit(&flight, now);
        assert_eq!(window.usage(&flight, now).remaining, 3);
    }

    #[test]
    fn a_state_is_kept_as_long_as_its_horizon_needs_it() {
        let (state, now) = charged(rolling_quota(100), &[30]);
        let window = Horizon::of([rolling_quota(100)]);
        assert_eq!(state.forgotten_at(window), now.plus(HOUR));
        let slow = Horizon::of([rolling_quota(100), bucket_quota("6/h", 100)]);
        assert_eq!(state.forgotten_at(slow), now.plus(5 * HOUR));
        assert_eq!(State::fresh(rolling_quota(100)).forgotten_at(slow), Tick(0));
    }

    #[test]
    fn an_admission_is_inserted_at_its_own_time() {
        let quota = Quota::Rolling(RollingQuota { requests: 9, window: Duration::from_secs(60) });
        let mut state = State::fresh(quota);
        for at in [10, 30] {
            let _ = state.charge(&quota, 1, Tick(at));
        }
        assert!(state.is_after(Tick(29)) && !state.is_after(Tick(30)));
        state.insert(2, Tick(20));
        let charges = state.charges(Tick(30));
        assert_eq!(charges, [(Tick(10), 1), (Tick(20), 1), (Tick(20), 1), (Tick(30), 1)]);
        assert_eq!(state.usage(&quota, Tick(30)).remaining, 5);
    }
}
