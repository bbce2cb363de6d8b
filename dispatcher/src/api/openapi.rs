//! The OpenAPI document, generated from the table of operations (`routes`).

use std::collections::BTreeSet;
use std::sync::LazyLock;

use schemars::SchemaGenerator;
use schemars::generate::SchemaSettings;
use serde_json::{Map, Value, json};

use crate::api::dto::DELIVERED;
use crate::api::event_types::TypeNames;
use crate::api::query::{LIMIT_DEFAULT, LIMIT_MAX, STATUSES};
use crate::api::routes::table::OPERATIONS;
use crate::api::routes::{Operation, ParameterKind};
use crate::catalogue::{Identifiers, TypeEntry};
use crate::domain::delivery::DeliveryState;
use crate::domain::outcome::OutcomeClass;

/// The OpenAPI document, with these event types.
pub(super) fn document(types: &TypeNames<'_>) -> Value {
    static DOCUMENT: LazyLock<Value> = LazyLock::new(make);
    let mut document = DOCUMENT.clone();
    types.fill(&mut document);
    let entries = types.catalogue.types().iter();
    let webhooks = entries.map(|entry| {
        (entry.kind.name().to_owned(), delivered(entry, &types.catalogue.identifiers))
    });
    if let Value::Object(members) = &mut document {
        members.insert("webhooks".to_owned(), webhooks.collect::<Map<_, _>>().into());
    }
    document
}

/// What receivers get for an event of a type.
fn delivered(entry: &TypeEntry, identifiers: &Identifiers) -> Value {
    let name = entry.kind.name();
    let mut data = json!({"type": "object"});
    if let Some(schema) = &entry.schema {
        data = schema.source.clone();
        // With an identifier, its references stay within it.
        if let Value::Object(members) = &mut data {
            members.entry("$id").or_insert_with(|| format!("urn:weir:event-type:{name}").into());
        }
    }
    let time = json!({"type": "string", "format": "date-time"});
    let tenant = if entry.tenant_required { json!("string") } else { json!(["string", "null"]) };
    let envelope = json!({
        "type": "object",
        "required": ["id", "type", "workspace_id", "tenant_id", "created_at", "data"],
        "properties": {
            "id": {"type": "string", "description": "The same in every delivery of the event."},
            "type": {"const": name},
            "workspace_id": {"type": "string"},
            "tenant_id": {"type": tenant},
            "created_at": time,
            "data": data,
        },
    });
    let example = json!({"data": {"value": {
        "id": "evt_example",
        "type": name,
        "workspace_id": identifiers.workspaces.example(),
        "tenant_id": entry.tenant_required.then(|| identifiers.tenants.example()),
        "created_at": "2030-01-01T00:00:00.000Z",
        "data": entry.example,
    }}});
    let content = json!({"application/json": {"schema": envelope, "examples": example}});
    json!({"post": {
        "summary": entry.description,
        "requestBody": {"required": true, "content": content},
        "responses": {"2XX": {"description": "The delivery succeeded. Any other is retried."}},
        "security": [],
    }})
}

/// Requests and responses differ in which members are optional.
struct Generators {
    request: SchemaGenerator,
    response: SchemaGenerator,
}

impl Generators {
    fn new() -> Self {
        let settings = || {
            SchemaSettings::draft2020_12().with(|settings| {
                settings.definitions_path = "/components/schemas".into();
                settings.meta_schema = None;
            })
        };
        let request = settings().for_deserialize().into_generator();
        Self { request, response: settings().for_serialize().into_generator() }
    }
}

fn make() -> Value {
    let mut generators = Generators::new();
    let mut paths = Map::new();
    for operation in &OPERATIONS {
        let path = paths.entry(operation.path).or_insert_with(|| Value::Object(Map::new()));
        if let Value::Object(path) = path {
            let method = operation.method.as_str().to_ascii_lowercase();
            path.insert(method, described(operation, &mut generators));
        }
    }
    let mut schemas = generators.response.take_definitions(true);
    schemas.extend(generators.request.take_definitions(true));
    schemas.insert("Problem".to_owned(), problem());
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Weir: webhooks",
            "version": "1",
            "description": "Webhooks of a workspace, and their deliveries.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    })
}

fn described(operation: &Operation, generators: &mut Generators) -> Value {
    let mut described = json!({
        "operationId": operation.id,
        "summary": operation.summary,
        "parameters": parameters(operation),
    });
    let mut put = |name: &str, value: Value| {
        if let Value::Object(members) = &mut described {
            members.insert(name.to_owned(), value);
        }
    };
    if let Some(request) = &operation.request {
        let schema = (request.schema)(&mut generators.request).to_value();
        let content = json!({"application/json": {"schema": schema}});
        put("requestBody", json!({"required": !request.optional, "content": content}));
    }
    let mut success = json!({"description": operation.answer});
    if let (Some(schema), Value::Object(success)) = (operation.response, &mut success) {
        let schema = schema(&mut generators.response).to_value();
        success.insert("content".to_owned(), json!({operation.media: {"schema": schema}}));
    }
    let mut responses = json!({
        operation.status.to_string(): success,
        "default": {
            "description": "The problem (RFC 9457).",
            "content": {"application/problem+json": {
                "schema": {"$ref": "#/components/schemas/Problem"},
            }},
        },
    });
    if let (Some(other), Value::Object(responses)) = (&operation.other, &mut responses) {
        let schema = (other.response)(&mut generators.response).to_value();
        let content = json!({operation.media: {"schema": schema}});
        let described = json!({"description": other.answer, "content": content});
        responses.insert(other.status.to_string(), described);
    }
    put("responses", responses);
    match operation.scope {
        Some(scope) => {
            put("security", json!([{"token": []}]));
            put("description", format!("Requires the scope `{}`.", scope.name()).into());
        }
        None => put("security", json!([])),
    }
    described
}

fn parameters(operation: &Operation) -> Vec<Value> {
    let names: BTreeSet<&str> = operation
        .path
        .split('{')
        .skip(1)
        .filter_map(|rest| rest.split_once('}').map(|(name, _)| name))
        .collect();
    let in_path = names.into_iter().map(|name| {
        let schema = json!({"type": "string", "pattern": "^[A-Za-z0-9_-]{1,64}$"});
        json!({"name": name, "in": "path", "required": true, "schema": schema})
    });
    let in_query = operation.query.iter().map(|parameter| {
        json!({
            "name": parameter.name,
            "in": "query",
            "description": parameter.description,
            "schema": schema_of(parameter.kind),
        })
    });
    in_path.chain(in_query).collect()
}

fn schema_of(kind: ParameterKind) -> Value {
    match kind {
        ParameterKind::Text => json!({"type": "string"}),
        ParameterKind::Time => json!({"type": "string", "format": "date-time"}),
        ParameterKind::State => {
            json!({"type": "string", "enum": DeliveryState::ALL.map(|one| one.to_string())})
        }
        ParameterKind::Type => {
            json!({"type": "string", "format": DELIVERED})
        }
        ParameterKind::Outcome => {
            json!({"type": "string", "enum": OutcomeClass::ALL.map(OutcomeClass::name)})
        }
        ParameterKind::Status => {
            json!({"type": "integer", "minimum": STATUSES.start(), "maximum": STATUSES.end()})
        }
        ParameterKind::Order => {
            json!({"type": "string", "enum": ["newest", "oldest"], "default": "newest"})
        }
        ParameterKind::Limit => json!({
            "type": "integer", "minimum": 1, "maximum": LIMIT_MAX, "default": LIMIT_DEFAULT,
        }),
    }
}

/// The problem object of RFC 9457, with our members.
fn problem() -> Value {
    let error = json!({
        "type": "object",
        "required": ["detail"],
        "properties": {
            "index": {"type": "integer", "description": "Index of the event in a batch."},
            "pointer": {"type": "string", "description": "JSON pointer into the body (RFC 6901)."},
            "parameter": {"type": "string", "description": "Name of the query parameter."},
            "detail": {"type": "string"},
        },
    });
    json!({
        "type": "object",
        "required": ["type", "title", "status", "detail"],
        "properties": {
            "type": {"type": "string", "format": "uri", "description": "Stable, for programs."},
            "title": {"type": "string"},
            "status": {"type": "integer"},
            "detail": {"type": "string"},
            "errors": {"type": "array", "items": error, "description": "The errors, 100 at most."},
            "errors_count": {"type": "integer", "description": "The number of all errors."},
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::query::Query;
    use crate::api::routes::table::DELIVERIES_QUERY;
    use crate::api::routes::{names, request_schema};
    use crate::catalogue::Catalogue;
    use crate::domain::public_id::PublicIds;

    fn shipped() -> Value {
        document(&TypeNames::of(&Catalogue::shipped(), Vec::new()))
    }

    fn operation_of(id: &str) -> &'static Operation {
        OPERATIONS.iter().find(|one| one.id == id).expect("there is one")
    }

    #[test]
    fn every_operation_is_described_at_its_path() {
        let document = shipped();
        assert_eq!(document["openapi"], "3.1.0");
        let paths = document["paths"].as_object().expect("paths");
        let count: usize =
            paths.values().filter_map(Value::as_object).map(|methods| methods.len()).sum();
        assert_eq!(count, OPERATIONS.len());
        let ids: BTreeSet<&str> = OPERATIONS.iter().map(|one| one.id).collect();
        assert_eq!(ids.len(), OPERATIONS.len());
        for operation in &OPERATIONS {
            let described = &paths[operation.path][operation.method.as_str().to_ascii_lowercase()];
            assert_eq!(described["operationId"], operation.id);
            let success = &described["responses"][operation.status.to_string()];
            assert_eq!(success.get("content").is_some(), operation.response.is_some());
            if let Some(other) = &operation.other {
                let success = &described["responses"][other.status.to_string()];
                assert!(success["content"][operation.media]["schema"].is_object());
            }
            assert_eq!(described.get("requestBody").is_some(), operation.request.is_some());
            assert_eq!(described["security"] == json!([]), operation.scope.is_none());
        }
    }

    #[test]
    fn every_reference_resolves() {
        fn references(value: &Value, found: &mut Vec<String>) {
            match value {
                Value::Object(members) => {
                    found.extend(members.get("$ref").and_then(Value::as_str).map(str::to_owned));
                    members.values().for_each(|value| references(value, found));
                }
                Value::Array(items) => items.iter().for_each(|value| references(value, found)),
                _ => {}
            }
        }
        let mut found = Vec::new();
        references(&shipped(), &mut found);
        assert!(found.len() >= OPERATIONS.len(), "{found:?}");
        for reference in found {
            let pointer = reference.strip_prefix('#').expect("a reference into the document");
            assert!(shipped().pointer(pointer).is_some(), "{reference}");
        }
    }

    #[test]
    fn required_members_are_described_as_they_are_validated() {
        for operation in &OPERATIONS {
            let Some(checked) = request_schema(operation) else { continue };
            let described =
                &shipped()["paths"][operation.path][operation.method.as_str().to_ascii_lowercase()];
            let schema = &described["requestBody"]["content"]["application/json"]["schema"];
            let reference = schema["$ref"].as_str().and_then(|text| text.strip_prefix('#'));
            let document = shipped();
            let schema = document.pointer(reference.expect("a reference")).expect("a schema");
            assert_eq!(schema.get("required"), checked.get("required"), "{}", operation.id);
            assert_eq!(schema["additionalProperties"], checked["additionalProperties"]);
        }
    }

    #[test]
    fn a_parameter_is_described_as_it_is_parsed() {
        let catalogue = Catalogue::shipped();
        let types = TypeNames::of(&catalogue, Vec::new());
        let mut described = parameters(operation_of("listDeliveries"));
        described.iter_mut().for_each(|one| types.fill(one));
        let schema = |name: &str| {
            let found = described.iter().find(|one| one["name"] == name);
            &found.expect("it is described")["schema"]
        };
        let is_valid = |text: &str| {
            let ids = PublicIds::new([7; 32]);
            Query::read(Some(text), &names(DELIVERIES_QUERY)).deliveries(&ids, &types).is_ok()
        };
        for name in ["state", "type", "outcome", "order"] {
            let words = schema(name)["enum"].as_array().expect("words");
            assert!(words.len() >= 2);
            for word in words {
                assert!(is_valid(&format!("{name}={}", word.as_str().expect("a word"))), "{word}");
            }
        }
        let (least, most) = (&schema("status")["minimum"], &schema("status")["maximum"]);
        assert!(is_valid(&format!("status={least}")) && is_valid(&format!("status={most}")));
        let (least, most) = (&schema("limit")["minimum"], &schema("limit")["maximum"]);
        assert!(is_valid(&format!("limit={least}")) && is_valid(&format!("limit={most}")));
        assert!(!is_valid("limit=0") && !is_valid(&format!("limit={most}0")));
        assert_eq!(schema("since")["format"], "date-time");
    }

    #[test]
    fn the_document_mentions_no_setting_and_no_internal_outcome() {
        let text = shipped().to_string();
        for word in ["48 hours", "internal_"] {
            assert!(!text.contains(word), "{word}");
        }
    }

    #[test]
    fn each_path_parameter_is_described_once() {
        for operation in &OPERATIONS {
            let names: Vec<String> = parameters(operation)
                .iter()
                .map(|one| one["name"].as_str().expect("a name").to_owned())
                .collect();
            let distinct: BTreeSet<&String> = names.iter().collect();
            assert_eq!(distinct.len(), names.len(), "{}", operation.id);
            for name in ["workspace", "id"] {
                let in_path = operation.path.contains(&format!("{{{name}}}"));
                assert_eq!(names.iter().any(|one| one == name), in_path, "{}", operation.id);
            }
        }
    }

    #[test]
    fn the_schema_of_a_webhook_has_no_secret() {
        let schemas = &shipped()["components"]["schemas"];
        let fields = |name: &str| -> Vec<String> {
            let properties = schemas[name]["properties"].as_object().expect("properties");
            properties.keys().cloned().collect()
        };
        let options = [
            "description",
            "metadata",
            "headers",
            "answers",
            "requests_per_minute",
            "client_certificate",
            "public_key",
        ];
        let shown = ["id", "url", "events", "created_at", "state", "disabled_reason"];
        assert_eq!(fields("Webhook"), [&shown[..], &options].concat());
        let created = ["id", "url", "secret", "events", "created_at", "state"];
        assert_eq!(fields("CreatedWebhook"), [&created[..], &options].concat());
        assert_eq!(schemas["EventType"]["enum"].as_array().map(Vec::len), Some(11));
    }
}
