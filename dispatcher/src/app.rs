//! The only place that builds and connects the parts, and that owns every task and thread.
//!
//! # Invariants
//!
//! 1. The program says that it is ready only when every listener accepts.
//! 2. A stop takes no new work, finishes what is under way, and ends when nothing is, or when
//!    `shutdown_grace` is over; what was cut off is sent again by the next start.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use arc_swap::ArcSwap;
use log::Level;
use serde_json::json;
use tokio::net::{TcpListener, TcpSocket};
use tokio::runtime::Builder;
use tokio::sync::{Semaphore, mpsc, watch};
use tokio::task::JoinSet;
use weir_common::admin::{self, Admin, TokenError};
use weir_common::config::document::{Diagnostic, lines};
use weir_common::http_server::body::BODIES_BYTES_MAX;
use weir_common::http_server::{
    self, Bounds, ConnectionBounds, HEAD_BYTES_MAX, Handler, Listening,
};
use weir_common::log::events;
use weir_common::log::json_lines::LineLog;
use weir_common::rlimit;
use weir_common::signals::Signals;
use weir_common::time::Clock;

use crate::admin::DispatcherAdmin;
use crate::api::Api;
use crate::ingest::Ingest;
use crate::live_config::{ActiveConfig, Config};
use crate::mailbox::{Command, Mailbox};
use crate::maintenance;
use crate::metrics::Metrics;
use crate::state::{self, Connections, State};
use crate::store::sqlite::SqliteStore;
use crate::store::sqlite::open::OpenError;
use crate::store::{Store, StoreError};
use crate::worker::{Drained, Worker};

/// How long a stop waits for the last lines of attempts to be taken.
const LOG_GRACE: Duration = Duration::from_secs(1);

/// How long a stop waits for listeners once nothing is under way any more.
const LISTENERS_GRACE: Duration = Duration::from_secs(2);

/// File descriptors for ourselves: the database, the log, the runtime.
const OWN_DESCRIPTORS: u64 = 128;

/// Connections that a listener has not accepted yet: whoever comes beyond them tries again only a
/// second later. The system allows fewer where `net.core.somaxconn` is lower.
const UNACCEPTED_MAX: u32 = 4_096;

/// Why the program cannot run.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The configuration has mistakes.
    #[error("{}", lines(.0))]
    Configuration(Vec<Diagnostic>),
    /// An address is taken, or not ours.
    #[error("cannot listen on {address}: {source}")]
    Bind {
        /// Which.
        address: SocketAddr,
        /// Why not.
        source: io::Error,
    },
    /// The token's file cannot be read.
    #[error(transparent)]
    Token(#[from] TokenError),
    /// The database cannot be used.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The database cannot be read.
    #[error("cannot begin: {0}")]
    Store(#[from] StoreError),
    /// The system does not give us what every program needs.
    #[error("cannot start: {0}")]
    System(#[from] io::Error),
}

/// Runs the dispatcher until it is told to stop.
pub fn run(config: Config) -> Result<(), RunError> {
    let clock = Clock::system();
    let active = config.load(&clock).map_err(RunError::Configuration)?;
    events::install(clock.clone(), active.settings.log.level);
    let mut runtime = Builder::new_multi_thread();
    if active.settings.server.threads > 0 {
        runtime.worker_threads(active.settings.server.threads);
    }
    let runtime = runtime.enable_all().build()?;
    let ended = runtime.block_on(serve_until_told(config, clock, active));
    runtime.shutdown_background();
    ended
}

async fn serve_until_told(
    config: Config,
    clock: Clock,
    active: ActiveConfig,
) -> Result<(), RunError> {
    let signals = Signals::take()?;
    let server = active.settings.server.clone();
    let token = admin::token(server.admin_token_file.as_ref())?;
    room_for(&active);
    let api = bind(server.api)?;
    let ingest = bind(server.ingest)?;
    let admin = bind(server.admin)?;
    let store = &active.settings.store.path;
    let store = SqliteStore::open(store, &active.settings.secrets.key_file, clock.clone())?;
    let (state, inbox) = shared(config, clock, active, Arc::new(store));
    state.mark_applied();
    let attempt_log = attempt_log(&state)?;
    let (stop, stopping) = watch::channel(false);
    let worker =
        Worker::prepare(state.resources(attempt_log.clone()), inbox, stopping.clone()).await?;

    let mut listeners = Listeners::default();
    let handler = Arc::new(Api { state: state.clone() });
    listeners.add("api", api, handler, bounds(&state, state.connections.api.clone()))?;
    let handler = Arc::new(Ingest::new(state.clone()));
    listeners.add("ingest", ingest, handler, bounds(&state, state.connections.ingest.clone()))?;
    // The operator can look on while deliveries are seen out.
    let mut operator = Listeners::default();
    let handler = Arc::new(Admin { program: DispatcherAdmin(state.clone()), token });
    let own = Arc::new(Semaphore::new(server.connections_max));
    operator.add("admin", admin, handler, bounds(&state, own))?;
    let mut tasks = beside_deliveries(&state);
    let mut post = JoinSet::new();
    post.spawn(state.outbox().run(stopping.clone()));
    let mut work = JoinSet::new();
    work.spawn(worker.run());
    state.ready.store(true, Ordering::Release);
    events::event(Level::Info, "ready", &[("config", json!(state.config.file.name()))]);
    let told = signals.told_to_stop(|| {
        let state = state.clone();
        async move { drop(state::reload(&state).await) }
    });
    told.await;

    state.ready.store(false, Ordering::Release);
    events::event(Level::Info, "stopping", &[]);
    // An error means that nobody listens any more, which is what a stop is for.
    let _ = stop.send(true);
    listeners.close();
    let grace = state.active.load().settings.server.shutdown_grace;
    // A mail server that hangs says nothing of whether deliveries are seen out.
    let (drained, _) = tokio::join!(
        tokio::time::timeout(grace, work.join_next()),
        tokio::time::timeout(grace, post.join_next()),
    );
    let drained = drained.ok().flatten().and_then(Result::ok).unwrap_or(Drained::No);
    let _ = tokio::time::timeout(LISTENERS_GRACE, listeners.ended()).await;
    tasks.shutdown().await;
    if drained == Drained::Yes {
        state.store.close().await?;
    }
    operator.close();
    let _ = tokio::time::timeout(LISTENERS_GRACE, operator.ended()).await;
    if let Some(log) = attempt_log {
        log.close(LOG_GRACE);
    }
    events::event(Level::Info, "stopped", &[("drained", json!(drained != Drained::No))]);
    Ok(())
}

fn shared(
    config: Config,
    clock: Clock,
    active: ActiveConfig,
    store: Arc<dyn Store>,
) -> (Arc<State>, mpsc::UnboundedReceiver<Command>) {
    let (mailbox, inbox) = Mailbox::new();
    let connections = Connections::new(active.settings.server.connections_max);
    let metrics = Arc::new(Metrics::new());
    let reloads = metrics.of_reloads();
    metrics.build.with_label_values(&[env!("CARGO_PKG_VERSION")]).set(1);
    let state = State {
        clock,
        config,
        store,
        active: Arc::new(ArcSwap::from_pointee(active)),
        mailbox,
        metrics,
        connections,
        jobs: Arc::default(),
        reloads,
        ready: AtomicBool::new(false),
    };
    (Arc::new(state), inbox)
}

/// What goes on beside deliveries until it is shut down.
fn beside_deliveries(state: &Arc<State>) -> JoinSet<()> {
    let mut tasks = JoinSet::new();
    let (store, clock) = (state.store.clone(), state.clock.clone());
    let (mailbox, more) = (state.mailbox.clone(), state.jobs.clone());
    tasks.spawn(maintenance::jobs(store.clone(), clock.clone(), mailbox, more));
    tasks.spawn(maintenance::retention(store, clock, state.active.clone()));
    tasks.spawn(state::watch_files(state.clone()));
    tasks
}

/// Listeners that close together, and their tasks.
#[derive(Default)]
struct Listeners {
    tasks: JoinSet<()>,
    listening: watch::Sender<Listening>,
}

/// What a listener with these connections of its own allows.
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
        // One body of the largest kind has room in any case.
        bodies_bytes_max: BODIES_BYTES_MAX.max(settings.ingest.body_bytes_max),
    }
}

impl Listeners {
    fn add(
        &mut self,
        name: &str,
        listener: TcpListener,
        handler: Arc<dyn Handler>,
        bounds: Bounds,
    ) -> io::Result<()> {
        let address = listener.local_addr()?;
        self.tasks.spawn(http_server::serve(listener, handler, bounds, self.listening.subscribe()));
        let fields = [("listener", json!(name)), ("address", json!(address.to_string()))];
        events::event(Level::Info, "listening", &fields);
        Ok(())
    }

    fn close(&self) {
        self.listening.send_replace(Listening::Closing);
    }

    async fn ended(&mut self) {
        while self.tasks.join_next().await.is_some() {}
    }
}

fn bind(address: SocketAddr) -> Result<TcpListener, RunError> {
    let bound = || {
        let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
        socket.set_reuseaddr(true)?;
        socket.bind(address)?;
        socket.listen(UNACCEPTED_MAX)
    };
    bound().map_err(|source| RunError::Bind { address, source })
}

/// Asks for as many file descriptors as connections either way may need.
fn room_for(active: &ActiveConfig) {
    let settings = &active.settings;
    let wanted = settings.server.connections_max * 2 + settings.egress.in_flight_max * 2;
    let wanted = wanted as u64 + OWN_DESCRIPTORS;
    let descriptors = rlimit::raise_descriptors(wanted);
    if descriptors < wanted {
        let fields = [
            ("file_descriptors", json!(descriptors)),
            ("wanted", json!(wanted)),
            ("advice", json!("raise LimitNOFILE or ulimit -n, or lower egress.in_flight_max")),
        ];
        events::event(Level::Warn, "RLIMIT_NOFILE too low", &fields);
    }
}

/// The writer is not joined: where nobody reads standard output it waits for ever, and the
/// program does not.
fn attempt_log(state: &State) -> io::Result<Option<Arc<LineLog>>> {
    if !state.active.load().settings.log.attempts {
        return Ok(None);
    }
    let log = Arc::new(LineLog::default());
    let lines = log.clone();
    let writer = thread::Builder::new().name("attempt-log".to_owned());
    writer.spawn(move || lines.write_out(io::stdout()))?;
    Ok(Some(log))
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpStream;
    use tokio::time::timeout;

    use super::*;

    #[tokio::test]
    async fn a_crowd_that_comes_at_one_time_is_let_in_without_a_second_try() {
        let listener = bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let address = listener.local_addr().unwrap();
        let mut crowd = Vec::new();
        for nth in 0..300 {
            // A system that has no room says nothing, and is asked again after a second.
            let connected = timeout(Duration::from_millis(900), TcpStream::connect(address)).await;
            crowd.push(connected.unwrap_or_else(|_| panic!("number {nth} waits")).unwrap());
        }
    }
}
