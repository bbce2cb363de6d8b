//! The bodies of calls about webhooks.
//!
//! Invariant: a type with a secret implements no `Debug`.

use std::collections::BTreeMap;
use std::num::NonZeroU32;

use http::HeaderName;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize};

use crate::api::dto::{Subscribed, Time};
use crate::delivery::egress::canonical_url::URL_BYTES_MAX;
use crate::delivery::signature::SECRET_CHARS_MAX;
use crate::domain::event::EventSet;
use crate::domain::public_id::PublicIds;
use crate::domain::webhook::client_certificate::{CHAIN_CHARS_MAX, KEY_CHARS_MAX};
use crate::domain::webhook::headers::{self, HEADERS_MAX, NAME_CHARS_MAX, VALUE_CHARS_MAX};
use crate::domain::webhook::options::{
    DESCRIPTION_CHARS_MAX, METADATA_KEY_CHARS_MAX, METADATA_MAX, METADATA_VALUE_CHARS_MAX,
    REQUESTS_PER_MINUTE_MAX,
};
use crate::domain::webhook::signing_key::SigningKey;
use crate::domain::webhook::{DisabledReason, Webhook, WebhookState};

/// A webhook to create.
#[derive(Deserialize, JsonSchema)]
#[schemars(rename = "NewWebhook")]
#[serde(deny_unknown_fields)]
pub(in crate::api) struct NewWebhookBody {
    /// Where deliveries go: an absolute https URL whose host is public.
    #[schemars(length(max = URL_BYTES_MAX), extend("format" = "uri"))]
    pub(in crate::api) url: String,
    /// The event types that it subscribes to.
    #[schemars(length(min = 1), extend("uniqueItems" = true))]
    pub(in crate::api) events: Vec<Subscribed>,
    /// What it is for, in the owner's words.
    #[schemars(length(max = DESCRIPTION_CHARS_MAX))]
    pub(in crate::api) description: Option<String>,
    /// Up to 16 strings of the owner's, by name.
    #[serde(default, deserialize_with = "unless_null")]
    #[schemars(schema_with = "metadata_schema")]
    pub(in crate::api) metadata: BTreeMap<String, Option<String>>,
    /// Up to 16 headers that are sent with each delivery. Their values are never shown again.
    #[serde(default, deserialize_with = "unless_null")]
    #[schemars(schema_with = "headers_schema")]
    pub(in crate::api) headers: BTreeMap<String, Option<String>>,
    /// Which attempts' answers are kept. Default: `failures`.
    pub(in crate::api) answers: Option<Answers>,
    /// The most attempts that start within a minute; the platform's own limits apply as well.
    #[schemars(range(min = 1, max = REQUESTS_PER_MINUTE_MAX))]
    pub(in crate::api) requests_per_minute: Option<u32>,
    /// A certificate for receivers that verify their clients, instead of the platform's.
    pub(in crate::api) client_certificate: Option<CertificateBody>,
    /// Whether deliveries are signed with Ed25519 as well, as `v1a` of Standard Webhooks: see
    /// `public_key`.
    pub(in crate::api) ed25519: Option<bool>,
    /// The key that signs deliveries, brought along from another system: `whsec_` and the base64 of
    /// 24 to 64 bytes. Default: a new one.
    #[schemars(length(max = SECRET_CHARS_MAX))]
    pub(in crate::api) secret: Option<String>,
    /// Whether the receiver must answer a challenge before the webhook is created.
    pub(in crate::api) verify: Option<bool>,
}

/// Changes to a webhook: at least one member.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(in crate::api) struct WebhookPatch {
    /// The new URL.
    #[schemars(length(max = URL_BYTES_MAX), extend("format" = "uri"))]
    pub(in crate::api) url: Option<String>,
    /// The new event types, replacing the present ones.
    #[schemars(length(min = 1), extend("uniqueItems" = true))]
    pub(in crate::api) events: Option<Vec<Subscribed>>,
    /// The new description; an empty one removes it.
    #[schemars(length(max = DESCRIPTION_CHARS_MAX))]
    pub(in crate::api) description: Option<String>,
    /// Entries to set; null removes one, and the others stay.
    #[serde(default, deserialize_with = "unless_null")]
    #[schemars(schema_with = "metadata_patch")]
    pub(in crate::api) metadata: BTreeMap<String, Option<String>>,
    /// Headers to set; null removes one, and the others stay.
    #[serde(default, deserialize_with = "unless_null")]
    #[schemars(schema_with = "headers_patch")]
    pub(in crate::api) headers: BTreeMap<String, Option<String>>,
    /// Which attempts' answers are kept.
    pub(in crate::api) answers: Option<Answers>,
    /// The most attempts that start within a minute; 0 leaves the platform's own limits.
    #[schemars(range(max = REQUESTS_PER_MINUTE_MAX))]
    pub(in crate::api) requests_per_minute: Option<u32>,
    /// The new client certificate, replacing the present one; an empty object removes it.
    pub(in crate::api) client_certificate: Option<CertificateBody>,
    /// Whether deliveries are signed with Ed25519 as well. False removes the key; true later makes
    /// another one.
    pub(in crate::api) ed25519: Option<bool>,
    /// Whether it is disabled: deliveries are queued and none is sent.
    pub(in crate::api) disabled: Option<bool>,
    /// Whether the receiver at the new `url` must answer a challenge before anything changes.
    pub(in crate::api) verify: Option<bool>,
}

/// A client certificate and its key, which are never shown again.
#[derive(Deserialize, JsonSchema)]
#[schemars(rename = "NewClientCertificate")]
#[serde(deny_unknown_fields)]
pub(in crate::api) struct CertificateBody {
    /// The client's certificate in PEM, and those that lead to the receiver's authority.
    #[schemars(length(max = CHAIN_CHARS_MAX))]
    pub(in crate::api) certificate: Option<String>,
    /// Its private key in PEM, without a passphrase.
    #[schemars(length(max = KEY_CHARS_MAX))]
    pub(in crate::api) key: Option<String>,
}

/// What is shown of a client certificate.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "ClientCertificate")]
pub(in crate::api) struct CertificateView {
    /// Whose certificate it is.
    subject: String,
    /// Until when it is valid.
    expires_at: Time,
}

/// Which attempts' headers and answers are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(in crate::api) enum Answers {
    /// Of failed attempts, and of others if the operator keeps those of all webhooks.
    Failures,
    /// Of all attempts.
    All,
}

/// Reads a member as if it were not there where it is null.
fn unless_null<'d, T, D>(member: D) -> Result<T, D::Error>
where
    T: Default + Deserialize<'d>,
    D: Deserializer<'d>,
{
    Option::deserialize(member).map(Option::unwrap_or_default)
}

fn metadata_schema(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": ["object", "null"],
        "maxProperties": METADATA_MAX,
        "propertyNames": {"maxLength": METADATA_KEY_CHARS_MAX},
        "additionalProperties": {"type": "string", "maxLength": METADATA_VALUE_CHARS_MAX},
    })
}

fn headers_schema(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": ["object", "null"],
        "maxProperties": HEADERS_MAX,
        "propertyNames": {"maxLength": NAME_CHARS_MAX},
        "additionalProperties": {"type": "string", "maxLength": VALUE_CHARS_MAX},
    })
}

/// As the schema, with null for an entry to remove. What stays counts as well.
fn patch(mut schema: Schema) -> Schema {
    schema.remove("maxProperties");
    if let Some(entry) = schema.get_mut("additionalProperties") {
        entry["type"] = serde_json::json!(["string", "null"]);
    }
    schema
}

fn metadata_patch(generator: &mut SchemaGenerator) -> Schema {
    patch(metadata_schema(generator))
}

fn headers_patch(generator: &mut SchemaGenerator) -> Schema {
    patch(headers_schema(generator))
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
    /// Whether deliveries succeed, fail, are paused or disabled.
    pub(in crate::api) state: WebhookState,
    /// Why it is disabled; null if it is not.
    pub(in crate::api) disabled_reason: Option<DisabledReason>,
    #[serde(flatten)]
    pub(in crate::api) options: OptionsView,
}

/// What its owner sets apart from the URL and the event types.
#[derive(Debug, Serialize, JsonSchema)]
pub(in crate::api) struct OptionsView {
    /// What it is for, in the owner's words.
    pub(in crate::api) description: Option<String>,
    /// The owner's strings, by name.
    pub(in crate::api) metadata: BTreeMap<String, String>,
    /// The headers that are sent with each delivery, with `********` in place of each value.
    pub(in crate::api) headers: BTreeMap<String, String>,
    /// Which attempts' headers and answers are kept.
    pub(in crate::api) answers: Answers,
    /// The most attempts that start within a minute; null if only the platform's limits apply.
    pub(in crate::api) requests_per_minute: Option<NonZeroU32>,
    /// The certificate that receivers are shown; null if the platform's is, or none.
    pub(in crate::api) client_certificate: Option<CertificateView>,
    /// Verifies the Ed25519 signatures, `whpk_` and the base64 of 32 bytes; null without them.
    pub(in crate::api) public_key: Option<String>,
}

impl OptionsView {
    pub(in crate::api) fn of(webhook: &Webhook) -> Self {
        let options = &webhook.options;
        let labels = options.labels.as_deref().cloned().unwrap_or_default();
        let masked = |(name, _): &(HeaderName, _)| (name.to_string(), headers::SHOWN.to_owned());
        Self {
            description: labels.description,
            metadata: labels.metadata,
            headers: options.headers.iter().map(masked).collect(),
            answers: if options.all_answers { Answers::All } else { Answers::Failures },
            requests_per_minute: options.requests_per_minute,
            client_certificate: options.client_certificate.as_ref().map(|one| CertificateView {
                subject: one.subject().to_owned(),
                expires_at: Time(one.expires_at()),
            }),
            public_key: webhook.secrets.signing_key.as_ref().map(SigningKey::public),
        }
    }
}

impl WebhookView {
    pub(in crate::api) fn of(ids: &PublicIds, webhook: &Webhook) -> Self {
        Self {
            id: ids.webhook(webhook.id),
            url: webhook.url.to_string(),
            events: webhook.events.types().map(Subscribed).collect(),
            created_at: Time(webhook.created_at),
            state: webhook.state(),
            disabled_reason: webhook.disabled_reason(),
            options: OptionsView::of(webhook),
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
    /// Whether deliveries succeed, fail, are paused or disabled.
    pub(in crate::api) state: WebhookState,
    #[serde(flatten)]
    pub(in crate::api) options: OptionsView,
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
