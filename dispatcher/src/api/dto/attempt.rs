//! An attempt, as the API shows it: what was called, how long each phase took, what was answered.
//!
//! Invariant: a body is shown as text only if it has no control characters; otherwise in base64.

use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use schemars::JsonSchema;
use serde::Serialize;

use crate::api::dto::Time;
use crate::domain::attempt::RecordedAttempt;
use crate::domain::trace::Trace;
use crate::domain::transcript::{Headers, RecordedAnswer};

/// One attempt.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Attempt")]
pub(in crate::api) struct AttemptView {
    /// Counted from 1.
    number: u32,
    /// When it started.
    started_at: Time,
    /// From the start to the outcome.
    duration_ms: u64,
    /// `status_…`, `timeout`, `dns`, `refused`, `connection`, `tls` or `blocked_address`.
    outcome: String,
    /// The HTTP status, if the receiver answered.
    status: Option<u16>,
    /// Why it failed, in words; null if it did not.
    error: Option<String>,
    /// The URL that it called.
    url: Option<String>,
    /// The address that it called, if it may be shown.
    address: Option<String>,
    /// The duration of its phases.
    timings: TimingsView,
    /// The request, if it was sent and is kept.
    request: Option<RequestView>,
    /// The response, if it arrived and is kept.
    response: Option<ResponseView>,
}

/// The duration of an attempt's phases, in milliseconds; null for those that did not end.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Timings")]
pub(in crate::api) struct TimingsView {
    /// Whether it used a connection of an earlier attempt, and had no phases before the request.
    reused_connection: bool,
    /// The lookup of the host name.
    dns_ms: Option<f64>,
    /// The TCP handshake.
    connect_ms: Option<f64>,
    /// The TLS handshake.
    tls_ms: Option<f64>,
    /// From the request to the end of the response's headers.
    first_byte_ms: Option<f64>,
}

/// The request of an attempt. Its body is the event's envelope.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "AttemptRequest")]
struct RequestView {
    /// Its headers; `***` takes the place of signatures.
    headers: Vec<HeaderView>,
    /// Whether some headers are missing.
    headers_truncated: bool,
}

/// The response to an attempt; `***` takes the place of secrets and signatures.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "AttemptResponse")]
struct ResponseView {
    /// Its headers.
    headers: Vec<HeaderView>,
    /// Whether some headers are missing.
    headers_truncated: bool,
    /// The start of its body.
    body: String,
    /// How `body` is written.
    body_encoding: BodyEncoding,
    /// Whether the body is longer.
    body_truncated: bool,
}

/// How a body is written.
#[derive(Clone, Copy, Debug, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum BodyEncoding {
    /// As it is: UTF-8 without control characters other than ends of lines and tabs.
    Text,
    /// In base64: it is not text.
    Base64,
}

/// A header.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Header")]
struct HeaderView {
    /// Its name, in lower case.
    name: String,
    /// Its value.
    value: String,
}

impl AttemptView {
    pub(in crate::api) fn of(recorded: RecordedAttempt) -> Self {
        let RecordedAttempt { attempt, url, transcript } = recorded;
        let (request, response) =
            transcript.map_or((None, None), |found| (Some(found.request), found.answer));
        Self {
            number: attempt.number,
            started_at: Time(attempt.started_at),
            duration_ms: u64::try_from(attempt.took.as_millis()).unwrap_or(u64::MAX),
            outcome: attempt.outcome.to_string(),
            status: attempt.outcome.status(),
            error: attempt.error(),
            url: url.map(|url| url.to_string()),
            address: attempt.trace.address.map(|address| address.to_string()),
            timings: TimingsView::of(&attempt.trace),
            request: request.map(|request| {
                let headers_truncated = request.cut;
                RequestView { headers: headers(request), headers_truncated }
            }),
            response: response.map(ResponseView::of),
        }
    }
}

impl TimingsView {
    pub(in crate::api) fn of(trace: &Trace) -> Self {
        let ms = |took: Option<Duration>| took.map(|took| took.as_micros() as f64 / 1_000.0);
        Self {
            reused_connection: trace.reused,
            dns_ms: ms(trace.dns),
            connect_ms: ms(trace.connect),
            tls_ms: ms(trace.tls),
            first_byte_ms: ms(trace.first_byte),
        }
    }
}

impl ResponseView {
    fn of(answer: RecordedAnswer) -> Self {
        let (body, body_encoding) = match answer.text() {
            Some(text) => (text.to_owned(), BodyEncoding::Text),
            None => (STANDARD.encode(&answer.body), BodyEncoding::Base64),
        };
        Self {
            headers_truncated: answer.headers.cut,
            headers: headers(answer.headers),
            body,
            body_encoding,
            body_truncated: answer.cut,
        }
    }
}

fn headers(headers: Headers) -> Vec<HeaderView> {
    headers.fields.into_iter().map(|(name, value)| HeaderView { name, value }).collect()
}
