//! Makes the transcript of an attempt: what was sent and answered, bounded and masked.
//!
//! Not here: which attempts have one (`client`), the bounds (`domain::transcript`).

use http::HeaderMap;
use http::header::{CONTENT_LENGTH, HeaderValue};

use crate::delivery::client::Kept;
use crate::delivery::connection::{AttemptRequest, add_usual};
use crate::domain::masking::Mask;
use crate::domain::transcript::{Headers, RecordedAnswer, Transcript};
use crate::domain::webhook::headers::CustomHeaders;

/// Stands for the value of an owner's header, whatever its length.
const MASKED: HeaderValue = HeaderValue::from_static("***");

/// The transcript of a request, with what is kept of its response. Shows no value of `custom`.
#[must_use]
pub fn transcript(
    request: AttemptRequest,
    kept: Kept,
    custom: &CustomHeaders,
    mask: &Mask,
) -> Transcript {
    let mut sent = request.headers;
    for (name, value) in custom.iter() {
        if let Some(shown) = sent.get_mut(name).filter(|shown| **shown == *value) {
            *shown = MASKED;
        }
    }
    // Without a valid host nothing was sent.
    if add_usual(&mut sent, &request.url).is_ok() {
        sent.insert(CONTENT_LENGTH, request.body.len().into());
    }
    let answer = kept.answer.map(|(headers, start)| {
        let (headers, most) = (masked(&headers, mask), request.keep.answer_bytes_max);
        RecordedAnswer::masked(headers, &start.bytes, most, start.cut, mask)
    });
    Transcript { request: masked(&sent, mask), answer }
}

fn masked(headers: &HeaderMap, mask: &Mask) -> Headers {
    Headers::masked(headers.iter().map(|(name, value)| (name.as_str(), value.as_bytes())), mask)
}
