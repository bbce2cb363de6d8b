//! The event types: the list of them, and their names in schemas and filters.
//!
//! Invariant: a webhook may newly subscribe to types of the catalogue alone; deliveries may also
//! have types that were removed from it, and that of a test.

use bytes::Bytes;
use http::header::IF_NONE_MATCH;
use serde_json::{Value, json};
use weir_common::http_server::reply::Reply;

use crate::api::dto::event_type::{EventTypeList, EventTypeView};
use crate::api::dto::{DELIVERED, SUBSCRIBABLE};
use crate::api::{ApiRequest, entity_tag, json};
use crate::catalogue::Catalogue;
use crate::domain::event::EventType;

/// The names of types.
pub(super) struct TypeNames<'c> {
    pub(super) catalogue: &'c Catalogue,
    /// The types that were used and are in the catalogue no more.
    pub(super) retired: Vec<EventType>,
    /// Retired types that the webhook of the request has, and may keep.
    pub(super) kept: Vec<EventType>,
}

impl<'c> TypeNames<'c> {
    /// Those of the catalogue, and of the types that were ever `used`.
    pub(super) fn of(catalogue: &'c Catalogue, used: Vec<EventType>) -> Self {
        let mut retired = used;
        let is_ours = |one| one == EventType::PING || EventType::OPERATORS.contains(&one);
        retired.retain(|one| !is_ours(*one) && catalogue.find(one.name()).is_none());
        Self { catalogue, retired, kept: Vec::new() }
    }

    /// The types that a delivery may have.
    pub(super) fn delivered(&self) -> impl Iterator<Item = EventType> {
        let current = self.catalogue.types().iter().map(|entry| entry.kind);
        current.chain([EventType::PING]).chain(self.retired.iter().copied())
    }

    fn subscribable(&self) -> impl Iterator<Item = &'static str> {
        let current = self.catalogue.types().iter().map(|entry| entry.kind);
        current.chain(self.kept.iter().copied()).map(EventType::name)
    }

    /// Replaces what stands for names in a schema.
    pub(super) fn fill(&self, schema: &mut Value) {
        match schema {
            Value::Object(members) => {
                let names: Option<Vec<&str>> = match members.get("format").and_then(Value::as_str) {
                    Some(SUBSCRIBABLE) => Some(self.subscribable().collect()),
                    Some(DELIVERED) => Some(self.delivered().map(EventType::name).collect()),
                    _ => None,
                };
                if let Some(names) = names {
                    members.remove("format");
                    members.insert("enum".to_owned(), json!(names));
                }
                members.values_mut().for_each(|below| self.fill(below));
            }
            Value::Array(items) => items.iter_mut().for_each(|below| self.fill(below)),
            _ => {}
        }
    }
}

pub(super) fn list(request: &ApiRequest<'_>) -> Reply {
    let current = request.types.catalogue.types().iter().map(EventTypeView::of);
    let retired = request.types.retired.iter().map(|one| EventTypeView::retired(*one));
    let listed = json(200, &EventTypeList { data: current.chain(retired).collect() });
    let tag = entity_tag::of(&listed.body);
    let known = request.call.headers.get_all(IF_NONE_MATCH);
    let known =
        known.iter().filter_map(|value| value.to_str().ok()).flat_map(|list| list.split(','));
    let is_known =
        known.map(str::trim).any(|one| one == "*" || one.trim_start_matches("W/") == tag);
    let reply = match is_known {
        true => Reply { status: 304, headers: Vec::new(), body: Bytes::new(), rest: None },
        false => listed,
    };
    reply.with("etag", tag)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    #[test]
    fn a_removed_type_is_delivered_and_not_subscribable() {
        let catalogue = Catalogue::shipped();
        let used =
            ["user.created", "webhook.ping", "endpoint.paused", "order.paid"].map(EventType::new);
        let types = TypeNames::of(&catalogue, used.into());
        let mut schema = json!({"items": [
            {"type": "string", "format": SUBSCRIBABLE},
            {"type": "string", "format": DELIVERED},
            {"type": "string", "format": "date-time"},
        ]});
        types.fill(&mut schema);
        let names = |at: usize| schema["items"][at]["enum"].as_array().map(Vec::len);
        assert_eq!((names(0), names(1), names(2)), (Some(11), Some(13), None));
        assert_eq!(schema["items"][1]["enum"][12], "order.paid");
        assert_eq!(schema["items"][2]["format"], "date-time");
        let kept = TypeNames { kept: vec![EventType::new("order.paid")], ..types };
        let mut schema = json!({"type": "string", "format": SUBSCRIBABLE});
        kept.fill(&mut schema);
        assert_eq!(schema["enum"][11], "order.paid", "a webhook that has it may keep it");
    }
}
