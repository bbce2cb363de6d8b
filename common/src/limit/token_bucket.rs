//! Decides whether a request fits a token bucket: `rate` per second, `burst` at once. (core)
//!
//! A bucket stores what was spent at one instant, and refills at the rate. It counts millionths of
//! a token and microseconds, so that no rate is rounded.
//!
//! # Invariants
//!
//! 1. In any `d` seconds at most `burst + rate × d` tokens are admitted, and a client that keeps
//!    within that is never refused.
//! 2. A refusal changes nothing.
//! 3. `retry_at` is exact: refused one tick before it, admitted at it.
//! 4. Lowering the burst and raising it again loses no spending.
//!
//! # Not here
//!
//! Storage and locks of buckets (the gateway's `limit::memory`), the headers of a response.

use crate::limit::decision::{Decision, Usage};
use crate::time::Tick;

/// The highest rate and burst: a higher one would limit nothing.
pub const TOKENS_MAX: u32 = 1_000_000;

/// Units (millionths) of a token: `rate` tokens per second are `rate` units per microsecond.
const UNITS: u64 = 1_000_000;

/// `burst` tokens at most, `rate` new ones a second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BucketQuota {
    /// Tokens per second, from 1 to [`TOKENS_MAX`].
    pub rate: u32,
    /// Tokens of a full bucket, from 1 to [`TOKENS_MAX`].
    pub burst: u32,
}

/// What one key has spent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bucket {
    /// Units spent and not yet refilled at `at`.
    spent: u64,
    at: Tick,
}

impl Bucket {
    /// Decides whether `cost` tokens are available at `now`. Changes nothing.
    ///
    /// A `now` before the last charge counts as that charge's time.
    pub fn decide(&self, quota: BucketQuota, cost: u32, now: Tick) -> Decision {
        if cost > quota.burst {
            return Decision::TooLarge;
        }
        let now = now.max(self.at);
        let wanted = self.spent_at(quota, now) + u64::from(cost) * UNITS;
        let over = wanted.saturating_sub(u64::from(quota.burst) * UNITS);
        if over == 0 {
            return Decision::Admit;
        }
        Decision::Refuse { retry_at: refilled_at(now, over, quota) }
    }

    /// Records an admission of `cost` that [`Bucket::decide`] allowed at the same `now`.
    pub fn charge(&mut self, quota: BucketQuota, cost: u32, now: Tick) -> Usage {
        let now = now.max(self.at);
        self.spent = self.spent_at(quota, now) + u64::from(cost) * UNITS;
        self.at = now;
        self.usage(quota, now)
    }

    /// The key's usage at `now`.
    #[must_use]
    pub fn usage(&self, quota: BucketQuota, now: Tick) -> Usage {
        let now = now.max(self.at);
        let spent = self.spent_at(quota, now);
        let left = (u64::from(quota.burst) * UNITS).saturating_sub(spent) / UNITS;
        Usage {
            limit: quota.burst,
            remaining: u32::try_from(left).unwrap_or(quota.burst),
            full_at: refilled_at(now, spent, quota),
        }
    }

    /// When this state equals a fresh one at any rate that its key may get until then: computed for
    /// the lowest rate, one token a second.
    #[must_use]
    pub fn forgotten_at(&self) -> Tick {
        refilled_at(self.at, self.spent, BucketQuota { rate: 1, burst: 1 })
    }

    /// A bucket with `spent` millionths of a token spent and not yet refilled at `at`.
    #[must_use]
    pub fn of(spent: u64, at: Tick) -> Self {
        Self { spent, at }
    }

    /// The millionths of a token spent and not yet refilled, and at which tick.
    #[must_use]
    pub fn spent(&self) -> (u64, Tick) {
        (self.spent, self.at)
    }

    fn spent_at(&self, quota: BucketQuota, now: Tick) -> u64 {
        let back = now.0.saturating_sub(self.at.0).saturating_mul(u64::from(quota.rate));
        self.spent.saturating_sub(back)
    }
}

/// When `units` that are spent at `from` are refilled, rounded up to a whole tick.
fn refilled_at(from: Tick, units: u64, quota: BucketQuota) -> Tick {
    Tick(from.0.saturating_add(units.div_ceil(u64::from(quota.rate.max(1)))))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The simplest correct version: the available tokens, in millionths, since the last admission.
    struct Model {
        /// Available at `at`, in an integer wide enough never to overflow.
        tokens: u128,
        at: u64,
    }

    impl Model {
        fn tokens_at(&self, quota: BucketQuota, now: u64) -> u128 {
            let new = u128::from(now - self.at) * u128::from(quota.rate);
            (self.tokens + new).min(u128::from(quota.burst) * 1_000_000)
        }

        fn fits(&self, quota: BucketQuota, cost: u32, now: u64) -> bool {
            self.tokens_at(quota, now) >= u128::from(cost) * 1_000_000
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(300))]

        #[test]
        fn a_random_sequence_is_decided_as_by_counting_tokens(
            rate in 1..1_000_u32,
            burst in 1..300_u32,
            steps in prop::collection::vec((0..2_000_000_u64, 1..4_u32), 1..400),
        ) {
            let quota = BucketQuota { rate, burst };
            let mut bucket = Bucket::default();
            let mut model = Model { tokens: u128::from(burst) * 1_000_000, at: 0 };
            let mut now = 0;
            for (wait, cost) in steps {
                now += wait;
                let fits = model.fits(quota, cost, now);
                match bucket.decide(quota, cost, Tick(now)) {
                    Decision::Admit => {
                        prop_assert!(fits);
                        let usage = bucket.charge(quota, cost, Tick(now));
                        model.tokens = model.tokens_at(quota, now) - u128::from(cost) * 1_000_000;
                        model.at = now;
                        prop_assert_eq!(u128::from(usage.remaining), model.tokens / 1_000_000);
                        let full = u128::from(burst) * 1_000_000;
                        prop_assert_eq!(model.tokens_at(quota, usage.full_at.0), full);
                    }
                    Decision::Refuse { retry_at } => {
                        prop_assert!(!fits);
                        prop_assert!(!model.fits(quota, cost, retry_at.0 - 1));
                        prop_assert!(model.fits(quota, cost, retry_at.0));
                    }
                    Decision::TooLarge => prop_assert!(cost > burst),
                }
            }
        }

        #[test]
        fn no_stretch_admits_more_than_the_burst_and_the_flow(
            rate in 1..100_u32,
            burst in 1..50_u32,
            waits in prop::collection::vec(0..300_000_u64, 1..300),
        ) {
            let quota = BucketQuota { rate, burst };
            let (mut bucket, mut admitted, mut now) = (Bucket::default(), Vec::new(), 0);
            for wait in waits {
                now += wait;
                if bucket.decide(quota, 1, Tick(now)) == Decision::Admit {
                    let _ = bucket.charge(quota, 1, Tick(now));
                    admitted.push(now);
                }
            }
            for (first, start) in admitted.iter().enumerate() {
                for (last, end) in admitted.iter().enumerate().skip(first) {
                    let allowed = u64::from(burst) * UNITS + (end - start) * u64::from(rate);
                    prop_assert!((last - first + 1) as u64 * UNITS <= allowed);
                }
            }
        }
    }

    #[test]
    fn the_burst_is_there_at_once_and_then_one_token_every_twentieth_of_a_second() {
        let quota = BucketQuota { rate: 50, burst: 200 };
        let mut bucket = Bucket::default();
        for left in (0..200).rev() {
            assert_eq!(bucket.decide(quota, 1, Tick(7)), Decision::Admit);
            assert_eq!(bucket.charge(quota, 1, Tick(7)).remaining, left);
        }
        assert_eq!(bucket.decide(quota, 1, Tick(7)), Decision::Refuse { retry_at: Tick(20_007) });
    }

    #[test]
    fn a_burst_lowered_and_raised_again_forgets_nothing() {
        let (wide, tight) = (BucketQuota { rate: 1, burst: 10 }, BucketQuota { rate: 1, burst: 2 });
        let mut bucket = Bucket::default();
        let _ = bucket.charge(wide, 6, Tick(0));
        assert_eq!(bucket.usage(tight, Tick(0)).remaining, 0);
        assert_eq!(bucket.usage(wide, Tick(0)).remaining, 4);
    }

    #[test]
    fn a_state_is_forgotten_when_it_is_full_at_any_rate() {
        let mut bucket = Bucket::default();
        let _ = bucket.charge(BucketQuota { rate: 50, burst: 200 }, 150, Tick(0));
        let slow = BucketQuota { rate: 1, burst: 200 };
        let forgotten_at = bucket.forgotten_at();
        assert_eq!(forgotten_at, Tick(150_000_000));
        assert_eq!(bucket.usage(slow, Tick(forgotten_at.0 - 1)).remaining, 199);
        assert_eq!(bucket.usage(slow, forgotten_at).remaining, 200);
    }

    #[test]
    fn an_hour_of_rest_saves_up_no_more_than_the_burst() {
        let quota = BucketQuota { rate: 50, burst: 200 };
        let mut bucket = Bucket::default();
        let _ = bucket.charge(quota, 200, Tick(0));
        assert_eq!(bucket.usage(quota, Tick(3_600_000_000)).remaining, 200);
    }
}
