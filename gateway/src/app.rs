//! The only place that builds and connects the parts, and that owns every task and thread.
//!
//! # Invariants
//!
//! 1. The program says that it is ready only when every listener accepts.
//! 2. A stop takes no new work, finishes what is in flight, and ends when nothing is, or when
//!    `shutdown_grace` is over.
//! 3. After an upgrade it is the successor that saves a snapshot.
//!
//! Not here: what goes on between start and end (`serving`).

mod front;
mod serving;
mod workers;

use std::ffi::OsString;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use log::Level;
use serde_json::json;
use tokio::runtime::{Builder, Runtime};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tokio::task::JoinSet;
use weir_common::config::document::{Diagnostic, lines};
use weir_common::log::events;
use weir_common::rlimit;
use weir_common::signals::Signals;
use weir_common::time::Clock;

use crate::app::serving::{ClientListeners, Serving};
use crate::app::workers::Workers;
use crate::config::active::{Config, addresses};
use crate::config::shared::{Seeds, Shared};
use crate::limit::key::Seed;
use crate::operations::background as beside;
use crate::operations::persistence::{self, SnapshotFileError};
use crate::operations::systemd::Notify;
use crate::operations::upgrade::UpgradeError;
use crate::operations::upgrade::init::First;
use crate::operations::upgrade::predecessor::Predecessor;
use crate::operations::upgrade::sockets::Sockets;
use crate::request::upload;
use weir_common::http_server::listeners::{BindError, Listeners};

/// How long a stop waits for the last lines of the access log to be taken.
const LOG_GRACE: Duration = Duration::from_secs(1);

/// Why the program cannot run.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The configuration has errors.
    #[error("{}", lines(.0))]
    Configuration(Vec<Diagnostic>),
    /// An address is taken, or not ours.
    #[error(transparent)]
    Bind(#[from] BindError),
    /// The counters cannot be kept for the next start.
    #[error(transparent)]
    Snapshot(#[from] SnapshotFileError),
    /// The process before us may know where its servers are, and we do not.
    #[error("no server resolves of upstream {0}: the earlier process goes on")]
    Unreachable(String),
    /// The place of another process cannot be taken.
    #[error(transparent)]
    Upgrade(#[from] UpgradeError),
    /// The process that we stood for as process 1 has failed.
    #[error("the process that had taken over ended with {0}")]
    Successor(i32),
    /// The system does not give us what every program needs.
    #[error("cannot start: {0}")]
    System(#[from] io::Error),
}

/// What a process is started with beside its flags.
#[derive(Debug, Default)]
pub struct Surroundings {
    /// Where a supervisor wants to be told how we are.
    pub notify: Option<OsString>,
    /// Whether standard input leads to a process whose place we take.
    pub takes_over: bool,
}

/// Runs the gateway until it is told to stop, or another process has taken its place.
pub fn run(config: Config, around: &Surroundings) -> Result<(), RunError> {
    upload::install();
    let control = Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    let (signals, mut upgrades) = control.block_on(async {
        Ok::<_, io::Error>((Signals::install()?, signal(SignalKind::user_defined2())?))
    })?;
    let notify = Notify::at(around.notify.as_deref())?;
    let mut predecessor = if around.takes_over { Some(Predecessor::meet()?) } else { None };
    let started = start(config, &mut predecessor, &control);
    let serving = match (started, predecessor) {
        (Err(why), Some(predecessor)) => {
            predecessor.fail(&why.to_string());
            return Err(why);
        }
        (started, predecessor) => started?.after(predecessor, &control),
    };
    let shared = serving.shared.clone();
    shared.ready.store(true, Ordering::Release);
    notify.ready();
    events::event(Level::Info, "ready", &[("config", json!(shared.config.file.name()))]);
    let handed_over = control.block_on(async {
        let stop = signals.until_stop(|| {
            let shared = shared.clone();
            async move { drop(beside::reload(&shared).await) }
        });
        let mut stop = pin!(stop);
        match serving.until_replaced(stop.as_mut(), &mut upgrades).await {
            None => {
                notify.stopping();
                serving.stop().await;
                Ok(None)
            }
            Some(successor) => {
                // A signal that has come until now was meant for us.
                let first = First::new()?;
                let process = successor.process();
                let stands = async {
                    match first {
                        Some(first) => first.stand_for(process).await,
                        None => 0,
                    }
                };
                Ok(Some(tokio::join!(serving.retire(successor, stop), stands).1))
            }
        }
    });
    control.shutdown_background();
    // What another process has is its to keep.
    let left = match handed_over {
        Err(error) => Err(RunError::System(error)),
        Ok(None) => persistence::leave(&shared).map_err(RunError::from),
        Ok(Some(0)) => Ok(()),
        Ok(Some(code)) => Err(RunError::Successor(code)),
    };
    if let Some(log) = &shared.access_log {
        log.close(LOG_GRACE);
    }
    left
}

/// Does everything that can fail, and begins to accept. Where a place is taken, the counters come
/// last: until then the process before us goes on, whatever fails here.
fn start(
    config: Config,
    predecessor: &mut Option<Predecessor>,
    control: &Runtime,
) -> Result<Serving, RunError> {
    let Prepared { shared, sockets, clients, admin } = prepare(config, predecessor)?;
    if let Some(log) = &shared.access_log {
        log.share(predecessor.is_some());
        log.write_to_stdout("access-log")?;
    }
    let client_listeners = ClientListeners::default();
    let workers = Workers::start(&shared, &client_listeners.end())?;
    // Names are known before the first request asks for them. What is not found in time is asked
    // for again beside requests, and `/readyz` says so until then.
    control.block_on(beside::resolve(&shared));
    if let Some(predecessor) = predecessor {
        let unreachable = shared.active.load().unreachable().join(", ");
        if !unreachable.is_empty() {
            return Err(RunError::Unreachable(unreachable));
        }
        let states = predecessor.receive_counters(&shared)?;
        events::event(
            Level::Info,
            "limits received from predecessor",
            &[("states", json!(states))],
        );
    }
    let mut serving = Serving {
        shared,
        sockets,
        workers,
        clients: client_listeners,
        operators: Listeners::default(),
        beside: JoinSet::new(),
        alone: watch::Sender::new(true),
    };
    let _within = control.enter();
    serving.serve_operators(admin)?;
    serving.accept_clients(clients)?;
    serving.beside_requests();
    Ok(serving)
}

/// Everything that can fail before the first request, done.
struct Prepared {
    shared: Arc<Shared>,
    sockets: Sockets,
    clients: Vec<(TcpListener, Option<SocketAddr>)>,
    admin: TcpListener,
}

fn prepare(config: Config, predecessor: &mut Option<Predecessor>) -> Result<Prepared, RunError> {
    let clock = Clock::system();
    let mut seeds = Seeds { keys: random_seed()?, names: random_seed()? };
    let mut sockets = Sockets::default();
    if let Some(predecessor) = predecessor {
        // Keys are found again only with the secret that they were made with.
        seeds.keys = Seed::new(predecessor.offer.seed);
        sockets = Sockets::of(std::mem::take(&mut predecessor.sockets));
    }
    let mut checked = config.load(seeds.keys).map_err(RunError::Configuration)?;
    let settings = &checked.settings;
    events::install(clock.clone(), settings.log.level);
    let mut clients = Vec::new();
    for address in &settings.server.http {
        clients.push((sockets.bind("http", *address)?, None));
    }
    for address in addresses(&settings.server.https) {
        clients.push((sockets.bind("https", address)?, Some(address)));
    }
    let admin = sockets.bind("admin", settings.server.admin)?;
    sockets.drop_rest();
    let connections_max = room_for(settings.server.caps.connections_max);
    persistence::check(&settings.store)?;
    let earlier = match predecessor {
        None => persistence::earlier(&settings.store, &clock),
        Some(_) => None,
    };
    if let Some(earlier) = &earlier {
        seeds.keys = earlier.seed;
        checked.rules.rekey(seeds.keys);
    }
    let shared = Arc::new(Shared::new(clock, config, checked, seeds, connections_max));
    shared.mark_applied();
    if let Some(earlier) = earlier {
        let states = persistence::restore(&shared, earlier);
        events::event(Level::Info, "limit snapshot restored", &[("states", json!(states))]);
    }
    Ok(Prepared { shared, sockets, clients, admin })
}

fn random_seed() -> io::Result<Seed> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes)?;
    Ok(Seed::new(bytes))
}

/// Asks for as many file descriptors as connections may need, two each and some for ourselves,
/// and says how many connections there may then be.
fn room_for(connections_max: u64) -> u64 {
    const OWN: u64 = 128;
    let wanted = connections_max * 2 + OWN;
    let descriptors = rlimit::raise_descriptors(wanted);
    // Without room for ourselves half of what there is goes to clients.
    let fits = (descriptors.saturating_sub(OWN) / 2).max(descriptors / 8);
    if fits < connections_max {
        let fields = [
            ("file_descriptors", json!(descriptors)),
            ("connections_max", json!(fits)),
            ("wanted", json!(wanted)),
            ("advice", json!("raise LimitNOFILE or ulimit -n, or lower server.connections_max")),
        ];
        events::event(Level::Warn, "connection limit lowered by RLIMIT_NOFILE", &fields);
    }
    fits.min(connections_max)
}
