//! Decides whether requests ask a server of the shared store, or their own gateway.
//!
//! After some failures in a row no request waits for the server any more. Calls that waited at the
//! same time fail together: that is one failure, however many requests a gateway has in progress.
//! Heartbeats that succeed end that: at once where no gateway can have decided alone, and otherwise
//! after some time. Where calls took too long, heartbeats must take less, or be many.
//!
//! # Invariants
//!
//! 1. A dead server costs the requests of three time limits theirs, and later ones none.
//! 2. After a server was away, it is asked only once all gateways have had the time to tell it what
//!    they admitted meanwhile.
//!
//! # Not here
//!
//! When heartbeats are sent (`shared::connecting`), what a gateway decides alone
//! (`shared::local_fallback`).

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use weir_common::time::{Tick, micros};

/// Failures in a row after which a server counts as away.
const FAILURES_MAX: u32 = 3;

/// So many heartbeats may take too long before a server whose calls did is asked again all the
/// same: a heartbeat waits for those of other servers, and a call does not.
const LATE_MAX: u32 = 20;

/// How long a server must answer before it is asked again: other gateways find it within two
/// heartbeats.
const HOLD_OFF: Duration = Duration::from_millis(600);

/// Whether a server answers.
#[derive(Debug)]
pub(in super::super) struct Availability {
    available: AtomicBool,
    failures: AtomicU32,
    /// When the newest of them was noticed, in ticks.
    failed_at: AtomicU64,
    /// Heartbeats in a row that were not answered in time.
    silent: AtomicU32,
    /// Whether a gateway may have decided alone since the server was last asked.
    missed_some: AtomicBool,
    /// Heartbeats that may still take too long before it is asked again: some where its calls did
    /// when it was last available.
    late_left: AtomicU32,
    /// When it began to answer again, in ticks; 0 while it does not.
    answers_since: AtomicU64,
}

/// What a heartbeat that was answered has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum Answered {
    /// Nothing.
    Steady,
    /// The server is asked from now on.
    Recovered,
    /// It is not asked yet.
    Recovering,
    /// Calls would still take too long.
    TooLate,
}

impl Availability {
    /// A server that has not answered yet. `missed_some`: gateways may have decided alone what it
    /// has to know.
    pub(in super::super) fn new(missed_some: bool) -> Self {
        Self {
            available: AtomicBool::new(false),
            failures: AtomicU32::new(0),
            failed_at: AtomicU64::new(0),
            silent: AtomicU32::new(0),
            missed_some: AtomicBool::new(missed_some),
            late_left: AtomicU32::new(0),
            answers_since: AtomicU64::new(0),
        }
    }

    /// Whether requests should ask the server.
    pub(in super::super) fn is_available(&self) -> bool {
        self.available.load(Ordering::Acquire)
    }

    /// A request was answered.
    pub(in super::super) fn answered(&self) {
        // Read first: it is the same cache line for all workers.
        if self.failures.load(Ordering::Relaxed) > 0 {
            self.failures.store(0, Ordering::Relaxed);
        }
    }

    /// A call that was sent at `sent` was not answered, or too late, as is known at `now`. True
    /// where the server counts as away from now on.
    pub(in super::super) fn failed(&self, sent: Tick, now: Tick) -> bool {
        let counts = |newest: u64| (sent.0 >= newest).then_some(now.0);
        if self.failed_at.fetch_update(Ordering::Relaxed, Ordering::Relaxed, counts).is_err() {
            return false;
        }
        let failures = self.failures.fetch_add(1, Ordering::Relaxed) + 1;
        let turned = failures >= FAILURES_MAX && self.available.swap(false, Ordering::AcqRel);
        if turned {
            self.late_left.store(LATE_MAX, Ordering::Relaxed);
        }
        turned
    }

    /// A request was decided without the server.
    pub(in super::super) fn decided_alone(&self) {
        if !self.missed_some.load(Ordering::Relaxed) {
            self.missed_some.store(true, Ordering::Relaxed);
        }
    }

    /// The connection is lost. True where the server was available until now.
    pub(in super::super) fn lost(&self) -> bool {
        self.answers_since.store(0, Ordering::Relaxed);
        self.silent.store(0, Ordering::Relaxed);
        self.late_left.store(0, Ordering::Relaxed);
        self.missed_some.store(true, Ordering::Relaxed);
        self.available.swap(false, Ordering::AcqRel)
    }

    /// A heartbeat was not answered in time. True where that is no reason to reconnect: one that is
    /// late alone, as where a machine stands still.
    pub(in super::super) fn is_late_once(&self) -> bool {
        self.silent.fetch_add(1, Ordering::Relaxed) == 0 && self.is_available()
    }

    /// A heartbeat was answered at `now`, and within the time that a call may take if `in_time`.
    pub(in super::super) fn beaten(&self, now: Tick, in_time: bool) -> Answered {
        self.silent.store(0, Ordering::Relaxed);
        if self.is_available() {
            return Answered::Steady;
        }
        let one_less = |left: u32| left.checked_sub(1);
        let late = &self.late_left;
        if !in_time && late.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_less).is_ok() {
            self.answers_since.store(0, Ordering::Relaxed);
            return Answered::TooLate;
        }
        let now = now.0.max(1);
        let first =
            self.answers_since.compare_exchange(0, now, Ordering::Relaxed, Ordering::Relaxed);
        let since = first.map_or_else(|since| since, |_| now);
        if self.missed_some.load(Ordering::Relaxed) && now < since + micros(HOLD_OFF) {
            return Answered::Recovering;
        }
        self.missed_some.store(false, Ordering::Relaxed);
        self.late_left.store(0, Ordering::Relaxed);
        self.answers_since.store(0, Ordering::Relaxed);
        self.failures.store(0, Ordering::Relaxed);
        self.available.store(true, Ordering::Release);
        Answered::Recovered
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LATER: Tick = Tick(700_000);

    #[test]
    fn three_failures_in_a_row_make_it_unavailable_and_heartbeats_end_that() {
        let server = Availability::new(false);
        assert!(!server.is_available(), "before the first heartbeat");
        assert_eq!(server.beaten(Tick(1), true), Answered::Recovered);
        assert_eq!(server.beaten(Tick(2), true), Answered::Steady);
        let fail = |at| server.failed(Tick(at), Tick(at));
        assert_eq!([fail(2), fail(3)], [false, false]);
        server.answered();
        assert_eq!([fail(4), fail(5), fail(6)], [false, false, true]);
        assert!(!server.is_available());
        assert!(!fail(7), "reported once");
        assert_eq!(server.beaten(Tick(3), true), Answered::Recovered);
        assert!(server.lost() && !server.lost());
    }

    #[test]
    fn a_server_whose_calls_took_too_long_is_asked_again_once_a_heartbeat_takes_less() {
        let server = Availability::new(false);
        assert_eq!(server.beaten(Tick(1), false), Answered::Recovered, "no call took too long");
        (2..5).for_each(|at| _ = server.failed(Tick(at), Tick(at)));
        assert_eq!(server.beaten(Tick(6), false), Answered::TooLate);
        assert_eq!(server.beaten(Tick(7), true), Answered::Recovered);
        (8..11).for_each(|at| _ = server.failed(Tick(at), Tick(at)));
        let late = (0..LATE_MAX).map(|_| server.beaten(Tick(12), false));
        assert!(late.into_iter().all(|beat| beat == Answered::TooLate));
        assert_eq!(server.beaten(Tick(13), false), Answered::Recovered, "not for ever");
        (14..17).for_each(|at| _ = server.failed(Tick(at), Tick(at)));
        server.lost();
        assert_eq!(server.beaten(LATER, false), Answered::Recovering, "over another connection");
    }

    #[test]
    fn calls_that_wait_at_the_same_time_fail_once() {
        let server = Availability::new(false);
        server.beaten(Tick(1), true);
        let mut turned = Vec::new();
        for (sent, noticed) in [(10, 30), (11, 31), (29, 49), (30, 50), (49, 69), (50, 70)] {
            turned.push(server.failed(Tick(sent), Tick(noticed)));
        }
        assert_eq!(turned, [false, false, false, false, false, true]);
    }

    #[test]
    fn a_server_that_missed_something_is_used_after_the_others_had_time_to_replay() {
        for missed in [Availability::lost as fn(&Availability) -> bool, |server| {
            server.decided_alone();
            server.failed(Tick(1), Tick(1))
        }] {
            let server = Availability::new(false);
            missed(&server);
            assert_eq!(server.beaten(Tick(100), true), Answered::Recovering);
            assert_eq!(server.beaten(Tick(600_099), true), Answered::Recovering);
            assert!(!server.is_available());
            assert_eq!(server.beaten(Tick(600_100), true), Answered::Recovered);
            assert!(server.is_available());
        }
        let replacing = Availability::new(true);
        assert_eq!(replacing.beaten(Tick(0), true), Answered::Recovering);
        assert!(!replacing.lost());
        assert_eq!(replacing.beaten(LATER, true), Answered::Recovering, "it begins anew");
    }

    #[test]
    fn one_late_heartbeat_is_no_reason_to_reconnect_and_two_are() {
        let server = Availability::new(false);
        assert!(!server.is_late_once(), "it has not answered yet");
        server.beaten(Tick(1), true);
        assert_eq!([server.is_late_once(), server.is_late_once()], [true, false]);
        server.beaten(Tick(2), true);
        assert!(server.is_late_once());
    }
}
