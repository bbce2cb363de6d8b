//! Steady time: the time of day of a clock that is never set.
//!
//! Retention uses it: ended deliveries, identifiers of events, jobs, mails, endpoints, and the
//! overlap of secrets. It is stored in the database.
//!
//! # Invariants
//!
//! 1. While the program runs, as much steady time passes as time does, however the clock is set.
//! 2. Between two runs it advances by at most [`DOWNTIME_MAX`], and never backwards: the wall clock
//!    is not trusted about a longer stop.

use std::time::Duration;

use weir_common::time::{Clock, Moment, Tick, UnixTime};

/// A restart is shorter; after a longer stop retention is longer, which loses nothing.
pub(super) const DOWNTIME_MAX: Duration = Duration::from_secs(3_600);

/// A stored time may be this old, or from a clock that was set since.
const APART_MAX: Duration = Duration::from_secs(3_600);

/// Counts it.
#[derive(Clone, Debug)]
pub(super) struct Steady {
    clock: Clock,
    /// When we began, on the monotonic clock.
    began: Tick,
    /// What it was then.
    at: UnixTime,
}

impl Steady {
    /// Goes on from what it was when the wall clock showed `seen`.
    pub(super) fn from(clock: Clock, kept: Option<(UnixTime, UnixTime)>) -> Self {
        let Moment { tick, unix } = clock.now();
        let at = kept.map_or(unix, |(at, seen)| at.plus(unix.since(seen).min(DOWNTIME_MAX)));
        Self { clock, began: tick, at }
    }

    /// Now.
    pub(super) fn now(&self) -> UnixTime {
        self.of(self.clock.now().tick)
    }

    /// At a tick since we began.
    pub(super) fn of(&self, tick: Tick) -> UnixTime {
        self.at.plus(tick.since(self.began))
    }

    /// Of what was at that time of day, a moment ago.
    pub(super) fn of_unix(&self, unix: UnixTime) -> UnixTime {
        let Moment { tick, unix: now } = self.clock.now();
        let steady = self.of(tick);
        if unix > now {
            steady.plus(unix.since(now).min(APART_MAX))
        } else {
            before(steady, now.since(unix).min(APART_MAX))
        }
    }
}

/// The time `by` earlier.
pub(super) fn before(time: UnixTime, by: Duration) -> UnixTime {
    UnixTime(time.0.saturating_sub(weir_common::time::micros(by)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: UnixTime = UnixTime(1_790_000_000_000_000);
    const HOUR: Duration = Duration::from_secs(3_600);

    #[test]
    fn it_passes_as_time_does_however_the_clock_is_set() {
        let clock = Clock::manual(NOW);
        let steady = Steady::from(clock.clone(), None);
        for unix in [NOW.plus(HOUR * 960), UnixTime(0), before(NOW, HOUR * 960)] {
            clock.set(unix);
            assert_eq!(steady.now(), NOW);
        }
        clock.advance(HOUR);
        assert_eq!(steady.now(), NOW.plus(HOUR));
    }

    #[test]
    fn of_a_stop_an_hour_counts_and_none_of_a_clock_that_was_set_back() {
        for (since, counted) in [(HOUR / 2, HOUR / 2), (HOUR * 960, HOUR)] {
            let seen = before(NOW, since);
            let steady = Steady::from(Clock::manual(NOW), Some((UnixTime(5), seen)));
            assert_eq!(steady.now(), UnixTime(5).plus(counted));
        }
        let ahead = Some((UnixTime(5), NOW.plus(HOUR)));
        assert_eq!(Steady::from(Clock::manual(NOW), ahead).now(), UnixTime(5));
    }

    #[test]
    fn what_was_a_moment_ago_on_a_clock_that_was_set_since_was_a_moment_ago() {
        let clock = Clock::manual(NOW);
        let steady = Steady::from(clock.clone(), None);
        let second = Duration::from_secs(1);
        assert_eq!(steady.of_unix(before(NOW, second)), before(NOW, second));
        clock.set(NOW.plus(HOUR * 960));
        assert_eq!(steady.of_unix(NOW), before(NOW, APART_MAX));
        clock.set(before(NOW, HOUR * 960));
        assert_eq!(steady.of_unix(NOW), NOW.plus(APART_MAX));
    }
}
