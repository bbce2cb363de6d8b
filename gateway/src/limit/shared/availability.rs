//! Decides whether requests ask the shared store, or their own gateway.
//!
//! After some failures in a row no request waits for the store any more; a heartbeat that succeeds
//! ends that. So a dead store costs a few requests their timeout, and not each.
//!
//! Not here: heartbeats, and what a gateway decides alone (`limit::shared`).

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// Failures in a row after which the store counts as away.
const FAILURES_MAX: u32 = 3;

/// Whether the store answers.
#[derive(Debug, Default)]
pub(super) struct Availability {
    failures: AtomicU32,
    available: AtomicBool,
}

impl Availability {
    /// Whether requests should ask the store.
    pub(super) fn is_available(&self) -> bool {
        self.available.load(Ordering::Acquire)
    }

    /// A request was answered.
    pub(super) fn answered(&self) {
        // Read first: it is the same cache line for all workers.
        if self.failures.load(Ordering::Relaxed) > 0 {
            self.failures.store(0, Ordering::Relaxed);
        }
    }

    /// A request was not answered, or too late. True where the store counts as away from now on.
    pub(super) fn failed(&self) -> bool {
        let failures = self.failures.fetch_add(1, Ordering::Relaxed) + 1;
        failures >= FAILURES_MAX && self.available.swap(false, Ordering::AcqRel)
    }

    /// The connection is lost. True where the store was available until now.
    pub(super) fn lost(&self) -> bool {
        self.available.swap(false, Ordering::AcqRel)
    }

    /// A heartbeat has succeeded. True where the store was away until now.
    pub(super) fn recovered(&self) -> bool {
        self.failures.store(0, Ordering::Relaxed);
        !self.available.swap(true, Ordering::AcqRel)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_failures_in_a_row_make_it_unavailable_and_a_heartbeat_ends_that() {
        let store = Availability::default();
        assert!(!store.is_available(), "before the first heartbeat");
        assert!(store.recovered());
        assert!(!store.recovered(), "reported once");
        assert_eq!([store.failed(), store.failed()], [false, false]);
        store.answered();
        assert_eq!([store.failed(), store.failed(), store.failed()], [false, false, true]);
        assert!(!store.is_available());
        assert!(!store.failed(), "reported once");
        assert!(store.recovered() && store.is_available());
        assert!(store.lost() && !store.lost());
    }
}
