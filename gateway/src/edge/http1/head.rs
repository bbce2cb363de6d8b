//! Parses the head of a request (RFC 9112, 3 and 5).
//!
//! # Invariants
//!
//! 1. A head has one reading: lines that a lenient parser would repair make the request malformed.
//! 2. How the bytes of a head arrive does not matter.
//!
//! # Not here
//!
//! Waiting for a head (`http1::buffered_connection`), whether its target and host are accepted
//! (`admission`).

use std::mem::MaybeUninit;
use std::ops::Range;

use arrayvec::ArrayVec;
use bytes::{Bytes, BytesMut};
use http::uri::PathAndQuery;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Version, header};
use pingora_http::RequestHeader;

use crate::request::framing::Framing;
use crate::request::target::Malformed;

/// Header fields of one request, at most.
const FIELDS_MAX: usize = 256;

/// A request's head.
#[derive(Debug)]
pub struct Head {
    /// The request line and the fields.
    pub request: RequestHeader,
    /// Its length in bytes, as received.
    pub length: usize,
    /// Where its body ends.
    pub framing: Framing,
    /// Whether the client accepts that the connection is kept.
    pub keeps: bool,
    /// Why the request is refused, if two parsers could read it differently.
    pub malformed: Option<Malformed>,
}

/// What the bytes so far are.
#[derive(Debug)]
pub enum Parsed {
    /// A whole head. Its bytes have been removed from the buffer.
    Whole(Box<Head>),
    /// The start of one.
    Partial,
    /// A head with more than `FIELDS_MAX` fields.
    TooManyFields,
    /// No HTTP/1.
    NotHttp,
}

/// Whether the last `read` bytes of `buffer` can change what [`parse`] returns, which reads a head
/// from its start: they are the first ones, end a line, or exceed `bytes_max`. So a head that comes
/// byte by byte is parsed once for each field.
pub fn is_news(buffer: &[u8], read: usize, bytes_max: u64) -> bool {
    let (before, new) = buffer.split_at(buffer.len().saturating_sub(read));
    before.is_empty() || new.contains(&b'\n') || buffer.len() as u64 > bytes_max
}

/// Parses the head at the start of `buffer`.
pub fn parse(buffer: &mut BytesMut) -> Parsed {
    let mut fields = [const { MaybeUninit::<httparse::Header<'_>>::uninit() }; FIELDS_MAX];
    let mut request = httparse::Request::new(&mut []);
    let length = match request.parse_with_uninit_headers(buffer, &mut fields) {
        Ok(httparse::Status::Complete(length)) => length,
        Ok(httparse::Status::Partial) => return Parsed::Partial,
        Err(httparse::Error::Token | httparse::Error::Version) => return malformed(buffer),
        Err(httparse::Error::TooManyHeaders) => return Parsed::TooManyFields,
        Err(_) => return Parsed::NotHttp,
    };
    let from = buffer.as_ptr() as usize;
    let place = |part: &[u8]| {
        let start = part.as_ptr() as usize - from;
        start..start + part.len()
    };
    let (Some(method), Some(target)) = (request.method, request.path) else {
        return Parsed::NotHttp;
    };
    let Ok(method) = Method::from_bytes(method.as_bytes()) else { return Parsed::NotHttp };
    let version = if request.version == Some(0) { Version::HTTP_10 } else { Version::HTTP_11 };
    let target = place(target.as_bytes());
    let mut places = ArrayVec::<(HeaderName, Range<usize>), FIELDS_MAX>::new();
    for field in &*request.headers {
        let Ok(name) = HeaderName::from_bytes(field.name.as_bytes()) else {
            return Parsed::NotHttp;
        };
        places.push((name, place(field.value)));
    }
    let bytes = buffer.split_to(length).freeze();
    let mut headers = HeaderMap::with_capacity(places.len());
    for (name, place) in places.drain(..) {
        let Ok(value) = HeaderValue::from_maybe_shared(bytes.slice(place)) else {
            return Parsed::NotHttp;
        };
        headers.append(name, value);
    }
    match head(method, bytes.slice(target), version, headers) {
        Some(head) => Parsed::Whole(Box::new(Head { length, ..head })),
        None => Parsed::NotHttp,
    }
}

fn head(method: Method, target: Bytes, version: Version, headers: HeaderMap) -> Option<Head> {
    let framing = Framing::of(&headers, version);
    // A fragment is never sent (RFC 9112, 3.2); `Uri` would drop it silently.
    let malformed = framing.err().or(target.contains(&b'#').then_some(Malformed::RequestLine));
    let keeps = malformed.is_none() && keeps(&headers, version);
    let mut parts = Request::new(()).into_parts().0;
    (parts.method, parts.version, parts.headers) = (method, version, headers);
    let is_origin_form = target.first() == Some(&b'/');
    let of_uri = is_origin_form.then(|| PathAndQuery::from_maybe_shared(target.clone()).ok());
    let request = match of_uri.flatten() {
        Some(path_and_query) => {
            parts.uri = path_and_query.into();
            RequestHeader::from(parts)
        }
        // Another form, or not UTF-8: kept as it was sent, for `admission` to read.
        None => {
            let mut request = RequestHeader::from(parts);
            request.set_raw_path(&target).ok()?;
            request
        }
    };
    let framing = framing.unwrap_or(Framing::Length(0));
    Some(Head { request, length: 0, framing, keeps, malformed })
}

/// Whether a client accepts that its connection is kept (RFC 9112, 9.3). One of HTTP/1.0 says so
/// in its first `Connection` field, and nothing else there.
fn keeps(headers: &HeaderMap, version: Version) -> bool {
    let closes = |value: &HeaderValue| {
        let mut options = value.as_bytes().split(|byte| *byte == b',').map(<[u8]>::trim_ascii);
        options.any(|option| option.eq_ignore_ascii_case(b"close"))
    };
    let asks = |value: &HeaderValue| value.as_bytes().eq_ignore_ascii_case(b"keep-alive");
    let keeps = version == Version::HTTP_11 || headers.get(header::CONNECTION).is_some_and(asks);
    keeps && !headers.get_all(header::CONNECTION).iter().any(closes)
}

/// A request whose line has bytes that a lenient parser would drop or escape. It is refused in any
/// case: only its method and target are read, for the log.
fn malformed(buffer: &mut BytesMut) -> Parsed {
    let text = buffer.trim_ascii_start();
    let is_method = |byte: &u8| byte.is_ascii_graphic() || byte.is_ascii_whitespace();
    if !text.iter().take_while(|byte| **byte != b' ').all(is_method) {
        return Parsed::NotHttp;
    }
    let Some(ends) = text.iter().position(|byte| *byte == b'\n') else { return Parsed::Partial };
    let Some((method, target)) = text.get(..ends).and_then(words) else { return Parsed::NotHttp };
    let mut parts = Request::new(()).into_parts().0;
    (parts.method, parts.version) = (method, Version::HTTP_11);
    let mut request = RequestHeader::from(parts);
    // A target that is no URI is not logged.
    let _ = request.set_raw_path(target);
    let length = buffer.len();
    buffer.clear();
    let malformed = Some(Malformed::RequestLine);
    let framing = Framing::Length(0);
    Parsed::Whole(Box::new(Head { request, length, framing, keeps: false, malformed }))
}

/// The method of a request line, and all that stands between it and the version.
fn words(line: &[u8]) -> Option<(Method, &[u8])> {
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    let line = line.strip_suffix(b" HTTP/1.1").or_else(|| line.strip_suffix(b" HTTP/1.0"))?;
    let ends = line.iter().position(|byte| *byte == b' ')?;
    let (method, target) = line.split_at_checked(ends)?;
    Some((Method::from_bytes(method).ok()?, target.trim_ascii()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Parsed {
        parse(&mut BytesMut::from(text))
    }

    #[track_caller]
    fn whole(text: &str) -> Box<Head> {
        match parsed(text) {
            Parsed::Whole(head) => head,
            other => panic!("{text:?}: {other:?}"),
        }
    }

    #[test]
    fn a_head_is_read_and_what_follows_it_stays() {
        let text = "POST /a?b HTTP/1.1\r\nHost: h\r\nX: 1\r\nx: 2\r\nContent-Length: 3\r\n\r\n";
        let mut buffer = BytesMut::from(format!("{text}abcGET").as_str());
        let Parsed::Whole(head) = parse(&mut buffer) else { panic!("it is whole") };
        assert_eq!(&buffer[..], b"abcGET");
        assert_eq!((head.length, head.framing), (text.len(), Framing::Length(3)));
        assert_eq!((head.request.method.as_str(), head.request.raw_path()), ("POST", &b"/a?b"[..]));
        let values: Vec<_> = head.request.headers.get_all("x").iter().collect();
        assert_eq!(values, ["1", "2"]);
        assert!(head.keeps && head.malformed.is_none());
    }

    #[test]
    fn a_head_has_256_fields_at_most() {
        let text = |fields| format!("GET / HTTP/1.1\r\n{}\r\n", "X: 1\r\n".repeat(fields));
        assert_eq!(whole(&text(256)).request.headers.len(), 256);
        assert!(matches!(parsed(&text(257)), Parsed::TooManyFields));
    }

    #[test]
    fn a_head_that_is_not_whole_stays_in_the_buffer() {
        let text = "GET / HTTP/1.1\r\nHost: h\r\n\r\n";
        for end in 1..text.len() {
            let mut buffer = BytesMut::from(&text[..end]);
            assert!(matches!(parse(&mut buffer), Parsed::Partial), "{end}");
            assert_eq!(&buffer[..], &text.as_bytes()[..end]);
        }
    }

    #[test]
    fn a_head_that_comes_byte_by_byte_is_parsed_once_for_each_line() {
        let lines = 1 + 40 + 1;
        let fields = format!("X-Filler: {}\r\n", "x".repeat(100)).repeat(40);
        for (last, is_whole) in [("\r\n", true), ("X y: 1\r\n", false)] {
            let text = format!("GET / HTTP/1.1\r\n{fields}{last}");
            let (mut buffer, mut parses) = (BytesMut::new(), 0);
            let mut end = None;
            for byte in text.bytes() {
                buffer.extend_from_slice(&[byte]);
                if is_news(&buffer, 1, u64::MAX) {
                    parses += 1;
                    end = Some(parse(&mut buffer));
                }
            }
            assert_eq!(matches!(end, Some(Parsed::Whole(_))), is_whole, "{end:?}");
            assert_eq!(matches!(end, Some(Parsed::NotHttp)), !is_whole, "{end:?}");
            assert_eq!(parses, 1 + lines);
        }
        assert!(is_news(b"GET /aaaa", 1, 8) && !is_news(b"GET /aaaa", 1, 9));
    }

    #[test]
    fn a_request_line_that_would_be_repaired_is_malformed() {
        for target in ["/a b", "/a\tb", "/\u{1}", "/a#b", " /a"] {
            let head = whole(&format!("GET {target} HTTP/1.1\r\nHost: h\r\n\r\n"));
            assert_eq!(head.malformed, Some(Malformed::RequestLine), "{target:?}");
            assert!(!head.keeps);
        }
        assert!(whole("GET /a HTTP/1.1\r\nX: a b  c\td\r\n\r\n").malformed.is_none());
        for text in ["GET /\r\n\r\n", "\u{16}\u{3}\u{1}\r\n\r\n", "\u{16}", "GET / HTTP/1.2\r\n"] {
            assert!(matches!(parsed(text), Parsed::NotHttp), "{text:?}");
        }
    }

    #[test]
    fn a_connection_is_kept_unless_one_side_closes_it() {
        let keeps = |version: &str, options: &[&str]| {
            let fields: String = options.iter().map(|o| format!("Connection: {o}\r\n")).collect();
            whole(&format!("GET / HTTP/{version}\r\n{fields}\r\n")).keeps
        };
        assert!(keeps("1.1", &[]) && keeps("1.1", &["X, y"]) && keeps("1.0", &["Keep-Alive"]));
        assert!(!keeps("1.0", &[]) && !keeps("1.0", &["keep-alive, x"]));
        assert!(keeps("1.0", &["keep-alive", "x"]) && !keeps("1.0", &["x", "keep-alive"]));
        assert!(!keeps("1.1", &["Close"]) && !keeps("1.1", &["x , close"]));
        assert!(!keeps("1.1", &["keep-alive", "close"]) && !keeps("1.0", &["keep-alive", "close"]));
    }

    #[test]
    fn targets_of_every_form_are_kept_as_they_were_sent() {
        for target in ["/", "//h/a", "*", "http://h/a?b", "h:1", "/\u{e9}", "/a?b=/?&%"] {
            let head = whole(&format!("GET {target} HTTP/1.1\r\n\r\n"));
            assert_eq!(head.request.raw_path(), target.as_bytes());
        }
    }
}
