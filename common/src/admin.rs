//! The admin listener of both programs: health, metrics, the active configuration, reloads, and
//! the operators' pages.
//!
//! # Invariants
//!
//! 1. If a token is configured, only the two probes and the form to sign in are answered without
//!    it. If none is, no request is answered that a page of another site could have sent.
//! 2. The body of a request that is refused for these reasons is not read.
//!
//! # Not here
//!
//! Routes that only one program has, and the content of responses ([`Program`]).

mod browser;
mod pages;
mod session;

use std::io;

use async_trait::async_trait;
use http::header::AUTHORIZATION;
use http::{HeaderMap, Method};
use serde_json::{Value, json};

use crate::admin::pages::Gate;
use crate::config::document::{Diagnostic, lines};
use crate::config::reload::Reload;
use crate::http_server::problems::{method_not_allowed, refusal};
use crate::http_server::reply::Reply;
use crate::http_server::{Acceptance, Call, Handler, Head};
use crate::pages::assets;
use crate::pages::form::Form;
use crate::pages::reply::see_other;
use crate::pages::screen::Screen;
use crate::problem::Problem;
use crate::secret::{Secret, same};
use crate::time::UnixTime;

/// The largest body that an operator sends is a boost: a few numbers.
const BODY_BYTES_MAX: usize = 16 * 1024;

/// Where the files of pages are.
const ASSETS: &str = "/assets/";

/// What a program provides on its admin listener.
#[async_trait]
pub trait Program: Send + Sync + 'static {
    /// Its name, as operators know it.
    const NAME: &'static str;

    /// The time by which sessions end.
    fn now(&self) -> UnixTime;

    /// The bearer token that operators must send, if one is configured.
    fn token(&self) -> Option<Secret<String>>;

    /// `Ok` if the program should get traffic, with what does not work at present; else why not.
    async fn readiness(&self) -> Result<String, String>;

    /// Its metrics, in Prometheus' text format.
    async fn metrics(&self) -> Vec<u8>;

    /// The active configuration, without secrets.
    fn config(&self) -> Value;

    /// Reads the configuration again.
    async fn reload(&self) -> Reload;

    /// The response to any other request, if the program has such a route.
    async fn route(&self, _call: &Call) -> Option<Reply> {
        None
    }

    /// One of its pages, by the steps of its path below `/dashboard`; the first has none.
    async fn page(&self, steps: &[&str], query: &Form) -> Option<Screen>;

    /// What a form of its pages does.
    async fn act(&self, steps: &[&str], form: &Form) -> Option<Acted>;
}

/// What follows from a form.
pub enum Acted {
    /// A page with this status: a question, or why nothing was changed.
    Show(u16, Screen),
    /// It is done, and this page shows it.
    Go(String),
}

/// Handles the requests of a program's operators.
pub struct Admin<P> {
    program: P,
    /// Signs forms where no token is configured.
    process: [u8; 32],
}

impl<P> Admin<P> {
    /// The admin listener of a program.
    pub fn new(program: P) -> io::Result<Self> {
        Ok(Self { program, process: pages::process_secret()? })
    }
}

#[async_trait]
impl<P: Program> Handler for Admin<P> {
    async fn accepts(&self, head: &Head) -> Result<Acceptance, Reply> {
        let path = head.uri.path();
        let is_page = pages::is_page(path);
        let reads = head.method == Method::GET || is_page;
        let token = self.program.token();
        if let Some(problem) = browser::refusal(&head.headers, reads, token.is_some()) {
            return Err(Reply::problem(&problem));
        }
        if is_page {
            let gate = Gate::new(&self.program, self.process);
            return gate.accepts((&head.method, path), &head.headers);
        }
        // Without a token every caller is the operator.
        if token.is_none_or(|token| has_bearer(&token, &head.headers)) {
            return Ok(Acceptance::Verified);
        }
        if matches!(path, "/livez" | "/readyz" | "/") || path.starts_with(ASSETS) {
            return Ok(Acceptance::Open);
        }
        let detail = "Send Authorization: Bearer with the token of server.admin_token_file.";
        let refused = refusal(401, "unauthorized", "Unauthorized", detail);
        Err(refused.with("www-authenticate", "Bearer"))
    }

    async fn handle(&self, call: Call) -> Reply {
        let reads = call.method == Method::GET;
        let Self { program, process } = self;
        if pages::is_page(&call.path) {
            return Gate::new(program, *process).answer(program, &call).await;
        }
        if let Some(name) = call.path.strip_prefix(ASSETS) {
            return assets::reply(&call.method, name, []).unwrap_or_else(not_found);
        }
        match call.path.as_str() {
            "/" if reads => see_other(pages::HOME),
            "/livez" if reads => text(200, "ok"),
            "/readyz" if reads => match program.readiness().await {
                Ok(ready) => text(200, &ready),
                Err(why) => text(503, &why),
            },
            "/metrics" if reads => {
                let media_type = "text/plain; version=0.0.4; charset=utf-8";
                Reply::new(200, media_type, program.metrics().await)
            }
            "/config" if reads => shown(&program.config()),
            "/reload" if call.method == Method::POST => reloaded(program.reload().await),
            "/livez" | "/readyz" | "/metrics" | "/config" => method_not_allowed("GET, HEAD"),
            "/reload" => method_not_allowed("POST"),
            _ => program.route(&call).await.unwrap_or_else(not_found),
        }
    }

    fn body_bytes_max(&self, _: &str, _: Acceptance) -> usize {
        BODY_BYTES_MAX
    }
}

/// Whether a request has the token. Several `Authorization` fields are refused: a proxy in front
/// may have checked any of them.
fn has_bearer(token: &Secret<String>, headers: &HeaderMap) -> bool {
    let mut all = headers.get_all(AUTHORIZATION).iter();
    let (Some(given), None) = (all.next(), all.next()) else { return false };
    let given = given.to_str().ok().and_then(|value| value.split_once(' '));
    given.is_some_and(|(scheme, given)| {
        scheme.eq_ignore_ascii_case("bearer")
            && same(given.trim().as_bytes(), token.expose().as_bytes())
    })
}

/// JSON, indented for an operator to read.
#[must_use]
pub fn shown(value: &Value) -> Reply {
    Reply::new(200, "application/json", format!("{value:#}\n"))
}

/// There is no such route.
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
        Reload::Failed => {
            let detail = "The reload panicked, and the log says where. Please report it.";
            refusal(500, "internal", "The earlier configuration stays active", detail)
        }
    }
}
