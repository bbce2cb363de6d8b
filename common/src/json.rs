//! Reads JSON objects, and refuses duplicate members.
//!
//! Some libraries use the first of two members with one name, others the last: two programs could
//! read different values from one text.
//!
//! Not here: what the members mean (`token`, and other callers).

use std::fmt;

use serde::de::{Deserialize, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};

/// Why bytes are not accepted as an object; messages put it after `it is`.
#[derive(Debug, thiserror::Error)]
pub enum NoObject {
    /// It is not JSON, or an object in it has a duplicate member.
    #[error("not JSON with one meaning: {0}")]
    Unreadable(#[from] serde_json::Error),
    /// It is JSON, but not an object.
    #[error("not an object")]
    Other,
}

/// Parses `bytes` as an object.
pub fn object(bytes: &[u8]) -> Result<Map<String, Value>, NoObject> {
    match serde_json::from_slice(bytes)? {
        Once(Value::Object(object)) => Ok(object),
        Once(_) => Err(NoObject::Other),
    }
}

/// A value without duplicate members.
struct Once(Value);

impl<'de> Deserialize<'de> for Once {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(Reading).map(Self)
    }
}

struct Reading;

impl<'de> Visitor<'de> for Reading {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON without members that stand twice")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut all = Vec::new();
        while let Some(Once(item)) = items.next_element()? {
            all.push(item);
        }
        Ok(Value::Array(all))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Value, A::Error> {
        let mut all = Map::new();
        while let Some((name, Once(value))) = members.next_entry()? {
            if all.insert(name, value).is_some() {
                return Err(A::Error::custom("a member stands twice"));
            }
        }
        Ok(Value::Object(all))
    }
}

/// A member of an object; null where there is none.
#[must_use]
pub fn member<'v>(value: &'v Value, name: &str) -> &'v Value {
    value.get(name).unwrap_or(&Value::Null)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_object_is_read_unchanged() {
        let text = r#"{"a":1,"b":[true,null,-2,1.5,"x"],"c":{"a":{}}}"#;
        let read = Value::Object(object(text.as_bytes()).unwrap());
        assert_eq!(read.to_string(), text);
    }

    #[test]
    fn what_is_no_object_or_has_a_duplicate_key_is_refused() {
        for text in [
            "",
            "1",
            "[]",
            "{} {}",
            "{",
            r#"{"a":1,"a":1}"#,
            r#"{"a":1,"\u0061":2}"#,
            r#"{"a":{"b":1,"b":2}}"#,
            r#"{"a":[{"b":1,"b":2}]}"#,
            r#"{"a":1e999}"#,
            &format!("{{\"a\":{}{}}}", "[".repeat(500), "]".repeat(500)),
        ] {
            assert!(object(text.as_bytes()).is_err(), "{text}");
        }
        assert!(object(b"{\"a\":\"\xff\"}").is_err());
    }
}
