//! A simulated network: servers, and links to them that delay, lose replies, break and are down.
//!
//! Gateways reach it by [`Dial`]. Over each connection bytes travel as they do over TCP: in order,
//! and what a server received it executes, whether its reply arrives or not.
//!
//! Not here: when links and servers fail (`plan`), what commands do (`data`, `scripts`).

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;
use std::time::Duration;

use tokio::io::{AsyncWriteExt, BufReader, DuplexStream, ReadHalf, WriteHalf};
use tokio::sync::{Notify, mpsc, oneshot};
use tokio::task::spawn_local;
use tokio::time::{Instant, sleep_until};
use weir_gateway::limit::shared::servers::address::{ServerAddress, StoreLogin};
use weir_gateway::limit::shared::servers::errors::ConnectError;
use weir_gateway::limit::shared::servers::login::{Dial, Dialled, Session};
use weir_tests::rng::SeededRng;

use super::commands::{read, write};
use super::data::{Data, Reply, text};
use super::scripts::{Mutant, Scripts};

/// The port of the Sentinel; that of a server is its number.
pub(crate) const SENTINEL_PORT: u16 = 26_379;

/// The port of the first server.
pub(crate) const FIRST_PORT: u16 = 1;

/// Commands that were executed and not answered yet, the oldest first.
type Sent = RefCell<VecDeque<Vec<Vec<u8>>>>;

/// What a connection can have under way.
const BUFFER: usize = 1 << 20;

/// A gateway's way into the network.
pub(crate) struct Way {
    gateway: usize,
    to: mpsc::UnboundedSender<Connect>,
}

/// A gateway wants to connect.
struct Connect {
    gateway: usize,
    port: u16,
    stream: DuplexStream,
    accepted: oneshot::Sender<()>,
}

impl Dial for Way {
    fn dial<'d>(&'d self, login: &'d StoreLogin, server: &'d ServerAddress) -> Dialled<'d> {
        Box::pin(async move {
            let refused = || ConnectError::Unreachable("connection refused".to_owned());
            let (stream, far) = tokio::io::duplex(BUFFER);
            let (accepted, is_accepted) = oneshot::channel();
            let connect =
                Connect { gateway: self.gateway, port: server.port, stream: far, accepted };
            self.to.send(connect).map_err(|_| refused())?;
            is_accepted.await.map_err(|_| refused())?;
            Session::over(stream, login).await
        })
    }
}

/// The way from one gateway to one server, and back.
pub(crate) struct Link {
    /// The shortest and the longest time of each way, in milliseconds.
    pub(crate) delay: Cell<(u64, u64)>,
    /// Replies are lost, and all later ones over the same connection.
    pub(crate) swallows: Cell<bool>,
    /// No connection can be made.
    pub(crate) is_down: Cell<bool>,
    /// How often all connections broke, and who waits for it.
    breaks: Cell<u64>,
    broken: Notify,
}

impl Link {
    /// Breaks all connections.
    pub(crate) fn break_all(&self) {
        self.breaks.set(self.breaks.get() + 1);
        self.broken.notify_waiters();
    }
}

/// One server.
pub(crate) struct Server {
    pub(crate) data: Rc<RefCell<Data>>,
    /// What its replica has.
    pub(crate) replica: RefCell<Data>,
    /// How far its clock is ahead, in microseconds.
    pub(crate) ahead: Cell<i64>,
    pub(crate) is_alive: Cell<bool>,
    /// Whether it executes what it receives; else it stands still.
    runs: Cell<bool>,
    runs_again: Notify,
    scripts: RefCell<Scripts>,
    /// When it executed last, and how often since then at the same millisecond.
    executed: Cell<(u64, u64)>,
}

/// All servers and links.
pub(crate) struct Network {
    pub(crate) servers: Vec<Server>,
    /// The primary that the Sentinel names, and its epoch.
    pub(crate) primary: Cell<(usize, u64)>,
    /// Of each gateway: its links to the Sentinel and to each server.
    links: RefCell<BTreeMap<(usize, u16), Rc<Link>>>,
    /// The delay of new links.
    delay: (u64, u64),
    rng: RefCell<SeededRng>,
    epoch: Instant,
    start: u64,
    /// A number that depends on all that was executed and replied.
    pub(crate) digest: Cell<u64>,
    mutant: Option<Mutant>,
    to: mpsc::UnboundedSender<Connect>,
}

impl Network {
    /// Starts two servers, at the time `start`. The links delay by this many milliseconds.
    pub(crate) fn start(
        rng: SeededRng,
        start: u64,
        delay: (u64, u64),
        mutant: Option<Mutant>,
    ) -> Rc<Self> {
        let (to, mut connects) = mpsc::unbounded_channel();
        let network = Rc::new(Self {
            servers: (0..2).map(|_| Server::new(mutant)).collect(),
            primary: Cell::new((0, 1)),
            links: RefCell::default(),
            delay,
            rng: RefCell::new(rng),
            epoch: Instant::now(),
            start,
            digest: Cell::new(0),
            mutant,
            to,
        });
        let own = network.clone();
        spawn_local(async move {
            while let Some(connect) = connects.recv().await {
                own.clone().connected(connect);
            }
        });
        network
    }

    /// The way of a gateway into the network.
    pub(crate) fn way(&self, gateway: usize) -> Way {
        Way { gateway, to: self.to.clone() }
    }

    /// The link of a gateway to a port.
    pub(crate) fn link(&self, gateway: usize, port: u16) -> Rc<Link> {
        let fresh = || {
            Rc::new(Link {
                delay: Cell::new(self.delay),
                swallows: Cell::new(false),
                is_down: Cell::new(false),
                breaks: Cell::new(0),
                broken: Notify::new(),
            })
        };
        self.links.borrow_mut().entry((gateway, port)).or_insert_with(fresh).clone()
    }

    /// The number of a server by its port.
    pub(crate) fn port(server: usize) -> u16 {
        FIRST_PORT + server as u16
    }

    /// Breaks all connections to a server.
    pub(crate) fn break_all(&self, server: usize) {
        for ((_, port), link) in &*self.links.borrow() {
            if *port == Self::port(server) {
                link.break_all();
            }
        }
    }

    /// Kills a server: its data is lost.
    pub(crate) fn kill(&self, server: usize) {
        self.servers[server].is_alive.set(false);
        self.servers[server].data.borrow_mut().flush();
        self.break_all(server);
    }

    /// The time of this moment, in microseconds since 1970.
    pub(crate) fn now(&self) -> u64 {
        self.start + self.epoch.elapsed().as_micros() as u64
    }

    fn connected(self: Rc<Self>, connect: Connect) {
        let Connect { gateway, port, stream, accepted } = connect;
        let link = self.link(gateway, port);
        let server = usize::from(port.wrapping_sub(FIRST_PORT));
        let is_alive = port == SENTINEL_PORT || self.servers[server].is_alive.get();
        if link.is_down.get() || !is_alive || accepted.send(()).is_err() {
            return;
        }
        let breaks = link.breaks.get();
        spawn_local(async move {
            let unanswered = RefCell::default();
            tokio::select! {
                biased;
                () = link.broken.notified() => {}
                () = std::future::ready(()), if link.breaks.get() != breaks => {}
                () = self.serve(&link, (port, &unanswered), stream) => {}
            }
            if let (Some(Mutant::Repeats), Some(server)) = (self.mutant, self.servers.get(server)) {
                for words in unanswered.into_inner() {
                    let _ = server.execute(self.now(), &words);
                }
            }
        });
    }

    async fn serve(&self, link: &Link, (port, unanswered): (u16, &Sent), stream: DuplexStream) {
        let (from, to) = tokio::io::split(stream);
        let (commands, received) = mpsc::unbounded_channel();
        let (replies, replied) = mpsc::unbounded_channel();
        tokio::join!(
            self.receive(link, from, commands),
            self.execute_all(link, (port, unanswered), received, replies),
            send(link, unanswered, to, replied),
        );
    }

    async fn receive(
        &self,
        link: &Link,
        from: ReadHalf<DuplexStream>,
        commands: mpsc::UnboundedSender<(Instant, Vec<Vec<u8>>)>,
    ) {
        let (mut from, mut last) = (BufReader::new(from), Instant::now());
        while let Some(words) = read(&mut from).await {
            last = last.max(self.arrival(link));
            if commands.send((last, words)).is_err() {
                return;
            }
        }
    }

    fn arrival(&self, link: &Link) -> Instant {
        let (least, most) = link.delay.get();
        let delay = least + self.rng.borrow_mut().below(most - least + 1);
        Instant::now() + Duration::from_millis(delay)
    }

    async fn execute_all(
        &self,
        link: &Link,
        (port, unanswered): (u16, &Sent),
        mut received: mpsc::UnboundedReceiver<(Instant, Vec<Vec<u8>>)>,
        replies: mpsc::UnboundedSender<(Instant, Vec<u8>)>,
    ) {
        let mut last = Instant::now();
        while let Some((at, words)) = received.recv().await {
            sleep_until(at).await;
            let reply = if port == SENTINEL_PORT {
                self.named(&words)
            } else {
                let server = &self.servers[usize::from(port - FIRST_PORT)];
                while !server.runs.get() {
                    server.runs_again.notified().await;
                }
                server.execute(self.now(), &words)
            };
            let mut bytes = Vec::new();
            write(&reply, &mut bytes);
            self.note(port, &words, &bytes);
            unanswered.borrow_mut().push_back(words);
            last = last.max(self.arrival(link));
            if replies.send((last, bytes)).is_err() {
                return;
            }
        }
    }

    fn note(&self, port: u16, words: &[Vec<u8>], reply: &[u8]) {
        let all = words.iter().flatten().chain(reply);
        let mixed = |sum: u64, byte: u64| (sum ^ byte).wrapping_mul(0x0100_0000_01B3);
        let begun = [self.digest.get(), self.now(), port.into()].into_iter().fold(7, mixed);
        self.digest.set(all.fold(begun, |sum, byte| mixed(sum, (*byte).into())));
    }

    /// What a Sentinel says of the primary.
    fn named(&self, question: &[Vec<u8>]) -> Reply {
        let (primary, epoch) = self.primary.get();
        let (port, epoch) = (Self::port(primary).to_string(), epoch.to_string());
        match question.get(1).map(Vec::as_slice) {
            Some(b"MASTER") => Reply::List(["config-epoch", &epoch].map(text).to_vec()),
            _ => Reply::List(["10.0.0.1", &port].map(text).to_vec()),
        }
    }
}

impl Server {
    fn new(mutant: Option<Mutant>) -> Self {
        let data: Rc<RefCell<Data>> = Rc::default();
        Self {
            data: data.clone(),
            replica: RefCell::default(),
            ahead: Cell::new(0),
            is_alive: Cell::new(true),
            runs: Cell::new(true),
            runs_again: Notify::new(),
            scripts: RefCell::new(Scripts::new(data, mutant)),
            executed: Cell::new((0, 0)),
        }
    }

    /// Lets it stand still, or go on.
    pub(crate) fn set_runs(&self, runs: bool) {
        self.runs.set(runs);
        self.runs_again.notify_waiters();
    }

    /// Executes a command at this time. Commands of one millisecond have different microseconds.
    pub(crate) fn execute(&self, now: u64, words: &[Vec<u8>]) -> Reply {
        let nth = match self.executed.get() {
            (last, nth) if last == now => (nth + 1).min(900),
            _ => 0,
        };
        self.executed.set((now, nth));
        self.data.borrow_mut().now = (now + nth).saturating_add_signed(self.ahead.get());
        let name = words.first().map(|name| name.to_ascii_uppercase()).unwrap_or_default();
        match (name.as_slice(), words) {
            (b"INFO", _) => text(
                "redis_mode:standalone\r\nrole:master\r\nmaxmemory:0\r\n\
                 maxmemory_policy:noeviction\r\n",
            ),
            (b"SCRIPT", [_, _, script]) => {
                self.scripts.borrow_mut().load(std::str::from_utf8(script).unwrap())
            }
            (b"EVALSHA", [_, digest, count, rest @ ..]) => {
                let count: usize = std::str::from_utf8(count).unwrap().parse().unwrap();
                let (keys, arguments) = rest.split_at(count);
                self.scripts.borrow().run(digest, keys, arguments)
            }
            // The replica has it by the time that the reply arrives.
            (b"WAIT", _) => {
                self.replicate();
                Reply::Number(1)
            }
            _ => self.data.borrow_mut().run(words),
        }
    }

    /// Sends its replica all that it has.
    pub(crate) fn replicate(&self) {
        *self.replica.borrow_mut() = self.data.borrow().clone();
    }
}

async fn send(
    link: &Link,
    unanswered: &Sent,
    mut to: WriteHalf<DuplexStream>,
    mut replied: mpsc::UnboundedReceiver<(Instant, Vec<u8>)>,
) {
    let mut is_lost = false;
    while let Some((at, bytes)) = replied.recv().await {
        sleep_until(at).await;
        is_lost |= link.swallows.get();
        if is_lost {
            continue;
        }
        unanswered.borrow_mut().pop_front();
        if to.write_all(&bytes).await.is_err() {
            return;
        }
    }
}
