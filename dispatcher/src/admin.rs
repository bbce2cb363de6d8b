//! The dispatcher's part of the admin listener: readiness, metrics, configuration, reload, and the
//! redelivery jobs and webhooks of all workspaces, the operators' screen.
//!
//! Not here: authentication (`weir_common::admin`), the list of metrics (`metrics`).

mod actions;
mod screen;
pub mod watch;
mod webhooks;

use std::sync::Arc;
use std::sync::atomic::Ordering;

use async_trait::async_trait;
use http::Method;
use serde_json::{Value, json};
use weir_common::admin::{Acted, Program, not_found, shown};
use weir_common::config::reload::Reload;
use weir_common::http_server::Call;
use weir_common::http_server::problems::method_not_allowed;
use weir_common::http_server::reply::Reply;
use weir_common::pages::form::Form;
use weir_common::pages::screen::Screen;
use weir_common::secret::Secret;
use weir_common::time::UnixTime;

use crate::admin::watch::Watch;
use crate::api::bad_query;
use crate::api::query::Query;
use crate::state::{self, State};
use crate::store::types::Job;

/// Unfinished jobs that a list shows: those of two hundred workspaces at least.
const JOBS_LISTED_MAX: usize = 1_000;

/// The dispatcher, for the admin listener.
pub struct DispatcherAdmin {
    /// What all listeners share.
    pub state: Arc<State>,
    /// What the screen shows of the last hour.
    pub watch: Arc<Watch>,
}

#[async_trait]
impl Program for DispatcherAdmin {
    const NAME: &'static str = "weir-dispatcher";

    fn now(&self) -> UnixTime {
        self.state.clock.now().unix
    }

    fn token(&self) -> Option<Secret<String>> {
        self.state.active.load().origin.admin_token.clone()
    }

    /// Whether events are accepted and deliveries sent, or else the cause.
    async fn readiness(&self) -> Result<String, String> {
        if !self.state.ready.load(Ordering::Acquire) {
            return Err("not ready: starting, or stopping".to_owned());
        }
        if !self.state.store.is_writable().await {
            let why = "not ready: the database cannot be written; the log says why, at \
                `store writes failing`";
            return Err(why.to_owned());
        }
        Ok("ready".to_owned())
    }

    /// All metrics; gauges of the store and of connections are updated first.
    async fn metrics(&self) -> Vec<u8> {
        let state = &self.state;
        let metrics = &state.metrics;
        let shown = |figure: u64| i64::try_from(figure).unwrap_or(i64::MAX);
        // If the store cannot answer, the last value stays.
        if let Ok(figures) = state.store.figures().await {
            metrics.waiting.set(shown(figures.waiting));
            metrics.webhooks.set(shown(figures.webhooks));
            metrics.store_bytes.set(shown(figures.bytes));
            metrics.store_wal_bytes.set(shown(figures.wal_bytes));
            metrics.store_commits.set(shown(figures.commits));
        }
        metrics.connections.set(shown(state.connections.open() as u64));
        metrics.text()
    }

    fn config(&self) -> Value {
        self.state.active.load().origin.effective.clone()
    }

    async fn reload(&self) -> Reload {
        state::reload(&self.state).await
    }

    /// Webhooks that do not deliver, and unfinished redelivery jobs.
    async fn route(&self, call: &Call) -> Option<Reply> {
        if let Some(path) = call.path.strip_prefix("/webhooks") {
            return webhooks::route(&self.state, path, call).await;
        }
        let path = call.path.strip_prefix("/redeliveries")?;
        let (job, method, allow) = if path.is_empty() {
            (None, Method::GET, "GET, HEAD")
        } else {
            let job = path.strip_prefix('/')?.strip_suffix(":cancel")?.split_once('/')?;
            (Some(job), Method::POST, "POST")
        };
        if call.method != method {
            return Some(method_not_allowed(allow));
        }
        if let Err(errors) = Query::read(call.query.as_deref(), &[]).none() {
            return Some(bad_query(errors));
        }
        Some(match job {
            None => self.jobs().await,
            Some((workspace, id)) => self.cancel(workspace, id).await,
        })
    }

    async fn page(&self, steps: &[&str], query: &Form) -> Option<Screen> {
        if steps.is_empty() { Some(self.screen(query).await) } else { None }
    }

    async fn act(&self, steps: &[&str], form: &Form) -> Option<Acted> {
        self.acted(steps, form).await
    }
}

impl DispatcherAdmin {
    async fn jobs(&self) -> Reply {
        match self.state.store.open_jobs(JOBS_LISTED_MAX + 1).await {
            Ok(open) => {
                let listed = open.iter().take(JOBS_LISTED_MAX);
                let jobs: Vec<Value> =
                    listed.map(|one| self.shown(&one.workspace, &one.job)).collect();
                shown(&json!({"redeliveries": jobs, "more": open.len() > JOBS_LISTED_MAX}))
            }
            Err(error) => self.state.store_failed(&error),
        }
    }

    async fn cancel(&self, workspace: &str, id: &str) -> Reply {
        let state = &self.state;
        let Some(id) = state.store.ids().job_of(id) else { return not_found() };
        match state.store.cancel_job(workspace, id, state.clock.now().unix).await {
            Ok(Some(job)) => shown(&self.shown(workspace, &job)),
            Ok(None) => not_found(),
            Err(error) => self.state.store_failed(&error),
        }
    }

    fn shown(&self, workspace: &str, job: &Job) -> Value {
        json!({
            "workspace": workspace,
            "id": self.state.store.ids().job(job.id),
            "created_at": job.created_at.rfc3339(),
            "ended_at": job.ended_at.map(UnixTime::rfc3339),
            "cancelled": job.cancelled,
            "examined": job.examined,
            "redelivered": job.redelivered,
            "waiting": job.sum(|one| one.waiting),
        })
    }
}
