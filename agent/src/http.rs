//! Agents that call over HTTP: `POST /mcp`, without sessions.
//!
//! # Invariants
//!
//! 1. Without a registered bearer, nothing of a request is read but its head.
//! 2. A request whose `Host` or `Origin` is not expected is refused: no web page that a person
//!    visits can reach a server on their machine.
//! 3. No state outlives a request, so there is none that a caller could fill.
//!
//! Not here: who the agents are (`agents`), what they may do (`server`).

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use http::{HeaderMap, Request, StatusCode};
use http_body_util::{BodyExt, Full};
use rmcp::transport::streamable_http_server::session::never::NeverSessionManager;
use rmcp::transport::streamable_http_server::{StreamableHttpServerConfig, StreamableHttpService};
use weir_common::http_server::reply::Reply;
use weir_common::http_server::{Call, Handler, Head, problems};
use weir_common::identity::bearer::{self, Bearer};

use crate::agents::sha256;
use crate::server::AgentServer;

/// The path of the protocol.
const PATH: &str = "/mcp";

/// The largest message: a call with the longest filter takes a hundredth of it.
const MESSAGE_BYTES_MAX: usize = 256 * 1024;

/// The longest a request takes: a client's longest wait, and its last try.
pub(crate) const REQUEST_TIMEOUT: Duration = Duration::from_secs(15 * 60);

/// Header fields of a response that are passed on.
const PASSED: [&str; 4] = ["content-type", "allow", "cache-control", "mcp-protocol-version"];

type Service = StreamableHttpService<AgentServer, NeverSessionManager>;

/// Who may reach the listener: names of hosts, and origins of web pages.
#[derive(Clone, Debug, Default)]
pub(crate) struct Expected {
    pub(crate) hosts: Vec<String>,
    pub(crate) origins: Vec<String>,
}

/// The agents behind a listener.
pub(crate) struct Front {
    by_bearer: HashMap<[u8; 32], Service>,
}

impl Front {
    pub(crate) fn new(
        agents: impl IntoIterator<Item = ([u8; 32], AgentServer)>,
        expected: &Expected,
    ) -> Self {
        let service = |server: AgentServer| {
            let config = StreamableHttpServerConfig::default()
                .with_legacy_session_mode(false)
                .with_json_response(true)
                .with_allowed_hosts(expected.hosts.clone())
                .with_allowed_origins(expected.origins.clone())
                .enforce_origin_validation()
                .with_max_request_body_bytes(MESSAGE_BYTES_MAX);
            Service::new(move || Ok(server.clone()), Arc::default(), config)
        };
        let agents = agents.into_iter().map(|(bearer, server)| (bearer, service(server)));
        Self { by_bearer: agents.collect() }
    }

    /// The service of the agent that sends these headers.
    fn service(&self, headers: &HeaderMap) -> Option<&Service> {
        match bearer::read(headers) {
            Bearer::Token(token) => self.by_bearer.get(&sha256(token)),
            Bearer::Missing | Bearer::Doubled | Bearer::Malformed => None,
        }
    }
}

#[async_trait]
impl Handler for Front {
    async fn handle(&self, call: Call) -> Reply {
        let Some(service) = self.service(&call.headers) else { return unauthorized() };
        let mut request = Request::new(Full::new(call.body));
        *request.method_mut() = call.method;
        *request.headers_mut() = call.headers;
        let Ok(uri) = call.path.parse() else { return not_found() };
        *request.uri_mut() = uri;
        let answered = async {
            let (head, body) = service.handle(request).await.into_parts();
            let Ok(body) = body.collect().await;
            reply(head.status, &head.headers, body.to_bytes())
        };
        let late = || problems::busy("The call took too long; call again.");
        tokio::time::timeout(REQUEST_TIMEOUT, answered).await.unwrap_or_else(|_| late())
    }

    async fn refuses(&self, head: &Head) -> Option<Reply> {
        if head.uri.path() != PATH {
            return Some(not_found());
        }
        self.service(&head.headers).is_none().then(unauthorized)
    }

    fn body_bytes_max(&self, _: &str) -> usize {
        MESSAGE_BYTES_MAX
    }
}

fn reply(status: StatusCode, headers: &HeaderMap, body: Bytes) -> Reply {
    let mut reply = Reply { status: status.as_u16(), headers: Vec::new(), body, rest: None };
    for name in PASSED {
        if let Some(value) = headers.get(name).and_then(|value| value.to_str().ok()) {
            reply = reply.with(name, value);
        }
    }
    reply
}

fn unauthorized() -> Reply {
    let detail = "Send the bearer of a registered agent: `Authorization: Bearer …`, once.";
    problems::refusal(401, "unauthorized", "Missing or unknown bearer", detail.to_owned())
        .with("www-authenticate", "Bearer")
}

fn not_found() -> Reply {
    let detail = format!("The protocol is served at {PATH}.");
    problems::refusal(404, "not-found", "There is nothing here", detail)
}
