//! Refusals that do not depend on what a listener serves.

use std::time::Duration;

use crate::config::document::shown;
use crate::http_server::reply::Reply;
use crate::problem::Problem;

/// Seconds after which a call that was refused with 503 may be repeated.
const AGAIN_SECONDS: &str = "1";

/// A problem without extension members.
#[must_use]
pub fn refusal(
    status: u16,
    kind: &'static str,
    title: &'static str,
    detail: impl Into<String>,
) -> Reply {
    let detail = detail.into();
    Reply::problem(&Problem { status, kind, title, detail, members: Vec::new() })
}

/// The path exists, but not with this method.
#[must_use]
pub fn method_not_allowed(allow: &str) -> Reply {
    let detail = format!("This path accepts {allow} only.");
    refusal(405, "method-not-allowed", "Method not allowed", detail).with("allow", allow)
}

/// A compressed body.
#[must_use]
pub fn encoding() -> Reply {
    let detail = "Send the body as it is, without `Content-Encoding`: it is not decompressed here.";
    let title = "Unsupported content encoding";
    // RFC 9110, 15.5.16: this field distinguishes an unsupported coding from an unsupported type.
    refusal(415, "unsupported-content-encoding", title, detail).with("accept-encoding", "identity")
}

/// A request whose head is larger than `most` bytes.
#[must_use]
pub fn head_too_large(most: usize) -> Reply {
    let detail =
        format!("The request head is larger than {most} bytes, the most that is accepted.");
    refusal(431, "head-too-large", "The head is too large", detail)
}

/// A request whose body is larger than `most` bytes.
#[must_use]
pub fn body_too_large(most: usize) -> Reply {
    let detail = format!("The body is larger than {most} bytes, the most that this path accepts.");
    refusal(413, "body-too-large", "The body is too large", detail)
}

/// A request whose body could not be read to its end.
#[must_use]
pub fn body_broken() -> Reply {
    refusal(400, "broken-body", "The body broke off", "The body could not be read to its end.")
}

/// A request whose body did not arrive in time.
#[must_use]
pub fn body_too_slow(within: Duration) -> Reply {
    let detail = format!("The body did not arrive within {}.", shown(within));
    refusal(408, "body-too-slow", "The body took too long", detail)
}

/// Too many requests wait already.
#[must_use]
pub fn busy(detail: &str) -> Reply {
    let title = "Not available for the moment";
    refusal(503, "unavailable", title, detail).with("retry-after", AGAIN_SECONDS)
}

/// A failure of the server; the cause is logged.
#[must_use]
pub fn broken() -> Reply {
    let detail = "The server failed; the cause is in its log.";
    refusal(500, "internal", "Internal error", detail)
}
