//! Finds the events in a body: one object, an array of them, or one on each line.
//!
//! An event is a slice of the body, byte for byte as it was sent.

use http::HeaderMap;
use http::header::CONTENT_TYPE;
use serde::Deserializer;
use serde::de::{Error, SeqAccess, Visitor};
use serde_json::value::RawValue;

/// All that is read: JSON, and the names under which lines of it go about.
pub(crate) const MEDIA_TYPES: [&str; 4] =
    [JSON, "application/x-ndjson", "application/ndjson", "application/jsonl"];

const JSON: &str = "application/json";

/// What a body is written in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// One value, an object or an array.
    Json,
    /// A value on each line; empty lines are none.
    Lines,
}

impl Form {
    /// As the head says.
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

/// The text of one event and where it stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Item<'a> {
    /// The JSON pointer to it: empty for a body that is one event.
    pub(crate) pointer: String,
    /// Which of several it is.
    pub(crate) index: Option<usize>,
    /// On which line, from 1, where lines count.
    pub(crate) line: Option<usize>,
    /// JSON.
    pub(crate) text: &'a str,
}

impl Item<'_> {
    /// A flaw's text, with the line where that helps.
    pub(crate) fn said(&self, text: &str) -> String {
        self.line.map_or_else(|| text.to_owned(), |line| format!("line {line}: {text}"))
    }
}

/// The events of one body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Batch<'a> {
    /// At least one.
    pub(crate) items: Vec<Item<'a>>,
}

/// Why a body has no events for us.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Unreadable {
    /// What is wrong with it, and where.
    Malformed(String),
    /// There are none in it.
    Empty,
    /// There are more than may be.
    TooMany,
}

fn first_byte(body: &[u8]) -> Option<u8> {
    body.iter().copied().find(|byte| !matches!(byte, b' ' | b'\t' | b'\r' | b'\n'))
}

impl<'a> Batch<'a> {
    /// Finds the events in `body`, of which there may be `most`.
    pub(crate) fn read(body: &'a [u8], form: Form, most: usize) -> Result<Self, Unreadable> {
        let items = match form {
            Form::Lines => lines(body, most)?,
            Form::Json if first_byte(body).is_none() => {
                let text = "the body is empty; send a JSON object, or an array of them";
                return Err(Unreadable::Malformed(text.to_owned()));
            }
            Form::Json if first_byte(body) == Some(b'[') => array(body, most)?,
            Form::Json => {
                vec![Item { pointer: String::new(), index: None, line: None, text: one(body)? }]
            }
        };
        if items.is_empty() { Err(Unreadable::Empty) } else { Ok(Self { items }) }
    }
}

fn one(text: &[u8]) -> Result<&str, Unreadable> {
    let raw: &RawValue = serde_json::from_slice(text).map_err(malformed)?;
    Ok(raw.get())
}

fn malformed(error: serde_json::Error) -> Unreadable {
    Unreadable::Malformed(error.to_string())
}

fn lines(body: &[u8], most: usize) -> Result<Vec<Item<'_>>, Unreadable> {
    let mut items = Vec::new();
    for (number, line) in (1..).zip(body.split(|byte| *byte == b'\n')) {
        if first_byte(line).is_none() {
            continue;
        }
        if items.len() == most {
            return Err(Unreadable::TooMany);
        }
        let text = one(line).map_err(|unreadable| match unreadable {
            // The parser counts its own one line.
            Unreadable::Malformed(text) => {
                Unreadable::Malformed(format!("line {number}: {}", text.replace(" line 1", "")))
            }
            other => other,
        })?;
        let index = items.len();
        let pointer = format!("/{index}");
        items.push(Item { pointer, index: Some(index), line: Some(number), text });
    }
    Ok(items)
}

fn array(body: &[u8], most: usize) -> Result<Vec<Item<'_>>, Unreadable> {
    let mut parser = serde_json::Deserializer::from_slice(body);
    let mut too_many = false;
    let elements = parser.deserialize_seq(Elements { most, too_many: &mut too_many });
    if too_many {
        return Err(Unreadable::TooMany);
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

    fn texts(body: &str, form: Form) -> Result<Vec<String>, Unreadable> {
        let batch = Batch::read(body.as_bytes(), form, 3)?;
        let shown = |item: &Item<'_>| {
            let line = item.line.map(|line| format!("@{line}")).unwrap_or_default();
            format!("{}{line} {}", item.pointer, item.text)
        };
        Ok(batch.items.iter().map(shown).collect())
    }

    fn malformed_at(body: &str, form: Form) -> String {
        match texts(body, form) {
            Err(Unreadable::Malformed(text)) => text,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn one_event_stands_at_the_root_and_several_have_their_places() {
        assert_eq!(texts(" {\"a\" : 1}\n", Form::Json), Ok(vec![" {\"a\" : 1}".to_owned()]));
        assert_eq!(
            texts("[ {\"a\":1} ,\n 2 ]", Form::Json),
            Ok(vec!["/0 {\"a\":1}".to_owned(), "/1 2".to_owned()])
        );
    }

    #[test]
    fn lines_may_end_as_they_like_and_may_be_empty() {
        let expected = Ok(vec!["/0@1 {}".to_owned(), "/1@4 [1]".to_owned()]);
        for body in
            ["{}\n\n \t\n[1]\n", "{}\r\n\r\n\r\n[1]\r\n", "{}\n\n\n[1]", "{} \n\n\n [1]\n\n"]
        {
            assert_eq!(texts(body, Form::Lines), expected, "{body:?}");
        }
    }

    #[test]
    fn a_bad_line_is_named_by_its_number() {
        let text = malformed_at("{}\n\n{\"a\":}\n", Form::Lines);
        assert!(text.starts_with("line 3: expected value at column 6"), "{text}");
        for body in ["{} {}\n", "{}\n{\"a\":\n1}\n", "{}\n\u{feff}{}"] {
            assert!(malformed_at(body, Form::Lines).contains("line "), "{body:?}");
        }
    }

    #[test]
    fn what_is_no_json_is_told_where() {
        assert_eq!(malformed_at("[{},\n}", Form::Json), "expected value at line 2 column 1");
        for body in ["", " \r\n"] {
            assert!(malformed_at(body, Form::Json).starts_with("the body is empty; send"));
        }
        for body in ["{} {}", "[{}] x", "[{},]", "{\"a\":1", "nul", "{\"a\":01}", "{'a':1}"] {
            assert!(!malformed_at(body, Form::Json).is_empty(), "{body}");
        }
        assert!(Batch::read(b"{\"a\":\"\xff\"}", Form::Json, 3).is_err());
        assert!(Batch::read(b"[\"\xff\"]", Form::Json, 3).is_err());
        assert!(Batch::read(b"\"\xff\"\n", Form::Lines, 3).is_err());
    }

    #[test]
    fn no_depth_is_too_much_to_read() {
        let deep = "[".repeat(100_000) + &"]".repeat(100_000);
        assert_eq!(texts(&deep, Form::Json).map(|all| all.len()), Ok(1));
        assert_eq!(texts(&format!("{{\"a\":{deep}}}"), Form::Json).map(|all| all.len()), Ok(1));
        assert!(!malformed_at(&"[".repeat(100_000), Form::Json).is_empty());
    }

    #[test]
    fn none_are_too_few_and_four_of_three_too_many() {
        for (body, form) in [("[]", Form::Json), ("\n\r\n", Form::Lines), ("", Form::Lines)] {
            assert_eq!(texts(body, form), Err(Unreadable::Empty), "{body:?}");
        }
        assert_eq!(texts("[1,2,3]", Form::Json).map(|all| all.len()), Ok(3));
        assert_eq!(texts("[1,2,3,4]", Form::Json), Err(Unreadable::TooMany));
        assert_eq!(texts("1\n2\n3\n\n4", Form::Lines), Err(Unreadable::TooMany));
    }

    #[test]
    fn the_form_is_what_the_head_says() {
        let form = |text: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(CONTENT_TYPE, text.parse().expect("a value"));
            Form::of(&headers)
        };
        assert_eq!(form("Application/JSON; charset=utf-8"), Some(Form::Json));
        assert_eq!(form("application/x-ndjson"), Some(Form::Lines));
        assert_eq!(form("application/ndjson"), Some(Form::Lines));
        assert_eq!(form("application/jsonl"), Some(Form::Lines));
        assert_eq!(form("text/plain"), None);
        assert_eq!(Form::of(&HeaderMap::new()), None);
    }
}
