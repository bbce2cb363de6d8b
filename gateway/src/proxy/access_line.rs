//! The access log line of one request.
//!
//! Invariant: queries, bodies, and headers but for `Host` and `User-Agent` are never logged: they
//! may contain tokens.
//!
//! Not here: where lines go (`weir_common::log::json_lines`).

use std::borrow::Cow;
use std::net::{IpAddr, SocketAddr};

use http::{Version, header};
use pingora_core::Error;
use pingora_core::protocols::http::ServerSession;
use weir_common::limit::decision::Decision;
use weir_common::log::line::Line;
use weir_common::time::{Moment, micros};

use crate::proxy::context::RequestContext;
use crate::request::client_address::address_text;
use crate::response::refusal::Refusal;

/// How much of a `User-Agent` is logged: twice what browsers send.
const AGENT_BYTES_MAX: usize = 256;

/// What Pingora's session knows of a request that has ended.
pub struct LineFacts<'r> {
    /// The method.
    pub method: &'r str,
    /// The host, as it was sent.
    pub host: Option<&'r str>,
    /// The path, without the query.
    pub path: &'r str,
    /// `HTTP/1.1` and the like.
    pub version: &'static str,
    /// The `User-Agent`, or the start of it.
    pub user_agent: Option<Cow<'r, str>>,
    /// Bytes read of the request's body.
    pub bytes_received: usize,
    /// Bytes sent of the response's body.
    pub bytes_sent: usize,
    /// The source and type of Pingora's error, if there was one.
    pub error: Option<String>,
}

impl<'r> LineFacts<'r> {
    /// The facts of `session`, which ended with `error`.
    #[must_use]
    pub fn of(session: &'r ServerSession, error: Option<&Error>) -> Self {
        let head = session.req_header();
        let target = std::str::from_utf8(head.raw_path()).unwrap_or("(not UTF-8)");
        let host = head.headers.get(header::HOST).and_then(|host| host.to_str().ok());
        let agent = head.headers.get(header::USER_AGENT).map(|agent| agent.as_bytes());
        Self {
            method: head.method.as_str(),
            host: host.or_else(|| head.uri.authority().map(|host| host.as_str())),
            path: target.split(['?', '#']).next().unwrap_or_default(),
            version: match head.version {
                Version::HTTP_10 => "HTTP/1.0",
                Version::HTTP_2 => "HTTP/2.0",
                _ => "HTTP/1.1",
            },
            user_agent: agent.map(|agent| {
                String::from_utf8_lossy(agent.get(..AGENT_BYTES_MAX).unwrap_or(agent))
            }),
            bytes_received: session.body_bytes_read(),
            bytes_sent: session.body_bytes_sent(),
            error: error.map(|error| format!("{:?} {:?}", error.esource(), error.etype())),
        }
    }
}

/// The line of a request that ended at `now`, with its line end.
#[must_use]
pub fn line(context: &RequestContext, facts: &LineFacts<'_>, now: Moment) -> Vec<u8> {
    let rules = &context.config.rules;
    let mut line = Line::new();
    line.shown("time", context.arrived_at.unix.rfc3339_shown());
    line.text("id", &context.request_id());
    line.text("client", &address_text(context.facts.client.address));
    line.text("method", facts.method);
    line.some("host", facts.host);
    line.text("path", facts.path);
    line.text("version", facts.version);
    line.some("user_agent", facts.user_agent.as_deref());
    if let Some(status) = context.response.status {
        line.number("status", status.into());
    }
    let duration = micros(now.tick.since(context.arrived_at.tick));
    line.thousandths("duration_ms", duration);
    if let Some(picked_at) = context.upstream.picked_at {
        let answered_at = context.upstream.answered_at.unwrap_or(now.tick);
        line.thousandths("upstream_ms", micros(answered_at.since(picked_at)));
    }
    line.number("bytes_received", facts.bytes_received as u64);
    line.number("bytes_sent", facts.bytes_sent.max(context.response.bytes) as u64);
    let tenant = &context.facts.tenant;
    let plane = tenant.plane.and_then(|at| rules.planes.get(at));
    line.some("plane", plane.map(|plane| plane.name.as_str()));
    let route = tenant.route.and_then(|at| rules.routes.get(at));
    line.some("route", route.map(|route| route.pattern.text.as_str()));
    if route.is_some_and(|route| route.exempt) {
        line.raw("exempt", "true");
    }
    line.some("workspace", tenant.workspace.as_deref());
    line.some("organisation", tenant.organisation.as_deref());
    line.some("instance", tenant.instance.as_deref());
    if !context.facts.limits.outcomes.is_empty() {
        limits(&mut line, context);
    }
    line.some("refusal", context.response.refusal.as_ref().map(|refusal| refusal.reason()));
    line.some("token_error", context.response.refusal.as_ref().and_then(Refusal::token_error));
    if let Some(server) = context.upstream.tried.last() {
        match server {
            SocketAddr::V4(v4) => {
                let port = &mut itoa::Buffer::new();
                let address = address_text(IpAddr::V4(*v4.ip()));
                line.parts("server", &[&address, ":", port.format(v4.port())]);
            }
            SocketAddr::V6(v6) => line.shown("server", v6),
        }
    }
    if context.upstream.tried.len() > 1 {
        line.number("attempts", context.upstream.tried.len() as u64);
    }
    line.some("error", facts.error.as_deref());
    line.end()
}

/// Adds the limits that were checked, with the decision of each.
fn limits(line: &mut Line, context: &RequestContext) {
    line.list("limits", &context.facts.limits.outcomes, |line, outcome| {
        let limit = context.config.rules.limits.get(outcome.limit);
        let enforced = limit.is_none_or(|limit| limit.enforced);
        let word = match outcome.decision {
            Decision::Admit => "admit",
            _ if enforced => "refuse",
            _ => "would_refuse",
        };
        line.some("limit", limit.map(|limit| &*limit.name));
        line.text("key", &outcome.name);
        line.text("decision", word);
        line.number("remaining", outcome.remaining.into());
    });
}
