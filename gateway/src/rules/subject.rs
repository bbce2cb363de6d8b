//! Finds the key that a limit charges for a request. (core)
//!
//! # Invariants
//!
//! 1. A key that a request lacks is charged to its address or to one shared key, as configured; a
//!    missing, repeated or empty header is always the shared value.
//! 2. A header's value leaves here only as its fingerprint.
//! 3. Two values of a part have two names: a name is enough to find the key again.
//! 4. A key is known to the directory only if all its parts are.
//!
//! # Not here
//!
//! How much each may use (`rules::quota`), which tenants a request names (`rules::tenant`).

use std::borrow::Cow;
use std::net::IpAddr;
use std::sync::Arc;

use arrayvec::ArrayVec;
use http::{HeaderMap, HeaderName, header};
use weir_common::time::Moment;

use crate::limit::key::{Fingerprint, Owner, Scope, Seed};
use crate::request::cookies;
use crate::rules::Rules;
use crate::rules::tenant::{Identity, OWN_ORGANISATION, Subject, Tenant, TenantRefs};
use crate::settings::limit_key::{KeyPart, LimitKey, Missing, PARTS_MAX};
use crate::settings::trusted::TrustedHeaders;

/// The name of the value that all requests without a part share.
pub const NO_VALUE: &str = "(none)";

/// The longest value of a claim that is a key: identifiers of users and clients are shorter.
pub const CLAIM_BYTES_MAX: usize = 256;

/// The part of a request that decides what it is charged to.
#[derive(Clone, Copy)]
pub struct KeySources<'r> {
    /// Its tenants.
    pub identity: &'r Identity<'r>,
    /// Its client's address.
    pub address: IpAddr,
    /// As of when it is charged: a calendar's limit allows so much in the period of that time.
    pub now: Moment,
    /// Those claims of its verified token that limits count by.
    pub claims: &'r [KeyClaim],
    /// Its headers.
    pub headers: &'r HeaderMap,
    /// Headers that are dropped, because its peer is no trusted proxy: they count as missing.
    pub dropped: Option<&'r TrustedHeaders>,
}

/// A claim that a limit counts by, and its value in one token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyClaim {
    /// The claim, as the settings name it.
    pub name: Arc<str>,
    /// Its value, as text.
    pub value: Box<str>,
}

/// One part of a request's key.
pub struct FoundPart<'t> {
    /// The value, as in logs and on the admin listener.
    pub name: Arc<str>,
    owner: Owner,
    tenant: Option<&'t Tenant>,
}

impl Rules {
    /// The parts of a request's key, in the order of `key`; none where the request is charged to
    /// its address instead.
    #[must_use]
    pub fn found_parts<'r>(
        &'r self,
        key: &LimitKey,
        sources: &KeySources<'r>,
    ) -> Option<ArrayVec<FoundPart<'r>, PARTS_MAX>> {
        key.parts().iter().map(|part| self.found_part(part, key.missing, sources)).collect()
    }

    /// The tenant that one part of a key charges. None where it is no tenant, where the request
    /// names none, or where the directory does not know it and unknown tenants are charged to the
    /// address.
    pub(super) fn tenant_of<'i>(
        &self,
        part: &KeyPart,
        identity: &'i Identity<'i>,
    ) -> Option<&'i Subject<'i>> {
        let subject = named_tenant(part, identity);
        subject.filter(|subject| subject.tenant.is_some() || !self.by_address)
    }

    /// What a key charges for a request; none where that is its address.
    pub(super) fn combined<'r>(
        &'r self,
        key: &LimitKey,
        sources: &KeySources<'r>,
    ) -> Option<Subject<'r>> {
        self.found_parts(key, sources).map(|parts| subject_of(&self.seed, &parts))
    }

    fn found_part<'r>(
        &'r self,
        part: &KeyPart,
        missing: Missing,
        sources: &KeySources<'r>,
    ) -> Option<FoundPart<'r>> {
        let found = match part {
            KeyPart::Workspace | KeyPart::Organisation | KeyPart::Instance => {
                match self.tenant_of(part, sources.identity) {
                    Some(subject) => Some(FoundPart::of(subject)),
                    // It is unknown to the directory: invented names share no key with others.
                    None if named_tenant(part, sources.identity).is_some() => return None,
                    None => None,
                }
            }
            KeyPart::Address => Some(FoundPart::of(&Subject::address(&self.seed, sources.address))),
            KeyPart::Claim(name) => {
                let claim = sources.claims.iter().find(|claim| claim.name == *name);
                claim.map(|claim| FoundPart::claim(&self.seed, name, &claim.value))
            }
            KeyPart::Header(name) => {
                let value = single_value(sources, name);
                let print = value.map(|value| self.seed.fingerprint(name.as_str(), &value));
                return Some(match print {
                    Some(print) => FoundPart::header(&self.seed, name, print),
                    None => FoundPart::missing(&self.seed, part),
                });
            }
        };
        match missing {
            Missing::Address => found,
            Missing::Shared => Some(found.unwrap_or_else(|| FoundPart::missing(&self.seed, part))),
        }
    }

    /// The tenants that `name` refers to as a key; none where it cannot be one.
    pub(super) fn named_tenants<'n>(
        &self,
        key: &LimitKey,
        name: &'n str,
    ) -> Option<TenantRefs<'n>> {
        let mut refs = TenantRefs::default();
        for (part, name) in key.parts().iter().zip(names_of(key, name)?) {
            if !part.is_tenant() || (name == NO_VALUE && key.missing == Missing::Shared) {
                continue;
            }
            match (part, name.strip_prefix(OWN_ORGANISATION)) {
                (KeyPart::Organisation, Some(own)) if self.workspaces.allows(own) => {
                    refs.workspace = refs.workspace.or(Some(own));
                }
                (_, Some(_)) => return None,
                (KeyPart::Workspace, None) if self.workspaces.allows(name) => {
                    refs.workspace = Some(name);
                }
                (KeyPart::Workspace, None) => return None,
                (_, None) if !weir_common::identifier::is_identifier(name) => return None,
                (KeyPart::Organisation, None) => refs.organisation = Some(name),
                (_, None) => refs.instance = Some(name),
            }
        }
        Some(refs)
    }

    /// What `name` refers to as a key, where its tenants are those of `identity`; none where no
    /// request has it.
    pub(super) fn named_subject<'r>(
        &'r self,
        key: &LimitKey,
        name: &str,
        identity: &'r Identity<'r>,
    ) -> Option<Subject<'r>> {
        let mut parts = ArrayVec::<FoundPart<'r>, PARTS_MAX>::new();
        for (part, name) in key.parts().iter().zip(names_of(key, name)?) {
            let may_lack = matches!(part, KeyPart::Header(_)) || key.missing == Missing::Shared;
            parts.push(match part {
                _ if name == NO_VALUE && may_lack => FoundPart::missing(&self.seed, part),
                KeyPart::Workspace | KeyPart::Organisation | KeyPart::Instance => {
                    // A workspace that belongs to an organisation is not charged as
                    // `workspace:<name>`.
                    let subject = named_tenant(part, identity);
                    FoundPart::of(subject.filter(|subject| &*subject.name == name)?)
                }
                KeyPart::Address => {
                    let name = decoded(name)?;
                    let network = name.strip_suffix("/64").unwrap_or(&name);
                    FoundPart::of(&Subject::address(&self.seed, network.parse().ok()?))
                }
                KeyPart::Claim(claim) => {
                    let value = decoded(name)?;
                    let is_value = (1..=CLAIM_BYTES_MAX).contains(&value.len());
                    is_value.then(|| FoundPart::claim(&self.seed, claim, &value))?
                }
                KeyPart::Header(header) => {
                    let print = Fingerprint::read(name.strip_prefix("header:")?)?;
                    FoundPart::header(&self.seed, header, print)
                }
            });
        }
        Some(subject_of(&self.seed, &parts))
    }
}

impl<'t> FoundPart<'t> {
    fn of(subject: &Subject<'t>) -> Self {
        let Subject { name, owner, tenant, .. } = subject;
        Self { name: name.clone(), owner: *owner, tenant: *tenant }
    }

    fn claim(seed: &Seed, name: &str, value: &str) -> Self {
        Self { name: encoded(value).into(), owner: seed.claim(name, value), tenant: None }
    }

    fn header(seed: &Seed, name: &HeaderName, value: Fingerprint) -> Self {
        let owner = seed.header(name.as_str(), value);
        Self { name: format!("header:{value}").into(), owner, tenant: None }
    }

    fn missing(seed: &Seed, part: &KeyPart) -> Self {
        let owner = seed.owner(Scope::Missing, part.to_string().as_bytes());
        Self { name: NO_VALUE.into(), owner, tenant: None }
    }
}

/// The tenant of a part, whether or not the directory knows it.
fn named_tenant<'i>(part: &KeyPart, identity: &'i Identity<'i>) -> Option<&'i Subject<'i>> {
    match part {
        KeyPart::Workspace => identity.workspace.as_ref(),
        KeyPart::Organisation => identity.organisation.as_ref(),
        KeyPart::Instance => identity.instance.as_ref(),
        KeyPart::Address | KeyPart::Claim(_) | KeyPart::Header(_) => None,
    }
}

/// The value of a header that is sent once and is not empty; cookies may come in several fields.
fn single_value<'r>(sources: &KeySources<'r>, name: &HeaderName) -> Option<Cow<'r, [u8]>> {
    if sources.dropped.is_some_and(|dropped| dropped.has(name.as_str())) {
        return None;
    }
    if *name == header::COOKIE
        && let Some(joined) = cookies::joined(sources.headers)
    {
        return Some(joined.into());
    }
    let mut values = sources.headers.get_all(name).iter();
    let value = values.next().filter(|_| values.next().is_none())?;
    Some(value.as_bytes().trim_ascii()).filter(|value| !value.is_empty()).map(Cow::Borrowed)
}

fn subject_of<'t>(seed: &Seed, parts: &[FoundPart<'t>]) -> Subject<'t> {
    if let [part] = parts {
        let (name, owner) = (part.name.clone(), part.owner);
        return Subject { name, owner, first: owner, tenant: part.tenant };
    }
    let mut name = String::new();
    for part in parts {
        let slash = if name.is_empty() { "" } else { "/" };
        // The network of an IPv6 address has a slash of its own.
        name.extend([slash, &part.name.replace('/', "%2F")]);
    }
    let all_known = parts.iter().all(|part| part.tenant.is_some());
    let owner = seed.combined(parts.iter().map(|part| part.owner));
    Subject {
        name: name.into(),
        owner,
        first: parts.first().map_or(owner, |part| part.owner),
        tenant: parts.first().and_then(|part| part.tenant).filter(|_| all_known),
    }
}

/// The name of each part; none where there are more or fewer.
fn names_of<'n>(key: &LimitKey, name: &'n str) -> Option<ArrayVec<&'n str, PARTS_MAX>> {
    if key.parts().len() == 1 {
        return Some(ArrayVec::from_iter([name]));
    }
    let count = name.split('/').count();
    (count == key.parts().len()).then(|| name.split('/').collect())
}

/// A claim's value as a name: on one line, with no slash, and not [`NO_VALUE`].
fn encoded(value: &str) -> String {
    let is_plain =
        |one: char| one == ' ' || one.is_alphanumeric() || (one.is_ascii_graphic() && one != '/');
    let mut name = String::with_capacity(value.len());
    for (at, one) in value.char_indices() {
        if is_plain(one) && one != '%' && !(at == 0 && value == NO_VALUE) {
            name.push(one);
        } else {
            let mut bytes = [0; 4];
            for byte in one.encode_utf8(&mut bytes).bytes() {
                name.push_str(&format!("%{byte:02X}"));
            }
        }
    }
    name
}

fn decoded(name: &str) -> Option<Cow<'_, str>> {
    percent_encoding::percent_decode_str(name).decode_utf8().ok()
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;
    use weir_common::config::document::Document;
    use weir_common::directory::Directory;

    use super::*;

    const SEED: Seed = Seed::new([1; 16]);
    const SHIPPED: &str = include_str!("../../../config/gateway.toml");
    const DIRECTORY: &str = "[organisations.org_a]\n[workspaces.ws_a]\norganisation = \"org_a\"\n";

    fn rules(unknown: &str) -> Rules {
        let text = SHIPPED.replacen("unknown = \"own_key\"", unknown, 1);
        let (document, of_directory) = (Document::new("g", &text), Document::new("d", DIRECTORY));
        let raw = crate::settings::read::read(&document).made;
        let directory = Directory::read(&of_directory, &raw.settings.workspaces);
        crate::rules::compile::check((&raw, &document), (&directory, &of_directory), SEED)
    }

    fn key(lines: &str) -> LimitKey {
        let text =
            format!("[limits.own]\n{lines}\nalgorithm = \"token_bucket\"\nrate = 1\nburst = 1\n");
        let raw = crate::settings::read::read(&Document::new("g", &text)).made;
        raw.limits.into_iter().next().unwrap().1.key
    }

    /// A request: its workspace, its `sub`, and the values of both `X-Key` and `Cookie`.
    struct Sent<'a>(&'a str, &'a str, &'a [&'a str]);

    /// The name of what a request is charged to; "address" where that is its address.
    fn charged(rules: &Rules, key: &LimitKey, Sent(workspace, sub, headers): Sent<'_>) -> String {
        let some = |text| Some(text).filter(|text: &&str| !text.is_empty());
        let refs = TenantRefs { workspace: some(workspace), ..TenantRefs::default() };
        let identity = rules.identify(&refs, None);
        let claim = |sub: &str| KeyClaim { name: "sub".into(), value: sub.into() };
        let claims: Vec<KeyClaim> = some(sub).map(claim).into_iter().collect();
        let mut map = HeaderMap::new();
        for value in headers {
            for name in ["x-key", "cookie"] {
                map.append(name, HeaderValue::from_bytes(value.as_bytes()).unwrap());
            }
        }
        let address = "2001:db8::1".parse().unwrap();
        let sources = KeySources {
            identity: &identity,
            address,
            now: Moment::default(),
            claims: &claims,
            headers: &map,
            dropped: None,
        };
        let Some(subject) = rules.combined(key, &sources) else { return "address".to_owned() };
        // The name alone leads to the same key again.
        let refs = rules.named_tenants(key, &subject.name).unwrap();
        let named = rules.identify(&refs, None);
        let again = rules.named_subject(key, &subject.name, &named).unwrap();
        assert_eq!((again.owner, &again.name), (subject.owner, &subject.name));
        assert_eq!(again.tenant.is_some(), subject.tenant.is_some());
        let known = if subject.tenant.is_some() { " known" } else { "" };
        format!("{}{known}", subject.name)
    }

    #[test]
    fn a_key_is_the_values_of_its_parts_and_known_if_all_are() {
        let rules = rules("unknown = \"own_key\"");
        for (lines, name) in [
            ("key = \"workspace\"", "ws_a known"),
            ("key = \"claim:sub\"", "user 7"),
            ("key = [\"workspace\", \"claim:sub\"]", "ws_a/user 7"),
            ("key = [\"claim:sub\", \"organisation\"]", "user 7/org_a"),
            ("key = [\"workspace\", \"organisation\"]", "ws_a/org_a known"),
            ("key = [\"workspace\", \"address\"]", "ws_a/2001:db8::%2F64"),
        ] {
            assert_eq!(charged(&rules, &key(lines), Sent("ws_a", "user 7", &[])), name, "{lines}");
        }
        let two = key("key = [\"workspace\", \"organisation\"]");
        assert_eq!(charged(&rules, &two, Sent("ws_b", "", &[])), "ws_b/workspace:ws_b");
    }

    #[test]
    fn a_request_that_lacks_a_part_is_charged_to_its_address_or_to_the_shared_value() {
        let rules = rules("unknown = \"own_key\"");
        let lacking = |lines: &str| charged(&rules, &key(lines), Sent("ws_a", "", &[]));
        assert_eq!(lacking("key = \"claim:sub\""), "address");
        assert_eq!(lacking("key = [\"workspace\", \"claim:sub\"]"), "address");
        assert_eq!(lacking("key = \"claim:sub\"\nmissing = \"shared\""), "(none)");
        let shared = "key = [\"workspace\", \"claim:sub\"]\nmissing = \"shared\"";
        assert_eq!(lacking(shared), "ws_a/(none)");
        let none = charged(&rules, &key(shared), Sent("", "", &[]));
        assert_eq!(none, "(none)/(none)");
    }

    #[test]
    fn on_a_public_gateway_an_invented_tenant_shares_no_key() {
        let rules = rules("unknown = \"by_address\"");
        let shared = key("key = [\"workspace\", \"claim:sub\"]\nmissing = \"shared\"");
        assert_eq!(charged(&rules, &shared, Sent("ws_new", "u", &[])), "address");
        assert_eq!(charged(&rules, &shared, Sent("", "u", &[])), "(none)/u");
        assert_eq!(charged(&rules, &shared, Sent("ws_a", "u", &[])), "ws_a/u");
    }

    #[test]
    fn a_header_is_its_fingerprint_and_one_that_is_missing_repeated_or_empty_is_shared() {
        let rules = rules("unknown = \"own_key\"");
        let header = key("key = \"header:X-Key\"");
        let name = |values: &[&str]| charged(&rules, &header, Sent("", "", values));
        let (one, other) = (name(&["secret-1"]), name(&["secret-2"]));
        assert_ne!(one, other);
        assert!(one.starts_with("header:") && one.len() == 39 && !one.contains("secret"), "{one}");
        assert_eq!(name(&[" secret-1\t"]), one, "spaces around a value are no part of it");
        for shared in [&[][..], &[""], &[" "], &["secret-1", "secret-1"], &["a", ""]] {
            assert_eq!(name(shared), "(none)", "{shared:?}");
        }
        let both = key("key = [\"workspace\", \"header:X-Key\"]");
        let name = charged(&rules, &both, Sent("ws_a", "", &["secret-1"]));
        assert_eq!(name, format!("ws_a/{one}"));
        assert_eq!(charged(&rules, &both, Sent("", "", &["secret-1"])), "address");
    }

    #[test]
    fn cookies_in_several_fields_are_those_in_one() {
        let rules = rules("unknown = \"own_key\"");
        let cookies = key("key = \"header:Cookie\"");
        let name = |values: &[&str]| charged(&rules, &cookies, Sent("", "", values));
        assert_eq!(name(&["a=1", "b=2"]), name(&["a=1; b=2"]));
        assert_ne!(name(&["a=1", "b=2"]), name(&["a=1", "b=3"]));
    }

    #[test]
    fn a_header_that_only_a_trusted_proxy_may_send_is_missing_from_others() {
        let rules = rules("unknown = \"own_key\"");
        let settings = crate::settings::read::read(&Document::new("g", SHIPPED)).made.settings;
        let key = key("key = \"header:X-Remote-User\"");
        let headers: HeaderMap = [("x-remote-user", "me")]
            .map(|(name, value)| (name.parse().unwrap(), HeaderValue::from_static(value)))
            .into_iter()
            .collect();
        let identity = rules.identify(&TenantRefs::default(), None);
        let name = |dropped| {
            let address = IpAddr::from([127, 0, 0, 1]);
            let (identity, headers) = (&identity, &headers);
            let sources = KeySources {
                identity,
                address,
                now: Moment::default(),
                claims: &[],
                headers,
                dropped,
            };
            rules.combined(&key, &sources).unwrap().name
        };
        assert!(name(None).starts_with("header:"));
        assert_eq!(&*name(Some(&settings.server.trusted_headers)), NO_VALUE);
    }

    #[test]
    fn a_claims_name_is_one_line_without_a_slash_and_never_the_shared_value() {
        for (value, name) in [
            ("auth0|7@x.test", "auth0|7@x.test"),
            ("jürgen 7", "jürgen 7"),
            ("a/b%2F", "a%2Fb%252F"),
            ("(none)", "%28none)"),
            ("(none", "(none"),
            ("a\nb\u{1b}[2J\u{202e}", "a%0Ab%1B[2J%E2%80%AE"),
        ] {
            assert_eq!(encoded(value), name);
            assert_eq!(decoded(name).as_deref(), Some(value));
        }
    }

    #[test]
    fn a_name_that_no_request_has_is_no_key() {
        let rules = rules("unknown = \"own_key\"");
        let long = format!("ws_a/{}", "u".repeat(CLAIM_BYTES_MAX + 1));
        let key = key("key = [\"workspace\", \"claim:sub\"]");
        let found = |name: &str| {
            let refs = rules.named_tenants(&key, name)?;
            rules.named_subject(&key, name, &rules.identify(&refs, None)).map(|found| found.owner)
        };
        assert!(found("ws_a/u").is_some());
        for name in ["ws_a", "ws_a/", "ws_a/u/v", "wsa/u", "/u", "ws_a/(none)/", "(none)/u", &long]
        {
            assert_eq!(found(name), None, "{name}");
        }
    }
}
