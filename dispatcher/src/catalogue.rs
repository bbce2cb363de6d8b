//! The event catalogue (`events.toml`): which events there are, and what their data may be.
//!
//! # Invariants
//!
//! 1. A type of the catalogue has a valid name and an example that ingest would accept as its data.
//! 2. The shipped file is built in: without a file of its own, a configuration has the same types.
//!
//! Not here: types of earlier catalogues, which webhooks and deliveries may still have (the store).

pub(crate) mod allowed_fields;
pub(crate) mod schema;
pub(crate) mod sensitive_data;

use std::collections::HashMap;

use serde_json::Value;
use weir_common::config::document::table::Table;
use weir_common::config::document::{Document, Parsed, Spanned};
use weir_common::identifier::IdForm;

use crate::catalogue::allowed_fields::AllowedFields;
use crate::catalogue::schema::DataSchema;
use crate::domain::event::{EventType, NAME_BYTES_MAX, is_name};
use crate::http_errors::ValidationErrors;

/// The catalogue that ships.
pub const SHIPPED: &str = include_str!("../../config/events.toml");

/// Types of a catalogue, at most: errors and documents list all of them.
const TYPES_MAX: usize = 256;

/// The catalogue, checked.
#[derive(Clone, Debug)]
pub struct Catalogue {
    /// The forms of identifiers.
    pub identifiers: Identifiers,
    types: Vec<TypeEntry>,
    /// The index of each type, by its name.
    by_name: HashMap<&'static str, usize>,
    /// The fields that every type allows.
    allowed: AllowedFields,
}

/// The forms of identifiers in events.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identifiers {
    /// Of workspaces.
    pub workspaces: IdForm,
    /// Of tenants.
    pub tenants: IdForm,
}

/// A type that backends may send and webhooks may subscribe to.
#[derive(Clone, Debug)]
pub struct TypeEntry {
    /// The type.
    pub kind: EventType,
    /// One sentence, for people.
    pub(crate) description: String,
    /// Whether each event names the tenant that it concerns.
    pub(crate) tenant_required: bool,
    /// What `data` must match, if anything.
    pub(crate) schema: Option<DataSchema>,
    /// Valid `data`, an object.
    pub(crate) example: Value,
    /// Fields of `data` that are accepted although they look like secrets.
    pub(crate) allowed: AllowedFields,
}

impl Catalogue {
    /// Reads `events.toml`; `document` collects the errors.
    #[must_use]
    pub fn read(document: &Document) -> Parsed<Self> {
        let Parsed { made, schema, effective } = document.read(|root| {
            let identifiers = root.table("identifiers", "The form of identifiers.", identifiers);
            let doc = "Fields of every type that are accepted although their name or value looks \
                like a secret: JSON pointers, as \"/data/keys/*/hash\"; * is any one step.";
            let allowed = AllowedFields::read(root, doc);
            let doc = "The event types: lower-case words, joined by dots.";
            (identifiers, allowed, root.tables("types", doc, |_, table| RawType::read(table)))
        });
        let (identifiers, allowed, mut given) = made;
        given.sort_by_key(|(name, _)| name.at);
        if given.is_empty() {
            document.fault(0, "there is no event type: list one, as in [types.\"order.paid\"]");
        }
        if let Some((name, _)) = given.get(TYPES_MAX) {
            document.fault(name.at, format!("there are more than {TYPES_MAX} event types"));
        }
        let checked = given.into_iter().map(|(name, raw)| raw.check(&name, &allowed, document));
        let types: Vec<TypeEntry> = checked.flatten().collect();
        let names = types.iter().map(|one| one.kind.name());
        let by_name = names.zip(0..).collect();
        Parsed { made: Self { identifiers, types, by_name, allowed }, schema, effective }
    }

    /// The catalogue that ships.
    #[must_use]
    pub fn shipped() -> Self {
        Self::read(&Document::new("built-in events.toml", SHIPPED)).made
    }

    /// The types, in the order of the file.
    #[must_use]
    pub fn types(&self) -> &[TypeEntry] {
        &self.types
    }

    /// The names of the types.
    #[must_use]
    pub fn names(&self) -> Vec<&'static str> {
        self.types.iter().map(|one| one.kind.name()).collect()
    }

    /// The type with this name.
    #[must_use]
    pub fn find(&self, name: &str) -> Option<&TypeEntry> {
        self.by_name.get(name).and_then(|index| self.types.get(*index))
    }

    /// The fields that every type allows.
    pub(crate) fn allowed(&self) -> &AllowedFields {
        &self.allowed
    }
}

fn identifiers(table: &mut Table<'_>) -> Identifiers {
    let doc = "The prefix of workspace identifiers; \"\" accepts any.";
    let workspaces = IdForm::read(table, "workspace_prefix", IdForm::workspace(), doc);
    let doc = "The prefix of tenant identifiers; \"\" accepts any.";
    let tenants = IdForm::read(table, "tenant_prefix", IdForm::tenant(), doc);
    Identifiers { workspaces, tenants }
}

/// A type as the file has it.
struct RawType {
    description: Option<Spanned<String>>,
    tenant_required: bool,
    schema: Option<Spanned<String>>,
    example: Option<Spanned<String>>,
    allowed: AllowedFields,
}

impl RawType {
    fn read(table: &mut Table<'_>) -> Self {
        table.require("description");
        let doc = "JSON Schema (2020-12) of `data`, as JSON; without it any object is valid.";
        let schema = table.text("schema", doc);
        let doc = "An example of `data`, as JSON: it must match the schema.";
        let example = table.text("example", doc);
        table.set_default("example", "{}".into());
        let doc = "Fields that are accepted although their name or value looks like a secret.";
        Self {
            description: table.text("description", "When the event happens, in a sentence."),
            tenant_required: table.flag(
                "tenant_required",
                true,
                "Whether every event names the tenant that it concerns.",
            ),
            schema,
            example,
            allowed: AllowedFields::read(table, doc),
        }
    }

    /// The type, if it has no errors.
    fn check(
        self,
        name: &Spanned<String>,
        of_all: &AllowedFields,
        document: &Document,
    ) -> Option<TypeEntry> {
        let kind = kind_of(name, document);
        let allowed = self.allowed.with(of_all);
        let mut schema = None;
        if let Some(text) = &self.schema {
            match DataSchema::new(&text.value) {
                Ok(made) => schema = Some(made),
                Err(why) => document.fault(text.at, format!("schema of `{}` {why}", name.value)),
            }
        }
        let (example, at) = match &self.example {
            Some(text) => (text.value.as_str(), text.at),
            None => ("{}", name.at),
        };
        let fault = |why: &str| document.fault(at, format!("example of `{}`: {why}", name.value));
        let example: Value = match serde_json::from_str(example) {
            Ok(value @ Value::Object(_)) => value,
            Ok(_) => {
                fault("must be an object");
                return None;
            }
            Err(why) => {
                fault(&format!("is no JSON: {why}"));
                return None;
            }
        };
        let mut errors = ValidationErrors::default();
        if let Some(schema) = &schema {
            schema.check(&example, "/data", &mut errors);
        }
        sensitive_data::check(&example.to_string(), "/data", &allowed, &mut errors);
        errors.listed().for_each(|error| fault(&error.to_string()));
        let description = self.description?.value;
        let tenant_required = self.tenant_required;
        Some(TypeEntry { kind: kind?, description, tenant_required, schema, example, allowed })
    }
}

fn kind_of(name: &Spanned<String>, document: &Document) -> Option<EventType> {
    let fault = |why: String| document.fault(name.at, format!("`{}` {why}", name.value));
    if [EventType::PING, EventType::CHALLENGE].iter().any(|one| one.name() == name.value) {
        fault("is the type of tests: choose another name".to_owned());
        return None;
    }
    if EventType::OPERATORS.iter().any(|one| one.name() == name.value) {
        fault("is the type of an event for operators: choose another name".to_owned());
        return None;
    }
    if !is_name(&name.value) {
        fault(format!(
            "is not the name of a type: lower-case letters, digits and `_`, in words joined by \
             dots, {NAME_BYTES_MAX} bytes at most"
        ));
        return None;
    }
    let kind = EventType::intern(&name.value);
    if kind.is_none() {
        fault("is a new name, after too many others: restart the dispatcher".to_owned());
    }
    kind
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// The catalogue in a text without errors.
    pub(crate) fn catalogue(text: &str) -> Catalogue {
        let document = Document::new("events.toml", text);
        let made = Catalogue::read(&document).made;
        assert_eq!(document.diagnostics(), []);
        made
    }

    fn wrong(text: &str) -> Vec<String> {
        let document = Document::new("e", text);
        let _ = Catalogue::read(&document);
        document.diagnostics().iter().map(ToString::to_string).collect()
    }

    #[test]
    fn the_shipped_catalogue_has_the_eleven_types_of_the_contract() {
        let shipped = catalogue(SHIPPED);
        let names = [
            "user.created",
            "user.updated",
            "user.deleted",
            "session.started",
            "session.ended",
            "tenant.created",
            "tenant.deleted",
            "plan.changed",
            "subscription.past_due",
            "mau.threshold_warning",
            "signups_blocked",
        ];
        assert_eq!(shipped.names(), names);
        assert!(shipped.types().iter().all(|one| one.tenant_required));
        assert_eq!(shipped.identifiers.workspaces, IdForm::workspace());
        assert_eq!(shipped.identifiers.tenants, IdForm::tenant());
        // The type in a comment, which operators copy, is valid as well.
        let own = SHIPPED.split_once("# [types").expect("it shows one").1;
        let own = own.lines().map(|line| line.strip_prefix("# ").unwrap_or(line));
        let own = format!("[types{}", own.collect::<Vec<_>>().join("\n"));
        let own = catalogue(&own);
        assert_eq!(own.names(), ["order.paid"]);
        assert!(own.find("order.paid").is_some_and(|one| one.schema.is_some()));
    }

    #[test]
    fn types_have_the_order_of_the_file() {
        let types = catalogue("[types.b]\ndescription = \"B.\"\n[types.a]\ndescription = \"A.\"\n");
        assert_eq!(types.names(), ["b", "a"]);
        assert_eq!(types.find("a").map(|one| one.description.as_str()), Some("A."));
        assert!(types.find("c").is_none());
    }

    #[test]
    fn every_error_has_its_place() {
        let text = "[types.a]\n[types.\"A.b\"]\ndescription = \"x\"\n\
            [types.\"webhook.ping\"]\ndescription = \"x\"\n\
            [types.b]\ndescription = \"x\"\nschema = '{\"type\": 1}'\nexample = '[]'\n\
            [types.c]\ndescription = \"x\"\nschema = '{\"required\": [\"id\"]}'\n\
            [types.d]\ndescription = \"x\"\nexample = '{\"password\": \"hunter2\", \"a\": {'\n\
            [types.e]\ndescription = \"x\"\nexample = '{\"password\": \"hunter2\"}'\nscheme = 1\n\
            [types.\"endpoint.paused\"]\ndescription = \"x\"\n";
        let found = wrong(text);
        let expected = [
            "e:1:8: types.a.description is missing",
            "e:2:8: `A.b` is not the name of a type: lower-case letters",
            "e:4:8: `webhook.ping` is the type of tests",
            "e:8:10: schema of `b` is no JSON Schema: ",
            "e:9:11: example of `b`: must be an object",
            "e:10:8: example of `c`: /data/id: is missing",
            "e:15:11: example of `d`: is no JSON: ",
            "e:18:11: example of `e`: /data/password: names a secret",
            "e:19:1: unknown key `scheme` in `types.e`; did you mean `schema`?",
            "e:20:8: `endpoint.paused` is the type of an event for operators",
        ];
        for (found, expected) in found.iter().zip(expected) {
            assert!(found.starts_with(expected), "{found} is not {expected}");
        }
        assert_eq!(found.len(), expected.len(), "{found:?}");
        assert_eq!(wrong("").len(), 1, "no type");
        let many: String = (0..=TYPES_MAX)
            .map(|nth| format!("[types.many_{nth}]\ndescription = \"x\"\n"))
            .collect();
        assert_eq!(wrong(&many), ["e:513:8: there are more than 256 event types"]);
    }

    #[test]
    fn a_type_allows_its_own_fields_and_those_of_every_type() {
        let types = catalogue(
            "allow = [\"/data/hash\"]\n[types.a]\ndescription = \"x\"\n\
             allow = [\"/data/secret\"]\nexample = '{\"secret\": \"x\", \"hash\": \"y\"}'\n\
             [types.b]\ndescription = \"x\"\n",
        );
        let allows = |name: &str, step: &str| {
            types.find(name).is_some_and(|one| one.allowed.covers(&[step.to_owned()]))
        };
        assert!(allows("a", "hash") && allows("a", "secret") && allows("b", "hash"));
        assert!(!allows("b", "secret"));
    }
}
