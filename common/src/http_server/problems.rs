//! Refusals that need to know nothing of what a listener serves.

use std::time::Duration;

use crate::config::document::shown;
use crate::problem::Problem;

use crate::http_server::Reply;

/// When a store that could not write just now is asked again.
const AGAIN_SECONDS: &str = "1";

/// A problem without members of its own.
pub fn plain(
    status: u16,
    kind: &'static str,
    title: &'static str,
    detail: impl Into<String>,
) -> Problem {
    Problem { status, kind, title, detail: detail.into(), members: Vec::new() }
}

/// Nothing there, or nothing that this token may see: one answer for both, so that nobody learns
/// which it is.
pub fn not_found() -> Reply {
    let detail = "There is nothing at this path that this token may see.";
    Reply::problem(&plain(404, "not-found", "Not found", detail))
}

/// A path that is there, and a method that it does not know.
pub fn method_not_allowed(allow: &str) -> Reply {
    let detail = format!("This path accepts {allow} only.");
    let problem = plain(405, "method-not-allowed", "Method not allowed", detail);
    Reply::problem(&problem).with("allow", allow)
}

/// A body of a kind that is not read here.
pub fn media_type(wanted: &[&str]) -> Reply {
    let detail = format!("Send the body with `Content-Type: {}`.", wanted.join("`, or `"));
    Reply::problem(&plain(415, "unsupported-media-type", "Unsupported media type", detail))
}

/// A body that comes compressed.
pub fn encoding() -> Reply {
    let detail = "Send the body as it is, without `Content-Encoding`: it is not decompressed here.";
    let title = "Unsupported content encoding";
    // RFC 9110, 15.5.16: this field tells an unsupported coding from an unsupported type.
    Reply::problem(&plain(415, "unsupported-content-encoding", title, detail))
        .with("accept-encoding", "identity")
}

/// A body that is no JSON, and where it stops being so.
pub fn malformed(detail: impl Into<String>) -> Reply {
    Reply::problem(&plain(400, "malformed-body", "The body is not JSON", detail))
}

/// A request whose head is larger than any may be.
pub fn head_too_large(most: usize) -> Problem {
    let detail =
        format!("The request head is larger than {most} bytes, the most that is accepted.");
    plain(431, "head-too-large", "The head is too large", detail)
}

/// A request whose body is larger than this path takes.
pub fn body_too_large(most: usize) -> Problem {
    let detail = format!("The body is larger than {most} bytes, the most that this path accepts.");
    plain(413, "body-too-large", "The body is too large", detail)
}

/// A request whose body ended before its end.
pub fn body_broken() -> Problem {
    plain(400, "broken-body", "The body broke off", "The body could not be read to its end.")
}

/// A request whose body did not arrive in time.
pub fn body_too_slow(within: Duration) -> Problem {
    let detail = format!("The body did not arrive within {}.", shown(within));
    plain(408, "body-too-slow", "The body took too long", detail)
}

/// Too much waits already.
pub fn busy(detail: &str) -> Reply {
    let problem = plain(503, "unavailable", "Not available for the moment", detail);
    Reply::problem(&problem).with("retry-after", AGAIN_SECONDS)
}

/// Something is wrong on our side.
pub fn broken() -> Reply {
    let detail = "The dispatcher failed; the cause is in its log.";
    Reply::problem(&plain(500, "internal", "Internal error", detail))
}
