//! The dispatcher's part of the admin listener: readiness, metrics, configuration, reload.
//!
//! Not here: authentication (`weir_common::admin`), the list of metrics (`metrics`).

use std::sync::Arc;
use std::sync::atomic::Ordering;

use async_trait::async_trait;
use serde_json::Value;
use weir_common::admin::Program;
use weir_common::config::reload::Reload;
use weir_common::secret::Secret;

use crate::state::{self, State};

/// The dispatcher, for the admin listener.
pub struct DispatcherAdmin(pub Arc<State>);

#[async_trait]
impl Program for DispatcherAdmin {
    fn token(&self) -> Option<Secret<String>> {
        self.0.active.load().origin.admin_token.clone()
    }

    /// Whether events are accepted and deliveries sent, or else the cause.
    async fn readiness(&self) -> Result<String, String> {
        if !self.0.ready.load(Ordering::Acquire) {
            return Err("not ready: starting, or stopping".to_owned());
        }
        if !self.0.store.is_writable().await {
            let why = "not ready: the database cannot be written; the log says why, at \
                `store writes failing`";
            return Err(why.to_owned());
        }
        Ok("ready".to_owned())
    }

    /// All metrics; gauges of the store and of connections are updated first.
    async fn metrics(&self) -> Vec<u8> {
        let Self(state) = self;
        let metrics = &state.metrics;
        let shown = |figure: u64| i64::try_from(figure).unwrap_or(i64::MAX);
        // If the store cannot answer, the last value stays.
        if let Ok(figures) = state.store.figures().await {
            metrics.waiting.set(shown(figures.waiting));
            metrics.webhooks.set(shown(figures.webhooks));
            metrics.store_bytes.set(shown(figures.bytes));
            metrics.store_commits.set(shown(figures.commits));
        }
        metrics.connections.set(shown(state.connections.open() as u64));
        metrics.text()
    }

    fn config(&self) -> Value {
        self.0.active.load().origin.effective.clone()
    }

    async fn reload(&self) -> Reload {
        state::reload(&self.0).await
    }
}
