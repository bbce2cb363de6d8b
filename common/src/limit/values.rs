//! The values of a limit in a configuration: those of the limit itself, and those by which a plan, a
//! tenant or a boost replaces them. (core)
//!
//! A table of `gateway.toml`, an entry of the directory and a message of the admin listener have the
//! same values; [`FIELDS`] is the list of them.
//!
//! # Invariants
//!
//! 1. Values make a quota only if they are those of its algorithm, and all of them.
//! 2. A value that is not given is that of the limit itself, where the algorithm is the same.
//!
//! # Not here
//!
//! Which values apply to a request (the gateway's `rules`).

use std::time::Duration;

use chrono_tz::Tz;
use serde_json::{Map, Value, json};

use crate::config::document::table::Table;
use crate::config::document::{SPAN_UNITS, shown, span_of};
use crate::limit::calendar::{
    Calendar, CalendarQuota, CalendarUnit, PERIOD_REQUESTS_MAX, parse_zone,
};
use crate::limit::concurrency::{ConcurrencyQuota, IN_FLIGHT_MAX};
use crate::limit::quota::Quota;
use crate::limit::rolling::{REQUESTS_MAX, RollingQuota, WINDOW_MAX};
use crate::limit::token_bucket::{BucketQuota, Rate, TOKENS_MAX};

/// How a limit counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Algorithm {
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

impl Algorithm {
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
    pub algorithm: Option<Algorithm>,
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
    Nothing(Algorithm),
    /// A value that the algorithm needs is not given.
    Missing(&'static str, Algorithm),
    /// A value is given that the algorithm does not take.
    Foreign(&'static str, Algorithm),
    /// More requests than the algorithm counts.
    TooMany(Algorithm),
}

impl ValuesError {
    /// What is wrong, and what to do.
    #[must_use]
    pub fn message(&self) -> String {
        let named = |algorithm: Algorithm| format!("algorithm = \"{}\"", algorithm.name());
        match *self {
            Self::Nothing(own) => {
                format!("{} takes {}: none is given", named(own), own.fields().join(" and "))
            }
            Self::Missing(field, own) => {
                format!("missing `{field}`: {} needs {}", named(own), own.fields().join(" and "))
            }
            Self::Foreign(field, own) => {
                let others = Algorithm::ALL.iter().filter(|(_, one)| one.fields().contains(&field));
                let others: Vec<String> =
                    others.map(|(_, one)| format!("\"{}\"", one.name())).collect();
                format!(
                    "`{field}` is used only with algorithm = {}, not with \"{}\": remove it",
                    others.join(" or "),
                    own.name()
                )
            }
            Self::TooMany(own) => {
                let most = own.requests_max();
                let instead = match own {
                    Algorithm::RollingWindow => ", or use algorithm = \"token_bucket\"",
                    _ => "",
                };
                format!("`requests` must be at most {most} with {}: lower it{instead}", named(own))
            }
        }
    }
}

/// How one value is read, described and written.
struct Field {
    name: &'static str,
    doc: &'static str,
    shape: fn() -> Value,
    /// What a value should be, for errors.
    wanted: fn(&Value) -> String,
    /// Stores the value; false where it is not one.
    read: fn(&mut Values, &Value) -> bool,
    write: fn(&Values) -> Option<Value>,
}

fn whole_number(value: &Value, most: u32) -> Option<u32> {
    let number = u32::try_from(value.as_u64()?).ok()?;
    (1..=most).contains(&number).then_some(number)
}

/// Stores a value that was read; returns whether there was one.
fn stored<T>(place: &mut Option<T>, read: Option<T>) -> bool {
    let is_read = read.is_some();
    *place = read;
    is_read
}

fn rate_of(value: &Value) -> Option<Rate> {
    match value {
        Value::String(text) => Rate::parse(text).ok(),
        _ => whole_number(value, TOKENS_MAX).map(Rate::per_second),
    }
}

/// A rate as in settings: a number is per second.
fn rate_value(rate: Rate) -> Value {
    if rate == Rate::per_second(rate.tokens()) {
        json!(rate.tokens())
    } else {
        json!(rate.to_string())
    }
}

/// Every value, in the order of the documentation.
static FIELDS: [Field; 6] = [
    Field {
        name: "algorithm",
        doc: "How it counts: rolling_window (so many requests in any window), token_bucket (a rate \
              and a burst), calendar_day or calendar_month (so many in each), concurrency (so many \
              in flight).",
        shape: || json!({"type": "string", "enum": Algorithm::ALL.map(|(name, _)| name)}),
        wanted: |_| format!("one of {}", Algorithm::ALL.map(|(name, _)| name).join(", ")),
        read: |to, value| {
            let known = |(name, _): &&(&str, Algorithm)| value.as_str() == Some(name);
            stored(&mut to.algorithm, Algorithm::ALL.iter().find(known).map(|(_, own)| *own))
        },
        write: |of| of.algorithm.map(|own| json!(own.name())),
    },
    Field {
        name: "requests",
        doc: "Requests per window (up to 10,000,000), day or month (1,000,000,000), or in flight.",
        shape: || json!({"type": "integer", "minimum": 1, "maximum": PERIOD_REQUESTS_MAX}),
        wanted: |_| format!("a whole number from 1 to {PERIOD_REQUESTS_MAX}"),
        read: |to, value| stored(&mut to.requests, whole_number(value, PERIOD_REQUESTS_MAX)),
        write: |of| of.requests.map(Value::from),
    },
    Field {
        name: "window",
        doc: "rolling_window: the length of the window.",
        shape: || json!({"type": "string", "examples": ["1s", "1m", "1h", "30d"]}),
        wanted: |_| {
            let most = shown(WINDOW_MAX);
            format!("a time such as \"10s\" (in {SPAN_UNITS}), from 1ms to {most}")
        },
        read: |to, value| {
            let span = value.as_str().and_then(span_of);
            let is_window = |span: &Duration| (WINDOW_MIN..=WINDOW_MAX).contains(span);
            stored(&mut to.window, span.filter(is_window))
        },
        write: |of| of.window.map(|window| json!(shown(window))),
    },
    Field {
        name: "rate",
        doc: "token_bucket: tokens per second, or per any period.",
        shape: || {
            json!({"type": ["integer", "string"], "minimum": 1, "maximum": TOKENS_MAX,
                   "examples": ["5000/h", "10000/d", "10/15m"]})
        },
        wanted: |_| {
            format!(
                "tokens per second, or per period as \"5000/h\", from 1 to {TOKENS_MAX} per at \
                 most 31d"
            )
        },
        read: |to, value| stored(&mut to.rate, rate_of(value)),
        write: |of| of.rate.map(rate_value),
    },
    Field {
        name: "burst",
        doc: "token_bucket: tokens of a full bucket.",
        shape: || json!({"type": "integer", "minimum": 1, "maximum": TOKENS_MAX}),
        wanted: |_| format!("a whole number from 1 to {TOKENS_MAX}"),
        read: |to, value| stored(&mut to.burst, whole_number(value, TOKENS_MAX)),
        write: |of| of.burst.map(Value::from),
    },
    Field {
        name: "time_zone",
        doc: "calendar_day and calendar_month: where they begin, as \"Europe/Zurich\" or \"UTC\".",
        shape: || json!({"type": "string", "examples": ["UTC", "Europe/Zurich"]}),
        wanted: |value| {
            let why = value.as_str().and_then(|name| parse_zone(name).err());
            format!("a time zone ({})", why.as_deref().unwrap_or("such as \"Europe/Zurich\""))
        },
        read: |to, value| {
            let zone = value.as_str().and_then(|name| parse_zone(name).ok());
            stored(&mut to.time_zone, zone)
        },
        write: |of| of.time_zone.map(|zone| json!(zone.name())),
    },
];

/// The shortest rolling window.
pub const WINDOW_MIN: Duration = Duration::from_millis(1);

impl Values {
    /// Those of a quota.
    #[must_use]
    pub fn of(quota: Quota) -> Self {
        let algorithm = Some(Algorithm::of(quota));
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
            table.parsed(name, doc, shape(), |value| {
                if read(&mut values, value) { Ok(()) } else { Err(wanted(value)) }
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
                fault(field.name, (field.wanted)(value));
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
        use Algorithm::{CalendarDay, CalendarMonth, Concurrency, RollingWindow, TokenBucket};

        let inherited = own.map(Algorithm::of);
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
        let requests = |now| more(now, Algorithm::of(own).requests_max());
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
            assert_eq!(Algorithm::of(quota).name(), json["algorithm"]);
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
        assert_eq!(over(bucket), Err(ValuesError::Missing("burst", Algorithm::TokenBucket)));
    }

    #[test]
    fn contradictions_are_named() {
        let own = of(json!({"requests": 60, "window": "1m"})).over(None).ok();
        for (json, message) in [
            (json!({}), "algorithm = \"rolling_window\" takes requests and window: none is given"),
            (
                json!({"burst": 9}),
                "`burst` is used only with algorithm = \"token_bucket\", not with \
                 \"rolling_window\": remove it",
            ),
            (
                json!({"algorithm": "concurrency", "requests": 9, "window": "1s"}),
                "`window` is used only with algorithm = \"rolling_window\", not with \
                 \"concurrency\": remove it",
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
