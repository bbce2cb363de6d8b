//! What an owner sets of a webhook apart from its URL and event types. (core)
//!
//! Invariant: a change that would exceed a limit changes nothing.

#![expect(missing_docs, reason = "plain data: the names of fields say what they are")]

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::time::Duration;

use http::header::{HeaderName, HeaderValue};
use weir_common::limit::rolling::RollingQuota;

use crate::domain::webhook::client_certificate::ClientCertificate;
use crate::domain::webhook::headers::{CustomHeaders, HEADERS_BYTES_MAX, HEADERS_MAX};

/// Characters of a description: a sentence or two.
pub const DESCRIPTION_CHARS_MAX: usize = 256;

/// Entries of the metadata, characters of a key, and of a value: identifiers in other systems.
pub const METADATA_MAX: usize = 16;
pub const METADATA_KEY_CHARS_MAX: usize = 64;
pub const METADATA_VALUE_CHARS_MAX: usize = 256;

/// The most attempts a minute that an owner may set: above it, only the platform's limit is of use.
pub const REQUESTS_PER_MINUTE_MAX: u32 = 60_000;

/// The window of an owner's rate limit.
pub const OWN_WINDOW: Duration = Duration::from_secs(60);

/// An owner's rate limit; above [`REQUESTS_PER_MINUTE_MAX`] it is that.
#[must_use]
pub fn per_minute(requests: u32) -> RollingQuota {
    RollingQuota { requests: requests.min(REQUESTS_PER_MINUTE_MAX), window: OWN_WINDOW }
}

/// What an owner sets.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct WebhookOptions {
    /// Of use to the owner alone; `None` without any.
    pub labels: Option<Box<Labels>>,
    /// Sent with each delivery.
    pub headers: CustomHeaders,
    /// Whether the answers of successful attempts are kept, whatever the operator's setting.
    pub all_answers: bool,
    /// Attempts that may start within a minute, in addition to the platform's limits.
    pub requests_per_minute: Option<NonZeroU32>,
    /// Shown to receivers that verify their clients, instead of the platform's.
    pub client_certificate: Option<ClientCertificate>,
}

/// What an owner notes about a webhook.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Labels {
    pub description: Option<String>,
    pub metadata: BTreeMap<String, String>,
}

/// A change of options; what is absent stays.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct OptionsChange {
    /// An empty one removes it.
    pub description: Option<String>,
    /// `None` removes an entry.
    pub metadata: BTreeMap<String, Option<String>>,
    /// `None` removes a header.
    pub headers: Vec<(HeaderName, Option<HeaderValue>)>,
    pub all_answers: Option<bool>,
    /// 0 removes the limit.
    pub requests_per_minute: Option<u32>,
    pub client_certificate: CertificateChange,
}

/// A change of the client certificate.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum CertificateChange {
    /// It stays, or there is none.
    #[default]
    Keep,
    /// This one is shown from now on.
    Set(ClientCertificate),
    /// There is none from now on.
    Remove,
}

/// A limit that a change would exceed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OptionsError {
    #[error("must have at most {HEADERS_MAX} headers")]
    Headers,
    #[error("must have at most {HEADERS_BYTES_MAX} bytes of names and values in all")]
    HeaderBytes,
    #[error("must have at most {METADATA_MAX} entries")]
    Metadata,
}

impl OptionsError {
    /// The member of a body that exceeds the limit.
    #[must_use]
    pub fn member(self) -> &'static str {
        match self {
            Self::Headers | Self::HeaderBytes => "headers",
            Self::Metadata => "metadata",
        }
    }
}

impl WebhookOptions {
    /// The options after a change.
    pub fn changed(&self, change: OptionsChange) -> Result<Self, OptionsError> {
        let mut labels = self.labels.as_deref().cloned().unwrap_or_default();
        if let Some(text) = change.description {
            labels.description = Some(text).filter(|text| !text.is_empty());
        }
        for (key, value) in change.metadata {
            match value {
                Some(value) => labels.metadata.insert(key, value),
                None => labels.metadata.remove(&key),
            };
        }
        let headers = self.headers.changed(change.headers);
        if labels.metadata.len() > METADATA_MAX {
            return Err(OptionsError::Metadata);
        }
        if headers.count() > HEADERS_MAX {
            return Err(OptionsError::Headers);
        }
        if headers.bytes() > HEADERS_BYTES_MAX {
            return Err(OptionsError::HeaderBytes);
        }
        let labels = (labels != Labels::default()).then(|| Box::new(labels));
        let all_answers = change.all_answers.unwrap_or(self.all_answers);
        let requests_per_minute =
            change.requests_per_minute.map_or(self.requests_per_minute, NonZeroU32::new);
        let client_certificate = match change.client_certificate {
            CertificateChange::Keep => self.client_certificate.clone(),
            CertificateChange::Set(certificate) => Some(certificate),
            CertificateChange::Remove => None,
        };
        Ok(Self { labels, headers, all_answers, requests_per_minute, client_certificate })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::webhook::headers::value_of;

    fn entry(key: &str, value: Option<&str>) -> (String, Option<String>) {
        (key.to_owned(), value.map(str::to_owned))
    }

    #[test]
    fn a_change_sets_what_it_names_and_null_removes() {
        let change = OptionsChange {
            description: Some("Orders".to_owned()),
            metadata: [entry("team", Some("a")), entry("id", Some(""))].into(),
            all_answers: Some(true),
            requests_per_minute: Some(7),
            ..OptionsChange::default()
        };
        let one = WebhookOptions::default().changed(change).unwrap();
        assert_eq!(one.changed(OptionsChange::default()), Ok(one.clone()));
        let labels = one.labels.as_deref().unwrap();
        assert_eq!((labels.description.as_deref(), labels.metadata.len()), (Some("Orders"), 2));
        let change = OptionsChange {
            description: Some(String::new()),
            metadata: [entry("team", None), entry("id", None), entry("none", None)].into(),
            requests_per_minute: Some(0),
            ..OptionsChange::default()
        };
        let bare = one.changed(change).unwrap();
        assert_eq!(one.requests_per_minute.map(NonZeroU32::get), Some(7));
        assert_eq!(bare, WebhookOptions { labels: None, requests_per_minute: None, ..one });
    }

    #[test]
    fn what_exceeds_a_limit_is_refused() {
        let metadata = |count: usize| OptionsChange {
            metadata: (0..count).map(|nth| entry(&nth.to_string(), Some("x"))).collect(),
            ..OptionsChange::default()
        };
        let full = WebhookOptions::default().changed(metadata(METADATA_MAX)).unwrap();
        let one_more = OptionsChange {
            metadata: [entry("more", Some("x"))].into(),
            ..OptionsChange::default()
        };
        assert_eq!(full.changed(one_more.clone()), Err(OptionsError::Metadata));
        let mut exchanged = one_more;
        exchanged.metadata.extend([entry("0", None)]);
        assert!(full.changed(exchanged).is_ok(), "the change counts as a whole");
        let headers = |count: usize, bytes: usize| {
            let value = value_of(&"x".repeat(bytes)).unwrap();
            let header = |nth: usize| {
                let name = format!("h{nth:03}").parse().unwrap();
                (name, Some(value.clone()))
            };
            let headers = (0..count).map(header).collect();
            WebhookOptions::default().changed(OptionsChange { headers, ..Default::default() })
        };
        assert!(headers(HEADERS_MAX, 8).is_ok() && headers(4, 1_020).is_ok());
        assert_eq!(headers(HEADERS_MAX + 1, 8), Err(OptionsError::Headers));
        assert_eq!(headers(4, 1_021), Err(OptionsError::HeaderBytes));
    }
}
