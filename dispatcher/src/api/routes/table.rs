//! The table itself: every operation of the API, and the parameters of its lists.

use http::Method;
use schemars::{JsonSchema, SchemaGenerator, json_schema};

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
use crate::api::routes::{Handle, Operation, Parameter, ParameterKind, RetiredTypes, SchemaOf};
use crate::api::{
    dashboard, deliveries, describe, event_types, export, redeliveries, secrets, url_checks,
    webhooks,
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
const WEBHOOK: &str = "/v1/workspaces/{workspace}/webhooks/{id}";
const SECRETS: &str = "/v1/workspaces/{workspace}/webhooks/{id}/secrets";

/// An operation that needs a token which may read.
const fn read(method: Method, id: &'static str, path: &'static str, handle: Handle) -> Operation {
    Operation::new(Some(Scope::WebhooksRead), method, id, path, handle)
}

/// An operation that needs a token which may change something.
const fn write(method: Method, id: &'static str, path: &'static str, handle: Handle) -> Operation {
    Operation::new(Some(Scope::WebhooksWrite), method, id, path, handle)
}

const fn schema<T: JsonSchema>() -> Option<SchemaOf> {
    Some(SchemaGenerator::subschema_for::<T>)
}

/// The table.
pub(in crate::api) static OPERATIONS: [Operation; 25] = [
    write(Method::POST, "createWebhook", WEBHOOKS, |request| Box::pin(webhooks::create(request)))
        .summary("Creates a webhook. The response has its secret, which is never shown again.")
        .body::<NewWebhookBody>()
        .answers(201, "The webhook, with its secret.", schema::<CreatedWebhook>()),
    write(Method::POST, "checkUrl", "/v1/workspaces/{workspace}/webhooks:check", |request| {
        Box::pin(url_checks::check(request))
    })
    .summary(
        "Sends a signed ping to a URL that no webhook needs to have, and waits for the \
            answer. Nothing is stored.",
    )
    .body::<CheckBody>()
    .answers(
        200,
        "What happened: the receiver's status, or why it has none.",
        schema::<CheckView>(),
    ),
    read(Method::GET, "listWebhooks", WEBHOOKS, |request| Box::pin(webhooks::list(request)))
        .summary("Lists a workspace's webhooks, oldest first.")
        .query(LIST_QUERY)
        .answers(200, "A page of webhooks.", schema::<WebhookPage>()),
    read(Method::GET, "readWebhook", WEBHOOK, |request| Box::pin(webhooks::read(request)))
        .summary("Shows a webhook, its health, and what happens to it next.")
        .answers(200, "The webhook.", schema::<WebhookDetail>()),
    write(Method::PATCH, "changeWebhook", WEBHOOK, |request| Box::pin(webhooks::change(request)))
        .summary("Changes a webhook: its URL, its event types, what its owner set of it.")
        .knowing(RetiredTypes::OfWebhook)
        .body::<WebhookPatch>()
        .answers(200, "The changed webhook.", schema::<WebhookView>()),
    write(Method::DELETE, "deleteWebhook", WEBHOOK, |request| Box::pin(webhooks::delete(request)))
        .summary("Deletes a webhook. Its waiting deliveries are never sent.")
        .answers(204, "The webhook is deleted.", None),
    write(
        Method::POST,
        "reactivateWebhook",
        "/v1/workspaces/{workspace}/webhooks/{id}:reactivate",
        |request| Box::pin(webhooks::reactivate(request)),
    )
    .summary("Ends a pause: one delivery is a probe; after its 2xx the others follow in order.")
    .optional_body::<EmptyBody>()
    .answers(200, "The webhook; unchanged if it was not paused.", schema::<WebhookView>()),
    write(
        Method::POST,
        "rotateSecret",
        "/v1/workspaces/{workspace}/webhooks/{id}:rotate-secret",
        |request| Box::pin(secrets::rotate(request)),
    )
    .summary("Creates a new secret, shown once. The previous secret still signs for a while.")
    .optional_body::<EmptyBody>()
    .answers(
        200,
        "The new secret, and until when the previous one signs.",
        schema::<RotatedSecret>(),
    ),
    write(Method::POST, "addSecret", SECRETS, |request| Box::pin(secrets::add(request)))
        .summary("Adds a secret, shown once. The others go on signing until each one's end.")
        .optional_body::<NewSecretBody>()
        .answers(201, "The secret.", schema::<AddedSecret>()),
    read(Method::GET, "listSecrets", SECRETS, |request| Box::pin(secrets::list(request)))
        .summary("Lists the secrets that sign, by their fingerprints, the current one first.")
        .answers(200, "The secrets, without themselves.", schema::<SecretList>()),
    write(
        Method::DELETE,
        "removeSecret",
        "/v1/workspaces/{workspace}/webhooks/{id}/secrets/{fingerprint}",
        |request| Box::pin(secrets::remove(request)),
    )
    .summary("Removes a secret, which signs nothing more. One without an end stays.")
    .answers(204, "The secret is removed.", None),
    write(
        Method::POST,
        "pingWebhook",
        "/v1/workspaces/{workspace}/webhooks/{id}:ping",
        |request| Box::pin(webhooks::ping(request)),
    )
    .summary("Sends a test: a `webhook.ping`, or the example of a type. Returns its delivery.")
    .optional_body::<TestBody>()
    .answers(202, "The delivery of the test, waiting or in flight.", schema::<DeliveryView>()),
    read(
        Method::GET,
        "readActivity",
        "/v1/workspaces/{workspace}/webhooks/{id}/activity",
        |request| Box::pin(dashboard::activity(request)),
    )
    .summary("Shows how the attempts of a webhook went in the last 24 hours.")
    .answers(200, "Counts and times of the answers, by the hour.", schema::<ActivityView>()),
    read(
        Method::POST,
        "createDashboardLink",
        "/v1/workspaces/{workspace}/dashboard-links",
        |request| Box::pin(dashboard::link(request)),
    )
    .summary(
        "Makes a link into the dashboard. It opens one session, which permits no more \
            than the token does, and ends with it.",
    )
    .optional_body::<NewLink>()
    .answers(201, "The link.", schema::<LinkView>()),
    read(Method::GET, "listDeliveries", "/v1/workspaces/{workspace}/deliveries", |request| {
        Box::pin(deliveries::list(request))
    })
    .summary("Finds a workspace's deliveries, newest first unless asked otherwise.")
    .query(DELIVERIES_QUERY)
    .knowing(RetiredTypes::Used)
    .answers(200, "A page of deliveries.", schema::<DeliveryPage>()),
    read(
        Method::GET,
        "exportDeliveries",
        "/v1/workspaces/{workspace}/deliveries/export",
        |request| Box::pin(export::deliveries(request)),
    )
    .summary("Exports a workspace's deliveries, all that match, one in a line.")
    .query(EXPORT_QUERY)
    .knowing(RetiredTypes::Used)
    .answers(
        200,
        "Lines of JSON, each as in a list. A body without its end is incomplete.",
        Some(|_| json_schema!({"type": "string"})),
    )
    .media("application/x-ndjson"),
    read(Method::GET, "readDelivery", "/v1/workspaces/{workspace}/deliveries/{id}", |request| {
        Box::pin(deliveries::read(request))
    })
    .summary("Shows a delivery, its attempts, and why it waits.")
    .answers(200, "The delivery, with its attempts.", schema::<DeliveryDetail>()),
    write(
        Method::POST,
        "redeliver",
        "/v1/workspaces/{workspace}/deliveries/{id}:redeliver",
        |request| Box::pin(deliveries::redeliver(request)),
    )
    .summary("Redelivers a delivery, with a new retry schedule.")
    .optional_body::<EmptyBody>()
    .answers(202, "The delivery, waiting again.", schema::<DeliveryView>()),
    write(
        Method::POST,
        "redeliverMany",
        "/v1/workspaces/{workspace}/deliveries:redeliver",
        |request| Box::pin(redeliveries::create(request)),
    )
    .summary(
        "Redelivers all deliveries that match, or up to 100 that are named, in the \
            background; `dry_run` counts them only.",
    )
    .knowing(RetiredTypes::Used)
    .body::<NewRedelivery>()
    .answers(202, "The job, just started.", schema::<JobView>())
    .or_answers(
        200,
        "What would be redelivered: `dry_run` was given, and nothing is.",
        SchemaGenerator::subschema_for::<RedeliveryPreview>,
    ),
    read(Method::GET, "listRedeliveries", "/v1/workspaces/{workspace}/redeliveries", |request| {
        Box::pin(redeliveries::list(request))
    })
    .summary("Lists a workspace's redelivery jobs, newest first.")
    .query(LIST_QUERY)
    .answers(200, "A page of jobs.", schema::<RedeliveryPage>()),
    write(
        Method::POST,
        "cancelRedelivery",
        "/v1/workspaces/{workspace}/redeliveries/{id}:cancel",
        |request| Box::pin(redeliveries::cancel(request)),
    )
    .summary("Ends a redelivery job early. What it has queued again stays queued.")
    .optional_body::<EmptyBody>()
    .answers(200, "The job; unchanged if it had ended.", schema::<JobView>()),
    read(
        Method::GET,
        "readRedelivery",
        "/v1/workspaces/{workspace}/redeliveries/{id}",
        |request| Box::pin(redeliveries::read(request)),
    )
    .summary("Shows the progress of a redelivery job.")
    .answers(200, "The job, with its progress.", schema::<JobView>()),
    read(Method::GET, "readEvent", "/v1/workspaces/{workspace}/events/{id}", |request| {
        Box::pin(deliveries::event(request))
    })
    .summary("Shows an event's envelope, byte for byte as it is delivered.")
    .answers(
        200,
        "The envelope, while a delivery of it is kept.",
        Some(|_| json_schema!({"type": "object"})),
    ),
    read(Method::GET, "listEventTypes", "/v1/event-types", |request| {
        Box::pin(async { Ok(event_types::list(request)) })
    })
    .summary("Lists the event types, those of workspaces' webhooks that were removed included.")
    .knowing(RetiredTypes::Used)
    .answers(200, "The event types.", schema::<EventTypeList>()),
    Operation::new(None, Method::GET, "describe", "/openapi.json", |request| {
        Box::pin(async { Ok(describe(request)) })
    })
    .summary("This document.")
    .knowing(RetiredTypes::Used)
    .answers(200, "The document.", None),
];
