//! Posts events at full speed, or at a fixed rate that does not slow down for the target.
//!
//! Every event contains its due time, from which its latency is measured when it arrives
//! (`arrivals`). Each thread has one connection and waits for each response, which must be 202.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use weir_common::time::{Clock, Tick, micros};

use crate::arrivals::{AT, whole_message};
use crate::flags::fail;

/// The timeout of a response.
const ANSWER_MAX: Duration = Duration::from_secs(30);

/// The size of a posted event.
const EVENT_BYTES: usize = 200;

/// The target of events, and their workspaces and types.
#[derive(Clone)]
pub struct Aim {
    /// The address of the ingest listener.
    pub address: SocketAddr,
    /// The bearer token.
    pub token: String,
    /// Workspace and type of the events, in turn.
    pub kinds: Vec<(String, &'static str)>,
}

/// The number of events, and how they are posted.
#[derive(Clone, Copy)]
pub struct Load {
    /// Events in total.
    pub events: u64,
    /// Events per call.
    pub per_call: u64,
    /// Connections in parallel.
    pub connections: u64,
}

/// Posts as fast as events are accepted; returns the duration.
#[must_use]
pub fn flood(aim: &Aim, load: Load, clock: &Clock) -> Duration {
    let began = clock.now().tick;
    let next = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for _ in 0..load.connections {
            scope.spawn(|| {
                let mut line = Line::connect(aim);
                loop {
                    let from = next.fetch_add(load.per_call, Ordering::Relaxed);
                    if from >= load.events {
                        return;
                    }
                    let count = load.per_call.min(load.events - from);
                    line.post(aim, from, count, clock.now().tick);
                }
            });
        }
    });
    clock.now().tick.since(began)
}

/// The times of one call.
#[derive(Clone, Copy)]
pub struct Answered {
    /// The due time of its event.
    pub due: Tick,
    /// When the response was complete.
    pub at: Tick,
}

/// Posts one event a call for `lasting`; each connection posts again as soon as it has a response.
#[must_use]
pub fn press(aim: &Aim, connections: u64, lasting: Duration, clock: &Clock) -> Vec<Answered> {
    let began = clock.now().tick;
    let next = AtomicU64::new(0);
    let each = || {
        let (mut line, mut answered) = (Line::connect(aim), Vec::new());
        loop {
            let due = clock.now().tick;
            if due.since(began) >= lasting {
                return answered;
            }
            line.post(aim, next.fetch_add(1, Ordering::Relaxed), 1, due);
            answered.push(Answered { due, at: clock.now().tick });
        }
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..connections).map(|_| scope.spawn(each)).collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap_or_default()).collect()
    })
}

/// Posts one event a call at `rate` a second, whether or not the responses keep up.
pub fn steadily(aim: &Aim, load: Load, rate: u64, clock: &Clock) -> Vec<Answered> {
    // Threads inherit the timer slack: a sleep ends within 1 µs of its time instead of 50 µs.
    let _ = std::fs::write("/proc/self/timerslack_ns", "1");
    let began = clock.now().tick;
    let each = |nth: u64| {
        let _ = std::fs::write("/proc/thread-self/timerslack_ns", "1");
        let mut line = Line::connect(aim);
        let numbers = (nth..load.events).step_by(load.connections as usize);
        let calls = numbers.map(|number| {
            let due = Tick(began.0 + number * 1_000_000 / rate);
            std::thread::sleep(due.since(clock.now().tick));
            line.post(aim, number, 1, due);
            Answered { due, at: clock.now().tick }
        });
        calls.collect::<Vec<_>>()
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> =
            (0..load.connections).map(|nth| scope.spawn(move || each(nth))).collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap_or_default()).collect()
    })
}

/// A connection to the dispatcher.
pub struct Line {
    stream: TcpStream,
    head: String,
    seen: Vec<u8>,
}

impl Line {
    /// Opens a connection.
    #[must_use]
    pub fn connect(aim: &Aim) -> Self {
        let head = format!(
            "POST /internal/v1/events HTTP/1.1\r\nHost: weir\r\nAuthorization: Bearer {}\r\n\
             Content-Type: application/json\r\nContent-Length: ",
            aim.token
        );
        Self { stream: connect(aim.address), head, seen: Vec::new() }
    }

    /// Posts the events from `from` on in one call, and reads the response.
    pub fn post(&mut self, aim: &Aim, from: u64, count: u64, due: Tick) {
        let events: Vec<String> = (from..from + count).map(|nth| event(aim, nth, due)).collect();
        let body = events.join(",");
        let body = if count == 1 { body } else { format!("[{body}]") };
        let request = format!("{}{}\r\n\r\n{body}", self.head, body.len());
        let answer = exchange(&mut self.stream, request.as_bytes(), &mut self.seen);
        if !answer.starts_with("HTTP/1.1 202 ") {
            fail(&format!("an event was not taken:\n{answer}"));
        }
    }
}

/// Sends a request on a connection that stays open, and returns the whole response.
#[must_use]
pub fn exchange(stream: &mut TcpStream, request: &[u8], seen: &mut Vec<u8>) -> String {
    let mut talk = || -> std::io::Result<String> {
        stream.write_all(request)?;
        seen.clear();
        let mut more = [0; 16 * 1024];
        loop {
            let count = stream.read(&mut more)?;
            seen.extend_from_slice(more.get(..count).unwrap_or_default());
            if whole_message(seen).is_some() || count == 0 {
                return Ok(String::from_utf8_lossy(seen).into_owned());
            }
        }
    };
    talk().unwrap_or_else(|error| fail(&format!("the dispatcher does not answer: {error}")))
}

/// A connection with a timeout for responses.
#[must_use]
pub fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).and_then(|stream| {
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(ANSWER_MAX))?;
        Ok(stream)
    });
    stream.unwrap_or_else(|error| fail(&format!("{address}: {error}")))
}

fn event(aim: &Aim, nth: u64, due: Tick) -> String {
    let at = nth as usize % aim.kinds.len().max(1);
    let Some((workspace, kind)) = aim.kinds.get(at) else { fail("events without a webhook") };
    let due = due.0;
    let mut text = format!(
        "{{\"type\":\"{kind}\",\"workspace_id\":\"{workspace}\",\"tenant_id\":\"tn_bench\",\
         \"data\":{{{AT}{due}\",\"pad\":\""
    );
    let end = "\"}}";
    text.extend(std::iter::repeat_n('x', EVENT_BYTES.saturating_sub(text.len() + end.len())));
    text.push_str(end);
    text
}

/// A duration in seconds.
#[must_use]
pub fn seconds(duration: Duration) -> f64 {
    micros(duration) as f64 / 1e6
}
