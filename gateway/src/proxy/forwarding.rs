//! Adds headers to what is forwarded: the client's identity for the upstream, the limits for the
//! client.
//!
//! # Invariants
//!
//! 1. Fields that identify the client are set by us, or passed on from a trusted proxy, and never
//!    the client's own.
//! 2. `Client-Cert` is a certificate that we have verified on this connection, or is absent.
//! 3. A response has our limit headers or none; an upstream's are removed.
//! 4. Which pages may read a response is decided by one side: by the upstream where its response
//!    allows an origin, and otherwise by the plane's CORS rules.
//!
//! # Not here
//!
//! The values (`report`). Removing hop-by-hop headers of requests, which Pingora does.

mod forwarded;
pub mod response_fields;

use http::header::InvalidHeaderValue;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, Version, header};
use pingora_core::{Error, ErrorType, OrErr, Result};
use pingora_http::{RequestHeader, ResponseHeader};

use crate::admission::facts::ClientFacts;
use crate::admission::request_head::REQUEST_ID;
use crate::limit::key::hex;
use crate::proxy::context::RequestContext;
use crate::proxy::forwarding::forwarded::{forwarded, is_traceparent};
use crate::proxy::forwarding::response_fields::{add_fields, add_text, allow_pages, push_lines};
use crate::proxy::response_head;
use crate::request::client_address::{FORWARDED_FOR, address_text};
use crate::request::cookies;
use crate::settings::trusted::{self, folded};

/// Hop-by-hop fields of a response, even where `Connection` does not name them.
const OF_HOP: [&str; 3] = ["keep-alive", "proxy-connection", "upgrade"];

/// Hop-by-hop fields of a request.
const OF_REQUEST_HOP: [&str; 10] = [
    "connection",
    "http2-settings",
    "keep-alive",
    "proxy-authenticate",
    "proxy-authorization",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];

/// Fields that `Connection` does not remove from a response: its end would be unknown.
const FRAMING: [&str; 3] = ["content-length", "transfer-encoding", "upgrade"];

/// The largest head of a response, in bytes and in fields: Pingora's limits over HTTP/1.1. Over
/// HTTP/2 it accepts 16 MiB.
const HEAD_BYTES_MAX: usize = 1 << 20;
const HEAD_FIELDS_MAX: usize = 256;

/// Fields that only we set, and those that say the same in earlier forms: removed from requests,
/// responses and trailers, in every spelling that is read as one of these.
const LIMIT_HEADERS: [&str; 15] = [
    "x-ratelimit-limit",
    "x-ratelimit-remaining",
    "x-ratelimit-reset",
    "x-ratelimit-resource",
    "x-ratelimit-used",
    "x-ratelimit-policy",
    "x-ratelimit-reset-after",
    "ratelimit",
    "ratelimit-policy",
    // Drafts of RateLimit up to the sixth, and what frameworks write.
    "ratelimit-limit",
    "ratelimit-remaining",
    "ratelimit-reset",
    "x-rate-limit-limit",
    "x-rate-limit-remaining",
    "x-rate-limit-reset",
];

const FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");
const FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
const REAL_IP: HeaderName = HeaderName::from_static("x-real-ip");
const CLIENT_CERT: HeaderName = HeaderName::from_static(trusted::CLIENT_CERT);
const CLIENT_CERT_CHAIN: HeaderName = HeaderName::from_static(trusted::CLIENT_CERT_CHAIN);
const TRACE_PARENT: HeaderName = HeaderName::from_static("traceparent");
const TRACE_STATE: HeaderName = HeaderName::from_static("tracestate");

/// Fields whose other spellings, as with `_` for `-`, are removed from requests.
const OURS: [&str; 9] = [
    "x-forwarded-for",
    "x-forwarded-proto",
    "x-forwarded-host",
    "x-real-ip",
    "x-request-id",
    "forwarded",
    "traceparent",
    trusted::CLIENT_CERT,
    trusted::CLIENT_CERT_CHAIN,
];

/// Hop-by-hop and framing fields whose other spellings are removed from requests.
const OF_WIRE: [&str; 5] = [
    "content-length",
    "transfer-encoding",
    "keep-alive",
    "proxy-connection",
    "proxy-authorization",
];

/// How many headers we add: the capacity to reserve.
const ADDED: usize = 7;

/// Whether a request has any of the fields that Pingora removes, or that name such fields.
#[must_use]
pub fn has_hop_fields(headers: &HeaderMap) -> bool {
    headers.keys().any(|name| OF_REQUEST_HOP.contains(&name.as_str()))
}

/// Completes the head of a request on its way to the upstream.
///
/// Pingora's own header type parses each name that is inserted, to keep its case; its parts are a
/// plain map, so the head is taken apart and put together once.
///
/// `request` is the head as the client sent it. Hop-by-hop fields are gone from `head`, and with
/// them the `TE: trailers` that gRPC servers require.
pub fn to_upstream(
    request: &RequestHeader,
    head: &mut RequestHeader,
    context: &RequestContext,
) -> Result<()> {
    let empty = RequestHeader::from(http::Request::new(()).into_parts().0);
    let whole = std::mem::replace(head, empty);
    let of_uri = whole.uri.path_and_query().map(|target| target.as_str().as_bytes());
    let target = match &context.facts.origin_form {
        Some(origin_form) => Some(origin_form.as_bytes().to_vec()),
        None => (of_uri != Some(whole.raw_path())).then(|| whole.raw_path().to_vec()),
    };
    let mut parts = http::request::Parts::from(whole);
    parts.headers.reserve(ADDED);
    let accepts_trailers =
        request.headers.get_all(header::TE).iter().any(|te| te.as_bytes() == b"trailers");
    if accepts_trailers && parts.version == Version::HTTP_2 {
        parts.headers.insert(header::TE, HeaderValue::from_static("trailers"));
    }
    // An HTTP/2 client sends its host in `:authority`; every upstream gets it in `Host`.
    if let Some(host) = parts.uri.authority().filter(|_| !parts.headers.contains_key(header::HOST))
    {
        let host = HeaderValue::try_from(host.as_str());
        let host = host.or_err(ErrorType::InvalidHTTPHeader, "the host of the target")?;
        parts.headers.insert(header::HOST, host);
    }
    let completed = complete(&mut parts.headers, context);
    *head = parts.into();
    if let Some(target) = target {
        head.set_raw_path(&target)?;
    }
    completed
}

fn complete(headers: &mut HeaderMap, context: &RequestContext) -> Result<()> {
    if let Some(buffered) = &context.buffered {
        // The whole body has arrived: the upstream gets its length, and no `Expect`.
        headers.remove(header::EXPECT);
        headers.remove(header::TRANSFER_ENCODING);
        headers.insert(header::CONTENT_LENGTH, buffered.bytes.into());
    }
    join_cookies(headers)?;
    remove_limits(headers);
    remove_foreign(headers, context);
    name_client(headers, &context.facts.client)?;
    show_certificate(headers, context)?;
    name_request(headers, context)
}

/// `X-Forwarded-*` and `Forwarded` (RFC 7239). An `X-Real-IP` passes only from a trusted proxy.
fn name_client(headers: &mut HeaderMap, client: &ClientFacts) -> Result<()> {
    let scheme = if client.secure { "https" } else { "http" };
    let host = headers.get(header::HOST).cloned().unwrap_or(HeaderValue::from_static(""));
    let hop_for = address_text(client.peer.to_canonical());
    let hop = forwarded(&hop_for, host.to_str().unwrap_or_default(), scheme);
    if client.is_trusted_proxy {
        // Byte for byte, as the proxy sent them: a client's own part of a line may be no text.
        let all = |name: &HeaderName, last: &str| {
            let before = headers.get_all(name).iter().map(|value| value.as_bytes());
            before.chain([last.as_bytes()]).collect::<Vec<_>>().join(&b", "[..])
        };
        let (hops_for, hops) = (all(&FORWARDED_FOR, &hop_for), all(&header::FORWARDED, &hop));
        headers.insert(FORWARDED_FOR, value(hops_for)?);
        headers.insert(header::FORWARDED, value(hops)?);
        headers.entry(FORWARDED_PROTO).or_insert(HeaderValue::from_static(scheme));
        headers.entry(FORWARDED_HOST).or_insert(host);
    } else {
        headers.insert(FORWARDED_FOR, value(hop_for.as_str())?);
        headers.insert(header::FORWARDED, value(hop)?);
        headers.insert(FORWARDED_PROTO, HeaderValue::from_static(scheme));
        headers.insert(FORWARDED_HOST, host);
        headers.remove(&REAL_IP);
    }
    Ok(())
}

/// Sets `Client-Cert` (RFC 9440), and removes a trusted proxy's: we have not verified that.
fn show_certificate(headers: &mut HeaderMap, context: &RequestContext) -> Result<()> {
    headers.remove(&CLIENT_CERT);
    headers.remove(&CLIENT_CERT_CHAIN);
    if let Some(certificate) = &context.facts.client.certificate {
        headers.insert(CLIENT_CERT, value(certificate.to_string())?);
    }
    Ok(())
}

/// `X-Request-Id` and `traceparent`.
fn name_request(headers: &mut HeaderMap, context: &RequestContext) -> Result<()> {
    if context.facts.given_id.is_none() {
        headers.insert(REQUEST_ID, value(context.request_id().into_owned())?);
    }
    let mut traces = headers.get_all(&TRACE_PARENT).iter();
    let continues = traces.next().is_some_and(|trace| is_traceparent(trace.as_bytes()));
    if !continues || traces.next().is_some() {
        headers.remove(&TRACE_STATE);
        let mut trace = String::with_capacity(55);
        trace.push_str("00-");
        trace.push_str(&hex(context.id, 32));
        trace.push('-');
        // The span id is the middle of the id; the trace id is the whole id.
        trace.push_str(&hex((context.id >> 32) & u128::from(u64::MAX) | 1, 16));
        trace.push_str("-00");
        headers.insert(TRACE_PARENT, value(trace)?);
    }
    Ok(())
}

fn value(text: impl TryInto<HeaderValue, Error = InvalidHeaderValue>) -> Result<HeaderValue> {
    text.try_into().or_err(ErrorType::InvalidHTTPHeader, "a header of our own")
}

/// An HTTP/1.1 upstream must get cookies in one field.
fn join_cookies(headers: &mut HeaderMap) -> Result<()> {
    if let Some(joined) = cookies::joined(headers) {
        let joined = HeaderValue::from_bytes(&joined);
        let joined = joined.or_err(ErrorType::InvalidHTTPHeader, "cookie")?;
        headers.insert(header::COOKIE, joined);
    }
    Ok(())
}

/// Removes the limit fields, which only we set, from a request or from trailers.
pub fn remove_limits(headers: &mut HeaderMap) {
    for name in limit_fields(headers) {
        headers.remove(name);
    }
}

/// Fails on a response head that is too large to forward.
pub fn check_size(head: &ResponseHeader) -> Result<()> {
    let bytes = head.headers.iter().map(|(name, value)| name.as_str().len() + value.len());
    if head.headers.len() > HEAD_FIELDS_MAX || bytes.sum::<usize>() > HEAD_BYTES_MAX {
        let error = Error::explain(ErrorType::InvalidHTTPHeader, "a head that is too large");
        return Err(error.into_up());
    }
    Ok(())
}

/// Leaves one `Content-Length` of several equal ones, and none in a 1xx or 204 (RFC 9110, 8.6):
/// clients of HTTP/2 fail on others. Pingora has refused ones that differ or are no numbers.
pub fn unify_length(head: &mut ResponseHeader) -> Result<()> {
    if head.status.is_informational() || head.status == StatusCode::NO_CONTENT {
        remove_seldom(head, header::CONTENT_LENGTH.as_str());
        return Ok(());
    }
    let mut lengths = head.headers.get_all(header::CONTENT_LENGTH).iter();
    let Some(length) = lengths.next().map(HeaderValue::as_bytes) else { return Ok(()) };
    if lengths.next().is_none() && length.iter().all(u8::is_ascii_digit) {
        return Ok(());
    }
    let first = length.split(|byte| *byte == b',').next().unwrap_or_default().trim_ascii().to_vec();
    head.insert_header(header::CONTENT_LENGTH, first)
}

/// Completes the head of a response to `request` on its way to the client.
pub fn to_client(
    request: &RequestHeader,
    head: &mut ResponseHeader,
    context: &RequestContext,
) -> Result<()> {
    remove_limits_of(head);
    let refused = context.facts.limits.report.retry_after.is_some();
    if head.headers.contains_key(&REQUEST_ID) {
        head.remove_header(&REQUEST_ID);
    }
    if refused {
        head.remove_header(&header::RETRY_AFTER);
    }
    let readable = allow_pages(request, head, context)?;
    if request.version == Version::HTTP_2 {
        add_text(head, &readable)?;
        return add_fields(head, context);
    }
    let mut lines = readable;
    lines.reserve(256);
    push_lines(&mut lines, context);
    context.exchange.add_lines(lines);
    Ok(())
}

/// Removes the limit fields, which only we set, from a response head.
pub fn remove_limits_of(head: &mut ResponseHeader) {
    for name in limit_fields(&head.headers) {
        head.remove_header(&name);
    }
}

/// Removes request fields that some servers read as ours: they treat `_` as `-`, or turn a header
/// into an environment variable `HTTP_PROXY` (CVE-2016-5385). From a client that is not a trusted
/// proxy, also removes the fields that only such a proxy may set.
fn remove_foreign(headers: &mut HeaderMap, context: &RequestContext) {
    let trusted = &context.config.settings.server.trusted_headers;
    let is_disguised = |spelt: &str| OURS.contains(&spelt) || OF_WIRE.contains(&spelt);
    let is_foreign = |name: &HeaderName| {
        let name = name.as_str();
        let spelt = folded(name);
        name == "proxy"
            || (spelt != name && is_disguised(&spelt))
            || (!context.facts.client.is_trusted_proxy && trusted.has(name))
    };
    let foreign: Vec<HeaderName> = headers.keys().filter(|n| is_foreign(n)).cloned().collect();
    for name in foreign {
        headers.remove(name);
    }
}

/// Those of [`LIMIT_HEADERS`] that are present, in any spelling: rare, and quick to check.
fn limit_fields(headers: &HeaderMap) -> Vec<HeaderName> {
    let is_ours = |name: &&HeaderName| {
        let name = name.as_str();
        let begins = name.starts_with("ratelimit")
            || (name.starts_with('x')
                && name.get(2..).is_some_and(|rest| rest.starts_with("rate")));
        begins && LIMIT_HEADERS.contains(&&*folded(name))
    };
    headers.keys().filter(is_ours).cloned().collect()
}

/// Removes hop-by-hop fields from a response (RFC 9110, 7.6.1), and chunking for a client of
/// HTTP/1.0.
pub fn end_hop(head: &mut ResponseHeader, client: Version) {
    if head.headers.contains_key(header::CONNECTION) {
        let named: Vec<String> = head
            .headers
            .get_all(header::CONNECTION)
            .iter()
            .filter_map(|value| value.to_str().ok())
            .flat_map(|value| value.split(','))
            .map(|option| option.trim().to_ascii_lowercase())
            .filter(|option| !option.is_empty() && !FRAMING.contains(&option.as_str()))
            .collect();
        for name in named.iter().map(String::as_str) {
            remove_seldom(head, name);
        }
    }
    if head.headers.keys().any(|name| OF_HOP.contains(&name.as_str())) {
        // An offer of other protocols is the upstream's; an answer with one, or a demand, is not.
        let switches =
            matches!(head.status, StatusCode::SWITCHING_PROTOCOLS | StatusCode::UPGRADE_REQUIRED);
        for name in OF_HOP.into_iter().filter(|name| !switches || *name != "upgrade") {
            head.remove_header(name);
        }
    }
    if response_head::is_interim(head.status) {
        // The final response has our own, and a 1xx has no body to frame (RFC 9112, 6.1).
        remove_seldom(head, header::CONNECTION.as_str());
        remove_seldom(head, header::TRANSFER_ENCODING.as_str());
    }
    if client == Version::HTTP_10 {
        // Without chunks the close of the connection ends the body.
        head.remove_header(&header::TRANSFER_ENCODING);
    }
}

/// Removes a field that is rarely present: a scan is cheaper than a lookup in the map.
fn remove_seldom(head: &mut ResponseHeader, name: &str) {
    if head.headers.keys().any(|key| key.as_str() == name) {
        head.remove_header(name);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admission::facts::RequestFacts;

    /// The lengths that are forwarded of these, in a response of this status.
    #[track_caller]
    fn check_lengths(status: u16, sent: &[&'static str], forwarded: &[&str]) {
        let mut head = ResponseHeader::build(status, None).unwrap();
        for length in sent {
            head.append_header(header::CONTENT_LENGTH, *length).unwrap();
        }
        unify_length(&mut head).unwrap();
        let lengths: Vec<_> = head.headers.get_all(header::CONTENT_LENGTH).iter().collect();
        assert_eq!(lengths, forwarded, "{status} {sent:?}");
    }

    #[test]
    fn a_response_has_one_content_length_at_most_and_none_without_a_body() {
        check_lengths(200, &[], &[]);
        check_lengths(200, &["12"], &["12"]);
        check_lengths(200, &["12", "12"], &["12"]);
        check_lengths(200, &["12, 12"], &["12"]);
        check_lengths(200, &["12 ,12", "12"], &["12"]);
        check_lengths(304, &["12", "12"], &["12"]);
        for status in [100, 101, 103, 204] {
            check_lengths(status, &["12"], &[]);
        }
    }

    #[test]
    fn an_upstreams_limit_fields_are_removed_in_every_spelling() {
        let mut head = ResponseHeader::build(103, None).unwrap();
        for name in [
            "X-RateLimit-Limit",
            "x_ratelimit_limit",
            "X-RateLimit_Reset",
            "X.RateLimit.Remaining",
            "ratelimit_policy",
            "X-Rate",
            "X_Limit",
        ] {
            head.append_header(name, "7").unwrap();
        }
        let mut trailers = head.headers.clone();
        remove_limits_of(&mut head);
        remove_limits(&mut trailers);
        for headers in [&head.headers, &trailers] {
            let mut left: Vec<_> = headers.keys().map(HeaderName::as_str).collect();
            left.sort_unstable();
            assert_eq!(left, ["x-rate", "x_limit"]);
        }
    }

    #[test]
    fn what_a_trusted_proxy_sent_of_earlier_hops_is_passed_on_byte_for_byte() {
        let mut client = RequestFacts::of([10, 0, 0, 1].into()).client;
        client.is_trusted_proxy = true;
        let mut sent = HeaderMap::new();
        let mut add = |name, value: &'static [u8]| {
            sent.append(name, HeaderValue::from_bytes(value).unwrap());
        };
        add(header::HOST, b"api");
        add(FORWARDED_FOR, b"1.1.1.1");
        add(FORWARDED_FOR, b"\xe9, 198.51.100.7");
        add(header::FORWARDED, b"for=\"\xe9\", for=198.51.100.7");
        let completed = |client: &ClientFacts| {
            let mut headers = sent.clone();
            name_client(&mut headers, client).unwrap();
            [FORWARDED_FOR, header::FORWARDED].map(|name| headers[name].as_bytes().to_vec())
        };
        let own = &b"for=10.0.0.1;host=\"api\";proto=http"[..];
        let all = [&b"for=\"\xe9\", for=198.51.100.7"[..], own].join(&b", "[..]);
        let hops = b"1.1.1.1, \xe9, 198.51.100.7, 10.0.0.1".to_vec();
        assert_eq!(completed(&client), [hops, all]);
        client.is_trusted_proxy = false;
        assert_eq!(completed(&client), [b"10.0.0.1".to_vec(), own.to_vec()]);
    }
}
