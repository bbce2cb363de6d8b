//! Receivers that never answer: unresponsive endpoints of three kinds.
//!
//! They cost this machine as little as they can, because a measurement is of the dispatcher: one
//! thread accepts for all of them now and then, no code reads the requests, and the kernel alone
//! swallows connections.
//!
//! Not here: receivers that answer (`arrivals`).

use std::collections::VecDeque;
use std::io::{ErrorKind, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use socket2::{Domain, Socket, Type};
use weir_common::time::{Clock, Tick};

use crate::flags::fail;

/// Ports of each kind: so many hosts, and room for connections that were closed a moment ago.
const PORTS: usize = 4;

/// How often connections are accepted: the kernel has made them long before.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// How often a byte drips.
const DRIP_EVERY: Duration = Duration::from_secs(1);

/// Longer than any attempt takes; connections that are still open then are closed.
const OPEN_FOR: Duration = Duration::from_secs(12);

/// What drips: an answer whose header does not end before the attempt does.
const DRIPS: &[u8] = b"HTTP/1.1 200 OK\r\nX-Pad: xxxxxxxx";

/// A connection that does not become one within this is swallowed.
const SWALLOWED_AFTER: Duration = Duration::from_millis(100);

/// Connections that a deaf port's queue may take until it is full.
const QUEUED_MAX: usize = 16;

/// How a receiver does not answer.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// It accepts, and says nothing.
    Silent,
    /// It does not even accept: the first packet is lost.
    Deaf,
    /// It says a byte a second.
    Dripping,
}

impl Kind {
    /// The kind of that name.
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

/// Unresponsive endpoints, for as long as the process lives.
pub struct Unresponsive {
    /// The ports, those of each kind in turn.
    pub addresses: Vec<SocketAddr>,
    /// What keeps the deaf ones' queues full.
    _full: Vec<(Socket, Vec<TcpStream>)>,
}

impl Unresponsive {
    /// Makes some of these kinds.
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

/// A port whose queue of connections is full, and which no process empties.
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

/// A connection that is held.
struct OpenConnection {
    stream: TcpStream,
    since: Tick,
    /// Bytes that it has been sent.
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
        // Each has its turn a second after its last: they stay in order.
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
