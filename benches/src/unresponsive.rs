//! Receivers that never answer: unresponsive endpoints of three kinds.
//!
//! They use little CPU time, because the dispatcher is measured on the same machine: one thread
//! accepts for all of them every few milliseconds, no code reads the requests, and the kernel drops
//! connections to deaf ports.
//!
//! Not here: receivers that answer (`arrivals`).

use std::collections::VecDeque;
use std::io::{ErrorKind, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use socket2::{Domain, Socket, Type};
use weir_common::time::{Clock, Tick};

use crate::flags::fail;

/// Ports of each kind: more than one origin, and enough source ports despite TIME_WAIT.
const PORTS: usize = 4;

/// The interval between accepts; the kernel has completed the TCP handshakes before.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// The interval between two bytes of a dripping receiver.
const DRIP_EVERY: Duration = Duration::from_secs(1);

/// Connections are closed after this time, which is longer than any attempt.
const OPEN_FOR: Duration = Duration::from_secs(12);

/// A response whose header, at a byte a second, does not end within an attempt.
const DRIPS: &[u8] = b"HTTP/1.1 200 OK\r\nX-Pad: xxxxxxxx";

/// A connect that takes longer than this was dropped by the kernel: the queue is full.
const SWALLOWED_AFTER: Duration = Duration::from_millis(100);

/// More queued connections than this mean that a deaf port's queue cannot be filled.
const QUEUED_MAX: usize = 16;

/// The ways in which a receiver does not answer.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Accepts, and sends nothing.
    Silent,
    /// Does not accept: the kernel drops the SYN.
    Deaf,
    /// Accepts, and sends a byte a second.
    Dripping,
}

impl Kind {
    /// The kind with this name.
    #[must_use]
    pub fn of_name(name: &str) -> Self {
        match name {
            "silent" => Self::Silent,
            "deaf" => Self::Deaf,
            "dripping" => Self::Dripping,
            _ => fail(&format!(
                "`{name}` is no kind of unresponsive endpoint: silent, deaf or dripping"
            )),
        }
    }
}

/// Unresponsive endpoints, until the process ends.
pub struct Unresponsive {
    /// The ports, with the kinds in turn.
    pub addresses: Vec<SocketAddr>,
    /// The connections that keep the queues of deaf ports full.
    _full: Vec<(Socket, Vec<TcpStream>)>,
}

impl Unresponsive {
    /// Opens a few ports of each of these kinds.
    #[must_use]
    pub fn open(kinds: &[Kind], clock: &Clock) -> Self {
        let (mut addresses, mut full, mut open) = (Vec::new(), Vec::new(), Vec::new());
        for kind in kinds.iter().cycle().take(PORTS * kinds.len()) {
            let made = match kind {
                Kind::Deaf => deaf().map(|(address, queue)| {
                    full.push(queue);
                    address
                }),
                Kind::Silent | Kind::Dripping => listening().and_then(|listener| {
                    let address = listener.local_addr();
                    open.push((*kind, listener));
                    address
                }),
            };
            addresses.push(
                made.unwrap_or_else(|error| fail(&format!("no unresponsive endpoint: {error}"))),
            );
        }
        let clock = clock.clone();
        let thread = std::thread::Builder::new().name("unresponsive".to_owned());
        let started = thread.spawn(move || serve(&open, &clock));
        drop(started.unwrap_or_else(|error| fail(&format!("no thread: {error}"))));
        Self { addresses, _full: full }
    }
}

fn listening() -> std::io::Result<TcpListener> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// A port whose accept queue is full and stays so.
fn deaf() -> std::io::Result<(SocketAddr, (Socket, Vec<TcpStream>))> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
    socket.bind(&SocketAddr::from((Ipv4Addr::LOCALHOST, 0)).into())?;
    socket.listen(0)?;
    let address = socket.local_addr()?.as_socket().ok_or(ErrorKind::AddrNotAvailable)?;
    let mut queued = Vec::new();
    while let Ok(stream) = TcpStream::connect_timeout(&address, SWALLOWED_AFTER) {
        queued.push(stream);
        if queued.len() > QUEUED_MAX {
            fail("this system does not let a queue of connections be full");
        }
    }
    Ok((address, (socket, queued)))
}

/// An accepted connection.
struct OpenConnection {
    stream: TcpStream,
    since: Tick,
    /// Bytes sent on it.
    sent: usize,
}

fn serve(listeners: &[(Kind, TcpListener)], clock: &Clock) {
    let (mut silent, mut dripping) = (VecDeque::new(), VecDeque::new());
    loop {
        std::thread::sleep(LOOK_EVERY);
        let now = clock.now().tick;
        for (kind, listener) in listeners {
            let open = if *kind == Kind::Silent { &mut silent } else { &mut dripping };
            while let Ok((stream, _)) = listener.accept() {
                open.push_back((now, OpenConnection { stream, since: now, sent: 0 }));
            }
        }
        let over = |open: &OpenConnection| now.since(open.since) >= OPEN_FOR;
        while silent.pop_front_if(|(_, open)| over(open)).is_some() {}
        // Each connection is due a second after its last byte, so the queue stays in order.
        let due = |(last, _): &mut (Tick, OpenConnection)| now.since(*last) >= DRIP_EVERY;
        while let Some((_, mut open)) = dripping.pop_front_if(due) {
            let drip = DRIPS.get(open.sent..=open.sent).unwrap_or_default();
            open.sent += 1;
            if !over(&open) && open.stream.write_all(drip).is_ok() {
                dripping.push_back((now, open));
            }
        }
    }
}
