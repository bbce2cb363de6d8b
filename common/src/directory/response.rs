//! Parses a directory's response about one tenant.
//!
//! An entry has the form of one in the directory file, as JSON. Unknown members are ignored, so
//! that a directory can serve other clients too; a known member must have its type, and `null`
//! means absent. A duplicate member is ambiguous, and an error. All errors of a response are
//! reported together.
//!
//! Not here: whether the settings have its plan and its limits (`rules::compile::tenants`).

use std::collections::BTreeSet;

use serde_json::{Map, Value};

use crate::config::document::{Document, Spanned};
use crate::directory::values::Values;
use crate::directory::{Instance, Organisation, Workspace, is_mail_address};
use crate::identifier::IdForm;
use crate::json;

/// Longest logged text of a response's errors, which may quote the whole response.
const FAULT_CHARS_MAX: usize = 300;

/// Most owners of a workspace: each of its mails is sent to all of them, and customers may be able
/// to add owners.
const OWNERS_MAX: usize = 100;

/// Longest mail address (RFC 5321, 4.5.3.1.3, without the brackets).
const ADDRESS_BYTES_MAX: usize = 254;

/// The kind of a tenant, which determines its URL and the members of its response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "plain data: the names say what they are")]
pub enum TenantKind {
    Organisation,
    Workspace,
    Instance,
}

/// An entry as received, with no names looked up, so that it stays valid across a reload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RawEntry {
    /// An organisation's.
    Organisation(Organisation),
    /// A workspace's.
    Workspace(Workspace),
    /// An instance's.
    Instance(Instance),
}

impl TenantKind {
    /// Every kind.
    pub const ALL: [Self; 3] = [Self::Organisation, Self::Workspace, Self::Instance];

    /// Its name in a path.
    #[must_use]
    pub fn plural(self) -> &'static str {
        match self {
            Self::Organisation => "organisations",
            Self::Workspace => "workspaces",
            Self::Instance => "instances",
        }
    }

    /// The path of such a tenant, as `workspaces/ws_acme`.
    #[must_use]
    pub fn path(self, name: &str) -> String {
        [self.plural(), "/", name].concat()
    }

    /// An entry without values: the tenant exists.
    #[must_use]
    pub fn bare(self) -> RawEntry {
        match self {
            Self::Organisation => RawEntry::Organisation(Organisation::default()),
            Self::Workspace => RawEntry::Workspace(Workspace::default()),
            Self::Instance => RawEntry::Instance(Instance::default()),
        }
    }
}

/// Parses a response for its plan and limits; owners and domains are left out. `workspaces` is the
/// form of workspace identifiers.
///
/// # Errors
///
/// Everything that is wrong with these members.
pub fn read(kind: TenantKind, body: &[u8], workspaces: &IdForm) -> Result<RawEntry, String> {
    parsed(body, |members| raw_entry(kind, members, workspaces))
}

/// Parses a workspace's response for the mail addresses of its owners, each once; other members are
/// ignored.
///
/// # Errors
///
/// Everything that is wrong with the member `owners`.
pub fn read_owners(body: &[u8]) -> Result<BTreeSet<String>, String> {
    parsed(body, |members| members.owners())
}

fn parsed<T>(body: &[u8], read: impl FnOnce(&Members<'_>) -> T) -> Result<T, String> {
    let members = json::object(body).map_err(|why| format!("the answer is {why}"))?;
    let document = Document::new("", "");
    let made = read(&Members { members: &members, document: &document });
    faults(&document).map_or(Ok(made), Err)
}

fn raw_entry(kind: TenantKind, members: &Members<'_>, workspaces: &IdForm) -> RawEntry {
    match kind {
        TenantKind::Organisation => RawEntry::Organisation(Organisation {
            plan: members.text("plan"),
            limits: members.limits(),
        }),
        TenantKind::Workspace => RawEntry::Workspace(Workspace {
            organisation: members.name("organisation", &IdForm::default()),
            plan: members.text("plan"),
            owners: Vec::new(),
            limits: members.limits(),
        }),
        TenantKind::Instance => RawEntry::Instance(Instance {
            workspace: members.name("workspace", workspaces),
            domains: Vec::new(),
            limits: members.limits(),
        }),
    }
}

/// All errors found, in one line of bounded length.
#[must_use]
pub fn faults(document: &Document) -> Option<String> {
    let diagnostics = document.diagnostics();
    let texts: Vec<&str> =
        diagnostics.iter().map(|diagnostic| diagnostic.message.as_str()).collect();
    let text = texts.join("; ");
    (!texts.is_empty()).then(|| text.chars().take(FAULT_CHARS_MAX).collect())
}

struct Members<'a> {
    members: &'a Map<String, Value>,
    document: &'a Document,
}

impl Members<'_> {
    fn get(&self, key: &str) -> Option<&Value> {
        self.members.get(key).filter(|value| !value.is_null())
    }

    fn fault(&self, text: String) {
        self.document.fault(0, text);
    }

    fn text(&self, key: &str) -> Option<Spanned<String>> {
        match self.get(key)? {
            Value::String(text) => Some(Spanned { value: text.clone(), at: 0 }),
            other => {
                self.fault(format!("{key} must be text, not {}", kind_of(other)));
                None
            }
        }
    }

    /// The identifier of another tenant, whose entry is looked up next.
    fn name(&self, key: &str, form: &IdForm) -> Option<Spanned<String>> {
        let name = self.text(key)?;
        if !form.allows(&name.value) {
            self.fault(format!("{key} is not an identifier: use {form}"));
            return None;
        }
        Some(name)
    }

    fn owners(&self) -> BTreeSet<String> {
        let owners = match self.get("owners") {
            None => return BTreeSet::new(),
            Some(Value::Array(owners)) => owners,
            Some(other) => {
                self.fault(format!("owners must be a list, not {}", kind_of(other)));
                return BTreeSet::new();
            }
        };
        if owners.len() > OWNERS_MAX {
            self.fault(format!("owners has {} addresses, of {OWNERS_MAX} at most", owners.len()));
            return BTreeSet::new();
        }
        let address = |(nth, owner): (usize, &Value)| {
            let is_address = |text: &&str| text.len() <= ADDRESS_BYTES_MAX && is_mail_address(text);
            let text = owner.as_str().filter(is_address);
            if text.is_none() {
                self.fault(format!("owners[{nth}] is no mail address, as owner@example.com"));
            }
            text.map(str::to_owned)
        };
        owners.iter().enumerate().filter_map(address).collect()
    }

    fn limits(&self) -> Vec<(Spanned<String>, Values)> {
        let limits = match self.get("limits") {
            None => return Vec::new(),
            Some(Value::Object(limits)) => limits,
            Some(other) => {
                self.fault(format!("limits must be an object, not {}", kind_of(other)));
                return Vec::new();
            }
        };
        let values = |(name, values): (&String, &Value)| {
            let name = Spanned { value: name.clone(), at: 0 };
            (name.clone(), self.values(&name.value, values))
        };
        limits.iter().filter(|(_, values)| !values.is_null()).map(values).collect()
    }

    fn values(&self, limit: &str, values: &Value) -> Values {
        let Value::Object(members) = values else {
            self.fault(format!("limits.{limit} must be an object, not {}", kind_of(values)));
            return Values::default();
        };
        Values::from_json(members, |key, wanted| {
            self.fault(format!("limits.{limit}.{key} must be {wanted}"));
        })
    }
}

fn kind_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "true or false",
        Value::Number(_) => "a number",
        Value::String(_) => "text",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(kind: TenantKind, body: &[u8]) -> Result<RawEntry, String> {
        super::read(kind, body, &IdForm::workspace())
    }

    fn check(kind: TenantKind, body: &str, wrong: &[&str]) {
        let found = read(kind, body.as_bytes());
        match wrong {
            [] => assert!(found.is_ok(), "{body}: {found:?}"),
            _ => {
                let found = found.err().unwrap_or_default();
                for text in wrong {
                    assert!(found.contains(text), "{body}: {found} lacks {text}");
                }
            }
        }
    }

    #[test]
    fn an_answer_is_an_entry_of_the_file_in_json() {
        let body = r#"{"organisation": "org_a", "plan": "pro", "owners": ["a@b.example"],
            "limits": {"workspace": {"requests": 7}}}"#;
        let raw = read(TenantKind::Workspace, body.as_bytes()).unwrap();
        let RawEntry::Workspace(workspace) = raw else { panic!("{raw:?}") };
        assert_eq!(workspace.organisation.map(|name| name.value).as_deref(), Some("org_a"));
        assert_eq!(workspace.plan.map(|name| name.value).as_deref(), Some("pro"));
        assert_eq!(workspace.limits[0].1.requests, Some(7));
        let raw = read(TenantKind::Instance, br#"{"workspace": "ws_a"}"#).unwrap();
        let RawEntry::Instance(instance) = raw else { panic!("{raw:?}") };
        assert_eq!(instance.workspace.map(|name| name.value).as_deref(), Some("ws_a"));
    }

    #[test]
    fn owners_are_mail_addresses_each_once_and_nothing_else_is_read_for_them() {
        let check = |body: &str, expected: Result<&[&str], &str>| {
            let found = read_owners(body.as_bytes());
            match expected {
                Ok(owners) => {
                    assert_eq!(found, Ok(owners.iter().map(ToString::to_string).collect()))
                }
                Err(why) => {
                    assert!(found.clone().is_err_and(|found| found.contains(why)), "{found:?}")
                }
            }
        };
        check(
            r#"{"owners": ["b@x.example", "a@x.example", "b@x.example"], "plan": 7}"#,
            Ok(&["a@x.example", "b@x.example"]),
        );
        for none in ["{}", r#"{"owners": null}"#, r#"{"owners": []}"#] {
            check(none, Ok(&[]));
        }
        check(r#"{"owners": "a@x.example"}"#, Err("owners must be a list, not text"));
        check(r#"{"owners": ["a@x.example", "owner"]}"#, Err("owners[1] is no mail address"));
        check(r#"{"owners": [7]}"#, Err("owners[0] is no mail address"));
        let long = format!(r#"{{"owners": ["{}@x.example"]}}"#, "a".repeat(ADDRESS_BYTES_MAX));
        check(&long, Err("owners[0] is no mail address"));
        check("<html>", Err("the answer is not"));
        let many = |count: usize| format!(r#"{{"owners": {:?}}}"#, vec!["a@x.example"; count]);
        check(&many(OWNERS_MAX), Ok(&["a@x.example"]));
        check(&many(OWNERS_MAX + 1), Err("owners has 101 addresses, of 100 at most"));
    }

    #[test]
    fn unknown_members_are_ignored_and_null_is_absent() {
        for kind in TenantKind::ALL {
            check(kind, "{}", &[]);
            check(kind, r#"{"name": 7, "created_at": [], "owners": 1, "domains": {}}"#, &[]);
            check(kind, r#"{"plan": null, "workspace": null, "limits": null}"#, &[]);
            check(kind, r#"{"limits": {"a": null, "b": {"rate": null, "burst": 1}}}"#, &[]);
            assert_eq!(read(kind, b"{}"), Ok(kind.bare()));
        }
    }

    #[test]
    fn every_wrong_type_is_reported() {
        let kind = TenantKind::Workspace;
        for body in ["", "[]", "\"x\"", "{", "{}x", "null", "\u{feff}{}"] {
            check(kind, body, &["the answer is not"]);
        }
        for body in [
            r#"{"plan": "free", "plan": "pro"}"#,
            r#"{"limits": {"a": {"requests": 1, "requests": 9}}}"#,
            r#"{"others": {"x": 1, "x": 2}}"#,
        ] {
            check(kind, body, &["a member stands twice"]);
        }
        check(
            kind,
            r#"{"plan": 7, "organisation": "a/b", "limits": {"a": 1, "b": {"rate": -1}}}"#,
            &[
                "plan must be text, not a number",
                "organisation is not an identifier",
                "limits.a must be an object, not a number",
                "limits.b.rate must be tokens per second",
            ],
        );
        check(kind, r#"{"limits": []}"#, &["limits must be an object, not a list"]);
        let foreign = r#"{"workspace": "shop_prod"}"#;
        check(
            TenantKind::Instance,
            foreign,
            &["workspace is not an identifier: use `ws_` and letters"],
        );
        for number in ["0", "1.5", "-1", "\"7\"", "4294967297", "true", "1e99"] {
            let body = format!(r#"{{"limits": {{"a": {{"requests": {number}}}}}}}"#);
            check(kind, &body, &["limits.a.requests must be a whole number"]);
        }
    }

    #[test]
    fn logged_faults_have_a_bounded_length() {
        let limits: Vec<String> = (0..2_000).map(|n| format!("\"limit_{n}\": 7")).collect();
        let body = format!("{{\"limits\": {{{}}}}}", limits.join(","));
        let logged = read(TenantKind::Workspace, body.as_bytes()).unwrap_err();
        assert_eq!(logged.chars().count(), FAULT_CHARS_MAX);
    }
}
