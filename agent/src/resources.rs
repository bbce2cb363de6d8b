//! The resources: the event catalogue, the API's description, functions that verify deliveries.

use rmcp::model::{Resource, ResourceContents};
use weir_client::call::CallError;
use weir_client::client::Client;

const EVENT_TYPES: &str = "weir://event-types";
const OPENAPI: &str = "weir://openapi.json";

/// Functions that verify a delivery, which tests run against real, forged and stale ones.
const VERIFIERS: [(&str, &str, &str, &str); 5] = [
    (
        "weir://verify",
        "How to verify a delivery",
        "text/markdown",
        include_str!("../../docs/verify.md"),
    ),
    (
        "weir://verify/python",
        "Verifier in Python",
        "text/x-python",
        include_str!("../../docs/verify/verify.py"),
    ),
    (
        "weir://verify/node",
        "Verifier for Node",
        "text/javascript",
        include_str!("../../docs/verify/verify.mjs"),
    ),
    (
        "weir://verify/go",
        "Verifier in Go",
        "text/x-go",
        include_str!("../../docs/verify/verify.go"),
    ),
    (
        "weir://verify/rust",
        "Verifier in Rust",
        "text/x-rust",
        include_str!("../../docs/verify/verify.rs"),
    ),
];

/// Every resource.
pub(crate) fn all() -> Vec<Resource> {
    let mut all = vec![
        Resource::new(EVENT_TYPES, "event-types")
            .with_title("Event types")
            .with_description("What webhooks may subscribe to, with schemas and examples.")
            .with_mime_type("application/json"),
        Resource::new(OPENAPI, "openapi.json")
            .with_title("OpenAPI document")
            .with_description("The API that the tools call.")
            .with_mime_type("application/json"),
    ];
    all.extend(VERIFIERS.iter().map(|(uri, title, kind, _)| {
        let name = uri.rsplit_once('/').map_or(*uri, |(_, name)| name);
        Resource::new(*uri, name).with_title(*title).with_mime_type(*kind)
    }));
    all
}

/// What a resource contains; none if there is none at `uri`.
pub(crate) async fn read(
    client: &Client,
    uri: &str,
) -> Result<Option<ResourceContents>, CallError> {
    let json = |text: String| ResourceContents::text(text, uri).with_mime_type("application/json");
    if let Some((_, _, kind, text)) = VERIFIERS.iter().find(|one| one.0 == uri) {
        return Ok(Some(ResourceContents::text(*text, uri).with_mime_type(*kind)));
    }
    Ok(match uri {
        EVENT_TYPES => Some(json(serde_json::json!(client.event_types().await?.data).to_string())),
        OPENAPI => Some(json(client.openapi().await?.to_string())),
        _ => None,
    })
}
