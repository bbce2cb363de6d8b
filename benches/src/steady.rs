//! Open-loop load: a fixed rate that does not slow down for the target.
//!
//! Every request has a due time, whether or not the target keeps up, and its latency counts from
//! that time: a stall shows in full, in every request that it delayed.
//!
//! A thread sleeps until the next request is due and sends it on a free connection; if none is
//! free, the next connection to become free sends it. One more thread reads the responses.

use std::collections::{BTreeMap, VecDeque};
use std::io::Write;
use std::net::TcpStream;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::io::AsyncReadExt;
use tokio::sync::Notify;
use tokio::task::JoinSet;
use weir_common::time::{Clock, Tick, micros};

use crate::flags::fail;
use crate::load::Aim;
use crate::report::{quantile, sorted};

/// Microseconds of a tenth of a second: where the machine stalls once a second for milliseconds,
/// most tenths show the target alone.
const TENTH: u64 = 100_000;

/// The rate and the duration of a run.
#[derive(Clone, Copy)]
pub struct Pace {
    /// Requests a second.
    pub rate: u32,
    /// The duration.
    pub seconds: u32,
    /// Connections to send them on.
    pub connections: usize,
}

/// The latencies of a run, in microseconds.
pub struct Latencies {
    /// All of them, sorted.
    pub all: Vec<u64>,
    /// The 99th percentile of the requests due in each tenth of a second: its median.
    pub p99_of_tenths: u64,
}

/// Requests that wait for a connection, or connections that wait for a request: never both.
struct Queue {
    free: VecDeque<usize>,
    late: VecDeque<u64>,
}

struct Line {
    request: Vec<u8>,
    status: String,
    clock: Clock,
    start: Tick,
    writers: Vec<TcpStream>,
    /// The due time of each connection's request in flight, in microseconds since `start`.
    due: Vec<AtomicU64>,
    queue: Mutex<Queue>,
    /// Each answered request: when it was due, and its latency.
    answers: Mutex<Vec<(u64, u64)>>,
    total: usize,
    answered: AtomicUsize,
    done: Notify,
}

/// Sends at `pace`, and returns the latencies.
///
/// Ends the process if a response has another status than `status`.
#[must_use]
pub fn run(aim: &Aim, status: u16, pace: Pace) -> Latencies {
    // Threads inherit the timer slack: a sleep ends within 1 µs of its time instead of 50 µs.
    let _ = std::fs::write("/proc/self/timerslack_ns", "1");
    let total = pace.rate as usize * pace.seconds as usize;
    let clock = Clock::system();
    let line = Arc::new(Line {
        request: format!("GET {} HTTP/1.1\r\nHost: {}\r\n\r\n", aim.path, aim.host).into_bytes(),
        status: format!("HTTP/1.1 {status} "),
        start: clock.now().tick,
        clock,
        writers: (0..pace.connections).map(|_| connect(aim)).collect(),
        due: (0..pace.connections).map(|_| AtomicU64::new(0)).collect(),
        queue: Mutex::new(Queue { free: (0..pace.connections).collect(), late: VecDeque::new() }),
        answers: Mutex::new(Vec::with_capacity(total)),
        total,
        answered: AtomicUsize::new(0),
        done: Notify::new(),
    });
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build();
    let runtime = runtime.unwrap_or_else(|error| fail(&format!("no runtime: {error}")));
    std::thread::scope(|scope| {
        scope.spawn(|| send_when_due(&line, pace.rate));
        runtime.block_on(async {
            let mut readers = JoinSet::new();
            for connection in 0..pace.connections {
                readers.spawn(read_answers(line.clone(), connection));
            }
            line.done.notified().await;
        });
    });
    Latencies::of(&lock(&line.answers))
}

impl Latencies {
    fn of(answers: &[(u64, u64)]) -> Self {
        let mut tenths: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
        for (due, latency) in answers {
            tenths.entry(due / TENTH).or_default().push(*latency);
        }
        let p99 = |tenth: Vec<u64>| quantile(&sorted(tenth.into_iter()), 0.99);
        Self {
            all: sorted(answers.iter().map(|(_, latency)| *latency)),
            p99_of_tenths: quantile(&sorted(tenths.into_values().map(p99)), 0.5),
        }
    }
}

fn connect(aim: &Aim) -> TcpStream {
    let stream = TcpStream::connect(aim.address).and_then(|stream| {
        stream.set_nodelay(true)?;
        stream.set_nonblocking(true)?;
        Ok(stream)
    });
    stream.unwrap_or_else(|error| fail(&format!("{}: {error}", aim.address)))
}

fn send_when_due(line: &Line, rate: u32) {
    for number in 0..line.total as u64 {
        let due = number * 1_000_000 / u64::from(rate);
        std::thread::sleep(Duration::from_micros(due.saturating_sub(line.elapsed())));
        let mut queue = lock(&line.queue);
        if let Some(connection) = queue.free.pop_front() {
            drop(queue);
            line.send(connection, due);
        } else {
            queue.late.push_back(due);
        }
    }
}

impl Line {
    fn send(&self, connection: usize, due: u64) {
        let (Some(writer), Some(slot)) = (self.writers.get(connection), self.due.get(connection))
        else {
            fail("a connection that was never made");
        };
        slot.store(due, Ordering::Release);
        // The socket buffer has room: the request is small, and the connection has no other.
        match (&*writer).write(&self.request) {
            Ok(sent) if sent == self.request.len() => {}
            other => fail(&format!("could not send: {other:?}")),
        }
    }

    fn elapsed(&self) -> u64 {
        micros(self.clock.now().tick.since(self.start))
    }

    fn answered(&self, connection: usize) {
        let now = self.elapsed();
        let due = self.due.get(connection).map_or(0, |slot| slot.load(Ordering::Acquire));
        lock(&self.answers).push((due, now.saturating_sub(due)));
        let mut queue = lock(&self.queue);
        if let Some(due) = queue.late.pop_front() {
            drop(queue);
            self.send(connection, due);
        } else {
            queue.free.push_back(connection);
        }
        if self.answered.fetch_add(1, Ordering::AcqRel) + 1 == self.total {
            self.done.notify_one();
        }
    }
}

async fn read_answers(line: Arc<Line>, connection: usize) {
    let stream = line.writers.get(connection).map(TcpStream::try_clone);
    let Some(Ok(Ok(mut stream))) = stream.map(|s| s.map(tokio::net::TcpStream::from_std)) else {
        fail("a connection that cannot be read");
    };
    let mut seen = Vec::with_capacity(4096);
    loop {
        match stream.read_buf(&mut seen).await {
            Ok(0) if line.answered.load(Ordering::Acquire) >= line.total => return,
            Ok(0) => fail("the target closed a connection"),
            Ok(_) => {}
            Err(error) => fail(&format!("could not read: {error}")),
        }
        if let Some(length) = whole_answer(&seen, &line.status) {
            seen.drain(..length);
            line.answered(connection);
        }
    }
}

/// The length of the first response in `seen`; `None` while it is incomplete.
fn whole_answer(seen: &[u8], status: &str) -> Option<usize> {
    let head_length = seen.windows(4).position(|end| end == b"\r\n\r\n")? + 4;
    let head = String::from_utf8_lossy(seen.get(..head_length)?).to_ascii_lowercase();
    if !head.starts_with(&status.to_ascii_lowercase()) {
        fail(&format!("expected {status}, but:\n{head}"));
    }
    let length = head.lines().find_map(|line| line.strip_prefix("content-length:"));
    let Some(length) = length.and_then(|text| text.trim().parse::<usize>().ok()) else {
        fail(&format!("an answer without a length:\n{head}"));
    };
    (seen.len() >= head_length + length).then_some(head_length + length)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stall_shows_in_all_latencies_and_not_in_most_tenths() {
        let tenth = |nth: u64| (0..100).map(move |n| (nth * TENTH + n * 1_000, nth * 100 + n));
        let stall = (0..100).map(|n| (3 * TENTH + n * 1_000, 90_000));
        let answers: Vec<(u64, u64)> = (0..3).flat_map(tenth).chain(stall).collect();
        let latencies = Latencies::of(&answers);
        assert_eq!(quantile(&latencies.all, 0.99), 90_000);
        assert_eq!(latencies.p99_of_tenths, 298);
    }
}
