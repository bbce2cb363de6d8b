//! The rate limit, and the starts that count in it, those of earlier processes included. (core)
//!
//! Not here: when a start is admitted (`pick`), for how long a start counts (`starts`).

use std::time::Duration;

use weir_common::limit::rolling::{EXACT_MAX, RollingQuota};
use weir_common::time::Tick;

use crate::domain::attempt::EarlierStart;
use crate::domain::id::EndpointId;
use crate::scheduler::starts::Starts;
use crate::scheduler::{Scheduler, most};

/// The rate limit, and the limits of attempts in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Attempts that may start per endpoint within a window.
    pub quota: RollingQuota,
    /// Attempts of one workspace that may start per host within a window.
    pub per_host: RollingQuota,
    /// Attempts in flight per endpoint.
    pub per_endpoint: usize,
    /// Attempts in flight, in total.
    pub total: usize,
}

/// Starts that an earlier process may have made without a record: how many on any endpoint, and
/// their latest possible time.
#[derive(Debug, Default)]
pub(super) struct Unrecorded(Vec<(usize, Tick)>);

impl Unrecorded {
    /// Those of a receiver without recorded ones.
    pub(super) fn starts(&self, quota: RollingQuota) -> Starts {
        let mut starts = Starts::default();
        self.0.iter().for_each(|(count, at)| count_all(&mut starts, quota, *count, *at));
        starts
    }

    /// Drops what has left the longest window.
    pub(super) fn forget(&mut self, window: Duration, now: Tick) {
        self.0.retain(|(_, at)| now.since(*at) < window);
    }
}

impl Scheduler {
    /// Applies changed limits.
    pub(super) fn apply_limits(&mut self, now: Tick) {
        let limits = self.policies.limits;
        self.slots.set_most(most(limits, self.cached_bytes_max));
        let endpoints: Vec<EndpointId> = self.endpoints.keys().copied().collect();
        for id in endpoints {
            if let Some(endpoint) = self.endpoints.get_mut(&id) {
                // An endpoint that times out keeps its low limit, which grows with each response.
                endpoint.limit = endpoint.limit.min(limits.per_endpoint);
                endpoint.starts.fit(limits.quota, now);
            }
            self.put(id, now);
        }
        self.paces.fit(&limits, now);
    }

    /// Counts an attempt that was sent before this process started.
    pub(super) fn seed(&mut self, start: &EarlierStart, sent: Tick) {
        let quota = self.policies.limits.quota;
        self.endpoint(start.endpoint).starts.count(quota, sent);
        self.paces.seed(start, &self.policies.limits, &self.unrecorded, sent);
    }

    /// Counts `count` starts at `at` on every endpoint: an earlier process may have made them
    /// without a record. Called in the order of times with [`Self::seed`]: in a log nothing counts
    /// from before its newest start.
    pub(super) fn seed_unrecorded(&mut self, count: usize, at: Tick) {
        self.unrecorded.0.push((count, at));
        self.paces.seed_unrecorded(count, at);
        let quota = self.policies.limits.quota;
        for endpoint in self.endpoints.values_mut() {
            count_all(&mut endpoint.starts, quota, count, at);
        }
    }
}

/// Counts `count` more starts at `at`, or as many as the largest limit counts.
fn count_all(starts: &mut Starts, quota: RollingQuota, count: usize, at: Tick) {
    (0..count.min(EXACT_MAX as usize)).for_each(|_| starts.count(quota, at));
}
