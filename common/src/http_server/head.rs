//! What of a request's head decides whether its body is read.
//!
//! Not here: who may send it (the handlers of each program).

use http::header::CONTENT_ENCODING;
use http::{HeaderMap, HeaderName, HeaderValue};

use crate::http_server::Head;

/// Whether a body is compressed: none is decompressed here.
pub(super) fn is_encoded(headers: &HeaderMap) -> bool {
    let codings = headers.get_all(CONTENT_ENCODING).iter().flat_map(|value| {
        let text = value.as_bytes();
        text.split(|byte| *byte == b',').map(<[u8]>::trim_ascii)
    });
    codings.into_iter().any(|one| !one.is_empty() && !one.eq_ignore_ascii_case(b"identity"))
}

/// The size of a head on the wire, without optional whitespace. hyper's own limit counts bytes that
/// it has not parsed yet, so a larger head may pass it if it arrives in one read.
pub(super) fn head_bytes(head: &Head) -> usize {
    let first = head.method.as_str().len() + head.uri.to_string().len() + "  HTTP/1.1\r\n".len();
    let field = |(name, value): (&HeaderName, &HeaderValue)| {
        name.as_str().len() + value.len() + ": \r\n".len()
    };
    first + head.headers.iter().map(field).sum::<usize>() + "\r\n".len()
}
