//! What listeners share: the clock, the store, the active configuration, the mailbox; and how a
//! reload replaces the configuration.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use arc_swap::ArcSwap;
use log::Level;
use serde_json::json;
use tokio::sync::{Notify, Semaphore};
use weir_common::config::document::Diagnostic;
use weir_common::config::files::{self, Stamp, stamp};
use weir_common::log::events;
use weir_common::log::json_lines::LineLog;
use weir_common::time::Clock;

use crate::email::outbox::Outbox;
use crate::live_config::{ActiveConfig, Config};
use crate::mailbox::Mailbox;
use crate::metrics::Metrics;
use crate::store::Store;
use crate::worker::{Memory, Resources};

/// What listeners share.
pub struct State {
    /// The clock.
    pub clock: Clock,
    /// Where the settings are.
    pub config: Config,
    /// Where everything is kept.
    pub store: Arc<dyn Store>,
    /// What is in force.
    pub active: Arc<ArcSwap<ActiveConfig>>,
    /// The way to the worker.
    pub mailbox: Mailbox,
    /// What is counted.
    pub metrics: Arc<Metrics>,
    /// Connections that may still be opened, to each of these two listeners.
    pub connections: Connections,
    /// Tells that a job was written down.
    pub jobs: Arc<Notify>,
    /// Whether every listener accepts.
    pub ready: AtomicBool,
}

/// Connections that may still be opened: customers who take up all of theirs leave backends
/// their own.
pub struct Connections {
    /// To the API's listener.
    pub api: Arc<Semaphore>,
    /// To that of events.
    pub ingest: Arc<Semaphore>,
    most: usize,
}

impl Connections {
    /// So many to each.
    #[must_use]
    pub fn new(most: usize) -> Self {
        let each = || Arc::new(Semaphore::new(most));
        Self { api: each(), ingest: each(), most }
    }

    /// How many are open, to both.
    #[must_use]
    pub fn open(&self) -> usize {
        let open = |left: &Semaphore| self.most.saturating_sub(left.available_permits());
        open(&self.api) + open(&self.ingest)
    }
}

/// What came of a reload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reload {
    /// The new configuration is in force.
    Applied,
    /// It is the one that was in force already.
    Unchanged,
    /// It has mistakes; the earlier one stays.
    Refused(Vec<Diagnostic>),
}

impl State {
    /// What the worker uses of it.
    pub(crate) fn resources(&self, attempt_log: Option<Arc<LineLog>>) -> Resources {
        Resources {
            clock: self.clock.clone(),
            store: self.store.clone(),
            ids: self.store.ids().clone(),
            active: self.active.clone(),
            metrics: self.metrics.clone(),
            attempt_log,
            mailbox: self.mailbox.clone(),
            memory: Memory::default(),
        }
    }

    /// What sends mails.
    pub(crate) fn outbox(&self) -> Outbox {
        let (store, clock) = (self.store.clone(), self.clock.clone());
        Outbox::new(store, clock, self.active.clone(), self.metrics.clone())
    }

    /// Reads the configuration again and puts it in force, if it is good.
    pub fn reload(&self) -> Reload {
        let reload = self.try_reload();
        let (outcome, level) = match &reload {
            Reload::Applied => ("applied", Level::Info),
            Reload::Unchanged => ("unchanged", Level::Info),
            Reload::Refused(_) => ("refused", Level::Error),
        };
        self.metrics.reloads.with_label_values(&[outcome]).inc();
        let problems = match &reload {
            Reload::Refused(diagnostics) => diagnostics.iter().map(ToString::to_string).collect(),
            Reload::Applied | Reload::Unchanged => Vec::new(),
        };
        self.metrics.config_ok.set(i64::from(!matches!(reload, Reload::Refused(_))));
        let fields = [("outcome", json!(outcome)), ("problems", json!(problems))];
        events::event(level, "reload", &fields);
        if reload == Reload::Applied {
            self.mark_applied();
            self.mailbox.reloaded();
        }
        reload
    }

    /// Notes when the configuration in force was put there.
    pub fn mark_applied(&self) {
        self.metrics.config_ok.set(1);
        let seconds = self.clock.now().unix.0 / 1_000_000;
        self.metrics.config_applied.set(seconds as f64);
        log::set_max_level(self.active.load().settings.log.level);
    }

    fn try_reload(&self) -> Reload {
        let new = match self.config.load(&self.clock) {
            Ok(new) => new,
            Err(diagnostics) => return Reload::Refused(diagnostics),
        };
        let old = self.active.load();
        if new.origin == old.origin {
            return Reload::Unchanged;
        }
        let needs_restart = old.needs_restart(&new.settings);
        if !needs_restart.is_empty() {
            let message = format!("{} cannot change without a restart", needs_restart.join(", "));
            let file = self.config.file.name();
            return Reload::Refused(vec![Diagnostic { file, line: 1, column: 1, message }]);
        }
        self.active.store(Arc::new(new));
        Reload::Applied
    }
}

/// Reloads when one of the configuration's files changes.
pub async fn watch_files(state: Arc<State>) {
    files::watch(|| stamps(&state), || async { drop(reload(&state).await) }).await;
}

fn stamps(state: &State) -> Vec<Stamp> {
    let active = state.active.load();
    let config = state.config.file.path();
    config.into_iter().chain(active.files()).map(stamp).collect()
}

/// Reloads on a thread that may block: a large directory takes a moment to read.
pub async fn reload(state: &Arc<State>) -> Reload {
    let state = state.clone();
    let done = tokio::task::spawn_blocking(move || state.reload()).await;
    // A panic there is ours to mend, and leaves the earlier configuration in force.
    done.unwrap_or(Reload::Unchanged)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_listener_has_connections_of_its_own_and_all_are_counted() {
        let connections = Connections::new(2);
        let customers = Arc::clone(&connections.api).try_acquire_many_owned(2);
        assert!(customers.is_ok() && connections.api.try_acquire().is_err());
        let backend = connections.ingest.try_acquire();
        assert!(backend.is_ok(), "customers starve backends");
        assert_eq!(connections.open(), 3);
        drop(customers);
        assert_eq!(connections.open(), 1);
    }
}
