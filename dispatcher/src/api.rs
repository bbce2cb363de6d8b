//! The customers' API: one table of operations, used for routing and for the OpenAPI document.
//!
//! # Invariants
//!
//! 1. The OpenAPI document describes what is served: paths, parameters, bodies and responses are
//!    defined in `routes`, and bodies are validated against the schemas in the document.
//! 2. An object of a workspace that the token does not cover is 404, like one that does not exist.
//! 3. A response to an invalid body lists every error.
//! 4. A secret is returned only by the call that creates it: of a webhook, a rotation, or another
//!    secret of a webhook.
//!
//! Not here: events (`ingest`), rate limits (the gateway).

mod dashboard;
mod deliveries;
mod dto;
mod entity_tag;
mod estimates;
mod event_types;
mod export;
mod openapi;
mod pace;
pub(crate) mod query;
mod redeliveries;
mod routes;
mod secrets;
mod test_limit;
pub(crate) mod times;
mod url_checks;
mod validate;
mod wait_reason;
mod webhooks;

use std::sync::Arc;

use http::header::CONTENT_TYPE;
use http::{HeaderMap, Method};
use log::Level;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use weir_common::http_server::reply::Reply;
use weir_common::http_server::{Acceptance, Call, Handler, Head, problems};
use weir_common::log::events;
use weir_common::time::UnixTime;

use crate::api::deliveries::Viewer;
use crate::api::event_types::TypeNames;
use crate::api::export::Exports;
use crate::api::query::Query;
use crate::api::routes::{Operation, PathParameters, RetiredTypes, RouteMatch};
use crate::api::test_limit::TestLimit;
use crate::auth::Caller;
use crate::catalogue::sensitive_data;
use crate::domain::event::EventType;
use crate::domain::id::WebhookId;
use crate::http_errors::{self, ValidationError, ValidationErrors};
use crate::live_config::ActiveConfig;
use crate::state::State;
use crate::store::{Management, StoreError};

/// The largest body: a URL and event types need less.
const BODY_BYTES_MAX: usize = 64 * 1024;

/// What needs no credential is read, and reads no body.
const OPEN_BODY_BYTES_MAX: usize = 1024;

/// The listener for customers.
pub struct Api {
    state: Arc<State>,
    exports: Exports,
    test_limit: TestLimit,
}

#[async_trait::async_trait]
impl Handler for Api {
    async fn handle(&self, call: Call) -> Reply {
        let active = self.state.active.load_full();
        let credential = Credential::Token(&call.headers);
        self.answer(&active, &call, credential).await.unwrap_or_else(|reply| reply)
    }

    /// Refuses a call by its head, before its body is read.
    async fn accepts(&self, head: &Head) -> Result<Acceptance, Reply> {
        let active = self.state.active.load_full();
        let credential = Credential::Token(&head.headers);
        let called = self.permitted(&active, (&head.method, head.uri.path()), credential).await?;
        Ok(called.caller.map_or(Acceptance::Open, |_| Acceptance::Verified))
    }

    fn body_bytes_max(&self, _: &str, acceptance: Acceptance) -> usize {
        match acceptance {
            Acceptance::Verified => BODY_BYTES_MAX,
            Acceptance::Open => OPEN_BODY_BYTES_MAX,
        }
    }
}

impl Api {
    /// The listener with what it shares with others.
    pub fn new(state: Arc<State>) -> Self {
        Self { state, exports: Exports::default(), test_limit: TestLimit::default() }
    }

    /// Answers a call whose caller was identified by a session.
    pub(crate) async fn answer_to(
        &self,
        caller: &Caller,
        active: &ActiveConfig,
        call: &Call,
    ) -> Reply {
        let credential = Credential::Session(caller);
        self.answer(active, call, credential).await.unwrap_or_else(|reply| reply)
    }

    /// The operation of a call, if its caller may make it.
    async fn permitted<'p>(
        &self,
        active: &ActiveConfig,
        (method, path): (&Method, &'p str),
        credential: Credential<'_>,
    ) -> Result<Permitted<'p>, Reply> {
        let (operation, parameters) = operation(method, path)?;
        let Some(scope) = operation.scope else {
            return Ok(Permitted { operation, parameters, caller: None });
        };
        let workspace = parameters.workspace_named();
        let caller = match credential {
            Credential::Token(headers) => {
                let (metrics, now) = (&self.state.metrics, self.state.clock.now());
                active.callers.authorise(headers, (scope, workspace), now, metrics).await
            }
            Credential::Session(caller) => caller.check(scope, workspace).map(|()| caller.clone()),
        };
        let caller = Some(caller.map_err(|refusal| refusal.reply())?);
        Ok(Permitted { operation, parameters, caller })
    }

    async fn answer(
        &self,
        active: &ActiveConfig,
        call: &Call,
        credential: Credential<'_>,
    ) -> Result<Reply, Reply> {
        let Permitted { operation, parameters, caller } =
            self.permitted(active, (&call.method, &call.path), credential).await?;
        let query = Query::read(call.query.as_deref(), &routes::names(operation.query));
        // An operation with parameters reads them itself, and reports all errors together.
        if operation.query.is_empty() {
            query.none().map_err(bad_query)?;
        }
        let used = match operation.retired_types {
            RetiredTypes::Used => self.state.store.event_types().await,
            RetiredTypes::None | RetiredTypes::OfWebhook => Ok(Vec::new()),
        };
        let used = used.map_err(|error| self.state.store_failed(&error))?;
        let mut request = ApiRequest {
            state: &self.state,
            exports: &self.exports,
            test_limit: &self.test_limit,
            active,
            caller,
            types: TypeNames::of(&active.catalogue, used),
            operation,
            workspace: parameters.workspace,
            id: parameters.id,
            fingerprint: parameters.fingerprint,
            query,
            call,
            now: self.state.clock.now().unix,
        };
        if operation.retired_types == RetiredTypes::OfWebhook {
            request.types.kept = request.retired_types_of_webhook().await?;
        }
        (operation.handle)(&request).await
    }
}

/// What identifies the caller of a call.
#[derive(Clone, Copy)]
enum Credential<'a> {
    /// The token in these headers.
    Token(&'a HeaderMap),
    /// A session of this caller.
    Session(&'a Caller),
}

/// A call that its caller may make.
struct Permitted<'p> {
    operation: &'static Operation,
    parameters: PathParameters<'p>,
    /// `None` if the operation needs no token.
    caller: Option<Caller>,
}

/// The operation of a call, without regard to its caller.
fn operation<'p>(
    method: &Method,
    path: &'p str,
) -> Result<(&'static Operation, PathParameters<'p>), Reply> {
    match routes::match_route(method, path) {
        RouteMatch::Operation(operation, parameters) => Ok((operation, parameters)),
        RouteMatch::OtherMethods(allow) => Err(problems::method_not_allowed(&allow)),
        RouteMatch::NoPath => Err(http_errors::not_found()),
    }
}

/// One authorised request.
struct ApiRequest<'a> {
    state: &'a Arc<State>,
    exports: &'a Exports,
    test_limit: &'a TestLimit,
    active: &'a ActiveConfig,
    caller: Option<Caller>,
    types: TypeNames<'a>,
    operation: &'static Operation,
    workspace: &'a str,
    id: &'a str,
    fingerprint: &'a str,
    query: Query,
    call: &'a Call,
    now: UnixTime,
}

impl ApiRequest<'_> {
    fn viewer(&self) -> Viewer<'_> {
        let Self { state, active, workspace, now, .. } = self;
        Viewer { state, active, workspace, now: *now }
    }

    fn store(&self) -> &dyn Management {
        self.state.store.as_ref()
    }

    /// The types that the webhook of the path has and the catalogue has no more.
    async fn retired_types_of_webhook(&self) -> Result<Vec<EventType>, Reply> {
        let id = self.webhook_id()?;
        let webhook = self.found(self.store().webhook(self.workspace, id).await)?;
        let is_retired = |one: &EventType| self.active.catalogue.find(one.name()).is_none();
        Ok(webhook.events.types().filter(is_retired).collect())
    }

    /// The webhook of the path.
    fn webhook_id(&self) -> Result<WebhookId, Reply> {
        self.store().ids().webhook_of(self.id).ok_or_else(http_errors::not_found)
    }

    /// What the store found, or 404.
    fn found<T>(&self, answer: Result<Option<T>, StoreError>) -> Result<T, Reply> {
        answer.map_err(|error| self.failed(&error))?.ok_or_else(http_errors::not_found)
    }

    fn failed(&self, error: &StoreError) -> Reply {
        self.state.store_failed(error)
    }

    /// The body, if it matches the schema; `more` adds checks that a schema cannot express.
    fn body<T: DeserializeOwned>(
        &self,
        more: impl FnOnce(&Value, &mut ValidationErrors),
    ) -> Result<T, Reply> {
        let value = self.value()?;
        let mut errors = ValidationErrors::default();
        if let Ok(text) = std::str::from_utf8(&self.call.body) {
            sensitive_data::check_duplicate_keys(text, &mut errors);
        }
        if let Some(schema) = routes::request_schema(self.operation) {
            let mut schema = schema.clone();
            self.types.fill(&mut schema);
            validate::check(&schema, &value, "", &mut errors);
        }
        more(&value, &mut errors);
        if !errors.is_empty() {
            return Err(http_errors::unprocessable(&errors));
        }
        serde_json::from_value(value).map_err(|error| {
            http_errors::unprocessable(
                &ValidationError::at("", format!("cannot be parsed: {error}")).into(),
            )
        })
    }

    fn value(&self) -> Result<Value, Reply> {
        let Call { headers, body, .. } = self.call;
        let optional = self.operation.request.as_ref().is_some_and(|request| request.optional);
        if body.trim_ascii().is_empty() && optional {
            return Ok(Value::Object(serde_json::Map::new()));
        }
        if body.trim_ascii().is_empty() {
            return Err(http_errors::malformed(self.operation.empty_body()));
        }
        let kind = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
        let kind = kind.and_then(|kind| kind.split(';').next()).unwrap_or_default();
        if !kind.trim().eq_ignore_ascii_case("application/json") {
            return Err(http_errors::media_type(&["application/json"]));
        }
        serde_json::from_slice(body).map_err(|error| http_errors::malformed(error.to_string()))
    }
}

pub(crate) fn bad_query(errors: ValidationErrors) -> Reply {
    http_errors::validation_problem(400, "invalid-query", "Invalid query", &errors)
}

fn json(status: u16, value: &impl Serialize) -> Reply {
    match serde_json::to_vec(value) {
        Ok(body) => Reply::new(status, "application/json", body),
        Err(error) => {
            let fields = [("error", error.to_string().into())];
            events::event(Level::Error, "response write failed", &fields);
            problems::broken()
        }
    }
}

/// The OpenAPI document.
fn describe(request: &ApiRequest<'_>) -> Reply {
    json(200, &openapi::document(&request.types))
}

fn no_content() -> Reply {
    Reply { status: 204, headers: Vec::new(), body: bytes::Bytes::new(), rest: None }
}

/// Random bytes for secrets and identifiers, or 500.
fn random<const COUNT: usize>() -> Result<[u8; COUNT], Reply> {
    let mut bytes = [0; COUNT];
    http_errors::fill_random(&mut bytes)?;
    Ok(bytes)
}
