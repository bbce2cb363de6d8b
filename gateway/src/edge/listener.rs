//! Accepts client connections, and hands each to the worker with the fewest.
//!
//! Pingora's own listeners retry a failed bind for half a minute and then continue without it.
//! Ours are bound at start (`operations::upgrade::sockets`), and a failed bind ends the process.
//!
//! # Invariants
//!
//! 1. At most `connections_max` connections are open, and at most `connections_per_address_max`
//!    of one address, trusted proxies excepted; any beyond are closed at once, or once a PROXY
//!    header has been read. An unfinished handshake counts.
//! 2. After a stop has started no connection is accepted, and requests in flight are finished.
//! 3. The accept loops end before the workers do: no accepted connection is lost.
//!
//! # Not here
//!
//! Requests on a connection (`http1`, `http2`), when to stop (`app`).

mod handshake;
mod turns;

use std::net::{SocketAddr, TcpListener as StdListener, TcpStream as StdStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use async_trait::async_trait;
use log::Level;
use serde_json::json;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use weir_common::http_server::Listening;
use weir_common::http_server::listeners::accept_failed;
use weir_common::log::events;

use crate::config::shared::Shared;
use crate::edge::connection::Connection;
use crate::edge::drain::{Drain, wait_until_true};
use crate::edge::listener::handshake::{Failed, HandshakeSettings, establish, permit_of};
use crate::edge::listener::turns::HandshakeTurns;
use crate::edge::open_connection::per_address::ConnectionCounts;
use crate::edge::open_connection::{ConnectionTotal, OpenConnection};
use crate::request::client_address::is_of;

/// A connection on its way to a worker.
pub struct Accepted {
    socket: StdStream,
    settings: HandshakeSettings,
    peer: SocketAddr,
    open: OpenConnection,
}

/// What the connections of one listener share.
#[derive(Clone)]
pub struct ListenerContext {
    /// The workers that serve its connections.
    pub workers: Arc<Vec<Worker>>,
    /// Open connections of all listeners.
    pub total: Arc<ConnectionTotal>,
    /// Open connections of each address.
    pub counts: Arc<ConnectionCounts>,
    /// The listener's address in the settings, where it is TLS; finds the certificates.
    pub https: Option<SocketAddr>,
}

/// The queue of one worker, and its load.
pub struct Worker {
    to: mpsc::UnboundedSender<Accepted>,
    load: Arc<AtomicU64>,
}

impl Worker {
    /// A worker, and the receiver of its queue, which `connections_max` bounds.
    #[must_use]
    pub fn new() -> (Self, mpsc::UnboundedReceiver<Accepted>) {
        let (to, from) = mpsc::unbounded_channel();
        (Self { to, load: Arc::default() }, from)
    }
}

/// Accepts connections while the listener is open; returns when it drains.
pub async fn accept(
    listener: StdListener,
    context: ListenerContext,
    shared: Arc<Shared>,
    mut listening: watch::Receiver<Listening>,
) {
    let Ok(listener) = TcpListener::from_std(listener) else { return };
    loop {
        let now = *listening.borrow_and_update();
        if now >= Listening::Draining {
            return;
        }
        let accepted = tokio::select! {
            biased;
            changed = listening.changed() => match changed {
                Ok(()) => continue,
                Err(_) => return,
            },
            accepted = listener.accept(), if now == Listening::Open => accepted,
        };
        match accepted {
            Ok((socket, peer)) => dispatch(socket, peer, &context, &shared),
            Err(error) => accept_failed(&error).await,
        }
    }
}

fn dispatch(socket: TcpStream, peer: SocketAddr, context: &ListenerContext, shared: &Shared) {
    let ListenerContext { workers, total, .. } = context;
    let refused = |reason| shared.metrics.connections_refused.with_label_values(&[reason]).inc();
    let Some(total) = total.enter() else { return refused("total") };
    let settings = |has_header| HandshakeSettings {
        https: context.https,
        has_header,
        counts: context.counts.clone(),
    };
    let active = shared.active.load();
    let server = &active.settings.server;
    let (settings, permit) = if is_of(&server.proxy_protocol_from, peer.ip()) {
        (settings(true), None)
    } else {
        match permit_of(&context.counts, peer, server) {
            Ok(permit) => (settings(false), permit),
            Err(_) => return refused("address"),
        }
    };
    let Some(worker) = workers.iter().min_by_key(|worker| worker.load.load(Ordering::Relaxed))
    else {
        return;
    };
    let open = OpenConnection::new(total, permit, &worker.load, &shared.metrics.connections);
    // A socket that fails here was closed by its client in the meantime.
    if let Ok(socket) = socket.into_std() {
        // A worker that has ended closes it.
        let _ = worker.to.send(Accepted { socket, settings, peer, open });
    }
}

/// Serves connections.
#[async_trait]
pub trait Front: Send + Sync + 'static {
    /// Serves a connection until it has closed.
    async fn serve(&self, connection: Connection, drain: Drain);
}

/// Serves connections with `front` until a stop has started and the last one has closed.
pub async fn serve<F: Front>(
    front: Arc<F>,
    mut from: mpsc::UnboundedReceiver<Accepted>,
    shared: Arc<Shared>,
    drain: Drain,
) {
    let mut stop = drain.close_after_response.clone();
    let mut connections = JoinSet::new();
    let turns = HandshakeTurns::new(shared.clock.clone());
    let with = (shared, Arc::new(turns));
    loop {
        let accepted = tokio::select! {
            accepted = from.recv() => accepted,
            Some(ended) = connections.join_next() => {
                note(ended);
                continue;
            }
            () = wait_until_true(&mut stop) => break,
        };
        let Some(accepted) = accepted else { break };
        connections.spawn(one(front.clone(), accepted, with.clone(), drain.clone()));
    }
    from.close();
    while let Some(accepted) = from.recv().await {
        connections.spawn(one(front.clone(), accepted, with.clone(), drain.clone()));
    }
    while let Some(ended) = connections.join_next().await {
        note(ended);
    }
}

async fn one<F: Front>(
    front: Arc<F>,
    accepted: Accepted,
    (shared, turns): (Arc<Shared>, Arc<HandshakeTurns>),
    drain: Drain,
) {
    let Accepted { socket, settings, peer, open } = accepted;
    // A socket that fails here was closed by its client in the meantime.
    let Ok(socket) = TcpStream::from_std(socket) else { return };
    let _ = socket.set_nodelay(true);
    let (write_timeout, handshake_timeout) = {
        let server = &shared.active.load().settings.server;
        (server.body_timeout, server.handshake_timeout)
    };
    let must_wait = settings.must_wait();
    let mut close_idle = drain.close_idle.clone();
    let handshake = establish(settings, socket, peer, open, (&shared, &turns));
    let handshaken = tokio::select! {
        biased;
        handshaken = tokio::time::timeout(handshake_timeout, handshake) =>
            handshaken.unwrap_or(Err(Failed::Handshake("timeout"))),
        // No request has arrived yet that would have to be finished.
        () = wait_until_true(&mut close_idle), if must_wait => return,
    };
    let handshaken = match handshaken {
        Ok(handshaken) => handshaken,
        Err(Failed::Handshake(reason)) => {
            return shared.metrics.handshake_failures.with_label_values(&[reason]).inc();
        }
        Err(Failed::AddressLimit) => {
            return shared.metrics.connections_refused.with_label_values(&["address"]).inc();
        }
    };
    let connection = Connection::new(handshaken, shared.clock.clone(), write_timeout);
    front.serve(connection, drain).await;
}

/// Logs a panic of a task: it ends that connection or request only, and is a bug of ours.
pub(crate) fn note(ended: Result<(), tokio::task::JoinError>) {
    if let Err(error) = ended.as_ref().map_err(ToString::to_string) {
        events::event(Level::Error, "connection task failed", &[("error", json!(error))]);
    }
}
