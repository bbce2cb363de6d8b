//! The simplest correct store of one key: it remembers every charge, and counts.
//!
//! Not here: what is charged when (`conformance`).

use weir_common::limit::decision::Decision;
use weir_common::time::{Tick, micros};
use weir_gateway::limit::{CheckResult, LimitCheck, Quota};

/// Commands of one millisecond have different microseconds: fewer than this.
const APART: u64 = 50;

/// All charges of a key: when, how much, and of how many at most.
#[derive(Default)]
pub(super) struct Model(pub(super) Vec<(u64, u32, u32)>);

impl Model {
    /// What is left of a quota at `now`; less than nothing after the quota was lowered, but of a
    /// bucket: that is empty then.
    fn left(&self, quota: &Quota, now: u64) -> f64 {
        let sum = |since: u64| -> u32 {
            self.0.iter().filter(|(at, ..)| *at >= since).map(|(_, cost, _)| cost).sum()
        };
        let used = match quota {
            Quota::Rolling(quota) => f64::from(sum((now + 1).saturating_sub(micros(quota.window)))),
            Quota::Calendar(_) => f64::from(sum(now - now % 86_400_000_000)),
            Quota::Bucket(quota) => {
                let per_micro = f64::from(quota.rate.tokens()) / micros(quota.rate.period()) as f64;
                let (mut debt, mut from) = (0.0_f64, 0.0);
                let after = |debt: f64, micros: f64| (debt - micros.max(0.0) * per_micro).max(0.0);
                for (at, cost, burst) in &self.0 {
                    let (at, cost, burst) = (*at as f64, f64::from(*cost), f64::from(*burst));
                    let counted = after(debt.min(burst), at - from) + cost;
                    debt = after(debt, at - from) + cost;
                    from = at;
                    // What is left of a bucket in debt is what has come back.
                    if debt > counted + 1e-6 && counted < burst {
                        (debt, from) = (debt + burst - counted, at - (burst - counted) / per_micro);
                    }
                }
                after(debt.min(f64::from(quota.burst)), now as f64 - from)
            }
            Quota::Concurrency(_) => panic!("not by time"),
        };
        f64::from(quota.limit()) - used
    }

    fn fits(&self, check: &LimitCheck, now: u64) -> bool {
        self.left(&check.quota, now) >= f64::from(check.cost)
    }

    /// Checks what the store found at `now`, for the only gateway or one of two. What it shows as
    /// left when it refuses may be what was left when it gave a refusal that is remembered.
    pub(super) fn compare(
        &self,
        check: &LimitCheck,
        found: CheckResult,
        (now, is_alone): (u64, bool),
    ) {
        let around = [now.saturating_sub(APART), now + APART];
        let why = || format!("{found:?} of {check:?} at {now}: {:?}", self.0);
        match found.decision {
            Decision::TooLarge => assert!(check.cost > check.quota.limit(), "{}", why()),
            Decision::Admit => {
                let [least, most] = around.map(|at| self.left(&check.quota, at));
                assert!(most >= 0.0, "{}", why());
                let left = found.usage.remaining;
                let is_left = (least.max(0.0) as u32..=most as u32).contains(&left);
                assert!(is_left, "{least} to {most}: {}", why());
            }
            Decision::Refuse { retry_at: Tick(at) } => {
                assert!(around.iter().any(|at| !self.fits(check, *at)), "{}", why());
                // A refusal that is remembered may be that of a smaller cost, or older than what
                // another gateway admitted under a larger quota.
                let is_known = check.cost == 1 && is_alone;
                assert!(!is_known || self.fits(check, at + APART), "too early: {}", why());
                assert!(!self.fits(check, at.saturating_sub(APART)), "too late: {}", why());
            }
        }
    }
}
