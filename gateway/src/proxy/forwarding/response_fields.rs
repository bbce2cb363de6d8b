//! The gateway's own fields in every response: as header lines, or as fields of a head.
//!
//! # Invariants
//!
//! 1. Both forms have the same fields in the same order.
//! 2. A value that changes with each response is not put into the HPACK table: h2 searches all
//!    values of a name there, and changing ones would evict those that repeat.
//!
//! # Not here
//!
//! The values (`report`), which form a client gets (`forwarding`).

use http::{HeaderMap, HeaderName, header};
use pingora_core::{ErrorType, OrErr, Result};
use pingora_http::{RequestHeader, ResponseHeader};

use crate::admission::facts::LimitFacts;
use crate::limit::key::hex;
use crate::proxy::context::RequestContext;
use crate::proxy::forwarding::{ADDED, remove_seldom, value};
use crate::request::cors;
use crate::rules::Rules;

/// Adds the gateway's fields of every response, as header lines with their line ends.
pub fn push_lines(to: &mut String, context: &RequestContext) {
    each_field(context, |field, value| {
        for part in [field.line, value, "\r\n"] {
            to.push_str(part);
        }
    });
}

/// Adds the fields about limits alone, as header lines with their line ends: for a response to what
/// is no request.
pub fn push_limit_lines(to: &mut String, facts: &LimitFacts, rules: &Rules) {
    each_limit_field(facts, rules, |field, value| {
        for part in [field.line, value, "\r\n"] {
            to.push_str(part);
        }
    });
}

/// Adds the gateway's fields to an HTTP/2 head. Its names have no case, so that they go into the
/// plain map: Pingora's header type would parse each name to keep its case.
pub(super) fn add_fields(head: &mut ResponseHeader, context: &RequestContext) -> Result<()> {
    in_parts(head, |headers| {
        let mut added = Ok(());
        each_field(context, |field, text| match value(text) {
            Ok(mut value) => {
                value.set_sensitive(field.varies);
                headers.append(&field.name, value);
            }
            Err(error) => added = Err(error),
        });
        added
    })
}

/// Lets pages read a response of a plane with CORS rules, and our fields in it: the lines to add.
/// Where the upstream allows an origin, which pages may read it is up to the upstream.
pub(super) fn allow_pages(
    request: &RequestHeader,
    head: &mut ResponseHeader,
    context: &RequestContext,
) -> Result<String> {
    if context.cors().is_none() {
        return Ok(String::new());
    }
    if head.headers.contains_key(header::ACCESS_CONTROL_ALLOW_ORIGIN) {
        // A separate line: the upstream's stays unchanged, and a list may have several lines.
        head.append_header(header::ACCESS_CONTROL_EXPOSE_HEADERS, cors::EXPOSED)?;
        return Ok(String::new());
    }
    // Without an origin it allows nothing by itself, and beside ours it would allow cookies.
    remove_seldom(head, header::ACCESS_CONTROL_ALLOW_CREDENTIALS.as_str());
    Ok(context.cors_lines(request).unwrap_or_default())
}

/// Adds header lines, each with its line end, to an HTTP/2 head.
pub fn add_text(head: &mut ResponseHeader, lines: &str) -> Result<()> {
    in_parts(head, |headers| {
        for (name, text) in lines.lines().filter_map(|line| line.split_once(':')) {
            let name = HeaderName::from_bytes(name.as_bytes());
            let name = name.or_err(ErrorType::InvalidHTTPHeader, "a header of our own")?;
            headers.append(name, value(text.trim_start())?);
        }
        Ok(())
    })
}

/// Changes the plain map in a head. The case of its names is lost.
fn in_parts(
    head: &mut ResponseHeader,
    change: impl FnOnce(&mut HeaderMap) -> Result<()>,
) -> Result<()> {
    let empty = ResponseHeader::from(http::Response::new(()).into_parts().0);
    let mut parts = http::response::Parts::from(std::mem::replace(head, empty));
    parts.headers.reserve(ADDED);
    let changed = change(&mut parts.headers);
    *head = parts.into();
    changed
}

/// A field that we add to responses.
struct Field {
    name: HeaderName,
    /// The start of its line.
    line: &'static str,
    /// Whether its value changes with each response, and so must not enter the HPACK table.
    varies: bool,
}

impl Field {
    const fn new(name: &'static str, line: &'static str, varies: bool) -> Self {
        Self { name: HeaderName::from_static(name), line, varies }
    }
}

static ID: Field = Field::new("x-request-id", "X-Request-Id: ", true);
static LIMIT: Field = Field::new("x-ratelimit-limit", "X-RateLimit-Limit: ", false);
static REMAINING: Field = Field::new("x-ratelimit-remaining", "X-RateLimit-Remaining: ", true);
static RESET: Field = Field::new("x-ratelimit-reset", "X-RateLimit-Reset: ", false);
static RETRY_AFTER: Field = Field::new("retry-after", "Retry-After: ", false);
static RESOURCE: Field = Field::new("x-ratelimit-resource", "X-RateLimit-Resource: ", false);
static POLICY: Field = Field::new("ratelimit-policy", "RateLimit-Policy: ", false);
static STANDING: Field = Field::new("ratelimit", "RateLimit: ", true);

/// Calls `add` with each of the gateway's fields and its value.
fn each_field(context: &RequestContext, mut add: impl FnMut(&'static Field, &str)) {
    match &context.facts.given_id {
        Some(given) => add(&ID, given),
        None => add(&ID, &hex(context.id, 32)),
    }
    each_limit_field(&context.facts.limits, &context.config.rules, add);
}

/// Calls `add` with each field about the limits of a request and its value.
fn each_limit_field(facts: &LimitFacts, rules: &Rules, mut add: impl FnMut(&'static Field, &str)) {
    let mut number = |field, number: u64| add(field, itoa::Buffer::new().format(number));
    if let Some(binding) = &facts.report.binding {
        number(&LIMIT, binding.limit.into());
        number(&REMAINING, binding.remaining.into());
        number(&RESET, binding.reset);
    }
    if let Some(seconds) = facts.report.retry_after {
        number(&RETRY_AFTER, seconds);
    }
    let binding = facts.report.binding.as_ref();
    let outcome = binding.and_then(|binding| facts.outcomes.get(binding.index));
    if let Some(limit) = outcome.and_then(|outcome| rules.limits.get(outcome.limit)) {
        add(&RESOURCE, &limit.name);
    }
    if let Some((policy, usage)) = &facts.ietf {
        add(&POLICY, policy);
        add(&STANDING, usage);
    }
}
