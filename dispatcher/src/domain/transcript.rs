//! What was sent and answered in an attempt: headers, and the beginning of the body. (core)
//!
//! # Invariants
//!
//! 1. A transcript is bounded: headers by [`HEADERS_BYTES_MAX`] on each side, the body by a setting
//!    of [`BODY_BYTES_MAX`] at most.
//! 2. No secret of its webhook, no signature and no value of a custom header is in it ([`Mask`]).
//!
//! Not here: timings and errors (`trace`), which attempts have one (`worker`).

use crate::domain::compact::{Reader, Writer};
use crate::domain::masking::Mask;

/// The most of the headers of a request or a response that is kept: real ones have a few hundred
/// bytes.
pub const HEADERS_BYTES_MAX: usize = 4 * 1024;

/// The largest setting for the body.
pub const BODY_BYTES_MAX: usize = 16 * 1024;

/// What follows the kept part of a body and is searched for secrets: longer than the part of one
/// that is masked, in any escape.
pub const BODY_BYTES_MORE: usize = 512;

/// What was sent and answered.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Transcript {
    /// The headers of the request.
    pub request: Headers,
    /// The response, if its headers arrived and may be kept.
    pub answer: Option<RecordedAnswer>,
}

/// The headers of a request or a response.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Headers {
    /// Names and values, in order.
    pub fields: Vec<(String, String)>,
    /// Whether some are missing.
    pub cut: bool,
}

/// A response.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RecordedAnswer {
    /// Its headers.
    pub headers: Headers,
    /// The first bytes of its body.
    pub body: Vec<u8>,
    /// Whether the body was longer.
    pub cut: bool,
}

impl Headers {
    /// Masks headers, and cuts them after [`HEADERS_BYTES_MAX`].
    #[must_use]
    pub fn masked<'h>(fields: impl Iterator<Item = (&'h str, &'h [u8])>, mask: &Mask) -> Self {
        let (mut headers, mut left) = (Self::default(), HEADERS_BYTES_MAX);
        let shown =
            |bytes: &[u8]| String::from_utf8_lossy(&mask.applied(bytes, bytes.len())).into_owned();
        for (name, value) in fields {
            let (name, value) = (shown(name.as_bytes()), shown(value));
            let Some(less) = left.checked_sub(name.len() + value.len()) else {
                headers.cut = true;
                break;
            };
            left = less;
            headers.fields.push((name, value));
        }
        headers
    }

    fn write(&self, to: &mut Writer) {
        to.bytes(&[u8::from(self.cut)]);
        to.number(self.fields.len() as u64);
        for (name, value) in &self.fields {
            to.text(name.as_bytes());
            to.text(value.as_bytes());
        }
    }

    fn read(from: &mut Reader<'_>) -> Option<Self> {
        let mut headers = Self { fields: Vec::new(), cut: from.byte()? != 0 };
        let text = |from: &mut Reader<'_>| Some(String::from_utf8_lossy(from.text()?).into_owned());
        for _ in 0..from.number()? {
            headers.fields.push((text(from)?, text(from)?));
        }
        Some(headers)
    }
}

impl RecordedAnswer {
    /// Masks a body, and cuts it after `most` bytes. `cut` says that `body` is not all of it.
    #[must_use]
    pub fn masked(headers: Headers, body: &[u8], most: usize, cut: bool, mask: &Mask) -> Self {
        Self { headers, body: mask.applied(body, most), cut: cut || body.len() > most }
    }

    /// The body as text, if it is: UTF-8 without control characters other than ends of lines and
    /// tabs. A character that the cut divided is left out.
    #[must_use]
    pub fn text(&self) -> Option<&str> {
        let text = match std::str::from_utf8(&self.body) {
            Ok(text) => text,
            Err(error) if self.cut && error.error_len().is_none() => {
                std::str::from_utf8(self.body.get(..error.valid_up_to())?).ok()?
            }
            Err(_) => return None,
        };
        let is_plain = |one: char| !one.is_control() || ['\r', '\n', '\t'].contains(&one);
        text.chars().all(is_plain).then_some(text)
    }
}

impl Transcript {
    /// The stored form.
    #[must_use]
    pub fn stored(&self) -> Vec<u8> {
        let mut writer = Writer::default();
        self.request.write(&mut writer);
        if let Some(answer) = &self.answer {
            writer.bytes(&[u8::from(answer.cut)]);
            answer.headers.write(&mut writer);
            writer.text(&answer.body);
        }
        writer.written
    }

    /// The transcript of its stored form; `None` if that is damaged.
    #[must_use]
    pub fn of_stored(stored: &[u8]) -> Option<Self> {
        let mut reader = Reader::new(stored);
        let request = Headers::read(&mut reader)?;
        if reader.rest.is_empty() {
            return Some(Self { request, answer: None });
        }
        let cut = reader.byte()? != 0;
        let headers = Headers::read(&mut reader)?;
        let body = reader.text()?.to_vec();
        Some(Self { request, answer: Some(RecordedAnswer { headers, body, cut }) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(fields: &[(&str, &[u8])]) -> Headers {
        Headers::masked(fields.iter().copied(), &Mask::of(["the-secret-value"]))
    }

    fn answer(body: &[u8], most: usize) -> RecordedAnswer {
        let mask = Mask::of(["the-secret-value"]);
        RecordedAnswer::masked(Headers::default(), body, most, false, &mask)
    }

    #[test]
    fn a_transcript_is_read_back() {
        let request = headers(&[("host", b"example.com"), ("x", b"\xff the-secret-value")]);
        assert_eq!(request.fields[1].1, "\u{fffd} ***");
        let none = Transcript { request: request.clone(), answer: None };
        let all = Transcript {
            request: request.clone(),
            answer: Some(RecordedAnswer { headers: request, ..answer(b"\0\x01 binary", 5) }),
        };
        for transcript in [none, all] {
            let stored = transcript.stored();
            assert_eq!(Transcript::of_stored(&stored).as_ref(), Some(&transcript));
            for end in 0..stored.len() {
                let damaged = Transcript::of_stored(&stored[..end]);
                assert!(damaged.is_none_or(|found| found.answer.is_none()), "{end} bytes of it");
            }
        }
    }

    #[test]
    fn headers_are_bounded_and_no_value_is_cut() {
        let long = vec![b'y'; HEADERS_BYTES_MAX - 10];
        let found = headers(&[("a", b"1"), ("b", &long), ("c", b"123456789"), ("d", b"")]);
        assert!(found.cut);
        assert_eq!(found.fields.iter().map(|(name, _)| &**name).collect::<Vec<_>>(), ["a", "b"]);
        assert!(!headers(&[("a", b"1"), ("b", &long)]).cut);
    }

    #[test]
    fn a_body_is_cut_and_masked_across_the_cut() {
        let found = answer(b"12345the-secret-value", 10);
        assert_eq!((&*found.body, found.cut), (&b"12345***"[..], true));
        assert!(!answer(b"12345", 5).cut);
        assert_eq!((&*answer(b"12345", 0).body, answer(b"12345", 0).cut), (&b""[..], true));
    }

    #[test]
    fn a_body_is_text_or_binary() {
        let text = |body: &[u8], most| answer(body, most).text().map(str::to_owned);
        assert_eq!(text("Größe\r\n\t<b>".as_bytes(), 99).as_deref(), Some("Größe\r\n\t<b>"));
        assert_eq!(text("Größe".as_bytes(), 3).as_deref(), Some("Gr"), "a divided character");
        assert_eq!(text(b"Gr\xc3", 99), None, "not divided by us");
        for binary in [&b"\x1b[2J"[..], b"a\0b", b"\xff\xfe", b"\xc2\x9b"] {
            assert_eq!(text(binary, 99), None, "{binary:?}");
        }
        assert_eq!(text(b"", 9).as_deref(), Some(""));
    }
}
