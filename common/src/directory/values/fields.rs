//! How each value of a limit is described, read and written. (core)
//!
//! Not here: which values an algorithm takes (`values`).

use std::time::Duration;

use serde_json::{Value, json};

use crate::config::document::{SPAN_UNITS, shown, span_of};
use crate::directory::values::{LimitAlgorithm, Values};
use crate::limit::calendar::{PERIOD_REQUESTS_MAX, parse_zone};
use crate::limit::rolling::WINDOW_MAX;
use crate::limit::token_bucket::{Rate, TOKENS_MAX};

/// The shortest rolling window.
pub(super) const WINDOW_MIN: Duration = Duration::from_millis(1);

/// How one value is read, described and written.
pub(super) struct Field {
    pub(super) name: &'static str,
    pub(super) doc: &'static str,
    pub(super) shape: fn() -> Value,
    /// What a value should be beside those before it, for errors.
    pub(super) wanted: fn(&Values, &Value) -> String,
    /// Stores the value; false where it is not one.
    pub(super) read: fn(&mut Values, &Value) -> bool,
    pub(super) write: fn(&Values) -> Option<Value>,
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
pub(super) static FIELDS: [Field; 6] = [
    Field {
        name: "algorithm",
        doc: "How it counts: rolling_window (so many requests in any window), token_bucket (a rate \
              and a burst), calendar_day or calendar_month (so many in each), concurrency (so many \
              in flight).",
        shape: || json!({"type": "string", "enum": LimitAlgorithm::ALL.map(|(name, _)| name)}),
        wanted: |_, _| format!("one of {}", LimitAlgorithm::ALL.map(|(name, _)| name).join(", ")),
        read: |to, value| {
            let known = |(name, _): &&(&str, LimitAlgorithm)| value.as_str() == Some(name);
            stored(&mut to.algorithm, LimitAlgorithm::ALL.iter().find(known).map(|(_, own)| *own))
        },
        write: |of| of.algorithm.map(|own| json!(own.name())),
    },
    Field {
        name: "requests",
        doc: "Requests per window (up to 10,000,000), day or month (1,000,000,000), or in flight.",
        shape: || json!({"type": "integer", "minimum": 1, "maximum": PERIOD_REQUESTS_MAX}),
        wanted: |of, _| {
            let most = of.algorithm.map_or(PERIOD_REQUESTS_MAX, LimitAlgorithm::requests_max);
            format!("a whole number from 1 to {most}")
        },
        read: |to, value| stored(&mut to.requests, whole_number(value, PERIOD_REQUESTS_MAX)),
        write: |of| of.requests.map(Value::from),
    },
    Field {
        name: "window",
        doc: "rolling_window: the length of the window.",
        shape: || json!({"type": "string", "examples": ["1s", "1m", "1h", "30d"]}),
        wanted: |_, _| {
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
        wanted: |_, _| {
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
        wanted: |_, _| format!("a whole number from 1 to {TOKENS_MAX}"),
        read: |to, value| stored(&mut to.burst, whole_number(value, TOKENS_MAX)),
        write: |of| of.burst.map(Value::from),
    },
    Field {
        name: "time_zone",
        doc: "calendar_day and calendar_month: where they begin, as \"Europe/Zurich\" or \"UTC\".",
        shape: || json!({"type": "string", "examples": ["UTC", "Europe/Zurich"]}),
        wanted: |_, value| {
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
