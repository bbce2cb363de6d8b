//! The fields of events that the operator exempts from the search for secrets (`ingest.allow`).
//!
//! # Invariants
//!
//! 1. An entry allows one field, by its whole path, for one event type or for all. Fields below it
//!    and beside it are still checked.
//! 2. No entry, with or without `*`, allows a password, a password hash, or an access, refresh or
//!    ID token, nor anything below such a key.

use weir_common::config::document::table::Table;
use weir_common::config::document::{Spanned, suggestion};

use crate::domain::event::EventType;
use crate::domain::sensitive::is_disguised;
use crate::domain::sensitive::never_allowed::is_never;

/// The wildcard: every event type, or any one step of a path.
const ANY: &str = "*";

/// The prefix of every path.
const ROOT: &str = "/data/";

/// The allowed fields.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AllowedFields {
    fields: Vec<Field>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Field {
    /// The event type; `None` means all.
    kind: Option<EventType>,
    /// The steps below `data`.
    steps: Vec<String>,
}

impl AllowedFields {
    /// Parses every `[[ingest.allow]]`.
    pub(crate) fn read(table: &mut Table<'_>) -> Self {
        let doc = "Fields that are accepted although their name or value looks like a secret.";
        let entries = table.list("allow", doc, |entry| {
            entry.require("type");
            entry.require("fields");
            let kind = entry.text("type", "The event type, or \"*\" for every type.");
            let doc = "JSON pointers, such as \"/data/keys/*/hash\"; * matches any one step.";
            let fields = entry.texts("fields", doc);
            let kind = kind.and_then(|kind| kind_of(&kind, entry));
            if fields.is_empty() && entry.has("fields") {
                entry.fault("allow.fields is empty: list a field, or remove the entry");
            }
            let mut seen = Vec::new();
            for field in &fields {
                if seen.contains(&field.value.as_str()) {
                    entry.fault_at(field.at, format!("`{}` is listed twice", field.value));
                }
                seen.push(&field.value);
            }
            let steps = fields.iter().filter_map(|field| steps_of(field, entry));
            let field = |steps| kind.map(|kind| Field { kind, steps });
            steps.filter_map(field).collect::<Vec<_>>()
        });
        Self { fields: entries.into_iter().flatten().collect() }
    }

    /// Whether the field at these steps below `data` is allowed in events of type `kind`.
    pub(crate) fn covers(&self, kind: Option<EventType>, path: &[String]) -> bool {
        self.fields.iter().any(|field| {
            // A key with look-alike letters is allowed by its exact name, not by a wildcard.
            let matches = |(wanted, step): (&String, &String)| {
                wanted == step || wanted == ANY && !is_disguised(step)
            };
            (field.kind.is_none() || field.kind == kind)
                && field.steps.len() == path.len()
                && field.steps.iter().zip(path).all(matches)
        }) && !path.iter().any(|step| is_never(step))
    }
}

/// The named event type; `Some(None)` is every type.
fn kind_of(text: &Spanned<String>, table: &Table<'_>) -> Option<Option<EventType>> {
    if text.value == ANY {
        return Some(None);
    }
    let kind = EventType::ALL.into_iter().find(|kind| kind.name() == text.value);
    if kind.is_none() {
        let names = EventType::ALL.map(EventType::name);
        let hint = suggestion(&text.value, &names)
            .unwrap_or_else(|| format!("known: {ANY}, {}", names.join(", ")));
        table.fault_at(text.at, format!("`{}` is not a known event type; {hint}", text.value));
    }
    kind.map(Some)
}

fn steps_of(text: &Spanned<String>, table: &Table<'_>) -> Option<Vec<String>> {
    let fault = |message: String| table.fault_at(text.at, message);
    let pointer = &text.value;
    let Some(path) = pointer.strip_prefix(ROOT).filter(|path| !path.is_empty()) else {
        fault(format!(
            "`{pointer}` must begin with {ROOT}: take the pointer of a refusal, without the index \
             of the event"
        ));
        return None;
    };
    let Some(steps) = path.split('/').map(unescaped).collect::<Option<Vec<_>>>() else {
        fault(format!("`{pointer}` is not a JSON pointer: ~ must be followed by 0 or 1"));
        return None;
    };
    if let Some(never) = steps.iter().find(|step| is_never(step)) {
        fault(format!("`{never}` and anything below it is never sent: no setting allows it"));
        return None;
    }
    if let Some(stars) = steps.iter().find(|step| step.len() > 1 && step.bytes().all(|c| c == b'*'))
    {
        fault(format!(
            "`{stars}` is not a step: * matches one step, and no wildcard matches several"
        ));
        return None;
    }
    Some(steps)
}

/// A step of a JSON pointer without its escapes (RFC 6901).
fn unescaped(step: &str) -> Option<String> {
    let mut plain = String::new();
    let mut rest = step.chars();
    while let Some(one) = rest.next() {
        plain.push(match one {
            '~' => match rest.next()? {
                '0' => '~',
                '1' => '/',
                _ => return None,
            },
            one => one,
        });
    }
    Some(plain)
}

#[cfg(test)]
mod tests {
    use weir_common::config::document::Document;

    use super::*;

    fn read(text: &str) -> (AllowedFields, Vec<String>) {
        let document = Document::new("d", text);
        let allowed = document.read(AllowedFields::read).made;
        (allowed, document.diagnostics().iter().map(ToString::to_string).collect())
    }

    #[track_caller]
    fn covers(fields: &str, kind: EventType, path: &[&str]) -> bool {
        let (allowed, diagnostics) = read(fields);
        assert_eq!(diagnostics, [""; 0]);
        let path: Vec<String> = path.iter().copied().map(Into::into).collect();
        allowed.covers(Some(kind), &path)
    }

    #[test]
    fn a_field_is_allowed_for_its_type_and_by_its_whole_path() {
        let entry = "[[allow]]\ntype = \"user.updated\"\nfields = [\"/data/user/reset_url\"]\n";
        let covered = |kind, path: &[&str]| covers(entry, kind, path);
        assert!(covered(EventType::new("user.updated"), &["user", "reset_url"]));
        assert!(!covered(EventType::new("user.created"), &["user", "reset_url"]));
        for path in
            [&["reset_url"][..], &["user"], &["user", "reset_url", "0"], &["u", "reset_url"]]
        {
            assert!(!covered(EventType::new("user.updated"), path), "{path:?}");
        }
    }

    #[test]
    fn a_wildcard_is_every_type_and_any_one_step() {
        let entry = "[[allow]]\ntype = \"*\"\nfields = [\"/data/keys/*/a~1b~0\"]\n";
        let covered = |path: &[&str]| covers(entry, EventType::new("plan.changed"), path);
        assert!(covered(&["keys", "0", "a/b~"]) && covered(&["keys", "x", "a/b~"]));
        assert!(!covered(&["keys", "a/b~"]) && !covered(&["keys", "0", "1", "a/b~"]));
    }

    #[test]
    fn an_invalid_entry_is_an_error_with_its_place() {
        let (allowed, diagnostics) = read(
            "[[allow]]\ntype = \"user.update\"\nfields = [\"/data/x\"]\n\
             [[allow]]\ntype = \"*\"\nfields = [\"x\", \"/data/\", \"/data/~2\", \
             \"/data/a/Access_Token\"]\n[[allow]]\n[[allow]]\ntype = \"*\"\nfields = []\n\
             [[allow]]\ntype = \"*\"\nfields = [\"/data/password/value\", \
             \"/data/access_token/0\", \"/data/**\", \"/data/**\"]\n",
        );
        assert_eq!(allowed, AllowedFields::default());
        let begin = "must begin with /data/: take the pointer of a refusal, without the index \
            of the event";
        let star = "is not a step: * matches one step, and no wildcard matches several";
        let expected = [
            "d:2:8: `user.update` is not a known event type; did you mean `user.updated`?"
                .to_owned(),
            format!("d:6:11: `x` {begin}"),
            format!("d:6:16: `/data/` {begin}"),
            "d:6:26: `/data/~2` is not a JSON pointer: ~ must be followed by 0 or 1".to_owned(),
            "d:6:38: `Access_Token` and anything below it is never sent: no setting allows it"
                .to_owned(),
            "d:7:1: allow.fields is missing".to_owned(),
            "d:7:1: allow.type is missing".to_owned(),
            "d:8:1: allow.fields is empty: list a field, or remove the entry".to_owned(),
            "d:13:11: `password` and anything below it is never sent: no setting allows it"
                .to_owned(),
            "d:13:35: `access_token` and anything below it is never sent: no setting allows it"
                .to_owned(),
            format!("d:13:59: `**` {star}"),
            format!("d:13:71: `**` {star}"),
            "d:13:71: `/data/**` is listed twice".to_owned(),
        ];
        assert_eq!(diagnostics, expected);
    }
}
