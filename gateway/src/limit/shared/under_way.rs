//! What calls under way would charge: their replies may still admit it, so a gateway that decides
//! alone counts it as given.
//!
//! Not here: what replies have confirmed (`limit::memory`, `shared::sync_state`).

use std::sync::Mutex;

use arrayvec::ArrayVec;

use super::super::key::{Key, KeyMap};
use super::super::{CHECKS_MAX, LimitCheck};
use super::is_in_flight;
use super::sharded::Sharded;

/// The cost of the calls under way, by key: as many keys at most as requests wait for the store.
#[derive(Debug, Default)]
pub(super) struct UnderWay {
    shards: Sharded<Mutex<KeyMap<u32>>>,
}

/// A call under way, until it is dropped.
#[derive(Debug)]
pub(super) struct CallUnderWay<'a> {
    all: &'a UnderWay,
    costs: ArrayVec<(Key, u32), CHECKS_MAX>,
}

impl UnderWay {
    /// Counts a call that charges these checks. What is in flight is counted elsewhere.
    pub(super) fn begin(&self, checks: &[LimitCheck]) -> CallUnderWay<'_> {
        let counted = checks.iter().filter(|check| !is_in_flight(check));
        let costs: ArrayVec<(Key, u32), CHECKS_MAX> =
            counted.map(|check| (check.key, check.cost)).collect();
        for (key, cost) in &costs {
            let mut shard = self.shards.lock(*key);
            let sum = shard.entry(*key).or_default();
            *sum = sum.saturating_add(*cost);
        }
        CallUnderWay { all: self, costs }
    }

    /// What the calls under way would charge to a key.
    pub(super) fn cost(&self, key: Key) -> u32 {
        self.shards.lock(key).get(&key).copied().unwrap_or_default()
    }
}

impl Drop for CallUnderWay<'_> {
    fn drop(&mut self) {
        for (key, cost) in &self.costs {
            let mut shard = self.all.shards.lock(*key);
            if let Some(sum) = shard.get_mut(key) {
                *sum = sum.saturating_sub(*cost);
                if *sum == 0 {
                    shard.remove(key);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use weir_common::limit::quota::Quota;
    use weir_common::limit::rolling::RollingQuota;

    use super::super::super::key::LimitTag;
    use super::*;

    #[test]
    fn a_call_counts_until_it_is_dropped_and_no_longer() {
        let window = Duration::from_secs(60);
        let quota = Quota::Rolling(RollingQuota { requests: 9, window });
        let check = |key: u128, cost| {
            let made = LimitCheck::new(Key::from_bits(key), LimitTag::from_bits(1), quota);
            LimitCheck { cost, ..made }
        };
        let under_way = UnderWay::default();
        let costs = || [1, 2, 3].map(|key| under_way.cost(Key::from_bits(key)));
        let one = under_way.begin(&[check(1, 2), check(2, 1)]);
        let other = under_way.begin(&[check(1, 3)]);
        assert_eq!(costs(), [5, 1, 0]);
        drop(one);
        assert_eq!(costs(), [3, 0, 0]);
        drop(other);
        assert_eq!(costs(), [0, 0, 0]);
        assert!(under_way.shards.locked().all(|shard| shard.is_empty()));
    }
}
