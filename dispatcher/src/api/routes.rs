//! What an operation is, and which one a request means.
//!
//! Invariant: routing and the OpenAPI document (`openapi`) both use one table (`table`), so they
//! cannot disagree.

use std::pin::Pin;
use std::sync::LazyLock;

use http::Method;
use schemars::generate::SchemaSettings;
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde_json::Value;
use weir_common::http_server::reply::Reply;
use weir_common::identifier::is_identifier;

use crate::api::ApiRequest;
use crate::api::routes::table::OPERATIONS;
use crate::auth::Scope;

pub(super) mod table;

/// Generates a schema, and the definitions that it refers to.
pub(super) type SchemaOf = fn(&mut SchemaGenerator) -> Schema;

/// Answers a request.
pub(super) type Handle = for<'a> fn(&'a ApiRequest<'a>) -> Answering<'a>;

type Answering<'a> = Pin<Box<dyn Future<Output = Result<Reply, Reply>> + Send + 'a>>;

pub(super) struct Operation {
    /// The `operationId`.
    pub(super) id: &'static str,
    pub(super) method: Method,
    /// With `{workspace}`, `{id}` and `{fingerprint}` for identifiers.
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
    /// Another success, which a member of the request selects.
    pub(super) other: Option<OtherSuccess>,
    pub(super) retired_types: RetiredTypes,
    pub(super) handle: Handle,
}

/// The event types that an operation knows although the catalogue has them no more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RetiredTypes {
    None,
    /// All that were ever used.
    Used,
    /// Those of the webhook in its path.
    OfWebhook,
}

/// A second kind of success of an operation.
pub(super) struct OtherSuccess {
    pub(super) status: u16,
    pub(super) answer: &'static str,
    pub(super) response: SchemaOf,
}

impl Operation {
    /// An operation without a query and a body.
    const fn new(
        scope: Option<Scope>,
        method: Method,
        id: &'static str,
        path: &'static str,
        handle: Handle,
    ) -> Self {
        Self {
            id,
            method,
            path,
            scope,
            summary: "",
            query: &[],
            request: None,
            status: 200,
            answer: "",
            response: None,
            media: "application/json",
            other: None,
            retired_types: RetiredTypes::None,
            handle,
        }
    }

    const fn summary(mut self, summary: &'static str) -> Self {
        self.summary = summary;
        self
    }

    const fn query(mut self, query: &'static [Parameter]) -> Self {
        self.query = query;
        self
    }

    const fn body<T: JsonSchema>(mut self) -> Self {
        self.request =
            Some(Request { schema: SchemaGenerator::subschema_for::<T>, optional: false });
        self
    }

    /// A body that may be empty, which means `{}`.
    const fn optional_body<T: JsonSchema>(mut self) -> Self {
        self.request =
            Some(Request { schema: SchemaGenerator::subschema_for::<T>, optional: true });
        self
    }

    /// The status of success, and its body.
    const fn answers(
        mut self,
        status: u16,
        answer: &'static str,
        response: Option<SchemaOf>,
    ) -> Self {
        (self.status, self.answer, self.response) = (status, answer, response);
        self
    }

    const fn media(mut self, media: &'static str) -> Self {
        self.media = media;
        self
    }

    const fn or_answers(mut self, status: u16, answer: &'static str, response: SchemaOf) -> Self {
        self.other = Some(OtherSuccess { status, answer, response });
        self
    }

    const fn knowing(mut self, retired_types: RetiredTypes) -> Self {
        self.retired_types = retired_types;
        self
    }

    /// The detail of the problem for an empty body.
    pub(super) fn empty_body(&self) -> &'static str {
        match self.id {
            "redeliverMany" => "the body is empty; send a JSON object, at least `{}`",
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

/// The identifiers in a path.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct PathParameters<'p> {
    pub(super) workspace: &'p str,
    pub(super) id: &'p str,
    pub(super) fingerprint: &'p str,
}

impl<'p> PathParameters<'p> {
    /// The workspace, if the path has one.
    pub(super) fn workspace_named(&self) -> Option<&'p str> {
        Some(self.workspace).filter(|name| !name.is_empty())
    }
}

/// The names of parameters.
pub(super) fn names(parameters: &[Parameter]) -> Vec<&'static str> {
    parameters.iter().map(|parameter| parameter.name).collect()
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
                    "fingerprint" => parameters.fingerprint = value,
                    _ => parameters.id = value,
                }
            }
        }
    }
    steps.next().is_none().then_some(parameters)
}

/// The schema of an operation's body, with all definitions inlined.
pub(super) fn request_schema(operation: &Operation) -> Option<&'static Value> {
    static SCHEMAS: LazyLock<Vec<(&str, Value)>> = LazyLock::new(|| {
        let mut generator = SchemaSettings::draft2020_12()
            .with(|settings| settings.inline_subschemas = true)
            .into_generator();
        let requests = OPERATIONS.iter().filter_map(|one| Some((one.id, one.request.as_ref()?)));
        requests.map(|(id, one)| (id, (one.schema)(&mut generator).to_value())).collect()
    });
    SCHEMAS.iter().find(|(id, _)| *id == operation.id).map(|(_, schema)| schema)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(method: &str, path: &str) -> String {
        match match_route(&method.parse().expect("a method"), path) {
            RouteMatch::Operation(operation, PathParameters { workspace, id, fingerprint }) => {
                format!("{} {workspace} {id} {fingerprint}", operation.id).trim_end().to_owned()
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
            ("GET", "/v1/workspaces/ws_a/webhooks/wh_1/secrets", "listSecrets ws_a wh_1"),
            ("DELETE", "/v1/workspaces/ws_a/webhooks/wh_1/secrets/f", "removeSecret ws_a wh_1 f"),
            ("GET", "/v1/workspaces/ws_a/deliveries", "listDeliveries ws_a"),
            ("GET", "/v1/workspaces/ws_a/deliveries/export", "exportDeliveries ws_a"),
            ("GET", "/v1/workspaces/ws_a/deliveries/exports", "readDelivery ws_a exports"),
            ("POST", "/v1/workspaces/ws_a/deliveries:redeliver", "redeliverMany ws_a"),
            ("POST", "/v1/workspaces/ws_a/deliveries/d:redeliver", "redeliver ws_a d"),
            ("GET", "/v1/workspaces/ws_a/redeliveries", "listRedeliveries ws_a"),
            ("GET", "/v1/workspaces/ws_a/redeliveries/job_1", "readRedelivery ws_a job_1"),
            ("POST", "/v1/workspaces/ws_a/redeliveries/j:cancel", "cancelRedelivery ws_a j"),
            ("GET", "/v1/workspaces/ws_a/events/evt_1", "readEvent ws_a evt_1"),
            ("GET", "/v1/workspaces/ws_a/webhooks/wh_1/activity", "readActivity ws_a wh_1"),
            ("POST", "/v1/workspaces/ws_a/dashboard-links", "createDashboardLink ws_a"),
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
