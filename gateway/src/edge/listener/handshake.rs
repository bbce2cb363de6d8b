//! What comes before HTTP on a connection: a PROXY header, a TLS handshake.
//!
//! # Invariants
//!
//! 1. A peer in `proxy_protocol_from` sends a PROXY header; from no other peer is one read.
//! 2. The address in it is the connection's from then on, and takes a place as any other does.
//!
//! # Not here
//!
//! How long it may take (`listener`), how a header reads (`proxy_protocol`), TLS (`tls`).

use std::net::SocketAddr;
use std::sync::Arc;

use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;

use crate::config::shared::Shared;
use crate::edge::connection::socket::{Handshaken, Socket};
use crate::edge::listener::Place;
use crate::edge::listener::per_address::{ConnectionCounts, ConnectionPermit};
use crate::edge::proxy_protocol::{self, HEADER_BYTES_MAX, Progress, ProxyHeader};
use crate::settings::ServerSettings;
use crate::tls;

/// What a client's connection brings.
#[derive(Clone)]
pub(super) struct HandshakeSettings {
    /// Where it came in, if that is by TLS.
    pub(super) https: Option<SocketAddr>,
    /// Whether it begins with a PROXY header.
    pub(super) has_header: bool,
    /// Where its address is counted.
    pub(super) counts: Arc<ConnectionCounts>,
}

/// Why a connection ended before its first request.
#[derive(Debug)]
pub(super) enum Failed {
    /// For a reason that is counted under this word.
    Handshake(&'static str),
    /// Its address has as many connections as it may.
    AddressLimit,
}

impl HandshakeSettings {
    /// Whether there is anything to wait for.
    pub(super) fn must_wait(&self) -> bool {
        self.has_header || self.https.is_some()
    }
}

/// Reads what comes before HTTP.
pub(super) async fn establish(
    settings: HandshakeSettings,
    mut socket: TcpStream,
    peer: SocketAddr,
    place: Place,
    shared: &Shared,
) -> Result<Handshaken, Failed> {
    let HandshakeSettings { https, has_header, counts } = settings;
    let (mut peer, mut permit) = (peer, None);
    if has_header && let ProxyHeader::Client(client) = header(&mut socket).await? {
        let active = shared.active.load();
        peer = client;
        permit = permit_of(&counts, client, &active.settings.server)?;
    }
    let permits = Box::new((place, permit));
    let Some(https) = https else {
        return Ok(Handshaken { socket: Socket::Plain(socket), peer, permits });
    };
    let config = shared.active.load().origin.tls.config(https).cloned();
    // A listener's entries are there for as long as it is: only another process has others.
    let config = config.ok_or(Failed::Handshake("other"))?;
    let stream = tls::handshake(config, socket).await.map_err(Failed::Handshake)?;
    Ok(Handshaken { socket: Socket::Tls(Box::new(stream)), peer, permits })
}

/// A permit for an address, or none where it needs none.
pub(super) fn permit_of(
    counts: &Arc<ConnectionCounts>,
    address: SocketAddr,
    server: &ServerSettings,
) -> Result<Option<ConnectionPermit>, Failed> {
    if is_of(&server.trusted_proxies, address) {
        return Ok(None);
    }
    let permit = counts.enter(address.ip(), server.caps.connections_per_address_max);
    permit.map(Some).ok_or(Failed::AddressLimit)
}

/// Whether an address is of one of these networks.
pub(super) fn is_of(networks: &[ipnet::IpNet], address: SocketAddr) -> bool {
    let address = address.ip().to_canonical();
    networks.iter().any(|network| network.contains(&address))
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
