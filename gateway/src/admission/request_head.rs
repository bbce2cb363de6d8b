//! Reads a request's head: its target, its length, its `X-Request-Id`.
//!
//! Invariant: a head that two parsers could read differently is refused, in every version of HTTP.
//!
//! Not here: which spellings of a path are accepted (`target`), which route it has (`route`).

use http::{Method, header};
use pingora_http::RequestHeader;

use crate::request::target::{self, Malformed, Target};

/// Longest accepted `X-Request-Id` of a trusted proxy, in bytes.
const REQUEST_ID_MAX: usize = 128;

/// The target of a head, if every parser reads both alike.
pub fn read_target<'h>(
    head: &'h RequestHeader,
    raw_head: &[u8],
    repaired: bool,
) -> Result<Target<'h>, Malformed> {
    if repaired {
        return Err(Malformed::RequestLine);
    }
    check_method(&head.method)?;
    check_framing(head, raw_head)?;
    let host = head.headers.get(header::HOST).map(|host| host.as_bytes());
    // HTTP/2 names the host in `:authority`.
    let host = host.or_else(|| head.uri.authority().map(|host| host.as_str().as_bytes()));
    target::read(head.raw_path(), host)
}

/// Refuses a method with lower-case letters, which some servers convert to capitals.
pub fn check_method(method: &Method) -> Result<(), Malformed> {
    let is_valid = method.as_str().bytes().all(|byte| byte.is_ascii_uppercase() || byte == b'-');
    if is_valid { Ok(()) } else { Err(Malformed::Method) }
}

/// The length that an HTTP/2 head would have in HTTP/1.1, without the request line's delimiters.
#[must_use]
pub fn length(head: &RequestHeader) -> usize {
    const FIELD: usize = ": \r\n".len();
    let fields = head.headers.iter().map(|(n, value)| n.as_str().len() + value.len() + FIELD);
    let authority = head.uri.authority().map_or(0, |authority| authority.as_str().len());
    head.method.as_str().len() + head.raw_path().len() + authority + fields.sum::<usize>()
}

/// Refuses a body whose end two parsers could place differently (request smuggling).
pub fn check_framing(head: &RequestHeader, raw_head: &[u8]) -> Result<(), Malformed> {
    let mut lengths = head.headers.get_all(header::CONTENT_LENGTH).iter();
    let mut codings = head.headers.get_all(header::TRANSFER_ENCODING).iter();
    let length_is_valid = lengths.next().is_none_or(|length| {
        !length.is_empty() && length.as_bytes().iter().all(u8::is_ascii_digit)
    });
    let coding = codings.next();
    // If both are present Pingora drops Content-Length; the raw head still has it.
    let coding_is_valid = coding.is_none_or(|coding| {
        coding.as_bytes().eq_ignore_ascii_case(b"chunked") && !has_content_length(raw_head)
    });
    let once = lengths.next().is_none() && codings.next().is_none();
    if length_is_valid && coding_is_valid && once { Ok(()) } else { Err(Malformed::Framing) }
}

fn has_content_length(raw_head: &[u8]) -> bool {
    const NAME: &[u8] = b"content-length";
    raw_head
        .split(|byte| *byte == b'\n')
        .any(|line| line.get(..NAME.len()).is_some_and(|name| name.eq_ignore_ascii_case(NAME)))
}

/// The `X-Request-Id` of a request, if it is valid.
#[must_use]
pub fn given_id(head: &RequestHeader) -> Option<Box<str>> {
    let given = head.headers.get("x-request-id")?.to_str().ok()?;
    let is_valid =
        (1..=REQUEST_ID_MAX).contains(&given.len()) && given.bytes().all(|b| b.is_ascii_graphic());
    is_valid.then(|| given.into())
}

/// Every value of a header that is text, in order.
pub fn values<'h>(
    head: &'h RequestHeader,
    name: &'static str,
) -> impl DoubleEndedIterator<Item = &'h str> {
    head.headers.get_all(name).iter().filter_map(|value| value.to_str().ok())
}
