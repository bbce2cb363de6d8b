//! What goes over the wire, in both directions: these types are serialised, and their schemas are
//! what the document shows and what bodies are checked by.
//!
//! Those that hold a secret cannot be printed.

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use weir_common::time::UnixTime;

use crate::domain::attempt::Attempt;
use crate::domain::delivery::DeliveryState;
use crate::domain::event::{EventSet, EventType};
use crate::domain::public_id::PublicIds;
use crate::domain::webhook::{Webhook, WebhookState};
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
#[derive(Serialize, JsonSchema)]
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
#[derive(Serialize, JsonSchema)]
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
    /// What the last attempt came to: `status_…`, `timeout`, `dns`, `refused`, `connection`,
    /// `tls` or `blocked_address`; null before the first.
    pub(super) last_outcome: Option<String>,
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
    /// `status_…`, `timeout`, `dns`, `refused`, `connection`, `tls` or `blocked_address`.
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
    /// How many seconds that takes, at a guess; of a place in the queue only with its `position`.
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
    /// The name of the endpoint's host could not be resolved; it is tried again later.
    NameUnresolved,
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
