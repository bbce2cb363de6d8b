//! The bodies of the check of a URL.
//!
//! Invariant: a type with a secret implements no `Debug`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::api::dto::attempt::TimingsView;
use crate::delivery::egress::canonical_url::URL_BYTES_MAX;
use crate::delivery::signature::SECRET_CHARS_MAX;
use crate::domain::attempt::Attempt;
use crate::domain::outcome::Outcome;

/// A URL to check.
#[derive(Deserialize, JsonSchema)]
#[schemars(rename = "UrlToCheck")]
#[serde(deny_unknown_fields)]
pub(in crate::api) struct CheckBody {
    /// Where the ping goes: an absolute https URL whose host is public.
    #[schemars(length(max = URL_BYTES_MAX), extend("format" = "uri"))]
    pub(in crate::api) url: String,
    /// The key that signs the ping: `whsec_` and the base64 of 24 to 64 bytes. Default: a new one,
    /// which the receiver cannot know.
    #[schemars(length(max = SECRET_CHARS_MAX))]
    pub(in crate::api) secret: Option<String>,
}

/// What happened to a ping of a URL.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "UrlCheck")]
pub(in crate::api) struct CheckView {
    /// Whether the receiver answered 2xx.
    ok: bool,
    /// `status_…`, `timeout`, `connection`, `tls`, or `unreachable`.
    outcome: String,
    /// The HTTP status, if the receiver answered.
    status: Option<u16>,
    /// Why it failed, in words; null if it did not.
    error: Option<String>,
    /// From the start to the outcome; null if the receiver is unreachable.
    duration_ms: Option<u64>,
    /// The duration of its phases; null if the receiver is unreachable.
    timings: Option<TimingsView>,
}

impl CheckView {
    pub(in crate::api) fn unreachable(why: &str) -> Self {
        Self {
            ok: false,
            outcome: "unreachable".to_owned(),
            status: None,
            error: Some(why.to_owned()),
            duration_ms: None,
            timings: None,
        }
    }

    pub(in crate::api) fn of(attempt: &Attempt) -> Self {
        Self {
            ok: matches!(attempt.outcome, Outcome::Delivered { .. }),
            outcome: attempt.outcome.to_string(),
            status: attempt.outcome.status(),
            error: attempt.error(),
            duration_ms: Some(u64::try_from(attempt.took.as_millis()).unwrap_or(u64::MAX)),
            timings: Some(TimingsView::of(&attempt.trace)),
        }
    }
}
