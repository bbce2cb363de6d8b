//! One JSON line per request, on standard output.
//!
//! Requests add their line to a buffer; a thread of its own writes the buffer out. Nobody waits
//! for a reader that does not read: what does not fit is dropped and counted.
//!
//! Not here: queries, headers and bodies. They hold tokens, and are never logged.

use std::io::Write;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use prometheus::IntCounter;
use serde_json::{Map, Value, json};
use weir_common::decision::Decision;
use weir_common::time::Moment;

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
    pub version: String,
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
        let mut line = line(exchange, facts, now).to_string().into_bytes();
        line.push(b'\n');
        let mut buffer = self.buffer.lock().unwrap_or_else(PoisonError::into_inner);
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
            let mut buffer = self.buffer.lock().unwrap_or_else(PoisonError::into_inner);
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
                return;
            }
        }
    }

    /// Lets [`AccessLog::write_out`] end once everything is written.
    pub fn close(&self) {
        self.buffer.lock().unwrap_or_else(PoisonError::into_inner).closed = true;
        self.wake.notify_all();
    }
}

fn line(exchange: &Exchange, facts: &Facts<'_>, now: Moment) -> Value {
    let rules = &exchange.force.rules;
    let mut line = Map::new();
    let mut put = |name: &str, value: Value| {
        if !value.is_null() {
            line.insert(name.to_owned(), value);
        }
    };
    put("time", exchange.began.unix.rfc3339().into());
    put("id", exchange.name().into());
    put("client", exchange.client.map(|address| address.to_string()).into());
    put("method", facts.method.into());
    put("host", facts.host.into());
    put("path", facts.path.into());
    put("version", facts.version.as_str().into());
    put("status", exchange.status.into());
    let duration = now.tick.since(exchange.began.tick);
    put(
        "duration_ms",
        json!(f64::from(u32::try_from(duration.as_micros()).unwrap_or(u32::MAX)) / 1_000.0),
    );
    put("bytes_sent", facts.bytes_sent.into());
    let whose = &exchange.whose;
    let planes = &rules.settings.planes;
    put(
        "plane",
        whose.plane.and_then(|at| planes.get(at)).map(|(name, _)| name.value.as_str()).into(),
    );
    let route = whose.route.and_then(|at| rules.routes.get(at));
    put("route", route.map(|route| route.pattern.text.as_str()).into());
    put("exempt", route.filter(|route| route.exempt).map(|_| true).into());
    put("workspace", whose.workspace.as_deref().into());
    put("organisation", whose.organisation.as_deref().into());
    put("instance", whose.instance.as_deref().into());
    if !exchange.said.is_empty() {
        put("limits", limits(exchange));
    }
    put("refusal", exchange.refusal.as_ref().map(|refusal| refusal.reason()).into());
    put("server", exchange.tried.last().map(|server| server.to_string()).into());
    put("tries", Some(exchange.tried.len()).filter(|tries| *tries > 1).into());
    put("error", facts.error.as_deref().into());
    Value::Object(line)
}

/// Which limits were asked, and what each said.
fn limits(exchange: &Exchange) -> Value {
    let said = exchange.said.iter().map(|said| {
        let limit = exchange.force.rules.limits.get(said.limit);
        let enforced = limit.is_none_or(|limit| limit.enforced);
        json!({
            "limit": limit.map(|limit| &*limit.name),
            "key": &*said.name,
            "said": match said.decision {
                Decision::Admit => "admit",
                _ if enforced => "refuse",
                _ => "would_refuse",
            },
            "remaining": said.remaining,
        })
    });
    said.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::Metrics;

    #[test]
    fn what_was_added_before_the_close_is_written() {
        let log = AccessLog::new(Metrics::new().log_dropped);
        log.buffer.lock().unwrap().bytes.extend_from_slice(b"{}\n");
        log.close();
        let mut written = Vec::new();
        log.write_out(&mut written);
        assert_eq!(written, b"{}\n");
    }
}
