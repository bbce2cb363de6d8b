//! What the phases of one request and the session below Pingora exchange.
//!
//! Pingora passes a session of ours through its phases as one of its own type, which hides ours. So
//! both sides share this: the phases set what the session then does.
//!
//! Not here: what is set when (`proxy`), what comes of it (`http1::session`, `session`).

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use weir_common::time::Tick;

/// One request's exchange.
#[derive(Debug, Default)]
pub struct Exchange {
    closes: AtomicBool,
    lines: OnceLock<String>,
    response: OnceLock<Vec<u8>>,
    replay: OnceLock<Bytes>,
    silence: Silence,
}

impl Exchange {
    /// Closes the client's connection after the response; without effect on HTTP/2.
    pub fn close(&self) {
        self.closes.store(true, Ordering::Relaxed);
    }

    /// Whether the client's connection closes after the response.
    #[must_use]
    pub fn closes(&self) -> bool {
        self.closes.load(Ordering::Relaxed)
    }

    /// Adds header lines, each with its line end, to the head of the response over HTTP/1. As text
    /// they cost a fifth of what a header map does (docs/performance.md).
    pub fn add_lines(&self, lines: String) {
        // A second final response is not written, and neither are its lines.
        let _ = self.lines.set(lines);
    }

    /// The lines for the head of the response.
    pub(super) fn lines(&self) -> &str {
        self.lines.get().map_or("", String::as_str)
    }

    /// Sets a whole response over HTTP/1, which is written when the session is finished.
    pub fn set_response(&self, response: Vec<u8>) {
        // A request is answered once.
        let _ = self.response.set(response);
    }

    /// The whole response.
    pub(super) fn response(&self) -> Option<&[u8]> {
        self.response.get().map(Vec::as_slice)
    }

    /// Sets a body that has been read whole: the session returns it once, and again to each retry.
    pub fn replay(&self, body: Bytes) {
        // A body is read once.
        let _ = self.replay.set(body);
    }

    /// Ends the request once no byte has passed in either direction for `max`, counted from `now`:
    /// Pingora times each direction alone, and would end a tunnel in which one side only listens.
    pub fn set_silence_max(&self, max: Duration, now: Tick) {
        self.silence.allow(max, now);
    }

    /// Whether that maximum of silence was exceeded.
    #[must_use]
    pub fn was_silent(&self) -> bool {
        self.silence.is_exceeded.load(Ordering::Relaxed)
    }

    pub(super) fn silence(&self) -> &Silence {
        &self.silence
    }
}

/// Limits the time without a byte in either direction, where protocols are switched.
#[derive(Debug, Default)]
pub(super) struct Silence {
    /// In microseconds; 0 is no limit.
    max: AtomicU64,
    /// When the last byte passed.
    from: AtomicU64,
    is_exceeded: AtomicBool,
}

impl Silence {
    fn allow(&self, max: Duration, now: Tick) {
        self.from.store(now.0, Ordering::Relaxed);
        let max = u64::try_from(max.as_micros()).unwrap_or(u64::MAX);
        self.max.store(max, Ordering::Relaxed);
    }

    /// Whether silence is limited.
    pub(super) fn is_timed(&self) -> bool {
        self.max.load(Ordering::Relaxed) > 0
    }

    /// Restarts the time: bytes have passed.
    pub(super) fn restart(&self, now: Tick) {
        self.from.store(now.0, Ordering::Relaxed);
    }

    /// When the silence exceeds its maximum.
    pub(super) fn ends(&self) -> Option<Tick> {
        let max = Duration::from_micros(self.max.load(Ordering::Relaxed));
        self.is_timed().then(|| Tick(self.from.load(Ordering::Relaxed)).plus(max))
    }

    /// Records that the maximum was exceeded.
    pub(super) fn set_exceeded(&self) {
        self.is_exceeded.store(true, Ordering::Relaxed);
    }
}

/// A session's part of a body that is replayed.
#[derive(Debug, Default)]
pub(super) struct Replay {
    sent: bool,
}

impl Replay {
    /// The body that `exchange` replays, if there is one.
    pub(super) fn body(exchange: &Exchange) -> Option<&Bytes> {
        exchange.replay.get()
    }

    /// The body, the first time.
    pub(super) fn next(&mut self, body: &Bytes) -> Option<Bytes> {
        (!std::mem::replace(&mut self.sent, true)).then(|| body.clone())
    }

    /// Whether it has been returned.
    pub(super) fn is_over(&self, body: &Bytes) -> bool {
        self.sent || body.is_empty()
    }

    /// What a retry gets first.
    pub(super) fn again(&self, body: &Bytes) -> Option<Bytes> {
        (self.sent && !body.is_empty()).then(|| body.clone())
    }

    /// Discards it.
    pub(super) fn discard(&mut self) {
        self.sent = true;
    }
}
