//! Estimates a server's time from its replies.
//!
//! Invariant: between two replies the server's time is in the estimated range, unless its clock was
//! changed.
//!
//! Not here: what times mean (`limit::shared`).

use std::sync::atomic::{AtomicI64, Ordering};

use weir_common::time::{Moment, Tick, UnixTime};

/// A jump of a server's clock, in microseconds: more than any call takes.
const JUMP: i64 = 1_000_000;

/// A server's time less this machine's ticks, in microseconds: at least, and at most.
#[derive(Debug)]
pub(in super::super) struct StoreTime {
    ahead: [AtomicI64; 2],
}

impl StoreTime {
    /// The time of a server that has not replied yet: this machine's.
    pub(in super::super) fn new(now: Moment) -> Self {
        let ahead = now.unix.0.cast_signed() - now.tick.0.cast_signed();
        Self { ahead: [AtomicI64::new(ahead), AtomicI64::new(ahead)] }
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

    /// Records the time in a reply to a call that was sent and answered at these ticks. True where
    /// the server's clock has jumped ahead.
    pub(in super::super) fn learn(&self, time: UnixTime, (sent, answered): (Tick, Tick)) -> bool {
        let ahead = |tick: Tick| time.0.cast_signed() - tick.0.cast_signed();
        let [earliest, latest] = &self.ahead;
        let jump = ahead(answered) - latest.load(Ordering::Relaxed);
        earliest.store(ahead(answered), Ordering::Relaxed);
        latest.store(ahead(sent), Ordering::Relaxed);
        jump > JUMP
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reply_was_given_between_its_call_and_its_arrival() {
        let time = StoreTime::new(Moment { tick: Tick(100), unix: UnixTime(5_000_100) });
        assert_eq!(time.range(Tick(101)), [Tick(5_000_101); 2]);
        assert!(!time.learn(UnixTime(6_000_000), (Tick(1_000), Tick(1_020))));
        assert_eq!(time.range(Tick(1_020)), [Tick(6_000_000), Tick(6_000_020)]);
        assert_eq!(time.local(Tick(6_000_000)), Tick(1_020));
        assert!(time.learn(UnixTime(8_000_000), (Tick(2_000), Tick(2_020))), "two seconds ahead");
    }
}
