//! The local address of a connection: the operator's, or the system's choice.
//!
//! Not here: which addresses may be called (`egress`).

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};

/// The local address from which an address is called; `None` if the system chooses.
///
/// # Errors
///
/// If there are addresses to call from, and none of this family.
pub(crate) fn source_for(sources: &[IpAddr], target: IpAddr) -> io::Result<Option<IpAddr>> {
    let same_family = |source: &&IpAddr| source.is_ipv4() == target.is_ipv4();
    match sources.iter().find(same_family) {
        None if !sources.is_empty() => Err(io::ErrorKind::NetworkUnreachable.into()),
        found => Ok(found.copied()),
    }
}

/// Why connecting failed, if the system chose the source: `EADDRNOTAVAIL` is a shortage of ports,
/// or this machine has no address that leads to `to` (IPv6 is disabled).
pub(crate) fn without_source(error: io::Error, to: SocketAddr) -> io::Error {
    if error.kind() == io::ErrorKind::AddrNotAvailable && !has_source(to) {
        return io::ErrorKind::NetworkUnreachable.into();
    }
    error
}

/// Whether the system finds a source for datagrams, whose ports are others and which are not sent.
fn has_source(to: SocketAddr) -> bool {
    let any: IpAddr =
        if to.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let chosen = UdpSocket::bind((any, 0)).and_then(|socket| socket.connect(to));
    !chosen.is_err_and(|error| error.kind() == io::ErrorKind::AddrNotAvailable)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn used_up_ports_stay_a_shortage() {
        let error =
            without_source(io::ErrorKind::AddrNotAvailable.into(), ([127, 0, 0, 1], 9).into());
        assert_eq!(error.kind(), io::ErrorKind::AddrNotAvailable);
    }
}
