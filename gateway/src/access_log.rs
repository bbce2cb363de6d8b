//! One JSON line per request, on standard output.
//!
//! Requests add their line to a buffer; a thread of its own writes the buffer out. Nobody waits
//! for a reader that does not read: what does not fit is dropped and counted.
//!
//! Not here: queries, headers and bodies. They hold tokens, and are never logged.

use std::fmt::Display;
use std::io::Write;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use prometheus::IntCounter;
use weir_common::decision::Decision;
use weir_common::time::{Moment, micros};

use crate::exchange::Exchange;

/// What waits to be written, at most: a second of a busy edge's lines.
const BUFFER_MAX: usize = 16 << 20;

/// The longest that a line waits for others to be written with it.
const FLUSH_EVERY: Duration = Duration::from_millis(50);

/// The log, shared by those who write lines and the one who writes them out.
pub struct AccessLog {
    buffer: Mutex<Buffer>,
    wake: Condvar,
    dropped: IntCounter,
}

#[derive(Default)]
struct Buffer {
    bytes: Vec<u8>,
    closed: bool,
    written: bool,
}

/// What Pingora's session knows of a request that is over.
pub struct Facts<'r> {
    /// The method.
    pub method: &'r str,
    /// The host, as it was sent.
    pub host: Option<&'r str>,
    /// The path, without the query.
    pub path: &'r str,
    /// `HTTP/1.1` and the like.
    pub version: &'static str,
    /// Bytes of the answer's body.
    pub bytes_sent: usize,
    /// What went wrong on the way, in Pingora's words for the kind of it.
    pub error: Option<String>,
}

impl AccessLog {
    /// A log that counts what it must drop in `dropped`.
    #[must_use]
    pub fn new(dropped: IntCounter) -> Arc<Self> {
        Arc::new(Self { buffer: Mutex::default(), wake: Condvar::new(), dropped })
    }

    /// Adds the line of a request that was over at `now`.
    pub fn add(&self, exchange: &Exchange, facts: &Facts<'_>, now: Moment) {
        let line = line(exchange, facts, now);
        let mut buffer = self.lock();
        if buffer.bytes.len() + line.len() > BUFFER_MAX {
            self.dropped.inc();
            return;
        }
        let was_empty = buffer.bytes.is_empty();
        buffer.bytes.extend_from_slice(&line);
        if was_empty {
            self.wake.notify_one();
        }
    }

    /// Writes lines out until the log is closed and nothing is left. Runs on a thread of its own.
    pub fn write_out(&self, mut to: impl Write) {
        loop {
            let mut buffer = self.lock();
            while buffer.bytes.is_empty() && !buffer.closed {
                buffer = self.wake.wait(buffer).unwrap_or_else(PoisonError::into_inner);
            }
            if !buffer.closed {
                // Let a few lines gather; the wait ends early when the log is closed.
                let gathering = self.wake.wait_timeout(buffer, FLUSH_EVERY);
                buffer = gathering.unwrap_or_else(PoisonError::into_inner).0;
            }
            let bytes = std::mem::take(&mut buffer.bytes);
            let closed = buffer.closed;
            drop(buffer);
            // Where standard output is gone there is nobody left to tell.
            let _ = to.write_all(&bytes).and_then(|()| to.flush());
            if closed {
                self.lock().written = true;
                self.wake.notify_all();
                return;
            }
        }
    }

    /// Lets [`AccessLog::write_out`] end, and waits until everything is written, or for `grace`.
    pub fn close(&self, grace: Duration) {
        self.lock().closed = true;
        self.wake.notify_all();
        let waiting = |buffer: &mut Buffer| !buffer.written;
        // Whether time was up or all was written, there is nothing more to do.
        drop(self.wake.wait_timeout_while(self.lock(), grace, waiting));
    }

    fn lock(&self) -> MutexGuard<'_, Buffer> {
        self.buffer.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The line of one request, with its end.
fn line(exchange: &Exchange, facts: &Facts<'_>, now: Moment) -> Vec<u8> {
    let rules = &exchange.force.rules;
    let mut line = Line::new();
    line.text("time", &exchange.began.unix.rfc3339());
    line.text("id", &exchange.name());
    if let Some(client) = exchange.client {
        line.shown("client", client);
    }
    line.text("method", facts.method);
    line.some("host", facts.host);
    line.text("path", facts.path);
    line.text("version", facts.version);
    if let Some(status) = exchange.status {
        line.number("status", status.into());
    }
    let duration = micros(now.tick.since(exchange.began.tick));
    line.thousandths("duration_ms", duration);
    line.number("bytes_sent", facts.bytes_sent as u64);
    let whose = &exchange.whose;
    let plane = whose.plane.and_then(|at| rules.settings.planes.get(at));
    line.some("plane", plane.map(|(name, _)| name.value.as_str()));
    let route = whose.route.and_then(|at| rules.routes.get(at));
    line.some("route", route.map(|route| route.pattern.text.as_str()));
    if route.is_some_and(|route| route.exempt) {
        line.raw("exempt", "true");
    }
    line.some("workspace", whose.workspace.as_deref());
    line.some("organisation", whose.organisation.as_deref());
    line.some("instance", whose.instance.as_deref());
    if !exchange.said.is_empty() {
        limits(&mut line, exchange);
    }
    line.some("refusal", exchange.refusal.as_ref().map(|refusal| refusal.reason()));
    if let Some(server) = exchange.tried.last() {
        line.shown("server", server);
    }
    if exchange.tried.len() > 1 {
        line.number("tries", exchange.tried.len() as u64);
    }
    line.some("error", facts.error.as_deref());
    line.end()
}

/// Which limits were asked, and what each said.
fn limits(line: &mut Line, exchange: &Exchange) {
    line.name("limits");
    line.bytes.push(b'[');
    for (nth, said) in exchange.said.iter().enumerate() {
        if nth > 0 {
            line.bytes.push(b',');
        }
        let limit = exchange.force.rules.limits.get(said.limit);
        let enforced = limit.is_none_or(|limit| limit.enforced);
        let word = match said.decision {
            Decision::Admit => "admit",
            _ if enforced => "refuse",
            _ => "would_refuse",
        };
        line.bytes.push(b'{');
        line.some("limit", limit.map(|limit| &*limit.name));
        line.text("key", &said.name);
        line.text("said", word);
        line.number("remaining", said.remaining.into());
        line.bytes.push(b'}');
    }
    line.bytes.push(b']');
}

/// A JSON object that is written member by member: a line is made for every request, and a tree
/// of values would cost more than all else that is done for it (docs/performance.md).
struct Line {
    bytes: Vec<u8>,
}

impl Line {
    fn new() -> Self {
        let mut bytes = Vec::with_capacity(640);
        bytes.push(b'{');
        Self { bytes }
    }

    /// Begins a member. Names are ours, and need no escapes.
    fn name(&mut self, name: &str) {
        if !self.bytes.ends_with(b"{") {
            self.bytes.push(b',');
        }
        self.bytes.push(b'"');
        self.bytes.extend_from_slice(name.as_bytes());
        self.bytes.extend_from_slice(b"\":");
    }

    /// A member that is text from anywhere.
    fn text(&mut self, name: &str, text: &str) {
        self.name(name);
        let plain = |byte: u8| byte >= b' ' && byte != b'"' && byte != b'\\';
        if text.bytes().all(plain) {
            self.bytes.push(b'"');
            self.bytes.extend_from_slice(text.as_bytes());
            self.bytes.push(b'"');
        } else {
            // Writing text to memory cannot fail.
            let _ = serde_json::to_writer(&mut self.bytes, text);
        }
    }

    fn some(&mut self, name: &str, text: Option<&str>) {
        if let Some(text) = text {
            self.text(name, text);
        }
    }

    /// A member that shows itself without anything to escape.
    fn shown(&mut self, name: &str, shown: impl Display) {
        self.name(name);
        // Writing to memory cannot fail.
        let _ = write!(self.bytes, "\"{shown}\"");
    }

    fn number(&mut self, name: &str, number: u64) {
        self.raw(name, itoa::Buffer::new().format(number));
    }

    /// A member with three decimals.
    fn thousandths(&mut self, name: &str, thousandths: u64) {
        self.number(name, thousandths / 1_000);
        // Writing to memory cannot fail.
        let _ = write!(self.bytes, ".{:03}", thousandths % 1_000);
    }

    /// A member that is JSON already.
    fn raw(&mut self, name: &str, json: &str) {
        self.name(name);
        self.bytes.extend_from_slice(json.as_bytes());
    }

    fn end(mut self) -> Vec<u8> {
        self.bytes.extend_from_slice(b"}\n");
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::Metrics;

    #[test]
    fn a_line_is_json_whatever_stands_in_it() {
        let mut line = Line::new();
        let odd = "quote \" backslash \\ newline \n bell \u{7} é";
        line.text("odd", odd);
        line.thousandths("ms", 12_034);
        line.shown("client", std::net::Ipv6Addr::LOCALHOST);
        line.some("none", None);
        line.raw("exempt", "true");
        let line = line.end();
        assert_eq!(line.iter().filter(|byte| **byte == b'\n').count(), 1);
        let line: serde_json::Value = serde_json::from_slice(&line).unwrap();
        assert_eq!(line["odd"], odd);
        assert_eq!(line["ms"], 12.034);
        assert_eq!(line["client"], "::1");
        assert_eq!(line.as_object().unwrap().len(), 4);
    }

    #[test]
    fn what_was_added_before_the_close_is_written() {
        let log = AccessLog::new(Metrics::new().log_dropped);
        log.buffer.lock().unwrap().bytes.extend_from_slice(b"{}\n");
        log.close(Duration::ZERO);
        let mut written = Vec::new();
        log.write_out(&mut written);
        assert_eq!(written, b"{}\n");
    }
}
