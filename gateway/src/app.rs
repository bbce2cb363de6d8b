//! The only place that builds and connects the parts, and that owns every task and thread.
//!
//! # Invariants
//!
//! 1. The program reports that it is ready only once every listener accepts.
//! 2. A stop accepts no new connections, finishes requests in flight, and ends when none is left or
//!    `shutdown_grace` is over.
//! 3. After an upgrade only the successor saves a snapshot.
//!
//! Not here: serving, a stop and an upgrade (`serving`).

mod front;
mod serving;
pub(crate) mod store;
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
use weir_common::identity::first_keys;
use weir_common::log::events;
use weir_common::rlimit;
use weir_common::signals::Signals;
use weir_common::time::{Clock, UnixTime};

use crate::app::serving::{ClientListeners, Serving};
use crate::app::workers::Workers;
use crate::config::checked::{Config, addresses};
use crate::config::shared::{Seeds, Shared};
use crate::limit::key::Seed;
use crate::operations::background;
use crate::operations::persistence::{self, SnapshotFileError};
use crate::operations::systemd::Notify;
use crate::operations::upgrade::UpgradeError;
use crate::operations::upgrade::init::First;
use crate::operations::upgrade::new_process::Predecessor;
use crate::operations::upgrade::sockets::Sockets;
use crate::operations::watch::Watch;
use crate::request::upload;
use crate::settings::ServerSettings;
use weir_common::http_server::listeners::{BindError, Listeners};

/// How long a stop waits for the last lines of the access log to be written.
const LOG_GRACE: Duration = Duration::from_secs(1);

/// Why the program cannot run.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The configuration has errors.
    #[error("{}", lines(.0))]
    Configuration(Vec<Diagnostic>),
    /// An address is in use, or not one of this machine.
    #[error(transparent)]
    Bind(#[from] BindError),
    /// The store that gateways share is reached, and must not be used.
    #[error("cannot use the shared store {0}: {1}")]
    Store(String, String),
    /// An upgrade cannot carry counters over to other keys.
    #[error("store.kind or store.secret_file has changed: stop the gateway and start it again")]
    OtherStore,
    /// The counters cannot be saved for the next start.
    #[error(transparent)]
    Snapshot(#[from] SnapshotFileError),
    /// No server of an upstream resolves here; the predecessor may have addresses, and continues.
    #[error("no server of upstream {0} resolves; the earlier process continues to serve")]
    Unreachable(String),
    /// No keys to verify tokens with; the predecessor may have some, and continues.
    #[error(
        "keys cannot be fetched from identity.jwt.jwks_url: {0}; the earlier process continues to \
         serve"
    )]
    NoKeys(String),
    /// The upgrade of the predecessor failed.
    #[error(transparent)]
    Upgrade(#[from] UpgradeError),
    /// The successor, for which this process stayed as process 1, has failed.
    #[error("the process that took over has ended with exit code {0}")]
    Successor(i32),
    /// The system refused threads, sockets, signal handlers or random bytes.
    #[error("cannot start: {0}")]
    System(#[from] io::Error),
}

/// The environment of a process, apart from its flags.
#[derive(Debug, Default)]
pub struct Environment {
    /// The socket for notifications to a supervisor (`NOTIFY_SOCKET`).
    pub notify: Option<OsString>,
    /// Whether standard input is a socket to a predecessor, which this process replaces.
    pub takes_over: bool,
}

/// Runs the gateway until it has stopped, or a successor has replaced it.
pub fn run(config: Config, around: &Environment) -> Result<(), RunError> {
    upload::install();
    let control = Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    let (signals, mut upgrades) = control.block_on(async {
        Ok::<_, io::Error>((Signals::install()?, signal(SignalKind::user_defined2())?))
    })?;
    let notify = Notify::at(around.notify.as_deref())?;
    let mut predecessor = if around.takes_over { Some(Predecessor::connect()?) } else { None };
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
            async move { drop(background::reload(&shared).await) }
        });
        let mut stop = pin!(stop);
        match serving.until_replaced(stop.as_mut(), &mut upgrades).await {
            None => {
                notify.stopping();
                serving.stop().await;
                Ok(None)
            }
            Some(successor) => {
                // Signals until now were for this process; process 1 passes later ones on.
                let first = First::new()?;
                let process = successor.process();
                let stands = async {
                    match first {
                        Some(first) => first.supervise(process).await,
                        None => 0,
                    }
                };
                Ok(Some(tokio::join!(serving.retire(successor, stop), stands).1))
            }
        }
    });
    control.shutdown_background();
    // After an upgrade the successor owns the counters, and saves them.
    let left = match handed_over {
        Err(error) => Err(RunError::System(error)),
        Ok(None) => persistence::save(&shared).map_err(RunError::from),
        Ok(Some(0)) => Ok(()),
        Ok(Some(code)) => Err(RunError::Successor(code)),
    };
    if let Some(log) = &shared.access_log {
        log.close(LOG_GRACE);
    }
    left
}

/// Does everything that can fail, and starts to accept. In an upgrade the counters are received
/// last: if anything fails before, the predecessor continues to serve.
fn start(
    config: Config,
    predecessor: &mut Option<Predecessor>,
    control: &Runtime,
) -> Result<Serving, RunError> {
    let Prepared { shared, sockets, clients, admin, began } =
        prepare(config, predecessor, control)?;
    if let Some(log) = &shared.access_log {
        log.share(predecessor.is_some());
        log.write_to_stdout("access-log")?;
    }
    let client_listeners = ClientListeners::default();
    let workers = Workers::start(&shared, &client_listeners.end())?;
    // Resolves names before the first request. Those that fail are resolved again in the
    // background; until then `/readyz` reports it.
    control.block_on(background::resolve(&shared));
    if let Some(predecessor) = predecessor {
        let unreachable = shared.active.load().unreachable().join(", ");
        if !unreachable.is_empty() {
            return Err(RunError::Unreachable(unreachable));
        }
        if let Some(verifier) = &shared.active.load().verifier {
            control.block_on(first_keys(verifier)).map_err(RunError::NoKeys)?;
        }
        let states = predecessor.receive_counters(&shared)?;
        events::event(
            Level::Info,
            "limits received from predecessor",
            &[("states", json!(states))],
        );
    }
    let watch = Arc::new(Watch::new(shared.clock.now()));
    let mut serving = Serving {
        shared,
        watch,
        sockets,
        workers,
        clients: client_listeners,
        operators: Listeners::default(),
        tasks: JoinSet::new(),
        predecessor_ended: watch::Sender::new(true),
    };
    let _within = control.enter();
    serving.serve_operators(admin)?;
    serving.accept_clients(clients)?;
    serving.start_background_tasks(began);
    Ok(serving)
}

/// The results of what can fail before the first request.
struct Prepared {
    shared: Arc<Shared>,
    sockets: Sockets,
    clients: Vec<(TcpListener, Option<SocketAddr>)>,
    admin: TcpListener,
    /// When the configuration began to be read.
    began: UnixTime,
}

fn prepare(
    config: Config,
    predecessor: &mut Option<Predecessor>,
    control: &Runtime,
) -> Result<Prepared, RunError> {
    let clock = Clock::system();
    let began = clock.now().unix;
    let mut seeds = Seeds { keys: random_seed()?, request_ids: random_seed()? };
    let mut sockets = Sockets::default();
    if let Some(predecessor) = predecessor {
        // Received keys match only with the seed that they were hashed with.
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
    let connections_max = room_for(&settings.server, settings.store.redis.is_some());
    persistence::check(&settings.store)?;
    let store = store::reach(&checked, &clock, control)?;
    let differs = |earlier: &Predecessor| {
        let other = store.as_ref().is_some_and(|(seed, _)| *seed != seeds.keys);
        other || earlier.offer.is_shared != store.is_some()
    };
    if predecessor.as_ref().is_some_and(differs) {
        return Err(RunError::OtherStore);
    }
    if let Some((seed, _)) = &store {
        seeds.keys = *seed;
        checked.rules.rekey(seeds.keys);
    }
    let now = store.as_ref().map_or(clock.now(), |(_, store)| store.moment(clock.now()));
    let earlier = match predecessor {
        None => persistence::earlier(&checked.settings.store, now),
        Some(_) => None,
    };
    let earlier = earlier.filter(|earlier| store::has_keys_of(earlier, &store));
    if let Some(earlier) = &earlier {
        seeds.keys = earlier.seed;
        checked.rules.rekey(seeds.keys);
    }
    let shared = Shared::new(clock, config, checked, seeds, connections_max);
    let shared = Arc::new(shared.sharing(store.map(|(_, store)| store)));
    shared.mark_applied();
    if let Some(earlier) = earlier {
        let states = persistence::restore(&shared, earlier);
        // No request may tell the store of a key that was reset since.
        if let Some(store) = &shared.limiter.shared {
            control.block_on(store.catch_up((&shared.limiter.store, &shared.limiter.boosts)));
        }
        events::event(Level::Info, "limit snapshot restored", &[("states", json!(states))]);
    }
    Ok(Prepared { shared, sockets, clients, admin, began })
}

fn random_seed() -> io::Result<Seed> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes)?;
    Ok(Seed::new(bytes))
}

/// Raises RLIMIT_NOFILE to two descriptors for each connection and some of our own. Returns how
/// many connections fit.
fn room_for(server: &ServerSettings, has_shared_store: bool) -> u64 {
    const OWN: u64 = 128;
    // Its runtime has some, and it calls each server of a shared store over a connection.
    let of_a_worker = if has_shared_store { 16 } else { 4 };
    let connections_max = server.caps.connections_max;
    let workers = u64::try_from(workers::count(server.threads)).unwrap_or(u64::MAX);
    let own = workers.saturating_mul(of_a_worker).saturating_add(OWN);
    let wanted = connections_max.saturating_mul(2).saturating_add(own);
    let descriptors = rlimit::raise_descriptors(wanted);
    // With few descriptors, a quarter of them goes to clients: two for each connection.
    let fits = (descriptors.saturating_sub(own) / 2).max(descriptors / 8);
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
