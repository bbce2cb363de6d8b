//! Reads what precedes HTTP on a connection: a PROXY header, a TLS handshake.
//!
//! # Invariants
//!
//! 1. A PROXY header is required from a peer in `proxy_protocol_from`, and read from no other.
//! 2. The address in it becomes the connection's, and the connection counts at that address.
//!
//! # Not here
//!
//! Deadlines (`listener`), parsing of a header (`proxy_protocol`), TLS (`tls`).

use std::net::SocketAddr;
use std::sync::Arc;

use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;

use crate::config::shared::Shared;
use crate::edge::connection::socket::{Handshaken, Socket};
use crate::edge::listener::turns::HandshakeTurns;
use crate::edge::open_connection::OpenConnection;
use crate::edge::open_connection::per_address::{ConnectionCounts, ConnectionPermit};
use crate::edge::proxy_protocol::{self, HEADER_BYTES_MAX, Progress, ProxyHeader};
use crate::request::client_address::is_of;
use crate::settings::ServerSettings;
use crate::tls;

/// What to read before HTTP, and where the connection counts.
#[derive(Clone)]
pub(super) struct HandshakeSettings {
    /// The address of the listener that accepted it, where that is TLS.
    pub(super) https: Option<SocketAddr>,
    /// Whether it starts with a PROXY header.
    pub(super) has_header: bool,
    /// Open connections of each address.
    pub(super) counts: Arc<ConnectionCounts>,
}

/// Why a connection ended before its first request.
#[derive(Debug)]
pub(super) enum Failed {
    /// The handshake failed; the word is the metric's label.
    Handshake(&'static str),
    /// Its address has the maximum of connections already.
    AddressLimit,
}

impl HandshakeSettings {
    /// Whether anything has to arrive before HTTP.
    pub(super) fn must_wait(&self) -> bool {
        self.has_header || self.https.is_some()
    }
}

/// Reads the PROXY header and completes the TLS handshake, where the connection has them.
pub(super) async fn establish(
    settings: HandshakeSettings,
    mut socket: TcpStream,
    peer: SocketAddr,
    open: OpenConnection,
    (shared, turns): (&Shared, &HandshakeTurns),
) -> Result<Handshaken, Failed> {
    let HandshakeSettings { https, has_header, counts } = settings;
    let (mut peer, mut open) = (peer, open);
    if has_header && let ProxyHeader::Client(client) = header(&mut socket).await? {
        let active = shared.active.load();
        peer = client;
        open = open.counted_at(permit_of(&counts, client, &active.settings.server)?);
    }
    let open = Arc::new(open);
    let Some(https) = https else {
        return Ok(Handshaken { socket: Socket::Plain(socket), peer, open });
    };
    let config = shared.active.load().origin.tls.config(https).cloned();
    // Addresses of TLS listeners change only with a restart, so this one has a configuration.
    let config = config.ok_or(Failed::Handshake("other"))?;
    let shaken = turns.run(peer.ip(), tls::handshake(config, socket)).await;
    let stream = shaken.map_err(Failed::Handshake)?;
    Ok(Handshaken { socket: Socket::Tls(Box::new(stream)), peer, open })
}

/// A permit for a connection of `address`; none for a trusted proxy, which has no limit.
pub(super) fn permit_of(
    counts: &Arc<ConnectionCounts>,
    address: SocketAddr,
    server: &ServerSettings,
) -> Result<Option<ConnectionPermit>, Failed> {
    if is_of(&server.trusted_proxies, address.ip()) {
        return Ok(None);
    }
    let permit = counts.enter(address.ip(), server.caps.connections_per_address_max);
    permit.map(Some).ok_or(Failed::AddressLimit)
}

/// Reads a PROXY header, and not a byte beyond it.
async fn header(socket: &mut TcpStream) -> Result<ProxyHeader, Failed> {
    let mut bytes = Vec::new();
    loop {
        let more = match proxy_protocol::read(&bytes) {
            Progress::Whole(origin) => return Ok(origin),
            Progress::Malformed(_) => return Err(Failed::Handshake("proxy_header")),
            Progress::More(more) => more.min(HEADER_BYTES_MAX),
        };
        let mut piece = (&mut *socket).take(more as u64);
        match piece.read_buf(&mut bytes).await {
            Ok(0) | Err(_) => return Err(Failed::Handshake("closed")),
            Ok(_) => {}
        }
    }
}
