//! Events for operators: what happened to webhooks and deliveries of all workspaces. (core)
//!
//! They are no tenant's events: they belong to [`WORKSPACE`], and their envelope names none.
//!
//! Invariant: of a URL only the host is in them: its path and query may be secrets.
//!
//! Not here: which are due (`scheduler`), whom they concern (`worker`).

use std::collections::BTreeSet;

use bytes::Bytes;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use weir_common::time::UnixTime;

use crate::domain::delivery::Arrival;
use crate::domain::event::EventType;
use crate::domain::id::{DeliveryId, WebhookId};
use crate::domain::public_id::event_id;

/// The workspace of the operator's webhook. It is no identifier, so that no call names it.
pub const WORKSPACE: &str = "$operator";

/// An event for operators, as it is stored and sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OperatorEvent {
    /// The identifier: the same for the same event.
    pub id: String,
    /// One of [`EventType::OPERATORS`].
    pub kind: EventType,
    /// The envelope.
    pub body: Bytes,
    /// A hash of type, time and data.
    pub digest: [u8; 32],
    /// What it is about.
    pub about: About,
}

/// What an event for operators is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum About {
    /// A change of a webhook's health.
    Webhook(WebhookId),
    /// A delivery that failed permanently.
    Delivery(DeliveryId),
}

impl OperatorEvent {
    /// The event that this happened at `at`.
    #[must_use]
    pub fn new(kind: EventType, about: About, at: UnixTime, data: &Value) -> Self {
        let (name, created_at) = (kind.name(), at.rfc3339());
        let content = json!({"type": name, "created_at": created_at, "data": data});
        let digest: [u8; 32] = Sha256::digest(content.to_string()).into();
        let id = event_id(at, &digest);
        let envelope = json!({"id": id, "type": name, "created_at": created_at, "data": data});
        Self { body: envelope.to_string().into(), id, kind, digest, about }
    }
}

/// What became of a write.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Recorded {
    /// The deliveries of its events for operators, which now wait.
    pub arrivals: Vec<Arrival>,
    /// How many of these events were dropped, as too many wait already.
    pub dropped: u64,
    /// The deliveries of failed attempts that were redelivered, or whose webhook was reactivated,
    /// meanwhile: they wait as that made them.
    pub redelivered: BTreeSet<DeliveryId>,
}

#[cfg(test)]
mod tests {
    use weir_common::identifier::is_identifier;

    use super::*;

    #[test]
    fn no_identifier_names_the_workspace_of_operators() {
        assert!(!is_identifier(WORKSPACE));
    }

    #[test]
    fn an_event_has_an_envelope_without_a_workspace_and_an_id_of_its_own() {
        let at = UnixTime(1_700_000_000_000_000);
        let data = |webhook: &str| json!({"webhook_id": webhook});
        let of = |kind, webhook: &str| {
            OperatorEvent::new(kind, About::Webhook(WebhookId(1)), at, &data(webhook))
        };
        let event = of(EventType::PAUSED, "wh_1");
        let envelope: Value = serde_json::from_slice(&event.body).unwrap();
        let expected = json!({
            "id": event.id, "type": "endpoint.paused", "created_at": "2023-11-14T22:13:20.000Z",
            "data": {"webhook_id": "wh_1"},
        });
        assert_eq!(envelope, expected);
        assert_eq!(event, of(EventType::PAUSED, "wh_1"), "written again after an error");
        assert_ne!(event.id, of(EventType::FAILING, "wh_1").id);
        assert_ne!(event.id, of(EventType::PAUSED, "wh_2").id);
    }
}
