//! Binds listeners, serves each in a task, and sets for all of them at once what they do with
//! connections.
//!
//! Not here: what a listener serves (`http_server`).

use std::io;
use std::net::{SocketAddr, TcpListener as StdListener};
use std::sync::Arc;
use std::time::Duration;

use log::Level;
use serde_json::json;
use socket2::{Domain, Protocol, Socket, Type};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::http_server::{Bounds, Handler, Listening, serve};
use crate::log::events;

/// Connections that the kernel queues until they are accepted: beyond it a client's SYN is dropped
/// and repeated only a second later. A lower `net.core.somaxconn` reduces it.
const BACKLOG: i32 = 4_096;

/// The pause after a failed accept, mostly for lack of file descriptors: some are free again then.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// An address that cannot be listened on.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {address}: {source}{}", advice(source))]
pub struct BindError {
    /// The address.
    pub address: SocketAddr,
    /// The system's error.
    pub source: io::Error,
}

fn advice(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::AddrInUse => "; `ss -ltnp` shows which process has it",
        io::ErrorKind::PermissionDenied => "; a port below 1024 needs CAP_NET_BIND_SERVICE",
        _ => "",
    }
}

/// Binds an address, exclusively.
///
/// # Errors
///
/// If the address is in use, or not one of this machine.
pub fn bind(address: SocketAddr) -> Result<StdListener, BindError> {
    let bound = || -> io::Result<StdListener> {
        let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
        // An address that a stopped process has just used (TIME_WAIT) can be bound again.
        socket.set_reuse_address(true)?;
        socket.bind(&address.into())?;
        socket.listen(BACKLOG)?;
        socket.set_nonblocking(true)?;
        Ok(socket.into())
    };
    bound().map_err(|source| BindError { address, source })
}

/// Logs that a listener accepts connections.
pub fn announce(name: &str, address: SocketAddr) {
    let fields = [("listener", json!(name)), ("address", json!(address.to_string()))];
    events::event(Level::Info, "listening", &fields);
}

/// Logs why no connection could be accepted, and waits until one may be.
pub async fn accept_failed(error: &io::Error) {
    events::event(Level::Warn, "accept failed", &[("error", error.to_string().into())]);
    tokio::time::sleep(ACCEPT_PAUSE).await;
}

/// Listeners that are set to one [`Listening`] together.
#[derive(Debug, Default)]
pub struct Listeners {
    tasks: JoinSet<()>,
    listening: watch::Sender<Listening>,
}

impl Listeners {
    /// Serves one more listener. Must be called within a tokio runtime.
    ///
    /// # Errors
    ///
    /// If the runtime cannot register the socket.
    pub fn add(
        &mut self,
        name: &str,
        listener: StdListener,
        handler: Arc<dyn Handler>,
        bounds: Bounds,
    ) -> io::Result<()> {
        let listener = TcpListener::from_std(listener)?;
        announce(name, listener.local_addr()?);
        self.tasks.spawn(serve(listener, handler, bounds, self.listening.subscribe()));
        Ok(())
    }

    /// Sets what all listeners do with connections from now on.
    pub fn set(&self, listening: Listening) {
        self.listening.send_replace(listening);
    }

    /// Waits until the last connection has ended, at most for `grace`.
    pub async fn ended(&mut self, grace: Duration) {
        let ended = async { while self.tasks.join_next().await.is_some() {} };
        // Connections that remain are aborted when the listeners are dropped.
        let _ = tokio::time::timeout(grace, ended).await;
    }
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpStream;
    use tokio::time::timeout;

    use super::*;

    #[test]
    fn an_address_that_cannot_be_had_comes_with_what_helps() {
        for (kind, helps) in [
            (io::ErrorKind::AddrInUse, "; `ss -ltnp` shows which process has it"),
            (io::ErrorKind::PermissionDenied, "; a port below 1024 needs CAP_NET_BIND_SERVICE"),
            (io::ErrorKind::AddrNotAvailable, "available"),
        ] {
            let address = "127.0.0.1:443".parse().unwrap();
            let error = BindError { address, source: kind.into() }.to_string();
            assert!(error.ends_with(helps), "{error}");
        }
    }

    #[tokio::test]
    async fn a_burst_of_connections_is_accepted_without_a_second_try() {
        let listener = bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let listener = TcpListener::from_std(listener).unwrap();
        let address = listener.local_addr().unwrap();
        let mut burst = Vec::new();
        for nth in 0..300 {
            // With a full queue the kernel drops the SYN, and the client repeats it after a second.
            let connected = timeout(Duration::from_millis(900), TcpStream::connect(address)).await;
            burst.push(connected.unwrap_or_else(|_| panic!("number {nth} waits")).unwrap());
        }
    }
}
