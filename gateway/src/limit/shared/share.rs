//! Divides an allowance between gateways that cannot ask each other. (core)
//!
//! Invariant: what all gateways get together is at most the allowance, and exactly that for
//! requests per window, per period and in flight.
//!
//! Not here: how many gateways there are (`limit::shared`).

use weir_common::limit::calendar::CalendarQuota;
use weir_common::limit::concurrency::ConcurrencyQuota;
use weir_common::limit::quota::Quota;
use weir_common::limit::rolling::RollingQuota;
use weir_common::limit::token_bucket::{BucketQuota, Rate};

/// One gateway of several.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FleetPosition {
    /// Its number, from 0.
    pub nth: u32,
    /// How many there are, at least 1.
    pub of: u32,
}

impl FleetPosition {
    /// The place of a gateway that knows of no other.
    pub const ALONE: Self = Self { nth: 0, of: 1 };

    /// The place that a store has shown, or this one as long as it may know too few gateways.
    #[must_use]
    pub fn shown(self, shown: Self, knows_all: bool) -> Self {
        if knows_all || shown.of >= self.of { shown } else { self }
    }

    /// `nth`, then `of`, 32 bits each.
    pub(super) fn packed(self) -> u64 {
        u64::from(self.nth) << 32 | u64::from(self.of)
    }

    /// The position of its packed form.
    pub(super) fn unpacked(bits: u64) -> Self {
        let half = |bits: u64| u32::try_from(bits & u64::from(u32::MAX)).unwrap_or_default();
        Self { nth: half(bits >> 32), of: half(bits) }
    }

    /// This gateway's share of an allowance; none where it gets nothing.
    #[must_use]
    pub fn share(self, quota: Quota) -> Option<Quota> {
        Some(match quota {
            Quota::Rolling(own) => {
                Quota::Rolling(RollingQuota { requests: self.part(own.requests)?, ..own })
            }
            Quota::Calendar(own) => {
                Quota::Calendar(CalendarQuota { requests: self.part(own.requests)?, ..own })
            }
            Quota::Concurrency(own) => {
                Quota::Concurrency(ConcurrencyQuota { requests: self.part(own.requests)? })
            }
            Quota::Bucket(own) => Quota::Bucket(BucketQuota {
                burst: self.part(own.burst)?,
                rate: self.rate(own.rate)?,
            }),
        })
    }

    fn part(self, whole: u32) -> Option<u32> {
        let of = self.of.max(1);
        let part = whole / of + u32::from(self.nth < whole % of);
        (part > 0).then_some(part)
    }

    /// A rate whose period is too long to divide is the first gateway's alone.
    fn rate(self, whole: Rate) -> Option<Rate> {
        let longer = whole.period().checked_mul(self.of.max(1));
        let divided = longer.and_then(|period| Rate::new(whole.tokens(), period).ok());
        divided.or_else(|| {
            let tokens = self.part(whole.tokens())?;
            Rate::new(tokens, whole.period()).ok()
        })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;
    use weir_common::limit::calendar::{Calendar, CalendarUnit, parse_zone};
    use weir_common::limit::token_bucket::{PERIOD_MAX, PERIOD_MIN};

    use super::*;

    proptest! {
        #[test]
        fn shares_add_up_to_the_allowance(requests in 1_u32..100_000, of in 1_u32..40) {
            let window = Duration::from_secs(60);
            let calendar = Calendar { unit: CalendarUnit::Day, zone: parse_zone("UTC").unwrap() };
            for quota in [
                Quota::Rolling(RollingQuota { requests, window }),
                Quota::Calendar(CalendarQuota::new(requests, calendar)),
                Quota::Concurrency(ConcurrencyQuota { requests }),
            ] {
                let shares = (0..of).filter_map(|nth| FleetPosition { nth, of }.share(quota));
                prop_assert_eq!(shares.map(|share| share.limit()).sum::<u32>(), requests);
            }
        }

        #[test]
        fn buckets_refill_together_no_faster_than_one(
            tokens in 1_u32..1_000_000,
            millis in 1_u64..2_678_400_000,
            burst in 1_u32..1_000_000,
            of in 1_u32..40,
        ) {
            let period = Duration::from_millis(millis).clamp(PERIOD_MIN, PERIOD_MAX);
            let rate = Rate::new(tokens, period).unwrap();
            let quota = Quota::Bucket(BucketQuota { rate, burst });
            let (mut bursts, mut refilled) = (0, 0.0);
            for share in (0..of).filter_map(|nth| FleetPosition { nth, of }.share(quota)) {
                let Quota::Bucket(share) = share else { panic!("a bucket's share is a bucket") };
                bursts += share.burst;
                refilled += f64::from(share.rate.tokens()) / share.rate.period().as_secs_f64();
            }
            prop_assert!(bursts <= burst);
            prop_assert!(refilled <= f64::from(tokens) / period.as_secs_f64() * 1.000_001);
        }
    }

    #[test]
    fn a_store_that_may_know_too_few_gateways_makes_no_share_larger() {
        let (half, all, third) = (
            FleetPosition { nth: 1, of: 2 },
            FleetPosition::ALONE,
            FleetPosition { nth: 2, of: 3 },
        );
        assert_eq!([half.shown(all, false), half.shown(all, true)], [half, all]);
        assert_eq!([half.shown(third, false), half.shown(third, true)], [third; 2]);
    }

    #[test]
    fn one_gateway_has_the_whole_allowance() {
        let rate = Rate::parse("7/15m").unwrap();
        let quota = Quota::Bucket(BucketQuota { rate, burst: 14 });
        assert_eq!(FleetPosition::ALONE.share(quota), Some(quota));
    }

    #[test]
    fn a_gateway_without_a_share_gets_nothing() {
        let quota = Quota::Concurrency(ConcurrencyQuota { requests: 2 });
        assert_eq!(FleetPosition { nth: 2, of: 3 }.share(quota), None);
    }
}
