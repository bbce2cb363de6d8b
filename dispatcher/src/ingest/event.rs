//! Validates one event, and builds the envelope that is stored and sent.
//!
//! # Invariants
//!
//! 1. `data` is sent byte for byte as it was received: numbers of any size, spaces, escapes.
//! 2. A valid event has the members and identifiers of its type, and no secret in its data.
//! 3. The digest depends only on the sender's values: neither on the time nor on an identifier that
//!    the dispatcher assigned.

use bytes::Bytes;
use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;
use sha2::{Digest, Sha256};
use weir_common::identifier::{IdForm, is_identifier};
use weir_common::time::UnixTime;

use crate::catalogue::{Catalogue, Identifiers, TypeEntry, sensitive_data};
use crate::domain::challenge;
use crate::domain::event::EventType;
use crate::domain::public_id::event_id;
use crate::http_errors::{ValidationError, ValidationErrors, step};
use crate::ingest::parse::Item;
use crate::store::types::NewEvent;

/// The longest identifier, without its `evt_`.
const ID_REST_MAX: usize = 60;

const MEMBERS: [&str; 5] = ["type", "workspace_id", "tenant_id", "data", "id"];

/// An event without errors.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ValidEvent<'a> {
    /// The identifier, where the sender chose one.
    pub(crate) id: Option<String>,
    pub(crate) kind: EventType,
    pub(crate) workspace: String,
    pub(crate) tenant: Option<String>,
    pub(crate) data: &'a str,
}

/// The result of parsing one event.
#[derive(Debug)]
pub(crate) struct ParsedEvent<'a> {
    /// The workspace, if its identifier is valid; also of an otherwise invalid event.
    pub(crate) workspace: Option<String>,
    /// The event, if it has no errors.
    pub(crate) event: Option<ValidEvent<'a>>,
}

/// Parses and validates one event; adds its errors to `errors`.
pub(crate) fn read<'a>(
    item: &Item<'a>,
    catalogue: &Catalogue,
    errors: &mut ValidationErrors,
) -> ParsedEvent<'a> {
    let before = errors.count();
    errors.set_index(item.index);
    let mut validator = Validator { item, catalogue, errors };
    let given = match serde_json::from_str::<RawEvent<'a>>(item.text) {
        Ok(given) => given,
        Err(_) if !item.text.starts_with('{') => {
            validator.wrong("", "must be an object");
            return ParsedEvent { workspace: None, event: None };
        }
        Err(error) => {
            validator.wrong("", &format!("cannot be read: {error}"));
            return ParsedEvent { workspace: None, event: None };
        }
    };
    for name in &given.unknown {
        validator.unknown(&step(name), name, MEMBERS, "is unknown");
    }
    for name in &given.twice {
        validator.wrong(&step(name), "appears twice");
    }
    let entry = validator.required("type", given.kind).and_then(|name| validator.entry(&name));
    let identifiers = &catalogue.identifiers;
    let workspaces = (&identifiers.workspaces, "identifiers.workspace_prefix");
    let workspace = validator.required("workspace_id", given.workspace);
    let workspace = workspace.filter(|text| validator.formed("/workspace_id", text, workspaces));
    let tenants = (&identifiers.tenants, "identifiers.tenant_prefix");
    let tenant = if entry.is_none_or(|entry| entry.tenant_required) {
        validator.required("tenant_id", given.tenant)
    } else {
        given.tenant.and_then(|raw| validator.text("tenant_id", raw))
    };
    let tenant = tenant.filter(|text| validator.formed("/tenant_id", text, tenants));
    let id = given.id.and_then(|raw| validator.text("id", raw));
    validator.id(id.as_deref());
    let data = validator.data(given.data, entry);
    let good = validator.errors.count() == before;
    let event = match (entry, workspace.clone(), data) {
        (Some(entry), Some(workspace), Some(data)) if good => {
            Some(ValidEvent { id, kind: entry.kind, workspace, tenant, data })
        }
        _ => None,
    };
    ParsedEvent { workspace, event }
}

struct Validator<'v, 'a> {
    item: &'v Item<'a>,
    catalogue: &'v Catalogue,
    errors: &'v mut ValidationErrors,
}

impl<'v, 'a> Validator<'v, 'a> {
    fn wrong(&mut self, below: &str, detail: &str) {
        let item = self.item;
        self.errors.add(|| error_at(item, below, detail));
    }

    /// Adds the error that `word` is none of `known`.
    fn unknown(
        &mut self,
        below: &str,
        word: &str,
        known: impl IntoIterator<Item = &'static str>,
        detail: &str,
    ) {
        let item = self.item;
        let make = |hint: &str| error_at(item, below, &format!("{detail}{hint}"));
        self.errors.add_unknown(word, known, make);
    }

    fn required(&mut self, name: &str, raw: Option<&'a RawValue>) -> Option<String> {
        if raw.is_none() {
            self.wrong(&step(name), "is missing");
        }
        self.text(name, raw?)
    }

    fn text(&mut self, name: &str, raw: &RawValue) -> Option<String> {
        let text = serde_json::from_str(raw.get()).ok();
        if text.is_none() {
            self.wrong(&step(name), "must be a string");
        }
        text
    }

    fn entry(&mut self, name: &str) -> Option<&'v TypeEntry> {
        let entry = self.catalogue.find(name);
        if entry.is_none() {
            let names = self.catalogue.types().iter().map(|one| one.kind.name());
            self.unknown("/type", name, names, "is not a known event type");
        }
        entry
    }

    /// Whether `text` is an identifier of the configured form.
    fn formed(&mut self, pointer: &str, text: &str, (form, option): (&IdForm, &str)) -> bool {
        let allowed = form.allows(text);
        if !allowed {
            self.wrong(pointer, &format!("must be {form} ({option} sets another prefix)"));
        }
        allowed
    }

    fn id(&mut self, id: Option<&str>) {
        let is_valid = |id: &str| {
            id.strip_prefix("evt_")
                .is_some_and(|rest| rest.len() <= ID_REST_MAX && is_identifier(rest))
        };
        if id.is_some_and(|id| !is_valid(id)) {
            self.wrong(
                "/id",
                "must begin with `evt_`, followed by 1 to 60 letters, digits, `_` or `-`",
            );
        }
    }

    fn data(&mut self, raw: Option<&'a RawValue>, entry: Option<&TypeEntry>) -> Option<&'a str> {
        let Some(raw) = raw else {
            self.wrong("/data", "is missing");
            return None;
        };
        if !raw.get().starts_with('{') {
            self.wrong("/data", "must be an object");
            return None;
        }
        let before = self.errors.count();
        let pointer = format!("{}/data", self.item.pointer);
        let allowed = entry.map_or(self.catalogue.allowed(), |entry| &entry.allowed);
        sensitive_data::check(raw.get(), &pointer, allowed, self.errors);
        // A text with duplicate keys or half characters has no one value to check.
        if let Some(schema) = entry.and_then(|entry| entry.schema.as_ref())
            && self.errors.count() == before
        {
            match serde_json::from_str(raw.get()) {
                Ok(value) => schema.check(&value, &pointer, self.errors),
                Err(why) => self.wrong("/data", &format!("cannot be read: {why}")),
            }
        }
        Some(raw.get())
    }
}

fn error_at(item: &Item<'_>, below: &str, detail: &str) -> ValidationError {
    ValidationError::at(format!("{}{below}", item.pointer), item.message_at(detail))
}

/// The members of an event, not yet parsed.
#[derive(Default)]
struct RawEvent<'a> {
    kind: Option<&'a RawValue>,
    workspace: Option<&'a RawValue>,
    tenant: Option<&'a RawValue>,
    data: Option<&'a RawValue>,
    id: Option<&'a RawValue>,
    unknown: Vec<String>,
    /// Members that appear more than once.
    twice: Vec<String>,
}

impl<'de: 'a, 'a> Deserialize<'de> for RawEvent<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Members;

        impl<'de> Visitor<'de> for Members {
            type Value = RawEvent<'de>;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<RawEvent<'de>, A::Error> {
                let mut given = RawEvent::default();
                while let Some(name) = map.next_key::<String>()? {
                    given.set(name, map.next_value()?);
                }
                Ok(given)
            }
        }

        deserializer.deserialize_map(Members)
    }
}

impl<'a> RawEvent<'a> {
    fn set(&mut self, name: String, raw: &'a RawValue) {
        let member = match name.as_str() {
            "type" => &mut self.kind,
            "workspace_id" => &mut self.workspace,
            "tenant_id" => &mut self.tenant,
            "data" => &mut self.data,
            "id" => &mut self.id,
            _ => return self.unknown.push(name),
        };
        if member.replace(raw).is_some() {
            self.twice.push(name);
        }
    }
}

impl ValidEvent<'_> {
    /// The event as it is stored; `random` is for the identifier if the sender chose none.
    pub(crate) fn stored(self, random: &[u8], now: UnixTime, created_at: &str) -> NewEvent {
        let tenant = self.tenant.as_deref();
        let digest = digest(self.kind, &self.workspace, tenant.unwrap_or_default(), self.data);
        let id = self.id.unwrap_or_else(|| event_id(now, random));
        let envelope = Envelope {
            id: &id,
            kind: self.kind,
            workspace: &self.workspace,
            tenant,
            created_at,
            data: self.data,
        };
        let body = envelope.json();
        NewEvent {
            id: id.into(),
            workspace: self.workspace.into(),
            kind: self.kind,
            tenant: self.tenant.map(Into::into),
            body,
            digest,
        }
    }
}

/// The contents of a test's envelope.
pub(crate) struct Sample {
    kind: EventType,
    tenant: Option<String>,
    data: String,
}

impl Sample {
    /// A ping: no tenant, empty data.
    pub(crate) fn ping() -> Self {
        Self { kind: EventType::PING, tenant: None, data: "{}".to_owned() }
    }

    /// A challenge with this value, which needs no escapes.
    pub(crate) fn challenge(value: &str) -> Self {
        let data = format!("{{\"{}\":\"{value}\"}}", challenge::MEMBER);
        Self { kind: EventType::CHALLENGE, tenant: None, data }
    }

    /// The example of a type.
    pub(crate) fn of(entry: &TypeEntry, identifiers: &Identifiers) -> Self {
        let tenant = entry.tenant_required.then(|| identifiers.tenants.example());
        Self { kind: entry.kind, tenant, data: entry.example.to_string() }
    }
}

/// The event of a test. Whatever its envelope is a sample of, its type is that of a test: filters,
/// jobs and the health of its webhook treat it as one.
pub(crate) fn test(workspace: &str, sample: &Sample, random: &[u8], now: UnixTime) -> NewEvent {
    let Sample { kind, tenant, data } = sample;
    let (id, tenant) = (event_id(now, random), tenant.as_deref());
    let created_at = &now.rfc3339();
    let envelope = Envelope { id: &id, kind: *kind, workspace, tenant, created_at, data };
    NewEvent {
        body: envelope.json(),
        digest: digest(*kind, workspace, tenant.unwrap_or_default(), data),
        id: id.into(),
        workspace: workspace.into(),
        kind: EventType::PING,
        tenant: None,
    }
}

/// The body of every delivery. Identifiers and times need no escapes; `data` is JSON already.
struct Envelope<'a> {
    id: &'a str,
    kind: EventType,
    workspace: &'a str,
    tenant: Option<&'a str>,
    created_at: &'a str,
    data: &'a str,
}

impl Envelope<'_> {
    fn json(&self) -> Bytes {
        let Self { id, workspace, created_at, data, .. } = self;
        let kind = self.kind.name();
        let tenant = self.tenant.map_or_else(|| "null".to_owned(), |text| format!("\"{text}\""));
        Bytes::from(format!(
            "{{\"id\":\"{id}\",\"type\":\"{kind}\",\"workspace_id\":\"{workspace}\",\
             \"tenant_id\":{tenant},\"created_at\":\"{created_at}\",\"data\":{data}}}"
        ))
    }
}

fn digest(kind: EventType, workspace: &str, tenant: &str, data: &str) -> [u8; 32] {
    let mut hash = Sha256::new();
    for part in [kind.name(), workspace, tenant, data] {
        // Each part with its length, so that no two events hash the same bytes.
        hash.update((part.len() as u64).to_be_bytes());
        hash.update(part.as_bytes());
    }
    hash.finalize().into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::public_id::ID_RANDOM_BYTES;

    const GOOD: &str =
        r#"{"type":"plan.changed","workspace_id":"ws_a","tenant_id":"tn_1","data":{}}"#;

    fn item(text: &str) -> Item<'_> {
        Item { pointer: "/3".to_owned(), index: Some(3), line: None, text }
    }

    fn wrong(text: &str) -> Vec<String> {
        let mut errors = ValidationErrors::default();
        let parsed = read(&item(text), &Catalogue::shipped(), &mut errors);
        assert_eq!(parsed.event.is_none(), !errors.is_empty(), "{text}");
        errors.pointers()
    }

    fn good(text: &str) -> ValidEvent<'_> {
        let mut errors = ValidationErrors::default();
        let event = read(&item(text), &Catalogue::shipped(), &mut errors).event;
        event.unwrap_or_else(|| panic!("{errors}"))
    }

    #[test]
    fn a_valid_event_is_parsed_as_it_was_sent() {
        let event = good(GOOD);
        let expected = ValidEvent {
            id: None,
            kind: EventType::new("plan.changed"),
            workspace: "ws_a".to_owned(),
            tenant: Some("tn_1".to_owned()),
            data: "{}",
        };
        assert_eq!(event, expected);
        let named = GOOD.replace("{\"type", "{\"id\":\"evt_A-z_0\",\"type");
        assert_eq!(good(&named).id.as_deref(), Some("evt_A-z_0"));
    }

    #[test]
    fn of_many_unknown_types_and_members_only_the_first_have_hints() {
        let members: String = (0..500).map(|nth| format!(",\"tpye{nth}\":0")).collect();
        let many = GOOD.replace("{}}", &format!("{{}}{members}}}"));
        for (text, events) in [(GOOD.replace("changed", "chnaged"), 500), (many, 1)] {
            let mut errors = ValidationErrors::default();
            for _ in 0..events {
                read(&item(&text), &Catalogue::shipped(), &mut errors);
            }
            let listed: Vec<_> = errors.listed().map(ToString::to_string).collect();
            let hinted = listed.iter().filter(|text| text.contains("; ")).count();
            assert_eq!((errors.count(), listed.len(), hinted), (500, 100, 10), "{listed:?}");
        }
    }

    #[test]
    fn every_error_of_an_event_is_listed() {
        let with = |from: &str, to: &str| GOOD.replace(from, to);
        let long = format!("\"data\":{{}},\"id\":\"evt_{}\"", "x".repeat(61));
        let cases = [
            ("{}".to_owned(), vec!["/3/type", "/3/workspace_id", "/3/tenant_id", "/3/data"]),
            ("[]".to_owned(), vec!["/3"]),
            ("7".to_owned(), vec!["/3"]),
            ("{\"\\ud800\":1}".to_owned(), vec!["/3"]),
            (with("plan.changed", "webhook.ping"), vec!["/3/type"]),
            (with("plan.changed", "member.role_changed"), vec!["/3/type"]),
            (with("\"plan.changed\"", "null"), vec!["/3/type"]),
            (with("ws_a", "acme"), vec!["/3/workspace_id"]),
            (with("ws_a", "ws_"), vec!["/3/workspace_id"]),
            (with("tn_1", "tn_../x"), vec!["/3/tenant_id"]),
            (with("\"tn_1\"", "7"), vec!["/3/tenant_id"]),
            (with("{}", "[]"), vec!["/3/data"]),
            (with("{}", "null"), vec!["/3/data"]),
            (with("{}", "{},\"id\":\"evt_\""), vec!["/3/id"]),
            (with("{}", "{},\"id\":\"evt_a.b\""), vec!["/3/id"]),
            (with("{}", "{},\"id\":null"), vec!["/3/id"]),
            (with("\"data\":{}", &long), vec!["/3/id"]),
            (with("{}", "{},\"da/ta\":1"), vec!["/3/da~1ta"]),
            (with("{}", "{},\"data\":{}"), vec!["/3/data"]),
            (
                with("{}", "{\"user\":{\"access_token\":\"x\"},\"jwt\":\"y\"}"),
                vec!["/3/data/user/access_token", "/3/data/jwt"],
            ),
        ];
        for (text, pointers) in cases {
            assert_eq!(wrong(&text), pointers, "{text}");
        }
    }

    #[test]
    fn the_workspace_of_an_invalid_event_is_known() {
        let text = GOOD.replace("plan.changed", "x");
        let parsed = read(&item(&text), &Catalogue::shipped(), &mut ValidationErrors::default());
        assert_eq!(parsed.workspace.as_deref(), Some("ws_a"));
    }

    #[test]
    fn user_created_has_its_required_members() {
        let event = |data: &str| GOOD.replace("plan.changed", "user.created").replace("{}", data);
        let ada =
            r#"{"user_id":"u","email":"ada@example.com","name":"Ada","via_idp":"x","more":1}"#;
        assert_eq!(wrong(&event(ada)), [""; 0]);
        assert_eq!(
            wrong(&event(r#"{"name":1,"via_idp":null}"#)),
            ["/3/data/user_id", "/3/data/email", "/3/data/name", "/3/data/via_idp"]
        );
        for address in ["ada", "@", "a@", "@b", ""] {
            let text = event(&ada.replace("ada@example.com", address));
            assert_eq!(wrong(&text), ["/3/data/email"], "{address}");
        }
    }

    #[test]
    fn data_is_sent_byte_for_byte() {
        let data = "{ \"n\" : 1e999, \"m\":123456789012345678901234567890.10, \
                    \"u\":\"\\u00e9\\ud83d\\ude00\", \
                    \"e\": \"\u{e9}\",\n\"z\":-0.0 }";
        let text = GOOD.replace("{}", data);
        let now = UnixTime(1_700_000_000_123_456);
        let event = good(&text).stored(&[7; ID_RANDOM_BYTES], now, &now.rfc3339());
        let expected = format!(
            "{{\"id\":\"{}\",\"type\":\"plan.changed\",\"workspace_id\":\"ws_a\",\
             \"tenant_id\":\"tn_1\",\"created_at\":\"2023-11-14T22:13:20.123Z\",\"data\":{data}}}",
            event.id
        );
        assert_eq!(event.body, expected.as_bytes());
        assert_eq!(event.workspace.as_ref(), "ws_a");
    }

    #[test]
    fn a_digest_depends_on_what_was_sent_and_on_nothing_else() {
        let digest = |text: &str, random: u8, now: u64| {
            let now = UnixTime(now);
            good(text).stored(&[random; ID_RANDOM_BYTES], now, &now.rfc3339()).digest
        };
        let one = digest(GOOD, 1, 1);
        assert_eq!(digest(GOOD, 2, 2), one);
        assert_eq!(digest(&GOOD.replace(",", " , "), 1, 1), one);
        for (from, to) in
            [("plan.changed", "user.deleted"), ("ws_a", "ws_b"), ("tn_1", "tn_2"), ("{}", "{ }")]
        {
            assert_ne!(digest(&GOOD.replace(from, to), 1, 1), one, "{to}");
        }
        // Moving a letter from one part to the next changes the digest.
        let moved = super::digest(EventType::new("plan.changed"), "ws_at", "n_1", "{}");
        assert_eq!(super::digest(EventType::new("plan.changed"), "ws_a", "tn_1", "{}"), one);
        assert_ne!(moved, one);
    }

    #[test]
    fn assigned_ids_sort_by_time_and_are_valid() {
        let name =
            |now: u64, random: u8| event_id(UnixTime(now * 1_000), &[random; ID_RANDOM_BYTES]);
        let times = [0, 1, 31, 32, 1_700_000_000_000, (1 << 48) - 1];
        let names: Vec<String> = times.iter().map(|now| name(*now, 255)).collect();
        assert!(names.is_sorted(), "{names:?}");
        assert!(name(5, 0) < name(5, 1));
        for one in &names {
            let text = GOOD.replace("{\"type", &format!("{{\"id\":\"{one}\",\"type"));
            assert_eq!(good(&text).id.as_deref(), Some(one.as_str()));
            assert_eq!(one.len(), 30);
        }
        assert_eq!(names[0], "evt_0000000000zzzzzzzzzzzzzzzz");
    }

    #[test]
    fn a_ping_has_no_tenant() {
        let event = test("ws_a", &Sample::ping(), &[0; ID_RANDOM_BYTES], UnixTime(0));
        let body: serde_json::Value = serde_json::from_slice(&event.body).expect("it is JSON");
        let expected = serde_json::json!({
            "id": event.id.as_ref(), "type": "webhook.ping", "workspace_id": "ws_a",
            "tenant_id": null, "created_at": "1970-01-01T00:00:00.000Z", "data": {},
        });
        assert_eq!(body, expected);
    }

    #[test]
    fn a_test_of_a_type_has_an_envelope_that_ingest_would_accept() {
        let catalogue = Catalogue::shipped();
        for entry in catalogue.types() {
            let sample = Sample::of(entry, &catalogue.identifiers);
            let event = test("ws_a", &sample, &[0; ID_RANDOM_BYTES], UnixTime(0));
            assert_eq!((event.kind, &event.tenant), (EventType::PING, &None));
            let mut sent: serde_json::Value = serde_json::from_slice(&event.body).unwrap();
            sent.as_object_mut().unwrap().remove("created_at");
            let accepted = good(&sent.to_string()).kind;
            assert_eq!(accepted, entry.kind, "{sent}");
        }
    }
}
