//! JSON Schemas of arguments and of results, as every client understands them: without references,
//! without types of Rust. (core)

use std::sync::Arc;

use rmcp::model::JsonObject;
use schemars::JsonSchema;
use schemars::generate::SchemaSettings;
use serde_json::{Value, json};

/// The schema of a tool's arguments: an optional member is one that may be left out.
pub(crate) fn arguments<T: JsonSchema>() -> Arc<JsonObject> {
    let mut schema = settings().into_generator().into_root_schema_for::<T>().to_value();
    simplify(&mut schema, &|object| {
        if let Some(one) = optional_type(object) {
            object.insert("type".to_owned(), one);
        }
    });
    let Value::Object(mut object) = schema else { return Arc::default() };
    for member in ["title", "description"] {
        object.shift_remove(member);
    }
    // An object without members has no `properties`, which some clients need.
    object.entry("properties").or_insert_with(|| Value::Object(JsonObject::new()));
    Arc::new(object)
}

/// The schema of a part of a result: short, since agents read it with every list of tools.
pub(crate) fn part<T: JsonSchema>() -> Value {
    let settings = settings().for_serialize();
    let mut schema = settings.into_generator().into_root_schema_for::<T>().to_value();
    simplify(&mut schema, &|object| {
        for member in ["$schema", "title", "description", "minimum"] {
            object.shift_remove(member);
        }
        if let Some(one) = optional_type(object) {
            object.insert("type".to_owned(), one);
            *object = or_null_members(Value::Object(std::mem::take(object)));
        }
    });
    schema
}

/// A schema for what may be null, in the spelling that most clients understand.
pub(crate) fn or_null(schema: Value) -> Value {
    Value::Object(or_null_members(schema))
}

fn or_null_members(schema: Value) -> JsonObject {
    JsonObject::from_iter([("anyOf".to_owned(), json!([schema, {"type": "null"}]))])
}

/// The type of what may be null; none of other schemas.
fn optional_type(object: &JsonObject) -> Option<Value> {
    let types = object.get("type")?.as_array()?;
    types.iter().find(|one| *one != "null").cloned()
}

fn settings() -> SchemaSettings {
    SchemaSettings::draft2020_12().with(|settings| settings.inline_subschemas = true)
}

/// Applies `change` to each object of a schema, and leaves out what only Rust knows.
fn simplify(schema: &mut Value, change: &impl Fn(&mut JsonObject)) {
    match schema {
        // Some clients do not know `true` as a schema.
        Value::Bool(true) => *schema = json!({}),
        Value::Object(object) => {
            let format = object.get("format").and_then(Value::as_str);
            if format.is_some_and(|one| one.starts_with("uint")) {
                object.shift_remove("format");
            }
            change(object);
            let of_schemas = ["properties", "items", "anyOf"];
            for (name, member) in object.iter_mut() {
                match member {
                    Value::Object(members) if name == "properties" => {
                        members.values_mut().for_each(|one| simplify(one, change));
                    }
                    member if of_schemas.contains(&name.as_str()) => simplify(member, change),
                    _ => {}
                }
            }
        }
        Value::Array(schemas) => schemas.iter_mut().for_each(|one| simplify(one, change)),
        _ => {}
    }
}
