//! What an operator asks: health, metrics, the limits of one tenant, the configuration.
//!
//! # Invariants
//!
//! 1. With a token, nothing but the two probes is answered without it; without one, nothing is
//!    answered that a page in a browser could have sent.
//! 2. What is looked at is not changed; what is changed is said so in the log.
//!
//! # Not here
//!
//! What the numbers mean (`limit`, `metrics`, `heavy_hitters`), the command line (`cli`).

mod limits;
mod readiness;
mod tenants;

use std::sync::Arc;

use async_trait::async_trait;
use http::{Method, StatusCode, header};
use pingora_core::apps::{HttpPersistentSettings, HttpServerApp, ReusedHttpStream};
use pingora_core::protocols::http::ServerSession;
use pingora_core::server::ShutdownWatch;
use pingora_http::ResponseHeader;
use serde_json::{Value, json};
use weir_common::admin::browser;
use weir_common::problem::{MEDIA_TYPE, Problem};
use weir_common::secret::{self, Secret};

use crate::config::shared::{Reload, Shared};
use crate::edge::connection::Connection;
use crate::limit::memory::Moved;
use crate::operations::background;

/// A boost is a few numbers; whatever is longer is something else.
const BODY_BYTES_MAX: usize = 16 * 1024;

/// How many of the busiest are shown unless more are asked for.
const TOP_PLACES: usize = 20;

/// The admin listener.
pub struct Admin {
    /// What all requests share.
    pub shared: Arc<Shared>,
    /// What a caller must know, where anything is.
    pub token: Option<Secret<String>>,
}

/// An answer, before it is written.
struct Reply {
    status: u16,
    media_type: &'static str,
    body: Vec<u8>,
}

impl Reply {
    fn json(value: &Value) -> Self {
        Self {
            status: 200,
            media_type: "application/json",
            body: format!("{value:#}\n").into_bytes(),
        }
    }

    fn text(status: u16, text: &str) -> Self {
        let body = format!("{text}\n").into_bytes();
        Self { status, media_type: "text/plain; charset=utf-8", body }
    }

    fn problem(
        status: u16,
        kind: &'static str,
        title: &'static str,
        detail: impl Into<String>,
    ) -> Self {
        Problem { status, kind, title, detail: detail.into(), members: Vec::new() }.into()
    }

    fn not_found() -> Self {
        Self::problem(
            404,
            "not-found",
            "Not found",
            "See docs/gateway/operations.md for what there is.",
        )
    }

    fn moved() -> Self {
        Self::problem(503, "handed-over", "Handed over", "Another process serves: connect again.")
    }

    fn unknown_limit(limit: &str, key: &str) -> Self {
        let detail = format!("There is no limit `{limit}`, or `{key}` cannot be a key of it.");
        Self::problem(404, "unknown-limit", "Unknown limit or key", detail)
    }
}

#[async_trait]
impl HttpServerApp for Admin {
    async fn process_new_http(
        self: &Arc<Self>,
        mut session: ServerSession,
        shutdown: &ShutdownWatch,
    ) -> Option<ReusedHttpStream> {
        if !session.read_request().await.ok()? {
            return None;
        }
        if let Some(connection) = Connection::of(session.stream()) {
            connection.head_is_read(session.as_http1());
        }
        session
            .set_read_timeout(Some(self.shared.active.load().rules.settings.server.body_timeout));
        if *shutdown.borrow() {
            session.set_keepalive(None);
        }
        let reply = self.reply(&mut session).await;
        let mut head = ResponseHeader::build(reply.status, Some(4)).ok()?;
        head.insert_header(header::CONTENT_TYPE, reply.media_type).ok()?;
        head.insert_header(header::CONTENT_LENGTH, reply.body.len()).ok()?;
        head.insert_header(header::CACHE_CONTROL, "no-store").ok()?;
        if reply.status == StatusCode::UNAUTHORIZED {
            head.insert_header(header::WWW_AUTHENTICATE, "Bearer").ok()?;
        }
        let is_head = session.req_header().method == Method::HEAD;
        session.write_response_header(Box::new(head)).await.ok()?;
        if !is_head {
            session.write_response_body(reply.body.into(), true).await.ok()?;
        }
        if let Some(connection) = Connection::of(session.stream()) {
            connection.request_is_over(self.shared.clock.now().tick);
        }
        let settings = HttpPersistentSettings::for_session(&session);
        let reused = session.finish().await.ok().flatten()?;
        Some(ReusedHttpStream::from_reusable_stream(reused, settings))
    }
}

impl Admin {
    async fn reply(&self, session: &mut ServerSession) -> Reply {
        let head = session.req_header();
        let method = head.method.clone();
        let target = String::from_utf8_lossy(head.raw_path()).into_owned();
        let (path, query) = target.split_once('?').unwrap_or((&target, ""));
        let reads = method == Method::GET || method == Method::HEAD;
        if let Some(problem) = browser::refusal(&head.headers, reads, self.token.is_some()) {
            return problem.into();
        }
        let is_probe = path == "/livez" || path == "/readyz";
        if !is_probe && !self.knows(head.headers.get(header::AUTHORIZATION)) {
            let detail = "Send Authorization: Bearer with the token of server.admin_token_file.";
            return Reply::problem(401, "unauthorized", "Unauthorized", detail);
        }
        let shared: Vec<&str> = path.trim_start_matches('/').splitn(3, '/').collect();
        match shared.as_slice() {
            ["livez"] if reads => Reply::text(200, "ok"),
            ["readyz"] if reads => self.readiness(),
            ["metrics"] if reads => self.metrics().await,
            ["top"] if reads => self.top(query),
            ["config"] if reads => self.config(),
            ["limits"] if reads => self.limits(),
            ["directory", "forget", which] if method == Method::POST => self.forget(which).await,
            ["reload"] if method == Method::POST => self.reload().await,
            ["limits", limit, key] => {
                let limit = decoded(limit);
                match key.strip_suffix("/boost") {
                    Some(key) if method == Method::POST => {
                        let body = body_of(session).await;
                        self.boost(&limit, &decoded(key), &body).await
                    }
                    Some(key) if method == Method::DELETE => {
                        self.unboost(&limit, &decoded(key)).await
                    }
                    None if reads => self.standing(&limit, &decoded(key)).await,
                    None if method == Method::DELETE => self.reset(&limit, &decoded(key)).await,
                    _ => Err(Reply::not_found()),
                }
                .unwrap_or_else(|reply| reply)
            }
            _ => Reply::not_found(),
        }
    }

    fn knows(&self, authorization: Option<&http::HeaderValue>) -> bool {
        let Some(token) = &self.token else { return true };
        let given = authorization.and_then(|value| value.as_bytes().strip_prefix(b"Bearer "));
        given.is_some_and(|given| secret::same(given, token.expose().as_bytes()))
    }

    async fn metrics(&self) -> Reply {
        let fill = self.shared.limiter.store.fill();
        let metrics = &self.shared.metrics;
        let count = |number: usize| i64::try_from(number).unwrap_or(i64::MAX);
        metrics.keys.set(count(fill.keys));
        metrics.strangers.set(count(fill.strangers));
        metrics.overflowed.inc_by(fill.overflowed.saturating_sub(metrics.overflowed.get()));
        metrics.held_bytes.set(i64::try_from(self.shared.body_budget.taken()).unwrap_or(i64::MAX));
        let active = self.shared.active.load_full();
        let remembered = active.verifier.as_ref().map_or(0, |verifier| verifier.cached());
        metrics.tokens_remembered.set(i64::try_from(remembered).unwrap_or(i64::MAX));
        if let Some(lookups) = &active.lookups {
            let fill = lookups.fill().await;
            for (kind, entries) in ["known", "unknown"].into_iter().zip(fill) {
                let entries = i64::try_from(entries).unwrap_or(i64::MAX);
                metrics.directory_entries.with_label_values(&[kind]).set(entries);
            }
        }
        let body = metrics.text();
        Reply { status: 200, media_type: "text/plain; version=0.0.4; charset=utf-8", body }
    }

    fn top(&self, query: &str) -> Reply {
        let asked = query.split('&').find_map(|part| part.strip_prefix("n="));
        let places = asked.and_then(|places| places.parse().ok()).unwrap_or(TOP_PLACES);
        let [busiest, refused] = self.shared.top.most(places).map(|seen| {
            let shown = seen.iter().map(
                |seen| json!({"limit": &*seen.limit, "key": &*seen.name, "count": seen.count}),
            );
            shown.collect::<Value>()
        });
        Reply::json(&json!({"busiest": busiest, "refused": refused}))
    }

    fn config(&self) -> Reply {
        let active = self.shared.active.load();
        let tenants = &active.rules.tenants;
        // Nothing secret is written into the settings: tokens are named by their file.
        Reply::json(&json!({
            "source": self.shared.config.file.name(),
            "settings": active.origin.effective,
            "directory": {
                "organisations": tenants.organisations.len(),
                "workspaces": tenants.workspaces.len(),
                "instances": tenants.instances.len(),
            },
        }))
    }

    async fn reload(&self) -> Reply {
        match background::reload(&self.shared).await {
            Reload::Applied => Reply::json(&json!({"outcome": "applied"})),
            Reload::Unchanged => Reply::json(&json!({"outcome": "unchanged"})),
            Reload::Refused(diagnostics) => {
                let problems: Vec<Value> =
                    diagnostics.iter().map(|m| json!(m.to_string())).collect();
                let problem = Problem {
                    status: 422,
                    kind: "configuration",
                    title: "The configuration has mistakes; the earlier one stays in force",
                    detail: diagnostics
                        .iter()
                        .map(ToString::to_string)
                        .collect::<Vec<_>>()
                        .join("\n"),
                    members: vec![("problems", problems.into())],
                };
                problem.into()
            }
        }
    }
}

impl From<Problem> for Reply {
    fn from(problem: Problem) -> Self {
        Self { status: problem.status, media_type: MEDIA_TYPE, body: problem.body() }
    }
}

/// What is looked at or changed is in another process by now, and the answer says so.
impl From<Moved> for Reply {
    fn from(_: Moved) -> Self {
        Self::moved()
    }
}

fn decoded(part: &str) -> String {
    percent_encoding::percent_decode_str(part).decode_utf8_lossy().into_owned()
}

async fn body_of(session: &mut ServerSession) -> Vec<u8> {
    let mut body = Vec::new();
    while let Ok(Some(chunk)) = session.read_request_body().await {
        body.extend_from_slice(&chunk);
        if body.len() > BODY_BYTES_MAX {
            break;
        }
    }
    body
}
