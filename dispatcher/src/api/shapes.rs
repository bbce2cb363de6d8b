//! What goes over the wire, in both directions: these types are serialised, and their schemas are
//! what the document shows and what bodies are checked by.

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use weir_common::time::UnixTime;

use crate::model::{Attempt, DeliveryState, EventSet, EventType, Webhook, WebhookState};
use crate::public_id::PublicIds;
use crate::store::Job;

/// A webhook that is to be registered.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct NewWebhook {
    /// Where deliveries go: an absolute https URL whose host is public.
    #[schemars(length(max = 2048), extend("format" = "uri"))]
    pub(super) url: String,
    /// The types of events that it is told of.
    #[schemars(length(min = 1), extend("uniqueItems" = true))]
    pub(super) events: Vec<Subscribed>,
}

/// What is to change of a webhook; at least one of these.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct WebhookPatch {
    /// Another URL.
    #[schemars(length(max = 2048), extend("format" = "uri"))]
    pub(super) url: Option<String>,
    /// Other types of events, in place of the present ones.
    #[schemars(length(min = 1), extend("uniqueItems" = true))]
    pub(super) events: Option<Vec<Subscribed>>,
}

/// Nothing: `{}`, or no body at all.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Nothing {}

/// Which deliveries are to be sent again; what is not given matches all.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct RedeliveryFilter {
    /// In this state. Not given: `failed_permanent`.
    pub(super) state: Option<DeliveryState>,
    /// For the webhook of this `id`.
    pub(super) webhook: Option<String>,
    /// Of this type.
    #[serde(rename = "type")]
    pub(super) kind: Option<Kind>,
    /// Accepted at or after this time.
    #[schemars(extend("format" = "date-time"))]
    pub(super) since: Option<String>,
    /// Accepted before this time.
    #[schemars(extend("format" = "date-time"))]
    pub(super) until: Option<String>,
}

/// A subscription.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Webhook")]
pub(super) struct WebhookView {
    /// Its identifier.
    pub(super) id: String,
    /// Where deliveries go, in its canonical form.
    pub(super) url: String,
    /// The types of events that it is told of.
    pub(super) events: Vec<Subscribed>,
    /// When it was registered.
    pub(super) created_at: Time,
    /// How it fares.
    pub(super) state: WebhookState,
}

impl WebhookView {
    /// As its owner sees it.
    pub(super) fn of(ids: &PublicIds, webhook: &Webhook) -> Self {
        Self {
            id: ids.webhook(webhook.id),
            url: webhook.url.to_string(),
            events: webhook.events.types().map(Subscribed).collect(),
            created_at: Time(webhook.created_at),
            state: webhook.state(),
        }
    }
}

/// A subscription just registered, with its secret: the only time that it is shown.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct CreatedWebhook {
    /// Its identifier.
    pub(super) id: String,
    /// Where deliveries go, in its canonical form.
    pub(super) url: String,
    /// What deliveries are signed with. Keep it.
    pub(super) secret: String,
    /// The types of events that it is told of.
    pub(super) events: Vec<Subscribed>,
    /// When it was registered.
    pub(super) created_at: Time,
    /// How it fares.
    pub(super) state: WebhookState,
}

/// A new secret: the only time that it is shown.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct RotatedSecret {
    /// The webhook's identifier.
    pub(super) id: String,
    /// What deliveries are signed with from now on. Keep it.
    pub(super) secret: String,
    /// Until when they are signed with the secret before it as well.
    pub(super) previous_valid_until: Time,
}

/// A page of webhooks, oldest first.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct WebhookPage {
    /// What is on it.
    pub(super) data: Vec<WebhookView>,
    /// The `cursor` of the next page; null on the last.
    pub(super) next_cursor: Option<String>,
}

/// One event for one webhook.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
#[schemars(rename = "Delivery")]
pub(super) struct DeliveryView {
    /// Its identifier.
    pub(super) id: String,
    /// The event's `id`, as receivers see it.
    pub(super) event_id: String,
    /// For which webhook.
    pub(super) webhook_id: String,
    /// The event's type.
    #[serde(rename = "type")]
    pub(super) kind: Kind,
    /// Where it stands.
    pub(super) state: ShownState,
    /// How many attempts there were.
    pub(super) attempts: u32,
    /// When the event was accepted.
    pub(super) created_at: Time,
    /// When the first attempt started.
    pub(super) first_attempt_at: Option<Time>,
    /// When the next attempt is due; null where none is.
    pub(super) next_attempt_at: Option<Time>,
    /// When it is given up, unless its webhook pauses; null before the first attempt and after
    /// the end.
    pub(super) deadline_at: Option<Time>,
    /// When it ended.
    pub(super) ended_at: Option<Time>,
    /// Why it has not been delivered yet; null once it has ended.
    pub(super) waiting_for: Option<WaitingFor>,
}

/// A delivery with all its attempts.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct DeliveryDetail {
    /// The delivery.
    #[serde(flatten)]
    pub(super) delivery: DeliveryView,
    /// Its attempts, oldest first.
    pub(super) attempt_log: Vec<AttemptView>,
}

/// A page of deliveries, newest first.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct DeliveryPage {
    /// What is on it; it may be short, even empty, and not the last.
    pub(super) data: Vec<DeliveryView>,
    /// The `cursor` of the next page; null on the last.
    pub(super) next_cursor: Option<String>,
}

/// One attempt.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Attempt")]
pub(super) struct AttemptView {
    /// From 1.
    pub(super) number: u32,
    /// When it started.
    pub(super) started_at: Time,
    /// From its start to its outcome.
    pub(super) duration_ms: u64,
    /// `status_…`, `timeout`, `dns`, `refused`, `connection`, `tls`, `blocked_address`, or
    /// `internal_…` where it was our fault, which counts nowhere.
    pub(super) outcome: String,
    /// The HTTP status, where there was an answer.
    pub(super) status: Option<u16>,
}

impl AttemptView {
    /// As its owner sees it.
    pub(super) fn of(attempt: &Attempt) -> Self {
        Self {
            number: attempt.number,
            started_at: Time(attempt.started_at),
            duration_ms: u64::try_from(attempt.took.as_millis()).unwrap_or(u64::MAX),
            outcome: attempt.outcome.to_string(),
            status: attempt.outcome.status(),
        }
    }
}

/// Where a delivery stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(super) enum ShownState {
    /// Until it is due, or until its webhook may be called.
    Waiting,
    /// An attempt is under way.
    InFlight,
    /// A receiver answered 2xx.
    Delivered,
    /// Given up.
    FailedPermanent,
}

/// Why a delivery has not been delivered yet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub(super) struct WaitingFor {
    /// What it waits for.
    pub(super) reason: Reason,
    /// Since when, where it waits for its owner.
    pub(super) since: Option<Time>,
    /// Until when, where that is known.
    pub(super) until: Option<Time>,
    /// How many deliveries of its webhook go first, itself counted; only of a single delivery.
    pub(super) position: Option<usize>,
    /// How many seconds that takes, at a guess.
    pub(super) seconds: Option<u64>,
    /// The same for people.
    pub(super) text: String,
}

/// What a delivery waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(super) enum Reason {
    /// An attempt is under way.
    InFlight,
    /// The webhook is paused, until its owner reactivates it.
    Paused,
    /// The webhook was reactivated: one delivery at a time, until a 2xx.
    Probe,
    /// The last attempt failed; the next one is due later.
    Retry,
    /// Others go first, or the endpoint was called as often as it may be.
    Paced,
    /// Nothing: it is sent in a moment.
    Ready,
    /// The webhook was deleted: it is never sent.
    Deleted,
}

/// A job that sends deliveries again.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Redelivery")]
pub(super) struct JobView {
    /// Its identifier.
    pub(super) id: String,
    /// Whether it is at its end.
    pub(super) state: JobState,
    /// How many deliveries wait again because of it.
    pub(super) redelivered: u64,
    /// When it was asked for.
    pub(super) created_at: Time,
    /// When it had looked at everything.
    pub(super) ended_at: Option<Time>,
}

/// Where a job stands.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(super) enum JobState {
    /// There is more to look at.
    Running,
    /// At its end.
    Done,
}

impl JobView {
    /// As its owner sees it.
    pub(super) fn of(ids: &PublicIds, job: &Job) -> Self {
        Self {
            id: ids.job(job.id),
            state: if job.ended_at.is_some() { JobState::Done } else { JobState::Running },
            redelivered: job.redelivered,
            created_at: Time(job.created_at),
            ended_at: job.ended_at.map(Time),
        }
    }
}

/// A time, written as RFC 3339 has it, in UTC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Time(pub(super) UnixTime);

impl Serialize for Time {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0.rfc3339())
    }
}

impl JsonSchema for Time {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Time".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({"type": "string", "format": "date-time"})
    }
}

/// A type that one may subscribe to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Subscribed(pub(super) EventType);

/// A type that a delivery may have: those, and the test's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Kind(pub(super) EventType);

macro_rules! named_types {
    ($($name:ident, $shown:literal, $doc:literal, $all:expr;)+) => {$(
        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(self.0.name())
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let name = String::deserialize(deserializer)?;
                let found = $all.into_iter().find(|one: &EventType| one.name() == name);
                found.map(Self).ok_or_else(|| D::Error::custom("no type of event"))
            }
        }

        impl JsonSchema for $name {
            fn schema_name() -> Cow<'static, str> {
                $shown.into()
            }

            fn json_schema(_: &mut SchemaGenerator) -> Schema {
                let names: Vec<&str> = $all.into_iter().map(EventType::name).collect();
                json_schema!({"type": "string", "description": $doc, "enum": names})
            }
        }
    )+};
}

named_types! {
    Subscribed, "EventType", "What happened.", EventType::ALL;
    Kind, "DeliveredType", "What happened, or that a test was asked for.",
        EventType::ALL.into_iter().chain([EventType::Ping]);
}

/// The set of types that a list names.
pub(super) fn set_of(types: &[Subscribed]) -> EventSet {
    EventSet::of(types.iter().map(|one| one.0))
}

/// The time that an RFC 3339 text stands for, to the microsecond; from 1970 on.
pub(super) fn time_of(text: &str) -> Option<UnixTime> {
    let number = |range: std::ops::Range<usize>| -> Option<i64> {
        let digits = text.get(range)?;
        digits.bytes().all(|byte| byte.is_ascii_digit()).then(|| digits.parse().ok())?
    };
    let is = |at: usize, wanted: &[u8]| text.as_bytes().get(at).is_some_and(|b| wanted.contains(b));
    let marks = is(4, b"-") && is(7, b"-") && is(10, b"Tt ") && is(13, b":") && is(16, b":");
    let (year, month, day) = (number(0..4)?, number(5..7)?, number(8..10)?);
    let (hour, minute, second) = (number(11..13)?, number(14..16)?, number(17..19)?);
    let in_range = (1..=12).contains(&month)
        && (1..=days_in(year, month)).contains(&day)
        && hour < 24
        && minute < 60
        && second < 60;
    if !marks || !in_range {
        return None;
    }
    let (micros, zone) = fraction(text.get(19..)?)?;
    let seconds = days(year, month, day) * 86_400 + hour * 3_600 + minute * 60 + second;
    let seconds = u64::try_from(seconds - offset(zone)?).ok()?;
    Some(UnixTime(seconds.checked_mul(1_000_000)?.checked_add(micros)?))
}

/// The microseconds that a text begins with, if it begins with a dot, and what follows.
fn fraction(text: &str) -> Option<(u64, &str)> {
    let Some(rest) = text.strip_prefix('.') else { return Some((0, text)) };
    let end = rest.find(|digit: char| !digit.is_ascii_digit()).unwrap_or(rest.len());
    let (digits, zone) = rest.split_at(end);
    let mut micros = digits.bytes().chain(std::iter::repeat(b'0')).map(|digit| digit - b'0');
    let micros = micros.by_ref().take(6).fold(0, |all, digit| all * 10 + u64::from(digit));
    (!digits.is_empty()).then_some((micros, zone))
}

/// By how many seconds a zone's clocks are ahead of UTC.
fn offset(zone: &str) -> Option<i64> {
    if matches!(zone, "Z" | "z") {
        return Some(0);
    }
    let (hours, minutes) = zone.get(1..)?.split_once(':')?;
    let number = |digits: &str, most: i64| {
        let plain = digits.len() == 2 && digits.bytes().all(|byte| byte.is_ascii_digit());
        digits.parse().ok().filter(|number: &i64| plain && *number <= most)
    };
    let seconds = number(hours, 23)? * 3_600 + number(minutes, 59)? * 60;
    match zone.as_bytes().first()? {
        b'+' => Some(seconds),
        b'-' => Some(-seconds),
        _ => None,
    }
}

fn is_leap(year: i64) -> bool {
    year % 4 == 0 && (year % 100 != 0 || year % 400 == 0)
}

fn days_in(year: i64, month: i64) -> i64 {
    match month {
        2 if is_leap(year) => 29,
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

/// Days from 1970-01-01 to this one.
fn days(year: i64, month: i64, day: i64) -> i64 {
    let before = year - 1;
    let leaps = before / 4 - before / 100 + before / 400;
    let months: i64 = (1..month).map(|month| days_in(year, month)).sum();
    before * 365 + leaps + months + day - 719_163
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_read_back_from_what_is_shown() {
        for micros in [0, 1_000, 951_782_399_999_000, 951_782_400_000_000, 1_709_164_800_000_000]
            .into_iter()
            .chain((0..2_000).map(|n| n * 86_399_123_000 * 7))
        {
            let time = UnixTime(micros);
            assert_eq!(time_of(&time.rfc3339()), Some(time), "{}", time.rfc3339());
        }
    }

    #[test]
    fn zones_and_fractions_are_read() {
        for (text, micros) in [
            ("1970-01-01T01:00:00+01:00", Some(0)),
            ("1970-01-01t00:00:00.5z", Some(500_000)),
            ("1970-01-01 00:00:01.1234567Z", Some(1_123_456)),
            ("1969-12-31T23:30:00-00:31", Some(60_000_000)),
            ("1970-01-01T00:00:00+00:01", None),
        ] {
            assert_eq!(time_of(text), micros.map(UnixTime), "{text}");
        }
    }

    #[test]
    fn what_is_no_time_is_none() {
        for text in [
            "",
            "now",
            "2026",
            "2026-11-20",
            "2026-11-20T14:03Z",
            "2026-11-20T14:03:00",
            "2026-13-01T00:00:00Z",
            "2026-02-29T00:00:00Z",
            "2026-11-31T00:00:00Z",
            "2026-00-10T00:00:00Z",
            "2026-11-20T24:00:00Z",
            "2026-11-20T14:60:00Z",
            "2026-11-20T14:03:00.Z",
            "2026-11-20T14:03:00+1:00",
            "2026-11-20T14:03:00+24:00",
            "2026-11-20T14:03:00ZZ",
            "2026/11/20T14:03:00Z",
            "+026-11-20T14:03:00Z",
            "2026-11-20T14:03:00\u{e9}",
            "\u{e9}026-11-20T14:03:00Z",
            "1969-12-31T23:59:59Z",
            "0000-01-01T00:00:00Z",
        ] {
            assert_eq!(time_of(text), None, "{text}");
        }
    }
}
