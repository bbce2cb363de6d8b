//! The listening sockets: bound by this process, or received from its predecessor.
//!
//! # Invariants
//!
//! 1. A received socket listens without interruption: connections in its queue are accepted by this
//!    process.
//! 2. A received socket that the settings no longer name is closed.
//!
//! # Not here
//!
//! Accepting on them (`edge::listener`), when they are sent (`upgrade::old_process`).

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};

use crate::operations::upgrade::protocol::{self, Kind, NamedSocket};
use weir_common::http_server::listeners::{BindError, bind};

/// The most sockets in one message. Linux allows 253 (`SCM_MAX_FD`); configurations have fewer.
pub const SOCKETS_MAX: usize = 128;

/// The listening sockets of this process, and those that its predecessor offers.
#[derive(Debug, Default)]
pub struct Sockets {
    ours: Vec<(NamedSocket, TcpListener)>,
    offered: Vec<(NamedSocket, TcpListener)>,
}

impl Sockets {
    /// Starts with the sockets that the predecessor offers.
    #[must_use]
    pub fn of(offered: Vec<(NamedSocket, TcpListener)>) -> Self {
        Self { ours: Vec::new(), offered }
    }

    /// The socket of a listener: an offered one that matches, or else a new one.
    pub fn bind(&mut self, listener: &str, address: SocketAddr) -> Result<TcpListener, BindError> {
        let named = NamedSocket { listener: listener.to_owned(), address };
        let socket = match self.remove(&named) {
            Some(socket) => socket,
            None => bind(address)?,
        };
        let again = socket.try_clone().map_err(|source| BindError { address, source })?;
        self.ours.push((named, again));
        Ok(socket)
    }

    /// Removes the offered socket of the same listener and address, or else of the same address: a
    /// port may change its listener. With port 0 the listener must match.
    fn remove(&mut self, named: &NamedSocket) -> Option<TcpListener> {
        let same = |offered: &NamedSocket| offered == named;
        let there =
            |offered: &NamedSocket| named.address.port() != 0 && offered.address == named.address;
        let find = |fits: &dyn Fn(&NamedSocket) -> bool| {
            self.offered.iter().position(|(offered, _)| fits(offered))
        };
        let place = find(&same).or_else(|| find(&there))?;
        Some(self.offered.remove(place).1)
    }

    /// Closes offered sockets that were not used.
    pub fn drop_rest(&mut self) {
        self.offered.clear();
    }

    /// The names of this process's sockets, and a duplicate of each.
    pub fn share(&self) -> io::Result<(Vec<NamedSocket>, Vec<OwnedFd>)> {
        let again = |(named, socket): &(NamedSocket, TcpListener)| {
            Ok((named.clone(), OwnedFd::from(socket.try_clone()?)))
        };
        self.ours.iter().map(again).collect()
    }
}

/// Sends a frame with sockets as ancillary data.
pub fn send(to: &UnixStream, sockets: &[OwnedFd]) -> io::Result<()> {
    let mut bytes = Vec::new();
    protocol::put(&mut bytes, Kind::Sockets, &[]);
    let sockets: Vec<_> = sockets.iter().map(AsFd::as_fd).collect();
    let mut room = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(SOCKETS_MAX))];
    let mut beside = SendAncillaryBuffer::new(&mut room);
    if !beside.push(SendAncillaryMessage::ScmRights(&sockets)) {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "too many sockets"));
    }
    // Five bytes are sent entirely or not at all.
    sendmsg(to, &[IoSlice::new(&bytes)], &mut beside, SendFlags::NOSIGNAL)?;
    Ok(())
}

/// Receives the frame that [`send`] sends.
pub fn receive(from: &UnixStream) -> io::Result<Vec<TcpListener>> {
    let mut head = [0; 5];
    let mut room = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(SOCKETS_MAX))];
    let mut beside = RecvAncillaryBuffer::new(&mut room);
    let into = &mut [IoSliceMut::new(&mut head)];
    let received = recvmsg(from, into, &mut beside, RecvFlags::CMSG_CLOEXEC)?;
    let is_whole = received.bytes == 5 && head == [1, 0, 0, 0, Kind::Sockets as u8];
    let mut sockets = Vec::new();
    for message in beside.drain() {
        if let RecvAncillaryMessage::ScmRights(passed) = message {
            sockets.extend(passed.map(TcpListener::from));
        }
    }
    if is_whole { Ok(sockets) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(listener: &str, address: &str) -> NamedSocket {
        NamedSocket { listener: listener.to_owned(), address: address.parse().unwrap() }
    }

    /// Sockets of a predecessor, and their ports.
    fn offered(names: &[(&str, &str)]) -> (Sockets, Vec<u16>) {
        let bound = names.iter().map(|(listener, address)| {
            (named(listener, address), TcpListener::bind("127.0.0.1:0").unwrap())
        });
        let bound: Vec<_> = bound.collect();
        let ports = bound.iter().map(|(_, socket)| port(socket)).collect();
        (Sockets::of(bound), ports)
    }

    fn port(socket: &TcpListener) -> u16 {
        socket.local_addr().unwrap().port()
    }

    #[test]
    fn each_listener_gets_its_own_socket() {
        let any = "127.0.0.1:0";
        let (mut sockets, ports) = offered(&[("http", any), ("admin", any), ("http", any)]);
        let mut bind = |listener| port(&sockets.bind(listener, any.parse().unwrap()).unwrap());
        assert_eq!(["admin", "http", "http"].map(&mut bind), [ports[1], ports[0], ports[2]]);
        assert!(!ports.contains(&bind("https")), "none was offered");
    }

    #[test]
    fn a_port_may_change_its_use() {
        let (mut sockets, ports) = offered(&[("http", "127.0.0.1:1")]);
        let address = "127.0.0.1:1".parse().unwrap();
        assert_eq!(port(&sockets.bind("https", address).unwrap()), ports[0]);
    }

    #[test]
    fn sockets_pass_through_a_socket_and_keep_listening() {
        let (sockets, ports) = offered(&[("http", "127.0.0.1:0"), ("admin", "127.0.0.1:0")]);
        let sockets = Sockets { ours: sockets.offered, offered: Vec::new() };
        let (left, right) = UnixStream::pair().unwrap();
        send(&left, &sockets.share().unwrap().1).unwrap();
        drop((sockets, left));
        let received = receive(&right).unwrap();
        assert_eq!(received.iter().map(port).collect::<Vec<_>>(), ports);
        std::net::TcpStream::connect(("127.0.0.1", ports[0])).unwrap();
        assert!(receive(&right).is_err(), "the other end is gone");
    }
}
