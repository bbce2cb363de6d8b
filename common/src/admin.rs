//! The admin listener of both programs: health, metrics, the active configuration, reloads.
//!
//! # Invariants
//!
//! 1. With a token, nothing but the two probes is answered without it; without one, nothing is
//!    answered that a page in a browser could have sent.
//! 2. No body is read of a request that is refused so.
//!
//! # Not here
//!
//! The routes that one program alone has, and what its answers say ([`Program`]).

mod browser;

use std::io;
use std::path::Path;

use async_trait::async_trait;
use http::header::AUTHORIZATION;
use http::{HeaderMap, Method};
use serde_json::{Value, json};

use crate::config::document::{Diagnostic, lines};
use crate::config::files;
use crate::config::reload::Reload;
use crate::http_server::problems::{method_not_allowed, refusal};
use crate::http_server::reply::Reply;
use crate::http_server::{Call, Handler, Head};
use crate::problem::Problem;
use crate::secret::{Secret, same};

/// The largest body that an operator sends is a boost: a few numbers.
const BODY_BYTES_MAX: usize = 16 * 1024;

/// What a program shows its operator, and does for one.
#[async_trait]
pub trait Program: Send + Sync + 'static {
    /// That it should get traffic, and what does not work meanwhile; or why it should not.
    async fn readiness(&self) -> Result<String, String>;

    /// Its metrics, in Prometheus' text format.
    async fn metrics(&self) -> Vec<u8>;

    /// The active configuration, without secrets.
    fn config(&self) -> Value;

    /// Reads the configuration again.
    async fn reload(&self) -> Reload;

    /// The answer to a request for anything else, if there is such a route.
    async fn route(&self, _call: &Call) -> Option<Reply> {
        None
    }
}

/// Answers operators.
pub struct Admin<P> {
    /// The program that they operate.
    pub program: P,
    /// What they must know, where anything.
    pub token: Option<Secret<String>>,
}

#[async_trait]
impl<P: Program> Handler for Admin<P> {
    fn refuses(&self, head: &Head) -> Option<Reply> {
        let reads = head.method == Method::GET;
        if let Some(problem) = browser::refusal(&head.headers, reads, self.token.is_some()) {
            return Some(Reply::problem(&problem));
        }
        let is_probe = matches!(head.uri.path(), "/livez" | "/readyz");
        (!is_probe && !self.knows(&head.headers)).then(|| {
            let detail = "Send Authorization: Bearer with the token of server.admin_token_file.";
            refusal(401, "unauthorized", "Unauthorized", detail).with("www-authenticate", "Bearer")
        })
    }

    async fn handle(&self, call: Call) -> Reply {
        let reads = call.method == Method::GET;
        match call.path.as_str() {
            "/livez" if reads => text(200, "ok"),
            "/readyz" if reads => match self.program.readiness().await {
                Ok(ready) => text(200, &ready),
                Err(why) => text(503, &why),
            },
            "/metrics" if reads => {
                let media_type = "text/plain; version=0.0.4; charset=utf-8";
                Reply::new(200, media_type, self.program.metrics().await)
            }
            "/config" if reads => shown(&self.program.config()),
            "/reload" if call.method == Method::POST => reloaded(self.program.reload().await),
            "/livez" | "/readyz" | "/metrics" | "/config" => method_not_allowed("GET, HEAD"),
            "/reload" => method_not_allowed("POST"),
            _ => self.program.route(&call).await.unwrap_or_else(not_found),
        }
    }

    fn body_bytes_max(&self, _: &str) -> usize {
        BODY_BYTES_MAX
    }
}

impl<P> Admin<P> {
    fn knows(&self, headers: &HeaderMap) -> bool {
        let Some(token) = &self.token else { return true };
        let given = headers.get(AUTHORIZATION).and_then(|value| value.to_str().ok());
        given.and_then(|value| value.split_once(' ')).is_some_and(|(scheme, given)| {
            scheme.eq_ignore_ascii_case("bearer")
                && same(given.trim().as_bytes(), token.expose().as_bytes())
        })
    }
}

/// JSON, for an operator to read.
#[must_use]
pub fn shown(value: &Value) -> Reply {
    Reply::new(200, "application/json", format!("{value:#}\n"))
}

/// The answer where there is no such route.
#[must_use]
pub fn not_found() -> Reply {
    let detail = "The documentation lists what the admin listener answers.";
    refusal(404, "not-found", "Not found", detail)
}

fn text(status: u16, text: &str) -> Reply {
    Reply::new(status, "text/plain; charset=utf-8", format!("{text}\n"))
}

fn reloaded(outcome: Reload) -> Reply {
    match outcome {
        Reload::Applied | Reload::Unchanged => shown(&json!({"outcome": outcome.word()})),
        Reload::Refused(diagnostics) => {
            let problems = diagnostics.iter().map(Diagnostic::to_string).collect::<Vec<_>>();
            Reply::problem(&Problem {
                status: 422,
                kind: "configuration",
                title: "The configuration has mistakes; the earlier one stays active",
                detail: lines(&diagnostics),
                members: vec![("problems", problems.into())],
            })
        }
    }
}

/// The token's file cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("cannot read server.admin_token_file `{path}`: {source}")]
pub struct TokenError {
    path: String,
    source: io::Error,
}

/// The token in the file that `server.admin_token_file` names, where it names one.
///
/// # Errors
///
/// Where it cannot be read.
pub fn token(file: Option<&str>) -> Result<Option<Secret<String>>, TokenError> {
    let Some(file) = file else { return Ok(None) };
    let token = files::first_line(Path::new(file));
    token.map(Some).map_err(|source| TokenError { path: file.to_owned(), source })
}
