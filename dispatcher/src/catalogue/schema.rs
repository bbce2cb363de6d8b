//! A JSON Schema (2020-12) of a type's data.
//!
//! # Invariants
//!
//! 1. A schema is compiled once, when it is read, and reads no other document.
//! 2. Every violation is reported at its place. The report quotes no value: values are customers'.
//!
//! Formats are asserted; `email` is wider than where this program sends mail.

use jsonschema::error::ValidationErrorKind;
use jsonschema::{Draft, PatternOptions, Validator};
use serde_json::Value;

use crate::http_errors::{ValidationError, ValidationErrors, step};

/// A schema, compiled.
#[derive(Clone, Debug)]
pub(crate) struct DataSchema {
    /// As the operator wrote it.
    pub(crate) source: Value,
    validator: Validator,
}

impl DataSchema {
    /// Compiles a schema; or says why it is none.
    pub(crate) fn new(text: &str) -> Result<Self, String> {
        let source: Value =
            serde_json::from_str(text).map_err(|why| format!("is no JSON: {why}"))?;
        if !source.is_object() {
            return Err("must be a JSON object".to_owned());
        }
        let validator = jsonschema::options()
            .with_draft(Draft::Draft202012)
            .offline()
            .should_validate_formats(true)
            .with_format("email", is_address_of_a_user)
            // Patterns take linear time, whatever backends send.
            .with_pattern_options(PatternOptions::regex())
            .build(&source);
        let validator = validator.map_err(|why| format!("is no JSON Schema: {why}"))?;
        Ok(Self { source, validator })
    }

    /// Adds the violations of the value at `pointer` to `errors`.
    pub(crate) fn check(&self, value: &Value, pointer: &str, errors: &mut ValidationErrors) {
        for error in self.validator.iter_errors(value) {
            let at = format!("{pointer}{}", error.instance_path());
            match error.kind() {
                ValidationErrorKind::Required { property } => {
                    errors.at(at + &step(property.as_str().unwrap_or_default()), "is missing");
                }
                ValidationErrorKind::AdditionalProperties { unexpected }
                | ValidationErrorKind::UnevaluatedProperties { unexpected } => {
                    for name in unexpected {
                        errors.at(at.clone() + &step(name), "is not in the schema of the type");
                    }
                }
                ValidationErrorKind::Format { format } if format == "email" => {
                    errors.at(at, "is no mail address");
                }
                _ => errors.add(|| ValidationError::at(at, error.masked_with("it").to_string())),
            }
        }
    }
}

/// Whether a text may be the mail address of a user. Weir sends it nothing, and so does not refuse
/// what a mail server once accepted.
fn is_address_of_a_user(text: &str) -> bool {
    let (user, host) = text.rsplit_once('@').unwrap_or_default();
    !user.is_empty() && !host.is_empty() && !text.contains(char::is_control)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn wrong(schema: &Value, value: &Value) -> Vec<String> {
        let mut errors = ValidationErrors::default();
        DataSchema::new(&schema.to_string()).unwrap().check(value, "/3/data", &mut errors);
        errors.pointers()
    }

    #[test]
    fn every_violation_is_reported_at_its_place() {
        let schema = json!({
            "type": "object",
            "required": ["id", "user"],
            "additionalProperties": false,
            "properties": {
                "id": {"type": "string", "pattern": "^or_"},
                "user": {"type": "object", "properties": {"email": {"format": "email"}}},
                "lines": {"type": "array", "items": {"type": "integer", "minimum": 0}},
                "a/b": {"$ref": "#/$defs/short"},
            },
            "$defs": {"short": {"type": "string", "maxLength": 2}},
        });
        assert_eq!(
            wrong(&schema, &json!({"id": "or_1", "user": {"email": "a@b.example"}})),
            [""; 0]
        );
        let value = json!({
            "id": "x", "user": {"email": "no"}, "lines": [1, -1, "2"], "a/b": "long", "m~ore": 1,
        });
        let mut found = wrong(&schema, &value);
        found.sort();
        let below = ["/a~1b", "/id", "/lines/1", "/lines/2", "/m~0ore", "/user/email"];
        assert_eq!(found, below.map(|place| format!("/3/data{place}")));
        assert_eq!(wrong(&schema, &json!({})), ["/3/data/id", "/3/data/user"]);
    }

    #[test]
    fn a_report_quotes_no_value() {
        let schema = json!({"properties": {"pin": {"maxLength": 1}, "kind": {"enum": ["a"]}}});
        let mut errors = ValidationErrors::default();
        let schema = DataSchema::new(&schema.to_string()).unwrap();
        schema.check(&json!({"pin": "hunter2", "kind": "hunter2"}), "", &mut errors);
        assert_eq!(errors.count(), 2);
        assert!(!format!("{errors:?}").contains("hunter2"), "{errors:?}");
    }

    #[test]
    fn a_schema_is_an_object_of_2020_12_that_refers_to_itself_alone() {
        for (text, why) in [
            ("{", "is no JSON"),
            ("true", "must be a JSON object"),
            (r#"{"type": "text"}"#, "is no JSON Schema"),
            (r#"{"$ref": "https://schemas.example.com/user.json"}"#, "is no JSON Schema"),
            (r##"{"$ref": "file:///etc/passwd"}"##, "is no JSON Schema"),
            (r##"{"$ref": "#/$defs/none"}"##, "is no JSON Schema"),
            (r#"{"pattern": "(a)\\1"}"#, "is no JSON Schema"),
        ] {
            let refused = DataSchema::new(text).unwrap_err();
            assert!(refused.starts_with(why), "{text}: {refused}");
        }
    }
}
