//! Sockets: binds addresses, accepts connections, and hands each to the worker with the fewest.
//!
//! Pingora's own listeners retry a failed bind for half a minute and then live on without it;
//! ours are bound before anything else begins, and a failure is the end.
//!
//! # Invariants
//!
//! 1. There are never more than `connections_max` connections, nor more of one address than it may
//!    have; what is beyond is closed at once. One whose handshake goes on counts as any other.
//! 2. Once a stop has begun nothing more is accepted, and what is in flight is seen to its end.
//! 3. Accepting ends before serving does: no accepted connection is lost.
//!
//! # Not here
//!
//! What a connection is to Pingora (`connection`), when to stop (`app`).

mod handshake;
pub mod per_address;

use std::net::{SocketAddr, TcpListener as StdListener, TcpStream as StdStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use log::Level;
use pingora_core::apps::ServerApp;
use pingora_core::protocols::Stream;
use prometheus::IntGauge;
use serde_json::json;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use weir_common::http_server::Listening;
use weir_common::log::events;

use crate::config::shared::Shared;
use crate::edge::connection::Connection;
use crate::edge::connection::deadlines::Allowance;
use crate::edge::drain::turned;
use crate::edge::listener::handshake::{Failed, HandshakeSettings, establish, is_of, permit_of};
use crate::edge::listener::per_address::{ConnectionCounts, ConnectionPermit};

/// How long accepting pauses when the process has no file descriptors left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// A connection on its way to a worker.
pub struct Accepted {
    socket: StdStream,
    settings: HandshakeSettings,
    peer: SocketAddr,
    place: Place,
}

/// A connection's place among all, given back when dropped.
struct Place {
    open: Arc<AtomicU64>,
    of_worker: Arc<AtomicU64>,
    /// Where connections are counted.
    gauge: IntGauge,
    /// Its place among those of its address.
    _permit: Option<ConnectionPermit>,
}

impl Drop for Place {
    fn drop(&mut self) {
        self.open.fetch_sub(1, Ordering::Relaxed);
        self.of_worker.fetch_sub(1, Ordering::Relaxed);
        self.gauge.dec();
    }
}

/// What a listener hands to its connections.
#[derive(Clone)]
pub struct ListenerContext {
    /// The workers that serve its connections.
    pub workers: Arc<Vec<Worker>>,
    /// How many connections are open that share one cap.
    pub open: Arc<AtomicU64>,
    /// How many each address has.
    pub counts: Arc<ConnectionCounts>,
    /// The address in the settings, where it is TLS.
    pub https: Option<SocketAddr>,
}

/// The way to one worker.
pub struct Worker {
    to: mpsc::UnboundedSender<Accepted>,
    load: Arc<AtomicU64>,
}

impl Worker {
    /// A worker and its end of the way. The queue is bounded by `connections_max`.
    #[must_use]
    pub fn new() -> (Self, mpsc::UnboundedReceiver<Accepted>) {
        let (to, from) = mpsc::unbounded_channel();
        (Self { to, load: Arc::default() }, from)
    }
}

/// How connections end.
#[derive(Clone)]
pub struct Drain {
    /// With their next answer, when true. What is idle may still bring one request.
    pub stopping: watch::Receiver<bool>,
    /// Idle ones at once, when true.
    pub cutting: watch::Receiver<bool>,
    /// Tunnels with a goodbye, when true.
    pub going: watch::Receiver<bool>,
}

/// Accepts connections while the listener is open, and until it drains.
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
            Err(error) => {
                let fields = [("error", json!(error.to_string()))];
                events::event(Level::Warn, "accept failed", &fields);
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

fn dispatch(socket: TcpStream, peer: SocketAddr, context: &ListenerContext, shared: &Shared) {
    let ListenerContext { workers, open, .. } = context;
    let refused = |reason| shared.metrics.connections_refused.with_label_values(&[reason]).inc();
    if open.load(Ordering::Relaxed) >= shared.connections_max {
        return refused("total");
    }
    let settings = |has_header| HandshakeSettings {
        https: context.https,
        has_header,
        counts: context.counts.clone(),
    };
    let active = shared.active.load();
    let server = &active.settings.server;
    let (settings, permit) = if is_of(&server.proxy_protocol_from, peer) {
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
    open.fetch_add(1, Ordering::Relaxed);
    worker.load.fetch_add(1, Ordering::Relaxed);
    let gauge = shared.metrics.connections.clone();
    gauge.inc();
    let place =
        Place { open: open.clone(), of_worker: worker.load.clone(), gauge, _permit: permit };
    // A socket that fails here was closed by its client in the meantime.
    if let Ok(socket) = socket.into_std() {
        let _ = worker.to.send(Accepted { socket, settings, peer, place });
    }
}

/// Serves connections with `app` until a stop has begun and the last of them is over.
pub async fn serve<A: ServerApp + Send + Sync + 'static>(
    app: Arc<A>,
    mut from: mpsc::UnboundedReceiver<Accepted>,
    shared: Arc<Shared>,
    end: Drain,
) {
    let (mut stop, mut cutting) = (end.stopping.clone(), end.cutting.clone());
    let mut connections = JoinSet::new();
    loop {
        let accepted = tokio::select! {
            accepted = from.recv() => accepted,
            Some(ended) = connections.join_next() => {
                note(ended);
                continue;
            }
            _ = stop.wait_for(|stop| *stop) => break,
        };
        let Some(accepted) = accepted else { break };
        connections.spawn(one(app.clone(), accepted, shared.clone(), end.clone()));
    }
    from.close();
    while let Some(accepted) = from.recv().await {
        connections.spawn(one(app.clone(), accepted, shared.clone(), end.clone()));
    }
    let mut cut = false;
    loop {
        tokio::select! {
            ended = connections.join_next() => match ended {
                Some(ended) => note(ended),
                None => return,
            },
            () = turned(&mut cutting), if !cut => {
                // Idle connections end at once; those with a request end with its answer.
                app.cleanup().await;
                cut = true;
            }
        }
    }
}

async fn one<A: ServerApp + Send + Sync + 'static>(
    app: Arc<A>,
    accepted: Accepted,
    shared: Arc<Shared>,
    end: Drain,
) {
    let Accepted { socket, settings, peer, place } = accepted;
    // A socket that fails here was closed by its client in the meantime.
    let Ok(socket) = TcpStream::from_std(socket) else { return };
    let _ = socket.set_nodelay(true);
    let (allowance, handshake_timeout) = {
        let server = &shared.active.load().settings.server;
        let allowance = Allowance {
            head_timeout: server.head_timeout,
            head_bytes_max: server.caps.head_bytes_max,
            idle_timeout: server.idle_timeout,
            write_timeout: server.body_timeout,
        };
        (allowance, server.handshake_timeout)
    };
    let must_wait = settings.must_wait();
    let mut cutting = end.cutting.clone();
    let handshake = establish(settings, socket, peer, place, &shared);
    let handshaken = tokio::select! {
        biased;
        handshaken = tokio::time::timeout(handshake_timeout, handshake) =>
            handshaken.unwrap_or(Err(Failed::Handshake("timeout"))),
        // There is no request yet that could be seen to its end.
        () = turned(&mut cutting), if must_wait => return,
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
    let connection = Connection::new(
        handshaken,
        shared.clock.clone(),
        allowance,
        shared.metrics.refusals.clone(),
        end.going.clone(),
    );
    let stream: Stream = Box::new(connection);
    app.process_new(stream, &end.stopping).await;
}

/// A panic ends the connection it happened on, and is ours to mend.
pub(crate) fn note(ended: Result<(), tokio::task::JoinError>) {
    if let Err(error) = ended.as_ref().map_err(ToString::to_string) {
        events::event(Level::Error, "connection task failed", &[("error", json!(error))]);
    }
}
