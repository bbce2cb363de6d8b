//! The fields of a type's data that the operator exempts from the search for secrets.
//!
//! # Invariants
//!
//! 1. An entry allows one field, by its whole path. Fields below it and beside it are checked.
//! 2. No entry, with or without `*`, allows a password, a password hash, or an access, refresh or
//!    ID token, nor anything below such a key.

use weir_common::config::document::Spanned;
use weir_common::config::document::table::Table;

use crate::domain::sensitive::is_disguised;
use crate::domain::sensitive::never_allowed::is_never;
use crate::http_errors::step;

/// The wildcard: any one step of a path.
const ANY: &str = "*";

/// The prefix of every path.
const ROOT: &str = "/data/";

/// The allowed fields, each as the steps below `data`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct AllowedFields(Vec<Vec<String>>);

impl AllowedFields {
    /// Parses the list `allow` of a table.
    pub(crate) fn read(table: &mut Table<'_>, doc: &str) -> Self {
        let fields = table.texts("allow", doc);
        let mut seen = Vec::new();
        for field in &fields {
            if seen.contains(&field.value.as_str()) {
                table.fault_at(field.at, format!("`{}` is listed twice", field.value));
            }
            seen.push(&field.value);
        }
        Self(fields.iter().filter_map(|field| steps_of(field, table)).collect())
    }

    /// These fields and those.
    pub(crate) fn with(&self, more: &Self) -> Self {
        Self(self.0.iter().chain(&more.0).cloned().collect())
    }

    /// Whether the field at these steps below `data` is allowed.
    pub(crate) fn covers(&self, path: &[String]) -> bool {
        self.0.iter().any(|steps| {
            // A key with look-alike letters is allowed by its exact name, not by a wildcard.
            let matches = |(wanted, step): (&String, &String)| {
                wanted == step || wanted == ANY && !is_disguised(step)
            };
            steps.len() == path.len() && steps.iter().zip(path).all(matches)
        }) && !path.iter().any(|step| is_never(step))
    }

    /// The fields as JSON pointers.
    pub(crate) fn pointers(&self) -> Vec<String> {
        let pointer = |steps: &Vec<String>| {
            ROOT.trim_end_matches('/').to_owned()
                + &steps.iter().map(|one| step(one)).collect::<String>()
        };
        self.0.iter().map(pointer).collect()
    }
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
        let allowed = document.read(|table| AllowedFields::read(table, "")).made;
        (allowed, document.diagnostics().iter().map(ToString::to_string).collect())
    }

    #[track_caller]
    fn covers(fields: &str, path: &[&str]) -> bool {
        let (allowed, diagnostics) = read(fields);
        assert_eq!(diagnostics, [""; 0]);
        let path: Vec<String> = path.iter().copied().map(Into::into).collect();
        allowed.covers(&path)
    }

    #[test]
    fn a_field_is_allowed_by_its_whole_path() {
        let covered = |path: &[&str]| covers("allow = [\"/data/user/reset_url\"]\n", path);
        assert!(covered(&["user", "reset_url"]));
        for path in
            [&["reset_url"][..], &["user"], &["user", "reset_url", "0"], &["u", "reset_url"]]
        {
            assert!(!covered(path), "{path:?}");
        }
    }

    #[test]
    fn a_wildcard_is_any_one_step() {
        let covered = |path: &[&str]| covers("allow = [\"/data/keys/*/a~1b~0\"]\n", path);
        assert!(covered(&["keys", "0", "a/b~"]) && covered(&["keys", "x", "a/b~"]));
        assert!(!covered(&["keys", "a/b~"]) && !covered(&["keys", "0", "1", "a/b~"]));
    }

    #[test]
    fn fields_of_two_lists_are_allowed_and_shown_as_they_were_listed() {
        let of = |text: &str| read(text).0;
        let both = of("allow = [\"/data/a~1b/*\"]").with(&of("allow = [\"/data/c\"]"));
        assert_eq!(both.pointers(), ["/data/a~1b/*", "/data/c"]);
        assert!(both.covers(&["c".to_owned()]));
    }

    #[test]
    fn an_invalid_entry_is_an_error_with_its_place() {
        let (allowed, diagnostics) = read(
            "allow = [\n\"x\",\n\"/data/\",\n\"/data/~2\",\n\"/data/a/Access_Token\",\n\
             \"/data/password/value\",\n\"/data/access_token/0\",\n\
             \"/data/**\",\n\"/data/**\",\n]\n",
        );
        assert_eq!(allowed, AllowedFields::default());
        let begin = "must begin with /data/: take the pointer of a refusal, without the index \
            of the event";
        let star = "is not a step: * matches one step, and no wildcard matches several";
        let never = "and anything below it is never sent: no setting allows it";
        let expected = [
            format!("d:2:1: `x` {begin}"),
            format!("d:3:1: `/data/` {begin}"),
            "d:4:1: `/data/~2` is not a JSON pointer: ~ must be followed by 0 or 1".to_owned(),
            format!("d:5:1: `Access_Token` {never}"),
            format!("d:6:1: `password` {never}"),
            format!("d:7:1: `access_token` {never}"),
            format!("d:8:1: `**` {star}"),
            format!("d:9:1: `**` {star}"),
            "d:9:1: `/data/**` is listed twice".to_owned(),
        ];
        assert_eq!(diagnostics, expected);
    }
}
