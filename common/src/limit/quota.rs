//! How much one limit allows, whichever algorithm it uses. (core)
//!
//! # Invariants
//!
//! 1. A [`Horizon`] is not exceeded by any of its quotas: see `state`, which uses it.
//!
//! # Not here
//!
//! What a key has used (`state`), which quota applies to a request (the gateway's `rules`).

use std::time::Duration;

use crate::limit::calendar::CalendarQuota;
use crate::limit::concurrency::{ConcurrencyQuota, RETRY_AFTER};
use crate::limit::rolling::{EXACT_MAX, RollingQuota};
use crate::limit::slots;
use crate::limit::token_bucket::BucketQuota;
use crate::time::{Moment, micros};

/// How much longer than usual a calendar's period may be, because clocks change in it. A zone that
/// moves to the other side of the date line has a day twice.
const PERIOD_MARGIN: Duration = Duration::from_secs(24 * 3_600);

/// How much a limit allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Quota {
    /// At most this many requests in any interval as long as the window.
    Rolling(RollingQuota),
    /// A token bucket, refilled at a rate.
    Bucket(BucketQuota),
    /// At most this many requests in each day or month of a calendar.
    Calendar(CalendarQuota),
    /// At most this many requests in flight at once.
    Concurrency(ConcurrencyQuota),
}

impl Quota {
    /// The allowance in the client's headers: requests per window or period, the burst of a bucket,
    /// or requests in flight.
    #[must_use]
    pub fn limit(&self) -> u32 {
        match self {
            Self::Rolling(quota) => quota.requests,
            Self::Bucket(quota) => quota.burst,
            Self::Calendar(quota) => quota.requests,
            Self::Concurrency(quota) => quota.requests,
        }
    }

    /// How long an exhausted allowance takes to be available in full again. Of a calendar: how long
    /// its period is. Of requests in flight: an estimate.
    #[must_use]
    pub fn window(&self) -> Duration {
        match self {
            Self::Rolling(quota) => quota.window,
            Self::Bucket(quota) => Duration::from_micros(quota.rate.micros_of(quota.burst)),
            Self::Calendar(quota) => quota.length(),
            Self::Concurrency(_) => RETRY_AFTER,
        }
    }

    /// Whether two quotas differ in their numbers alone: a state of one is a state of the other.
    #[must_use]
    pub fn is_alike(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Rolling(one), Self::Rolling(other)) => one.window == other.window,
            (Self::Calendar(one), Self::Calendar(other)) => one.calendar == other.calendar,
            (Self::Bucket(_), Self::Bucket(_)) | (Self::Concurrency(_), Self::Concurrency(_)) => {
                true
            }
            _ => false,
        }
    }

    /// The quota of decisions at `now`: a calendar's has the period of that moment.
    #[must_use]
    pub fn at(self, now: Moment) -> Self {
        match self {
            Self::Calendar(quota) => Self::Calendar(quota.at(now)),
            Self::Rolling(_) | Self::Bucket(_) | Self::Concurrency(_) => self,
        }
    }
}

/// How long a charge can matter under every quota that one limit may have: its own, those of its
/// plans, and those of its tenants.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Horizon {
    /// The longest window or period, in microseconds, with what slots and changes of clocks add.
    pub window: u64,
    /// How long one token takes to come back at the slowest rate, in microseconds, rounded up.
    pub token: u64,
}

impl Horizon {
    /// The horizon of its quotas and one more.
    #[must_use]
    pub fn with(self, quota: Quota) -> Self {
        let own = Self::of_one(&quota);
        if own == self {
            return self;
        }
        let window = self.window.max(own.window);
        // Of quotas of two algorithms, one may count in slots.
        Self { window: with_grain(window), token: self.token.max(own.token) }
    }

    /// The horizon of a limit that has only this quota.
    #[must_use]
    pub fn of_one(quota: &Quota) -> Self {
        match quota {
            Quota::Rolling(own) if own.requests > EXACT_MAX => {
                Self { window: with_grain(micros(own.window)), token: 0 }
            }
            Quota::Rolling(own) => Self { window: micros(own.window), token: 0 },
            Quota::Bucket(own) => Self { window: 0, token: own.rate.micros_of(1) },
            Quota::Calendar(own) => {
                Self { window: micros(own.calendar.nominal() + PERIOD_MARGIN), token: 0 }
            }
            Quota::Concurrency(_) => Self::default(),
        }
    }

    /// The horizon of all these quotas.
    #[must_use]
    pub fn of(quotas: impl IntoIterator<Item = Quota>) -> Self {
        let (mut horizon, mut slotted, mut rolling) = (Self::default(), false, 0);
        for quota in quotas {
            let own = Self::of_one(&quota);
            horizon.token = horizon.token.max(own.token);
            match quota {
                Quota::Rolling(own) => {
                    slotted |= own.requests > EXACT_MAX;
                    rolling = rolling.max(micros(own.window));
                }
                // More may be used than a log counts one by one.
                Quota::Bucket(_) => slotted = true,
                Quota::Calendar(_) => {
                    slotted = true;
                    horizon.window = horizon.window.max(own.window);
                }
                Quota::Concurrency(_) => {}
            }
        }
        let rolling = if slotted { with_grain(rolling) } else { rolling };
        Self { window: horizon.window.max(rolling), ..horizon }
    }
}

/// A window, and a slot of it; none if there is no window. In microseconds.
fn with_grain(window: u64) -> u64 {
    match window {
        0 => 0,
        _ => window + micros(slots::grain(Duration::from_micros(window))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limit::calendar::{Calendar, CalendarUnit, parse_zone};
    use crate::limit::token_bucket::Rate;
    use crate::time::{Tick, UnixTime};

    fn quotas() -> [Quota; 5] {
        let calendar = |unit| {
            let calendar = Calendar { unit, zone: parse_zone("Europe/Zurich").unwrap() };
            Quota::Calendar(CalendarQuota::new(7, calendar))
        };
        [
            Quota::Rolling(RollingQuota { requests: 60, window: Duration::from_secs(60) }),
            Quota::Bucket(BucketQuota { rate: Rate::parse("7/h").unwrap(), burst: 14 }),
            calendar(CalendarUnit::Day),
            calendar(CalendarUnit::Month),
            Quota::Concurrency(ConcurrencyQuota { requests: 9 }),
        ]
    }

    #[test]
    fn a_quota_has_a_limit_and_a_window() {
        let shown = |quota: Quota| (quota.limit(), quota.window().as_secs());
        let expected = [(60, 60), (14, 7_200), (7, 86_400), (7, 31 * 86_400), (9, 1)];
        assert_eq!(quotas().map(shown), expected);
        // In November, after clocks have gone back.
        let now = Moment { tick: Tick(1 << 45), unix: UnixTime(1_795_000_000_000_000) };
        assert_eq!(quotas().map(|quota| quota.at(now).window().as_secs())[3], 30 * 86_400);
    }

    #[test]
    fn a_calendar_alone_has_a_period_to_fill() {
        let now = Moment { tick: Tick(1 << 45), unix: UnixTime(1_795_000_000_000_000) };
        let changed = quotas().map(|quota| quota.at(now) != quota);
        assert_eq!(changed, [false, false, true, true, false]);
    }

    #[test]
    fn a_horizon_has_the_longest_window_and_the_slowest_token() {
        let [minute, bucket, day, month, flight] = quotas();
        assert_eq!(Horizon::of([minute, flight]), Horizon { window: 60_000_000, token: 0 });
        let horizon = Horizon::of([minute, bucket]);
        assert_eq!(horizon, Horizon { window: 60_058_594, token: 514_285_715 });
        let days = |quota: Quota| Horizon::of([minute, quota]).window / 86_400_000_000;
        assert_eq!((days(day), days(month)), (2, 32));
        assert_eq!(Horizon::of([flight]), Horizon::default());
        let many = RollingQuota { requests: 100_000, window: Duration::from_secs(60) };
        assert_eq!(Horizon::of([Quota::Rolling(many)]).window, 60_058_594);
    }
}
