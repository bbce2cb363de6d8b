//! Every operation there is: its path, who may ask, what it takes and what it answers.
//!
//! Requests are routed by this table and described by it (`openapi`), so the two cannot disagree.

use std::sync::LazyLock;

use http::Method;
use schemars::generate::SchemaSettings;
use schemars::{Schema, SchemaGenerator};
use serde_json::Value;
use weir_common::identifier::is_identifier;

use crate::api::dto::{
    CreatedWebhook, DeliveryDetail, DeliveryPage, DeliveryView, JobView, NewWebhook, Nothing,
    RedeliveryFilter, RotatedSecret, WebhookPage, WebhookPatch, WebhookView,
};
use crate::auth::Scope;

/// What is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Act {
    CreateWebhook,
    ListWebhooks,
    ReadWebhook,
    ChangeWebhook,
    DeleteWebhook,
    ReactivateWebhook,
    RotateSecret,
    PingWebhook,
    ListDeliveries,
    ReadDelivery,
    Redeliver,
    RedeliverMany,
    ReadRedelivery,
    Describe,
}

/// Makes a schema, and notes those that it refers to.
pub(super) type SchemaOf = fn(&mut SchemaGenerator) -> Schema;

/// An operation.
pub(super) struct Operation {
    pub(super) act: Act,
    /// What programs call it.
    pub(super) id: &'static str,
    pub(super) method: Method,
    /// With `{workspace}` and `{id}` in the places of identifiers.
    pub(super) path: &'static str,
    /// What a token needs; none for what everybody may see.
    pub(super) scope: Option<Scope>,
    pub(super) summary: &'static str,
    pub(super) query: &'static [Parameter],
    pub(super) request: Option<Request>,
    /// The status of its success, and what is answered then.
    pub(super) status: u16,
    pub(super) answer: &'static str,
    pub(super) response: Option<SchemaOf>,
}

impl Operation {
    /// What is said to whoever sends nothing where there must be something.
    pub(super) fn empty_body(&self) -> &'static str {
        match self.act {
            Act::RedeliverMany => "the body is empty; send a JSON object, `{}` at the least",
            _ => "the body is empty; send a JSON object",
        }
    }
}

/// What an operation takes.
pub(super) struct Request {
    pub(super) schema: SchemaOf,
    /// Whether no body is as good as `{}`.
    pub(super) optional: bool,
}

/// A parameter of a query.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Parameter {
    pub(super) name: &'static str,
    pub(super) description: &'static str,
    pub(super) takes: Takes,
}

/// What a parameter may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Takes {
    /// An identifier or a cursor, as it was given out.
    Text,
    /// A time.
    Time,
    /// Where a delivery stands on disk.
    State,
    /// A type that a delivery may have.
    Type,
    /// How many a page holds.
    Limit,
}

const fn parameter(name: &'static str, takes: Takes, description: &'static str) -> Parameter {
    Parameter { name, description, takes }
}

const LIMIT: Parameter = parameter("limit", Takes::Limit, "How many a page holds.");
const CURSOR: Parameter = parameter("cursor", Takes::Text, "The `next_cursor` of the page before.");

/// Of every list.
pub(super) const LIST_QUERY: &[Parameter] = &[LIMIT, CURSOR];

/// Of the list of deliveries.
pub(super) const DELIVERIES_QUERY: &[Parameter] = &[
    parameter("state", Takes::State, "Where it stands; those in flight are `waiting` as well."),
    parameter("webhook", Takes::Text, "The `id` of a webhook."),
    parameter("type", Takes::Type, "The event's type."),
    parameter("since", Takes::Time, "Accepted at or after this time (RFC 3339)."),
    parameter("until", Takes::Time, "Accepted before this time (RFC 3339)."),
    LIMIT,
    CURSOR,
];

const WEBHOOKS: &str = "/v1/workspaces/{workspace}/webhooks";

/// What most operations are, for those below to differ from.
const PLAIN: Operation = Operation {
    act: Act::Describe,
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
};
const READ: Operation = Operation { scope: Some(Scope::WebhooksRead), ..PLAIN };
const WRITE: Operation =
    Operation { scope: Some(Scope::WebhooksWrite), method: Method::POST, ..PLAIN };
const NO_BODY: Option<Request> =
    Some(Request { schema: SchemaGenerator::subschema_for::<Nothing>, optional: true });

/// The table.
pub(super) static OPERATIONS: [Operation; 14] = [
    Operation {
        act: Act::CreateWebhook,
        id: "createWebhook",
        path: WEBHOOKS,
        summary: "Registers a webhook. The answer holds its secret, which is never shown again.",
        request: Some(Request {
            schema: SchemaGenerator::subschema_for::<NewWebhook>,
            optional: false,
        }),
        status: 201,
        answer: "The webhook, with its secret.",
        response: Some(SchemaGenerator::subschema_for::<CreatedWebhook>),
        ..WRITE
    },
    Operation {
        act: Act::ListWebhooks,
        id: "listWebhooks",
        path: WEBHOOKS,
        summary: "Lists a workspace's webhooks, oldest first.",
        query: LIST_QUERY,
        answer: "A page of webhooks.",
        response: Some(SchemaGenerator::subschema_for::<WebhookPage>),
        ..READ
    },
    Operation {
        act: Act::ReadWebhook,
        id: "readWebhook",
        path: "/v1/workspaces/{workspace}/webhooks/{id}",
        summary: "Shows a webhook.",
        answer: "The webhook.",
        response: Some(SchemaGenerator::subschema_for::<WebhookView>),
        ..READ
    },
    Operation {
        act: Act::ChangeWebhook,
        id: "changeWebhook",
        method: Method::PATCH,
        path: "/v1/workspaces/{workspace}/webhooks/{id}",
        summary: "Changes a webhook's URL, its types of events, or both.",
        request: Some(Request {
            schema: SchemaGenerator::subschema_for::<WebhookPatch>,
            optional: false,
        }),
        answer: "The webhook as it is now.",
        response: Some(SchemaGenerator::subschema_for::<WebhookView>),
        ..WRITE
    },
    Operation {
        act: Act::DeleteWebhook,
        id: "deleteWebhook",
        method: Method::DELETE,
        path: "/v1/workspaces/{workspace}/webhooks/{id}",
        summary: "Deletes a webhook. What waits for it is never sent.",
        status: 204,
        answer: "It is deleted.",
        ..WRITE
    },
    Operation {
        act: Act::ReactivateWebhook,
        id: "reactivateWebhook",
        path: "/v1/workspaces/{workspace}/webhooks/{id}:reactivate",
        summary: "Ends a pause: one delivery goes first, and after its 2xx the others in order.",
        request: NO_BODY,
        answer: "The webhook as it is now; unchanged where it was not paused.",
        response: Some(SchemaGenerator::subschema_for::<WebhookView>),
        ..WRITE
    },
    Operation {
        act: Act::RotateSecret,
        id: "rotateSecret",
        path: "/v1/workspaces/{workspace}/webhooks/{id}:rotate-secret",
        summary: "Makes a new secret, shown once; for a while the one before it signs as well.",
        request: NO_BODY,
        answer: "The new secret, and until when the one before signs as well.",
        response: Some(SchemaGenerator::subschema_for::<RotatedSecret>),
        ..WRITE
    },
    Operation {
        act: Act::PingWebhook,
        id: "pingWebhook",
        path: "/v1/workspaces/{workspace}/webhooks/{id}:ping",
        summary: "Sends a test event of type `webhook.ping`, and answers with its delivery.",
        request: NO_BODY,
        status: 202,
        answer: "The test's delivery, which waits or is under way.",
        response: Some(SchemaGenerator::subschema_for::<DeliveryView>),
        ..WRITE
    },
    Operation {
        act: Act::ListDeliveries,
        id: "listDeliveries",
        path: "/v1/workspaces/{workspace}/deliveries",
        summary: "Lists a workspace's deliveries, newest first.",
        query: DELIVERIES_QUERY,
        answer: "A page of deliveries.",
        response: Some(SchemaGenerator::subschema_for::<DeliveryPage>),
        ..READ
    },
    Operation {
        act: Act::ReadDelivery,
        id: "readDelivery",
        path: "/v1/workspaces/{workspace}/deliveries/{id}",
        summary: "Shows a delivery, its attempts, and why it has not been delivered yet.",
        answer: "The delivery, with its attempts.",
        response: Some(SchemaGenerator::subschema_for::<DeliveryDetail>),
        ..READ
    },
    Operation {
        act: Act::Redeliver,
        id: "redeliver",
        path: "/v1/workspaces/{workspace}/deliveries/{id}:redeliver",
        summary: "Lets a delivery begin anew, with a schedule of its own.",
        request: NO_BODY,
        status: 202,
        answer: "The delivery, which waits again.",
        response: Some(SchemaGenerator::subschema_for::<DeliveryView>),
        ..WRITE
    },
    Operation {
        act: Act::RedeliverMany,
        id: "redeliverMany",
        path: "/v1/workspaces/{workspace}/deliveries:redeliver",
        summary: "Lets all deliveries that match begin anew, in the background.",
        request: Some(Request {
            schema: SchemaGenerator::subschema_for::<RedeliveryFilter>,
            optional: false,
        }),
        status: 202,
        answer: "The job, which has just begun.",
        response: Some(SchemaGenerator::subschema_for::<JobView>),
        ..WRITE
    },
    Operation {
        act: Act::ReadRedelivery,
        id: "readRedelivery",
        path: "/v1/workspaces/{workspace}/redeliveries/{id}",
        summary: "Shows how far a redelivery of many has come.",
        answer: "The job, and how far it has come.",
        response: Some(SchemaGenerator::subschema_for::<JobView>),
        ..READ
    },
    PLAIN,
];

/// What a path names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Place<'p> {
    pub(super) workspace: &'p str,
    pub(super) id: &'p str,
}

/// What stands behind a method and a path.
pub(super) enum Found<'p> {
    /// This.
    Operation(&'static Operation, Place<'p>),
    /// Others, by these methods.
    Methods(String),
    /// Nothing.
    Nothing,
}

/// The operation that a request asks for. Identifiers have no colons, so no two templates fit one
/// path.
pub(super) fn find<'p>(method: &Method, path: &'p str) -> Found<'p> {
    let mut allow = Vec::new();
    for operation in &OPERATIONS {
        let Some(place) = place_in(operation.path, path) else { continue };
        if operation.method == *method {
            return Found::Operation(operation, place);
        }
        allow.push(operation.method.as_str());
        if operation.method == Method::GET {
            allow.push(Method::HEAD.as_str());
        }
    }
    if allow.is_empty() { Found::Nothing } else { Found::Methods(allow.join(", ")) }
}

fn place_in<'p>(template: &str, path: &'p str) -> Option<Place<'p>> {
    let (mut steps, mut place) = (path.split('/'), Place::default());
    for wanted in template.split('/') {
        let step = steps.next()?;
        match wanted.strip_prefix('{').and_then(|name| name.split_once('}')) {
            None if step == wanted => {}
            None => return None,
            Some((name, verb)) => {
                let value = step.strip_suffix(verb).filter(|value| is_identifier(value))?;
                match name {
                    "workspace" => place.workspace = value,
                    _ => place.id = value,
                }
            }
        }
    }
    steps.next().is_none().then_some(place)
}

/// The schema of an operation's body, with nothing left to look up.
pub(super) fn request_schema(operation: &Operation) -> Option<&'static Value> {
    static SCHEMAS: LazyLock<Vec<(Act, Value)>> = LazyLock::new(|| {
        let mut generator = SchemaSettings::draft2020_12()
            .with(|settings| settings.inline_subschemas = true)
            .into_generator();
        let requests = OPERATIONS.iter().filter_map(|one| Some((one.act, one.request.as_ref()?)));
        requests.map(|(act, one)| (act, (one.schema)(&mut generator).to_value())).collect()
    });
    SCHEMAS.iter().find(|(act, _)| *act == operation.act).map(|(_, schema)| schema)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(method: &str, path: &str) -> String {
        match find(&method.parse().expect("a method"), path) {
            Found::Operation(operation, Place { workspace, id }) => {
                format!("{} {workspace} {id}", operation.id).trim_end().to_owned()
            }
            Found::Methods(allow) => allow,
            Found::Nothing => "nothing".to_owned(),
        }
    }

    #[test]
    fn a_path_and_a_method_lead_to_one_operation() {
        for (method, path, expected) in [
            ("POST", "/v1/workspaces/ws_a/webhooks", "createWebhook ws_a"),
            ("GET", "/v1/workspaces/ws_a/webhooks", "listWebhooks ws_a"),
            ("PATCH", "/v1/workspaces/ws_a/webhooks/wh_1", "changeWebhook ws_a wh_1"),
            ("POST", "/v1/workspaces/ws_a/webhooks/wh_1:ping", "pingWebhook ws_a wh_1"),
            ("POST", "/v1/workspaces/ws_a/webhooks/wh_1:rotate-secret", "rotateSecret ws_a wh_1"),
            ("GET", "/v1/workspaces/ws_a/deliveries", "listDeliveries ws_a"),
            ("POST", "/v1/workspaces/ws_a/deliveries:redeliver", "redeliverMany ws_a"),
            ("POST", "/v1/workspaces/ws_a/deliveries/d:redeliver", "redeliver ws_a d"),
            ("GET", "/v1/workspaces/ws_a/redeliveries/job_1", "readRedelivery ws_a job_1"),
            ("GET", "/openapi.json", "describe"),
        ] {
            assert_eq!(found(method, path), expected, "{method} {path}");
        }
    }

    #[test]
    fn a_method_that_a_path_does_not_know_is_told_those_that_it_does() {
        assert_eq!(found("PUT", "/v1/workspaces/w/webhooks/x"), "GET, HEAD, PATCH, DELETE");
        assert_eq!(found("GET", "/v1/workspaces/w/webhooks/x:ping"), "POST");
        assert_eq!(found("OPTIONS", "/v1/workspaces/w/webhooks"), "POST, GET, HEAD");
    }

    #[test]
    fn other_spellings_lead_nowhere() {
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
