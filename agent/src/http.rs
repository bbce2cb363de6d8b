//! Agents that call over HTTP: `POST /mcp`, without sessions.
//!
//! # Invariants
//!
//! 1. Without a registered bearer, nothing of a request is read but its head.
//! 2. A request whose `Host` or `Origin` is not expected is refused: no web page that a person
//!    visits can reach a server on their machine.
//! 3. No state outlives a request, so there is none that a caller could fill.
//! 4. Each agent has a share of the connections, from a request's head until its response is read:
//!    whatever one does, the others have theirs.
//!
//! Not here: who the agents are (`agents`), what they may do (`server`), whether a token may be
//! served (`reach`).

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use http::header::{HOST, ORIGIN};
use http::{HeaderMap, Request, StatusCode};
use http_body_util::{BodyExt, Full};
use rmcp::transport::streamable_http_server::session::never::NeverSessionManager;
use rmcp::transport::streamable_http_server::{StreamableHttpServerConfig, StreamableHttpService};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use weir_common::http_server::reply::Reply;
use weir_common::http_server::{Acceptance, Call, Handler, Head, problems};
use weir_common::identity::bearer::{self, Bearer};

use crate::agents::{AGENTS_MAX, sha256};
use crate::reach::{NotServed, TokenReach};
use crate::server::AgentServer;

/// The path of the protocol.
const PATH: &str = "/mcp";

/// The largest message: a call with the longest filter takes a twentieth of it.
const MESSAGE_BYTES_MAX: usize = 64 * 1024;

/// Connections of all agents together. Each may have a call to the gateway in progress, which
/// allows one address 1,000 connections by default.
pub(crate) const CONNECTIONS_MAX: usize = 512;

/// Bytes of messages in memory at one time: each connection may have one.
pub(crate) const BODIES_BYTES_MAX: usize = CONNECTIONS_MAX * MESSAGE_BYTES_MAX;

/// Each agent can have some requests in progress at one time, however many others there are.
const _: () = assert!(CONNECTIONS_MAX / (AGENTS_MAX + 1) >= 3);

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

/// Requests of one of so many agents that may be in progress: an equal part. One part more is for
/// connections that have sent no request yet.
pub(crate) fn share_of(agents: usize) -> usize {
    CONNECTIONS_MAX / (agents + 1)
}

/// An agent, and what it may use of the listener.
struct Member {
    service: Service,
    reach: TokenReach,
    share: Arc<Semaphore>,
}

/// The agents behind a listener.
pub(crate) struct Front {
    by_bearer: HashMap<[u8; 32], Member>,
    /// A permit for each connection that may still come.
    connections: Arc<Semaphore>,
}

impl Front {
    pub(crate) fn new(
        agents: Vec<([u8; 32], AgentServer, TokenReach)>,
        expected: &Expected,
        connections: Arc<Semaphore>,
    ) -> Self {
        let share = share_of(agents.len());
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
        let member = |(bearer, server, reach)| {
            let share = Arc::new(Semaphore::new(share));
            (bearer, Member { service: service(server), reach, share })
        };
        Self { by_bearer: agents.into_iter().map(member).collect(), connections }
    }

    /// The agent that sends these headers.
    fn member(&self, headers: &HeaderMap) -> Option<&Member> {
        match bearer::read(headers) {
            Bearer::Token(token) => self.by_bearer.get(&sha256(token)),
            Bearer::Missing | Bearer::Doubled | Bearer::Malformed => None,
        }
    }
}

#[async_trait]
impl Handler for Front {
    async fn handle(&self, call: Call) -> Reply {
        let Some(Member { service, reach, .. }) = self.member(&call.headers) else {
            return unauthorized();
        };
        match reach.check().await {
            Ok(()) => {}
            Err(NotServed::Others(why)) => return forbidden(&why),
            Err(NotServed::Unchecked(why)) => return problems::busy(&format!("Not served: {why}")),
        }
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
        let reply = tokio::time::timeout(REQUEST_TIMEOUT, answered).await;
        let reply = reply.unwrap_or_else(|_| late());
        // An idle connection counts for no agent, so there must not be many.
        let is_half_used = self.connections.available_permits() < CONNECTIONS_MAX / 2;
        if is_half_used { reply.with("connection", "close") } else { reply }
    }

    async fn accepts(&self, head: &Head) -> Result<Acceptance, Reply> {
        if head.uri.path() != PATH {
            return Err(not_found());
        }
        let is_doubled = |name| head.headers.get_all(name).iter().count() > 1;
        if is_doubled(HOST) || is_doubled(ORIGIN) || head.uri.authority().is_some() {
            let detail = "Name one host, in the field Host, and one origin at most.";
            return Err(problems::refusal(400, "invalid-host", "The host is not clear", detail));
        }
        self.member(&head.headers).map(|_| Acceptance::Verified).ok_or_else(unauthorized)
    }

    fn share(&self, head: &Head) -> Result<Option<OwnedSemaphorePermit>, Reply> {
        let Member { share, .. } = self.member(&head.headers).ok_or_else(unauthorized)?;
        let used_up =
            |_| problems::busy("This agent has its share of requests in progress; wait for one.");
        Arc::clone(share).try_acquire_owned().map(Some).map_err(used_up)
    }

    fn body_bytes_max(&self, _: &str, _: Acceptance) -> usize {
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

fn forbidden(why: &str) -> Reply {
    problems::refusal(403, "forbidden", "The agent is not served", format!("Not served: {why}."))
}

fn not_found() -> Reply {
    let detail = format!("The protocol is served at {PATH}.");
    problems::refusal(404, "not-found", "There is nothing here", detail)
}
