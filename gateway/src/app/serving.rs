//! A running gateway: its tasks, and how it ends, by a stop or by an upgrade.
//!
//! # Invariants
//!
//! 1. A connection that was accepted is served: a worker ends after the accept loops.
//! 2. In an upgrade no connection is closed during a request: each closes after its next response,
//!    or at the end of `shutdown_grace`. If the successor is lost, requests have [`LOST_GRACE`].
//!
//! # Not here
//!
//! Building the parts (`app`), the protocol between the two processes (`upgrade`).

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::unix::process::parent_id;
use std::pin::{Pin, pin};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use log::Level;
use serde_json::json;
use tokio::runtime::Runtime;
use tokio::signal::unix::Signal;
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::sleep;
use weir_common::admin::Admin;
use weir_common::http_server::body::BODIES_BYTES_MAX;
use weir_common::http_server::listeners::{Listeners, announce};
use weir_common::http_server::{Bounds, ConnectionBounds, Listening};
use weir_common::log::events;
use weir_common::time::UnixTime;

use crate::app::workers::Workers;
use crate::config::shared::Shared;
use crate::edge::drain::Drain;
use crate::edge::drain::wait_until_true;
use crate::edge::listener::{self, ListenerContext};
use crate::edge::open_connection::ConnectionTotal;
use crate::edge::open_connection::per_address::ConnectionCounts;
use crate::operations::admin::GatewayAdmin;
use crate::operations::upgrade::new_process::Predecessor;
use crate::operations::upgrade::old_process::{self, Successor};
use crate::operations::upgrade::sockets::Sockets;
use crate::operations::watch::Watch;
use crate::operations::{background, warnings};
use weir_common::identity::refresh_jwks;

/// How long the end waits for the admin listener's last response.
const ADMIN_GRACE: Duration = Duration::from_millis(200);

/// How long tunnels may take to answer a close frame.
const TUNNEL_CLOSE_GRACE: Duration = Duration::from_secs(2);

/// How long requests in flight have once the successor is lost. Nothing listens meanwhile, and what
/// starts the program again waits for the end of this process.
const LOST_GRACE: Duration = Duration::from_secs(5);

/// Between two looks whether the predecessor has exited.
const EXIT_POLL: Duration = Duration::from_secs(1);

/// The listeners of clients, and the flags that end their connections.
#[derive(Default)]
pub(super) struct ClientListeners {
    listening: watch::Sender<Listening>,
    /// When true, connections close after their next response.
    close_after_response: watch::Sender<bool>,
    /// When true, idle ones close at once.
    close_idle: watch::Sender<bool>,
    /// When true, tunnels get a close frame.
    close_tunnels: watch::Sender<bool>,
    accepting: JoinSet<()>,
}

impl ClientListeners {
    pub(super) fn end(&self) -> Drain {
        Drain {
            close_after_response: self.close_after_response.subscribe(),
            close_idle: self.close_idle.subscribe(),
            close_tunnels: self.close_tunnels.subscribe(),
        }
    }

    fn accept(&mut self, listener: TcpListener, context: ListenerContext, shared: &Arc<Shared>) {
        let listening = self.listening.subscribe();
        self.accepting.spawn(listener::accept(listener, context, shared.clone(), listening));
    }

    /// Ends the accept loops, and only then stops the workers.
    async fn close(&mut self) {
        self.listening.send_replace(Listening::Draining);
        while self.accepting.join_next().await.is_some() {}
        self.close_after_response.send_replace(true);
    }

    fn cut(&self) {
        self.close_idle.send_replace(true);
    }
}

/// A running gateway.
pub(super) struct Serving {
    pub(super) shared: Arc<Shared>,
    pub(super) sockets: Sockets,
    pub(super) workers: Workers,
    pub(super) clients: ClientListeners,
    /// The admin listener.
    pub(super) operators: Listeners,
    /// What operators see of the last hour.
    pub(super) watch: Arc<Watch>,
    /// Background tasks.
    pub(super) tasks: JoinSet<()>,
    /// False while a predecessor is still running.
    pub(super) predecessor_ended: watch::Sender<bool>,
}

impl Serving {
    /// Starts the admin listener on the control runtime, so that it responds while the workers are
    /// busy.
    pub(super) fn serve_operators(&mut self, listener: TcpListener) -> io::Result<()> {
        let (shared, watch) = (self.shared.clone(), self.watch.clone());
        let admin =
            Arc::new(Admin::new(GatewayAdmin { shared, watch, scraping: Mutex::default() })?);
        let bounds = self.bounds();
        self.operators.add("admin", listener, admin, bounds)
    }

    /// The admin listener's limits: the same as those of client connections.
    fn bounds(&self) -> Bounds {
        let shared = self.shared.clone();
        let connection = move || {
            let server = &shared.active.load().settings.server;
            ConnectionBounds {
                head_bytes_max: usize::try_from(server.caps.head_bytes_max).unwrap_or(usize::MAX),
                head_timeout: server.head_timeout,
                idle_timeout: server.idle_timeout,
                body_timeout: server.body_timeout,
            }
        };
        let most = usize::try_from(self.shared.connections_max).unwrap_or(usize::MAX);
        let connections = Arc::new(Semaphore::new(most.min(Semaphore::MAX_PERMITS)));
        Bounds { connection: Arc::new(connection), connections, bodies_bytes_max: BODIES_BYTES_MAX }
    }

    pub(super) fn accept_clients(
        &mut self,
        listeners: Vec<(TcpListener, Option<SocketAddr>)>,
    ) -> io::Result<()> {
        let total = ConnectionTotal::new(self.shared.connections_max);
        let counts = Arc::new(ConnectionCounts::default());
        for (listener, https) in listeners {
            let address = listener.local_addr()?;
            let name = if https.is_some() { "https" } else { "http" };
            let (workers, total, counts) =
                (self.workers.list.clone(), total.clone(), counts.clone());
            let context = ListenerContext { workers, total, counts, https };
            self.clients.accept(listener, context, &self.shared);
            announce(name, address);
        }
        Ok(())
    }

    /// Starts the background tasks. The configuration began to be read at `began`.
    pub(super) fn start_background_tasks(&mut self, began: UnixTime) {
        let shared = &self.shared;
        self.tasks.spawn(background::names(shared.clone()));
        self.tasks.spawn(background::health(shared.clone()));
        self.tasks.spawn(background::files(shared.clone(), began));
        self.tasks.spawn(background::certificates(shared.clone()));
        let of_keys = shared.clone();
        self.tasks.spawn(async move {
            let verifier = || of_keys.active.load().verifier.clone();
            refresh_jwks(verifier, &of_keys.applied).await;
        });
        self.tasks.spawn(background::states(shared.clone()));
        self.tasks.spawn(background::shared_store(shared.clone()));
        self.tasks.spawn(warnings::pass_on(shared.clone()));
        self.tasks.spawn(self.watch.clone().run(shared.clone()));
    }

    /// After an upgrade: decides the limit checks of the predecessor until it ends.
    pub(super) fn after(mut self, predecessor: Option<Predecessor>, control: &Runtime) -> Self {
        let Some(predecessor) = predecessor else { return self };
        let _within = control.enter();
        let (shared, process) = (self.shared.clone(), parent_id());
        let (ending, predecessor_ended) =
            (self.clients.close_idle.subscribe(), self.predecessor_ended.clone());
        predecessor_ended.send_replace(false);
        self.tasks.spawn(async move {
            predecessor.serve(shared.clone(), ending).await;
            predecessor_ended.send_replace(true);
            let Some(log) = &shared.access_log else { return };
            // It has started this process, and still writes what it has logged. Process 1 stays.
            while parent_id() == process {
                sleep(EXIT_POLL).await;
            }
            // Not where a successor of this process writes by now.
            if shared.ready.load(Ordering::Acquire) {
                log.share(false);
            }
        });
        self
    }

    /// Waits for a stop, or until a successor has taken over.
    pub(super) async fn until_replaced(
        &self,
        mut stop: Pin<&mut impl Future<Output = ()>>,
        upgrades: &mut Signal,
    ) -> Option<Successor> {
        loop {
            tokio::select! {
                biased;
                () = &mut stop => return None,
                _ = upgrades.recv() => {}
            }
            events::event(Level::Info, "upgrade started", &[]);
            // Already now: a large piece in progress has ended when the successor first writes.
            if let Some(log) = &self.shared.access_log {
                log.share(true);
            }
            let candidate = tokio::select! {
                () = &mut stop => return None,
                candidate = old_process::start(&self.shared, &self.sockets) => candidate,
            };
            // From here on a stop waits until the counters have one owner again. A client that
            // connects meanwhile waits for the process that owns them.
            let successor = match candidate {
                Ok(candidate) => {
                    self.set(Listening::Paused);
                    candidate.send_counters(&self.shared).await
                }
                Err(why) => Err(why),
            };
            match successor {
                Ok(successor) => return Some(successor),
                Err(why) => {
                    self.set(Listening::Open);
                    let fields = [("error", json!(why.to_string()))];
                    let message = "upgrade failed; this process continues to serve";
                    events::event(Level::Error, message, &fields);
                }
            }
        }
    }

    /// Accepts no more connections, and finishes requests in flight.
    pub(super) async fn stop(mut self) {
        self.shared.ready.store(false, Ordering::Release);
        events::event(Level::Info, "stopping", &[]);
        // Load balancers that poll /readyz meanwhile stop sending connections here.
        let delay = self.shared.active.load().settings.server.shutdown_delay;
        sleep(delay).await;
        self.sockets = Sockets::default();
        self.clients.close().await;
        self.clients.cut();
        let drained = self.drain(self.ended(), std::future::pending()).await;
        self.end("stopped", drained).await;
    }

    /// Drains the connections that are left, while the successor serves all others.
    pub(super) async fn retire(
        mut self,
        successor: Successor,
        mut stop: Pin<&mut impl Future<Output = ()>>,
    ) {
        self.shared.ready.store(false, Ordering::Release);
        let (end_requested, mut ending) = watch::channel(false);
        let stopping = tokio::select! {
            biased;
            () = &mut stop => true,
            () = std::future::ready(()) => false,
        };
        if stopping {
            successor.stop();
            end_requested.send_replace(true);
        }
        let details = successor.details();
        let (lost, mut is_lost) = watch::channel(false);
        let answering = successor.answer(self.shared.clone(), end_requested);
        self.tasks.spawn(async move {
            answering.await;
            lost.send_replace(true);
        });
        self.sockets = Sockets::default();
        self.operators.set(Listening::Draining);
        self.clients.close().await;
        // Only now: from here on a connection closes after its next response, and a stop ends this
        // process alone. Tests and scripts that wait for the line rely on both.
        events::event(Level::Info, "successor took over", &details);
        let ended = async {
            tokio::select! {
                () = self.ended() => return,
                () = stop, if !stopping => {}
                () = wait_until_true(&mut ending) => {}
            }
            self.clients.cut();
            self.ended().await;
        };
        let cut_short = async {
            wait_until_true(&mut is_lost).await;
            sleep(LOST_GRACE).await;
        };
        let drained = self.drain(ended, cut_short).await;
        self.end("handed over", drained).await;
    }

    fn set(&self, listening: Listening) {
        self.clients.listening.send_replace(listening);
        self.operators.set(listening);
    }

    /// Waits up to `shutdown_grace` or until `cut_short` for requests in flight; tunnels that are
    /// left then get a close frame. Returns whether all have ended.
    async fn drain(
        &self,
        ended: impl Future<Output = ()>,
        cut_short: impl Future<Output = ()>,
    ) -> bool {
        let grace = self.shared.active.load().settings.server.shutdown_grace;
        let mut ended = pin!(ended);
        tokio::select! {
            biased;
            () = &mut ended => return true,
            () = sleep(grace) => {}
            () = cut_short => {}
        }
        events::event(Level::Info, "closing tunnels", &[]);
        self.clients.close_tunnels.send_replace(true);
        tokio::time::timeout(TUNNEL_CLOSE_GRACE, ended).await.is_ok()
    }

    /// Waits until all client connections have closed, and the predecessor has ended.
    async fn ended(&self) {
        self.workers.ended().await;
        // This cannot fail: `self` owns the sender.
        let _ = self.predecessor_ended.subscribe().wait_for(|ended| *ended).await;
    }

    async fn end(mut self, message: &str, drained: bool) {
        self.tasks.shutdown().await;
        if let Some(store) = &self.shared.limiter.shared {
            store.end().await;
        }
        self.operators.set(Listening::Draining);
        self.operators.ended(ADMIN_GRACE).await;
        events::event(Level::Info, message, &[("drained", json!(drained))]);
    }
}
