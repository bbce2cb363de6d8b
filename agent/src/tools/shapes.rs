//! The JSON Schema of each tool's structured result. (core)
//!
//! No member is required: of a call that failed, was only tried or needs consent, the result is an
//! object of the same schema with other members. Invariant: no result has a member that its schema
//! does not name; clients of the official SDKs check the types.

use std::sync::Arc;

use rmcp::model::JsonObject;
use serde_json::{Value, json};
use weir_client::body::{Count, Delivery, EventType, Redelivery, Standing, Webhook, WebhookDetail};
use weir_client::call::Allowance;

use crate::tools::schema::{or_null, part};

type Schema = Arc<JsonObject>;

/// A page of webhooks.
pub(crate) fn webhooks() -> Schema {
    page("webhooks", part::<Webhook>())
}

/// A webhook and its health.
pub(crate) fn webhook() -> Schema {
    of(part::<WebhookDetail>(), [])
}

/// A webhook that was enabled again.
pub(crate) fn reactivated() -> Schema {
    of(part::<Webhook>(), [])
}

/// A webhook that was changed, or needs consent.
pub(crate) fn changed() -> Schema {
    of(part::<Webhook>(), consent())
}

/// A webhook that was created.
pub(crate) fn created() -> Schema {
    of(json!({}), secret().into_iter().chain([("webhook", part::<Webhook>())]))
}

/// A secret that was replaced, or needs consent.
pub(crate) fn rotated() -> Schema {
    let until = [("previous_valid_until", optional_text())];
    of(json!({}), secret().into_iter().chain(until).chain(consent()))
}

/// A page of deliveries.
pub(crate) fn deliveries() -> Schema {
    page("deliveries", part::<Delivery>())
}

/// A delivery.
pub(crate) fn delivery() -> Schema {
    of(part::<Delivery>(), [])
}

/// Why a delivery waits or failed.
pub(crate) fn explanation() -> Schema {
    let attempt = json!({"type": "object", "properties": {
        "number": number(), "started_at": text(), "duration_ms": number(), "outcome": text(),
        "status": or_null(number()), "url": optional_text(), "error": optional_text(),
        "receiver_answer": optional_text(),
    }});
    let members = [
        ("delivery", part::<Delivery>()),
        ("why", text()),
        ("what_helps", text()),
        ("last_attempts", list(&attempt)),
        ("earlier_attempts", number()),
    ];
    of(json!({}), members)
}

/// A page of redelivery jobs.
pub(crate) fn redeliveries() -> Schema {
    page("redeliveries", part::<Redelivery>())
}

/// A redelivery job.
pub(crate) fn redelivery() -> Schema {
    of(part::<Redelivery>(), [])
}

/// A redelivery job that has begun, or needs consent.
pub(crate) fn begun() -> Schema {
    of(part::<Redelivery>(), consent())
}

/// The event types.
pub(crate) fn event_types() -> Schema {
    of(json!({}), [("event_types", list(&part::<EventType>()))])
}

/// An event.
pub(crate) fn event() -> Schema {
    of(json!({}), [("id", text()), ("bytes", number()), ("envelope", text())])
}

/// Limits: all of them, or the one that bound the last call.
pub(crate) fn limits() -> Schema {
    let would_meet = json!({"type": "object", "properties": {
        "admitted": flag(), "binding_limit": text(), "refused_by": text(),
        "never_at_once": flag(), "full_in_seconds": number(),
    }});
    let members = [
        ("standing", or_null(part::<Standing>())),
        ("last_answer", part::<Allowance>()),
        ("would_meet", or_null(would_meet)),
    ];
    of(json!({}), members)
}

fn page(what: &'static str, entry: Value) -> Schema {
    of(json!({}), [(what, list(&entry)), ("next_cursor", optional_text())])
}

/// Where a new secret is.
fn secret() -> [(&'static str, Value); 2] {
    [("secret_file", optional_text()), ("secret_shown_again", flag())]
}

/// What a tool returns that asks first.
fn consent() -> [(&'static str, Value); 7] {
    [
        ("dry_run", flag()),
        ("confirmation_required", flag()),
        ("effect", text()),
        ("count", part::<Count>()),
        ("confirm", number()),
        ("asked", flag()),
        ("approved", flag()),
    ]
}

/// An object with the members of `base`, with `members`, and with those of a failure.
fn of(base: Value, members: impl IntoIterator<Item = (&'static str, Value)>) -> Schema {
    let mut properties = match base {
        Value::Object(mut base) => match base.shift_remove("properties") {
            Some(Value::Object(properties)) => properties,
            _ => JsonObject::new(),
        },
        _ => JsonObject::new(),
    };
    let failure =
        [("error", json!({"type": "object"})), ("help", text()), ("retry_after_seconds", number())];
    for (name, schema) in members.into_iter().chain(failure) {
        properties.insert(name.to_owned(), schema);
    }
    let whole = json!({"type": "object", "properties": properties});
    Arc::new(whole.as_object().cloned().unwrap_or_default())
}

fn list(of: &Value) -> Value {
    json!({"type": "array", "items": of})
}

fn text() -> Value {
    json!({"type": "string"})
}

fn optional_text() -> Value {
    or_null(text())
}

fn number() -> Value {
    json!({"type": "integer"})
}

fn flag() -> Value {
    json!({"type": "boolean"})
}
