//! The rate limit, and the starts that count in it, those of earlier processes included. (core)
//!
//! Not here: when a start is admitted (`pick`), how starts are counted (`weir_common::limit`).

use std::time::Duration;

use weir_common::limit::rolling::{EXACT_MAX, Log, RollingQuota};
use weir_common::time::Tick;

use crate::domain::attempt::EarlierStart;
use crate::domain::id::EndpointId;
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
    /// The log of a receiver without recorded starts.
    pub(super) fn log(&self, quota: RollingQuota) -> Log {
        self.0.iter().fold(Log::default(), |log, (count, at)| charge_all(log, quota, *count, *at))
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

    /// Counts an attempt that started before this process did.
    pub(super) fn seed(&mut self, start: &EarlierStart, started: Tick) {
        let quota = self.policies.limits.quota;
        let _ = self.endpoint(start.endpoint).starts.charge(quota, 1, started);
        self.paces.seed(start, &self.policies.limits, started);
    }

    /// Counts `count` starts at `at` on every endpoint: an earlier process may have made them
    /// without a record. Called after [`Self::seed`], the oldest first.
    pub(super) fn seed_unrecorded(&mut self, count: usize, at: Tick) {
        self.unrecorded.0.push((count, at));
        self.paces.seed_unrecorded(count, at);
        let quota = self.policies.limits.quota;
        for endpoint in self.endpoints.values_mut() {
            endpoint.starts = charge_all(std::mem::take(&mut endpoint.starts), quota, count, at);
        }
    }
}

/// The log with `count` more starts at `at`, or as many as the largest limit counts.
fn charge_all(mut starts: Log, quota: RollingQuota, count: usize, at: Tick) -> Log {
    for _ in 0..count.min(EXACT_MAX as usize) {
        let _ = starts.charge(quota, 1, at);
    }
    starts
}
