//! Estimates when the last of some queued deliveries is sent. (core)
//!
//! # Invariants
//!
//! 1. An estimate is a lower bound: no receiver, however fast, gets the last one sooner, because no
//!    limit admits more than its quota in any window.
//! 2. If one limit alone holds deliveries back, nothing else uses it, and receivers answer at once,
//!    the bound is met.
//!
//! Not here: how many deliveries are queued (`store`), the rate limit itself (`scheduler`).

use std::collections::BTreeMap;
use std::time::Duration;

use weir_common::limit::rolling::RollingQuota;

use crate::domain::id::{EndpointId, WebhookId};

/// What a rate limit counts starts of.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum LimitScope {
    /// An endpoint: all webhooks with its URL.
    Endpoint(EndpointId),
    /// A webhook, as its owner set.
    Webhook(WebhookId),
    /// A workspace at one host.
    Host(String),
}

/// A rate limit of starts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StartLimit {
    /// What it counts.
    pub scope: LimitScope,
    /// How many within which window.
    pub quota: RollingQuota,
}

/// Deliveries that wait for one webhook, up to and including the last one that is meant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueueLength {
    /// The limits that each of its starts counts in, its endpoint's first.
    pub limits: Vec<StartLimit>,
    /// How many are to be sent.
    pub deliveries: u64,
    /// Until the last one is due.
    pub due_in: Duration,
    /// Until the limits admit its next start.
    pub free_in: Duration,
    /// Whether the webhook is paused.
    pub paused: bool,
}

/// When the last delivery is sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Estimate {
    /// Nothing waits.
    Empty,
    /// After this time, at the earliest; with the limit that takes longest, if any takes a window.
    Within(Duration, Option<StartLimit>),
    /// Not before these webhooks are reactivated.
    Paused {
        /// How many have deliveries and are paused.
        webhooks: usize,
    },
}

/// When the last delivery of all queues is sent, if every receiver answers at once.
#[must_use]
pub fn estimate(queues: &[QueueLength]) -> Estimate {
    let queues = queues.iter().filter(|queue| queue.deliveries > 0);
    let webhooks = queues.clone().filter(|queue| queue.paused).count();
    if webhooks > 0 {
        return Estimate::Paused { webhooks };
    }
    let mut shares: BTreeMap<&LimitScope, Share> = BTreeMap::new();
    for queue in queues.clone() {
        for StartLimit { scope, quota } in &queue.limits {
            let none = Share { quota: *quota, deliveries: 0, free_in: queue.free_in };
            let share = shares.entry(scope).or_insert(none);
            share.deliveries = share.deliveries.saturating_add(queue.deliveries);
            share.free_in = share.free_in.min(queue.free_in);
        }
    }
    // The first of equals, which an endpoint's limit is.
    let slowest = shares.iter().rev().max_by_key(|(_, share)| share.last_in());
    let Some((scope, share)) = slowest else { return Estimate::Empty };
    let each = queues.map(|queue| queue.free_in.max(queue.due_in)).max();
    let limit = || StartLimit { scope: (*scope).clone(), quota: share.quota };
    let slowest = (share.windows() > 0).then(limit);
    Estimate::Within(share.last_in().max(each.unwrap_or_default()), slowest)
}

/// The deliveries that count in one limit.
struct Share {
    quota: RollingQuota,
    deliveries: u64,
    /// Until the first of them may start.
    free_in: Duration,
}

impl Share {
    /// Until the last may start: as many as the quota start at once, as many again each time that a
    /// window has passed.
    fn last_in(&self) -> Duration {
        self.free_in.saturating_add(self.quota.window.saturating_mul(self.windows()))
    }

    /// Windows between the first start and the last.
    fn windows(&self) -> u32 {
        let windows = self.deliveries.saturating_sub(1) / u64::from(self.quota.requests.max(1));
        u32::try_from(windows).unwrap_or(u32::MAX)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const QUOTA: RollingQuota = RollingQuota { requests: 100, window: Duration::from_secs(60) };

    fn endpoint(id: i64, quota: RollingQuota) -> StartLimit {
        StartLimit { scope: LimitScope::Endpoint(EndpointId(id)), quota }
    }

    fn queue(id: i64, deliveries: u64) -> QueueLength {
        QueueLength {
            limits: vec![endpoint(id, QUOTA)],
            deliveries,
            due_in: Duration::ZERO,
            free_in: Duration::ZERO,
            paused: false,
        }
    }

    fn minutes(minutes: u64) -> Duration {
        Duration::from_secs(60 * minutes)
    }

    /// How long it takes; `None` without a time.
    fn within(queues: &[QueueLength]) -> Option<Duration> {
        if let Estimate::Within(within, _) = estimate(queues) { Some(within) } else { None }
    }

    #[test]
    fn a_queue_takes_as_many_windows_as_its_quota_needs() {
        for (deliveries, took) in [(1, 0), (100, 0), (101, 1), (200, 1), (201, 2), (1_204, 12)] {
            assert_eq!(within(&[queue(1, deliveries)]), Some(minutes(took)), "{deliveries}");
        }
        assert_eq!(within(&[queue(1, u64::MAX)]), Some(minutes(u32::MAX.into())));
    }

    #[test]
    fn endpoints_are_called_side_by_side_and_webhooks_of_one_share_its_pace() {
        assert_eq!(within(&[queue(1, 150), queue(2, 350)]), Some(minutes(3)));
        assert_eq!(within(&[queue(1, 150), queue(1, 350)]), Some(minutes(4)));
    }

    #[test]
    fn of_several_limits_the_slowest_counts_and_is_named() {
        let limited = |id: i64, deliveries, requests| {
            let mut queue = queue(id, deliveries);
            let host = RollingQuota { requests: 200, ..QUOTA };
            let own = RollingQuota { requests, ..QUOTA };
            let scope = LimitScope::Host("hooks.example".into());
            queue.limits.push(StartLimit { scope, quota: host });
            let scope = LimitScope::Webhook(WebhookId(id));
            queue.limits.push(StartLimit { scope, quota: own });
            queue
        };
        let named = |queues: &[QueueLength]| match estimate(queues) {
            Estimate::Within(within, limit) => (within, limit.map(|limit| limit.scope)),
            other => panic!("{other:?}"),
        };
        let one = [limited(1, 90, 10)];
        assert_eq!(named(&one), (minutes(8), Some(LimitScope::Webhook(WebhookId(1)))));
        let three = [limited(1, 90, 50), limited(2, 300, 500), limited(3, 300, 500)];
        let host = LimitScope::Host("hooks.example".into());
        assert_eq!(named(&three), (minutes(3), Some(host)));
        let alone = [limited(1, 90, 100)];
        assert_eq!(named(&alone), (minutes(0), None), "no limit takes a window");
    }

    #[test]
    fn a_full_window_and_a_later_due_time_delay_the_last() {
        let blocked = QueueLength { free_in: minutes(1), ..queue(1, 250) };
        assert_eq!(within(std::slice::from_ref(&blocked)), Some(minutes(3)));
        let later = QueueLength { due_in: minutes(240), ..blocked.clone() };
        assert_eq!(within(&[later]), Some(minutes(240)));
        // Another webhook of the endpoint need not wait for it.
        let alone = QueueLength { deliveries: 1, ..blocked };
        assert_eq!(within(&[alone, queue(1, 149)]), Some(minutes(1)));
    }

    #[test]
    fn nothing_and_a_pause_have_no_time() {
        assert_eq!(estimate(&[]), Estimate::Empty);
        assert_eq!(estimate(&[queue(1, 0)]), Estimate::Empty);
        let paused = |deliveries| QueueLength { paused: true, ..queue(2, deliveries) };
        assert_eq!(within(&[queue(1, 9), paused(0)]), Some(minutes(0)));
        let both = [queue(1, 9), paused(1), paused(7)];
        assert_eq!(estimate(&both), Estimate::Paused { webhooks: 2 });
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
            let part = |count| QueueLength { limits: vec![endpoint(1, quota)], ..queue(1, count) };
            let parts: Vec<QueueLength> = queues.iter().copied().map(part).collect();
            let all = queues.iter().sum();
            let played = || Duration::from_secs(played(Vec::new(), all, quota));
            prop_assert_eq!(within(&parts), (all > 0).then(played));
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
            let limits = vec![endpoint(1, quota)];
            let least = within(&[QueueLength { limits, free_in, ..queue(1, deliveries) }]).unwrap();
            let last = played(earlier, deliveries, quota);
            prop_assert!(least.as_secs() <= last, "{least:?} and {last}");
            prop_assert!(last < least.as_secs() + window, "{least:?} and {last}");
        }

        #[test]
        fn under_several_limits_it_is_a_lower_bound(
            queues in prop::collection::vec((1..60_u64, 0..2_usize, 0..2_usize, 0..90_u64), 1..5),
            requests in prop::collection::vec(1..20_u32, 4),
        ) {
            // Two endpoints at two hosts, which need not be theirs: limits may overlap in any way.
            let limit = |nth: usize| {
                let quota = RollingQuota { requests: requests[nth], ..QUOTA };
                let scope = match nth {
                    0 | 1 => LimitScope::Endpoint(EndpointId(nth as i64)),
                    _ => LimitScope::Host(nth.to_string()),
                };
                StartLimit { scope, quota }
            };
            let parts = queues.iter().map(|&(deliveries, endpoint, host, free_in)| QueueLength {
                limits: vec![limit(endpoint), limit(2 + host)],
                free_in: Duration::from_secs(free_in),
                ..queue(1, deliveries)
            });
            let least = within(&parts.collect::<Vec<_>>()).unwrap().as_secs();
            let mut left: Vec<u64> = queues.iter().map(|one| one.0).collect();
            let mut starts: Vec<Vec<u64>> = vec![Vec::new(); 4];
            let mut second = 0;
            while left.iter().any(|left| *left > 0) {
                let mut any = false;
                for (nth, &(_, endpoint, host, free_in)) in queues.iter().enumerate() {
                    let counts_in = [endpoint, 2 + host];
                    let admits = counts_in.map(|limit| {
                        let recent = starts[limit].iter().filter(|at| **at + 60 > second).count();
                        recent < requests[limit] as usize
                    });
                    if left[nth] > 0 && second >= free_in && admits == [true, true] {
                        left[nth] -= 1;
                        counts_in.into_iter().for_each(|limit| starts[limit].push(second));
                        any = true;
                    }
                }
                second += u64::from(!any);
            }
            prop_assert!(least <= second, "{} and {}", least, second);
        }
    }
}
