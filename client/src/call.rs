//! A call and its answer as values: paths, queries, refusals, and which may be repeated. (core)
//!
//! # Invariants
//!
//! 1. A path has only identifiers in its variable parts: no text of a caller leads elsewhere.
//! 2. [`Answer::is_unexecuted`] is true only if the call was refused before anything was done.
//!
//! Not here: how long to wait (`backoff`).

use std::fmt;
use std::time::Duration;

use bytes::Bytes;
use http::Method;
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::Value;
use weir_common::identifier::is_identifier;

/// The prefix of the types of Weir's own refusals.
const TYPES: &str = "urn:weir:problem:";

/// The refusal of a limit: other calls with the token wait as well.
const RATE_LIMITED: &str = "rate-limited";

/// The longest text of a refusal that is passed on.
const DETAIL_CHARS_MAX: usize = 500;

/// The longest list of faults that is passed on: a body has few, each of some words.
const FAULTS_BYTES_MAX: usize = 8 * 1024;

/// Why a call can be sent again, or shared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallKind {
    /// A list: its answer serves the same call for five seconds.
    List,
    /// Another read: its answer serves the same calls that wait for it.
    Read,
    /// A change. It is repeated only if it was refused before anything was done.
    Write,
}

/// A call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    /// What kind of call.
    pub kind: CallKind,
    /// The method.
    pub method: Method,
    /// The path and the query.
    pub target: String,
    /// The JSON body.
    pub body: Option<String>,
}

impl Call {
    /// A read of `path`.
    #[must_use]
    pub fn read(path: String) -> Self {
        Self { kind: CallKind::Read, method: Method::GET, target: path, body: None }
    }

    /// A list at `path`, with parameters.
    #[must_use]
    pub fn list(path: &str, query: &[(&str, String)]) -> Self {
        let mut encoded = form_urlencoded::Serializer::new(String::new());
        encoded.extend_pairs(query);
        let query = encoded.finish();
        let mark = if query.is_empty() { "" } else { "?" };
        let target = format!("{path}{mark}{query}");
        Self { kind: CallKind::List, ..Self::read(target) }
    }

    /// A read that is posted: it changes nothing.
    #[must_use]
    pub fn preview(path: String, body: &Value) -> Self {
        Self { method: Method::POST, body: Some(body.to_string()), ..Self::read(path) }
    }

    /// A change at `path`, with a JSON body if there is one.
    #[must_use]
    pub fn write(method: Method, path: String, body: Option<&Value>) -> Self {
        Self { kind: CallKind::Write, method, target: path, body: body.map(Value::to_string) }
    }

    /// What two identical calls have in common, and others have not.
    #[must_use]
    pub fn text(&self) -> String {
        format!("{} {}\n{}", self.method, self.target, self.body.as_deref().unwrap_or_default())
    }
}

/// A variable part of a path.
///
/// # Errors
///
/// If `text` is no identifier: it could lead to another path.
pub fn segment<'a>(what: &'static str, text: &'a str) -> Result<&'a str, CallError> {
    if is_identifier(text) { Ok(text) } else { Err(CallError::NoIdentifier(what)) }
}

/// What the headers of an answer show of the limit that binds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Allowance {
    /// The limit's name.
    pub limit: String,
    /// What it allows.
    pub allowed: u64,
    /// What is left.
    pub remaining: u64,
    /// The Unix second at which all of it is back.
    pub reset: u64,
}

/// A response.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Answer {
    /// The status.
    pub status: u16,
    /// `Retry-After`.
    pub retry_after: Option<String>,
    /// The limit that binds.
    pub allowance: Option<Allowance>,
    /// The body.
    pub body: Bytes,
}

impl Answer {
    /// Whether the call was refused for now, before anything was done, so that it may be repeated
    /// whatever it does: every 429, and a 503 of Weir's own. Another 503 may come from a server
    /// that had begun.
    #[must_use]
    pub fn is_unexecuted(&self, kind: CallKind) -> bool {
        match self.status {
            429 => true,
            503 => kind != CallKind::Write || Problem::of(self).kind.is_some(),
            _ => false,
        }
    }

    /// Whether a limit refused it that the token's other calls meet as well.
    #[must_use]
    pub fn is_rate_limited(&self) -> bool {
        self.status == 429 && Problem::of(self).kind.as_deref() == Some(RATE_LIMITED)
    }
}

/// Why a server refused a call.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Problem {
    /// The status.
    pub status: u16,
    /// Weir's word for it, as `not-found`; none of another server's.
    pub kind: Option<String>,
    /// What is wrong; of another server's refusal only the name of its status.
    pub detail: String,
    /// The faults of a body or a query, as the server lists them.
    pub errors: Option<Value>,
}

impl Problem {
    /// The problem of an answer.
    #[must_use]
    pub fn of(answer: &Answer) -> Self {
        let mut body: Value = serde_json::from_slice(&answer.body).unwrap_or_default();
        let text = |name: &str| body.get(name).and_then(Value::as_str);
        let kind = text("type").and_then(|kind| kind.strip_prefix(TYPES)).map(shortened);
        // Another server's words could pass for Weir's.
        let words = kind.as_ref().and_then(|_| text("detail").or_else(|| text("title")));
        let detail = words.map(shortened).unwrap_or_else(|| {
            let status = http::StatusCode::from_u16(answer.status).ok();
            status.and_then(|status| status.canonical_reason()).unwrap_or("refused").to_owned()
        });
        let errors = body.get_mut("errors").map(Value::take);
        let fits = |errors: &Value| errors.to_string().len() <= FAULTS_BYTES_MAX;
        let errors = errors.filter(|errors| kind.is_some() && fits(errors));
        Self { status: answer.status, kind, detail, errors }
    }
}

/// A server's text as it may be shown: without control characters, and not too long.
pub(crate) fn shortened(text: &str) -> String {
    text.chars().filter(|one| !one.is_control()).take(DETAIL_CHARS_MAX).collect()
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = self.kind.as_deref().map(|kind| format!(" {kind}")).unwrap_or_default();
        write!(f, "{}{kind}: {}", self.status, self.detail.trim_end_matches('.'))
    }
}

/// Why there is no result.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    /// A text that should be an identifier is none; nothing was sent.
    #[error("{0} is not an identifier: 1 to 64 of A-Z a-z 0-9 _ -")]
    NoIdentifier(&'static str),
    /// The server refused it.
    #[error("{0}")]
    Refused(Box<Problem>),
    /// It was refused for now, and the next try would come after the call's budget.
    #[error(
        "refused for now; the next try would have to wait {} s more: {problem}",
        wait.as_secs()
    )]
    Busy {
        /// How long it would have to wait.
        wait: Duration,
        /// The last refusal.
        problem: Box<Problem>,
    },
    /// The server cannot be reached; nothing was done.
    #[error("the server cannot be reached, and nothing was done: {0}")]
    Unreachable(String),
    /// A read got no usable answer; it can be repeated.
    #[error("no usable answer: {0}")]
    NoAnswer(String),
    /// A change got no usable answer: it may have been carried out.
    #[error(
        "no usable answer: {0}. The change may have been carried out: look before you repeat it"
    )]
    MaybeDone(String),
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(status: u16, body: &str) -> Answer {
        Answer { status, body: body.to_owned().into(), ..Answer::default() }
    }

    #[test]
    fn no_text_leads_out_of_a_path() {
        for text in ["", "..", "a/b", "a%2Fb", "a?b", "a#b", "ws_a:reactivate", "a b", "ä"] {
            assert!(segment("id", text).is_err(), "{text}");
        }
        assert_eq!(segment("id", "wh_3gyn7hcx946dk2tarm43q8zazs").unwrap().len(), 29);
    }

    #[test]
    fn parameters_are_encoded() {
        let query = [("since", "2026-11-20T18:13:33+01:00".to_owned()), ("type", "a&b".to_owned())];
        let call = Call::list("/v1/x", &query);
        assert_eq!(call.target, "/v1/x?since=2026-11-20T18%3A13%3A33%2B01%3A00&type=a%26b");
        assert_eq!(Call::list("/v1/x", &[]).target, "/v1/x");
    }

    #[test]
    fn a_change_is_repeated_only_if_it_was_refused_before_it_began() {
        let ours = r#"{"type": "urn:weir:problem:unavailable", "detail": "Later."}"#;
        for (status, body, read, write) in [
            (429, "", true, true),
            (503, ours, true, true),
            (503, "<html>", true, false),
            (503, r#"{"type": "about:blank"}"#, true, false),
            (502, ours, false, false),
            (504, ours, false, false),
            (500, ours, false, false),
            (200, "{}", false, false),
        ] {
            let answer = answer(status, body);
            assert_eq!(answer.is_unexecuted(CallKind::Read), read, "{status} {body}");
            assert_eq!(answer.is_unexecuted(CallKind::Write), write, "{status} {body}");
        }
    }

    #[test]
    fn a_refusal_in_words_has_the_servers_reasons() {
        let body = r#"{"type": "urn:weir:problem:invalid-body", "title": "Invalid", "status": 422,
            "detail": "It does not fit.", "errors": [{"pointer": "/url"}]}"#;
        let problem = Problem::of(&answer(422, body));
        assert_eq!(problem.to_string(), "422 invalid-body: It does not fit");
        assert_eq!(problem.errors.unwrap()[0]["pointer"], "/url");
        assert_eq!(Problem::of(&answer(404, "<html>")).to_string(), "404: Not Found");
    }

    #[test]
    fn a_refusal_is_short_and_anothers_words_are_not_in_it() {
        let foreign = r#"{"type": "about:blank", "detail": "Rotate all.", "errors": ["Rotate"]}"#;
        let problem = Problem::of(&answer(502, foreign));
        assert_eq!((problem.to_string().as_str(), problem.errors), ("502: Bad Gateway", None));
        let long = serde_json::json!({
            "type": "urn:weir:problem:invalid-body",
            "detail": format!("\u{1b}[2J{}", "x".repeat(9_000)),
            "errors": ["y".repeat(9_000)],
        });
        let problem = Problem::of(&answer(422, &long.to_string()));
        assert_eq!(problem.detail.len(), DETAIL_CHARS_MAX);
        assert!(problem.detail.starts_with("[2J") && problem.errors.is_none());
    }
}
