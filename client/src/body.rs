//! The bodies of the APIs, as far as a client uses them.
//!
//! Members that a newer server adds are ignored; names of states and outcomes are texts, so that a
//! new one is shown and not refused. Invariant: a type with a secret does not print it.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use weir_common::secret::Secret;

/// A page of a list.
#[derive(Clone, Debug, Deserialize)]
pub struct Page<T> {
    /// Its entries; a page may be short, even empty, without being the last.
    pub data: Vec<T>,
    /// The `cursor` of the next page; none on the last.
    pub next_cursor: Option<String>,
}

/// A webhook.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[expect(missing_docs, reason = "the API's documents describe its members")]
pub struct Webhook {
    pub id: String,
    pub url: String,
    pub events: Vec<String>,
    pub created_at: String,
    pub state: String,
    pub description: Option<String>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub metadata: BTreeMap<String, String>,
    /// Header names; their values are secret, and shown as asterisks.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub headers: BTreeMap<String, String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub requests_per_minute: Option<u32>,
}

/// A webhook, its health, and what becomes of it.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[expect(missing_docs, reason = "the API's documents describe its members")]
pub struct WebhookDetail {
    #[serde(flatten)]
    pub webhook: Webhook,
    #[schemars(with = "Map<String, Value>")]
    pub health: Value,
    pub waiting: Count,
    #[schemars(with = "Map<String, Value>")]
    pub forecast: Value,
}

/// A number of deliveries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
pub struct Count {
    /// The number.
    pub count: u64,
    /// Whether there may be more.
    #[serde(default)]
    pub at_least: bool,
}

/// A webhook that was just created.
#[derive(Deserialize)]
pub struct CreatedWebhook {
    /// The webhook.
    #[serde(flatten)]
    pub webhook: Webhook,
    /// Its secret, which is never shown again.
    #[serde(deserialize_with = "secret")]
    pub secret: Secret<String>,
}

/// A secret that was just made.
#[derive(Deserialize)]
pub struct RotatedSecret {
    /// The webhook's identifier.
    pub id: String,
    /// The secret, which is never shown again.
    #[serde(deserialize_with = "secret")]
    pub secret: Secret<String>,
    /// Until when the previous one signs as well; `None` if there is none.
    pub previous_valid_until: Option<String>,
}

fn secret<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Secret<String>, D::Error> {
    String::deserialize(deserializer).map(Secret::new)
}

/// Changes to a webhook.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct WebhookPatch {
    /// The new URL: absolute, https, on a public host.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
    /// The new event types, in place of the present ones.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub events: Option<Vec<String>>,
    /// The new description; an empty one removes it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// The most attempts that start within a minute; 0 leaves the platform's own limits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub requests_per_minute: Option<u32>,
    /// Whether it is disabled: deliveries are queued and none is sent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disabled: Option<bool>,
}

/// Which deliveries.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Filter {
    /// `waiting` (in flight included), `delivered` or `failed_permanent`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state: Option<String>,
    /// The `id` of a webhook.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub webhook: Option<String>,
    /// The `id` of an event.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub event: Option<String>,
    /// The `tenant_id` of events.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tenant: Option<String>,
    /// The type of events, as `user.created`; `webhook.ping` for tests.
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// The outcome of the last attempt: `status_4xx`, `status_5xx`, `timeout`, `dns`, `refused`,
    /// `connection`, `tls` and others.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub outcome: Option<String>,
    /// The HTTP status that the last attempt got.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<u16>,
    /// Only events accepted at or after this time (RFC 3339).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since: Option<String>,
    /// Only events accepted before this time (RFC 3339).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub until: Option<String>,
}

/// One event for one webhook.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[expect(missing_docs, reason = "the API's documents describe its members")]
pub struct Delivery {
    pub id: String,
    pub event_id: String,
    pub webhook_id: String,
    #[serde(rename = "type")]
    pub kind: String,
    pub state: String,
    pub attempts: u32,
    pub last_outcome: Option<String>,
    pub created_at: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_attempt_at: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deadline_at: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ended_at: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waiting_for: Option<WaitingFor>,
}

/// Why a delivery waits.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[expect(missing_docs, reason = "the API's documents describe its members")]
pub struct WaitingFor {
    pub reason: String,
    pub text: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub until: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub position: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seconds: Option<u64>,
}

/// A delivery with its attempts.
#[derive(Clone, Debug, Deserialize)]
pub struct DeliveryDetail {
    /// The delivery.
    #[serde(flatten)]
    pub delivery: Delivery,
    /// Its attempts, the oldest first.
    pub attempt_log: Vec<Attempt>,
}

/// One attempt.
#[derive(Clone, Debug, Deserialize)]
#[expect(missing_docs, reason = "the API's documents describe its members")]
pub struct Attempt {
    pub number: u32,
    pub started_at: String,
    pub duration_ms: u64,
    pub outcome: String,
    pub status: Option<u16>,
    pub error: Option<String>,
    pub url: Option<String>,
    pub response: Option<ReceiverAnswer>,
}

/// What a receiver answered: its words, not ours.
#[derive(Clone, Debug, Deserialize)]
#[expect(missing_docs, reason = "the API's documents describe its members")]
pub struct ReceiverAnswer {
    pub body: String,
    pub body_encoding: String,
    pub body_truncated: bool,
}

/// A job that redelivers many deliveries.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[expect(missing_docs, reason = "the API's documents describe its members")]
pub struct Redelivery {
    pub id: String,
    pub state: String,
    pub examined: u64,
    pub total: Option<Count>,
    pub redelivered: u64,
    pub waiting: u64,
    pub delivered: u64,
    pub failed_permanent: u64,
    pub created_at: String,
    pub ended_at: Option<String>,
    pub estimate: Option<Estimate>,
}

/// When the last of some deliveries is sent.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[expect(missing_docs, reason = "the API's documents describe its members")]
pub struct Estimate {
    pub sent_at: Option<String>,
    pub seconds: Option<u64>,
    pub text: String,
}

/// What a redelivery would do.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[expect(missing_docs, reason = "the API's documents describe its members")]
pub struct RedeliveryPreview {
    pub total: Count,
    pub webhooks: Vec<Value>,
    pub estimate: Option<Estimate>,
}

/// A type of events.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[expect(missing_docs, reason = "the API's documents describe its members")]
pub struct EventType {
    pub name: String,
    pub retired: bool,
    pub description: Option<String>,
    pub tenant_required: bool,
    #[schemars(with = "Option<Map<String, Value>>")]
    pub schema: Option<Value>,
    #[schemars(with = "Option<Map<String, Value>>")]
    pub example: Option<Value>,
}

/// The types of events.
#[derive(Clone, Debug, Deserialize)]
pub struct EventTypes {
    /// The types.
    pub data: Vec<EventType>,
}

/// What a workspace has used and has left, as the gateway answers it.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[expect(missing_docs, reason = "the gateway's documents describe its members")]
pub struct Standing {
    pub workspace: Option<String>,
    pub organisation: Option<String>,
    pub limits: Vec<LimitUsage>,
}

/// One limit.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[expect(missing_docs, reason = "the gateway's documents describe its members")]
pub struct LimitUsage {
    pub limit: String,
    pub key: String,
    pub plan: Option<String>,
    /// Null, like the next two, if the gateway cannot tell at the moment.
    pub used: Option<u64>,
    pub remaining: Option<u64>,
    pub reset: Option<u64>,
    #[schemars(with = "Map<String, Value>")]
    pub allowance: Value,
}
