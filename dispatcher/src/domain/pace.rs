//! For how long a rate limit counts a request. (core)

use std::time::Duration;

use weir_common::limit::rolling::RollingQuota;

use crate::domain::webhook::options::OWN_WINDOW;

/// The network carries one request faster than another, and timers are late: a request counts for
/// this much longer than its window, but for no more than a fiftieth of a short one.
const MARGIN: Duration = Duration::from_millis(100);

/// The quota that the scheduler keeps to, so that receivers see at most `quota`.
#[must_use]
pub fn counted(quota: RollingQuota) -> RollingQuota {
    RollingQuota { window: quota.window + MARGIN.min(quota.window / 50), ..quota }
}

/// For how long a request counts at least, in its endpoint's limit or in its owner's.
#[must_use]
pub fn shortest_window(endpoint: RollingQuota) -> Duration {
    let own = RollingQuota { window: OWN_WINDOW, ..endpoint };
    endpoint.window.min(counted(own).window)
}

/// For how long a request counts at most, in its endpoint's limit or in its owner's.
#[must_use]
pub fn longest_window(endpoint: RollingQuota) -> Duration {
    let own = RollingQuota { window: OWN_WINDOW, ..endpoint };
    endpoint.window.max(counted(own).window)
}
