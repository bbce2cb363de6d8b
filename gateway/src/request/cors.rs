//! Decides what a page of another origin may send, and what of a response it may read (the CORS
//! protocol of the Fetch standard). (core)
//!
//! # Invariants
//!
//! 1. An origin is echoed only if the settings list it, byte for byte.
//! 2. A response that depends on the origin has `Vary: Origin`, whether or not the request had one.
//! 3. A preflight is answered only for an allowed origin; any other is handled as a normal request.
//!
//! # Not here
//!
//! Which routes exist (`route`), errors in the settings (`rules::compile`), the CORS headers of an
//! upstream, which replace ours where they allow an origin (`proxy::forwarding`).

use std::net::{Ipv4Addr, Ipv6Addr};

use http::{HeaderMap, HeaderName, Method, header};
use weir_common::directory::is_host;

use crate::settings::cors::RawCors;

/// Response headers that pages may read.
pub const EXPOSED: &str = "X-RateLimit-Limit, X-RateLimit-Remaining, X-RateLimit-Reset, \
                           X-RateLimit-Resource, Retry-After, X-Request-Id, RateLimit, \
                           RateLimit-Policy";

/// The origin of pages without one: files, sandboxed frames, redirects across origins.
pub const OPAQUE: &str = "null";

/// Default ports, which browsers omit from an origin.
const DEFAULT_PORTS: [(&str, u16); 4] = [("http", 80), ("https", 443), ("ws", 80), ("wss", 443)];

/// Which origins may read a plane's responses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cors {
    /// Allowed origins; `None` allows all.
    origins: Option<Vec<String>>,
    credentials: bool,
    /// `Access-Control-Allow-Headers`; if empty, the requested headers are allowed.
    headers: String,
    max_age_seconds: u64,
}

/// A CORS preflight request: browsers send it before any request that an HTML form cannot make.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Preflight<'h> {
    /// The origin of the page.
    origin: &'h str,
    /// The method that it wants to use.
    pub method: Method,
    /// The headers that it wants to send.
    headers: Option<&'h str>,
}

impl<'h> Preflight<'h> {
    /// Reads a preflight: `OPTIONS` with an origin and a method, each once; `None` otherwise.
    #[must_use]
    pub fn read(method: &Method, headers: &'h HeaderMap) -> Option<Self> {
        if *method != Method::OPTIONS {
            return None;
        }
        let requested = only(headers, &header::ACCESS_CONTROL_REQUEST_METHOD)?;
        let names = headers.get(header::ACCESS_CONTROL_REQUEST_HEADERS).is_some();
        let names = match names.then(|| only(headers, &header::ACCESS_CONTROL_REQUEST_HEADERS)) {
            Some(names) => Some(names.filter(|names| is_list_of_names(names))?),
            None => None,
        };
        Some(Self {
            origin: only(headers, &header::ORIGIN)?,
            method: Method::from_bytes(requested.as_bytes()).ok()?,
            headers: names,
        })
    }
}

/// The value of a header that is present exactly once, as text.
fn only<'h>(headers: &'h HeaderMap, name: &HeaderName) -> Option<&'h str> {
    let mut values = headers.get_all(name).iter();
    let value = values.next()?.to_str().ok()?;
    values.next().is_none().then_some(value)
}

fn is_list_of_names(text: &str) -> bool {
    text.split(',').all(|name| HeaderName::try_from(name.trim_matches([' ', '\t'])).is_ok())
}

impl Cors {
    /// Compiles the settings of a plane.
    #[must_use]
    pub fn new(settings: &RawCors) -> Self {
        let texts = |texts: &[weir_common::config::document::Spanned<String>]| {
            texts.iter().map(|text| text.value.clone()).collect::<Vec<_>>()
        };
        let origins = texts(&settings.origins);
        Self {
            origins: (!origins.iter().any(|origin| origin == "*")).then_some(origins),
            credentials: settings.credentials,
            headers: texts(&settings.headers).join(", "),
            max_age_seconds: settings.max_age.as_secs(),
        }
    }

    /// The CORS header lines, each with its CRLF, of a response that the gateway generates, or of
    /// one whose upstream leaves CORS to the gateway. `exposed` names readable headers in addition
    /// to [`EXPOSED`].
    #[must_use]
    pub fn lines(&self, request: &HeaderMap, exposed: &[&str]) -> String {
        let mut lines = self.vary("");
        if self.allow(&mut lines, only(request, &header::ORIGIN)) {
            push(&mut lines, "Access-Control-Expose-Headers", EXPOSED);
            for name in exposed {
                push(&mut lines, "Access-Control-Expose-Headers", name);
            }
        }
        lines
    }

    /// The header lines of the response to a preflight, for a path that accepts `methods`. `None`
    /// if its origin is not allowed.
    #[must_use]
    pub fn preflight(&self, requested: &Preflight<'_>, methods: &[Method]) -> Option<String> {
        let mut lines = self.vary("Access-Control-Request-Method, Access-Control-Request-Headers");
        if !self.allow(&mut lines, Some(requested.origin)) {
            return None;
        }
        let methods: Vec<&str> = methods.iter().map(Method::as_str).collect();
        push(&mut lines, "Access-Control-Allow-Methods", &methods.join(", "));
        let configured = Some(self.headers.as_str()).filter(|headers| !headers.is_empty());
        if let Some(headers) = configured.or(requested.headers) {
            push(&mut lines, "Access-Control-Allow-Headers", headers);
        }
        push(&mut lines, "Access-Control-Max-Age", &self.max_age_seconds.to_string());
        Some(lines)
    }

    /// `Vary`, with `Origin` unless all origins are allowed.
    fn vary(&self, others: &str) -> String {
        let mut lines = String::with_capacity(512);
        match (&self.origins, others) {
            (Some(_), "") => push(&mut lines, "Vary", "Origin"),
            (Some(_), others) => push(&mut lines, "Vary", &format!("Origin, {others}")),
            (None, "") => {}
            (None, others) => push(&mut lines, "Vary", others),
        }
        lines
    }

    /// Adds the headers that allow `origin`; false if it is not allowed.
    fn allow(&self, lines: &mut String, origin: Option<&str>) -> bool {
        let allowed = match &self.origins {
            None => Some("*"),
            Some(origins) => origin.filter(|origin| origins.iter().any(|known| known == origin)),
        };
        let Some(allowed) = allowed else { return false };
        push(lines, "Access-Control-Allow-Origin", allowed);
        if self.credentials {
            push(lines, "Access-Control-Allow-Credentials", "true");
        }
        true
    }
}

fn push(lines: &mut String, name: &str, value: &str) {
    for part in [name, ": ", value, "\r\n"] {
        lines.push_str(part);
    }
}

/// Checks an origin of the settings: an error for one that no browser ever sends.
pub fn check_origin(text: &str) -> Result<(), String> {
    let form = || format!("`{text}` is not an origin: scheme://host, or scheme://host:port");
    let (scheme, rest) = text.split_once("://").ok_or_else(form)?;
    if text.bytes().any(|byte| byte.is_ascii_uppercase()) {
        return Err(format!("`{text}` must be in lower case, as browsers send it"));
    }
    if rest.contains(['/', '?', '#', '@']) {
        return Err(format!("`{text}` must end with its host or port: no path, not even a slash"));
    }
    let scheme_is_valid = scheme.starts_with(|first: char| first.is_ascii_lowercase())
        && scheme.bytes().all(|b| matches!(b, b'a'..=b'z' | b'0'..=b'9' | b'+' | b'-' | b'.'));
    let ends_in_bracket = rest.ends_with(']');
    let (host, port) = match rest.rsplit_once(':').filter(|_| !ends_in_bracket) {
        Some((host, port)) => (host, Some(port)),
        None => (rest, None),
    };
    if !scheme_is_valid || !is_host_of_origin(host) {
        return Err(form());
    }
    let Some(port) = port else { return Ok(()) };
    let number: u16 = port.parse().map_err(|_| form())?;
    if number.to_string() != port || number == 0 {
        return Err(form());
    }
    if DEFAULT_PORTS.contains(&(scheme, number)) {
        return Err(format!("`{text}` must be `{scheme}://{host}`: browsers leave the port out"));
    }
    Ok(())
}

fn is_host_of_origin(host: &str) -> bool {
    let bracketed = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    if let Some(address) = bracketed {
        return address.parse::<Ipv6Addr>().is_ok_and(|parsed| parsed.to_string() == address);
    }
    let last = host.rsplit('.').next().unwrap_or_default();
    let numeric = !last.is_empty() && last.bytes().all(|byte| byte.is_ascii_digit());
    is_host(host) && (!numeric || host.parse::<Ipv4Addr>().is_ok())
}

#[cfg(test)]
mod tests;
