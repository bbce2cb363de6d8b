//! The table of operations: path, scope, parameters, request and response of each.
//!
//! Invariant: routing and the OpenAPI document (`openapi`) both use this table, so they cannot
//! disagree.

use std::sync::LazyLock;

use http::Method;
use schemars::generate::SchemaSettings;
use schemars::{Schema, SchemaGenerator, json_schema};
use serde_json::Value;
use weir_common::identifier::is_identifier;

use crate::api::dto::{
    CreatedWebhook, DeliveryDetail, DeliveryPage, DeliveryView, EmptyBody, JobView, NewWebhookBody,
    RedeliveryFilter, RotatedSecret, WebhookPage, WebhookPatch, WebhookView,
};
use crate::auth::Scope;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OperationKind {
    CreateWebhook,
    ListWebhooks,
    ReadWebhook,
    ChangeWebhook,
    DeleteWebhook,
    ReactivateWebhook,
    RotateSecret,
    PingWebhook,
    ListDeliveries,
    ExportDeliveries,
    ReadDelivery,
    Redeliver,
    RedeliverMany,
    ReadRedelivery,
    ReadEvent,
    Describe,
}

/// Generates a schema, and the definitions that it refers to.
pub(super) type SchemaOf = fn(&mut SchemaGenerator) -> Schema;

pub(super) struct Operation {
    pub(super) kind: OperationKind,
    /// The `operationId`.
    pub(super) id: &'static str,
    pub(super) method: Method,
    /// With `{workspace}` and `{id}` for identifiers.
    pub(super) path: &'static str,
    /// The required scope; `None` if no token is needed.
    pub(super) scope: Option<Scope>,
    pub(super) summary: &'static str,
    pub(super) query: &'static [Parameter],
    pub(super) request: Option<Request>,
    /// The status of success; `answer` and `response` describe its body.
    pub(super) status: u16,
    pub(super) answer: &'static str,
    pub(super) response: Option<SchemaOf>,
    /// The media type of that body.
    pub(super) media: &'static str,
}

impl Operation {
    /// The detail of the problem for an empty body.
    pub(super) fn empty_body(&self) -> &'static str {
        match self.kind {
            OperationKind::RedeliverMany => "the body is empty; send a JSON object, at least `{}`",
            _ => "the body is empty; send a JSON object",
        }
    }
}

/// The body of a request.
pub(super) struct Request {
    pub(super) schema: SchemaOf,
    /// Whether an empty body means `{}`.
    pub(super) optional: bool,
}

/// A query parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Parameter {
    pub(super) name: &'static str,
    pub(super) description: &'static str,
    pub(super) kind: ParameterKind,
}

/// The values of a parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ParameterKind {
    /// An identifier or a cursor, as the API returned it.
    Text,
    Time,
    /// A delivery's state on disk.
    State,
    /// An event type, pings included.
    Type,
    /// A class of outcomes.
    Outcome,
    /// A status of HTTP.
    Status,
    /// Newest or oldest first.
    Order,
    /// The size of a page.
    Limit,
}

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
pub(super) const LIST_QUERY: &[Parameter] = &[LIMIT, CURSOR];

/// The parameters of the list of deliveries.
pub(super) const DELIVERIES_QUERY: &[Parameter] = &[
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
};
const READ: Operation = Operation { scope: Some(Scope::WebhooksRead), ..PLAIN };
const WRITE: Operation =
    Operation { scope: Some(Scope::WebhooksWrite), method: Method::POST, ..PLAIN };
const NO_BODY: Option<Request> =
    Some(Request { schema: SchemaGenerator::subschema_for::<EmptyBody>, optional: true });

/// The table.
pub(super) static OPERATIONS: [Operation; 16] = [
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
        summary: "Shows a webhook.",
        answer: "The webhook.",
        response: Some(SchemaGenerator::subschema_for::<WebhookView>),
        ..READ
    },
    Operation {
        kind: OperationKind::ChangeWebhook,
        id: "changeWebhook",
        method: Method::PATCH,
        path: "/v1/workspaces/{workspace}/webhooks/{id}",
        summary: "Changes a webhook's URL, its event types, or both.",
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
        kind: OperationKind::PingWebhook,
        id: "pingWebhook",
        path: "/v1/workspaces/{workspace}/webhooks/{id}:ping",
        summary: "Sends a test event of type `webhook.ping`, and returns its delivery.",
        request: NO_BODY,
        status: 202,
        answer: "The delivery of the test, waiting or in flight.",
        response: Some(SchemaGenerator::subschema_for::<DeliveryView>),
        ..WRITE
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
        summary: "Redelivers all deliveries that match, in the background.",
        request: Some(Request {
            schema: SchemaGenerator::subschema_for::<RedeliveryFilter>,
            optional: false,
        }),
        status: 202,
        answer: "The job, just started.",
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
    PLAIN,
];

/// The identifiers in a path.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct PathParameters<'p> {
    pub(super) workspace: &'p str,
    pub(super) id: &'p str,
}

/// The result of matching a method and a path.
pub(super) enum RouteMatch<'p> {
    Operation(&'static Operation, PathParameters<'p>),
    /// The path exists with these methods only.
    OtherMethods(String),
    /// No such path.
    NoPath,
}

/// The operation of a request. Identifiers have no colons, so a path matches one template, or a
/// second one in which the last step is an identifier: the first in the table is meant.
pub(super) fn match_route<'p>(method: &Method, path: &'p str) -> RouteMatch<'p> {
    let mut allow = Vec::new();
    let mut templates = OPERATIONS.iter().map(|operation| operation.path);
    let template = templates.find(|template| path_parameters(template, path).is_some());
    for operation in OPERATIONS.iter().filter(|operation| Some(operation.path) == template) {
        let Some(parameters) = path_parameters(operation.path, path) else { continue };
        if operation.method == *method {
            return RouteMatch::Operation(operation, parameters);
        }
        allow.push(operation.method.as_str());
        if operation.method == Method::GET {
            allow.push(Method::HEAD.as_str());
        }
    }
    if allow.is_empty() { RouteMatch::NoPath } else { RouteMatch::OtherMethods(allow.join(", ")) }
}

fn path_parameters<'p>(template: &str, path: &'p str) -> Option<PathParameters<'p>> {
    let (mut steps, mut parameters) = (path.split('/'), PathParameters::default());
    for wanted in template.split('/') {
        let step = steps.next()?;
        match wanted.strip_prefix('{').and_then(|name| name.split_once('}')) {
            None if step == wanted => {}
            None => return None,
            Some((name, verb)) => {
                let value = step.strip_suffix(verb).filter(|value| is_identifier(value))?;
                match name {
                    "workspace" => parameters.workspace = value,
                    _ => parameters.id = value,
                }
            }
        }
    }
    steps.next().is_none().then_some(parameters)
}

/// The schema of an operation's body, with all definitions inlined.
pub(super) fn request_schema(operation: &Operation) -> Option<&'static Value> {
    static SCHEMAS: LazyLock<Vec<(OperationKind, Value)>> = LazyLock::new(|| {
        let mut generator = SchemaSettings::draft2020_12()
            .with(|settings| settings.inline_subschemas = true)
            .into_generator();
        let requests = OPERATIONS.iter().filter_map(|one| Some((one.kind, one.request.as_ref()?)));
        requests.map(|(kind, one)| (kind, (one.schema)(&mut generator).to_value())).collect()
    });
    SCHEMAS.iter().find(|(kind, _)| *kind == operation.kind).map(|(_, schema)| schema)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(method: &str, path: &str) -> String {
        match match_route(&method.parse().expect("a method"), path) {
            RouteMatch::Operation(operation, PathParameters { workspace, id }) => {
                format!("{} {workspace} {id}", operation.id).trim_end().to_owned()
            }
            RouteMatch::OtherMethods(allow) => allow,
            RouteMatch::NoPath => "nothing".to_owned(),
        }
    }

    #[test]
    fn a_method_and_a_path_match_one_operation() {
        for (method, path, expected) in [
            ("POST", "/v1/workspaces/ws_a/webhooks", "createWebhook ws_a"),
            ("GET", "/v1/workspaces/ws_a/webhooks", "listWebhooks ws_a"),
            ("PATCH", "/v1/workspaces/ws_a/webhooks/wh_1", "changeWebhook ws_a wh_1"),
            ("POST", "/v1/workspaces/ws_a/webhooks/wh_1:ping", "pingWebhook ws_a wh_1"),
            ("POST", "/v1/workspaces/ws_a/webhooks/wh_1:rotate-secret", "rotateSecret ws_a wh_1"),
            ("GET", "/v1/workspaces/ws_a/deliveries", "listDeliveries ws_a"),
            ("GET", "/v1/workspaces/ws_a/deliveries/export", "exportDeliveries ws_a"),
            ("GET", "/v1/workspaces/ws_a/deliveries/exports", "readDelivery ws_a exports"),
            ("POST", "/v1/workspaces/ws_a/deliveries:redeliver", "redeliverMany ws_a"),
            ("POST", "/v1/workspaces/ws_a/deliveries/d:redeliver", "redeliver ws_a d"),
            ("GET", "/v1/workspaces/ws_a/redeliveries/job_1", "readRedelivery ws_a job_1"),
            ("GET", "/v1/workspaces/ws_a/events/evt_1", "readEvent ws_a evt_1"),
            ("GET", "/openapi.json", "describe"),
        ] {
            assert_eq!(found(method, path), expected, "{method} {path}");
        }
    }

    #[test]
    fn an_unsupported_method_gets_the_supported_ones() {
        assert_eq!(found("PUT", "/v1/workspaces/w/webhooks/x"), "GET, HEAD, PATCH, DELETE");
        assert_eq!(found("GET", "/v1/workspaces/w/webhooks/x:ping"), "POST");
        assert_eq!(found("PUT", "/v1/workspaces/w/deliveries/export"), "GET, HEAD");
        assert_eq!(found("OPTIONS", "/v1/workspaces/w/webhooks"), "POST, GET, HEAD");
    }

    #[test]
    fn other_spellings_of_a_path_match_no_operation() {
        for path in [
            "",
            "/",
            "/v1",
            "/v1/workspaces//webhooks",
            "/v1/workspaces/w/webhooks/",
            "/v1/workspaces/w/webhooks/x:pong",
            "/v1/workspaces/w/webhooks/:ping",
            "/v1/workspaces/w/webhooks/x%3Aping",
            "/v1/workspaces/w/webhooks/x/y",
            "/V1/workspaces/w/webhooks",
            "/v1/workspaces/w.x/webhooks",
            "/v1/workspaces/w/webhooks/x:ping:ping",
            "//v1/workspaces/w/webhooks",
            "/v1/workspaces/w/deliveries:redeliver/",
            "*",
        ] {
            assert_eq!(found("POST", path), "nothing", "{path}");
        }
    }
}
