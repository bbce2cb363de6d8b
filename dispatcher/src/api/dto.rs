//! The bodies of requests and responses. Their schemas are in the OpenAPI document, and request
//! bodies are validated against them.

pub(super) mod attempt;
pub(super) mod check;
pub(super) mod dashboard;
pub(super) mod event_type;
pub(super) mod forecast;
pub(super) mod redelivery;
pub(super) mod secret;
pub(super) mod webhook;

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use weir_common::time::UnixTime;

use crate::api::dto::attempt::AttemptView;
use crate::domain::event::EventType;
use crate::domain::outcome::OutcomeClass;

/// `{}`, or no body.
#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(rename = "Nothing")]
#[serde(deny_unknown_fields)]
pub(super) struct EmptyBody {}

/// A test.
#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(rename = "Test")]
#[serde(deny_unknown_fields)]
pub(super) struct TestBody {
    /// The event type whose example is sent; without it a `webhook.ping` with empty `data`.
    #[serde(rename = "type")]
    pub(super) kind: Option<Subscribed>,
}

/// One event for one webhook.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
#[schemars(rename = "Delivery")]
pub(super) struct DeliveryView {
    /// The identifier.
    pub(super) id: String,
    /// The event's `id`, as receivers see it.
    pub(super) event_id: String,
    /// The webhook's identifier.
    pub(super) webhook_id: String,
    /// The event's type.
    #[serde(rename = "type")]
    pub(super) kind: Kind,
    /// The delivery's state.
    pub(super) state: ShownState,
    /// The number of attempts so far.
    pub(super) attempts: u32,
    /// The outcome of the last attempt: `status_…`, `timeout`, `dns`, `refused`, `connection`,
    /// `tls` or `blocked_address`; null before the first attempt.
    pub(super) last_outcome: Option<String>,
    /// When the event was accepted.
    pub(super) created_at: Time,
    /// When the first attempt started.
    pub(super) first_attempt_at: Option<Time>,
    /// When the next attempt is due; null if none is.
    pub(super) next_attempt_at: Option<Time>,
    /// When it fails permanently, unless its webhook is paused or disabled before; null before the
    /// first attempt and after the end.
    pub(super) deadline_at: Option<Time>,
    /// When it was delivered or failed permanently.
    pub(super) ended_at: Option<Time>,
    /// Why it waits; null once it has ended.
    pub(super) waiting_for: Option<WaitingFor>,
}

/// A delivery with its attempts.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct DeliveryDetail {
    #[serde(flatten)]
    pub(super) delivery: DeliveryView,
    /// When nothing was sent since its first attempt, because the webhook was paused or disabled;
    /// oldest first.
    pub(super) stops: Vec<StopView>,
    /// The latest attempts, oldest first.
    pub(super) attempt_log: Vec<AttemptView>,
    /// Whether there were earlier ones.
    pub(super) attempt_log_truncated: bool,
}

/// A time in which a webhook was sent nothing.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Stop")]
pub(super) struct StopView {
    /// When it was paused or disabled.
    pub(super) from: Time,
    /// When it was reactivated or enabled; null while it is not.
    pub(super) until: Option<Time>,
}

/// A page of deliveries.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct DeliveryPage {
    /// The deliveries; a page may be short, even empty, without being the last.
    pub(super) data: Vec<DeliveryView>,
    /// The `cursor` of the next page; null on the last page.
    pub(super) next_cursor: Option<String>,
}

/// The state of a delivery.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(super) enum ShownState {
    /// Waits until it is due and its webhook may be called.
    Waiting,
    /// An attempt is in flight.
    InFlight,
    /// The receiver answered 2xx.
    Delivered,
    /// No attempt was answered 2xx before the deadline.
    FailedPermanent,
}

/// Why a delivery waits.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub(super) struct WaitingFor {
    /// The reason.
    pub(super) reason: Reason,
    /// Since when the webhook is paused or disabled.
    pub(super) since: Option<Time>,
    /// Until when, if known.
    pub(super) until: Option<Time>,
    /// The place in its webhook's queue, from 1; only in a response with a single delivery.
    pub(super) position: Option<usize>,
    /// The estimated wait in seconds; of a queued delivery only together with `position`.
    pub(super) seconds: Option<u64>,
    /// The reason as a sentence.
    pub(super) text: String,
}

/// The reason why a delivery waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(super) enum Reason {
    /// An attempt is in flight.
    InFlight,
    /// The webhook is paused until its owner reactivates it.
    Paused,
    /// The webhook is disabled until its owner enables it.
    Disabled,
    /// The webhook was reactivated: a single delivery is sent until a 2xx.
    Probe,
    /// The last attempt failed; the next one is due later.
    Retry,
    /// The endpoint's host name did not resolve; the lookup is repeated.
    NameUnresolved,
    /// Earlier deliveries go first, or the endpoint's rate limit is used up.
    Paced,
    /// It is sent within moments.
    Ready,
    /// The webhook was deleted: it is never sent.
    Deleted,
}

/// A time, written in RFC 3339, in UTC.
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

/// An event type that a webhook may subscribe to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Subscribed(pub(super) EventType);

/// The class of an outcome.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct OutcomeName(pub(super) OutcomeClass);

/// The event type of a delivery, `webhook.ping` included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Kind(pub(super) EventType);

macro_rules! named_types {
    ($($name:ident, $find:path, $shown:literal, $doc:literal, $names:expr;)+) => {$(
        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(self.0.name())
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let name = String::deserialize(deserializer)?;
                $find(&name).map(Self).ok_or_else(|| D::Error::custom("unknown name"))
            }
        }

        impl JsonSchema for $name {
            fn schema_name() -> Cow<'static, str> {
                $shown.into()
            }

            fn json_schema(_: &mut SchemaGenerator) -> Schema {
                let (word, names) = $names;
                json_schema!({"type": "string", "description": $doc, word: names})
            }
        }
    )+};
}

/// Stands in a schema for the names of types that a webhook may subscribe to.
pub(super) const SUBSCRIBABLE: &str = "event-type";

/// Stands in a schema for the names of types that a delivery may have.
pub(super) const DELIVERED: &str = "delivered-type";

// The names of event types depend on the catalogue: see `event_types`.
named_types! {
    OutcomeName, OutcomeClass::of_name, "OutcomeClass", "The class of an outcome.",
        ("enum", OutcomeClass::ALL.map(OutcomeClass::name));
    Subscribed, EventType::known, "EventType", "The event type.", ("format", SUBSCRIBABLE);
    Kind, EventType::known, "DeliveredType",
        "The event type, `webhook.ping` for a test included.", ("format", DELIVERED);
}
