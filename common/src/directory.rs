//! Reads the directory: each workspace's organisation, plan and owners, and its instances.
//!
//! Returns raw values and their places: only the gateway knows the names of plans and limits, and
//! checks them. Checked here: identifiers, and that references lead to an entry.
//!
//! A directory over HTTP has the same entries: `settings` says where, `client` builds requests,
//! `server` sends them, `response` reads answers, `cache` keeps them.

mod breaker;
pub mod cache;
pub mod client;
pub mod error_log;
pub mod response;
pub mod server;
pub mod settings;
pub mod values;

use std::collections::BTreeMap;

use self::values::Values;
use crate::config::document::table::Table;
use crate::config::document::{Document, Spanned, suggestion};
use crate::identifier::IdForm;

/// The most errors with a suggestion: each compares a name with every known one.
const SUGGESTIONS_MAX: usize = 100;

/// All entries of the directory, by identifier.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Directory {
    /// Organisations, which hold workspaces.
    pub organisations: BTreeMap<String, Organisation>,
    /// Workspaces, which hold instances.
    pub workspaces: BTreeMap<String, Workspace>,
    /// Instances, each reached at a host name of its own.
    pub instances: BTreeMap<String, Instance>,
}

/// An organisation's entry.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Organisation {
    /// Its plan; without one, the plan of the workspace that a request is for.
    pub plan: Option<Spanned<String>>,
    /// Its own values of limits, by the limit's name.
    pub limits: Vec<(Spanned<String>, Values)>,
}

/// A workspace's entry.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Workspace {
    /// The organisation it belongs to.
    pub organisation: Option<Spanned<String>>,
    /// Its plan.
    pub plan: Option<Spanned<String>>,
    /// Mail addresses of its owners.
    pub owners: Vec<Spanned<String>>,
    /// Its own values of limits, by the limit's name.
    pub limits: Vec<(Spanned<String>, Values)>,
}

/// An instance's entry.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Instance {
    /// The workspace it belongs to.
    pub workspace: Option<Spanned<String>>,
    /// Host names of its own, in addition to the one made from its identifier.
    pub domains: Vec<Spanned<String>>,
    /// Its own values of limits, by the limit's name.
    pub limits: Vec<(Spanned<String>, Values)>,
}

impl Directory {
    /// Reads `document`, and records errors in it. `workspaces` is the form of workspaces'
    /// identifiers.
    #[must_use]
    pub fn read(document: &Document, workspaces: &IdForm) -> Self {
        Self::read_with_schema(document, workspaces).0
    }

    /// As [`Directory::read`]; also returns the JSON Schema of a directory.
    #[must_use]
    pub fn read_with_schema(document: &Document, workspaces: &IdForm) -> (Self, serde_json::Value) {
        let reading = document.read(|root| read(root, workspaces));
        reading.made.check_references(document);
        (reading.made, reading.schema)
    }

    fn check_references(&self, document: &Document) {
        for workspace in self.workspaces.values() {
            let organisation = workspace.organisation.as_ref();
            refers_to(document, organisation, "organisation", &self.organisations);
        }
        let mut owners_of_domains = BTreeMap::new();
        for (name, instance) in &self.instances {
            refers_to(document, instance.workspace.as_ref(), "workspace", &self.workspaces);
            for domain in &instance.domains {
                let other = owners_of_domains.insert(domain.value.as_str(), name);
                if let Some(other) = other {
                    let text = format!("`{}` is already a domain of `{other}`", domain.value);
                    document.fault(domain.at, text);
                }
            }
        }
    }
}

/// Reports a reference to a missing entry, with a suggestion for the first [`SUGGESTIONS_MAX`]
/// errors.
fn refers_to<T>(
    document: &Document,
    reference: Option<&Spanned<String>>,
    what: &str,
    known: &BTreeMap<String, T>,
) {
    let Some(Spanned { value, at }) = reference.filter(|name| !known.contains_key(&name.value))
    else {
        return;
    };
    let names = || known.keys().map(String::as_str).collect::<Vec<_>>();
    let meant = (document.count() < SUGGESTIONS_MAX).then(|| suggestion(value, &names())).flatten();
    let hint = meant.unwrap_or_else(|| format!("add [{what}s.{value}]"));
    document.fault(*at, format!("unknown {what} `{value}`; {hint}"));
}

fn read(root: &mut Table<'_>, of_workspaces: &IdForm) -> Directory {
    let organisations =
        root.tables("organisations", "Organisations, which hold workspaces.", |name, table| {
            check_name(name, table, &IdForm::default(), "");
            Organisation {
                plan: table.text("plan", "Its plan; else that of the workspace a request is for."),
                limits: values_by_limit(table),
            }
        });
    let workspaces =
        root.tables("workspaces", "Workspaces, which hold instances.", |name, table| {
            check_name(name, table, of_workspaces, "; identifiers.workspace_prefix sets another");
            let organisation = table.text("organisation", "The organisation it belongs to.");
            let plan = table.text("plan", "Its plan, as gateway.toml names it.");
            let owners = table.texts("owners", "Mail addresses of its owners.");
            for owner in owners.iter().filter(|owner| !is_mail_address(&owner.value)) {
                let text = format!("`{}` is no mail address, as owner@example.com", owner.value);
                table.fault_at(owner.at, text);
            }
            Workspace { organisation, plan, owners, limits: values_by_limit(table) }
        });
    let instances =
        root.tables("instances", "Instances, each with a host name of its own.", |name, table| {
            check_name(name, table, &IdForm::default(), "");
            if name.value.bytes().any(|byte| byte.is_ascii_uppercase()) {
                table.fault_at(
                    name.at,
                    format!("`{}` must be in lower case: a host names the instance", name.value),
                );
            }
            let domains = table
                .texts("domains", "Host names of its own, in addition to the plane's pattern.");
            for domain in domains.iter().filter(|domain| !is_host(&domain.value)) {
                table.fault_at(
                    domain.at,
                    format!("`{}` is not a host name in lower case", domain.value),
                );
            }
            Instance {
                workspace: table.text("workspace", "The workspace it belongs to."),
                domains,
                limits: values_by_limit(table),
            }
        });
    let map = |(name, entry): (Spanned<String>, _)| (name.value, entry);
    Directory {
        organisations: organisations.into_iter().map(map).collect(),
        workspaces: workspaces.into_iter().map(|(name, entry)| (name.value, entry)).collect(),
        instances: instances.into_iter().map(|(name, entry)| (name.value, entry)).collect(),
    }
}

/// Reports a name that is not an identifier of its kind.
fn check_name(name: &Spanned<String>, table: &Table<'_>, form: &IdForm, remedy: &str) {
    if !form.allows(&name.value) {
        table.fault_at(
            name.at,
            format!("`{}` is not an identifier: use {form}{remedy}", name.value),
        );
    }
}

/// Whether `text` is a mail address that mails can be sent to: without a name, quotes or an address
/// in brackets. Only its mail server can check more.
#[must_use]
pub fn is_mail_address(text: &str) -> bool {
    let is_atom = |atom: &str, more: &str| {
        let is_char = |char: char| char.is_alphanumeric() || more.contains(char);
        !atom.is_empty() && atom.chars().all(is_char)
    };
    let is_label = |label: &str| {
        let ends =
            label.starts_with(char::is_alphanumeric) && label.ends_with(char::is_alphanumeric);
        ends && label.len() <= 63 && is_atom(label, "-_")
    };
    text.rsplit_once('@').is_some_and(|(local, host)| {
        let is_local = local.split('.').all(|atom| is_atom(atom, "!#$%&'*+-/=?^_`{|}~"));
        is_local && local.len() <= 64 && host.len() <= 253 && host.split('.').all(is_label)
    })
}

/// Whether `text` is a host name in lower case, without port or trailing dot.
#[must_use]
pub fn is_host(text: &str) -> bool {
    let mut label = 0;
    for byte in text.bytes().chain([b'.']) {
        match byte {
            b'.' if (1..=63).contains(&label) => label = 0,
            b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' => label += 1,
            _ => return false,
        }
    }
    text.len() <= 253
}

/// The values that a plan or a tenant sets for limits: `limits.workspace = { requests = 600 }`.
pub fn values_by_limit(table: &mut Table<'_>) -> Vec<(Spanned<String>, Values)> {
    let doc = "Own values of limits, by the limit's name.";
    table.tables("limits", doc, |_, values| Values::read(values))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn diagnostics(text: &str) -> Vec<String> {
        let document = Document::new("d.toml", text);
        let _ = Directory::read(&document, &IdForm::new("").unwrap());
        document.diagnostics().iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_directory_lists_organisations_workspaces_and_instances() {
        let document = Document::new(
            "d.toml",
            "[organisations.org_a]\n[workspaces.ws_a]\norganisation = \"org_a\"\nplan = \"pro\"\n\
             limits.workspace = { requests = 7 }\n[instances.in_a]\nworkspace = \"ws_a\"\n\
             domains = [\"login.a.example\"]\n",
        );
        let directory = Directory::read(&document, &IdForm::workspace());
        assert_eq!(document.diagnostics(), []);
        let workspace = &directory.workspaces["ws_a"];
        assert_eq!(workspace.organisation.as_ref().map(|name| name.value.as_str()), Some("org_a"));
        assert_eq!(workspace.limits[0].1.requests, Some(7));
        assert_eq!(directory.instances["in_a"].domains[0].value, "login.a.example");
    }

    #[test]
    fn a_reference_to_an_unknown_tenant_is_reported_with_a_suggestion() {
        assert_eq!(
            diagnostics(
                "[organisations.org_acme]\n[workspaces.ws_a]\norganisation = \"org_amce\"\n"
            ),
            ["d.toml:3:16: unknown organisation `org_amce`; did you mean `org_acme`?"]
        );
    }

    #[test]
    fn a_large_directory_is_read_quickly_with_errors_and_without() {
        let mut text = String::new();
        for n in 0..20_000 {
            text += &format!("[organisations.o{n}]\n[workspaces.w{n}]\norganisation = \"o{n}\"\n");
        }
        assert_eq!(diagnostics(&text).len(), 0);
        let wrong = text.replace("= \"o", "= \"x");
        assert_eq!(diagnostics(&wrong).len(), crate::config::document::MISTAKES_MAX + 1);
    }

    #[test]
    fn names_and_domains_have_one_spelling() {
        assert_eq!(diagnostics("[workspaces.\"a/b\"]").len(), 1);
        assert_eq!(diagnostics("[instances.In_Acme]").len(), 1);
        assert_eq!(
            diagnostics("[instances.a]\ndomains = [\"A.example\", \"a..b\", \"a.example.\"]").len(),
            3
        );
    }

    #[test]
    fn a_workspace_has_the_configured_prefix() {
        let check = |prefix: &str, text: &str, expected: &[&str]| {
            let document = Document::new("d.toml", text);
            let _ = Directory::read(&document, &IdForm::new(prefix).unwrap());
            let found: Vec<_> = document.diagnostics().iter().map(ToString::to_string).collect();
            assert_eq!(found, expected, "{prefix} {text}");
        };
        check("ws_", "[workspaces.ws_a]\n[organisations.x]\n[instances.y]", &[]);
        check("shop_", "[workspaces.shop_prod]", &[]);
        check("", "[workspaces.shop_prod]", &[]);
        let why = "`ws_` and letters, digits, _ or -, 64 at most; identifiers.workspace_prefix \
                   sets another";
        let text = format!("d.toml:1:13: `shop_prod` is not an identifier: use {why}");
        check("ws_", "[workspaces.shop_prod]", &[&text]);
    }

    #[test]
    fn an_owner_is_a_mail_address() {
        let text = "[workspaces.ws_a]\nowners = [\"a@example.com\", \"nope\", \"@b\"]";
        let why = "is no mail address, as owner@example.com";
        let expected = [("nope", 28), ("@b", 36)]
            .map(|(owner, column)| format!("d.toml:2:{column}: `{owner}` {why}"));
        assert_eq!(diagnostics(text), expected);
    }

    #[test]
    fn a_mail_address_is_one_that_mails_can_be_sent_to() {
        for good in
            ["a@b.example", "x+y.z@localhost", "info@b\u{fc}cher.example", "o'n@1-2.example"]
        {
            assert!(is_mail_address(good), "{good}");
        }
        let long = format!("{}@x.example", "a".repeat(65));
        for bad in [
            "Jane Doe <jane@x.example>",
            "\"a b\"@x.example",
            "a@[127.0.0.1]",
            "a b@x.example",
            "a..b@x.example",
            "a@x..example",
            "a@-x.example",
            "a@x.example\r\n",
            "a@",
            &long,
        ] {
            assert!(!is_mail_address(bad), "{bad}");
        }
    }

    #[test]
    fn a_domain_belongs_to_one_instance() {
        let text =
            "[instances.a]\ndomains = [\"x.example\"]\n[instances.b]\ndomains = [\"x.example\"]";
        assert_eq!(diagnostics(text), ["d.toml:4:12: `x.example` is already a domain of `a`"]);
    }
}
