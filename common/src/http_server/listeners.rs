//! Binds listeners, serves each in a task, and tells all of them together what to do with
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

/// Connections that the kernel keeps for us until they are accepted: those beyond try again only a
/// second later. The system allows fewer where `net.core.somaxconn` is lower.
const BACKLOG: i32 = 4_096;

/// An address that cannot be listened on.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {address}: {source}; `ss -ltnp` shows which process has it")]
pub struct BindError {
    /// Which.
    pub address: SocketAddr,
    /// Why not.
    pub source: io::Error,
}

/// Binds an address, exclusively.
///
/// # Errors
///
/// Where it is taken, or not ours.
pub fn bind(address: SocketAddr) -> Result<StdListener, BindError> {
    let bound = || -> io::Result<StdListener> {
        let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
        // Addresses that a stopped process has just left are free again.
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

/// Listeners that are told together.
#[derive(Debug, Default)]
pub struct Listeners {
    tasks: JoinSet<()>,
    listening: watch::Sender<Listening>,
}

impl Listeners {
    /// Serves one more, within a tokio runtime.
    ///
    /// # Errors
    ///
    /// Where the runtime cannot have the socket.
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

    /// Says what they do with connections from now on.
    pub fn set(&self, listening: Listening) {
        self.listening.send_replace(listening);
    }

    /// Waits for their last connection, no longer than `grace`.
    pub async fn ended(&mut self, grace: Duration) {
        let ended = async { while self.tasks.join_next().await.is_some() {} };
        // What remains after that is cut off.
        let _ = tokio::time::timeout(grace, ended).await;
    }
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpStream;
    use tokio::time::timeout;

    use super::*;

    #[tokio::test]
    async fn a_burst_of_connections_is_accepted_without_a_second_try() {
        let listener = bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let listener = TcpListener::from_std(listener).unwrap();
        let address = listener.local_addr().unwrap();
        let mut burst = Vec::new();
        for nth in 0..300 {
            // A system that has no room says nothing, and is asked again after a second.
            let connected = timeout(Duration::from_millis(900), TcpStream::connect(address)).await;
            burst.push(connected.unwrap_or_else(|_| panic!("number {nth} waits")).unwrap());
        }
    }
}
