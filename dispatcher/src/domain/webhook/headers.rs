//! The headers that an owner adds to a webhook's deliveries. (core)
//!
//! # Invariants
//!
//! 1. None has a name that frames a message, or that the dispatcher sends.
//! 2. Their values are secret: `Debug` shows none.
//!
//! Not here: how they are sealed on disk (`store::encryption`).

use std::collections::BTreeMap;
use std::sync::Arc;

use http::header::{HeaderName, HeaderValue};

/// Headers of a webhook, at most: tokens and routing keys take a few.
pub const HEADERS_MAX: usize = 16;

/// Bytes of all names and values: receivers limit a request's headers to 8 KiB or more.
pub const HEADERS_BYTES_MAX: usize = 4 * 1024;

/// Characters of a name.
pub const NAME_CHARS_MAX: usize = 128;

/// Characters of a value: long enough for a signed token.
pub const VALUE_CHARS_MAX: usize = 1024;

/// Stands for every value that is shown.
pub const SHOWN: &str = "********";

/// Names that frame a message, or that the dispatcher sends. Its responses are never decompressed,
/// so none is asked to be compressed.
const RESERVED: [&str; 13] = [
    "accept",
    "accept-encoding",
    "connection",
    "date",
    "expect",
    "host",
    "http2-settings",
    "keep-alive",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "user-agent",
];

const RESERVED_PREFIXES: [&str; 3] = ["content-", "proxy-", "webhook-"];

/// Names in lower case, with their values.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CustomHeaders(Option<Arc<[(HeaderName, HeaderValue)]>>);

/// Why no webhook may have a header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HeaderError {
    /// Not a token of RFC 9110.
    #[error("is not a header's name: letters, digits and !#$%&'*+-.^_`|~")]
    Name,
    /// A name of the protocol's or the dispatcher's.
    #[error("is a header that HTTP or the sender of webhooks uses itself")]
    Reserved,
    /// Empty, or with characters that a value does not have.
    #[error("must be ASCII without control characters, and not begin or end with a space")]
    Value,
    /// What is shown in place of a value.
    #[error("is what stands for a value when it is shown; leave the header out to keep its value")]
    Shown,
}

/// A header's name. `signature` is the header that has the signature: its prefix is ours, too.
pub fn name_of(text: &str, signature: &HeaderName) -> Result<HeaderName, HeaderError> {
    let name: HeaderName = text.parse().map_err(|_| HeaderError::Name)?;
    // CGI and WSGI read `_` and `-` as one.
    let alike = |name: &str| name.replace('_', "-");
    let read = alike(name.as_str());
    let is_reserved = read == alike(signature.as_str())
        || RESERVED.contains(&read.as_str())
        || RESERVED_PREFIXES.into_iter().any(|prefix| read.starts_with(prefix))
        || test_header(signature).is_some_and(|of_tests| read == alike(of_tests.as_str()))
        || brand(signature).is_some_and(|prefix| read.starts_with(&alike(prefix)));
    if is_reserved { Err(HeaderError::Reserved) } else { Ok(name) }
}

/// The header that marks a test, named as the signature's is: `Service-Test`.
#[must_use]
pub fn test_header(signature: &HeaderName) -> Option<HeaderName> {
    let name = signature.as_str();
    let brand = name.strip_suffix("-signature").unwrap_or(name);
    format!("{brand}-test").parse().ok()
}

/// What the operator's headers begin with: `service-` of `service-signature`. `x-` is anybody's.
fn brand(signature: &HeaderName) -> Option<&str> {
    let (prefix, _) = signature.as_str().split_at(signature.as_str().rfind('-')? + 1);
    Some(prefix).filter(|prefix| *prefix != "x-")
}

/// A header's value.
pub fn value_of(text: &str) -> Result<HeaderValue, HeaderError> {
    if text == SHOWN {
        return Err(HeaderError::Shown);
    }
    let is_plain = text.is_ascii() && !text.is_empty() && text.trim() == text;
    let value = HeaderValue::from_str(text).ok().filter(|_| is_plain);
    let mut value = value.ok_or(HeaderError::Value)?;
    value.set_sensitive(true);
    Ok(value)
}

impl CustomHeaders {
    /// Names and values, by name.
    pub fn iter(&self) -> impl Iterator<Item = &(HeaderName, HeaderValue)> {
        self.0.iter().flat_map(|headers| headers.iter())
    }

    /// Replaces or adds the headers with a value, and removes those without.
    #[must_use]
    pub fn changed(&self, change: Vec<(HeaderName, Option<HeaderValue>)>) -> Self {
        let mut all: BTreeMap<String, (HeaderName, HeaderValue)> =
            self.iter().map(|header| (header.0.to_string(), header.clone())).collect();
        for (name, value) in change {
            match value {
                Some(value) => all.insert(name.to_string(), (name, value)),
                None => all.remove(name.as_str()),
            };
        }
        Self((!all.is_empty()).then(|| all.into_values().collect()))
    }

    /// Their number.
    #[must_use]
    pub fn count(&self) -> usize {
        self.iter().count()
    }

    /// The bytes of all names and values.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.iter().map(|(name, value)| name.as_str().len() + value.len()).sum()
    }

    /// The form that is sealed; `None` without headers.
    #[must_use]
    pub fn stored(&self) -> Option<String> {
        let text = |(name, value): &(HeaderName, HeaderValue)| {
            Some((name.to_string(), value.to_str().ok()?.to_owned()))
        };
        let all: BTreeMap<String, String> = self.iter().filter_map(text).collect();
        self.0.as_ref().and_then(|_| serde_json::to_string(&all).ok())
    }

    /// The headers of their stored form; `None` if that is damaged.
    #[must_use]
    pub fn of_stored(stored: &str) -> Option<Self> {
        let all: BTreeMap<String, String> = serde_json::from_str(stored).ok()?;
        let header = |(name, value): (String, String)| {
            Some((name.parse().ok()?, Some(value_of(&value).ok()?)))
        };
        let all: Option<Vec<_>> = all.into_iter().map(header).collect();
        Some(Self::default().changed(all?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIGNATURE: HeaderName = HeaderName::from_static("service-signature");

    fn headers(all: &[(&str, &str)]) -> CustomHeaders {
        let header = |(name, value): &(&str, &str)| {
            (name_of(name, &SIGNATURE).unwrap(), Some(value_of(value).unwrap()))
        };
        CustomHeaders::default().changed(all.iter().map(header).collect())
    }

    #[test]
    fn names_of_http_and_of_the_dispatcher_are_reserved() {
        for name in [
            "Host",
            "content-type",
            "Content-Length",
            "Transfer-Encoding",
            "connection",
            "Proxy-Authorization",
            "TE",
            "User-Agent",
            "Service-Signature",
            "service-anything",
            "Webhook-Signature",
            "webhook-other",
            "Service_Signature",
            "webhook_id",
            "Content_Length",
            "transfer_encoding",
        ] {
            assert_eq!(name_of(name, &SIGNATURE), Err(HeaderError::Reserved), "{name}");
        }
        for name in ["Authorization", "x-api-key", "x_key", "servicesignature", "contents"] {
            assert_eq!(name_of(name, &SIGNATURE).unwrap().as_str(), name.to_lowercase(), "{name}");
        }
        for name in ["", "a b", "a:", "ä", "a\r\nb", "(x)"] {
            assert_eq!(name_of(name, &SIGNATURE), Err(HeaderError::Name), "{name:?}");
        }
    }

    #[test]
    fn the_prefix_of_the_signature_is_reserved_unless_it_is_anybodys() {
        let branded = HeaderName::from_static("x-acme-signature");
        assert_eq!(name_of("X-Acme-Token", &branded), Err(HeaderError::Reserved));
        assert!(name_of("X-Token", &branded).is_ok());
        let bare = HeaderName::from_static("x-signature");
        assert_eq!(name_of("X-Signature", &bare), Err(HeaderError::Reserved));
        assert!(name_of("X-Token", &bare).is_ok());
        assert_eq!(name_of("X-Test", &bare), Err(HeaderError::Reserved));
        let other = HeaderName::from_static("signature");
        assert_eq!(name_of("Signature-Test", &other), Err(HeaderError::Reserved));
        assert!(name_of("sign-in", &HeaderName::from_static("signature")).is_ok());
    }

    #[test]
    fn a_value_is_plain_text_and_no_debug_shows_it() {
        for value in ["", " a", "a ", "a\nb", "a\0", "ä", "a\x7f", "\t"] {
            assert_eq!(value_of(value), Err(HeaderError::Value), "{value:?}");
        }
        assert_eq!(value_of(SHOWN), Err(HeaderError::Shown));
        let shown = format!("{:?}", headers(&[("authorization", "Bearer hidden")]));
        assert!(shown.contains("authorization") && !shown.contains("hidden"), "{shown}");
    }

    #[test]
    fn a_change_adds_replaces_and_removes_by_name() {
        let one = headers(&[("b", "1"), ("a", "2")]);
        let name = |text| name_of(text, &SIGNATURE).unwrap();
        let change = vec![(name("A"), None), (name("B"), value_of("3").ok()), (name("none"), None)];
        let other = one.changed(change.clone());
        assert_eq!(other, headers(&[("b", "3")]));
        assert_eq!(one.changed(vec![(name("b"), None), (name("a"), None)]).count(), 0);
        assert_eq!((one.count(), one.bytes()), (2, 4));
    }

    #[test]
    fn headers_are_read_back_from_their_stored_form() {
        let all = headers(&[("authorization", "Basic \"quoted\\\""), ("x", "tab\there")]);
        let stored = all.stored().unwrap();
        assert_eq!(CustomHeaders::of_stored(&stored), Some(all));
        assert_eq!(CustomHeaders::default().stored(), None);
        for damaged in ["", "{", "[]", "{\"a b\": \"x\"}", "{\"a\": \"\"}"] {
            assert_eq!(CustomHeaders::of_stored(damaged), None, "{damaged}");
        }
    }
}
