//! The bodies of requests and responses. Their schemas are in the OpenAPI document, and request
//! bodies are validated against them.
//!
//! Invariant: a type with a secret implements no `Debug`.

pub(super) mod attempt;
pub(super) mod event_type;

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use weir_common::time::UnixTime;

use crate::api::dto::attempt::AttemptView;
use crate::domain::delivery::DeliveryState;
use crate::domain::event::{EventSet, EventType};
use crate::domain::outcome::OutcomeClass;
use crate::domain::public_id::PublicIds;
use crate::domain::webhook::{Webhook, WebhookState};
use crate::store::types::Job;

/// A webhook to create.
#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(rename = "NewWebhook")]
#[serde(deny_unknown_fields)]
pub(super) struct NewWebhookBody {
    /// Where deliveries go: an absolute https URL whose host is public.
    #[schemars(length(max = 2048), extend("format" = "uri"))]
    pub(super) url: String,
    /// The event types that it subscribes to.
    #[schemars(length(min = 1), extend("uniqueItems" = true))]
    pub(super) events: Vec<Subscribed>,
}

/// Changes to a webhook: at least one member.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct WebhookPatch {
    /// The new URL.
    #[schemars(length(max = 2048), extend("format" = "uri"))]
    pub(super) url: Option<String>,
    /// The new event types, replacing the present ones.
    #[schemars(length(min = 1), extend("uniqueItems" = true))]
    pub(super) events: Option<Vec<Subscribed>>,
}

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

/// Selects the deliveries to redeliver; an absent member matches all.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct RedeliveryFilter {
    /// Their state. Default: `failed_permanent`.
    pub(super) state: Option<DeliveryState>,
    /// The `id` of their webhook.
    pub(super) webhook: Option<String>,
    /// Their event type.
    #[serde(rename = "type")]
    pub(super) kind: Option<Kind>,
    /// The `id` of their event.
    pub(super) event: Option<String>,
    /// The `tenant_id` of their event.
    pub(super) tenant: Option<String>,
    /// The class of their last attempt's outcome.
    pub(super) outcome: Option<OutcomeName>,
    /// The status that their last attempt got.
    #[schemars(range(min = 100, max = 999))]
    pub(super) status: Option<u16>,
    /// Accepted at or after this time.
    #[schemars(extend("format" = "date-time"))]
    pub(super) since: Option<String>,
    /// Accepted before this time.
    #[schemars(extend("format" = "date-time"))]
    pub(super) until: Option<String>,
}

/// A webhook.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Webhook")]
pub(super) struct WebhookView {
    /// The identifier.
    pub(super) id: String,
    /// Where deliveries go, in canonical form.
    pub(super) url: String,
    /// The event types that it subscribes to.
    pub(super) events: Vec<Subscribed>,
    /// When it was created.
    pub(super) created_at: Time,
    /// Whether deliveries succeed, fail or are paused.
    pub(super) state: WebhookState,
}

impl WebhookView {
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

/// A webhook just created, with its secret, which is shown only here.
#[derive(Serialize, JsonSchema)]
pub(super) struct CreatedWebhook {
    /// The identifier.
    pub(super) id: String,
    /// Where deliveries go, in canonical form.
    pub(super) url: String,
    /// The key that signs deliveries. Keep it.
    pub(super) secret: String,
    /// The event types that it subscribes to.
    pub(super) events: Vec<Subscribed>,
    /// When it was created.
    pub(super) created_at: Time,
    /// Whether deliveries succeed, fail or are paused.
    pub(super) state: WebhookState,
}

/// A new secret, which is shown only here.
#[derive(Serialize, JsonSchema)]
pub(super) struct RotatedSecret {
    /// The webhook's identifier.
    pub(super) id: String,
    /// The key that signs deliveries from now on. Keep it.
    pub(super) secret: String,
    /// Until when the previous secret signs as well.
    pub(super) previous_valid_until: Time,
}

/// A page of webhooks, oldest first.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct WebhookPage {
    /// The webhooks.
    pub(super) data: Vec<WebhookView>,
    /// The `cursor` of the next page; null on the last page.
    pub(super) next_cursor: Option<String>,
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
    /// When it fails permanently, unless its webhook is paused before; null before the first
    /// attempt and after the end.
    pub(super) deadline_at: Option<Time>,
    /// When it was delivered or failed permanently.
    pub(super) ended_at: Option<Time>,
    /// Why it waits; null once it has ended.
    pub(super) waiting_for: Option<WaitingFor>,
}

/// A delivery with all its attempts.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct DeliveryDetail {
    #[serde(flatten)]
    pub(super) delivery: DeliveryView,
    /// The attempts, oldest first.
    pub(super) attempt_log: Vec<AttemptView>,
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
    /// Since when the webhook is paused.
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

/// A job that redelivers by filter.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Redelivery")]
pub(super) struct JobView {
    /// The identifier.
    pub(super) id: String,
    /// Whether it has ended.
    pub(super) state: JobState,
    /// The number of deliveries that wait again because of it.
    pub(super) redelivered: u64,
    /// When it was created.
    pub(super) created_at: Time,
    /// When it had checked every delivery.
    pub(super) ended_at: Option<Time>,
}

/// The state of a job.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(super) enum JobState {
    /// More deliveries are to be checked.
    Running,
    /// Ended.
    Done,
}

impl JobView {
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

pub(super) fn set_of(types: &[Subscribed]) -> EventSet {
    EventSet::of(types.iter().map(|one| one.0))
}
