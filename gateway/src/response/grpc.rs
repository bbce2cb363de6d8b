//! Refusals for gRPC clients, which read `grpc-status` and treat any HTTP status but 200 as a
//! broken connection. (core)
//!
//! A refusal is a trailers-only response: HTTP 200, no body, and the trailer fields in the head.
//! Its status, message and retry delay come from the [`Refusal`] that other clients receive as a
//! problem.
//!
//! # Not here
//!
//! Refusals for other clients (`refusal`), limit headers (`limit::report`). The access log and the
//! metrics record the HTTP status of the refusal, not the 200.

use http::{HeaderMap, Method, header};
use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};

use crate::response::refusal::Refusal;
use crate::response::reply::Reply;

/// Response headers that pages may read in addition to `cors::EXPOSED`.
pub const EXPOSED: &[&str] = &["Grpc-Status, Grpc-Message, Grpc-Retry-Pushback-Ms"];

/// A variant of the gRPC protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dialect {
    /// `application/grpc`
    Grpc,
    /// `application/grpc-web`, for browsers.
    Web,
    /// `application/grpc-web-text`, the same in base64.
    WebText,
}

impl Dialect {
    /// The dialect of a gRPC request: a POST with a gRPC media type.
    #[must_use]
    pub fn of(method: &Method, headers: &HeaderMap) -> Option<Self> {
        if *method != Method::POST {
            return None;
        }
        let media_type = headers.get(header::CONTENT_TYPE)?.as_bytes();
        let end = media_type.iter().position(|byte| matches!(byte, b'+' | b';' | b' ' | b'\t'));
        let family = media_type.get(..end.unwrap_or(media_type.len()))?;
        let is = |name: &[u8]| family.eq_ignore_ascii_case(name);
        match () {
            () if is(b"application/grpc") => Some(Self::Grpc),
            () if is(b"application/grpc-web") => Some(Self::Web),
            () if is(b"application/grpc-web-text") => Some(Self::WebText),
            () => None,
        }
    }

    fn media_type(self) -> &'static str {
        match self {
            Self::Grpc => "application/grpc",
            Self::Web => "application/grpc-web+proto",
            Self::WebText => "application/grpc-web-text+proto",
        }
    }
}

/// The response to a gRPC client.
#[must_use]
pub fn reply(dialect: Dialect, refusal: &Refusal) -> Reply {
    let problem = refusal.problem();
    let mut reply = Reply::new(200, "");
    reply.at_once = dialect == Dialect::Grpc;
    reply.push("Content-Type", dialect.media_type());
    reply.push("Cache-Control", "no-store");
    if let Some((name, value)) = refusal.header() {
        reply.push(name, &value);
    }
    reply.push("grpc-status", &code(problem.status).to_string());
    reply.push("grpc-message", &utf8_percent_encode(&problem.detail, ESCAPED).to_string());
    if let Some(seconds) = refusal.retry_after() {
        // gRFC A6: how long a client waits before it retries.
        reply.push("grpc-retry-pushback-ms", &seconds.saturating_mul(1_000).to_string());
    }
    reply
}

/// The gRPC status code for an HTTP status.
fn code(status: u16) -> u8 {
    match status {
        400 | 415 | 422 => 3, // INVALID_ARGUMENT
        401 => 16,            // UNAUTHENTICATED
        403 => 7,             // PERMISSION_DENIED
        404 | 405 => 12,      // UNIMPLEMENTED
        408 | 504 => 4,       // DEADLINE_EXCEEDED
        413 | 429 | 431 => 8, // RESOURCE_EXHAUSTED
        500 => 13,            // INTERNAL
        502 | 503 => 14,      // UNAVAILABLE
        _ => 2,               // UNKNOWN
    }
}

/// What `grpc-message` must percent-encode: all but printable ASCII, and `%`.
const ESCAPED: &AsciiSet = &CONTROLS.add(b'%');

#[cfg(test)]
mod tests {
    use super::*;

    fn dialect(method: &str, media_type: &str) -> Option<Dialect> {
        let mut headers = HeaderMap::new();
        headers.insert(header::CONTENT_TYPE, media_type.parse().unwrap());
        Dialect::of(&method.parse().unwrap(), &headers)
    }

    #[test]
    fn a_request_of_grpc_is_known_by_its_type() {
        for (media_type, known) in [
            ("application/grpc", Some(Dialect::Grpc)),
            ("application/grpc+proto", Some(Dialect::Grpc)),
            ("Application/gRPC; charset=utf-8", Some(Dialect::Grpc)),
            ("application/grpc-web", Some(Dialect::Web)),
            ("application/grpc-web+proto", Some(Dialect::Web)),
            ("application/grpc-web-text+proto", Some(Dialect::WebText)),
            ("application/grpcx", None),
            ("application/grpc-webx", None),
            ("application/json", None),
            ("text/application/grpc", None),
        ] {
            assert_eq!(dialect("POST", media_type), known, "{media_type}");
            assert_eq!(dialect("GET", media_type), None, "{media_type}");
        }
        assert_eq!(Dialect::of(&Method::POST, &HeaderMap::new()), None);
    }

    #[test]
    fn a_used_up_allowance_is_resource_exhausted_with_a_retry_delay() {
        let resource = Some(("workspace".into(), 60));
        let refusal = Refusal::RateLimited { resource, retry_after: 7 };
        let reply = reply(Dialect::Grpc, &refusal);
        assert_eq!((reply.status, reply.body.as_slice()), (200, &b""[..]));
        for line in [
            "Content-Type: application/grpc\r\n",
            "grpc-status: 8\r\n",
            "grpc-message: The allowance `workspace` of 60 is used up. Try again in 7 s.\r\n",
            "grpc-retry-pushback-ms: 7000\r\n",
        ] {
            assert!(reply.lines.contains(line), "no {line:?} in {}", reply.lines);
        }
    }

    #[test]
    fn only_a_refusal_that_may_be_retried_at_once_is_unavailable() {
        let busy = reply(Dialect::Web, &Refusal::NoServer { retry_after: 1 }).lines;
        assert!(busy.contains("grpc-status: 14\r\n") && busy.contains("Retry-After: 1\r\n"));
        assert!(busy.contains("grpc-retry-pushback-ms: 1000\r\n"), "{busy}");
        let unknown = reply(Dialect::WebText, &Refusal::UnknownPath).lines;
        assert!(unknown.contains("grpc-status: 12\r\n"), "{unknown}");
        assert!(!unknown.contains("pushback"), "{unknown}");
    }

    #[test]
    fn every_status_of_a_refusal_has_a_code() {
        for (code_of, statuses) in [
            (3, vec![400, 415, 422]),
            (4, vec![408, 504]),
            (7, vec![403]),
            (8, vec![413, 429, 431]),
            (12, vec![404, 405]),
            (13, vec![500]),
            (14, vec![502, 503]),
            (16, vec![401]),
            (2, vec![418]),
        ] {
            for status in statuses {
                assert_eq!(code(status), code_of, "{status}");
            }
        }
    }

    #[test]
    fn a_message_is_printable_whatever_it_contains() {
        let encoded = utf8_percent_encode("50 % of é\r\n\x7f", ESCAPED).to_string();
        assert_eq!(encoded, "50 %25 of %C3%A9%0D%0A%7F");
    }
}
