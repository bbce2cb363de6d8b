//! The values of a limit in a configuration: those of the limit itself, and those by which a plan,
//! a tenant or a boost replaces them. (core)
//!
//! A table of `gateway.toml`, an entry of the directory and a message of the admin listener have
//! the same values; [`FIELDS`] is the list of them.
//!
//! # Invariants
//!
//! 1. Values make a quota only if they are those of its algorithm, and all of them.
//! 2. A value that is not given is that of the limit itself, where the algorithm is the same.
//!
//! # Not here
//!
//! Which values apply to a request (the gateway's `rules`).

mod fields;

use std::time::Duration;

use chrono_tz::Tz;
use serde_json::{Map, Value};

use crate::config::document::table::Table;
use crate::directory::values::fields::{FIELDS, Field, WINDOW_MIN};
use crate::limit::calendar::{Calendar, CalendarQuota, CalendarUnit, PERIOD_REQUESTS_MAX};
use crate::limit::concurrency::{ConcurrencyQuota, IN_FLIGHT_MAX};
use crate::limit::quota::Quota;
use crate::limit::rolling::{REQUESTS_MAX, RollingQuota};
use crate::limit::token_bucket::{BucketQuota, Rate};

/// How a limit counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LimitAlgorithm {
    /// At most so many requests in any interval of a length.
    RollingWindow,
    /// A burst, refilled at a rate.
    TokenBucket,
    /// At most so many requests in each day of a time zone.
    CalendarDay,
    /// At most so many requests in each month of a time zone.
    CalendarMonth,
    /// At most so many requests in flight.
    Concurrency,
}

impl LimitAlgorithm {
    /// All of them, by their names in settings.
    pub const ALL: [(&str, Self); 5] = [
        ("rolling_window", Self::RollingWindow),
        ("token_bucket", Self::TokenBucket),
        ("calendar_day", Self::CalendarDay),
        ("calendar_month", Self::CalendarMonth),
        ("concurrency", Self::Concurrency),
    ];

    /// That of a quota.
    #[must_use]
    pub fn of(quota: Quota) -> Self {
        match quota {
            Quota::Rolling(_) => Self::RollingWindow,
            Quota::Bucket(_) => Self::TokenBucket,
            Quota::Calendar(own) => match own.calendar.unit {
                CalendarUnit::Day => Self::CalendarDay,
                CalendarUnit::Month => Self::CalendarMonth,
            },
            Quota::Concurrency(_) => Self::Concurrency,
        }
    }

    /// Its name in settings, metrics and reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        Self::ALL.iter().find(|(_, own)| *own == self).map_or("", |(name, _)| name)
    }

    /// The values that it takes.
    #[must_use]
    pub fn fields(self) -> &'static [&'static str] {
        match self {
            Self::RollingWindow => &["requests", "window"],
            Self::TokenBucket => &["rate", "burst"],
            Self::CalendarDay | Self::CalendarMonth => &["requests", "time_zone"],
            Self::Concurrency => &["requests"],
        }
    }

    /// The highest value of `requests`.
    #[must_use]
    pub fn requests_max(self) -> u32 {
        match self {
            Self::RollingWindow | Self::TokenBucket => REQUESTS_MAX,
            Self::CalendarDay | Self::CalendarMonth => PERIOD_REQUESTS_MAX,
            Self::Concurrency => IN_FLIGHT_MAX,
        }
    }
}

/// The values of a limit, those that are given.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Values {
    /// How it counts.
    pub algorithm: Option<LimitAlgorithm>,
    /// Requests per window, day or month, or in flight.
    pub requests: Option<u32>,
    /// The length of a rolling window.
    pub window: Option<Duration>,
    /// Tokens per period, of a token bucket.
    pub rate: Option<Rate>,
    /// Tokens of a full bucket.
    pub burst: Option<u32>,
    /// Where days and months begin.
    pub time_zone: Option<Tz>,
}

/// Why values do not make a quota.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ValuesError {
    /// Nothing is given.
    Nothing(LimitAlgorithm),
    /// A value that the algorithm needs is not given.
    Missing(&'static str, LimitAlgorithm),
    /// A value is given that the algorithm does not take.
    Foreign(&'static str, LimitAlgorithm),
    /// More requests than the algorithm counts.
    TooMany(LimitAlgorithm),
}

impl ValuesError {
    /// What is wrong, and what to do.
    #[must_use]
    pub fn message(&self) -> String {
        let named = |algorithm: LimitAlgorithm| format!("algorithm = \"{}\"", algorithm.name());
        match *self {
            Self::Nothing(own) => {
                format!("{} takes {}: none is given", named(own), own.fields().join(" and "))
            }
            Self::Missing(field, own) => {
                format!("missing `{field}`: {} needs {}", named(own), own.fields().join(" and "))
            }
            Self::Foreign(field, own) => {
                let others =
                    LimitAlgorithm::ALL.iter().filter(|(_, one)| one.fields().contains(&field));
                let others: Vec<String> =
                    others.map(|(_, one)| format!("\"{}\"", one.name())).collect();
                format!(
                    "`{field}` is used only with algorithm = {}, not with \"{}\", which takes {}: \
                     remove it",
                    others.join(" or "),
                    own.name(),
                    own.fields().join(" and ")
                )
            }
            Self::TooMany(own) => {
                let most = own.requests_max();
                let instead = match own {
                    LimitAlgorithm::RollingWindow => ", or use algorithm = \"token_bucket\"",
                    _ => "",
                };
                format!("`requests` must be at most {most} with {}: lower it{instead}", named(own))
            }
        }
    }
}

impl Values {
    /// Those of a quota.
    #[must_use]
    pub fn of(quota: Quota) -> Self {
        let algorithm = Some(LimitAlgorithm::of(quota));
        let none = Self { algorithm, ..Self::default() };
        match quota {
            Quota::Rolling(own) => {
                Self { requests: Some(own.requests), window: Some(own.window), ..none }
            }
            Quota::Bucket(own) => Self { rate: Some(own.rate), burst: Some(own.burst), ..none },
            Quota::Calendar(own) => {
                Self { requests: Some(own.requests), time_zone: Some(own.calendar.zone), ..none }
            }
            Quota::Concurrency(own) => Self { requests: Some(own.requests), ..none },
        }
    }

    /// Reads them from a table; reports errors in their places.
    pub fn read(table: &mut Table<'_>) -> Self {
        let mut values = Self::default();
        for Field { name, doc, shape, wanted, read, .. } in &FIELDS {
            let _place = table.parsed(name, doc, shape(), |value| {
                if read(&mut values, value) { Ok(()) } else { Err(wanted(&values, value)) }
            });
        }
        values
    }

    /// Reads them from the members of a JSON object; unknown and null members count as not given.
    /// `fault` gets the name of each member that is wrong, and what it should be.
    pub fn from_json(members: &Map<String, Value>, mut fault: impl FnMut(&str, String)) -> Self {
        let mut values = Self::default();
        for field in &FIELDS {
            let given = members.get(field.name).filter(|value| !value.is_null());
            if let Some(value) = given.filter(|value| !(field.read)(&mut values, value)) {
                fault(field.name, (field.wanted)(&values, value));
            }
        }
        values
    }

    /// The given ones as a JSON object.
    #[must_use]
    pub fn to_json(&self) -> Map<String, Value> {
        let given = |field: &Field| Some((field.name.to_owned(), (field.write)(self)?));
        FIELDS.iter().filter_map(given).collect()
    }

    /// The names of all values.
    pub fn names() -> impl Iterator<Item = &'static str> {
        FIELDS.iter().map(|field| field.name)
    }

    /// The quota of these values; those that are not given are `own`'s, where the algorithm is the
    /// same.
    pub fn over(self, own: Option<Quota>) -> Result<Quota, ValuesError> {
        use LimitAlgorithm::{CalendarDay, CalendarMonth, Concurrency, RollingWindow, TokenBucket};

        let inherited = own.map(LimitAlgorithm::of);
        let algorithm = self.algorithm.or(inherited).unwrap_or(RollingWindow);
        if self == Self::default() {
            return Err(ValuesError::Nothing(algorithm));
        }
        for field in FIELDS.iter().skip(1).filter(|field| (field.write)(&self).is_some()) {
            if !algorithm.fields().contains(&field.name) {
                return Err(ValuesError::Foreign(field.name, algorithm));
            }
        }
        let base = own.filter(|_| inherited == Some(algorithm)).map(Self::of).unwrap_or_default();
        let missing = |name| move || ValuesError::Missing(name, algorithm);
        let requests = || {
            let requests = self.requests.or(base.requests).ok_or_else(missing("requests"))?;
            let fits = requests <= algorithm.requests_max();
            fits.then_some(requests).ok_or(ValuesError::TooMany(algorithm))
        };
        let calendar = |unit| {
            let zone = self.time_zone.or(base.time_zone).ok_or_else(missing("time_zone"));
            Ok(Quota::Calendar(CalendarQuota::new(requests()?, Calendar { unit, zone: zone? })))
        };
        match algorithm {
            RollingWindow => {
                let window = self.window.or(base.window).ok_or_else(missing("window"));
                Ok(Quota::Rolling(RollingQuota { requests: requests()?, window: window? }))
            }
            TokenBucket => Ok(Quota::Bucket(BucketQuota {
                rate: self.rate.or(base.rate).ok_or_else(missing("rate"))?,
                burst: self.burst.or(base.burst).ok_or_else(missing("burst"))?,
            })),
            CalendarDay => calendar(CalendarUnit::Day),
            CalendarMonth => calendar(CalendarUnit::Month),
            Concurrency => Ok(Quota::Concurrency(ConcurrencyQuota { requests: requests()? })),
        }
    }

    /// These values without `error`, with the least value where one was missing: to find what else
    /// is wrong.
    #[must_use]
    pub fn repaired(mut self, error: ValuesError) -> Self {
        match error {
            ValuesError::Nothing(own) => self.algorithm = Some(own),
            ValuesError::TooMany(own) => self.requests = Some(own.requests_max()),
            ValuesError::Missing(field, _) => match field {
                "requests" => self.requests = Some(1),
                "window" => self.window = Some(WINDOW_MIN),
                "rate" => self.rate = Some(Rate::per_second(1)),
                "burst" => self.burst = Some(1),
                _ => self.time_zone = Some(Tz::UTC),
            },
            ValuesError::Foreign(field, _) => match field {
                "requests" => self.requests = None,
                "window" => self.window = None,
                "rate" => self.rate = None,
                "burst" => self.burst = None,
                _ => self.time_zone = None,
            },
        }
        self
    }

    /// The quota `own`, raised to the numbers of these values that are its algorithm's: never less
    /// than `own`.
    #[must_use]
    pub fn raise(&self, own: Quota) -> Quota {
        let more = |own: u32, most: u32| own.max(self.requests.unwrap_or_default().min(most));
        let requests = |now| more(now, LimitAlgorithm::of(own).requests_max());
        match own {
            Quota::Rolling(now) => {
                Quota::Rolling(RollingQuota { requests: requests(now.requests), ..now })
            }
            Quota::Bucket(now) => Quota::Bucket(BucketQuota {
                rate: self.rate.filter(|rate| rate.is_faster_than(now.rate)).unwrap_or(now.rate),
                burst: now.burst.max(self.burst.unwrap_or_default()),
            }),
            Quota::Calendar(now) => {
                Quota::Calendar(CalendarQuota { requests: requests(now.requests), ..now })
            }
            Quota::Concurrency(now) => {
                Quota::Concurrency(ConcurrencyQuota { requests: requests(now.requests) })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn of(json: Value) -> Values {
        let members = json.as_object().unwrap().clone();
        Values::from_json(&members, |name, wanted| panic!("{name}: {wanted}"))
    }

    /// One set of values for each algorithm.
    fn all() -> [Value; 5] {
        [
            json!({"algorithm": "rolling_window", "requests": 6_000, "window": "1m"}),
            json!({"algorithm": "token_bucket", "rate": "5000/h", "burst": 10}),
            json!({"algorithm": "calendar_day", "requests": 1_000_000_000, "time_zone": "UTC"}),
            json!({"algorithm": "calendar_month", "requests": 7, "time_zone": "Asia/Tokyo"}),
            json!({"algorithm": "concurrency", "requests": 20}),
        ]
    }

    #[test]
    fn values_are_written_as_they_were_read_and_make_their_quota() {
        for json in all() {
            let values = of(json.clone());
            assert_eq!(Value::from(values.to_json()), json);
            let quota = values.over(None).unwrap();
            assert_eq!(Values::of(quota), values);
            assert_eq!(LimitAlgorithm::of(quota).name(), json["algorithm"]);
        }
    }

    #[test]
    fn a_value_that_is_not_given_is_the_limits_own_where_the_algorithm_is_the_same() {
        let own = of(json!({"requests": 60, "window": "1m"})).over(None).unwrap();
        let over = |json| of(json).over(Some(own));
        assert_eq!(over(json!({"requests": 600})).unwrap().window(), Duration::from_secs(60));
        assert_eq!(over(json!({"window": "1h"})).unwrap().limit(), 60);
        for json in all() {
            assert_eq!(over(json.clone()), of(json).over(None), "all values are given");
        }
        let bucket = json!({"algorithm": "token_bucket", "rate": 5});
        assert_eq!(over(bucket), Err(ValuesError::Missing("burst", LimitAlgorithm::TokenBucket)));
    }

    #[test]
    fn contradictions_are_named() {
        let own = of(json!({"requests": 60, "window": "1m"})).over(None).ok();
        for (json, message) in [
            (json!({}), "algorithm = \"rolling_window\" takes requests and window: none is given"),
            (
                json!({"burst": 9}),
                "`burst` is used only with algorithm = \"token_bucket\", not with \
                 \"rolling_window\", which takes requests and window: remove it",
            ),
            (
                json!({"algorithm": "concurrency", "requests": 9, "window": "1s"}),
                "`window` is used only with algorithm = \"rolling_window\", not with \
                 \"concurrency\", which takes requests: remove it",
            ),
            (
                json!({"algorithm": "calendar_day", "requests": 9}),
                "missing `time_zone`: algorithm = \"calendar_day\" needs requests and time_zone",
            ),
            (
                json!({"requests": 10_000_001}),
                "`requests` must be at most 10000000 with algorithm = \"rolling_window\": lower \
                 it, or use algorithm = \"token_bucket\"",
            ),
        ] {
            assert_eq!(of(json.clone()).over(own).unwrap_err().message(), message, "{json}");
        }
    }

    #[test]
    fn a_wrong_member_is_named_with_what_it_should_be() {
        for (name, wrong) in [
            ("algorithm", json!("window")),
            ("requests", json!(0)),
            ("requests", json!("60")),
            ("window", json!("0s")),
            ("window", json!("32d")),
            ("rate", json!(0)),
            ("rate", json!("5 an hour")),
            ("burst", json!(1_000_001)),
            ("time_zone", json!("Mars/Olympus")),
        ] {
            let mut faults = Vec::new();
            let members = Map::from_iter([(name.to_owned(), wrong.clone())]);
            let values = Values::from_json(&members, |name, _| faults.push(name.to_owned()));
            assert_eq!((values, faults), (Values::default(), vec![name.to_owned()]), "{wrong}");
        }
    }

    #[test]
    fn a_raise_never_lowers_and_leaves_the_rest_to_the_limit() {
        let quota = |json| of(json).over(None).unwrap();
        let raised = |values, own| of(values).raise(quota(own));
        let window = |requests, window| json!({"requests": requests, "window": window});
        let bucket =
            |rate: &str, burst| json!({"algorithm": "token_bucket", "rate": rate, "burst": burst});
        let eighteen = || json!({"requests": 18});
        assert_eq!(raised(eighteen(), window(6, "1s")), quota(window(18, "1s")));
        assert_eq!(raised(eighteen(), window(20, "5m")), quota(window(20, "5m")), "never less");
        assert_eq!(raised(eighteen(), bucket("5/s", 9)), quota(bucket("5/s", 9)), "a bucket");
        let faster = json!({"rate": "7/s", "burst": 3});
        assert_eq!(raised(faster.clone(), bucket("5/s", 9)), quota(bucket("7/s", 9)));
        assert_eq!(raised(faster.clone(), bucket("600/m", 2)), quota(bucket("600/m", 3)));
        let in_flight = |requests| json!({"algorithm": "concurrency", "requests": requests});
        assert_eq!(raised(eighteen(), in_flight(2)), quota(in_flight(18)));
        let most = json!({"requests": 1_000_000_000});
        assert_eq!(raised(most, window(2, "1s")).limit(), REQUESTS_MAX, "what the log can count");
    }
}
