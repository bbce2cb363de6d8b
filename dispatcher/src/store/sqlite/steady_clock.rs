//! Steady time: wall-clock time that ignores changes of the clock.
//!
//! Retention (of ended deliveries, identifiers of events, jobs, mails and endpoints) uses it, and
//! the overlap of secrets. It is stored in the database.
//!
//! # Invariants
//!
//! 1. While the program runs, steady time advances with the monotonic clock, however the wall clock
//!    is set.
//! 2. Between two runs it advances by at most [`DOWNTIME_MAX`], and never backwards: a wall clock
//!    that shows a longer stop is not trusted.

use std::time::Duration;

use weir_common::time::{Clock, Moment, Tick, UnixTime};

/// Restarts are shorter. After a longer stop, retention lasts longer, which loses nothing.
pub(super) const DOWNTIME_MAX: Duration = Duration::from_secs(3_600);

/// [`Steady::of_unix`] takes a larger difference from now for this one: a time to be stored may be
/// this old, and beyond that the clock was set since.
const APART_MAX: Duration = Duration::from_secs(3_600);

/// Where steady time began in a process, on the monotonic clock: from there on both advance alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Origin {
    began: Tick,
    /// Steady time then.
    at: UnixTime,
}

impl Origin {
    /// The stored form.
    pub(super) fn stored(self) -> [u8; 16] {
        let mut stored = [0; 16];
        let (began, at) = stored.split_at_mut(8);
        began.copy_from_slice(&self.began.0.to_le_bytes());
        at.copy_from_slice(&self.at.0.to_le_bytes());
        stored
    }

    /// The origin of its stored form; `None` if that is damaged.
    pub(super) fn of_stored(stored: &[u8]) -> Option<Self> {
        let (began, rest) = stored.split_first_chunk()?;
        let at = u64::from_le_bytes(rest.try_into().ok()?);
        Some(Self { began: Tick(u64::from_le_bytes(*began)), at: UnixTime(at) })
    }
}

/// By how much the wall clock was set ahead between the last write of the previous process and now,
/// as far as is known: the monotonic clock shows it, unless the machine was booted since and runs
/// for less time than it did then. A clock that was set back needs no care: what is recorded with
/// a time ahead counts as of now.
///
/// Of both clocks the one by which less time has passed counts: on another machine, or after a
/// boot, that may be less than has passed, and is never more.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct SetAhead(Duration);

impl SetAhead {
    /// From the last stored steady time with the wall-clock time at the same moment, and the origin
    /// of the process that stored them.
    pub(super) fn since(
        (steady, seen): (UnixTime, UnixTime),
        origin: Origin,
        Moment { tick, unix }: Moment,
    ) -> Self {
        let written = origin.began.plus(steady.since(origin.at));
        if written > tick {
            return Self::default();
        }
        Self(unix.since(seen.plus(tick.since(written))))
    }

    /// The time that the clock would show instead of `unix`.
    pub(super) fn undone(self, unix: UnixTime) -> UnixTime {
        before(unix, self.0)
    }

    /// The time that the clock shows instead of `unix`.
    pub(super) fn done(self, unix: UnixTime) -> UnixTime {
        unix.plus(self.0)
    }
}

/// The steady clock.
#[derive(Clone, Debug)]
pub(super) struct Steady {
    clock: Clock,
    /// The start of this process, on the monotonic clock.
    began: Tick,
    /// Steady time at that moment.
    at: UnixTime,
}

impl Steady {
    /// Continues from `kept`: steady time, and the wall-clock time at the same moment.
    pub(super) fn from(clock: Clock, kept: Option<(UnixTime, UnixTime)>) -> Self {
        let Moment { tick, unix } = clock.now();
        let at = kept.map_or(unix, |(at, seen)| at.plus(unix.since(seen).min(DOWNTIME_MAX)));
        Self { clock, began: tick, at }
    }

    /// Where it began in this process.
    pub(super) fn origin(&self) -> Origin {
        Origin { began: self.began, at: self.at }
    }

    /// Steady time now.
    pub(super) fn now(&self) -> UnixTime {
        self.of(self.clock.now().tick)
    }

    /// Steady time at a tick since the start.
    pub(super) fn of(&self, tick: Tick) -> UnixTime {
        self.at.plus(tick.since(self.began))
    }

    /// Steady time at a recent wall-clock time.
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
    fn how_far_the_clock_was_set_ahead_between_two_processes_shows_by_the_monotonic_one() {
        let second = Duration::from_secs(1);
        let due = NOW.plus(HOUR + second);
        for (set, undone) in [(due.plus(HOUR * 9), due), (due, due), (NOW, NOW)] {
            let clock = Clock::manual(NOW);
            let origin = Steady::from(clock.clone(), Some((UnixTime(5), NOW))).origin();
            let origin = Origin::of_stored(&origin.stored()).expect("it is whole");
            clock.advance(HOUR);
            let written = (UnixTime(5).plus(HOUR), clock.now().unix);
            clock.advance(second);
            clock.set(set);
            let found = SetAhead::since(written, origin, clock.now());
            assert_eq!(found.undone(set), undone);
            assert_eq!(found.done(undone), set);
            let booted = Moment { tick: Tick(7), unix: set };
            assert_eq!(SetAhead::since(written, origin, booted), SetAhead::default());
        }
        assert_eq!(Origin::of_stored(b"damaged"), None);
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
