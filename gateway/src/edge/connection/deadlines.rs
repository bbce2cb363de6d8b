//! Times a connection: idle, reading a head, silent in a tunnel, not reading what we write.

use std::future::Future;
use std::io;
use std::mem;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use weir_common::time::Tick;

use crate::edge::connection::Connection;
use crate::edge::connection::request_line::Phase;
use crate::response::refusal::Refusal;

/// The limits of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Allowance {
    /// Time for a whole request head.
    pub head_timeout: Duration,
    /// Bytes of a request head.
    pub head_bytes_max: u64,
    /// Time without a request.
    pub idle_timeout: Duration,
    /// Time in which the client reads none of the pending bytes.
    pub write_timeout: Duration,
}

/// Limits the time without a byte in either direction, where protocols are switched: Pingora times
/// each direction alone, and would end a tunnel in which one side only listens.
#[derive(Debug, Default)]
pub(super) struct Silence {
    /// In microseconds; 0 is no limit.
    max: AtomicU64,
    /// When the last byte passed.
    from: AtomicU64,
    is_exceeded: AtomicBool,
}

impl Silence {
    /// Allows silence of up to `max`, from `now` on.
    pub(super) fn allow(&self, max: Duration, now: Tick) {
        self.from.store(now.0, Ordering::Relaxed);
        let max = u64::try_from(max.as_micros()).unwrap_or(u64::MAX);
        self.max.store(max, Ordering::Relaxed);
        self.is_exceeded.store(false, Ordering::Relaxed);
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

    /// Whether the maximum was exceeded.
    pub(super) fn is_exceeded(&self) -> bool {
        self.is_exceeded.load(Ordering::Relaxed)
    }
}

impl Connection {
    /// Records that bytes have passed.
    pub(super) fn note_passage(&self) {
        if self.silence.is_timed() {
            self.silence.restart(self.clock.now().tick);
        }
    }

    /// For a read that would wait: ready once the phase's deadline has passed, else sets a timer.
    pub(super) fn poll_deadlines(&mut self, cx: &mut Context<'_>) -> Poll<Option<Refusal>> {
        let now = self.clock.now().tick;
        let (deadline, refusal) = match self.phase() {
            Phase::Request => {
                let Some(ends) = self.silence.ends() else { return Poll::Pending };
                ready!(self.poll_alarm(cx, now, ends));
                self.silence.set_exceeded();
                return Poll::Ready(None);
            }
            Phase::Idle => {
                let from = Tick(self.idle_from.load(Ordering::Relaxed));
                (from.plus(self.allowance.idle_timeout), None)
            }
            Phase::Head => {
                let timeout = self.allowance.head_timeout;
                (
                    *self.head.deadline.get_or_insert_with(|| now.plus(timeout)),
                    Some(Refusal::HeadTimeout),
                )
            }
        };
        self.poll_alarm(cx, now, deadline).map(|()| refusal)
    }

    /// Ready once `deadline` has passed; until then a timer wakes the task.
    fn poll_alarm(&mut self, cx: &mut Context<'_>, now: Tick, deadline: Tick) -> Poll<()> {
        if now >= deadline {
            return Poll::Ready(());
        }
        let set = || (deadline, Box::pin(tokio::time::sleep(deadline.since(now))));
        let (fires_at, alarm) = self.alarm.get_or_insert_with(set);
        // A timer that fires early is set again; one that would fire late is moved.
        while *fires_at > deadline || alarm.as_mut().poll(cx).is_ready() {
            (*fires_at, *alarm) = set();
        }
        Poll::Pending
    }

    /// Checks the result of a write: fails once the client has read nothing for `write_timeout`.
    /// Bytes that TLS buffers while its socket accepts none count as unread.
    pub(super) fn poll_progress<T>(
        &mut self,
        cx: &mut Context<'_>,
        wrote: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        let is_ready = wrote.is_ready();
        if is_ready && !self.socket.has_unsent() {
            self.stalled_from = None;
            self.note_passage();
            return wrote;
        }
        let taken = self.socket.taken();
        if taken != mem::replace(&mut self.taken, taken) {
            self.stalled_from = None;
            self.note_passage();
        }
        let now = self.clock.now().tick;
        let from = *self.stalled_from.get_or_insert(now);
        if is_ready {
            return wrote;
        }
        ready!(self.poll_alarm(cx, now, from.plus(self.allowance.write_timeout)));
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the client takes nothing")))
    }
}
