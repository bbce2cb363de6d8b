//! Estimates when the last of some queued deliveries is sent. (core)
//!
//! # Invariants
//!
//! 1. An estimate is a lower bound: no receiver, however fast, gets the last one sooner, because an
//!    endpoint gets at most the quota in any window.
//! 2. If nothing else uses an endpoint, and it answers at once, the bound is met.
//!
//! Not here: how many deliveries are queued (`store`), the rate limit itself (`scheduler`).

use std::collections::BTreeMap;
use std::time::Duration;

use weir_common::limit::rolling::RollingQuota;

use crate::domain::id::EndpointId;

/// Deliveries that wait for one webhook, up to and including the last one that is meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueLength {
    /// The endpoint, whose rate limit all webhooks with its URL share.
    pub endpoint: EndpointId,
    /// How many are to be sent.
    pub deliveries: u64,
    /// Until the last one is due.
    pub due_in: Duration,
    /// Until the rate limit admits the next start.
    pub free_in: Duration,
    /// Whether the webhook is paused.
    pub paused: bool,
}

/// When the last delivery is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Estimate {
    /// Nothing waits.
    Empty,
    /// After this time, at the earliest.
    Within(Duration),
    /// Not before these webhooks are reactivated.
    Paused {
        /// How many have deliveries and are paused.
        webhooks: usize,
    },
}

/// When the last delivery of all queues is sent, if every receiver answers at once.
#[must_use]
pub fn estimate(queues: &[QueueLength], quota: RollingQuota) -> Estimate {
    let queues = queues.iter().filter(|queue| queue.deliveries > 0);
    let webhooks = queues.clone().filter(|queue| queue.paused).count();
    if webhooks > 0 {
        return Estimate::Paused { webhooks };
    }
    let mut endpoints: BTreeMap<EndpointId, QueueLength> = BTreeMap::new();
    for queue in queues {
        let none = QueueLength { deliveries: 0, ..*queue };
        let all = endpoints.entry(queue.endpoint).or_insert(none);
        all.deliveries = all.deliveries.saturating_add(queue.deliveries);
        all.due_in = all.due_in.max(queue.due_in);
        all.free_in = all.free_in.max(queue.free_in);
    }
    let last = endpoints.values().map(|all| {
        // As many as the quota start at once, as many again each time that a window has passed.
        let windows = all.deliveries.saturating_sub(1) / u64::from(quota.requests.max(1));
        let windows = u32::try_from(windows).unwrap_or(u32::MAX);
        all.free_in.saturating_add(quota.window.saturating_mul(windows)).max(all.due_in)
    });
    last.max().map_or(Estimate::Empty, Estimate::Within)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const QUOTA: RollingQuota = RollingQuota { requests: 100, window: Duration::from_secs(60) };

    fn queue(endpoint: i64, deliveries: u64) -> QueueLength {
        QueueLength {
            endpoint: EndpointId(endpoint),
            deliveries,
            due_in: Duration::ZERO,
            free_in: Duration::ZERO,
            paused: false,
        }
    }

    fn within(minutes: u64) -> Estimate {
        Estimate::Within(Duration::from_secs(60 * minutes))
    }

    #[test]
    fn a_queue_takes_as_many_windows_as_its_quota_needs() {
        for (deliveries, minutes) in [(1, 0), (100, 0), (101, 1), (200, 1), (201, 2), (1_204, 12)] {
            assert_eq!(estimate(&[queue(1, deliveries)], QUOTA), within(minutes), "{deliveries}");
        }
        assert_eq!(estimate(&[queue(1, u64::MAX)], QUOTA), {
            Estimate::Within(Duration::from_secs(60 * u64::from(u32::MAX)))
        });
    }

    #[test]
    fn endpoints_are_called_side_by_side_and_webhooks_of_one_share_its_pace() {
        assert_eq!(estimate(&[queue(1, 150), queue(2, 350)], QUOTA), within(3));
        assert_eq!(estimate(&[queue(1, 150), queue(1, 350)], QUOTA), within(4));
    }

    #[test]
    fn a_full_window_and_a_later_due_time_delay_the_last() {
        let minutes = |minutes: u64| Duration::from_secs(60 * minutes);
        let blocked = QueueLength { free_in: minutes(1), ..queue(1, 250) };
        assert_eq!(estimate(&[blocked], QUOTA), within(3));
        let later = QueueLength { due_in: minutes(240), ..blocked };
        assert_eq!(estimate(&[later], QUOTA), within(240));
    }

    #[test]
    fn nothing_and_a_pause_have_no_time() {
        assert_eq!(estimate(&[], QUOTA), Estimate::Empty);
        assert_eq!(estimate(&[queue(1, 0)], QUOTA), Estimate::Empty);
        let paused = |deliveries| QueueLength { paused: true, ..queue(2, deliveries) };
        assert_eq!(estimate(&[queue(1, 9), paused(0)], QUOTA), within(0));
        let both = [queue(1, 9), paused(1), paused(7)];
        assert_eq!(estimate(&both, QUOTA), Estimate::Paused { webhooks: 2 });
    }

    /// Sends one delivery after another as soon as the window admits it, second by second; returns
    /// the second of the last.
    fn played(mut starts: Vec<u64>, deliveries: u64, quota: RollingQuota) -> u64 {
        let window = quota.window.as_secs();
        let (mut second, mut left) = (0, deliveries);
        loop {
            let used = |second: u64, starts: &[u64]| {
                // Starts are shifted by a window, so that earlier ones are no negative numbers.
                starts.iter().filter(|start| **start > second).count() as u64
            };
            while left > 0 && used(second, &starts) < u64::from(quota.requests) {
                starts.push(second + window);
                left -= 1;
            }
            if left == 0 {
                return second;
            }
            second += 1;
        }
    }

    proptest! {
        #[test]
        fn an_unused_endpoint_is_done_exactly_then(
            queues in prop::collection::vec(0..60_u64, 1..4),
            requests in 1..20_u32,
            window in 1..90_u64,
        ) {
            let quota = RollingQuota { requests, window: Duration::from_secs(window) };
            let parts: Vec<QueueLength> = queues.iter().map(|count| queue(1, *count)).collect();
            let all = queues.iter().sum();
            let expected = match all {
                0 => Estimate::Empty,
                _ => Estimate::Within(Duration::from_secs(played(Vec::new(), all, quota))),
            };
            prop_assert_eq!(estimate(&parts, quota), expected);
        }

        #[test]
        fn with_earlier_starts_it_is_a_lower_bound_and_at_most_a_window_early(
            earlier in prop::collection::vec(1..60_u64, 0..20),
            deliveries in 1..80_u64,
            requests in 1..20_u32,
        ) {
            let window = 60;
            let quota = RollingQuota { requests, window: Duration::from_secs(window) };
            // The ends of the windows of earlier starts; no more of them than the quota.
            let mut earlier: Vec<u64> = earlier.into_iter().take(requests as usize).collect();
            earlier.sort_unstable();
            let is_full = earlier.len() == requests as usize;
            let free_in = Duration::from_secs(if is_full { earlier[0] } else { 0 });
            let one = QueueLength { free_in, ..queue(1, deliveries) };
            let Estimate::Within(least) = estimate(&[one], quota) else { panic!("some wait") };
            let last = played(earlier, deliveries, quota);
            prop_assert!(least.as_secs() <= last, "{least:?} and {last}");
            prop_assert!(last < least.as_secs() + window, "{least:?} and {last}");
        }
    }
}
