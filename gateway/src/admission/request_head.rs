//! Reads a request's head: its target, its length, its `X-Request-Id`.
//!
//! Invariant: a head that two parsers could read differently is refused, in every version of HTTP.
//!
//! Not here: which spellings of a path are accepted (`target`), which route it has (`route`).

use http::{HeaderName, Method, header};
use pingora_http::RequestHeader;

use crate::request::target::{self, Malformed, Target};

/// The header of a request's id.
pub const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// Longest accepted `X-Request-Id` of a trusted proxy, in bytes.
const REQUEST_ID_MAX: usize = 128;

/// Fields that `Connection` may not name: they would be removed, and no server does without them.
const NEEDED: [&str; 4] = ["host", "x-forwarded-for", "x-forwarded-host", "x-forwarded-proto"];

/// Most options of `Connection`: Pingora forwards no request with more.
const CONNECTION_OPTIONS_MAX: usize = 9;

/// The target of a head, if every parser reads both alike.
pub fn read_target(head: &RequestHeader) -> Result<Target<'_>, Malformed> {
    check_method(&head.method)?;
    check_connection(head)?;
    let mut hosts = head.headers.get_all(header::HOST).iter();
    let host = hosts.next().map(|host| host.as_bytes());
    if hosts.next().is_some() {
        return Err(Malformed::HostForm);
    }
    // HTTP/2 names the host in `:authority`.
    let host = host.or_else(|| head.uri.authority().map(|host| host.as_str().as_bytes()));
    target::read(head.raw_path(), host)
}

/// Refuses a method with lower-case letters, which some servers convert to capitals.
pub fn check_method(method: &Method) -> Result<(), Malformed> {
    let is_valid = method.as_str().bytes().all(|byte| byte.is_ascii_uppercase() || byte == b'-');
    if is_valid { Ok(()) } else { Err(Malformed::Method) }
}

/// Refuses a `Connection` that Pingora would not forward: here, before anything is charged.
fn check_connection(head: &RequestHeader) -> Result<(), Malformed> {
    let lists = head.headers.get_all(header::CONNECTION).iter();
    let options = lists.flat_map(|list| list.as_bytes().split(|byte| *byte == b','));
    let mut options = options.map(<[u8]>::trim_ascii).filter(|option| !option.is_empty());
    let is_token = |byte: &u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(byte);
    let is_refused = |option: &[u8]| {
        !option.iter().all(is_token)
            || NEEDED.iter().any(|name| option.eq_ignore_ascii_case(name.as_bytes()))
    };
    let is_forwarded =
        !options.by_ref().take(CONNECTION_OPTIONS_MAX).any(is_refused) && options.next().is_none();
    if is_forwarded { Ok(()) } else { Err(Malformed::Connection) }
}

/// The length that an HTTP/2 head would have in HTTP/1.1, without the request line's delimiters.
#[must_use]
pub fn length(head: &RequestHeader) -> usize {
    const FIELD: usize = ": \r\n".len();
    let fields = head.headers.iter().map(|(n, value)| n.as_str().len() + value.len() + FIELD);
    let authority = head.uri.authority().map_or(0, |authority| authority.as_str().len());
    head.method.as_str().len() + head.raw_path().len() + authority + fields.sum::<usize>()
}

/// The `X-Request-Id` of a request, if it is valid.
#[must_use]
pub fn given_id(head: &RequestHeader) -> Option<Box<str>> {
    let given = head.headers.get(&REQUEST_ID)?.to_str().ok()?;
    let is_valid =
        (1..=REQUEST_ID_MAX).contains(&given.len()) && given.bytes().all(|b| b.is_ascii_graphic());
    is_valid.then(|| given.into())
}

/// Every value of a header, in order.
pub fn values<'h>(
    head: &'h RequestHeader,
    name: &HeaderName,
) -> impl DoubleEndedIterator<Item = &'h [u8]> + use<'h> {
    head.headers.get_all(name).iter().map(|value| value.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_field_that_names_what_a_server_needs_is_malformed() {
        let read = |values: &[&'static str]| {
            let mut head = RequestHeader::build("GET", b"/", None).unwrap();
            head.append_header(header::HOST, "h.test").unwrap();
            for value in values {
                head.append_header(header::CONNECTION, *value).unwrap();
            }
            read_target(&head).map(drop)
        };
        for values in [
            &["close"][..],
            &["keep-alive, Upgrade", "HTTP2-Settings"],
            &["X-Mine,, Host-Name,"],
            &["a, b, c, d, e, f, g, h, i"],
            &[""],
        ] {
            assert!(read(values).is_ok(), "{values:?}");
        }
        for values in [
            &["Host"][..],
            &["close, X-Forwarded-For"],
            &["close", "x-forwarded-PROTO"],
            &["X-Forwarded-Host"],
            &[":authority"],
            &["\"Host\""],
            &["close;"],
            &["a, b, c, d, e", "f, g, h, i, j"],
        ] {
            assert!(read(values).is_err(), "{values:?}");
        }
    }
}
