//! What customers call: one table of operations, from which come both the routing and the
//! document that describes it.
//!
//! # Invariants
//!
//! 1. What is described is what is served: path, parameters, bodies and answers stand in
//!    `routes`, and bodies are checked by the very schemas that the document shows.
//! 2. An object of a workspace that the token may not see is answered as if nothing were there.
//! 3. A body's faults are all named at once.
//! 4. A secret leaves twice at most: when its webhook is registered, and when it is rotated.
//!
//! Not here: events coming in (`ingest`), limits (the gateway).

mod deliveries;

// core
mod validate;

// core
mod openapi;

// core
mod routes;

// core
mod query;

mod redeliveries;

// core
mod dto;

// core
mod times;

// core
mod wait_reason;

mod webhooks;

use std::sync::Arc;

use http::header::CONTENT_TYPE;
use http::{HeaderMap, Method};
use log::Level;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use weir_common::log::events;
use weir_common::time::UnixTime;

use crate::api::query::Query;
use crate::api::routes::{Act, Found, Operation, Place};
use crate::http_errors::{self, Flaw, Flaws};
use crate::http_server::{Call, Handler, Head, Reply, problems};
use crate::ingest::sensitive_data;
use crate::live_config::ActiveConfig;
use crate::state::State;
use crate::store::{Management, StoreError};

/// The largest body: a URL, and the types of events.
const BODY_BYTES_MAX: usize = 64 * 1024;

/// The listener of customers.
pub struct Api {
    /// What everyone shares.
    pub state: Arc<State>,
}

#[async_trait::async_trait]
impl Handler for Api {
    async fn handle(&self, call: Call) -> Reply {
        self.answer(&call).await.unwrap_or_else(|reply| reply)
    }

    /// Whoever may not ask is not listened to.
    fn refuses(&self, head: &Head) -> Option<Reply> {
        permitted(&self.state.active.load(), &head.method, head.uri.path(), &head.headers).err()
    }

    fn body_bytes_max(&self, _path: &str) -> usize {
        BODY_BYTES_MAX
    }
}

impl Api {
    async fn answer(&self, call: &Call) -> Result<Reply, Reply> {
        let active = self.state.active.load_full();
        let (operation, place) = permitted(&active, &call.method, &call.path, &call.headers)?;
        let query = Query::read(call.query.as_deref(), operation.query);
        // Whoever takes parameters reads them, and names what is wrong with all of them at once.
        if operation.query.is_empty() {
            query.nothing().map_err(bad_query)?;
        }
        let asked = Asked {
            state: &self.state,
            active: &active,
            operation,
            workspace: place.workspace,
            id: place.id,
            query,
            call,
            now: self.state.clock.now().unix,
        };
        match operation.act {
            Act::CreateWebhook => webhooks::create(&asked).await,
            Act::ListWebhooks => webhooks::list(&asked).await,
            Act::ReadWebhook => webhooks::read(&asked).await,
            Act::ChangeWebhook => webhooks::change(&asked).await,
            Act::DeleteWebhook => webhooks::delete(&asked).await,
            Act::ReactivateWebhook => webhooks::reactivate(&asked).await,
            Act::RotateSecret => webhooks::rotate_secret(&asked).await,
            Act::PingWebhook => webhooks::ping(&asked).await,
            Act::ListDeliveries => deliveries::list(&asked).await,
            Act::ReadDelivery => deliveries::read(&asked).await,
            Act::Redeliver => deliveries::redeliver(&asked).await,
            Act::RedeliverMany => redeliveries::create(&asked).await,
            Act::ReadRedelivery => redeliveries::read(&asked).await,
            Act::Describe => Ok(json(200, openapi::document())),
        }
    }
}

/// The operation that is asked for, where the token that was sent allows it.
fn permitted<'p>(
    active: &ActiveConfig,
    method: &Method,
    path: &'p str,
    headers: &HeaderMap,
) -> Result<(&'static Operation, Place<'p>), Reply> {
    let (operation, place) = match routes::find(method, path) {
        Found::Operation(operation, place) => (operation, place),
        Found::Methods(allow) => return Err(problems::method_not_allowed(&allow)),
        Found::Nothing => return Err(problems::not_found()),
    };
    if let Some(scope) = operation.scope {
        let authorised = active.tokens.authorise(headers, scope, Some(place.workspace));
        authorised.map_err(|denial| denial.reply())?;
    }
    Ok((operation, place))
}

/// One request that may be answered.
struct Asked<'a> {
    state: &'a State,
    active: &'a ActiveConfig,
    operation: &'static Operation,
    workspace: &'a str,
    id: &'a str,
    query: Query,
    call: &'a Call,
    now: UnixTime,
}

impl Asked<'_> {
    fn store(&self) -> &dyn Management {
        self.state.store.as_ref()
    }

    /// What a store that could not do as it was asked means for the client.
    fn failed(&self, error: &StoreError) -> Reply {
        self.state.metrics.store_failed(error);
        http_errors::store(error)
    }

    /// What was sent, once it fits the schema; `more` says what no schema can.
    fn body<T: DeserializeOwned>(&self, more: impl FnOnce(&Value, &mut Flaws)) -> Result<T, Reply> {
        let value = self.value()?;
        let mut flaws = Flaws::default();
        if let Ok(text) = std::str::from_utf8(&self.call.body) {
            sensitive_data::check_twice(text, &mut flaws);
        }
        if let Some(schema) = routes::request_schema(self.operation) {
            validate::check(schema, &value, "", &mut flaws);
        }
        more(&value, &mut flaws);
        if !flaws.is_empty() {
            return Err(http_errors::unprocessable(&flaws));
        }
        serde_json::from_value(value).map_err(|error| {
            http_errors::unprocessable(&Flaw::at("", format!("cannot be read: {error}")).into())
        })
    }

    fn value(&self) -> Result<Value, Reply> {
        let Call { headers, body, .. } = self.call;
        let optional = self.operation.request.as_ref().is_some_and(|request| request.optional);
        if body.trim_ascii().is_empty() && optional {
            return Ok(Value::Object(serde_json::Map::new()));
        }
        if body.trim_ascii().is_empty() {
            return Err(problems::malformed(self.operation.empty_body()));
        }
        let kind = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
        let kind = kind.and_then(|kind| kind.split(';').next()).unwrap_or_default();
        if !kind.trim().eq_ignore_ascii_case("application/json") {
            return Err(problems::media_type(&["application/json"]));
        }
        serde_json::from_slice(body).map_err(|error| problems::malformed(error.to_string()))
    }
}

fn bad_query(flaws: Flaws) -> Reply {
    http_errors::flawed(400, "invalid-query", "The query does not fit", &flaws)
}

fn json(status: u16, value: &impl Serialize) -> Reply {
    match serde_json::to_vec(value) {
        Ok(body) => Reply {
            status,
            headers: vec![("content-type", "application/json".to_owned())],
            body: body.into(),
        },
        Err(error) => {
            let fields = [("error", error.to_string().into())];
            events::event(Level::Error, "an answer could not be written", &fields);
            problems::broken()
        }
    }
}

/// So many random bytes; without them nothing secret can be made.
fn random<const COUNT: usize>() -> Result<[u8; COUNT], Reply> {
    let mut bytes = [0; COUNT];
    getrandom::fill(&mut bytes).map_err(|error| {
        let fields = [("error", error.to_string().into())];
        events::event(Level::Error, "the system has no random bytes", &fields);
        problems::broken()
    })?;
    Ok(bytes)
}
