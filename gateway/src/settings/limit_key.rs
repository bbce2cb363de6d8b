//! What a limit counts by: a tenant, an address, a claim, a header, or several of them. (core)
//!
//! # Invariants
//!
//! 1. A key has 1 to [`PARTS_MAX`] parts, and no part twice.
//! 2. A claim and a header have names that a token and a request can have.
//! 3. No header that the gateway replaces by the certificate it has verified is a part: limits
//!    would count by what the client wrote.
//!
//! # Not here
//!
//! Whether a route's requests have the parts (`rules::compile`), what a request is charged to
//! (`rules::subject`).

use std::fmt;
use std::sync::Arc;

use arrayvec::ArrayVec;
use http::HeaderName;
use weir_common::config::document::table::Table;
use weir_common::config::document::{Spanned, suggestion};

use crate::settings::trusted::{CLIENT_CERT, CLIENT_CERT_CHAIN, folded};

/// The most parts of a key: more than a workspace, an application, a user and an address are
/// hardly one owner of an allowance.
pub const PARTS_MAX: usize = 4;

/// One of the things that a limit counts by.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "plain data: the names say what they are")]
pub enum KeyPart {
    Workspace,
    Organisation,
    Instance,
    /// A client's address.
    Address,
    /// A claim of the verified token; dots lead into objects.
    Claim(Arc<str>),
    /// A request header, by the keyed hash of its value.
    Header(HeaderName),
}

/// The parts that have no name of their own, by their words.
const PLAIN: [(&str, KeyPart); 4] = [
    ("workspace", KeyPart::Workspace),
    ("organisation", KeyPart::Organisation),
    ("instance", KeyPart::Instance),
    ("address", KeyPart::Address),
];

/// Whether the gateway sets a header by the certificate of a connection, or drops it.
fn is_of_certificate(header: &HeaderName) -> bool {
    [CLIENT_CERT, CLIENT_CERT_CHAIN].contains(&&*folded(header.as_str()))
}

/// What editors accept as a part.
const PATTERN: &str = "^(workspace|organisation|instance|address|(claim|header):.+)$";

impl KeyPart {
    /// Whether it is a tenant of the directory.
    #[must_use]
    pub fn is_tenant(&self) -> bool {
        matches!(self, Self::Workspace | Self::Organisation | Self::Instance)
    }

    fn read(text: &str) -> Result<Self, String> {
        if let Some((_, plain)) = PLAIN.into_iter().find(|(word, _)| *word == text) {
            return Ok(plain);
        }
        match text.split_once(':') {
            Some(("claim", "")) => Err("`claim:` names no claim: as claim:sub does".to_owned()),
            Some(("claim", name)) => Ok(Self::Claim(name.into())),
            Some(("header", name)) => match HeaderName::from_bytes(name.as_bytes()) {
                Ok(header) if is_of_certificate(&header) => Err(format!(
                    "`{name}` is no key: a client may send any, and the gateway drops it for the \
                     certificate that it has verified"
                )),
                Ok(header) => Ok(Self::Header(header)),
                Err(_) => Err(format!("`{name}` is not a header name, such as X-Api-Key")),
            },
            _ => {
                let named =
                    |kind: &str| text.split(':').next().and_then(|of| suggestion(of, &[kind]));
                let hint = match text.contains(':') {
                    true => ["claim", "header"].into_iter().find_map(named),
                    false => suggestion(text, &PLAIN.map(|(word, _)| word)),
                };
                let known = "known: workspace, organisation, instance, address, claim:NAME, \
                             header:NAME";
                Err(format!("unknown key `{text}`; {}", hint.as_deref().unwrap_or(known)))
            }
        }
    }
}

impl fmt::Display for KeyPart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Workspace => f.write_str("workspace"),
            Self::Organisation => f.write_str("organisation"),
            Self::Instance => f.write_str("instance"),
            Self::Address => f.write_str("address"),
            Self::Claim(name) => write!(f, "claim:{name}"),
            Self::Header(name) => write!(f, "header:{name}"),
        }
    }
}

/// What happens to a request that lacks a part of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Missing {
    /// It is charged to its address, under `directory.unknown_limits`.
    Address,
    /// All that lack the part share one value of it.
    Shared,
}

/// What a limit counts by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LimitKey {
    parts: ArrayVec<KeyPart, PARTS_MAX>,
    /// What happens to a request that lacks a tenant or a claim.
    pub missing: Missing,
}

impl LimitKey {
    /// A key of one part.
    #[must_use]
    pub fn of(part: KeyPart) -> Self {
        Self { parts: ArrayVec::from_iter([part]), missing: Missing::Address }
    }

    /// The parts, in the order of the file.
    #[must_use]
    pub fn parts(&self) -> &[KeyPart] {
        &self.parts
    }

    /// Whether it is the address alone.
    #[must_use]
    pub fn is_address(&self) -> bool {
        matches!(self.parts(), [KeyPart::Address])
    }

    /// The tenant whose plan and own values apply: the only one among the parts.
    #[must_use]
    pub fn tenant(&self) -> Option<&KeyPart> {
        let mut tenants = self.parts.iter().filter(|part| part.is_tenant());
        tenants.next().filter(|_| tenants.next().is_none())
    }

    /// Whether a client alone decides which key its request has.
    #[must_use]
    pub fn is_clients_choice(&self) -> bool {
        self.parts.iter().all(|part| matches!(part, KeyPart::Header(_)))
    }

    /// The names of the claims among the parts.
    pub fn claims(&self) -> impl Iterator<Item = &Arc<str>> {
        self.parts.iter().filter_map(|part| match part {
            KeyPart::Claim(name) => Some(name),
            _ => None,
        })
    }
}

impl fmt::Display for LimitKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (nth, part) in self.parts.iter().enumerate() {
            write!(f, "{}{part}", if nth > 0 { "/" } else { "" })?;
        }
        Ok(())
    }
}

/// Reads `key` and `missing`.
pub(super) fn limit_key(table: &mut Table<'_>) -> LimitKey {
    let doc = "What each counter is kept for: workspace, organisation, instance, address, \
               claim:NAME, header:NAME, or a list of up to 4.";
    let texts = table.text_or_texts("key", PATTERN, doc);
    let mut parts = ArrayVec::new();
    for Spanned { value, at } in &texts {
        match KeyPart::read(value) {
            Err(why) => table.fault_at(*at, why),
            Ok(part) if parts.contains(&part) => {
                table.fault_at(*at, format!("`{part}` is listed twice in one key"));
            }
            Ok(part) => {
                if let Err(one_more) = parts.try_push(part) {
                    let part = one_more.element();
                    let text = format!("`{part}` is too many: a key has at most {PARTS_MAX} parts");
                    table.fault_at(*at, text);
                }
            }
        }
    }
    let missing = table.choice(
        "missing",
        &[("address", Missing::Address), ("shared", Missing::Shared)],
        "A request without such a tenant or claim: charged to its address, or to one shared key.",
    );
    let may_lack = |part: &KeyPart| part.is_tenant() || matches!(part, KeyPart::Claim(_));
    if table.has("missing") && !parts.is_empty() && !parts.iter().any(may_lack) {
        let why = "every request has an address, and all without a header share one key";
        table.fault_in("missing", format!("`missing` has no effect here: {why}; remove it"));
    }
    // Reported already, where nothing was given: rules with errors are never active.
    if parts.is_empty() {
        return LimitKey { missing, ..LimitKey::of(KeyPart::Workspace) };
    }
    LimitKey { parts, missing }
}

#[cfg(test)]
mod tests {
    use weir_common::config::document::Document;

    use super::*;

    /// The key that these lines make, or the problems in them.
    fn read(lines: &str) -> Result<String, Vec<String>> {
        let document = Document::new("g", lines);
        let key = document.read(limit_key).made;
        let found = document.diagnostics();
        let found: Vec<String> = found.into_iter().map(|one| one.message).collect();
        if found.is_empty() { Ok(format!("{key} {:?}", key.missing)) } else { Err(found) }
    }

    #[track_caller]
    fn check(lines: &str, problem: &str) {
        let found = read(lines).unwrap_err();
        assert!(found.len() == 1 && found[0].contains(problem), "{lines}: {found:?}");
    }

    #[test]
    fn a_key_is_a_part_or_several() {
        for (lines, key) in [
            ("key = \"workspace\"", "workspace Address"),
            ("key = \"claim:https://id.test/sub\"", "claim:https://id.test/sub Address"),
            ("key = \"header:X-Api-Key\"", "header:x-api-key Address"),
            ("key = [\"address\"]", "address Address"),
            (
                "key = [\"workspace\", \"claim:sub\"]\nmissing = \"shared\"",
                "workspace/claim:sub Shared",
            ),
            (
                "key = [\"instance\", \"claim:a\", \"claim:b\", \"header:c\"]",
                "instance/claim:a/claim:b/header:c Address",
            ),
        ] {
            assert_eq!(read(lines).as_deref(), Ok(key), "{lines}");
        }
    }

    #[test]
    fn a_part_that_does_not_exist_is_reported_with_a_suggestion() {
        check("key = \"wrkspace\"", "unknown key `wrkspace`; did you mean `workspace`?");
        check("key = \"claims:sub\"", "unknown key `claims:sub`; did you mean `claim`?");
        check("key = \"cookie\"", "unknown key `cookie`; known: workspace");
        check("key = \"cookie:a\"", "unknown key `cookie:a`; known: workspace");
        check("key = \"claim\"", "unknown key `claim`");
        check("key = \"claim:\"", "names no claim");
        check("key = \"header:a b\"", "`a b` is not a header name");
        check("key = \"header:\"", "`` is not a header name");
        for name in ["Client-Cert", "client_cert", "Client-Cert-Chain"] {
            check(&format!("key = \"header:{name}\""), &format!("`{name}` is no key"));
        }
    }

    #[test]
    fn a_key_has_no_part_twice_and_not_too_many() {
        check("key = [\"address\", \"address\"]", "`address` is listed twice");
        check("key = [\"header:A\", \"header:a\"]", "`header:a` is listed twice");
        let five = "key = [\"workspace\", \"claim:a\", \"claim:b\", \"claim:c\", \"claim:d\"]";
        check(five, "`claim:d` is too many: a key has at most 4 parts");
    }

    #[test]
    fn what_is_never_missing_has_no_choice_of_missing() {
        for key in ["\"header:a\"", "\"address\"", "[\"address\", \"header:a\"]"] {
            check(&format!("key = {key}\nmissing = \"shared\""), "`missing` has no effect here");
        }
        assert!(read("key = [\"header:a\", \"claim:sub\"]\nmissing = \"shared\"").is_ok());
    }

    #[test]
    fn a_tenants_values_apply_where_it_is_the_only_one() {
        let tenant = |lines: &str| {
            let key = Document::new("g", lines).read(limit_key).made;
            key.tenant().map(ToString::to_string).unwrap_or_default()
        };
        assert_eq!(tenant("key = \"instance\""), "instance");
        assert_eq!(tenant("key = [\"claim:sub\", \"organisation\"]"), "organisation");
        assert_eq!(tenant("key = [\"workspace\", \"organisation\"]"), "");
        assert_eq!(tenant("key = \"claim:sub\""), "");
    }
}
