//! The table itself: every operation of the API, and the parameters of its lists.

use http::Method;
use schemars::SchemaGenerator;
use schemars::json_schema;

use crate::api::dto::check::{CheckBody, CheckView};
use crate::api::dto::dashboard::{ActivityView, LinkView, NewLink};
use crate::api::dto::event_type::EventTypeList;
use crate::api::dto::forecast::WebhookDetail;
use crate::api::dto::redelivery::{JobView, NewRedelivery, RedeliveryPage, RedeliveryPreview};
use crate::api::dto::secret::{AddedSecret, NewSecretBody, RotatedSecret, SecretList};
use crate::api::dto::webhook::{
    CreatedWebhook, NewWebhookBody, WebhookPage, WebhookPatch, WebhookView,
};
use crate::api::dto::{DeliveryDetail, DeliveryPage, DeliveryView, EmptyBody, TestBody};
use crate::api::routes::{
    Operation, OperationKind, OtherSuccess, Parameter, ParameterKind, Request,
};
use crate::auth::Scope;

const fn parameter(
    name: &'static str,
    kind: ParameterKind,
    description: &'static str,
) -> Parameter {
    Parameter { name, description, kind }
}

const LIMIT: Parameter = parameter("limit", ParameterKind::Limit, "The size of the page.");
const CURSOR: Parameter =
    parameter("cursor", ParameterKind::Text, "The `next_cursor` of the previous page.");

/// The parameters of every list.
pub(in crate::api) const LIST_QUERY: &[Parameter] = &[LIMIT, CURSOR];

/// The parameters of the list of deliveries.
pub(in crate::api) const DELIVERIES_QUERY: &[Parameter] = &[
    LIMIT,
    CURSOR,
    parameter(
        "state",
        ParameterKind::State,
        "The delivery's state; deliveries in flight are `waiting`.",
    ),
    parameter("webhook", ParameterKind::Text, "The `id` of a webhook."),
    parameter("type", ParameterKind::Type, "The event's type."),
    parameter("event", ParameterKind::Text, "The event's `id`."),
    parameter("tenant", ParameterKind::Text, "The event's `tenant_id`."),
    parameter("outcome", ParameterKind::Outcome, "The class of the last attempt's outcome."),
    parameter("status", ParameterKind::Status, "The status that the last attempt got."),
    parameter("since", ParameterKind::Time, "Accepted at or after this time (RFC 3339)."),
    parameter("until", ParameterKind::Time, "Accepted before this time (RFC 3339)."),
    parameter("order", ParameterKind::Order, "Which are first: the newest, unless it is given."),
];

/// The parameters of an export: it has no pages.
const EXPORT_QUERY: &[Parameter] = DELIVERIES_QUERY.split_at(LIST_QUERY.len()).1;

const WEBHOOKS: &str = "/v1/workspaces/{workspace}/webhooks";

const SECRETS: &str = "/v1/workspaces/{workspace}/webhooks/{id}/secrets";

/// The default members of operations.
const PLAIN: Operation = Operation {
    kind: OperationKind::Describe,
    id: "describe",
    method: Method::GET,
    path: "/openapi.json",
    scope: None,
    summary: "This document.",
    query: &[],
    request: None,
    status: 200,
    answer: "The document.",
    response: None,
    media: "application/json",
    other: None,
};
const READ: Operation = Operation { scope: Some(Scope::WebhooksRead), ..PLAIN };
const WRITE: Operation =
    Operation { scope: Some(Scope::WebhooksWrite), method: Method::POST, ..PLAIN };
const NO_BODY: Option<Request> =
    Some(Request { schema: SchemaGenerator::subschema_for::<EmptyBody>, optional: true });

/// The table.
pub(in crate::api) static OPERATIONS: [Operation; 25] = [
    Operation {
        kind: OperationKind::CreateWebhook,
        id: "createWebhook",
        path: WEBHOOKS,
        summary: "Creates a webhook. The response has its secret, which is never shown again.",
        request: Some(Request {
            schema: SchemaGenerator::subschema_for::<NewWebhookBody>,
            optional: false,
        }),
        status: 201,
        answer: "The webhook, with its secret.",
        response: Some(SchemaGenerator::subschema_for::<CreatedWebhook>),
        ..WRITE
    },
    Operation {
        kind: OperationKind::CheckUrl,
        id: "checkUrl",
        path: "/v1/workspaces/{workspace}/webhooks:check",
        summary: "Sends a signed ping to a URL that no webhook needs to have, and waits for the \
            answer. Nothing is stored.",
        request: Some(Request {
            schema: SchemaGenerator::subschema_for::<CheckBody>,
            optional: false,
        }),
        answer: "What happened: the receiver's status, or why it has none.",
        response: Some(SchemaGenerator::subschema_for::<CheckView>),
        ..WRITE
    },
    Operation {
        kind: OperationKind::ListWebhooks,
        id: "listWebhooks",
        path: WEBHOOKS,
        summary: "Lists a workspace's webhooks, oldest first.",
        query: LIST_QUERY,
        answer: "A page of webhooks.",
        response: Some(SchemaGenerator::subschema_for::<WebhookPage>),
        ..READ
    },
    Operation {
        kind: OperationKind::ReadWebhook,
        id: "readWebhook",
        path: "/v1/workspaces/{workspace}/webhooks/{id}",
        summary: "Shows a webhook, its health, and what happens to it next.",
        answer: "The webhook.",
        response: Some(SchemaGenerator::subschema_for::<WebhookDetail>),
        ..READ
    },
    Operation {
        kind: OperationKind::ChangeWebhook,
        id: "changeWebhook",
        method: Method::PATCH,
        path: "/v1/workspaces/{workspace}/webhooks/{id}",
        summary: "Changes a webhook: its URL, its event types, what its owner set of it.",
        request: Some(Request {
            schema: SchemaGenerator::subschema_for::<WebhookPatch>,
            optional: false,
        }),
        answer: "The changed webhook.",
        response: Some(SchemaGenerator::subschema_for::<WebhookView>),
        ..WRITE
    },
    Operation {
        kind: OperationKind::DeleteWebhook,
        id: "deleteWebhook",
        method: Method::DELETE,
        path: "/v1/workspaces/{workspace}/webhooks/{id}",
        summary: "Deletes a webhook. Its waiting deliveries are never sent.",
        status: 204,
        answer: "The webhook is deleted.",
        ..WRITE
    },
    Operation {
        kind: OperationKind::ReactivateWebhook,
        id: "reactivateWebhook",
        path: "/v1/workspaces/{workspace}/webhooks/{id}:reactivate",
        summary: "Ends a pause: one delivery is a probe; after its 2xx the others follow in order.",
        request: NO_BODY,
        answer: "The webhook; unchanged if it was not paused.",
        response: Some(SchemaGenerator::subschema_for::<WebhookView>),
        ..WRITE
    },
    Operation {
        kind: OperationKind::RotateSecret,
        id: "rotateSecret",
        path: "/v1/workspaces/{workspace}/webhooks/{id}:rotate-secret",
        summary: "Creates a new secret, shown once. The previous secret still signs for a while.",
        request: NO_BODY,
        answer: "The new secret, and until when the previous one signs.",
        response: Some(SchemaGenerator::subschema_for::<RotatedSecret>),
        ..WRITE
    },
    Operation {
        kind: OperationKind::AddSecret,
        id: "addSecret",
        path: SECRETS,
        summary: "Adds a secret, shown once. The others go on signing until each one's end.",
        request: Some(Request {
            schema: SchemaGenerator::subschema_for::<NewSecretBody>,
            optional: true,
        }),
        status: 201,
        answer: "The secret.",
        response: Some(SchemaGenerator::subschema_for::<AddedSecret>),
        ..WRITE
    },
    Operation {
        kind: OperationKind::ListSecrets,
        id: "listSecrets",
        path: SECRETS,
        summary: "Lists the secrets that sign, by their fingerprints, the current one first.",
        answer: "The secrets, without themselves.",
        response: Some(SchemaGenerator::subschema_for::<SecretList>),
        ..READ
    },
    Operation {
        kind: OperationKind::RemoveSecret,
        id: "removeSecret",
        method: Method::DELETE,
        path: "/v1/workspaces/{workspace}/webhooks/{id}/secrets/{fingerprint}",
        summary: "Removes a secret, which signs nothing more. One without an end stays.",
        status: 204,
        answer: "The secret is removed.",
        ..WRITE
    },
    Operation {
        kind: OperationKind::PingWebhook,
        id: "pingWebhook",
        path: "/v1/workspaces/{workspace}/webhooks/{id}:ping",
        summary: "Sends a test: a `webhook.ping`, or the example of a type. Returns its delivery.",
        request: Some(Request {
            schema: SchemaGenerator::subschema_for::<TestBody>,
            optional: true,
        }),
        status: 202,
        answer: "The delivery of the test, waiting or in flight.",
        response: Some(SchemaGenerator::subschema_for::<DeliveryView>),
        ..WRITE
    },
    Operation {
        kind: OperationKind::ReadActivity,
        id: "readActivity",
        path: "/v1/workspaces/{workspace}/webhooks/{id}/activity",
        summary: "Shows how the attempts of a webhook went in the last 24 hours.",
        answer: "Counts and times of the answers, by the hour.",
        response: Some(SchemaGenerator::subschema_for::<ActivityView>),
        ..READ
    },
    Operation {
        kind: OperationKind::CreateLink,
        id: "createDashboardLink",
        method: Method::POST,
        path: "/v1/workspaces/{workspace}/dashboard-links",
        summary: "Makes a link into the dashboard. It opens one session, which permits no more \
            than the token does, and ends with it.",
        request: Some(Request {
            schema: SchemaGenerator::subschema_for::<NewLink>,
            optional: true,
        }),
        status: 201,
        answer: "The link.",
        response: Some(SchemaGenerator::subschema_for::<LinkView>),
        ..READ
    },
    Operation {
        kind: OperationKind::ListDeliveries,
        id: "listDeliveries",
        path: "/v1/workspaces/{workspace}/deliveries",
        summary: "Finds a workspace's deliveries, newest first unless asked otherwise.",
        query: DELIVERIES_QUERY,
        answer: "A page of deliveries.",
        response: Some(SchemaGenerator::subschema_for::<DeliveryPage>),
        ..READ
    },
    Operation {
        kind: OperationKind::ExportDeliveries,
        id: "exportDeliveries",
        path: "/v1/workspaces/{workspace}/deliveries/export",
        summary: "Exports a workspace's deliveries, all that match, one in a line.",
        query: EXPORT_QUERY,
        answer: "Lines of JSON, each as in a list. A body without its end is incomplete.",
        response: Some(|_| json_schema!({"type": "string"})),
        media: "application/x-ndjson",
        ..READ
    },
    Operation {
        kind: OperationKind::ReadDelivery,
        id: "readDelivery",
        path: "/v1/workspaces/{workspace}/deliveries/{id}",
        summary: "Shows a delivery, its attempts, and why it waits.",
        answer: "The delivery, with its attempts.",
        response: Some(SchemaGenerator::subschema_for::<DeliveryDetail>),
        ..READ
    },
    Operation {
        kind: OperationKind::Redeliver,
        id: "redeliver",
        path: "/v1/workspaces/{workspace}/deliveries/{id}:redeliver",
        summary: "Redelivers a delivery, with a new retry schedule.",
        request: NO_BODY,
        status: 202,
        answer: "The delivery, waiting again.",
        response: Some(SchemaGenerator::subschema_for::<DeliveryView>),
        ..WRITE
    },
    Operation {
        kind: OperationKind::RedeliverMany,
        id: "redeliverMany",
        path: "/v1/workspaces/{workspace}/deliveries:redeliver",
        summary: "Redelivers all deliveries that match, or up to 100 that are named, in the \
            background; `dry_run` counts them only.",
        request: Some(Request {
            schema: SchemaGenerator::subschema_for::<NewRedelivery>,
            optional: false,
        }),
        status: 202,
        answer: "The job, just started.",
        response: Some(SchemaGenerator::subschema_for::<JobView>),
        other: Some(OtherSuccess {
            status: 200,
            answer: "What would be redelivered: `dry_run` was given, and nothing is.",
            response: SchemaGenerator::subschema_for::<RedeliveryPreview>,
        }),
        ..WRITE
    },
    Operation {
        kind: OperationKind::ListRedeliveries,
        id: "listRedeliveries",
        path: "/v1/workspaces/{workspace}/redeliveries",
        summary: "Lists a workspace's redelivery jobs, newest first.",
        query: LIST_QUERY,
        answer: "A page of jobs.",
        response: Some(SchemaGenerator::subschema_for::<RedeliveryPage>),
        ..READ
    },
    Operation {
        kind: OperationKind::CancelRedelivery,
        id: "cancelRedelivery",
        path: "/v1/workspaces/{workspace}/redeliveries/{id}:cancel",
        summary: "Ends a redelivery job early. What it has queued again stays queued.",
        request: NO_BODY,
        answer: "The job; unchanged if it had ended.",
        response: Some(SchemaGenerator::subschema_for::<JobView>),
        ..WRITE
    },
    Operation {
        kind: OperationKind::ReadRedelivery,
        id: "readRedelivery",
        path: "/v1/workspaces/{workspace}/redeliveries/{id}",
        summary: "Shows the progress of a redelivery job.",
        answer: "The job, with its progress.",
        response: Some(SchemaGenerator::subschema_for::<JobView>),
        ..READ
    },
    Operation {
        kind: OperationKind::ReadEvent,
        id: "readEvent",
        path: "/v1/workspaces/{workspace}/events/{id}",
        summary: "Shows an event's envelope, byte for byte as it is delivered.",
        answer: "The envelope, while a delivery of it is kept.",
        response: Some(|_| json_schema!({"type": "object"})),
        ..READ
    },
    Operation {
        kind: OperationKind::ListEventTypes,
        id: "listEventTypes",
        path: "/v1/event-types",
        summary: "Lists the event types, those of workspaces' webhooks that were removed included.",
        answer: "The event types.",
        response: Some(SchemaGenerator::subschema_for::<EventTypeList>),
        ..READ
    },
    PLAIN,
];
