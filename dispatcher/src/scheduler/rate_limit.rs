//! How many attempts may start, and which earlier starts count: also those of other processes.
//!
//! Not here: when a start is admitted (`pick`), how starts are counted (`weir_common::limit`).

use weir_common::limit::rolling::{Log, Quota};
use weir_common::time::Tick;

use crate::domain::id::EndpointId;
use crate::scheduler::{Scheduler, most};

/// How fast attempts may start, and how many may be under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Attempts that may start on one endpoint within a window.
    pub quota: Quota,
    /// Attempts under way on one endpoint.
    pub per_endpoint: usize,
    /// Attempts under way, all together.
    pub total: usize,
}

impl Scheduler {
    /// Goes on by other limits.
    pub(super) fn apply_limits(&mut self, now: Tick) {
        let limits = self.policies.limits;
        self.slots.set_most(most(limits, self.held_bytes_max));
        let endpoints: Vec<EndpointId> = self.endpoints.keys().copied().collect();
        for id in endpoints {
            if let Some(endpoint) = self.endpoints.get_mut(&id) {
                // One that times out keeps the little that it has; it grows with what is answered.
                endpoint.limit = endpoint.limit.min(limits.per_endpoint);
                endpoint.starts.fit(limits.quota, now);
            }
            self.put(id, now);
        }
    }

    /// Counts an attempt that started before this process did.
    pub(super) fn seed(&mut self, endpoint: EndpointId, started: Tick) {
        let quota = self.policies.limits.quota;
        let _ = self.endpoint(endpoint).starts.charge(quota, 1, started);
    }

    /// Counts, on every endpoint, attempts that may have started before `at`, before this process
    /// did, and left no trace: which webhooks led where by then is not known any more. To be told
    /// last, and of the oldest first.
    pub(super) fn suspect(&mut self, count: usize, at: Tick) {
        self.unseen.push((count, at));
        let quota = self.policies.limits.quota;
        for endpoint in self.endpoints.values_mut() {
            endpoint.starts = suspicious(std::mem::take(&mut endpoint.starts), quota, count, at);
        }
    }
}

/// The log with so many more starts, as far as they change anything.
pub(super) fn suspicious(mut starts: Log, quota: Quota, count: usize, at: Tick) -> Log {
    for _ in 0..count {
        let _ = starts.charge(quota, 1, at);
    }
    starts
}
