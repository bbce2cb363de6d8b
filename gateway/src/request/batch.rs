//! Counts the items of a batch: the elements of one JSON array. (core)
//!
//! The whole body must be valid JSON: a body that two parsers read differently has no exact count.
//!
//! Not here: buffering the body until it is counted (`proxy::buffering`).

use std::fmt;

use serde::de::{Deserializer, IgnoredAny, SeqAccess, Visitor};

/// What is wrong with a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Miscount {
    /// It is not a JSON array: why, in the parser's words.
    NotAnArray(String),
    /// It has too many items.
    TooMany,
}

/// The number of items in `body`, if it is at most `items_max`.
pub fn count(body: &[u8], items_max: u64) -> Result<u64, Miscount> {
    let text = std::str::from_utf8(body).map_err(|why| Miscount::NotAnArray(why.to_string()))?;
    if !is_shallow(text) {
        return Err(Miscount::NotAnArray(format!("it is nested deeper than {DEPTH_MAX}")));
    }
    let mut parser = serde_json::Deserializer::from_str(text);
    let items = parser.deserialize_any(Items { items_max });
    let items = items.map_err(|error| Miscount::NotAnArray(error.to_string()))?;
    if items > items_max {
        return Err(Miscount::TooMany);
    }
    parser.end().map_err(|error| Miscount::NotAnArray(error.to_string()))?;
    Ok(items)
}

/// Whether every server reads a body of this `Content-Type` as it is read here: JSON is UTF-8 (RFC
/// 8259, 8.1), but a server that decodes another charset sees other items. Wherever the word
/// stands, some server finds a charset; RFC 2231 spells one `charset*`, or in parts.
#[must_use]
pub fn is_countable(content_type: &[u8]) -> bool {
    let text = String::from_utf8_lossy(content_type).to_ascii_lowercase();
    text.split(';').filter(|part| part.contains("charset")).all(|part| {
        let (name, value) = part.split_once('=').unwrap_or_default();
        let value = value.trim().trim_matches('"');
        name.trim() == "charset" && (value == "utf-8" || value == "utf8")
    })
}

/// Greatest nesting of arrays and objects: the limit of serde_json, and of most parsers.
const DEPTH_MAX: usize = 128;

/// Whether arrays and objects are nested no deeper than [`DEPTH_MAX`].
fn is_shallow(text: &str) -> bool {
    let (mut depth, mut in_string, mut escaped) = (0_usize, false, false);
    for byte in text.bytes() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = in_string,
            b'"' => in_string = !in_string,
            b'[' | b'{' if !in_string => depth += 1,
            b']' | b'}' if !in_string => depth = depth.saturating_sub(1),
            _ => {}
        }
        if depth > DEPTH_MAX {
            return false;
        }
    }
    true
}

/// Counts items up to one more than `items_max`.
struct Items {
    items_max: u64,
}

impl<'de> Visitor<'de> for Items {
    type Value = u64;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON array")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<u64, A::Error> {
        let mut count = 0;
        while items.next_element::<IgnoredAny>()?.is_some() {
            count += 1;
            if count > self.items_max {
                // Parses the rest too, so that "too many" is reported only for valid arrays.
                while items.next_element::<IgnoredAny>()?.is_some() {}
                break;
            }
        }
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counted(body: &str) -> Result<u64, Miscount> {
        count(body.as_bytes(), 3)
    }

    #[test]
    fn the_elements_of_the_outer_array_are_counted() {
        for (body, items) in [("[]", 0), (" [1]\n", 1), (r#"[{"a":[1,2,3,4]},"[,]",null]"#, 3)] {
            assert_eq!(counted(body), Ok(items), "{body}");
        }
    }

    #[test]
    fn one_too_many_is_too_many() {
        assert_eq!(counted("[1,2,3,4]"), Err(Miscount::TooMany));
        assert_eq!(counted("[[],[],[],[],[]]"), Err(Miscount::TooMany));
    }

    #[test]
    fn anything_else_is_not_an_array() {
        for body in [
            "",
            "{}",
            "1",
            "null",
            "\"[]\"",
            "[1",
            "[1,]",
            "[1]x",
            "[1][2]",
            "[,]",
            "\u{feff}[]",
            "[1,2,3,4",
        ] {
            assert!(matches!(counted(body), Err(Miscount::NotAnArray(_))), "{body}");
        }
        assert!(matches!(count(b"[\"\xff\"]", 3), Err(Miscount::NotAnArray(_))));
    }

    #[test]
    fn a_charset_that_some_server_would_follow_is_not_counted() {
        for good in ["application/json", "application/json; charset=UTF-8", "a/b;charset=\"utf-8\""]
        {
            assert!(is_countable(good.as_bytes()), "{good}");
        }
        for bad in [
            "a/b; charset=utf-7",
            "a/b;x=y; Charset = UTF-16",
            "a/b; charset=\"latin1\"",
            // Spelt as RFC 2231 allows, and as lenient servers read them.
            "a/b; charset*=utf-16",
            "a/b; charset*=UTF-8''utf-16",
            "a/b; charset*0=utf-1; charset*1=6",
            "a/b charset=utf-16",
            "a/b, c/d; charset=utf-8, charset=utf-16",
            "a/b; x-charset=utf-8",
        ] {
            assert!(!is_countable(bad.as_bytes()), "{bad}");
        }
    }

    #[test]
    fn depth_is_counted_outside_of_texts() {
        let nested = format!("[{}1{}]", "[".repeat(200), "]".repeat(200));
        assert!(matches!(counted(&nested), Err(Miscount::NotAnArray(_))));
        let text = format!("[\"{}\\\"{}\"]", "[".repeat(500), "{".repeat(500));
        assert_eq!(counted(&text), Ok(1));
    }

    #[test]
    fn a_text_of_a_million_brackets_is_refused_and_not_followed() {
        assert!(matches!(counted(&"[".repeat(1_000_000)), Err(Miscount::NotAnArray(_))));
    }
}
