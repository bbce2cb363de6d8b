//! Writes headers onto what passes through: who asks, for the upstream; the allowance, for the
//! client.
//!
//! # Invariants
//!
//! 1. What the upstream is told of the client is our word, not the client's, unless a trusted
//!    proxy passed it on.
//! 2. An answer has our limit headers or none; an upstream's own never pass.
//!
//! # Not here
//!
//! What the numbers are (`headers`). Hop-by-hop headers, which Pingora strips.

use std::fmt::Write;
use std::net::IpAddr;

use http::{HeaderValue, header};
use pingora_core::{Error, ErrorType, OrErr, Result};
use pingora_http::{RequestHeader, ResponseHeader};
use pingora_proxy::Session;

use crate::exchange::Exchange;
use crate::headers::{forwarded, is_traceparent};
use crate::judge::values;
use crate::wire::Connection;

/// A request's name that came from a trusted proxy is kept up to this length.
const REQUEST_ID_MAX: usize = 128;

/// What an upstream may not say, for we do.
const LIMIT_HEADERS: [&str; 9] = [
    "x-ratelimit-limit",
    "x-ratelimit-remaining",
    "x-ratelimit-reset",
    "x-ratelimit-resource",
    "x-ratelimit-used",
    "x-ratelimit-policy",
    "x-ratelimit-reset-after",
    "ratelimit",
    "ratelimit-policy",
];

/// Completes the head of a request on its way to the upstream.
pub fn to_upstream(session: &Session, head: &mut RequestHeader, exchange: &Exchange) -> Result<()> {
    if let Some(origin_form) = &exchange.absolute {
        let uri = origin_form.parse().or_err(ErrorType::InvalidHTTPHeader, "origin form")?;
        head.set_uri(uri);
    }
    if let Some(held) = &exchange.held {
        // Every byte is here: the upstream gets an exact length, and nothing to wait for.
        head.remove_header(&header::EXPECT);
        head.remove_header(&header::TRANSFER_ENCODING);
        head.insert_header(header::CONTENT_LENGTH, held.bytes)?;
    }
    join_cookies(head)?;
    if let Some(peer) = peer(session) {
        name_client(head, exchange, peer)?;
    }
    name_request(head, exchange)
}

fn peer(session: &Session) -> Option<IpAddr> {
    // A held body's session has no stream of its own, but it knows the address.
    let of_connection = Connection::of(session.stream()).map(|connection| connection.peer().ip());
    of_connection
        .or_else(|| Some(session.client_addr()?.as_inet()?.ip()))
        .map(|address| address.to_canonical())
}

/// `X-Forwarded-*`, `Forwarded` (RFC 7239) and `X-Real-IP`.
fn name_client(head: &mut RequestHeader, exchange: &Exchange, peer: IpAddr) -> Result<()> {
    let trusted = exchange.trusts_peer;
    let before = |name| {
        let values: Vec<&str> = values(head, name).filter(|_| trusted).collect();
        values.join(", ")
    };
    let with = |before: String, hop: &str| {
        if before.is_empty() { hop.to_owned() } else { format!("{before}, {hop}") }
    };
    let host =
        head.headers.get(header::HOST).and_then(|host| host.to_str().ok()).unwrap_or_default();
    let forwarded_for = with(before("x-forwarded-for"), &peer.to_string());
    let forwarded = with(before("forwarded"), &forwarded(peer, host, "http"));
    let first = |name, otherwise: &str| {
        let value = values(head, name).next().filter(|_| trusted);
        value.unwrap_or(otherwise).to_owned()
    };
    let forwarded_proto = first("x-forwarded-proto", "http");
    let forwarded_host = first("x-forwarded-host", host);
    head.insert_header("X-Forwarded-For", forwarded_for)?;
    head.insert_header("X-Forwarded-Proto", forwarded_proto)?;
    head.insert_header("X-Forwarded-Host", forwarded_host)?;
    head.insert_header("Forwarded", forwarded)?;
    let client = exchange.client.unwrap_or(peer);
    head.insert_header("X-Real-IP", client.to_string())?;
    Ok(())
}

/// `X-Request-Id` and `traceparent`.
fn name_request(head: &mut RequestHeader, exchange: &Exchange) -> Result<()> {
    let given = head.headers.get("x-request-id").filter(|_| exchange.trusts_peer);
    let holds = |id: &&HeaderValue| {
        (1..=REQUEST_ID_MAX).contains(&id.len()) && id.as_bytes().iter().all(u8::is_ascii_graphic)
    };
    if given.filter(holds).is_none() {
        head.insert_header("X-Request-Id", hex(exchange.id))?;
    }
    let traces: Vec<&[u8]> =
        head.headers.get_all("traceparent").iter().map(|v| v.as_bytes()).collect();
    if !matches!(traces.as_slice(), [only] if is_traceparent(only)) {
        head.remove_header("tracestate");
        // The middle of the name tells this span from the trace, which has all of it.
        let span = (exchange.id >> 32) & u128::from(u64::MAX) | 1;
        head.insert_header("traceparent", format!("00-{:032x}-{span:016x}-00", exchange.id | 1))?;
    }
    Ok(())
}

/// HTTP/2 may send a cookie in crumbs, which an HTTP/1.1 upstream must get as one (RFC 9113,
/// 8.2.3; cloudflare/pingora#189).
fn join_cookies(head: &mut RequestHeader) -> Result<()> {
    let crumbs: Vec<&[u8]> =
        head.headers.get_all(header::COOKIE).iter().map(|v| v.as_bytes()).collect();
    if crumbs.len() < 2 {
        return Ok(());
    }
    let joined = HeaderValue::from_bytes(&crumbs.join(&b"; "[..]))
        .map_err(|_| Error::explain(ErrorType::InvalidHTTPHeader, "cookie"))?;
    head.insert_header(header::COOKIE, joined)?;
    Ok(())
}

/// Completes the head of an answer on its way to the client.
pub fn to_client(head: &mut ResponseHeader, exchange: &Exchange) -> Result<()> {
    for name in LIMIT_HEADERS {
        head.remove_header(name);
    }
    head.insert_header("X-Request-Id", hex(exchange.id))?;
    let Some(told) = &exchange.told else { return Ok(()) };
    let limits = &exchange.force.rules.limits;
    let binding = exchange.said.get(told.binding).and_then(|said| limits.get(said.limit));
    head.insert_header("X-RateLimit-Limit", told.limit)?;
    head.insert_header("X-RateLimit-Remaining", told.remaining)?;
    head.insert_header("X-RateLimit-Reset", told.reset)?;
    if let Some(limit) = binding {
        head.insert_header("X-RateLimit-Resource", limit.name.as_str())?;
    }
    if let Some(seconds) = told.retry_after {
        head.insert_header("Retry-After", seconds)?;
    }
    if let Some((policy, standing)) = &exchange.ietf {
        head.insert_header("RateLimit-Policy", policy.as_str())?;
        head.insert_header("RateLimit", standing.as_str())?;
    }
    Ok(())
}

fn hex(id: u128) -> String {
    let mut text = String::with_capacity(32);
    // Writing to a String cannot fail.
    let _ = write!(text, "{id:032x}");
    text
}
