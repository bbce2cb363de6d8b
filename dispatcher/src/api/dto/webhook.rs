//! The bodies of calls about webhooks.
//!
//! Invariant: a type with a secret implements no `Debug`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::api::dto::{Subscribed, Time};
use crate::domain::event::EventSet;
use crate::domain::public_id::PublicIds;
use crate::domain::webhook::{Webhook, WebhookState};

/// A webhook to create.
#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(rename = "NewWebhook")]
#[serde(deny_unknown_fields)]
pub(in crate::api) struct NewWebhookBody {
    /// Where deliveries go: an absolute https URL whose host is public.
    #[schemars(length(max = 2048), extend("format" = "uri"))]
    pub(in crate::api) url: String,
    /// The event types that it subscribes to.
    #[schemars(length(min = 1), extend("uniqueItems" = true))]
    pub(in crate::api) events: Vec<Subscribed>,
}

/// Changes to a webhook: at least one member.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(in crate::api) struct WebhookPatch {
    /// The new URL.
    #[schemars(length(max = 2048), extend("format" = "uri"))]
    pub(in crate::api) url: Option<String>,
    /// The new event types, replacing the present ones.
    #[schemars(length(min = 1), extend("uniqueItems" = true))]
    pub(in crate::api) events: Option<Vec<Subscribed>>,
}

/// A webhook.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Webhook")]
pub(in crate::api) struct WebhookView {
    /// The identifier.
    pub(in crate::api) id: String,
    /// Where deliveries go, in canonical form.
    pub(in crate::api) url: String,
    /// The event types that it subscribes to.
    pub(in crate::api) events: Vec<Subscribed>,
    /// When it was created.
    pub(in crate::api) created_at: Time,
    /// Whether deliveries succeed, fail or are paused.
    pub(in crate::api) state: WebhookState,
}

impl WebhookView {
    pub(in crate::api) fn of(ids: &PublicIds, webhook: &Webhook) -> Self {
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
pub(in crate::api) struct CreatedWebhook {
    /// The identifier.
    pub(in crate::api) id: String,
    /// Where deliveries go, in canonical form.
    pub(in crate::api) url: String,
    /// The key that signs deliveries. Keep it.
    pub(in crate::api) secret: String,
    /// The event types that it subscribes to.
    pub(in crate::api) events: Vec<Subscribed>,
    /// When it was created.
    pub(in crate::api) created_at: Time,
    /// Whether deliveries succeed, fail or are paused.
    pub(in crate::api) state: WebhookState,
}

/// A new secret, which is shown only here.
#[derive(Serialize, JsonSchema)]
pub(in crate::api) struct RotatedSecret {
    /// The webhook's identifier.
    pub(in crate::api) id: String,
    /// The key that signs deliveries from now on. Keep it.
    pub(in crate::api) secret: String,
    /// Until when the previous secret signs as well.
    pub(in crate::api) previous_valid_until: Time,
}

/// A page of webhooks, oldest first.
#[derive(Debug, Serialize, JsonSchema)]
pub(in crate::api) struct WebhookPage {
    /// The webhooks.
    pub(in crate::api) data: Vec<WebhookView>,
    /// The `cursor` of the next page; null on the last page.
    pub(in crate::api) next_cursor: Option<String>,
}

pub(in crate::api) fn set_of(types: &[Subscribed]) -> EventSet {
    EventSet::of(types.iter().map(|one| one.0))
}
