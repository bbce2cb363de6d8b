//! Estimates a server's time from its replies.
//!
//! Invariant: between two replies the server's time is in the estimated range, unless its clock was
//! changed.
//!
//! Not here: what times mean (`limit::shared`).

use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::Duration;

use weir_common::time::{Moment, Tick, UnixTime, micros};

/// A step of a server's clock: more than any call takes.
pub(in super::super) const STEP: Duration = Duration::from_secs(1);

/// A server's time less this machine's ticks, in microseconds: at least, and at most.
#[derive(Debug)]
pub(in super::super) struct StoreTime {
    ahead: [AtomicI64; 2],
    /// Whether it has not replied yet.
    is_guess: AtomicBool,
}

impl StoreTime {
    /// The time of a server that has not replied yet: this machine's.
    pub(in super::super) fn new(now: Moment) -> Self {
        let ahead = now.unix.0.cast_signed() - now.tick.0.cast_signed();
        let ahead = [AtomicI64::new(ahead), AtomicI64::new(ahead)];
        Self { ahead, is_guess: AtomicBool::new(true) }
    }

    /// The time of a server that has not replied yet, as it was taken to be at a tick.
    pub(in super::super) fn guessed(&self, now: Tick) -> Option<Tick> {
        let [guessed, _] = self.range(now);
        self.is_guess.load(Ordering::Relaxed).then_some(guessed)
    }

    /// The earliest and the latest time that the server can have at a tick of this machine.
    pub(in super::super) fn range(&self, now: Tick) -> [Tick; 2] {
        self.ahead
            .each_ref()
            .map(|ahead| Tick(now.0.saturating_add_signed(ahead.load(Ordering::Relaxed))))
    }

    /// The latest tick of this machine at which the server can have reached a time of its own.
    pub(in super::super) fn local(&self, time: Tick) -> Tick {
        let [earliest, _] = &self.ahead;
        Tick(time.0.saturating_add_signed(-earliest.load(Ordering::Relaxed)))
    }

    /// Records the time in a reply to a call that was sent and answered at these ticks. Returns by
    /// how many microseconds at least the server's clock was set ahead, or back if that is below 0.
    pub(in super::super) fn learn(
        &self,
        time: UnixTime,
        (sent, answered): (Tick, Tick),
    ) -> Option<i64> {
        let ahead = |tick: Tick| time.0.cast_signed() - tick.0.cast_signed();
        let [earliest, latest] = &self.ahead;
        self.is_guess.store(false, Ordering::Relaxed);
        let set_ahead = ahead(answered) - latest.swap(ahead(sent), Ordering::Relaxed);
        let set_back = ahead(sent) - earliest.swap(ahead(answered), Ordering::Relaxed);
        let step = if set_ahead > 0 { set_ahead } else { set_back.min(0) };
        (step.unsigned_abs() > micros(STEP)).then_some(step)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reply_was_given_between_its_call_and_its_arrival() {
        let time = StoreTime::new(Moment { tick: Tick(100), unix: UnixTime(5_000_100) });
        assert_eq!(time.range(Tick(101)), [Tick(5_000_101); 2]);
        assert_eq!(time.learn(UnixTime(6_000_000), (Tick(1_000), Tick(1_020))), None);
        assert_eq!(time.range(Tick(1_020)), [Tick(6_000_000), Tick(6_000_020)]);
        assert_eq!(time.local(Tick(6_000_000)), Tick(1_020));
        let ahead = time.learn(UnixTime(8_001_000), (Tick(2_000), Tick(2_020)));
        assert_eq!(ahead, Some(1_999_980), "two seconds ahead, less what calls have taken");
        let back = time.learn(UnixTime(5_002_000), (Tick(3_000), Tick(3_020)));
        assert_eq!(back, Some(-2_999_980), "three seconds back");
        assert_eq!(time.learn(UnixTime(6_001_000), (Tick(4_000), Tick(4_020))), None);
    }
}
