//! The limit headers of a response.
//!
//! # Invariants
//!
//! 1. The numbers come from the same read of the states as the decision.
//! 2. Remaining is rounded down, reset and retry up: a client that waits for `Retry-After` does not
//!    retry too early.
//!
//! # Not here
//!
//! Which header goes onto which message (`proxy`).

use std::fmt::Write;
use std::time::Duration;

use weir_common::limit::decision::{Decision, Usage};
use weir_common::time::Moment;

use super::{LimitCheck, Quota, Verdict};

/// The name of a limit for headers, and its check.
#[derive(Clone, Copy, Debug)]
pub struct Named<'l> {
    /// The limit's name in the settings.
    pub name: &'l str,
    /// The check.
    pub check: &'l LimitCheck,
}

/// What a response tells about the limits of its request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// The binding limit; none where no limit is shown.
    pub binding: Option<BindingLimit>,
    /// `Retry-After` of a refused request: seconds until every limit admits it.
    pub retry_after: Option<u64>,
    /// Whether the request costs more than the whole of an allowance: waiting does not help.
    pub is_too_costly: bool,
}

/// The limit in the headers of a response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BindingLimit {
    /// Its index among the checks.
    pub index: usize,
    /// Whether it refuses the request.
    pub refuses: bool,
    /// `X-RateLimit-Limit`
    pub limit: u32,
    /// `X-RateLimit-Remaining`
    pub remaining: u32,
    /// `X-RateLimit-Reset`: Unix seconds.
    pub reset: u64,
}

/// Reports a verdict. The binding limit is the one that refuses for the longest time, or else the
/// one with the least remaining. A limit that is only observed is left out; one that is not shown
/// counts for `Retry-After` alone.
#[must_use]
pub fn summary(checks: &[LimitCheck], verdict: &Verdict, now: Moment) -> Report {
    let enforced =
        checks.iter().zip(verdict.answers()).enumerate().filter(|(_, (check, _))| check.enforced);
    let mut binding: Option<(usize, &Usage, Option<Duration>)> = None;
    let (mut retry_after, mut is_too_costly) = (None, false);
    for (nth, (check, answer)) in enforced {
        let wait = match answer.decision {
            Decision::Admit => None,
            Decision::Refuse { retry_at } => Some(retry_at.since(now.tick)),
            Decision::TooLarge => {
                is_too_costly = true;
                Some(Duration::MAX)
            }
        };
        retry_after = retry_after.max(wait.map(seconds_up));
        if !check.shown {
            continue;
        }
        let binds = binding.is_none_or(|(_, least, longest)| {
            (wait > longest) || (wait == longest && answer.usage.remaining < least.remaining)
        });
        if binds {
            binding = Some((nth, &answer.usage, wait));
        }
    }
    let binding = binding.map(|(index, usage, wait)| BindingLimit {
        index,
        refuses: wait.is_some(),
        limit: usage.limit,
        // What is left of an allowance that a request never fits is not nothing.
        remaining: match wait {
            None | Some(Duration::MAX) => usage.remaining,
            Some(_) => 0,
        },
        reset: now.unix_of(usage.full_at).seconds_up(),
    });
    Report { binding, retry_after: retry_after.filter(|_| !is_too_costly), is_too_costly }
}

/// Whole seconds, rounded up.
fn seconds_up(wait: Duration) -> u64 {
    wait.as_secs().saturating_add(u64::from(wait.subsec_nanos() > 0))
}

/// `RateLimit-Policy` and `RateLimit` (draft-ietf-httpapi-ratelimit-headers-11), with every
/// limit of the request that is enforced and shown.
///
/// `t` is the time in which a client can use no more than what is left: until a refused request
/// would pass, and to the end of a calendar's period. Else there is none: something may come back
/// at any time.
#[must_use]
pub fn ietf(limits: &[Named<'_>], verdict: &Verdict, now: Moment) -> (String, String) {
    let (mut policy, mut usage) = (String::new(), String::new());
    let shown = |limit: &Named<'_>| limit.check.enforced && limit.check.shown;
    for (limit, answer) in limits.iter().zip(verdict.answers()).filter(|(limit, _)| shown(limit)) {
        let comma = if policy.is_empty() { "" } else { ", " };
        let quota = limit.check.quota;
        // Writing to a String cannot fail.
        let _ = write!(policy, "{comma}\"{}\";q={}", limit.name, quota.limit());
        let _ = match quota {
            Quota::Concurrency(_) => write!(policy, ";qu=\"concurrent-requests\""),
            _ => write!(policy, ";w={}", seconds_up(quota.window()).max(1)),
        };
        let _ = write!(usage, "{comma}\"{}\";r={}", limit.name, answer.usage.remaining);
        let until = match (answer.decision, quota) {
            (_, Quota::Concurrency(_)) => None,
            (Decision::Refuse { retry_at }, _) => Some(retry_at),
            (_, Quota::Calendar(_)) => Some(answer.usage.full_at),
            _ => None,
        };
        if let Some(until) = until {
            let _ = write!(usage, ";t={}", seconds_up(until.since(now.tick)));
        }
    }
    (policy, usage)
}

#[cfg(test)]
mod tests {
    use weir_common::limit::concurrency::ConcurrencyQuota;
    use weir_common::limit::{rolling, token_bucket};
    use weir_common::time::{Tick, UnixTime};

    use super::super::key::{Key, Scope, Seed};
    use super::super::memory::MemoryStore;
    use super::*;

    const NOW: Moment = Moment { tick: Tick(5_000_000), unix: UnixTime(1_700_000_000_400_000) };

    fn check(name: &str, quota: Quota) -> LimitCheck {
        let seed = Seed::new([9; 16]);
        let limit = seed.limit(name);
        let key = Key::new(seed.owner(Scope::Workspace, b"ws"), limit);
        LimitCheck { known: true, ..LimitCheck::new(key, limit, quota) }
    }

    fn minute(requests: u32) -> Quota {
        Quota::Rolling(rolling::RollingQuota { requests, window: Duration::from_secs(60) })
    }

    #[test]
    fn the_limit_with_the_least_left_is_shown() {
        let checks = [check("a", minute(10)), check("b", minute(3)), check("c", minute(3))];
        let verdict = MemoryStore::new(10).judge(&checks, NOW.tick).unwrap();
        let Report { binding, retry_after, .. } = summary(&checks, &verdict, NOW);
        let binding = binding.unwrap();
        assert_eq!((binding.index, binding.limit, binding.remaining), (1, 3, 2));
        assert_eq!(binding.reset, 1_700_000_061, "sixty seconds after .4, rounded up");
        assert_eq!(retry_after, None);
    }

    #[test]
    fn the_limit_that_refuses_for_longest_is_shown() {
        let second =
            Quota::Rolling(rolling::RollingQuota { requests: 1, window: Duration::from_secs(1) });
        let checks = [check("a", second), check("b", minute(1)), check("c", minute(1_000))];
        let store = MemoryStore::new(10);
        assert!(store.judge(&checks, NOW.tick).unwrap().is_admitted());
        let later = Moment { tick: Tick(NOW.tick.0 + 100_000), ..NOW };
        let report = summary(&checks, &store.judge(&checks, later.tick).unwrap(), later);
        let binding = report.binding.unwrap();
        assert_eq!((binding.index, binding.remaining, binding.refuses), (1, 0, true));
        assert_eq!(report.retry_after, Some(60));
    }

    #[test]
    fn a_wait_of_a_moment_is_a_second() {
        let quota = Quota::Bucket(token_bucket::BucketQuota {
            rate: token_bucket::Rate::per_second(50),
            burst: 1,
        });
        let store = MemoryStore::new(10);
        let checks = [check("a", quota)];
        assert!(store.judge(&checks, NOW.tick).unwrap().is_admitted());
        let report = summary(&checks, &store.judge(&checks, NOW.tick).unwrap(), NOW);
        assert_eq!((report.binding.unwrap().limit, report.retry_after), (1, Some(1)));
    }

    #[test]
    fn what_is_only_observed_is_not_shown() {
        let checks = [LimitCheck { enforced: false, ..check("a", minute(1)) }];
        let verdict = MemoryStore::new(10).judge(&checks, NOW.tick).unwrap();
        assert_eq!(summary(&checks, &verdict, NOW), Report::default());
    }

    #[test]
    fn a_hidden_limit_shows_in_the_wait_alone() {
        let hidden = LimitCheck { shown: false, ..check("hidden", minute(1)) };
        let checks = [hidden, check("shown", minute(5))];
        let store = MemoryStore::new(10);
        assert!(store.judge(&checks, NOW.tick).unwrap().is_admitted());
        let verdict = store.judge(&checks, NOW.tick).unwrap();
        let Report { binding, retry_after, .. } = summary(&checks, &verdict, NOW);
        let binding = binding.unwrap();
        assert_eq!((binding.index, binding.refuses, binding.remaining), (1, false, 4));
        assert_eq!(retry_after, Some(60));
        let named = checks.each_ref().map(|check| Named { name: "any", check });
        assert_eq!(ietf(&named, &verdict, NOW).0, "\"any\";q=5;w=60");
    }

    #[test]
    fn the_draft_headers_carry_every_limit() {
        let checks = [check("workspace", minute(60)), check("organisation", minute(600))];
        let verdict = MemoryStore::new(10).judge(&checks, NOW.tick).unwrap();
        let named = [
            Named { name: "workspace", check: &checks[0] },
            Named { name: "organisation", check: &checks[1] },
        ];
        let (policy, usage) = ietf(&named, &verdict, NOW);
        assert_eq!(policy, "\"workspace\";q=60;w=60, \"organisation\";q=600;w=60");
        assert_eq!(usage, "\"workspace\";r=59, \"organisation\";r=599");
    }

    #[test]
    fn the_drafts_own_examples_are_written_as_it_has_them() {
        let window = |requests, seconds| {
            let window = Duration::from_secs(seconds);
            Quota::Rolling(rolling::RollingQuota { requests, window })
        };
        let fields = |limits: &[(&str, Quota)], requests| {
            let checks: Vec<LimitCheck> =
                limits.iter().map(|(name, quota)| check(name, *quota)).collect();
            let store = MemoryStore::new(10);
            let mut verdict = store.judge(&checks, NOW.tick).unwrap();
            (1..requests).for_each(|_| verdict = store.judge(&checks, NOW.tick).unwrap());
            let named = limits.iter().zip(&checks);
            let named: Vec<_> = named.map(|((name, _), check)| Named { name, check }).collect();
            ietf(&named, &verdict, NOW)
        };
        // 429 of a dynamic limit: fifteen in twenty seconds, all used.
        let (policy, usage) = fields(&[("dynamic", window(15, 20))], 16);
        assert_eq!((&*policy, &*usage), ("\"dynamic\";q=15;w=20", "\"dynamic\";r=0;t=20"));
        let (policy, usage) = fields(&[("fixedwindow", window(100, 60))], 1);
        assert_eq!((&*policy, &*usage), ("\"fixedwindow\";q=100;w=60", "\"fixedwindow\";r=99"));
        let (policy, _) = fields(&[("permin", window(50, 60)), ("perhr", window(1_000, 3_600))], 1);
        assert_eq!(policy, "\"permin\";q=50;w=60, \"perhr\";q=1000;w=3600");
        let in_flight = Quota::Concurrency(ConcurrencyQuota { requests: 10 });
        let (policy, usage) = fields(&[("inflight", in_flight)], 7);
        assert_eq!(policy, "\"inflight\";q=10;qu=\"concurrent-requests\"");
        assert_eq!(usage, "\"inflight\";r=3");
    }
}
