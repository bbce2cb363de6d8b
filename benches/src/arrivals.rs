//! Receivers of deliveries: thousands of endpoints on a few ports, with the arrival time of
//! each event.
//!
//! They do little work, so that a measurement shows the dispatcher's limits: they find the end of
//! a request by its length, read the timestamp in its body and answer 204. Requests to `/x/…` are
//! background load: they are counted, but their latencies are not recorded.
//!
//! Not here: checking signatures (the end-to-end tests do), receivers that never answer
//! (`unresponsive`).

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use weir_common::time::{Clock, Tick, micros};

use crate::flags::fail;
use crate::report::sorted;

const ANSWER: &[u8] = b"HTTP/1.1 204 No Content\r\n\r\n";

/// The text before an event's due time in the body of its delivery.
pub const AT: &str = "\"at\":\"";

/// The interval between checks of the number of arrivals.
const LOOK_EVERY: Duration = Duration::from_micros(200);

/// The deliveries that arrived, at all endpoints together.
pub struct Arrivals {
    clock: Clock,
    /// The ports.
    pub addresses: Vec<SocketAddr>,
    count: AtomicU64,
    background: AtomicU64,
    /// When the last delivery arrived, background load excluded.
    last: AtomicU64,
    /// The due time of each event, and the arrival time of its delivery.
    times: Mutex<Vec<(Tick, Tick)>>,
}

impl Arrivals {
    /// Listens on `ports` free ports until the process ends.
    #[must_use]
    pub fn receive(ports: usize, clock: &Clock) -> Arc<Self> {
        let bind = |_| -> std::io::Result<_> {
            let listener = std::net::TcpListener::bind("127.0.0.1:0")?;
            listener.set_nonblocking(true)?;
            Ok((listener.local_addr()?, listener))
        };
        let bound: std::io::Result<Vec<_>> = (0..ports).map(bind).collect();
        let bound = bound.unwrap_or_else(|error| fail(&format!("no port: {error}")));
        let (addresses, listeners): (Vec<_>, Vec<_>) = bound.into_iter().unzip();
        let arrivals = Arc::new(Self {
            clock: clock.clone(),
            addresses,
            count: AtomicU64::new(0),
            background: AtomicU64::new(0),
            last: AtomicU64::new(0),
            times: Mutex::default(),
        });
        let receiving = arrivals.clone();
        let thread = std::thread::Builder::new().name("receivers".to_owned());
        let started = thread.spawn(move || serve(listeners, &receiving));
        drop(started.unwrap_or_else(|error| fail(&format!("no thread: {error}"))));
        arrivals
    }

    /// Deliveries that arrived, background load excluded.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.count.load(Ordering::Acquire)
    }

    /// Deliveries of background load that arrived.
    #[must_use]
    pub fn background(&self) -> u64 {
        self.background.load(Ordering::Acquire)
    }

    /// When the last delivery arrived, background load excluded.
    #[must_use]
    pub fn last(&self) -> Tick {
        Tick(self.last.load(Ordering::Acquire))
    }

    /// Waits until `count` have arrived; ends the process if none arrives for `patience`.
    pub fn wait_for(&self, count: u64, patience: Duration) {
        self.wait_until(|| self.count(), count, patience);
    }

    /// Like [`Arrivals::wait_for`], for deliveries of background load.
    pub fn wait_for_background(&self, count: u64, patience: Duration) {
        self.wait_until(|| self.background(), count, patience);
    }

    fn wait_until(&self, arrived: impl Fn() -> u64, count: u64, patience: Duration) {
        let (mut seen, mut moved) = (arrived(), self.clock.now().tick);
        while seen < count {
            std::thread::sleep(LOOK_EVERY);
            let now = self.clock.now().tick;
            if arrived() > seen {
                (seen, moved) = (arrived(), now);
            } else if now.since(moved) > patience {
                fail(&format!("{seen} of {count} deliveries arrived, then none for {patience:?}"));
            }
        }
    }

    /// The due time and the arrival time of each event that arrived since the last call.
    #[must_use]
    pub fn drain(&self) -> Vec<(Tick, Tick)> {
        std::mem::take(&mut *self.times.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The latencies of the events that arrived since the last call, from due time to arrival, in
    /// microseconds; sorted.
    #[must_use]
    pub fn drain_latencies(&self) -> Vec<u64> {
        sorted(self.drain().into_iter().map(|(due, arrived)| micros(arrived.since(due))))
    }

    fn arrived(&self, body: &[u8]) {
        let now = self.clock.now().tick;
        if let Some(due) = number_after(body, AT.as_bytes()) {
            let mut times = self.times.lock().unwrap_or_else(PoisonError::into_inner);
            times.push((Tick(due), now));
        }
        self.last.store(now.0, Ordering::Release);
        self.count.fetch_add(1, Ordering::AcqRel);
    }
}

fn serve(listeners: Vec<std::net::TcpListener>, arrivals: &Arc<Arrivals>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build();
    let runtime = runtime.unwrap_or_else(|error| fail(&format!("no runtime: {error}")));
    runtime.block_on(async {
        let mut accepting = JoinSet::new();
        for listener in listeners {
            let listener = TcpListener::from_std(listener);
            let listener = listener.unwrap_or_else(|error| fail(&format!("no port: {error}")));
            let arrivals = arrivals.clone();
            accepting.spawn(async move {
                let mut connections = JoinSet::new();
                loop {
                    match listener.accept().await {
                        Ok((stream, _)) => connections.spawn(answer(stream, arrivals.clone())),
                        Err(error) => fail(&format!("a receiver cannot accept: {error}")),
                    };
                    while connections.try_join_next().is_some() {}
                }
            });
        }
        while accepting.join_next().await.is_some() {}
    });
}

async fn answer(mut stream: TcpStream, arrivals: Arc<Arrivals>) {
    let _ = stream.set_nodelay(true);
    let mut seen = Vec::with_capacity(4096);
    loop {
        match stream.read_buf(&mut seen).await {
            Ok(0) | Err(_) => return,
            Ok(_) => {}
        }
        let Some((head, whole)) = whole_message(&seen) else { continue };
        if seen.starts_with(b"POST /x/") {
            arrivals.background.fetch_add(1, Ordering::AcqRel);
        } else {
            arrivals.arrived(seen.get(head..whole).unwrap_or_default());
        }
        if stream.write_all(ANSWER).await.is_err() {
            return;
        }
        seen.drain(..whole);
    }
}

/// The ends of the head and of the whole first message in `seen`; `None` while the message is
/// incomplete.
#[must_use]
pub fn whole_message(seen: &[u8]) -> Option<(usize, usize)> {
    let head = position(seen, b"\r\n\r\n")? + 4;
    let fields = seen.get(..head)?;
    let length = number_after(fields, b"\r\ncontent-length: ");
    let length = length.or_else(|| number_after(fields, b"\r\nContent-Length: ")).unwrap_or(0);
    let whole = head + usize::try_from(length).ok()?;
    (seen.len() >= whole).then_some((head, whole))
}

fn number_after(text: &[u8], label: &[u8]) -> Option<u64> {
    let start = position(text, label)? + label.len();
    let digits = text.get(start..)?.iter().take_while(|byte| byte.is_ascii_digit());
    Some(digits.fold(0, |number, digit| number * 10 + u64::from(digit - b'0')))
}

fn position(text: &[u8], part: &[u8]) -> Option<usize> {
    let first = *part.first()?;
    let mut from = 0;
    loop {
        let rest = text.get(from..)?;
        let at = from + rest.iter().position(|byte| *byte == first)?;
        if text.get(at..)?.starts_with(part) {
            return Some(at);
        }
        from = at + 1;
    }
}
