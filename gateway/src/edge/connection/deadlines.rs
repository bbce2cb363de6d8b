//! How long a connection is waited for, and how much it may take.

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

/// What a connection may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Allowance {
    /// A whole request head.
    pub head_timeout: Duration,
    /// Bytes of a request head.
    pub head_bytes_max: u64,
    /// Without a request.
    pub idle_timeout: Duration,
    /// Between two writes that the client takes anything of.
    pub write_timeout: Duration,
}

/// For how long nothing may pass, either way, where protocols are switched: Pingora times each
/// way alone, and would end a tunnel in which one side only listens.
#[derive(Debug, Default)]
pub(super) struct Silence {
    /// In microseconds; 0 is for ever.
    max: AtomicU64,
    /// When something passed last.
    from: AtomicU64,
    is_over: AtomicBool,
}

impl Silence {
    /// Bears `max` from `now` on.
    pub(super) fn bear(&self, max: Duration, now: Tick) {
        self.from.store(now.0, Ordering::Relaxed);
        let max = u64::try_from(max.as_micros()).unwrap_or(u64::MAX);
        self.max.store(max, Ordering::Relaxed);
        self.is_over.store(false, Ordering::Relaxed);
    }

    /// Whether there is any to be timed.
    pub(super) fn is_timed(&self) -> bool {
        self.max.load(Ordering::Relaxed) > 0
    }

    /// Something has passed.
    pub(super) fn broken(&self, now: Tick) {
        self.from.store(now.0, Ordering::Relaxed);
    }

    /// When it will have been too long.
    pub(super) fn ends(&self) -> Option<Tick> {
        let max = Duration::from_micros(self.max.load(Ordering::Relaxed));
        self.is_timed().then(|| Tick(self.from.load(Ordering::Relaxed)).plus(max))
    }

    /// Takes note that it was too long.
    pub(super) fn end(&self) {
        self.is_over.store(true, Ordering::Relaxed);
    }

    /// Whether it was too long.
    pub(super) fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Relaxed)
    }
}

impl Connection {
    /// Takes note that something has passed.
    pub(super) fn note_passage(&self) {
        if self.silence.is_timed() {
            self.silence.broken(self.clock.now().tick);
        }
    }

    /// While there is nothing to read: whether the wait has been too long, and if not, an alarm.
    pub(super) fn poll_deadlines(&mut self, cx: &mut Context<'_>) -> Poll<Option<Refusal>> {
        let now = self.clock.now().tick;
        let (deadline, refusal) = match self.phase() {
            Phase::Request => {
                let Some(ends) = self.silence.ends() else { return Poll::Pending };
                ready!(self.poll_alarm(cx, now, ends));
                self.silence.end();
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

    /// Whether `deadline` has come; if not, the task is woken when it has.
    fn poll_alarm(&mut self, cx: &mut Context<'_>, now: Tick, deadline: Tick) -> Poll<()> {
        if now >= deadline {
            return Poll::Ready(());
        }
        let set = || (deadline, Box::pin(tokio::time::sleep(deadline.since(now))));
        let (fires_at, alarm) = self.alarm.get_or_insert_with(set);
        // An alarm that goes off early is set anew; one that would go off late is moved.
        while *fires_at > deadline || alarm.as_mut().poll(cx).is_ready() {
            (*fires_at, *alarm) = set();
        }
        Poll::Pending
    }

    /// What came of a write: a client that has taken nothing for too long is given up. What TLS
    /// accepts while its socket takes nothing has not been taken.
    pub(super) fn poll_progress<T>(
        &mut self,
        cx: &mut Context<'_>,
        wrote: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        let is_ready = wrote.is_ready();
        let has_left = is_ready && !self.socket.has_unsent();
        let taken_before = mem::replace(&mut self.taken, self.socket.taken());
        if has_left || self.taken != taken_before {
            self.stalled_from = None;
            self.note_passage();
        }
        if has_left {
            return wrote;
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
