//! The schema and the active values of a table, once it has been read.

use serde_json::Value;
use toml::de::DeValue;

/// The schema and the active values of a table.
pub(super) struct Shape {
    pub(super) schema: Value,
    pub(super) effective: Value,
}

/// A value as JSON: a date as text, a number that JSON cannot express as null.
pub(super) fn json_of(value: &DeValue<'_>) -> Value {
    match value {
        DeValue::String(text) => text.as_ref().into(),
        DeValue::Integer(digits) => {
            i64::from_str_radix(digits.as_str(), digits.radix()).ok().into()
        }
        DeValue::Float(digits) => {
            digits.as_str().parse::<f64>().map_or_else(|_| digits.as_str().into(), Value::from)
        }
        DeValue::Boolean(flag) => (*flag).into(),
        DeValue::Datetime(date) => date.to_string().into(),
        DeValue::Array(items) => items.iter().map(|item| json_of(item.get_ref())).collect(),
        DeValue::Table(table) => table
            .iter()
            .map(|(key, value)| (key.get_ref().to_string(), json_of(value.get_ref())))
            .collect(),
    }
}

/// A value as an error names it, after `not`.
pub(super) fn found(value: &DeValue<'_>) -> String {
    match value {
        DeValue::String(text) => format!("\"{text}\""),
        DeValue::Integer(digits) => digits.as_str().to_owned(),
        DeValue::Float(digits) => digits.as_str().to_owned(),
        DeValue::Boolean(flag) => flag.to_string(),
        DeValue::Datetime(_) => "a date".to_owned(),
        DeValue::Array(_) => "a list".to_owned(),
        DeValue::Table(_) => "a table".to_owned(),
    }
}
