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

use http::{HeaderMap, HeaderName, HeaderValue, Version, header};
use pingora_core::{Error, ErrorType, OrErr, Result};
use pingora_http::{RequestHeader, ResponseHeader};
use pingora_proxy::Session;

use crate::exchange::Exchange;
use crate::headers::{Told, forwarded, is_traceparent};
use crate::judge::values;
use crate::wire::Connection;

/// What `Connection` cannot take off an answer: its end would be lost.
const FRAMING: [&str; 3] = ["content-length", "transfer-encoding", "upgrade"];

/// What neither side may say, for we do.
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
    if says_limits(&head.headers) {
        for name in LIMIT_HEADERS {
            head.remove_header(name);
        }
    }
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

/// `X-Forwarded-*` and `Forwarded` (RFC 7239). An `X-Real-IP` passes only from a trusted proxy.
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
    if !trusted {
        head.remove_header("x-real-ip");
    }
    Ok(())
}

/// `X-Request-Id` and `traceparent`.
fn name_request(head: &mut RequestHeader, exchange: &Exchange) -> Result<()> {
    if exchange.given_id.is_none() {
        head.insert_header("X-Request-Id", exchange.name().as_ref())?;
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
pub fn to_client(
    connection: Option<&Connection>,
    head: &mut ResponseHeader,
    exchange: &Exchange,
) -> Result<()> {
    if says_limits(&head.headers) {
        for name in LIMIT_HEADERS {
            head.remove_header(name);
        }
    }
    let refused = exchange.told.as_ref().is_some_and(|told| told.retry_after.is_some());
    for name in ["x-request-id", "retry-after"].iter().take(if refused { 2 } else { 1 }) {
        head.remove_header(*name);
    }
    match connection {
        Some(connection) => connection.add_lines(lines(exchange).as_bytes()),
        None => {
            for line in lines(exchange).lines() {
                let (name, value) = line.split_once(": ").unwrap_or((line, ""));
                head.insert_header(name.to_owned(), value)?;
            }
        }
    }
    Ok(())
}

/// Whether there is any of [`LIMIT_HEADERS`], which is seldom, and quickly seen.
fn says_limits(headers: &HeaderMap) -> bool {
    headers.keys().map(HeaderName::as_str).any(|name| {
        (name.starts_with("x-ratelimit") || name.starts_with("ratelimit"))
            && LIMIT_HEADERS.contains(&name)
    })
}

/// Takes off an answer what was meant for us alone (RFC 9110, 7.6.1), and what its client is too
/// old to read.
pub fn end_hop(head: &mut ResponseHeader, client: Version) -> Result<()> {
    let options: Vec<String> = head
        .headers
        .get_all(header::CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .map(|option| option.trim().to_ascii_lowercase())
        .filter(|option| !option.is_empty() && !FRAMING.contains(&option.as_str()))
        .collect();
    for option in &options {
        head.remove_header(option.as_str());
    }
    for name in ["keep-alive", "proxy-connection"] {
        head.remove_header(name);
    }
    if client == Version::HTTP_10 {
        // Without chunks the end of the body is the end of the connection.
        head.remove_header(&header::TRANSFER_ENCODING);
    }
    Ok(())
}

/// What every answer says for us, as header lines with their line ends.
pub fn lines(exchange: &Exchange) -> String {
    let mut text = String::with_capacity(256);
    write_lines(&mut text, exchange);
    text
}

/// Writing to a String cannot fail, and so nothing that it returns is looked at.
fn write_lines(text: &mut String, exchange: &Exchange) {
    let _ = match &exchange.given_id {
        Some(given) => write!(text, "X-Request-Id: {given}\r\n"),
        None => write!(text, "X-Request-Id: {:032x}\r\n", exchange.id),
    };
    let Some(told) = &exchange.told else { return };
    let Told { limit, remaining, reset, .. } = told;
    let _ = write!(
        text,
        "X-RateLimit-Limit: {limit}\r\nX-RateLimit-Remaining: {remaining}\r\n\
         X-RateLimit-Reset: {reset}\r\n",
    );
    let limits = &exchange.force.rules.limits;
    let binding = exchange.said.get(told.binding).and_then(|said| limits.get(said.limit));
    if let Some(limit) = binding {
        let _ = write!(text, "X-RateLimit-Resource: {}\r\n", limit.name);
    }
    if let Some(seconds) = told.retry_after {
        let _ = write!(text, "Retry-After: {seconds}\r\n");
    }
    if let Some((policy, standing)) = &exchange.ietf {
        let _ = write!(text, "RateLimit-Policy: {policy}\r\nRateLimit: {standing}\r\n");
    }
}
