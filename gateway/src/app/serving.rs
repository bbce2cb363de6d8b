//! A gateway that serves: its tasks, and the two ways in which it ends.
//!
//! # Invariants
//!
//! 1. A connection that was accepted is served: a worker ends after the accept loops.
//! 2. Where another process has taken our place, no connection is closed under a client: each ends
//!    with its next answer, or with `shutdown_grace`.
//!
//! # Not here
//!
//! Building the parts (`app`), what the two processes say to each other (`upgrade`).

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use log::Level;
use serde_json::json;
use tokio::runtime::Runtime;
use tokio::signal::unix::Signal;
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use weir_common::admin::Admin;
use weir_common::http_server::body::BODIES_BYTES_MAX;
use weir_common::http_server::listeners::{Listeners, announce};
use weir_common::http_server::{Bounds, ConnectionBounds, Listening};
use weir_common::log::events;

use crate::app::workers::Workers;
use crate::config::shared::Shared;
use crate::edge::drain::turned;
use crate::edge::listener::per_address::ConnectionCounts;
use crate::edge::listener::{self, Drain, ListenerContext};
use crate::identity::auth;
use crate::operations::admin::GatewayAdmin;
use crate::operations::background as beside;
use crate::operations::upgrade::predecessor::Predecessor;
use crate::operations::upgrade::sockets::Sockets;
use crate::operations::upgrade::successor::{self, Successor};

/// How long an end waits for the admin listener's last answer.
const ADMIN_GRACE: Duration = Duration::from_millis(200);

/// How long tunnels may take to answer a close frame.
const GOING_GRACE: Duration = Duration::from_secs(2);

/// The listeners of clients, and how their connections end.
#[derive(Default)]
pub(super) struct ClientListeners {
    listening: watch::Sender<Listening>,
    /// Connections end with their next answer, when true.
    stopping: watch::Sender<bool>,
    /// Idle ones end at once, when true.
    cutting: watch::Sender<bool>,
    /// Tunnels get a close frame, when true.
    going: watch::Sender<bool>,
    accepting: JoinSet<()>,
}

impl ClientListeners {
    pub(super) fn end(&self) -> Drain {
        Drain {
            stopping: self.stopping.subscribe(),
            cutting: self.cutting.subscribe(),
            going: self.going.subscribe(),
        }
    }

    fn accept(&mut self, listener: TcpListener, context: ListenerContext, shared: &Arc<Shared>) {
        let listening = self.listening.subscribe();
        self.accepting.spawn(listener::accept(listener, context, shared.clone(), listening));
    }

    /// Accepts nothing more, and only then tells the workers.
    async fn close(&mut self) {
        self.listening.send_replace(Listening::Draining);
        while self.accepting.join_next().await.is_some() {}
        self.stopping.send_replace(true);
    }

    fn cut(&self) {
        self.cutting.send_replace(true);
    }
}

/// A gateway that serves.
pub(super) struct Serving {
    pub(super) shared: Arc<Shared>,
    pub(super) sockets: Sockets,
    pub(super) workers: Workers,
    pub(super) clients: ClientListeners,
    /// The admin listener.
    pub(super) operators: Listeners,
    /// What goes on beside requests.
    pub(super) beside: JoinSet<()>,
    /// Whether the process whose place we took is gone, if there was one.
    pub(super) alone: watch::Sender<bool>,
}

impl Serving {
    /// Serves the operator on the control runtime, beside the workers: it answers when they are
    /// busy.
    pub(super) fn serve_operators(&mut self, listener: TcpListener) -> io::Result<()> {
        let admin = Arc::new(Admin(GatewayAdmin(self.shared.clone())));
        let bounds = self.bounds();
        self.operators.add("admin", listener, admin, bounds)
    }

    /// As many connections as clients may have, each with what a client's may take.
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
        let open = Arc::new(AtomicU64::new(0));
        let counts = Arc::new(ConnectionCounts::default());
        for (listener, https) in listeners {
            let address = listener.local_addr()?;
            let name = if https.is_some() { "https" } else { "http" };
            let (workers, open, counts) = (self.workers.ways.clone(), open.clone(), counts.clone());
            let context = ListenerContext { workers, open, counts, https };
            self.clients.accept(listener, context, &self.shared);
            announce(name, address);
        }
        Ok(())
    }

    /// What goes on beside requests until it is shut down.
    pub(super) fn beside_requests(&mut self) {
        let shared = &self.shared;
        self.beside.spawn(beside::names(shared.clone()));
        self.beside.spawn(beside::health(shared.clone()));
        self.beside.spawn(beside::files(shared.clone()));
        let of_keys = shared.clone();
        self.beside.spawn(async move {
            let verifier = || of_keys.active.load().verifier.clone();
            auth::refresh_jwks(verifier, &of_keys.applied).await;
        });
        self.beside.spawn(beside::states(shared.clone()));
    }

    /// Goes on with what a process whose place was taken still asks.
    pub(super) fn after(mut self, predecessor: Option<Predecessor>, control: &Runtime) -> Self {
        let Some(predecessor) = predecessor else { return self };
        let _within = control.enter();
        let shared = self.shared.clone();
        let (ending, alone) = (self.clients.cutting.subscribe(), self.alone.clone());
        alone.send_replace(false);
        self.beside.spawn(async move {
            predecessor.serve(shared.clone(), ending).await;
            alone.send_replace(true);
            if let Some(log) = &shared.access_log {
                log.share(false);
            }
        });
        // A file that changed while we were starting may have been read before.
        let shared = self.shared.clone();
        self.beside.spawn(async move { drop(beside::reload(&shared).await) });
        self
    }

    /// Waits for a stop, or until another process has taken over.
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
            let candidate = tokio::select! {
                () = &mut stop => return None,
                candidate = successor::start(&self.shared, &self.sockets) => candidate,
            };
            // From here on a stop waits: what is half moved must be in one place again.
            // A client that connects meanwhile waits for the process that will have the counters.
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

    /// Accepts no new work, and finishes what is in flight.
    pub(super) async fn stop(mut self) {
        self.shared.ready.store(false, Ordering::Release);
        events::event(Level::Info, "stopping", &[]);
        // Balancers that look at /readyz meanwhile send what is new elsewhere.
        let delay = self.shared.active.load().settings.server.shutdown_delay;
        tokio::time::sleep(delay).await;
        self.sockets = Sockets::default();
        self.clients.close().await;
        self.clients.cut();
        let drained = self.drain(self.ended()).await;
        self.end("stopped", drained).await;
    }

    /// Drains the connections that are left, while the successor serves all others.
    pub(super) async fn retire(
        mut self,
        successor: Successor,
        mut stop: Pin<&mut impl Future<Output = ()>>,
    ) {
        self.shared.ready.store(false, Ordering::Release);
        if let Some(log) = &self.shared.access_log {
            log.share(true);
        }
        let (hurry, mut hurried) = watch::channel(false);
        let stopping = tokio::select! {
            biased;
            () = &mut stop => true,
            () = std::future::ready(()) => false,
        };
        if stopping {
            successor.stop();
            hurry.send_replace(true);
        }
        self.beside.spawn(successor.answer(self.shared.clone(), hurry));
        self.sockets = Sockets::default();
        self.operators.set(Listening::Draining);
        self.clients.close().await;
        let ended = async {
            tokio::select! {
                () = self.ended() => return,
                () = stop, if !stopping => {}
                () = turned(&mut hurried) => {}
            }
            self.clients.cut();
            self.ended().await;
        };
        let drained = self.drain(ended).await;
        self.end("handed over", drained).await;
    }

    fn set(&self, listening: Listening) {
        self.clients.listening.send_replace(listening);
        self.operators.set(listening);
    }

    /// Waits for the end of what is in flight, for `shutdown_grace`; tunnels that are left then get
    /// a close frame.
    async fn drain(&self, ended: impl Future<Output = ()>) -> bool {
        let grace = self.shared.active.load().settings.server.shutdown_grace;
        let mut ended = pin!(ended);
        if tokio::time::timeout(grace, &mut ended).await.is_ok() {
            return true;
        }
        events::event(Level::Info, "closing tunnels", &[]);
        self.clients.going.send_replace(true);
        tokio::time::timeout(GOING_GRACE, ended).await.is_ok()
    }

    /// Waits until no client is left, and no process before us.
    async fn ended(&self) {
        self.workers.ended().await;
        // An error cannot be: we hold the sender.
        let _ = self.alone.subscribe().wait_for(|alone| *alone).await;
    }

    async fn end(mut self, message: &str, drained: bool) {
        self.beside.shutdown().await;
        self.operators.set(Listening::Draining);
        self.operators.ended(ADMIN_GRACE).await;
        events::event(Level::Info, message, &[("drained", json!(drained))]);
    }
}
