//! The body of the list of event types.

use schemars::JsonSchema;
use serde::Serialize;
use serde_json::Value;

use crate::api::dto::Kind;
use crate::catalogue::TypeEntry;
use crate::domain::event::EventType;

/// The event types.
#[derive(Debug, Serialize, JsonSchema)]
pub(in crate::api) struct EventTypeList {
    /// The types: those of the catalogue, and then those that were removed from it.
    pub(in crate::api) data: Vec<EventTypeView>,
}

/// A type of events.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "EventTypeDescription")]
pub(in crate::api) struct EventTypeView {
    /// The name.
    pub(in crate::api) name: Kind,
    /// Whether it was removed: there are no new events, but older ones may be delivered.
    pub(in crate::api) retired: bool,
    /// When such an event happens; null for a retired type.
    pub(in crate::api) description: Option<String>,
    /// Whether every such event names a tenant.
    pub(in crate::api) tenant_required: bool,
    /// The JSON Schema (2020-12) of `data`; null if any object is valid.
    pub(in crate::api) schema: Option<Value>,
    /// An example of `data`; null for a retired type.
    pub(in crate::api) example: Option<Value>,
    /// The fields of `data` that are accepted although they look like secrets, as JSON pointers.
    pub(in crate::api) allowed_fields: Vec<String>,
}

impl EventTypeView {
    pub(in crate::api) fn of(entry: &TypeEntry) -> Self {
        Self {
            name: Kind(entry.kind),
            retired: false,
            description: Some(entry.description.clone()),
            tenant_required: entry.tenant_required,
            schema: entry.schema.as_ref().map(|schema| schema.source.clone()),
            example: Some(entry.example.clone()),
            allowed_fields: entry.allowed.pointers(),
        }
    }

    pub(in crate::api) fn retired(kind: EventType) -> Self {
        Self {
            name: Kind(kind),
            retired: true,
            description: None,
            tenant_required: false,
            schema: None,
            example: None,
            allowed_fields: Vec::new(),
        }
    }
}
