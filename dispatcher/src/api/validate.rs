//! Validates a body against its JSON Schema, and reports every error at its JSON pointer.
//! Deserialising would stop at the first error.
//!
//! Invariant: it implements the keywords that our schemas use; a test refuses a schema with others.

use serde_json::Value;

use crate::http_errors::{ValidationError, ValidationErrors, step};

/// Adds to `errors` each violation of `schema` by `value`, which is at `pointer`.
pub(super) fn check(schema: &Value, value: &Value, pointer: &str, errors: &mut ValidationErrors) {
    if let Some(choices) = choices(schema) {
        return any_of(schema, choices, value, pointer, errors);
    }
    if let Some(kinds) = schema.get("type").filter(|kinds| !is_any(kinds, value)) {
        return errors.at(pointer, format!("must be {}", named(kinds)));
    }
    match value {
        Value::Object(members) => object(schema, members, pointer, errors),
        Value::Array(items) => array(schema, items, pointer, errors),
        Value::String(text) => string(schema, text, pointer, errors),
        Value::Number(number) => integer(schema, number.as_u64(), pointer, errors),
        Value::Null | Value::Bool(_) => {}
    }
}

/// Alternatives of `anyOf` or `oneOf`. Ours never overlap, so both keywords mean the same.
fn choices(schema: &Value) -> Option<&Vec<Value>> {
    ["anyOf", "oneOf"].iter().find_map(|word| schema.get(word)).and_then(Value::as_array)
}

fn any_of(
    schema: &Value,
    of: &[Value],
    value: &Value,
    pointer: &str,
    errors: &mut ValidationErrors,
) {
    let is_valid = |choice: &Value| {
        let mut tried = ValidationErrors::unlisted();
        check(choice, value, pointer, &mut tried);
        tried.is_empty()
    };
    if !of.iter().any(is_valid) {
        unknown(value.as_str().unwrap_or_default(), &words(schema), pointer, errors);
    }
}

/// The strings that a schema lists (`enum`, `const`).
fn words(schema: &Value) -> Vec<&str> {
    let below = choices(schema).into_iter().flatten().flat_map(words);
    let constant = schema.get("const").and_then(Value::as_str);
    strings(schema.get("enum")).chain(constant).chain(below).collect()
}

fn unknown(text: &str, known: &[&str], pointer: &str, errors: &mut ValidationErrors) {
    errors.add_unknown(text, known.iter().copied(), |hint| {
        ValidationError::at(pointer, format!("is not a known value{hint}"))
    });
}

fn is_any(kinds: &Value, value: &Value) -> bool {
    match kinds {
        Value::Array(kinds) => kinds.iter().any(|kind| is_any(kind, value)),
        kind => kind.as_str() == Some(kind_of(value)),
    }
}

fn kind_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(number) if number.is_u64() => "integer",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

fn named(kinds: &Value) -> String {
    match kinds {
        Value::Array(kinds) => kinds.iter().map(named).collect::<Vec<_>>().join(" or "),
        kind => match kind.as_str().unwrap_or_default() {
            "array" => "an array".to_owned(),
            "object" => "an object".to_owned(),
            "null" => "null".to_owned(),
            "integer" => "a whole number".to_owned(),
            other => format!("a {other}"),
        },
    }
}

fn object(
    schema: &Value,
    members: &serde_json::Map<String, Value>,
    pointer: &str,
    errors: &mut ValidationErrors,
) {
    let known = schema.get("properties").and_then(Value::as_object);
    let others = schema.get("additionalProperties").filter(|others| others.is_object());
    let most = schema.get("maxProperties").and_then(Value::as_u64).unwrap_or(u64::MAX);
    if members.len() as u64 > most {
        errors.at(pointer, format!("must have at most {most} entries"));
    }
    for name in strings(schema.get("required")) {
        if !members.contains_key(name) {
            errors.at(pointer.to_owned() + &step(name), "is missing");
        }
    }
    for (name, value) in members {
        let pointer = pointer.to_owned() + &step(name);
        if let Some(names) = schema.get("propertyNames") {
            string(names, name, &pointer, errors);
        }
        match known.and_then(|known| known.get(name)).or(others) {
            Some(schema) => check(schema, value, &pointer, errors),
            None => {
                let names = known.into_iter().flatten().map(|(name, _)| name.as_str());
                errors.add_unknown(name, names, |hint| {
                    ValidationError::at(pointer, format!("is unknown{hint}"))
                });
            }
        }
    }
}

fn array(schema: &Value, items: &[Value], pointer: &str, errors: &mut ValidationErrors) {
    let least = schema.get("minItems").and_then(Value::as_u64).unwrap_or(0);
    if (items.len() as u64) < least {
        errors.at(pointer, format!("must have at least {least} entries"));
    }
    let most = schema.get("maxItems").and_then(Value::as_u64).unwrap_or(u64::MAX);
    if items.len() as u64 > most {
        errors.at(pointer, format!("must have at most {most} entries"));
    }
    let unique = schema.get("uniqueItems") == Some(&Value::Bool(true));
    let mut seen = std::collections::HashSet::new();
    // Those beyond the most have their error already.
    let checked = usize::try_from(most).unwrap_or(usize::MAX);
    for (place, item) in items.iter().enumerate().take(checked) {
        let pointer = format!("{pointer}/{place}");
        if let Some(schema) = schema.get("items") {
            check(schema, item, &pointer, errors);
        }
        if unique && !seen.insert(item.to_string()) {
            errors.at(pointer, "appears twice");
        }
    }
}

fn string(schema: &Value, text: &str, pointer: &str, errors: &mut ValidationErrors) {
    let words = words(schema);
    if !words.is_empty() && !words.contains(&text) {
        unknown(text, &words, pointer, errors);
    }
    let most = schema.get("maxLength").and_then(Value::as_u64).unwrap_or(u64::MAX);
    if text.chars().count() as u64 > most {
        errors.at(pointer, format!("must have at most {most} characters"));
    }
}

fn integer(schema: &Value, number: Option<u64>, pointer: &str, errors: &mut ValidationErrors) {
    let bound = |word| schema.get(word).and_then(Value::as_u64);
    let (least, most) = (bound("minimum").unwrap_or(0), bound("maximum").unwrap_or(u64::MAX));
    if number.is_some_and(|number| !(least..=most).contains(&number)) {
        errors.at(pointer, format!("must be from {least} to {most}"));
    }
}

fn strings(value: Option<&Value>) -> impl Iterator<Item = &str> {
    value.and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::api::event_types::TypeNames;
    use crate::api::routes::request_schema;
    use crate::api::routes::table::OPERATIONS;
    use crate::catalogue::Catalogue;

    fn check(value: &Value) -> Vec<String> {
        check_for("createWebhook", value)
    }

    fn check_for(id: &str, value: &Value) -> Vec<String> {
        errors_of(id, value).pointers()
    }

    fn errors_of(id: &str, value: &Value) -> ValidationErrors {
        let operation = OPERATIONS.iter().find(|one| one.id == id);
        let schema = operation.and_then(request_schema).expect("it has a body");
        let (mut schema, catalogue) = (schema.clone(), Catalogue::shipped());
        TypeNames::of(&catalogue, Vec::new()).fill(&mut schema);
        let mut errors = ValidationErrors::default();
        super::check(&schema, value, "", &mut errors);
        errors
    }

    #[test]
    fn a_valid_body_has_no_errors() {
        let good = json!({"url": "https://example.com", "events": ["user.created"]});
        assert_eq!(check(&good), [""; 0]);
    }

    #[test]
    fn every_error_is_listed_at_once() {
        let cases = [
            (json!([]), vec![""]),
            (json!({}), vec!["/url", "/events"]),
            (json!({"url": 1, "events": {}, "a/b": 0}), vec!["/url", "/events", "/a~1b"]),
            (json!({"url": "x", "events": []}), vec!["/events"]),
            (
                json!({"url": null, "events": ["user.created", 7, "user.crated", "user.created"]}),
                vec!["/url", "/events/1", "/events/2", "/events/3"],
            ),
            (
                json!({"url": "x".repeat(2_049), "events": ["webhook.ping"]}),
                vec!["/url", "/events/0"],
            ),
        ];
        for (value, pointers) in cases {
            assert_eq!(check(&value), pointers, "{value}");
        }
    }

    #[test]
    fn of_many_unknown_types_all_are_counted_and_only_the_first_have_suggestions() {
        let names: Vec<_> = (0..980).map(|nth| format!("user.craeted{}", nth % 7)).collect();
        let errors = errors_of("changeWebhook", &json!({"events": names}));
        assert!(errors.count() >= 980, "{}", errors.count());
        let details: Vec<_> = errors.listed().map(ToString::to_string).collect();
        let suggested = details.iter().filter(|text| text.contains("did you mean")).count();
        assert_eq!((details.len(), suggested), (100, 10), "{details:?}");
    }

    #[test]
    fn entries_beyond_the_most_have_one_error_for_all() {
        let errors = errors_of("redeliverMany", &json!({"deliveries": vec![7; 5_000]}));
        // None of a hundred is a string, and all but the first appear twice.
        assert_eq!(errors.count(), 1 + 100 + 99);
    }

    #[test]
    fn an_optional_member_may_be_null_and_is_validated_otherwise() {
        let check = |value| check_for("redeliverMany", &value);
        assert_eq!(check(json!({"state": "delivered", "type": null, "webhook": "x"})), [""; 0]);
        let wrong = json!({"state": "in_flight", "type": "x", "webhook": 1, "since": []});
        assert_eq!(check(wrong), ["/state", "/type", "/webhook", "/since"]);
        assert_eq!(check(json!({"state": 7, "stat": 1})), ["/state", "/stat"]);
        let ids = |count: usize| (0..count).map(|nth| json!(nth.to_string())).collect::<Vec<_>>();
        assert_eq!(check(json!({"deliveries": ids(100), "dry_run": true})), [""; 0]);
        assert_eq!(
            check(json!({"deliveries": ids(101), "dry_run": 1})),
            ["/deliveries", "/dry_run"]
        );
        let twice = json!({"deliveries": ["a", 7, "a"]});
        assert_eq!(check(twice), ["/deliveries/1", "/deliveries/2"]);
        assert_eq!(check(json!({"deliveries": []})), ["/deliveries"]);
        assert_eq!(check(json!({"status": 503, "outcome": "status_5xx"})), [""; 0]);
        for status in [json!(99), json!(1_000), json!(-503), json!(503.5), json!("503")] {
            assert_eq!(check(json!({"status": status, "outcome": "5xx"})), ["/status", "/outcome"]);
        }
    }

    #[test]
    fn an_open_object_is_validated_by_entry_and_by_name() {
        let with =
            |name: &str, value: Value| json!({"url": "x", "events": ["user.created"], name: value});
        assert_eq!(check(&with("metadata", json!({"a": "b", "": ""}))), [""; 0]);
        let wrong = json!({"a": 1, "b": null, "c": "x".repeat(257), "d".repeat(65): "e"});
        let long = format!("/metadata/{}", "d".repeat(65));
        assert_eq!(
            check(&with("metadata", wrong)),
            ["/metadata/a", "/metadata/b", "/metadata/c", &long]
        );
        let many: serde_json::Map<String, Value> =
            (0..17).map(|nth| (nth.to_string(), "x".into())).collect();
        assert_eq!(check(&with("metadata", many.into())), ["/metadata"]);
        assert_eq!(check(&with("metadata", Value::Null)), [""; 0]);
        assert_eq!(check(&with("headers", json!("x"))), ["/headers"]);
        let patch = json!({"metadata": {"a": null}, "headers": {"b": null}});
        assert_eq!(check_for("changeWebhook", &patch), [""; 0]);
    }

    #[test]
    fn our_schemas_use_only_keywords_that_are_implemented_here() {
        let known = [
            "$schema",
            "title",
            "description",
            "type",
            "properties",
            "required",
            "items",
            "enum",
            "additionalProperties",
            "anyOf",
            "oneOf",
            "const",
            "minItems",
            "maxItems",
            "uniqueItems",
            "maxLength",
            "maxProperties",
            "propertyNames",
            "minimum",
            "maximum",
            "format",
            "default",
            "examples",
        ];
        fn keywords(schema: &Value, found: &mut Vec<String>) {
            let Some(members) = schema.as_object() else { return };
            found.extend(members.keys().cloned());
            let below = members.get("properties").and_then(Value::as_object);
            below.into_iter().flatten().for_each(|(_, one)| keywords(one, found));
            choices(schema).into_iter().flatten().for_each(|one| keywords(one, found));
            for below in ["items", "additionalProperties", "propertyNames"] {
                members.get(below).into_iter().for_each(|one| keywords(one, found));
            }
        }
        for schema in OPERATIONS.iter().filter_map(request_schema) {
            assert_eq!(schema["additionalProperties"], false, "{schema}");
            let mut found = Vec::new();
            keywords(schema, &mut found);
            let unknown: Vec<_> =
                found.iter().filter(|word| !known.contains(&word.as_str())).collect();
            assert!(unknown.is_empty(), "{unknown:?} in {schema}");
        }
    }
}
