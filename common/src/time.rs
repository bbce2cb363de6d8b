//! Reads the clock: the only file that does.
//!
//! A [`Moment`] has both clocks of one instant: the monotonic one, for limits and deadlines, and
//! the wall clock, for dates that are shown, stored or received. A test advances [`Clock::manual`].
//!
//! Not here: waiting. The caller that waits owns its timer.

use std::fmt::Display;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::time::{ClockId, clock_gettime};

/// The last microsecond of the year 9999.
const END_OF_9999: u64 = 253_402_300_799_999_999;

/// Added to the monotonic clock, so that "a month ago" is not negative soon after a boot.
const ORIGIN_MICROS: u64 = 10_000_000 * 1_000_000;

/// Microseconds on the machine's monotonic clock, which all its processes share until a reboot.
/// Never runs backwards, and cannot be set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Tick(pub u64);

impl Tick {
    /// The tick `by` later; saturates.
    #[must_use]
    pub fn plus(self, by: Duration) -> Self {
        Self(self.0.saturating_add(micros(by)))
    }

    /// How long after `earlier` this is; zero when it is not.
    #[must_use]
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_micros(self.0.saturating_sub(earlier.0))
    }
}

/// Microseconds since 1970-01-01T00:00:00Z by the wall clock, which may jump either way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct UnixTime(pub u64);

impl UnixTime {
    /// The time `by` later.
    #[must_use]
    pub fn plus(self, by: Duration) -> Self {
        Self(self.0.saturating_add(micros(by)))
    }

    /// How long after `earlier` this is; zero when it is not.
    #[must_use]
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_micros(self.0.saturating_sub(earlier.0))
    }

    /// Whole seconds, rounded up: a client that waits until then has waited long enough.
    #[must_use]
    pub fn seconds_up(self) -> u64 {
        self.0.div_ceil(1_000_000)
    }

    /// RFC 3339 in UTC with milliseconds, as `2026-11-20T14:03:00.125Z`.
    #[must_use]
    pub fn rfc3339(self) -> String {
        self.rfc3339_shown().to_string()
    }

    /// The same, to be written. RFC 3339 has no year after 9999.
    #[must_use]
    pub fn rfc3339_shown(self) -> impl Display {
        let shown = self.0.min(END_OF_9999);
        humantime::format_rfc3339_millis(UNIX_EPOCH + Duration::from_micros(shown))
    }
}

/// Both clocks, read at one instant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Moment {
    /// For limits and deadlines.
    pub tick: Tick,
    /// For dates: shown, stored, or compared with those of others.
    pub unix: UnixTime,
}

impl Moment {
    /// The tick of an earlier wall-clock time, as seen from this moment. A later one, which a clock
    /// that was set back leaves, counts as now.
    #[must_use]
    pub fn tick_of(&self, unix: UnixTime) -> Tick {
        Tick(self.tick.0.saturating_sub(self.unix.0.saturating_sub(unix.0)))
    }

    /// The tick of a wall-clock time before or after this moment.
    #[must_use]
    pub fn tick_at(&self, unix: UnixTime) -> Tick {
        if unix > self.unix { self.tick.plus(unix.since(self.unix)) } else { self.tick_of(unix) }
    }

    /// The wall-clock time of `tick`, as seen from this moment.
    #[must_use]
    pub fn unix_of(&self, tick: Tick) -> UnixTime {
        if tick >= self.tick {
            self.unix.plus(tick.since(self.tick))
        } else {
            UnixTime(self.unix.0.saturating_sub(micros(self.tick.since(tick))))
        }
    }
}

/// A clock to read, real or manual.
#[derive(Clone, Debug)]
pub struct Clock(Source);

#[derive(Clone, Debug)]
enum Source {
    System,
    Manual(Arc<Manual>),
}

/// The two clocks of a manual clock, in microseconds.
#[derive(Debug)]
struct Manual {
    tick: AtomicU64,
    unix: AtomicU64,
}

impl Clock {
    /// The machine's clocks.
    #[must_use]
    pub const fn system() -> Self {
        Self(Source::System)
    }

    /// A clock that stands still until [`Clock::advance`]; its wall clock starts at `unix`.
    #[must_use]
    pub fn manual(unix: UnixTime) -> Self {
        let (tick, unix) = (AtomicU64::new(unix.0), AtomicU64::new(unix.0));
        Self(Source::Manual(Arc::new(Manual { tick, unix })))
    }

    /// Advances a manual clock; does nothing to the system's.
    pub fn advance(&self, by: Duration) {
        if let Source::Manual(manual) = &self.0 {
            manual.tick.fetch_add(micros(by), Ordering::Relaxed);
            manual.unix.fetch_add(micros(by), Ordering::Relaxed);
        }
    }

    /// Sets the wall clock of a manual clock, and not its monotonic clock.
    pub fn set(&self, unix: UnixTime) {
        if let Source::Manual(manual) = &self.0 {
            manual.unix.store(unix.0, Ordering::Relaxed);
        }
    }

    /// This instant on both clocks.
    #[must_use]
    pub fn now(&self) -> Moment {
        match &self.0 {
            Source::System => Moment {
                tick: Tick(ORIGIN_MICROS + read(ClockId::Monotonic)),
                unix: UnixTime(read_wall()),
            },
            Source::Manual(manual) => Moment {
                tick: Tick(manual.tick.load(Ordering::Relaxed)),
                unix: UnixTime(manual.unix.load(Ordering::Relaxed)),
            },
        }
    }
}

/// The microseconds since 1970; 0 before. By the C library, so that a test can set it.
#[expect(clippy::disallowed_methods, reason = "this is the place that reads the clock")]
fn read_wall() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, micros)
}

/// The microseconds of a clock that every supported kernel has.
#[expect(clippy::disallowed_methods, reason = "this is the place that reads the clock")]
fn read(clock: ClockId) -> u64 {
    let time = clock_gettime(clock);
    let whole = u64::try_from(time.tv_sec).unwrap_or_default() * 1_000_000;
    whole + u64::try_from(time.tv_nsec).unwrap_or_default() / 1_000
}

/// Whole microseconds of `duration`; saturates after half a million years.
#[must_use]
pub fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_are_rounded_up_for_clients_that_wait() {
        assert_eq!(UnixTime(1_000_000).seconds_up(), 1);
        assert_eq!(UnixTime(1_000_001).seconds_up(), 2);
    }

    #[test]
    fn a_time_after_the_last_year_that_can_be_written_is_shown_as_its_end() {
        for late in [END_OF_9999, END_OF_9999 + 1, u64::MAX] {
            assert_eq!(UnixTime(late).rfc3339(), "9999-12-31T23:59:59.999Z");
        }
    }

    #[test]
    fn a_tick_is_shown_on_the_wall_clock_of_the_moment() {
        let moment = Moment { tick: Tick(5_000_000), unix: UnixTime(1_700_000_000_000_000) };
        assert_eq!(moment.unix_of(Tick(6_000_000)), UnixTime(1_700_000_001_000_000));
        assert_eq!(moment.unix_of(Tick(4_000_000)), UnixTime(1_699_999_999_000_000));
        assert_eq!(moment.tick_of(UnixTime(1_699_999_999_000_000)), Tick(4_000_000));
        assert_eq!(moment.tick_of(UnixTime(1_800_000_000_000_000)), moment.tick);
        assert_eq!(moment.tick_at(UnixTime(1_700_000_001_000_000)), Tick(6_000_000));
        assert_eq!(moment.tick_at(UnixTime(1_699_999_999_000_000)), Tick(4_000_000));
    }

    #[test]
    fn a_manual_clock_moves_only_when_turned() {
        let clock = Clock::manual(UnixTime(0));
        assert_eq!(clock.now(), clock.now());
        clock.advance(Duration::from_secs(2));
        assert_eq!(clock.now().unix.rfc3339(), "1970-01-01T00:00:02.000Z");
        clock.set(UnixTime(1));
        assert_eq!(clock.now(), Moment { tick: Tick(2_000_000), unix: UnixTime(1) });
    }

    #[test]
    fn the_real_clock_never_runs_backwards() {
        let clock = Clock::system();
        let earlier = clock.now().tick;
        assert!(clock.now().tick >= earlier);
    }
}
