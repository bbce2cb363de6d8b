//! Decides whether a request fits "N per calendar day" or "N per month" of a zone. (core)
//!
//! A period begins when the local date does: at midnight, or at the first instant after it in a
//! zone whose clocks skip midnight on that day. If clocks go back over midnight, so that it comes
//! twice, the first one counts. Periods are therefore as long as the zone makes them, 23 or 25
//! hours for a day when clocks change, and each instant is in exactly one.
//!
//! # Invariants
//!
//! 1. At most N requests are admitted in a period.
//! 2. A refusal changes nothing.
//! 3. `retry_at` is the end of the period, as the wall clock shows it at the decision.
//! 4. What is used is counted on while the period lasts: also when the wall clock is set back, and
//!    also under another calendar, if the newest charge is in the period of both. By its tick, a
//!    charge may be in a period that starts while the wall clock is set forward: it then counts in
//!    that one too.
//!
//! # Not here
//!
//! The clocks: [`CalendarQuota::at`] receives a moment, and decisions compare ticks and the starts
//! of periods. Storage and locks of states (the gateway's `limit::memory`).

use std::ops::Range;
use std::time::Duration;

use chrono::{DateTime, Datelike, Days, MappedLocalTime, Months, NaiveDate, NaiveTime, TimeZone};
use chrono_tz::{TZ_VARIANTS, Tz};

use crate::limit::decision::{Decision, Usage};
use crate::time::{Moment, Tick, UnixTime};

/// The most requests per period.
pub const PERIOD_REQUESTS_MAX: u32 = 1_000_000_000;

/// The end of the year 9999, in seconds since 1970. A later instant counts as this one.
const SECONDS_MAX: i64 = 253_402_300_799;

const DAY_SECONDS: i64 = 24 * 3_600;

/// Which part of the calendar a period is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CalendarUnit {
    /// A day, from midnight.
    Day,
    /// A month, from midnight of its first day.
    Month,
}

/// Divides time into the days or the months of a zone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Calendar {
    /// How long a period is.
    pub unit: CalendarUnit,
    /// Whose midnight counts.
    pub zone: Tz,
}

/// The zone of a name such as `Europe/Zurich` or `UTC`. An error suggests the most similar name.
pub fn parse_zone(name: &str) -> Result<Tz, String> {
    if let Ok(zone) = name.parse() {
        return Ok(zone);
    }
    let lower = name.to_lowercase();
    let distance = |zone: &Tz| {
        let (own, city) = (zone.name().to_lowercase(), zone.name().rsplit('/').next());
        let city = city.unwrap_or_default().to_lowercase();
        strsim::damerau_levenshtein(&lower, &own).min(strsim::damerau_levenshtein(&lower, &city))
    };
    let known = TZ_VARIANTS.iter().map(|zone| (distance(zone), zone.name().len(), zone.name()));
    let nearest = known.min().filter(|(distance, ..)| *distance <= 1.max(name.len() / 3));
    Err(match nearest {
        Some((.., nearest)) => format!("no zone is called `{name}`: did you mean `{nearest}`?"),
        None => format!("no zone is called `{name}`: write one such as Europe/Zurich or UTC"),
    })
}

impl Calendar {
    /// The period of `at`: its start, and the start of the next one.
    #[must_use]
    pub fn period(&self, at: UnixTime) -> Range<UnixTime> {
        let seconds = i64::try_from(at.0 / 1_000_000).unwrap_or(SECONDS_MAX).min(SECONDS_MAX);
        let date = self.first_day(self.local_date(seconds));
        let (starts, ends) = (self.start(date), self.start(self.next(date)));
        // When clocks go back over midnight, an hour of the new day has the earlier date. A date is
        // never shown before it begins.
        let (starts, ends) = if seconds >= ends {
            (ends, self.start(self.next(self.next(date))))
        } else {
            (starts, ends)
        };
        let unix = |seconds: i64| UnixTime(u64::try_from(seconds).unwrap_or(0) * 1_000_000);
        unix(starts)..unix(ends)
    }

    /// How long a period is when clocks do not change: a day, or 31 days.
    #[must_use]
    pub fn nominal(&self) -> Duration {
        let days = match self.unit {
            CalendarUnit::Day => 1,
            CalendarUnit::Month => 31,
        };
        Duration::from_secs(days * DAY_SECONDS.unsigned_abs())
    }

    fn local_date(&self, seconds: i64) -> NaiveDate {
        self.local(seconds).date()
    }

    /// What clocks of the zone show so many seconds after 1970 began in UTC.
    fn local(&self, seconds: i64) -> chrono::NaiveDateTime {
        let instant = DateTime::from_timestamp(seconds, 0).unwrap_or_default();
        instant.with_timezone(&self.zone).naive_local()
    }

    /// The first day of the period of a local date.
    fn first_day(&self, date: NaiveDate) -> NaiveDate {
        match self.unit {
            CalendarUnit::Day => date,
            CalendarUnit::Month => date.with_day(1).unwrap_or(date),
        }
    }

    /// The first day of the period after that of `first`.
    fn next(&self, first: NaiveDate) -> NaiveDate {
        let next = match self.unit {
            CalendarUnit::Day => first.checked_add_days(Days::new(1)),
            CalendarUnit::Month => first.checked_add_months(Months::new(1)),
        };
        next.unwrap_or(NaiveDate::MAX)
    }

    /// When a local date begins, in seconds since 1970.
    fn start(&self, date: NaiveDate) -> i64 {
        let midnight = date.and_time(NaiveTime::MIN);
        match self.zone.from_local_datetime(&midnight) {
            MappedLocalTime::Single(at) | MappedLocalTime::Ambiguous(at, _) => at.timestamp(),
            MappedLocalTime::None => {
                // Clocks skip midnight: the date begins when they do. That is within a day of
                // midnight in UTC, and clocks change only once in that time.
                let utc = midnight.and_utc().timestamp();
                let (mut before, mut after) = (utc - DAY_SECONDS, utc + DAY_SECONDS);
                while after - before > 1 {
                    let middle = before.midpoint(after);
                    let begun = self.local(middle) >= midnight;
                    *if begun { &mut after } else { &mut before } = middle;
                }
                after
            }
        }
    }
}

/// At most `requests` in each period of a calendar.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CalendarQuota {
    /// From 1 to [`PERIOD_REQUESTS_MAX`].
    pub requests: u32,
    /// Its periods.
    pub calendar: Calendar,
    /// The period of the decision: see [`CalendarQuota::at`].
    pub period: Period,
}

/// One period of a calendar, on both clocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Period {
    /// When it starts.
    pub starts: UnixTime,
    /// When the next one starts.
    pub stops: UnixTime,
    /// The tick of `starts`.
    pub began: Tick,
    /// The tick of `stops`, if the wall clock is not set until then.
    pub ends: Tick,
}

impl CalendarQuota {
    /// A quota that has no period yet.
    #[must_use]
    pub fn new(requests: u32, calendar: Calendar) -> Self {
        Self { requests, calendar, period: Period::default() }
    }

    /// The same quota with the period of `now`. Must precede a decision at `now`. The zone is
    /// consulted only if the quota has the period of another time.
    #[must_use]
    pub fn at(self, now: Moment) -> Self {
        let own = self.period.starts..self.period.stops;
        let period = if own.contains(&now.unix) { own } else { self.calendar.period(now.unix) };
        let period = Period {
            starts: period.start,
            stops: period.end,
            began: now.tick_of(period.start),
            ends: now.tick_at(period.end),
        };
        Self { period, ..self }
    }

    /// How long the period is; if it is not known, how long it usually is.
    #[must_use]
    pub fn length(&self) -> Duration {
        if self.period.stops > self.period.starts {
            self.period.stops.since(self.period.starts)
        } else {
            self.calendar.nominal()
        }
    }
}

/// What one key has used in a period: 24 bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Count {
    used: u32,
    /// When the period started that the newest charge was made in.
    starts: UnixTime,
    /// The newest charge.
    at: Tick,
}

impl Count {
    /// So many requests used in the period that started then, the newest of them at `at`.
    #[must_use]
    pub fn of(used: u32, starts: UnixTime, at: Tick) -> Self {
        Self { used, starts, at }
    }

    /// How many were used in the period of the newest charge.
    #[must_use]
    pub fn used(&self) -> u32 {
        self.used
    }

    /// When the period of the newest charge started.
    #[must_use]
    pub fn starts(&self) -> UnixTime {
        self.starts
    }

    /// The newest charge.
    #[must_use]
    pub fn at(&self) -> Tick {
        self.at
    }

    /// Decides whether `cost` more fit in the quota's period. Changes nothing.
    pub fn decide(&self, quota: CalendarQuota, cost: u32) -> Decision {
        if cost > quota.requests {
            return Decision::TooLarge;
        }
        match self.used_in(quota.period).saturating_add(cost) <= quota.requests {
            true => Decision::Admit,
            false => Decision::Refuse { retry_at: quota.period.ends },
        }
    }

    /// Records an admission of `cost` that [`Count::decide`] allowed under the same quota.
    pub fn charge(&mut self, quota: CalendarQuota, cost: u32, now: Tick) -> Usage {
        let used = self.used_in(quota.period).saturating_add(cost);
        // Of a clock that was set back over the start of a period, that period counts, too.
        let earlier = if self.carries_into(quota.period) { self.starts } else { UnixTime(0) };
        *self = Self { used, starts: quota.period.starts.max(earlier), at: now.max(self.at) };
        self.usage(quota, now)
    }

    /// The key's usage at `now`, which is in the quota's period.
    #[must_use]
    pub fn usage(&self, quota: CalendarQuota, now: Tick) -> Usage {
        let used = self.used_in(quota.period);
        Usage {
            limit: quota.requests,
            remaining: quota.requests.saturating_sub(used),
            full_at: if used == 0 { now } else { quota.period.ends },
        }
    }

    /// What counts in `period`: nothing, unless it is the latest period of a charge, or the newest
    /// charge is in it too because the wall clock was set back or the calendar has changed.
    fn used_in(&self, period: Period) -> u32 {
        if self.carries_into(period) { self.used } else { 0 }
    }

    fn carries_into(&self, period: Period) -> bool {
        period.starts == self.starts || self.at >= period.began
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn calendar(unit: CalendarUnit, zone: &str) -> Calendar {
        Calendar { unit, zone: parse_zone(zone).unwrap() }
    }

    fn unix(text: &str) -> UnixTime {
        let time = humantime::parse_rfc3339(text).unwrap();
        let since = time.duration_since(std::time::UNIX_EPOCH).unwrap();
        UnixTime(u64::try_from(since.as_micros()).unwrap())
    }

    /// Checks that the period of `at` has these bounds, and that so have its first and last tick.
    #[track_caller]
    fn check(calendar: Calendar, at: &str, starts: &str, ends: &str) {
        let period = calendar.period(unix(at));
        let shown = |time: UnixTime| time.rfc3339().replace(".000Z", "Z");
        assert_eq!((&*shown(period.start), &*shown(period.end)), (starts, ends), "{at}");
        assert_eq!(calendar.period(period.start), period);
        assert_eq!(calendar.period(UnixTime(period.end.0 - 1)), period);
        assert_eq!(calendar.period(period.end).start, period.end);
    }

    #[test]
    fn a_day_has_as_many_hours_as_its_zone_gives_it() {
        let zurich = calendar(CalendarUnit::Day, "Europe/Zurich");
        let days = [
            ("2026-01-15T23:00:00Z", "2026-01-15T23:00:00Z", "2026-01-16T23:00:00Z"),
            ("2026-01-15T22:59:59Z", "2026-01-14T23:00:00Z", "2026-01-15T23:00:00Z"),
            // Clocks go forward, and back.
            ("2026-03-29T12:00:00Z", "2026-03-28T23:00:00Z", "2026-03-29T22:00:00Z"),
            ("2026-10-25T12:00:00Z", "2026-10-24T22:00:00Z", "2026-10-25T23:00:00Z"),
            ("2060-07-01T12:00:00Z", "2060-06-30T22:00:00Z", "2060-07-01T22:00:00Z"),
        ];
        for (at, starts, ends) in days {
            check(zurich, at, starts, ends);
        }
    }

    #[test]
    fn a_day_without_a_midnight_begins_when_clocks_skip_it() {
        let days = [
            // 00:00 becomes 01:00.
            ("America/Sao_Paulo", "2018-11-04", "03:00:00", "2018-11-05T02:00:00Z"),
            ("Africa/Cairo", "2023-04-28", "22:00:00", "2023-04-28T21:00:00Z"),
            // 00:00 becomes 00:44:30.
            ("Africa/Monrovia", "1972-01-07", "00:44:30", "1972-01-08T00:00:00Z"),
        ];
        for (zone, date, time, ends) in days {
            let starts = match zone {
                "Africa/Cairo" => format!("2023-04-27T{time}Z"),
                _ => format!("{date}T{time}Z"),
            };
            check(calendar(CalendarUnit::Day, zone), &format!("{date}T12:00:00Z"), &starts, ends);
        }
    }

    #[test]
    fn a_date_that_a_zone_skips_has_no_period() {
        let apia = calendar(CalendarUnit::Day, "Pacific/Apia");
        // At the end of December 29 comes December 31.
        let turn = "2011-12-30T10:00:00Z";
        check(apia, "2011-12-30T09:59:59Z", "2011-12-29T10:00:00Z", turn);
        check(apia, turn, turn, "2011-12-31T10:00:00Z");
        let month = calendar(CalendarUnit::Month, "Pacific/Apia");
        check(month, turn, "2011-12-01T10:00:00Z", "2011-12-31T10:00:00Z");
    }

    #[test]
    fn a_midnight_that_comes_twice_counts_once() {
        let havana = calendar(CalendarUnit::Day, "America/Havana");
        // 01:00 becomes 00:00.
        check(havana, "2026-11-01T05:30:00Z", "2026-11-01T04:00:00Z", "2026-11-02T05:00:00Z");
        // One minute after midnight, clocks go back to 23:01 of the earlier date.
        let johns = calendar(CalendarUnit::Day, "America/St_Johns");
        let (starts, ends) = ("2010-11-07T02:30:00Z", "2010-11-08T03:30:00Z");
        for at in ["2010-11-07T02:30:30Z", "2010-11-07T02:45:00Z", "2010-11-07T12:00:00Z"] {
            check(johns, at, starts, ends);
        }
    }

    #[test]
    fn a_month_is_as_long_as_it_is() {
        let utc = calendar(CalendarUnit::Month, "UTC");
        let months = [
            ("2028-02-29T23:59:59Z", "2028-02-01T00:00:00Z", "2028-03-01T00:00:00Z"),
            ("2027-02-28T23:59:59Z", "2027-02-01T00:00:00Z", "2027-03-01T00:00:00Z"),
            ("2026-12-31T23:59:59Z", "2026-12-01T00:00:00Z", "2027-01-01T00:00:00Z"),
        ];
        for (at, starts, ends) in months {
            check(utc, at, starts, ends);
        }
        let tokyo = calendar(CalendarUnit::Month, "Asia/Tokyo");
        check(tokyo, "2026-06-30T15:00:00Z", "2026-06-30T15:00:00Z", "2026-07-31T15:00:00Z");
    }

    #[test]
    fn the_first_and_the_last_years_have_periods() {
        for zone in ["UTC", "Asia/Tokyo", "America/New_York"] {
            for unit in [CalendarUnit::Day, CalendarUnit::Month] {
                let first = calendar(unit, zone).period(UnixTime(0));
                assert!(first.contains(&UnixTime(0)));
                let last = calendar(unit, zone).period(UnixTime(u64::MAX));
                assert!(last.start < last.end);
            }
        }
    }

    #[test]
    fn an_error_of_a_zone_suggests_another() {
        let errors = [
            ("Europe/Zürich", "did you mean `Europe/Zurich`?"),
            ("europe/zurich", "did you mean `Europe/Zurich`?"),
            ("Zurich", "did you mean `Europe/Zurich`?"),
            ("New_York", "did you mean `America/New_York`?"),
            ("utc", "did you mean `UTC`?"),
            ("the office", "write one such as Europe/Zurich or UTC"),
            ("", "write one such as Europe/Zurich or UTC"),
        ];
        for (name, part) in errors {
            let error = parse_zone(name).unwrap_err();
            assert!(error.contains(part), "{name}: {error}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2_000))]

        /// A start is a second before which clocks showed an earlier date, and since which they
        /// show this date or later, or will again within the hours by which they go back.
        #[test]
        fn each_instant_of_each_zone_is_in_one_period(
            nth in 0..TZ_VARIANTS.len(), seconds in 0..3_000_000_000_u64, month in any::<bool>(),
        ) {
            let unit = if month { CalendarUnit::Month } else { CalendarUnit::Day };
            let calendar = Calendar { unit, zone: TZ_VARIANTS[nth] };
            let at = UnixTime(seconds * 1_000_000 + 999_999);
            let period = calendar.period(at);
            prop_assert!(period.contains(&at));
            prop_assert_eq!(calendar.period(period.start), period.clone());
            prop_assert_eq!(calendar.period(UnixTime(period.end.0 - 1)), period.clone());
            let next = calendar.period(period.end);
            prop_assert_eq!(next.start, period.end);
            let longest = calendar.nominal() + Duration::from_secs(24 * 3_600);
            prop_assert!(period.end.since(period.start) <= longest);
            let first = |seconds: i64| calendar.first_day(calendar.local_date(seconds));
            let start = i64::try_from(next.start.0 / 1_000_000).unwrap();
            prop_assert!(first(start - 1) < first(start), "at {}", start);
            // The dumbest way to the earlier date: a quarter of an hour at a time.
            let date = first(start);
            let mut quarters = (0..4 * 24).map(|quarter| start + quarter * 900);
            let earlier = quarters.rfind(|at| first(*at) < date);
            prop_assert!(earlier.is_none_or(|at| at < start + 3_600), "{:?}", earlier);
        }

        #[test]
        fn a_random_sequence_is_decided_as_by_counting_in_the_period(
            requests in 1..60_u32,
            steps in prop::collection::vec((0..40_000_u64, 1..12_u32, -3_000..=0_i64), 1..100),
            month in any::<bool>(),
        ) {
            let unit = if month { CalendarUnit::Month } else { CalendarUnit::Day };
            let mut quota = CalendarQuota::new(requests, calendar(unit, "Europe/Zurich"));
            let mut now =
                Moment { tick: Tick(10_000_000_000_000), unix: unix("2026-03-20T10:00:00Z") };
            let (mut count, mut charged) = (Count::default(), Vec::new());
            for (wait, cost, set) in steps {
                now.tick = now.tick.plus(Duration::from_secs(wait));
                now.unix = now.unix.plus(Duration::from_secs(wait));
                quota = quota.at(now);
                prop_assert_eq!(quota, CalendarQuota::new(requests, quota.calendar).at(now));
                let used: u32 = charged
                    .iter()
                    .filter(|(at, _)| quota.calendar.period(now.unix).contains(at))
                    .map(|(_, cost)| cost)
                    .sum();
                match count.decide(quota, cost) {
                    Decision::Admit => {
                        prop_assert!(used + cost <= requests);
                        let usage = count.charge(quota, cost, now.tick);
                        charged.push((now.unix, cost));
                        prop_assert_eq!(usage.remaining, requests - used - cost);
                        prop_assert_eq!(usage.full_at, quota.period.ends);
                    }
                    Decision::Refuse { retry_at } => {
                        prop_assert!(used + cost > requests);
                        let at = |tick| quota.at(Moment { tick, unix: now.unix_of(tick) });
                        let early = count.decide(at(Tick(retry_at.0 - 1)), cost);
                        prop_assert_eq!(early, Decision::Refuse { retry_at });
                        prop_assert_eq!(count.decide(at(retry_at), cost), Decision::Admit);
                    }
                    Decision::TooLarge => prop_assert!(cost > requests),
                }
                // The wall clock is set back by up to fifty minutes, within the period.
                let other = UnixTime(now.unix.0.saturating_add_signed(set * 1_000_000));
                if quota.calendar.period(now.unix).contains(&other) {
                    now.unix = other;
                }
            }
        }
    }

    #[test]
    fn a_clock_that_is_set_back_makes_no_room() {
        let utc = CalendarQuota::new(5, calendar(CalendarUnit::Day, "UTC"));
        let now = Moment { tick: Tick(1 << 45), unix: unix("2026-06-02T00:00:10Z") };
        let mut count = Count::default();
        let _ = count.charge(utc.at(now), 5, now.tick);
        let back = Moment { unix: unix("2026-06-01T23:59:50Z"), ..now };
        let retry_at = Tick(now.tick.0 + 10_000_000);
        assert_eq!(count.decide(utc.at(back), 1), Decision::Refuse { retry_at });
    }

    #[test]
    fn a_clock_that_was_far_ahead_refuses_nothing_in_the_next_period() {
        let utc = CalendarQuota::new(5, calendar(CalendarUnit::Day, "UTC"));
        let at = |days: u64, time| {
            let tick = Tick(1 << 45).plus(Duration::from_secs(days * 86_400));
            Moment { tick, unix: unix(time) }
        };
        let mut count = Count::default();
        let (ahead, corrected) = (at(0, "2027-01-05T12:00:00Z"), at(0, "2026-06-02T12:00:00Z"));
        let _ = count.charge(utc.at(ahead), 5, ahead.tick);
        assert_ne!(count.decide(utc.at(corrected), 1), Decision::Admit, "it is the same day");
        let next = at(1, "2026-06-03T12:00:00Z");
        assert_eq!(count.decide(utc.at(next), 5), Decision::Admit);
        let _ = count.charge(utc.at(next), 1, next.tick);
        let as_written = at(217, "2027-01-05T12:00:00Z");
        assert_eq!(count.usage(utc.at(as_written), as_written.tick).remaining, 5);
    }

    #[test]
    fn a_clock_that_is_set_forward_over_midnight_counts_what_its_new_day_includes() {
        let utc = CalendarQuota::new(5, calendar(CalendarUnit::Day, "UTC"));
        let now = Moment { tick: Tick(1 << 45), unix: unix("2026-06-01T23:59:50Z") };
        let mut count = Count::default();
        let _ = count.charge(utc.at(now), 2, now.tick);
        let later = |seconds| now.tick.plus(Duration::from_secs(seconds));
        let forward = |tick, time| utc.at(Moment { tick, unix: unix(time) });
        let remaining = |quota, tick| count.usage(quota, tick).remaining;
        let quota = forward(later(9), "2026-06-02T00:00:10Z");
        assert_eq!(remaining(quota, later(9)), 3);
        let quota = forward(later(11), "2026-06-02T00:00:10Z");
        assert_eq!(remaining(quota, later(11)), 5);
    }

    #[test]
    fn another_calendar_counts_what_was_used_in_its_period() {
        let calendars = |unit| CalendarQuota::new(5, calendar(unit, "UTC"));
        let (day, month) = (calendars(CalendarUnit::Day), calendars(CalendarUnit::Month));
        let noon = Moment { tick: Tick(1 << 45), unix: unix("2026-06-15T12:00:00Z") };
        let evening = Moment { tick: noon.tick.plus(8 * HOUR), unix: noon.unix.plus(8 * HOUR) };
        let after = Moment { tick: noon.tick.plus(13 * HOUR), unix: noon.unix.plus(13 * HOUR) };
        for (from, to, left) in [(day, month, [3, 3]), (month, day, [3, 5])] {
            let mut count = Count::default();
            let _ = count.charge(from.at(noon), 2, noon.tick);
            let remaining = |now: Moment| count.usage(to.at(now), now.tick).remaining;
            assert_eq!([remaining(evening), remaining(after)], left);
        }
    }

    const HOUR: Duration = Duration::from_secs(3_600);
}
