//! Builds and connects all parts, and owns every task and thread.
//!
//! # Invariants
//!
//! 1. The program reports ready only while every listener accepts.
//! 2. A shutdown accepts no new work, finishes attempts and requests in flight, and ends when none
//!    is left or `shutdown_grace` is over; interrupted attempts are repeated after the next start.
//! 3. A program whose worker or background task has ended stops, so that it is started again: it
//!    would accept events and deliver none.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;
use log::Level;
use serde_json::json;
use tokio::runtime::Builder;
use tokio::sync::{Notify, Semaphore, mpsc, watch};
use tokio::task::{JoinError, JoinSet};
use weir_common::admin::Admin;
use weir_common::config::document::{Diagnostic, lines};
use weir_common::config::shown_certificate::log_expiring;
use weir_common::http_server::body::BODIES_BYTES_MAX;
use weir_common::http_server::listeners::{BindError, Listeners, bind};
use weir_common::http_server::{Bounds, ConnectionBounds, HEAD_BYTES_MAX, Listening};
use weir_common::identity::refresh_jwks;
use weir_common::log::events;
use weir_common::log::json_lines::LineLog;
use weir_common::signals::Signals;
use weir_common::time::{Clock, UnixTime};

use crate::admin::DispatcherAdmin;
use crate::admin::watch::Watch;
use crate::config::settings::OperatorEndpoint;
use crate::dashboard::Dashboard;
use crate::ingest::Ingest;
use crate::live_config::source::Config;
use crate::live_config::{ActiveConfig, descriptors};
use crate::mailbox::{Command, Mailbox};
use crate::maintenance;
use crate::metrics::Metrics;
use crate::state::{self, Connections, State};
use crate::store::sqlite::SqliteStore;
use crate::store::sqlite::open::OpenError;
use crate::store::{Store, StoreError};
use crate::worker::{Drained, Worker};

/// How long a shutdown waits for the last lines of the attempt log.
const LOG_GRACE: Duration = Duration::from_secs(1);

/// How long a shutdown waits for requests to the admin listener, which it closes last.
const OPERATORS_GRACE: Duration = Duration::from_secs(2);

/// Why the program cannot run.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The configuration has errors.
    #[error("{}", lines(.0))]
    Configuration(Vec<Diagnostic>),
    /// An address is in use, or not local.
    #[error(transparent)]
    Bind(#[from] BindError),
    /// The database cannot be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The database cannot be read.
    #[error("cannot begin: {0}")]
    Store(#[from] StoreError),
    /// The system lacks a basic resource.
    #[error("cannot start: {0}")]
    System(#[from] io::Error),
    /// A task that runs until the shutdown ended before it: a bug.
    #[error("stopped by a bug, please report it: the task of {task} {}", reason(.error))]
    Ended {
        /// What the task does.
        task: &'static str,
        /// Absent if it returned.
        error: Option<JoinError>,
    },
}

fn reason(error: &Option<JoinError>) -> String {
    error.as_ref().map_or("returned".to_owned(), |error| format!("ended: {error}"))
}

/// Runs the dispatcher until a shutdown.
pub fn run(config: Config) -> Result<(), RunError> {
    let clock = Clock::system();
    let began = clock.now().unix;
    // Files may take seconds to read: until there are handlers, a SIGHUP ends the process.
    let early = Builder::new_current_thread().enable_io().build()?;
    let signals = early.block_on(async { Signals::install() })?;
    let active = config.load(&clock).map_err(RunError::Configuration)?;
    events::install(clock.clone(), active.settings.log.level);
    let mut runtime = Builder::new_multi_thread();
    if active.settings.server.threads > 0 {
        runtime.worker_threads(active.settings.server.threads);
    }
    let runtime = runtime.enable_all().build()?;
    let ended = runtime.block_on(serve_until_stopped(config, clock, active, (signals, began)));
    runtime.shutdown_background();
    ended
}

async fn serve_until_stopped(
    config: Config,
    clock: Clock,
    active: ActiveConfig,
    (signals, began): (Signals, UnixTime),
) -> Result<(), RunError> {
    let server = active.settings.server.clone();
    descriptors::raise_limit(&active.settings);
    let api = bind(server.api)?;
    let ingest = bind(server.ingest)?;
    let admin = bind(server.admin)?;
    let store = &active.settings.store.path;
    let store = SqliteStore::open(store, &active.settings.secrets.key_file, clock.clone())?;
    let (state, inbox) = shared(config, clock, active, Arc::new(store));
    state.mark_applied();
    let endpoint = state.active.load().settings.operator_endpoint().cloned();
    state.store.set_operator(endpoint.clone(), state.clock.now().unix).await?;
    let attempt_log = attempt_log(&state)?;
    let (stop, stopping) = watch::channel(false);
    let worker =
        Worker::prepare(state.resources(attempt_log.clone()), inbox, stopping.clone()).await?;

    let mut listeners = Listeners::default();
    let handler = Arc::new(Dashboard::new(state.clone()));
    listeners.add("api", api, handler, bounds(&state, state.connections.api.clone()))?;
    let handler = Arc::new(Ingest::new(state.clone()));
    listeners.add("ingest", ingest, handler, bounds(&state, state.connections.ingest.clone()))?;
    // The admin listener stays open while attempts in flight end.
    let mut operator = Listeners::default();
    let (handler, watch) = operators(&state)?;
    let own = Arc::new(Semaphore::new(server.connections_max));
    operator.add("admin", admin, handler, bounds(&state, own))?;
    let mut tasks = background_tasks(&state, watch, endpoint, began);
    let mut post = JoinSet::new();
    post.spawn(state.outbox().run(stopping.clone()));
    let mut work = JoinSet::new();
    work.spawn(worker.run());
    state.ready.store(true, Ordering::Release);
    events::event(Level::Info, "ready", &[("config", json!(state.config.file.name()))]);
    let stopped = signals.until_stop(|| {
        let state = state.clone();
        async move { drop(state::reload(&state).await) }
    });
    let outcome = until_ended(stopped, &mut work, &mut post, &mut tasks).await;

    state.ready.store(false, Ordering::Release);
    events::event(Level::Info, "stopping", &[]);
    // Cannot fail: this function still has a receiver.
    let _ = stop.send(true);
    listeners.set(Listening::Closing);
    let grace = state.active.load().settings.server.shutdown_grace;
    // A mail server that hangs must not delay the shutdown.
    let (drained, _, ()) = tokio::join!(
        tokio::time::timeout(grace, work.join_next()),
        tokio::time::timeout(grace, post.join_next()),
        listeners.ended(grace),
    );
    let drained = drained.ok().flatten().and_then(Result::ok).unwrap_or(Drained::No);
    tasks.shutdown().await;
    if drained == Drained::Yes {
        state.store.close().await?;
    }
    operator.set(Listening::Closing);
    operator.ended(OPERATORS_GRACE).await;
    if let Some(log) = attempt_log {
        log.close(LOG_GRACE);
    }
    events::event(Level::Info, "stopped", &[("drained", json!(drained != Drained::No))]);
    outcome
}

/// Waits for the stop that an operator wants; an error if a task ends before it.
async fn until_ended(
    stopped: impl Future<Output = ()>,
    work: &mut JoinSet<Drained>,
    post: &mut JoinSet<()>,
    tasks: &mut JoinSet<()>,
) -> Result<(), RunError> {
    tokio::select! {
        () = stopped => Ok(()),
        error = ended("deliveries", work) => Err(error),
        error = ended("mails", post) => Err(error),
        error = ended("the background", tasks) => Err(error),
    }
}

/// Waits until one of these tasks ends.
async fn ended<T: 'static>(task: &'static str, running: &mut JoinSet<T>) -> RunError {
    match running.join_next().await {
        Some(result) => RunError::Ended { task, error: result.err() },
        None => std::future::pending().await,
    }
}

fn shared(
    config: Config,
    clock: Clock,
    active: ActiveConfig,
    store: Arc<dyn Store>,
) -> (Arc<State>, mpsc::UnboundedReceiver<Command>) {
    let (mailbox, inbox) = Mailbox::new();
    let connections = Connections::new(active.settings.server.connections_max);
    let metrics = Arc::new(Metrics::from_zero());
    let reloads = metrics.of_reloads();
    metrics.build.with_label_values(&[env!("CARGO_PKG_VERSION")]).set(1);
    let active = active.start(None, &metrics, &clock);
    let state = State {
        clock,
        config,
        store,
        active: Arc::new(ArcSwap::from_pointee(active)),
        mailbox,
        metrics,
        connections,
        most_failed: Arc::default(),
        jobs: Arc::default(),
        applied: Notify::new(),
        reloads,
        ready: AtomicBool::new(false),
    };
    (Arc::new(state), inbox)
}

/// The handler of the admin listener, and what it shows of the last hour.
fn operators(state: &Arc<State>) -> io::Result<(Arc<Admin<DispatcherAdmin>>, Arc<Watch>)> {
    state.store.time_commits(state.metrics.store_commit_duration.clone());
    let watch = Arc::new(Watch::new(state.clock.now()));
    let own = DispatcherAdmin { state: state.clone(), watch: watch.clone() };
    Ok((Arc::new(Admin::new(own)?), watch))
}

/// Starts the background tasks, which run until they are shut down.
fn background_tasks(
    state: &Arc<State>,
    watch: Arc<Watch>,
    endpoint: Option<OperatorEndpoint>,
    began: UnixTime,
) -> JoinSet<()> {
    let mut tasks = JoinSet::new();
    tasks.spawn(watch.run(state.clone()));
    let (store, clock) = (state.store.clone(), state.clock.clone());
    let (mailbox, more) = (state.mailbox.clone(), state.jobs.clone());
    let active = state.active.clone();
    let changes =
        maintenance::operator(store.clone(), clock.clone(), active, mailbox.clone(), endpoint);
    tasks.spawn(changes);
    tasks.spawn(maintenance::jobs(store.clone(), clock.clone(), mailbox, more));
    tasks.spawn(maintenance::retention(store, clock, state.active.clone()));
    tasks.spawn(state::watch_files(state.clone(), began));
    let of_certificate = state.clone();
    tasks.spawn(async move {
        let active = || of_certificate.active.load().certificate.iter().cloned().collect();
        log_expiring(&of_certificate.clock, active).await;
    });
    let of_keys = state.clone();
    tasks.spawn(async move {
        let verifier = || of_keys.active.load().callers.verifier.clone();
        refresh_jwks(verifier, &of_keys.applied).await;
    });
    tasks
}

/// The limits of a listener; `connections` are its own.
fn bounds(state: &State, connections: Arc<Semaphore>) -> Bounds {
    let settings = &state.active.load().settings;
    let each = ConnectionBounds {
        head_bytes_max: HEAD_BYTES_MAX,
        head_timeout: settings.server.head_timeout,
        idle_timeout: settings.server.idle_timeout,
        body_timeout: settings.server.body_timeout,
    };
    Bounds {
        connection: Arc::new(move || each),
        connections,
        // At least one body of the largest size.
        bodies_bytes_max: BODIES_BYTES_MAX.max(settings.ingest.body_bytes_max),
    }
}

fn attempt_log(state: &State) -> io::Result<Option<Arc<LineLog>>> {
    if !state.active.load().settings.log.attempts {
        return Ok(None);
    }
    let log = LineLog::new(&state.metrics.log_dropped);
    log.write_to_stdout("attempt-log")?;
    Ok(Some(log))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_task_that_ends_is_an_error_that_names_it() {
        let mut tasks = JoinSet::new();
        tasks.spawn(async { panic!("a bug") });
        tasks.spawn(std::future::pending());
        let error = ended("deliveries", &mut tasks).await.to_string();
        assert!(
            error.starts_with("stopped by a bug, please report it: the task of deliveries ended")
        );
        assert!(error.contains("a bug"), "{error}");
    }
}
