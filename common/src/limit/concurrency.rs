//! Decides whether one more request of a key may be in flight. (core)
//!
//! The state is the number of requests in flight: a charge adds one, and the end of the request
//! releases it.
//!
//! # Invariants
//!
//! 1. At most N requests are in flight at once, as long as each charge is released after the
//!    request ends, and once.
//! 2. A request counts as one, whatever it costs.
//! 3. A refusal changes nothing.
//!
//! # Not here
//!
//! Who releases a charge, and what a process that ends leaves behind (the gateway).

use std::time::Duration;

use crate::limit::decision::{Decision, Usage};
use crate::time::Tick;

/// When a refused request should be retried: an estimate, for it is unknown when one of those in
/// flight ends.
pub const RETRY_AFTER: Duration = Duration::from_secs(1);

/// The most requests in flight: more than one machine has connections for.
pub const IN_FLIGHT_MAX: u32 = 1_000_000;

/// At most `requests` in flight at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConcurrencyQuota {
    /// From 1 to [`IN_FLIGHT_MAX`].
    pub requests: u32,
}

/// The requests of one key in flight.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InFlight(u32);

impl InFlight {
    /// So many requests in flight.
    #[must_use]
    pub fn of(requests: u32) -> Self {
        Self(requests)
    }

    /// How many requests are in flight.
    #[must_use]
    pub fn count(self) -> u32 {
        self.0
    }

    /// Decides whether one more may be in flight at `now`. Changes nothing.
    pub fn decide(self, quota: ConcurrencyQuota, now: Tick) -> Decision {
        if self.0 < quota.requests {
            Decision::Admit
        } else {
            Decision::Refuse { retry_at: now.plus(RETRY_AFTER) }
        }
    }

    /// Counts one more request, which [`InFlight::decide`] allowed at the same `now`.
    pub fn charge(&mut self, quota: ConcurrencyQuota, now: Tick) -> Usage {
        self.0 = self.0.saturating_add(1);
        self.usage(quota, now)
    }

    /// Counts one request less, because it has ended.
    pub fn release(&mut self) {
        self.0 = self.0.saturating_sub(1);
    }

    /// The key's usage at `now`. The whole allowance counts as back at once: a wait for it has no
    /// meaning.
    #[must_use]
    pub fn usage(self, quota: ConcurrencyQuota, now: Tick) -> Usage {
        Usage {
            limit: quota.requests,
            remaining: quota.requests.saturating_sub(self.0),
            full_at: now,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_random_sequence_is_decided_as_by_a_list_of_requests(
            requests in 1..6_u32,
            starts in prop::collection::vec(any::<bool>(), 1..200),
        ) {
            let quota = ConcurrencyQuota { requests };
            let (mut state, mut in_flight) = (InFlight::default(), Vec::new());
            for (now, starts) in starts.into_iter().enumerate() {
                let now = Tick(now as u64);
                if starts {
                    let fits = in_flight.len() < requests as usize;
                    prop_assert_eq!(state.decide(quota, now) == Decision::Admit, fits);
                    if fits {
                        in_flight.push(now);
                        let left = requests as usize - in_flight.len();
                        prop_assert_eq!(state.charge(quota, now).remaining as usize, left);
                    }
                } else if in_flight.pop().is_some() {
                    state.release();
                }
                prop_assert_eq!(state.count() as usize, in_flight.len());
            }
        }
    }

    #[test]
    fn a_refused_request_is_retried_after_a_second() {
        let quota = ConcurrencyQuota { requests: 2 };
        let state = InFlight::of(2);
        assert_eq!(state.decide(quota, Tick(7)), Decision::Refuse { retry_at: Tick(1_000_007) });
        assert_eq!(state.usage(quota, Tick(7)).full_at, Tick(7));
    }

    #[test]
    fn a_lowered_quota_admits_again_once_enough_have_ended() {
        let quota = ConcurrencyQuota { requests: 1 };
        let mut state = InFlight::of(3);
        assert_eq!(state.usage(quota, Tick(0)).remaining, 0);
        for admits in [false, false, true] {
            state.release();
            assert_eq!(state.decide(quota, Tick(0)) == Decision::Admit, admits);
        }
    }

    #[test]
    fn a_release_without_a_charge_frees_nothing() {
        let mut state = InFlight::default();
        state.release();
        assert_eq!(state, InFlight::of(0));
    }
}
