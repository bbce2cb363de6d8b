//! The only place that builds and connects the parts, and that owns every task and thread.
//!
//! # Invariants
//!
//! 1. The program says that it is ready only when every listener accepts.
//! 2. A stop takes no new work, finishes what is in flight, and ends when nothing is, or when
//!    `shutdown_grace` is over.

use std::io;
use std::net::TcpListener;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use log::Level;
use pingora_core::apps::HttpServerOptions;
use pingora_core::server::configuration::ServerConf;
use pingora_proxy::http_proxy;
use serde_json::json;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;
use weir_common::files;
use weir_common::logging;
use weir_common::reader::Mistake;
use weir_common::secret::Secret;
use weir_common::signals::Signals;
use weir_common::time::Clock;

use crate::admin::Admin;
use crate::force::{Config, Force};
use crate::http2::Front;
use crate::limit::key::Seed;
use crate::listen::{self, Accepted, BindError, Door, Worker};
use crate::metrics::Metrics;
use crate::parts::{Parts, Seeds};
use crate::proxy::Proxy;
use crate::resume;
use crate::tls;
use crate::watch as beside;

/// Idle connections to upstreams that each worker keeps, at most.
const POOL_MAX: usize = 1_024;

/// How long a start waits for the names of servers.
const NAMES_WAIT: Duration = Duration::from_secs(5);

/// How long a stop waits for the last lines of the access log to be taken.
const LOG_GRACE: Duration = Duration::from_secs(1);

/// How long a stop waits for the admin listener's last answer.
const ADMIN_GRACE: Duration = Duration::from_millis(200);

/// Why the program cannot run.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The configuration has mistakes.
    #[error("{}", lines(.0))]
    Configuration(Vec<Mistake>),
    /// An address is taken, or not ours.
    #[error(transparent)]
    Bind(#[from] BindError),
    /// The token's file cannot be read.
    #[error("cannot read server.admin_token_file `{path}`: {source}")]
    Token {
        /// Which file.
        path: String,
        /// Why not.
        source: io::Error,
    },
    /// The counters cannot be kept for the next start.
    #[error("cannot write the snapshot of limits `{path}`: {source}")]
    Snapshot {
        /// Which file.
        path: String,
        /// Why not.
        source: io::Error,
    },
    /// The system does not give us what every program needs.
    #[error("cannot start: {0}")]
    System(#[from] io::Error),
}

fn lines(mistakes: &[Mistake]) -> String {
    mistakes.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
}

/// Runs the gateway until it is told to stop.
pub fn run(config: Config) -> Result<(), RunError> {
    let control = Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    let signals = control.block_on(async { Signals::take() })?;
    let Prepared { parts, clients, admin, token } = prepare(config)?;
    let (stop, stopping) = watch::channel(false);
    // The operator can look on while clients are seen out.
    let (stop_admin, stopping_admin) = watch::channel(false);
    access_log_writer(&parts)?;
    let workers = Workers::start(&parts, &stopping)?;
    control.block_on(async {
        // Names are known before the first request asks for them.
        let _ = tokio::time::timeout(NAMES_WAIT, beside::resolve(&parts)).await;
        let admin = admin_listener(admin, token, &parts, &stopping_admin, &control)?;
        let mut tasks = beside_requests(&parts);
        accept_clients(clients, &workers, &parts, &stopping, &mut tasks)?;
        parts.ready.store(true, Ordering::Release);
        logging::event(Level::Info, "ready", &[("config", json!(parts.config.name()))]);
        let told = signals.told_to_stop(|| {
            let parts = parts.clone();
            async move { drop(beside::reload(&parts).await) }
        });
        told.await;
        parts.ready.store(false, Ordering::Release);
        logging::event(Level::Info, "stopping", &[]);
        // An error means that nobody listens any more, which is what a stop is for.
        let _ = stop.send(true);
        let grace = parts.force.load().rules.settings.server.shutdown_grace;
        let drained = tokio::time::timeout(grace, workers.ended()).await.is_ok();
        tasks.shutdown().await;
        let _ = stop_admin.send(true);
        let _ = tokio::time::timeout(ADMIN_GRACE, admin).await;
        logging::event(Level::Info, "stopped", &[("drained", json!(drained))]);
        Ok::<(), RunError>(())
    })?;
    control.shutdown_background();
    let left = resume::leave(&parts);
    if let Some(log) = &parts.access_log {
        log.close(LOG_GRACE);
    }
    left
}

/// Everything that can fail before the first request, done.
struct Prepared {
    parts: Arc<Parts>,
    clients: Vec<(TcpListener, Option<TlsAcceptor>)>,
    admin: TcpListener,
    token: Option<Secret<String>>,
}

fn prepare(config: Config) -> Result<Prepared, RunError> {
    let clock = Clock::system();
    let mut seeds = Seeds { keys: random_seed()?, names: random_seed()? };
    let (mut rules, mut origin) = config.load(seeds.keys).map_err(RunError::Configuration)?;
    logging::install(clock.clone(), rules.settings.log.level);
    let token = admin_token(&rules.settings.server.admin_token_file)?;
    let mut clients = Vec::new();
    for address in &rules.settings.server.http {
        clients.push((listen::bind(*address)?, None));
    }
    for entry in &rules.settings.server.https {
        clients.push((listen::bind(entry.address)?, Some(tls::config(entry)?.into())));
    }
    let admin = listen::bind(rules.settings.server.admin)?;
    let connections_max = room_for(rules.settings.server.caps.connections_max);
    resume::check(&rules.settings.store)?;
    let earlier = resume::earlier(&rules.settings.store, &clock);
    if let Some(earlier) = &earlier {
        // Keys are found again only with the secret that they were made with.
        seeds.keys = earlier.seed;
        (rules, origin) = config.load(seeds.keys).map_err(RunError::Configuration)?;
    }
    let metrics = Arc::new(Metrics::new());
    let force = Force::new(rules, origin, None, &metrics);
    let parts = Arc::new(Parts::new(clock, config, force, seeds, metrics, connections_max));
    parts.mark_applied();
    if let Some(earlier) = earlier {
        let states = earlier.restore(&parts.store);
        logging::event(Level::Info, "limits restored", &[("states", json!(states))]);
    }
    Ok(Prepared { parts, clients, admin, token })
}

fn random_seed() -> io::Result<Seed> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes)?;
    Ok(Seed::new(bytes))
}

/// What goes on beside requests until it is shut down.
fn beside_requests(parts: &Arc<Parts>) -> JoinSet<()> {
    let mut tasks = JoinSet::new();
    tasks.spawn(beside::names(parts.clone()));
    tasks.spawn(beside::health(parts.clone()));
    tasks.spawn(beside::files(parts.clone()));
    tasks.spawn(beside::states(parts.clone()));
    tasks
}

fn accept_clients(
    listeners: Vec<(TcpListener, Option<TlsAcceptor>)>,
    workers: &Workers,
    parts: &Arc<Parts>,
    stopping: &watch::Receiver<bool>,
    tasks: &mut JoinSet<()>,
) -> io::Result<()> {
    let open = Arc::new(AtomicU64::new(0));
    for (listener, tls) in listeners {
        let address = listener.local_addr()?;
        let name = if tls.is_some() { "https" } else { "http" };
        let door = Door { workers: workers.ways.clone(), open: open.clone(), counted: true, tls };
        tasks.spawn(listen::accept(listener, door, parts.clone(), stopping.clone()));
        announce(name, address);
    }
    Ok(())
}

fn announce(listener: &str, address: std::net::SocketAddr) {
    let fields = [("listener", json!(listener)), ("address", json!(address.to_string()))];
    logging::event(Level::Info, "listening", &fields);
}

fn admin_token(
    file: &Option<weir_common::reader::At<String>>,
) -> Result<Option<Secret<String>>, RunError> {
    let Some(file) = file else { return Ok(None) };
    let unreadable = |source| RunError::Token { path: file.value.clone(), source };
    files::first_line(Path::new(&file.value)).map(Some).map_err(unreadable)
}

/// Asks for as many file descriptors as connections may need, two each and some for ourselves,
/// and says how many connections there may then be.
fn room_for(connections_max: u64) -> u64 {
    const OWN: u64 = 128;
    let wanted = connections_max * 2 + OWN;
    let descriptors = files::descriptors(wanted);
    // Without room for ourselves half of what there is goes to clients.
    let fits = (descriptors.saturating_sub(OWN) / 2).max(descriptors / 8);
    if fits < connections_max {
        let fields = [
            ("file_descriptors", json!(descriptors)),
            ("connections_max", json!(fits)),
            ("wanted", json!(wanted)),
            ("advice", json!("raise LimitNOFILE or ulimit -n, or lower server.connections_max")),
        ];
        logging::event(Level::Warn, "file descriptors allow fewer connections", &fields);
    }
    fits.min(connections_max)
}

/// The writer is not joined: where nobody reads standard output it waits for ever, and the
/// program does not.
fn access_log_writer(parts: &Parts) -> io::Result<()> {
    let Some(log) = parts.access_log.clone() else { return Ok(()) };
    let writer = thread::Builder::new().name("access-log".to_owned());
    writer.spawn(move || log.write_out(io::stdout())).map(drop)
}

/// Serves the operator on the control runtime, beside the workers: it answers when they are busy.
fn admin_listener(
    listener: TcpListener,
    token: Option<Secret<String>>,
    parts: &Arc<Parts>,
    stopping: &watch::Receiver<bool>,
    control: &Runtime,
) -> Result<impl Future<Output = ()>, RunError> {
    let address = listener.local_addr()?;
    let (way, from) = Worker::new();
    let admin = Arc::new(Admin { parts: parts.clone(), token });
    let door =
        Door { workers: Arc::new(vec![way]), open: Arc::default(), counted: false, tls: None };
    let accepting = listen::accept(listener, door, parts.clone(), stopping.clone());
    let accepting = control.spawn(accepting);
    let serving = control.spawn(listen::serve(admin, from, parts.clone(), stopping.clone()));
    announce("admin", address);
    Ok(async move {
        // A panic there has been reported already.
        let _ = (accepting.await, serving.await);
    })
}

/// The threads that serve clients, each with a runtime and connections to upstreams of its own.
struct Workers {
    ways: Arc<Vec<Worker>>,
    ended: watch::Receiver<usize>,
    count: usize,
}

impl Workers {
    fn start(parts: &Arc<Parts>, stopping: &watch::Receiver<bool>) -> io::Result<Self> {
        let threads = parts.force.load().rules.settings.server.threads;
        let cores = || thread::available_parallelism().map_or(1, usize::from);
        let count = if threads == 0 { cores() } else { threads };
        let (ways, ends): (Vec<_>, Vec<_>) = (0..count).map(|_| Worker::new()).unzip();
        let (done, ended) = watch::channel(0);
        let done = Arc::new(done);
        for (nth, from) in ends.into_iter().enumerate() {
            let (parts, stopping, done) = (parts.clone(), stopping.clone(), done.clone());
            let runtime = Builder::new_current_thread().enable_all().build()?;
            let work = move || {
                runtime.block_on(work(parts, from, stopping));
                done.send_modify(|done| *done += 1);
            };
            thread::Builder::new().name(format!("worker-{nth}")).spawn(work)?;
        }
        Ok(Self { ways: Arc::new(ways), ended, count })
    }

    /// Waits until every worker's last connection is over.
    async fn ended(&self) {
        let mut ended = self.ended.clone();
        // An error means that all of them are gone.
        let _ = ended.wait_for(|ended| *ended == self.count).await;
    }
}

async fn work(
    parts: Arc<Parts>,
    from: mpsc::UnboundedReceiver<Accepted>,
    stopping: watch::Receiver<bool>,
) {
    let conf =
        ServerConf { threads: 1, upstream_keepalive_pool_size: POOL_MAX, ..ServerConf::default() };
    let mut proxy = http_proxy(&Arc::new(conf), Proxy { parts: parts.clone() });
    let mut options = HttpServerOptions::default();
    // So that `judge` sees it, and refuses it in our words.
    options.allow_connect_method_proxying = true;
    proxy.server_options = Some(options);
    let front = Front { proxy: Arc::new(proxy), parts: parts.clone() };
    listen::serve(Arc::new(front), from, parts, stopping).await;
}
