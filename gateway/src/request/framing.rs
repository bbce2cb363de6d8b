//! Decides where the body of a request ends: by one length, or by chunks. (core)
//!
//! Invariant: a body whose end two parsers could place differently is refused (request smuggling).
//!
//! Not here: reading a body (`edge::http1`).

use http::{HeaderMap, Version, header};

use crate::request::target::Malformed;

/// How the end of a request's body is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Framing {
    /// By its length in bytes; 0 where the head announces no body.
    Length(u64),
    /// By its last chunk.
    Chunked,
}

impl Framing {
    /// The framing that `headers` announce (RFC 9112, 6.3). Where the RFC lets a recipient choose
    /// between two lengths, there is none.
    pub fn of(headers: &HeaderMap, version: Version) -> Result<Self, Malformed> {
        let mut lengths = headers.get_all(header::CONTENT_LENGTH).iter();
        let mut codings = headers.get_all(header::TRANSFER_ENCODING).iter();
        let framing = match (lengths.next(), codings.next()) {
            (None, None) => return Ok(Self::Length(0)),
            (Some(length), None) => digits(length.as_bytes()).map(Self::Length),
            (None, Some(coding)) => {
                // A server of HTTP/1.0 does not know chunks (RFC 9112, 6.1).
                let is_chunked = coding.as_bytes().eq_ignore_ascii_case(b"chunked");
                (is_chunked && version != Version::HTTP_10).then_some(Self::Chunked)
            }
            (Some(_), Some(_)) => None,
        };
        let once = lengths.next().is_none() && codings.next().is_none();
        framing.filter(|_| once).ok_or(Malformed::Framing)
    }
}

/// A number of digits alone: no sign, no list.
fn digits(text: &[u8]) -> Option<u64> {
    let text = text.iter().all(u8::is_ascii_digit).then(|| std::str::from_utf8(text).ok())??;
    text.parse().ok()
}

#[cfg(test)]
mod tests {
    use http::{HeaderName, HeaderValue};

    use super::*;

    #[track_caller]
    fn check(fields: &[(&'static str, &'static str)], version: Version, expected: Option<Framing>) {
        let headers = fields
            .iter()
            .map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value)));
        let headers: HeaderMap = headers.collect();
        assert_eq!(Framing::of(&headers, version).ok(), expected, "{fields:?}");
    }

    #[test]
    fn a_body_ends_in_one_way_or_the_request_is_malformed() {
        let (length, coding) = ("content-length", "transfer-encoding");
        let of_1_1 = |fields: &[(&'static str, &'static str)], expected| {
            check(fields, Version::HTTP_11, expected);
        };
        of_1_1(&[], Some(Framing::Length(0)));
        of_1_1(&[(length, "03")], Some(Framing::Length(3)));
        of_1_1(&[(length, "18446744073709551615")], Some(Framing::Length(u64::MAX)));
        of_1_1(&[(coding, "Chunked")], Some(Framing::Chunked));
        for value in ["", "+3", "-3", "3, 3", "0x3", " 3", "18446744073709551616"] {
            of_1_1(&[(length, value)], None);
        }
        for value in ["", "xchunked", "chunked, identity", "gzip, chunked", "identity"] {
            of_1_1(&[(coding, value)], None);
        }
        of_1_1(&[(length, "3"), (coding, "chunked")], None);
        check(&[(coding, "chunked")], Version::HTTP_10, None);
        check(&[(length, "3")], Version::HTTP_10, Some(Framing::Length(3)));
    }

    #[test]
    fn a_field_that_is_sent_twice_is_malformed() {
        for (name, value) in [("content-length", "3"), ("transfer-encoding", "chunked")] {
            let mut headers = HeaderMap::new();
            headers.append(name, HeaderValue::from_static(value));
            assert!(Framing::of(&headers, Version::HTTP_11).is_ok());
            headers.append(name, HeaderValue::from_static(value));
            assert!(Framing::of(&headers, Version::HTTP_11).is_err());
        }
    }
}
