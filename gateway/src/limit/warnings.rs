//! Warnings that a key has nearly used an allowance, on their way from requests to the operator.
//!
//! Invariant: no request waits for a warning, and their number is bounded: what does not fit is
//! dropped.
//!
//! Not here: what becomes of a warning (`operations::warnings`).

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::mpsc;
use weir_common::limit::decision::Usage;
use weir_common::limit::quota::Quota;
use weir_common::time::Tick;

use super::key::Key;

/// Warnings that wait to be passed on, at most.
const WAITING_MAX: usize = 1_024;

/// The time between two warnings about a key, at least, where no period of a calendar ends.
const EVERY_MIN: Duration = Duration::from_secs(60);

/// The whole of an allowance, in the unit of [`is_reached`].
pub const WHOLE: u32 = 1_000_000;

/// A key that has nearly used an allowance.
#[derive(Clone, Debug)]
pub struct Warning {
    /// Its state.
    pub key: Key,
    /// The limit.
    pub limit: Arc<str>,
    /// The tenant or address, as in logs.
    pub name: Arc<str>,
    /// Its usage.
    pub usage: Usage,
    /// Until when the key has no other warning.
    pub quiet_until: Tick,
}

/// The warnings on their way.
#[derive(Debug)]
pub struct Warnings {
    sender: mpsc::Sender<Warning>,
    receiver: Mutex<Option<mpsc::Receiver<Warning>>>,
}

impl Default for Warnings {
    fn default() -> Self {
        let (sender, receiver) = mpsc::channel(WAITING_MAX);
        Self { sender, receiver: Mutex::new(Some(receiver)) }
    }
}

impl Warnings {
    /// Passes a warning on; false where it is dropped.
    pub fn send(&self, warning: Warning) -> bool {
        self.sender.try_send(warning).is_ok()
    }

    /// The other end, once.
    pub fn receiver(&self) -> Option<mpsc::Receiver<Warning>> {
        self.receiver.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

/// Until when a key has no other warning after one at `now`: to the end of its window, or of the
/// calendar's period. Requests in flight have no window, and others may be short.
#[must_use]
pub fn quiet_until(quota: &Quota, now: Tick) -> Tick {
    match quota {
        Quota::Calendar(quota) => quota.period.ends,
        _ => now.plus(quota.window().max(EVERY_MIN)),
    }
}

/// Whether a charge of `cost` has brought a key to `share` of its allowance, in millionths.
#[must_use]
pub fn is_reached(usage: &Usage, cost: u32, share: u32) -> bool {
    let enough = (u64::from(usage.limit) * u64::from(share)).div_ceil(WHOLE.into());
    let used = u64::from(usage.limit.saturating_sub(usage.remaining));
    used >= enough && used.saturating_sub(cost.into()) < enough
}

#[cfg(test)]
mod tests {
    use weir_common::limit::calendar::{Calendar, CalendarQuota, CalendarUnit, parse_zone};
    use weir_common::limit::concurrency::ConcurrencyQuota;
    use weir_common::limit::rolling::RollingQuota;
    use weir_common::limit::token_bucket::{BucketQuota, Rate};
    use weir_common::time::{Moment, UnixTime};

    use super::*;

    #[test]
    fn the_charge_that_reaches_the_share_warns_and_no_other() {
        let warns = |limit, remaining, cost, share| {
            is_reached(&Usage { limit, remaining, full_at: Tick(0) }, cost, share)
        };
        let at: Vec<u32> = (0..=10).filter(|left| warns(10, *left, 1, 800_000)).collect();
        assert_eq!(at, [2], "the eighth of ten");
        assert!(warns(10, 0, 5, 800_000) && !warns(10, 0, 2, 800_000), "five at once");
        assert!(warns(60, 11, 1, 801_000) && !warns(60, 12, 1, 801_000), "rounded up");
        assert!(warns(10, 0, 1, WHOLE) && !warns(10, 1, 1, WHOLE));
    }

    #[test]
    fn a_warning_stands_for_a_window_or_a_minute_and_a_calendar_warns_in_each_period() {
        let second = |seconds: u64| seconds * 1_000_000;
        let quiet = |quota: Quota| quiet_until(&quota, Tick(second(5)));
        let rolling = |seconds| {
            Quota::Rolling(RollingQuota { requests: 9, window: Duration::from_secs(seconds) })
        };
        assert_eq!(quiet(rolling(120)), Tick(second(125)));
        assert_eq!(quiet(rolling(1)), Tick(second(65)));
        let bucket = BucketQuota { rate: Rate::parse("100/s").unwrap(), burst: 10 };
        assert_eq!(quiet(Quota::Bucket(bucket)), Tick(second(65)));
        assert_eq!(quiet(Quota::Concurrency(ConcurrencyQuota { requests: 9 })), Tick(second(65)));

        // Three seconds before a month ends in UTC.
        let calendar = Calendar { unit: CalendarUnit::Month, zone: parse_zone("UTC").unwrap() };
        let now = Moment { tick: Tick(second(5)), unix: UnixTime(second(1_782_863_997)) };
        let quota = Quota::Calendar(CalendarQuota::new(9, calendar)).at(now);
        assert_eq!(quiet(quota), Tick(second(8)));
    }

    #[test]
    fn what_does_not_fit_is_dropped() {
        let warnings = Warnings::default();
        let warning = Warning {
            key: Key::from_bits(1),
            limit: "w".into(),
            name: "ws".into(),
            usage: Usage { limit: 10, remaining: 2, full_at: Tick(0) },
            quiet_until: Tick(0),
        };
        let sent = (0..2 * WAITING_MAX).filter(|_| warnings.send(warning.clone())).count();
        assert_eq!(sent, WAITING_MAX);
    }
}
