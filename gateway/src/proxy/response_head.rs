//! What the head of an upstream's response tells about what follows it.

use http::header::CONTENT_LENGTH;
use http::{Method, StatusCode};
use pingora_core::{Error, ErrorType, Result};
use pingora_http::ResponseHeader;

use crate::proxy::context::RequestContext;

/// Interim responses (1xx) to one request, at most: each restarts the wait for the final one. A
/// server that sends a 102 twice a minute may work for an hour and a half.
const INTERIMS_MAX: u32 = 200;

/// Whether a response is followed by another: 1xx, but for the 101 that ends HTTP.
#[must_use]
pub fn is_interim(status: StatusCode) -> bool {
    status.is_informational() && status != StatusCode::SWITCHING_PROTOCOLS
}

/// Counts an interim response, and fails beyond `INTERIMS_MAX`.
pub fn count_interim(context: &mut RequestContext) -> Result<()> {
    context.upstream.interims += 1;
    if context.upstream.interims > INTERIMS_MAX {
        let error = Error::explain(ErrorType::InvalidHTTPHeader, "interim answers without end");
        return Err(error.into_up());
    }
    Ok(())
}

/// Whether the head of a response is all of it, as far as the head tells.
#[must_use]
pub fn has_no_body(method: &Method, head: &ResponseHeader) -> bool {
    let is_empty = head.headers.get(CONTENT_LENGTH).is_some_and(|length| length == "0");
    is_empty || method == Method::HEAD || matches!(head.status.as_u16(), 204 | 304)
}
