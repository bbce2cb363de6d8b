//! What an operator asks: health, metrics, the configuration.
//!
//! # Invariants
//!
//! 1. With a token, nothing but the two probes is answered without it; without one, nothing is
//!    answered that a page in a browser could have sent.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use async_trait::async_trait;
use bytes::Bytes;
use http::header::AUTHORIZATION;
use http::{HeaderMap, Method};
use serde_json::{Value, json};
use weir_common::admin::browser;
use weir_common::http_server::{Call, Handler, Reply};
use weir_common::problem::Problem;
use weir_common::secret::{Secret, same};

use crate::state::{self, Reload, State};

/// Nothing here reads a body.
const BODY_BYTES_MAX: usize = 1 << 10;

/// Answers operators.
pub struct Admin {
    /// What is shown.
    pub state: Arc<State>,
    /// What they must know, where anything.
    pub token: Option<Secret<String>>,
}

#[async_trait]
impl Handler for Admin {
    async fn handle(&self, call: Call) -> Reply {
        let reads = matches!(call.method, Method::GET | Method::HEAD);
        if let Some(problem) = browser::refusal(&call.headers, reads, self.token.is_some()) {
            return Reply::problem(&problem);
        }
        match call.path.as_str() {
            "/livez" if reads => return text(200, "alive\n"),
            "/readyz" if reads => return self.readiness().await,
            _ => {}
        }
        if !self.knows(&call.headers) {
            let reply = problem(
                401,
                "unauthorized",
                "A token is needed",
                "Send it as `Authorization: Bearer …`.",
            );
            return reply.with("www-authenticate", "Bearer");
        }
        match (call.method.clone(), call.path.as_str()) {
            (Method::GET | Method::HEAD, "/metrics") => {
                let headers =
                    vec![("content-type", "text/plain; version=0.0.4; charset=utf-8".to_owned())];
                Reply { status: 200, headers, body: self.metrics().await.into() }
            }
            (Method::GET | Method::HEAD, "/config") => {
                Reply::json(200, &self.state.active.load().origin.effective)
            }
            (Method::POST, "/reload") => self.reload().await,
            (_, "/livez" | "/readyz" | "/metrics" | "/config") => wrong_method("GET, HEAD"),
            (_, "/reload") => wrong_method("POST"),
            _ => problem(
                404,
                "not-found",
                "There is nothing here",
                "The paths here are /livez, /readyz, /metrics, /config and POST /reload.",
            ),
        }
    }

    fn body_bytes_max(&self, _: &str) -> usize {
        BODY_BYTES_MAX
    }
}

impl Admin {
    /// Whether events are taken and deliveries sent, or else what does not work.
    async fn readiness(&self) -> Reply {
        if !self.state.ready.load(Ordering::Acquire) {
            return text(503, "not ready: starting, or stopping\n");
        }
        if !self.state.store.is_writable().await {
            let why = "not ready: the database cannot be written; the log says why, at \
                `store_cannot_write`\n";
            return text(503, why);
        }
        text(200, "ready\n")
    }

    fn knows(&self, headers: &HeaderMap) -> bool {
        let Some(token) = &self.token else { return true };
        let given = headers.get(AUTHORIZATION).and_then(|value| value.to_str().ok());
        let given = given.and_then(|value| value.split_once(' '));
        given.is_some_and(|(scheme, given)| {
            scheme.eq_ignore_ascii_case("bearer")
                && same(given.trim().as_bytes(), token.expose().as_bytes())
        })
    }

    /// What the program has counted, and what there is at this moment.
    async fn metrics(&self) -> Vec<u8> {
        let metrics = &self.state.metrics;
        let shown = |figure: u64| i64::try_from(figure).unwrap_or(i64::MAX);
        // Where the store cannot tell, what it told last stands.
        if let Ok(figures) = self.state.store.figures().await {
            metrics.waiting.set(shown(figures.waiting));
            metrics.webhooks.set(shown(figures.webhooks));
            metrics.store_bytes.set(shown(figures.bytes));
            metrics.store_commits.set(shown(figures.commits));
        }
        metrics.connections.set(shown(self.state.connections.open() as u64));
        metrics.text()
    }

    async fn reload(&self) -> Reply {
        match state::reload(&self.state).await {
            Reload::Applied => Reply::json(200, &json!({"outcome": "applied"})),
            Reload::Unchanged => Reply::json(200, &json!({"outcome": "unchanged"})),
            Reload::Refused(diagnostics) => {
                let problems: Vec<String> = diagnostics.iter().map(ToString::to_string).collect();
                Reply::problem(&Problem {
                    status: 422,
                    kind: "configuration",
                    title: "The configuration has mistakes; the earlier one stays in force",
                    detail: problems.join("\n"),
                    members: vec![("problems", Value::from(problems))],
                })
            }
        }
    }
}

fn text(status: u16, text: &'static str) -> Reply {
    let headers = vec![("content-type", "text/plain".to_owned())];
    Reply { status, headers, body: Bytes::from_static(text.as_bytes()) }
}

fn wrong_method(allowed: &'static str) -> Reply {
    problem(
        405,
        "method-not-allowed",
        "Method not allowed",
        "The Allow header lists the methods of this path.",
    )
    .with("allow", allowed)
}

fn problem(status: u16, kind: &'static str, title: &'static str, detail: &str) -> Reply {
    let detail = detail.to_owned();
    Reply::problem(&Problem { status, kind, title, detail, members: Vec::new() })
}
