//! State shared by listeners and background tasks: the clock, the store, the active configuration,
//! the mailbox; and the reload of the configuration.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use arc_swap::ArcSwap;
use tokio::sync::{Notify, Semaphore};
use weir_common::config::reload::{Reload, Reloads, run_blocking};
use weir_common::config::watch::{Stamp, stamp, watch};
use weir_common::http_server::reply::Reply;
use weir_common::identity::keyless;
use weir_common::log::json_lines::LineLog;
use weir_common::time::{Clock, UnixTime};

use crate::email::outbox::Outbox;
use crate::http_errors;
use crate::live_config::source::Config;
use crate::live_config::{ActiveConfig, descriptors};
use crate::mailbox::Mailbox;
use crate::metrics::Metrics;
use crate::most_failed::MostFailedWebhooks;
use crate::store::{Store, StoreError};
use crate::worker::{Memory, Resources};

/// State shared by listeners and background tasks.
pub struct State {
    /// The clock.
    pub clock: Clock,
    /// The location of the configuration.
    pub config: Config,
    /// The database.
    pub store: Arc<dyn Store>,
    /// The active configuration.
    pub active: Arc<ArcSwap<ActiveConfig>>,
    /// Commands to the worker.
    pub mailbox: Mailbox,
    /// All metrics.
    pub metrics: Arc<Metrics>,
    /// The webhooks with the most failed attempts.
    pub most_failed: Arc<MostFailedWebhooks>,
    /// Free connections of the API and ingest listeners.
    pub connections: Connections,
    /// Wakes the task that runs redelivery jobs.
    pub jobs: Arc<Notify>,
    /// Wakes the task that fetches the keys of access tokens, after a reload.
    pub applied: Notify,
    /// Serializes reloads.
    pub reloads: Reloads,
    /// Whether every listener accepts.
    pub ready: AtomicBool,
}

/// Free connections, separate per listener: customers cannot use up those of backends.
pub struct Connections {
    /// Of the API listener.
    pub api: Arc<Semaphore>,
    /// Of the ingest listener.
    pub ingest: Arc<Semaphore>,
    most: usize,
}

impl Connections {
    /// `most` connections for each listener.
    #[must_use]
    pub fn new(most: usize) -> Self {
        let each = || Arc::new(Semaphore::new(most));
        Self { api: each(), ingest: each(), most }
    }

    /// Open connections of both listeners.
    #[must_use]
    pub fn open(&self) -> usize {
        let open = |left: &Semaphore| self.most.saturating_sub(left.available_permits());
        open(&self.api) + open(&self.ingest)
    }
}

impl State {
    /// The part that the worker uses.
    pub fn resources(&self, attempt_log: Option<Arc<LineLog>>) -> Resources {
        Resources {
            clock: self.clock.clone(),
            store: self.store.clone(),
            ids: self.store.ids().clone(),
            active: self.active.clone(),
            metrics: self.metrics.clone(),
            most_failed: self.most_failed.clone(),
            attempt_log,
            mailbox: self.mailbox.clone(),
            memory: Memory::default(),
        }
    }

    /// The outbox of mails.
    pub fn outbox(&self) -> Outbox {
        let (store, clock) = (self.store.clone(), self.clock.clone());
        Outbox::new(store, clock, self.active.clone(), self.metrics.clone())
    }

    /// Counts an error of the store, and makes its response.
    pub(crate) fn store_failed(&self, error: &StoreError) -> Reply {
        self.metrics.store_failed(error);
        http_errors::store(error)
    }

    /// Reads the configuration again, if it has changed and needs no restart.
    ///
    /// # Errors
    ///
    /// The outcome of the reload otherwise.
    pub fn read_anew(&self) -> Result<ActiveConfig, Reload> {
        let new = self.config.load(&self.clock).map_err(Reload::Refused)?;
        let old = self.active.load();
        if new.origin == old.origin {
            return Err(Reload::Unchanged);
        }
        let needed = new.restart_needed(&self.config.file.name(), &old);
        if !needed.is_empty() {
            return Err(Reload::Refused(needed));
        }
        Ok(new.start(Some(&old), &self.metrics, &self.clock))
    }

    /// Activates a configuration that was read anew.
    pub fn apply(&self, new: ActiveConfig) -> Reload {
        descriptors::raise_limit(&new.settings);
        self.active.store(Arc::new(new));
        self.mark_applied();
        self.applied.notify_one();
        self.mailbox.reloaded();
        Reload::Applied
    }

    /// Records when the active configuration was applied; logs an expired certificate.
    pub fn mark_applied(&self) {
        let (active, now) = (self.active.load(), self.clock.now().unix);
        self.reloads.applied(now);
        log::set_max_level(active.settings.log.level);
        active.certificate.iter().for_each(|certificate| certificate.log_expired(now));
    }
}

/// Reloads when one of the configuration's files changes.
/// They began to be read at `began`.
pub async fn watch_files(state: Arc<State>, began: UnixTime) {
    watch(|| stamps(&state), || reload(&state), began).await;
}

fn stamps(state: &State) -> Vec<Stamp> {
    let active = state.active.load();
    let config = state.config.file.path();
    config.into_iter().chain(active.files()).map(stamp).collect()
}

/// Reads the configuration again, and activates all of it or nothing. Parsing runs on a blocking
/// thread; the keys of a new identity server are fetched before the new configuration is active.
pub async fn reload(state: &Arc<State>) -> Reload {
    let attempt = async {
        let new = match run_blocking(state, State::read_anew).await? {
            Ok(new) => new,
            Err(outcome) => return Some(outcome),
        };
        let (earlier, file) = (state.active.load_full(), state.config.file.name());
        let verifiers = [&new, &earlier].map(|config| config.callers.verifier.as_deref());
        let keyless = keyless(verifiers[0], verifiers[1], || new.origin.document(&file)).await;
        if !keyless.is_empty() {
            return Some(Reload::Refused(keyless));
        }
        drop(earlier);
        run_blocking(state, move |state| state.apply(new)).await
    };
    state.reloads.run(attempt).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_listener_has_its_own_connections_and_all_are_counted() {
        let connections = Connections::new(2);
        let customers = Arc::clone(&connections.api).try_acquire_many_owned(2);
        assert!(customers.is_ok() && connections.api.try_acquire().is_err());
        let backend = connections.ingest.try_acquire();
        assert!(backend.is_ok(), "customers use up the connections of backends");
        assert_eq!(connections.open(), 3);
        drop(customers);
        assert_eq!(connections.open(), 1);
    }
}
