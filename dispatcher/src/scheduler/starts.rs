//! The starts that count in one rate limit. (core)
//!
//! A receiver sees a request when it is sent: after the lookup, the connection and the handshake,
//! which take longer for one attempt than for another. Until an attempt is known to be sent, its
//! receiver may see it at any time. That is known at its end, or where it may last longer than its
//! window, once its request was sent.
//!
//! # Invariants
//!
//! 1. An attempt that may not be sent yet counts, however long ago it started; one that was sent
//!    counts for a window after that, and one that ended unsent counts no longer.
//! 2. So no receiver sees more requests in a window than the limit admits: of any that it sees
//!    within one, the last to start found all others counted.
//!
//! Not here: which limits there are (`pace`, `rate_limit`), when a request was sent (`Trace`).

use weir_common::limit::decision::Decision;
use weir_common::limit::rolling::{Log, RollingQuota};
use weir_common::time::Tick;

/// The starts that count in one rate limit.
#[derive(Clone, Debug, Default)]
pub(super) struct Starts {
    /// Each attempt at its start, and once it is known to be sent, at the time of its request.
    log: Log,
    /// The starts of attempts that may not be sent yet, in order.
    unsent: Vec<Tick>,
}

/// When an attempt started, and when its request was sent.
#[derive(Clone, Copy, Debug)]
pub(super) struct SentAttempt {
    pub(super) started: Tick,
    /// The latest possible time.
    pub(super) sent: Tick,
}

impl Starts {
    /// When the quota admits a start; `now` if it does now. An attempt that is sent may admit one
    /// earlier.
    pub(super) fn free_at(&self, quota: RollingQuota, now: Tick) -> Tick {
        let beyond = self.unsent.partition_point(|start| start.plus(quota.window) <= now);
        let cost = u32::try_from(beyond).unwrap_or(u32::MAX).saturating_add(1);
        match self.log.decide(quota, cost, now) {
            Decision::Admit => now,
            Decision::TooLarge => now.plus(quota.window),
            Decision::Refuse { retry_at } => retry_at,
        }
    }

    /// Counts an attempt that starts now.
    pub(super) fn begin(&mut self, quota: RollingQuota, now: Tick) {
        self.count(quota, now);
        self.unsent.push(now);
    }

    /// Counts an attempt whose request was sent at this time.
    pub(super) fn count(&mut self, quota: RollingQuota, sent: Tick) {
        let _ = self.log.charge(quota, 1, sent);
    }

    /// Counts an attempt, if it does count here, at the time of its request from now on.
    pub(super) fn sent(&mut self, quota: RollingQuota, attempt: SentAttempt, now: Tick) {
        let SentAttempt { started, sent } = attempt;
        if !self.take_unsent(started) {
            return;
        }
        if started.plus(quota.window) > now {
            self.log.postpone(started, sent);
        } else if sent.plus(quota.window) > now {
            // The start has left the window, the request has not.
            self.count(quota, sent);
        }
    }

    /// Counts an attempt that started at this time no longer: it has ended, and sent no request.
    pub(super) fn take_back(&mut self, started: Tick) {
        if self.take_unsent(started) {
            self.log.remove(started);
        }
    }

    /// Removes an attempt from those that may not be sent yet; false if it is none of them.
    fn take_unsent(&mut self, started: Tick) -> bool {
        let nth = self.unsent.partition_point(|start| *start < started);
        let found = self.unsent.get(nth) == Some(&started);
        if found {
            self.unsent.remove(nth);
        }
        found
    }

    /// Applies a changed window.
    pub(super) fn fit(&mut self, quota: RollingQuota, now: Tick) {
        self.log.fit(quota, now);
    }

    /// Whether any attempt counts.
    pub(super) fn count_any(&self, quota: RollingQuota, now: Tick) -> bool {
        !self.unsent.is_empty() || self.log.full_at(quota) > now
    }

    /// Counts the attempts of `earlier` as well; those that may not be sent yet, until
    /// [`Self::sent`].
    pub(super) fn inherit(&mut self, earlier: &Self, quota: RollingQuota) {
        earlier.log.times().for_each(|time| self.count(quota, time));
        self.unsent.extend(&earlier.unsent);
        self.unsent.sort_unstable();
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn an_attempt_whose_end_is_found_late_counts_from_its_request_on() {
        let window = Duration::from_secs(60);
        let quota = RollingQuota { requests: 2, window };
        let at = |seconds: u64| Tick(seconds * 1_000_000);
        let mut starts = Starts::default();
        starts.begin(quota, at(0));
        starts.begin(quota, at(1));
        for (started, sent) in [(at(1), at(70)), (at(0), at(2))] {
            starts.sent(quota, SentAttempt { started, sent }, at(72));
        }
        assert_eq!(starts.free_at(quota, at(72)), at(72), "one of two has left the window");
        starts.begin(quota, at(72));
        assert_eq!(starts.free_at(quota, at(72)), at(130));
    }

    #[test]
    fn an_attempt_that_was_sent_counts_for_a_window_also_while_it_is_in_flight() {
        let quota = RollingQuota { requests: 2, window: Duration::from_secs(1) };
        let at = |ms: u64| Tick(ms * 1_000);
        let mut starts = Starts::default();
        starts.begin(quota, at(0));
        starts.begin(quota, at(0));
        assert_eq!(starts.free_at(quota, at(900)), at(1_000));
        assert_eq!(starts.free_at(quota, at(1_000)), at(2_000), "either may be sent now");
        starts.sent(quota, SentAttempt { started: at(0), sent: at(300) }, at(300));
        assert_eq!(starts.free_at(quota, at(1_000)), at(1_300));
        assert_eq!(starts.free_at(quota, at(1_300)), at(1_300), "one may still be sent");
        starts.begin(quota, at(1_300));
        assert_eq!(starts.free_at(quota, at(2_900)), at(3_900));
        // The other one took two seconds to connect.
        starts.sent(quota, SentAttempt { started: at(0), sent: at(2_000) }, at(2_900));
        assert_eq!(starts.free_at(quota, at(2_900)), at(3_000));
    }

    impl Starts {
        /// Counts the oldest attempt that may not be sent yet as sent at its start.
        pub(crate) fn end_oldest(&mut self, quota: RollingQuota, now: Tick) {
            if let Some(started) = self.unsent.first().copied() {
                self.sent(quota, SentAttempt { started, sent: started }, now);
            }
        }
    }
}
