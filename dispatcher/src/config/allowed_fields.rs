//! Which fields of events may hold what only sounds or looks like a secret, as the operator says.
//!
//! # Invariants
//!
//! 1. A field is allowed by its whole path, for one type of event or for all of them; what lies
//!    below it, or beside it, is checked as ever.
//! 2. No entry allows what CONTRACT §6.4 names itself, nor what lies below it, whatever a `*`
//!    meets.

use weir_common::config::document::{Spanned, Table, suggestion};

use crate::domain::event::EventType;
use crate::domain::sensitive::is_disguised;
use crate::domain::sensitive::never_allowed::is_never;

/// Stands for every type of event, and in a path for any one step.
const ANY: &str = "*";

/// Where every path begins.
const ROOT: &str = "/data/";

/// The fields that may pass.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Allowed {
    fields: Vec<Field>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Field {
    /// Of events of this type; of any, where there is none.
    kind: Option<EventType>,
    /// The steps below `data`.
    steps: Vec<String>,
}

impl Allowed {
    /// Reads every `[[ingest.allow]]`.
    pub(crate) fn read(table: &mut Table<'_>) -> Self {
        let doc = "Fields that only sound or look like secrets: they pass.";
        let entries = table.list("allow", doc, |entry| {
            entry.require("type");
            entry.require("fields");
            let kind = entry.text("type", "The type of event, or \"*\" for every type.");
            let doc = "Their JSON pointers, as \"/data/keys/*/hash\"; * is any one step.";
            let fields = entry.texts("fields", doc);
            let kind = kind.and_then(|kind| kind_of(&kind, entry));
            if fields.is_empty() && entry.has("fields") {
                entry.fault("allow.fields lists none: list one, or leave the entry out");
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

    /// Whether the field at these steps below `data` may pass.
    pub(crate) fn covers(&self, kind: Option<EventType>, path: &[String]) -> bool {
        self.fields.iter().any(|field| {
            // A key that pretends to be another is only allowed by its name.
            let fits = |(wanted, step): (&String, &String)| {
                wanted == step || wanted == ANY && !is_disguised(step)
            };
            (field.kind.is_none() || field.kind == kind)
                && field.steps.len() == path.len()
                && field.steps.iter().zip(path).all(fits)
        }) && !path.iter().any(|step| is_never(step))
    }
}

/// The type that is meant; `Some(None)` is every type.
fn kind_of(text: &Spanned<String>, table: &Table<'_>) -> Option<Option<EventType>> {
    if text.value == ANY {
        return Some(None);
    }
    let kind = EventType::ALL.into_iter().find(|kind| kind.name() == text.value);
    if kind.is_none() {
        let names = EventType::ALL.map(EventType::name);
        let hint = suggestion(&text.value, &names)
            .unwrap_or_else(|| format!("known: {ANY}, {}", names.join(", ")));
        table.fault_at(text.at, format!("`{}` is no type of event; {hint}", text.value));
    }
    kind.map(Some)
}

fn steps_of(text: &Spanned<String>, table: &Table<'_>) -> Option<Vec<String>> {
    let fault = |message: String| table.fault_at(text.at, message);
    let pointer = &text.value;
    let Some(path) = pointer.strip_prefix(ROOT).filter(|path| !path.is_empty()) else {
        fault(format!(
            "`{pointer}` must begin with {ROOT}: the pointer that a refusal names, without the \
             number of the event"
        ));
        return None;
    };
    let Some(steps) = path.split('/').map(unescaped).collect::<Option<Vec<_>>>() else {
        fault(format!("`{pointer}` is no JSON pointer: after ~ comes 0 or 1"));
        return None;
    };
    if let Some(never) = steps.iter().find(|step| is_never(step)) {
        fault(format!("`{never}` is never sent, nor what is in it: no setting allows it"));
        return None;
    }
    if let Some(stars) = steps.iter().find(|step| step.len() > 1 && step.bytes().all(|c| c == b'*'))
    {
        fault(format!("`{stars}` is no step: * is any one, and none is any number of them"));
        return None;
    }
    Some(steps)
}

/// A step of a JSON pointer as it is meant (RFC 6901).
fn unescaped(step: &str) -> Option<String> {
    let mut meant = String::new();
    let mut rest = step.chars();
    while let Some(one) = rest.next() {
        meant.push(match one {
            '~' => match rest.next()? {
                '0' => '~',
                '1' => '/',
                _ => return None,
            },
            one => one,
        });
    }
    Some(meant)
}

#[cfg(test)]
mod tests {
    use weir_common::config::document::Document;

    use super::*;

    fn read(text: &str) -> (Allowed, Vec<String>) {
        let document = Document::new("d", text);
        let allowed = document.read(Allowed::read).made;
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
        assert!(covered(EventType::UserUpdated, &["user", "reset_url"]));
        assert!(!covered(EventType::UserCreated, &["user", "reset_url"]));
        for path in
            [&["reset_url"][..], &["user"], &["user", "reset_url", "0"], &["u", "reset_url"]]
        {
            assert!(!covered(EventType::UserUpdated, path), "{path:?}");
        }
    }

    #[test]
    fn a_star_is_every_type_and_any_one_step() {
        let entry = "[[allow]]\ntype = \"*\"\nfields = [\"/data/keys/*/a~1b~0\"]\n";
        let covered = |path: &[&str]| covers(entry, EventType::PlanChanged, path);
        assert!(covered(&["keys", "0", "a/b~"]) && covered(&["keys", "x", "a/b~"]));
        assert!(!covered(&["keys", "a/b~"]) && !covered(&["keys", "0", "1", "a/b~"]));
    }

    #[test]
    fn what_cannot_be_meant_is_a_mistake_with_its_place() {
        let (allowed, diagnostics) = read(
            "[[allow]]\ntype = \"user.update\"\nfields = [\"/data/x\"]\n\
             [[allow]]\ntype = \"*\"\nfields = [\"x\", \"/data/\", \"/data/~2\", \
             \"/data/a/Access_Token\"]\n[[allow]]\n[[allow]]\ntype = \"*\"\nfields = []\n\
             [[allow]]\ntype = \"*\"\nfields = [\"/data/password/value\", \
             \"/data/access_token/0\", \"/data/**\", \"/data/**\"]\n",
        );
        assert_eq!(allowed, Allowed::default());
        let begin = "must begin with /data/: the pointer that a refusal names, without the number \
            of the event";
        let star = "is no step: * is any one, and none is any number of them";
        let expected = [
            "d:2:8: `user.update` is no type of event; did you mean `user.updated`?".to_owned(),
            format!("d:6:11: `x` {begin}"),
            format!("d:6:16: `/data/` {begin}"),
            "d:6:26: `/data/~2` is no JSON pointer: after ~ comes 0 or 1".to_owned(),
            "d:6:38: `Access_Token` is never sent, nor what is in it: no setting allows it"
                .to_owned(),
            "d:7:1: allow.fields is missing".to_owned(),
            "d:7:1: allow.type is missing".to_owned(),
            "d:8:1: allow.fields lists none: list one, or leave the entry out".to_owned(),
            "d:13:11: `password` is never sent, nor what is in it: no setting allows it".to_owned(),
            "d:13:35: `access_token` is never sent, nor what is in it: no setting allows it"
                .to_owned(),
            format!("d:13:59: `**` {star}"),
            format!("d:13:71: `**` {star}"),
            "d:13:71: `/data/**` is listed twice".to_owned(),
        ];
        assert_eq!(diagnostics, expected);
    }
}
