//! Splits a body into events: one object, an array of objects, or one object on each line. (core)
//!
//! Invariant: an event is a slice of the body, byte for byte as it was sent.

use http::HeaderMap;
use http::header::CONTENT_TYPE;
use serde::Deserializer;
use serde::de::{Error, SeqAccess, Visitor};
use serde_json::value::RawValue;

/// The accepted media types: JSON, and those in use for JSON lines.
pub(crate) const MEDIA_TYPES: [&str; 4] =
    [JSON, "application/x-ndjson", "application/ndjson", "application/jsonl"];

const JSON: &str = "application/json";

/// The format of a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BodyFormat {
    /// One value, an object or an array.
    Json,
    /// One value on each line; empty lines are skipped.
    Lines,
}

impl BodyFormat {
    /// The format that `Content-Type` names.
    pub(crate) fn of(headers: &HeaderMap) -> Option<Self> {
        let text = headers.get(CONTENT_TYPE)?.to_str().ok()?;
        let kind = text.split(';').next().unwrap_or_default().trim();
        let is = |wanted: &str| kind.eq_ignore_ascii_case(wanted);
        if is(JSON) {
            Some(Self::Json)
        } else if MEDIA_TYPES.iter().any(|name| is(name)) {
            Some(Self::Lines)
        } else {
            None
        }
    }
}

/// The text of one event, and its place in the body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Item<'a> {
    /// The JSON pointer to it: empty for a body that is one event.
    pub(crate) pointer: String,
    /// The index in a batch.
    pub(crate) index: Option<usize>,
    /// The line number from 1, of JSON lines.
    pub(crate) line: Option<usize>,
    pub(crate) text: &'a str,
}

impl Item<'_> {
    /// An error's text, with the line number of JSON lines.
    pub(crate) fn message_at(&self, text: &str) -> String {
        self.line.map_or_else(|| text.to_owned(), |line| format!("line {line}: {text}"))
    }
}

/// The events of one body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Batch<'a> {
    /// Not empty.
    pub(crate) items: Vec<Item<'a>>,
}

/// Why a body cannot be split into events.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum BatchError {
    /// The parser's error, with its position.
    Malformed(String),
    Empty,
    /// More events than the limit.
    TooMany,
}

fn first_byte(body: &[u8]) -> Option<u8> {
    body.iter().copied().find(|byte| !matches!(byte, b' ' | b'\t' | b'\r' | b'\n'))
}

impl<'a> Batch<'a> {
    /// Splits `body` into at most `most` events.
    pub(crate) fn read(
        body: &'a [u8],
        format: BodyFormat,
        most: usize,
    ) -> Result<Self, BatchError> {
        let items = match format {
            BodyFormat::Lines => lines(body, most)?,
            BodyFormat::Json if first_byte(body).is_none() => {
                let text = "the body is empty; send a JSON object, or an array of them";
                return Err(BatchError::Malformed(text.to_owned()));
            }
            BodyFormat::Json if first_byte(body) == Some(b'[') => array(body, most)?,
            BodyFormat::Json => {
                vec![Item { pointer: String::new(), index: None, line: None, text: one(body)? }]
            }
        };
        if items.is_empty() { Err(BatchError::Empty) } else { Ok(Self { items }) }
    }
}

fn one(text: &[u8]) -> Result<&str, BatchError> {
    let raw: &RawValue = serde_json::from_slice(text).map_err(malformed)?;
    Ok(raw.get())
}

fn malformed(error: serde_json::Error) -> BatchError {
    BatchError::Malformed(error.to_string())
}

fn lines(body: &[u8], most: usize) -> Result<Vec<Item<'_>>, BatchError> {
    let mut items = Vec::new();
    for (number, line) in (1..).zip(body.split(|byte| *byte == b'\n')) {
        if first_byte(line).is_none() {
            continue;
        }
        if items.len() == most {
            return Err(BatchError::TooMany);
        }
        let text = one(line).map_err(|error| match error {
            // The parser sees one line and numbers it 1.
            BatchError::Malformed(text) => {
                BatchError::Malformed(format!("line {number}: {}", text.replace(" line 1", "")))
            }
            other => other,
        })?;
        let index = items.len();
        let pointer = format!("/{index}");
        items.push(Item { pointer, index: Some(index), line: Some(number), text });
    }
    Ok(items)
}

fn array(body: &[u8], most: usize) -> Result<Vec<Item<'_>>, BatchError> {
    let mut parser = serde_json::Deserializer::from_slice(body);
    let mut too_many = false;
    let elements = parser.deserialize_seq(Elements { most, too_many: &mut too_many });
    if too_many {
        return Err(BatchError::TooMany);
    }
    let elements = elements.map_err(malformed)?;
    parser.end().map_err(malformed)?;
    let item = |(index, text)| {
        let pointer = format!("/{index}");
        Item { pointer, index: Some(index), line: None, text }
    };
    Ok(elements.into_iter().enumerate().map(item).collect())
}

struct Elements<'f> {
    most: usize,
    too_many: &'f mut bool,
}

impl<'de> Visitor<'de> for Elements<'_> {
    type Value = Vec<&'de str>;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("an array of events")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
        let mut elements = Vec::new();
        while let Some(raw) = seq.next_element::<&RawValue>()? {
            if elements.len() == self.most {
                *self.too_many = true;
                return Err(A::Error::custom("too many events"));
            }
            elements.push(raw.get());
        }
        Ok(elements)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(body: &str, format: BodyFormat) -> Result<Vec<String>, BatchError> {
        let batch = Batch::read(body.as_bytes(), format, 3)?;
        let shown = |item: &Item<'_>| {
            let line = item.line.map(|line| format!("@{line}")).unwrap_or_default();
            format!("{}{line} {}", item.pointer, item.text)
        };
        Ok(batch.items.iter().map(shown).collect())
    }

    fn malformed_at(body: &str, format: BodyFormat) -> String {
        match texts(body, format) {
            Err(BatchError::Malformed(text)) => text,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn one_event_is_at_the_root_and_several_have_an_index() {
        assert_eq!(texts(" {\"a\" : 1}\n", BodyFormat::Json), Ok(vec![" {\"a\" : 1}".to_owned()]));
        assert_eq!(
            texts("[ {\"a\":1} ,\n 2 ]", BodyFormat::Json),
            Ok(vec!["/0 {\"a\":1}".to_owned(), "/1 2".to_owned()])
        );
    }

    #[test]
    fn lines_may_end_in_lf_or_crlf_and_may_be_empty() {
        let expected = Ok(vec!["/0@1 {}".to_owned(), "/1@4 [1]".to_owned()]);
        for body in
            ["{}\n\n \t\n[1]\n", "{}\r\n\r\n\r\n[1]\r\n", "{}\n\n\n[1]", "{} \n\n\n [1]\n\n"]
        {
            assert_eq!(texts(body, BodyFormat::Lines), expected, "{body:?}");
        }
    }

    #[test]
    fn an_invalid_line_is_named_by_its_number() {
        let text = malformed_at("{}\n\n{\"a\":}\n", BodyFormat::Lines);
        assert!(text.starts_with("line 3: expected value at column 6"), "{text}");
        for body in ["{} {}\n", "{}\n{\"a\":\n1}\n", "{}\n\u{feff}{}"] {
            assert!(malformed_at(body, BodyFormat::Lines).contains("line "), "{body:?}");
        }
    }

    #[test]
    fn invalid_json_is_reported_with_its_place() {
        assert_eq!(malformed_at("[{},\n}", BodyFormat::Json), "expected value at line 2 column 1");
        for body in ["", " \r\n"] {
            assert!(malformed_at(body, BodyFormat::Json).starts_with("the body is empty; send"));
        }
        for body in ["{} {}", "[{}] x", "[{},]", "{\"a\":1", "nul", "{\"a\":01}", "{'a':1}"] {
            assert!(!malformed_at(body, BodyFormat::Json).is_empty(), "{body}");
        }
        assert!(Batch::read(b"{\"a\":\"\xff\"}", BodyFormat::Json, 3).is_err());
        assert!(Batch::read(b"[\"\xff\"]", BodyFormat::Json, 3).is_err());
        assert!(Batch::read(b"\"\xff\"\n", BodyFormat::Lines, 3).is_err());
    }

    #[test]
    fn any_depth_of_nesting_is_parsed() {
        let deep = "[".repeat(100_000) + &"]".repeat(100_000);
        assert_eq!(texts(&deep, BodyFormat::Json).map(|all| all.len()), Ok(1));
        assert_eq!(
            texts(&format!("{{\"a\":{deep}}}"), BodyFormat::Json).map(|all| all.len()),
            Ok(1)
        );
        assert!(!malformed_at(&"[".repeat(100_000), BodyFormat::Json).is_empty());
    }

    #[test]
    fn an_empty_batch_and_one_over_the_limit_are_refused() {
        for (body, format) in
            [("[]", BodyFormat::Json), ("\n\r\n", BodyFormat::Lines), ("", BodyFormat::Lines)]
        {
            assert_eq!(texts(body, format), Err(BatchError::Empty), "{body:?}");
        }
        assert_eq!(texts("[1,2,3]", BodyFormat::Json).map(|all| all.len()), Ok(3));
        assert_eq!(texts("[1,2,3,4]", BodyFormat::Json), Err(BatchError::TooMany));
        assert_eq!(texts("1\n2\n3\n\n4", BodyFormat::Lines), Err(BatchError::TooMany));
    }

    #[test]
    fn the_format_is_that_of_the_content_type() {
        let format = |text: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(CONTENT_TYPE, text.parse().expect("a value"));
            BodyFormat::of(&headers)
        };
        assert_eq!(format("Application/JSON; charset=utf-8"), Some(BodyFormat::Json));
        assert_eq!(format("application/x-ndjson"), Some(BodyFormat::Lines));
        assert_eq!(format("application/ndjson"), Some(BodyFormat::Lines));
        assert_eq!(format("application/jsonl"), Some(BodyFormat::Lines));
        assert_eq!(format("text/plain"), None);
        assert_eq!(BodyFormat::of(&HeaderMap::new()), None);
    }
}
