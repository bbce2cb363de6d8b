//! Decides when a failed delivery is retried. (core)
//!
//! # Invariants
//!
//! 1. The next attempt is never before `now`, never before the receiver's `Retry-After` (up to
//!    `retry_after_max`), and never after the deadline.
//! 2. A delivery fails permanently only with an attempt at or after the deadline, so there is
//!    always one attempt at the deadline itself. Pings are not retried (`transition`).
//!
//! Not here: whether a failure counts (`outcome`), when the deadline is (`webhook`), the rate limit
//! of an endpoint and pauses (`scheduler`). Those delay an attempt; they do not end a delivery.

use std::time::Duration;

use weir_common::time::UnixTime;

/// The retry schedule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Schedule {
    /// What the delays count from.
    pub mode: Mode,
    /// The delay after each failure; the last one repeats. Not empty.
    pub delays: Vec<Duration>,
    /// From the first attempt to the last.
    pub give_up_after: Duration,
    /// The longest `Retry-After` that is honoured.
    pub retry_after_max: Duration,
}

/// What delays count from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// The previous failure.
    Delay,
    /// The first attempt of the schedule.
    Offset,
}

/// A failed attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failed {
    /// Failures since the schedule began, without this one.
    pub step: u32,
    /// When the first attempt of the schedule started.
    pub since: UnixTime,
    /// When the delivery fails permanently, as of now.
    pub deadline: UnixTime,
    /// The receiver's `Retry-After`.
    pub hint: Option<Duration>,
}

/// When the next attempt is due, if ever.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// At this time.
    At(UnixTime),
    /// This was the last attempt.
    GiveUp,
}

impl Schedule {
    /// When to retry after this failure.
    #[must_use]
    pub fn next(&self, failed: Failed, now: UnixTime) -> Next {
        if now >= failed.deadline {
            return Next::GiveUp;
        }
        let listed = match self.mode {
            Mode::Delay => self.delay(failed.step).map(|delay| now.plus(delay)),
            Mode::Offset => self.offset_after(failed.since, now),
        };
        let requested = now.plus(failed.hint.unwrap_or_default().min(self.retry_after_max));
        Next::At(listed.unwrap_or(failed.deadline).max(requested).min(failed.deadline))
    }

    fn delay(&self, step: u32) -> Option<Duration> {
        let own = usize::try_from(step).ok().and_then(|step| self.delays.get(step));
        own.or(self.delays.last()).copied()
    }

    fn offset_after(&self, since: UnixTime, now: UnixTime) -> Option<UnixTime> {
        // A clock that is set back must not delay the next attempt by as much.
        let since = since.min(now);
        let elapsed = now.since(since);
        self.delays.iter().find(|offset| **offset > elapsed).map(|offset| since.plus(*offset))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const START: UnixTime = UnixTime(1_800_000_000_000_000);
    const MINUTE: Duration = Duration::from_secs(60);
    const HOUR: Duration = Duration::from_secs(3_600);

    fn contract(mode: Mode) -> Schedule {
        let delays = [MINUTE, 5 * MINUTE, 30 * MINUTE, 2 * HOUR, 6 * HOUR];
        let delays = [delays.as_slice(), &[12 * HOUR, 24 * HOUR, 48 * HOUR]].concat();
        Schedule { mode, delays, give_up_after: 48 * HOUR, retry_after_max: HOUR }
    }

    /// The starts, counted from the first, of attempts that each last `duration` and fail.
    fn attempts(schedule: &Schedule, duration: Duration) -> Vec<Duration> {
        let deadline = START.plus(schedule.give_up_after);
        let (mut at, mut all) = (START, vec![Duration::ZERO]);
        for step in 0..1_000 {
            let failed = Failed { step, since: START, deadline, hint: None };
            match schedule.next(failed, at.plus(duration)) {
                Next::At(next) => at = next,
                Next::GiveUp => return all,
            }
            all.push(at.since(START));
        }
        panic!("the schedule has no end");
    }

    fn in_minutes(minutes: &[u32]) -> Vec<Duration> {
        minutes.iter().map(|minutes| MINUTE * *minutes).collect()
    }

    #[test]
    fn delays_count_from_the_failure_before() {
        let expected = [0, 1, 6, 36, 156, 516, 1_236, 2_676, 2_880];
        assert_eq!(attempts(&contract(Mode::Delay), Duration::ZERO), in_minutes(&expected));
    }

    #[test]
    fn offsets_count_from_the_first_attempt() {
        let expected = [0, 1, 5, 30, 120, 360, 720, 1_440, 2_880];
        assert_eq!(attempts(&contract(Mode::Offset), Duration::ZERO), in_minutes(&expected));
    }

    #[test]
    fn a_slow_attempt_moves_delays_and_not_offsets() {
        let duration = Duration::from_secs(10);
        let delayed = attempts(&contract(Mode::Delay), duration);
        assert_eq!(delayed[1..3], [MINUTE + duration, 6 * MINUTE + 2 * duration]);
        assert_eq!(delayed.last(), Some(&(48 * HOUR)));
        let expected = [0, 1, 5, 30, 120, 360, 720, 1_440, 2_880];
        assert_eq!(attempts(&contract(Mode::Offset), duration), in_minutes(&expected));
    }

    #[test]
    fn retry_after_lengthens_the_delay_up_to_its_maximum() {
        let schedule = contract(Mode::Delay);
        let next = |hint| {
            let deadline = START.plus(48 * HOUR);
            schedule.next(Failed { step: 0, since: START, deadline, hint: Some(hint) }, START)
        };
        for (requested, given) in
            [(Duration::ZERO, MINUTE), (20 * MINUTE, 20 * MINUTE), (HOUR, HOUR), (24 * HOUR, HOUR)]
        {
            assert_eq!(next(requested), Next::At(START.plus(given)), "{requested:?}");
        }
    }

    #[test]
    fn the_last_delay_is_repeated_until_the_deadline() {
        let (delays, give_up_after) = (vec![MINUTE, HOUR], 3 * HOUR);
        let schedule = Schedule { delays, give_up_after, ..contract(Mode::Delay) };
        let expected = in_minutes(&[0, 1, 61, 121, 180]);
        assert_eq!(attempts(&schedule, Duration::ZERO), expected);
    }

    #[test]
    fn after_the_last_offset_the_deadline_is_next() {
        let (delays, give_up_after) = (vec![MINUTE, HOUR], 3 * HOUR);
        let schedule = Schedule { delays, give_up_after, ..contract(Mode::Offset) };
        assert_eq!(attempts(&schedule, Duration::ZERO), in_minutes(&[0, 1, 60, 180]));
    }

    #[test]
    fn a_late_attempt_skips_past_offsets() {
        let failed = Failed { step: 0, since: START, deadline: START.plus(48 * HOUR), hint: None };
        let next = contract(Mode::Offset).next(failed, START.plus(3 * HOUR));
        assert_eq!(next, Next::At(START.plus(6 * HOUR)));
    }

    #[test]
    fn retry_after_never_brings_an_attempt_forward() {
        for mode in [Mode::Delay, Mode::Offset] {
            for (hint, expected) in
                [(Duration::from_secs(1), MINUTE), (2 * MINUTE, 2 * MINUTE), (HOUR, HOUR / 2)]
            {
                let deadline = START.plus(HOUR / 2);
                let failed = Failed { step: 0, since: START, deadline, hint: Some(hint) };
                let next = contract(mode).next(failed, START);
                assert_eq!(next, Next::At(START.plus(expected)), "{mode:?} {hint:?}");
            }
        }
    }

    #[test]
    fn a_clock_set_back_does_not_delay_an_attempt() {
        let now = UnixTime(START.0 - 365 * 24 * 3_600_000_000);
        let failed = Failed { step: 0, since: START, deadline: START.plus(48 * HOUR), hint: None };
        for mode in [Mode::Delay, Mode::Offset] {
            assert_eq!(contract(mode).next(failed, now), Next::At(now.plus(MINUTE)));
        }
    }

    fn schedules() -> impl Strategy<Value = Schedule> {
        let mode = prop_oneof![Just(Mode::Delay), Just(Mode::Offset)];
        let delays = prop::collection::vec(1_u64..10_000_000, 1..10);
        let (give_up_after, most) = (1_u64..100_000_000, any::<u64>());
        (mode, delays, give_up_after, most).prop_map(|(mode, delays, give_up_after, most)| {
            Schedule {
                mode,
                delays: delays.into_iter().map(Duration::from_micros).collect(),
                give_up_after: Duration::from_micros(give_up_after),
                retry_after_max: Duration::from_micros(most),
            }
        })
    }

    proptest! {
        #[test]
        fn the_next_attempt_is_neither_early_nor_late(
            schedule in schedules(),
            step in any::<u32>(),
            times in any::<[u64; 3]>(),
            hint in prop::option::of(any::<u64>()),
        ) {
            let [since, deadline, now] = times.map(UnixTime);
            let hint = hint.map(Duration::from_micros);
            match schedule.next(Failed { step, since, deadline, hint }, now) {
                Next::GiveUp => prop_assert!(now >= deadline),
                Next::At(at) => {
                    prop_assert!(now < deadline && now <= at && at <= deadline);
                    let hint = hint.unwrap_or_default().min(schedule.retry_after_max);
                    let requested = now.plus(hint);
                    prop_assert!(at == deadline || at >= requested);
                    prop_assert!(at > now, "no schedule has a zero delay");
                }
            }
        }

        #[test]
        fn every_schedule_ends_with_an_attempt_at_its_deadline(schedule in schedules()) {
            let shortest = schedule.delays.iter().min().unwrap();
            let most = match schedule.mode {
                Mode::Delay => schedule.give_up_after.as_micros() / shortest.as_micros() + 2,
                Mode::Offset => schedule.delays.len() as u128 + 2,
            };
            // Long schedules are cut off by `attempts`.
            if most < 1_000 {
                let all = attempts(&schedule, Duration::ZERO);
                prop_assert!(all.len() as u128 <= most);
                prop_assert_eq!(all.last(), Some(&schedule.give_up_after));
            }
        }
    }
}
