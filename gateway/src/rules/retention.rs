//! Decides how long states are kept after a change of rules by a reload, a restart or an upgrade.
//!
//! # Invariants
//!
//! 1. After a window grows, no state is dropped for the length of the new window, so that it counts
//!    every request that was stored at the change.
//! 2. After a rate slows down, no state is dropped until it would be full at the new rate, or for a
//!    month.
//!
//! # Not here
//!
//! What is dropped otherwise (`limit::memory`).

use std::time::Duration;

use serde::{Deserialize, Serialize};
use weir_common::time::Tick;

use crate::limit::memory::MemoryStore;
use crate::request::route::Index;
use crate::rules::{self, Rules};

/// The longest time for which a change of rules keeps all states.
const KEPT_MAX: Duration = Duration::from_secs(31 * 24 * 3_600);

/// How long rules keep states. The default, if the earlier rules are unknown: only as long as each
/// state itself requires.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Retention {
    limits: Vec<LimitRetention>,
}

/// How long the states of one limit matter.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct LimitRetention {
    /// The limit's name.
    name: String,
    /// The longest window or period, in microseconds.
    window: u64,
    /// How long the slowest token takes to come back, in microseconds.
    token: u64,
    /// The most that a key may use at once.
    most: u32,
}

impl Retention {
    /// The retention of `rules`.
    #[must_use]
    pub fn of(rules: &Rules) -> Self {
        let of_limit = |(index, limit): (Index, &rules::Limit)| LimitRetention {
            name: limit.name.to_string(),
            window: limit.horizon.window,
            token: limit.horizon.token,
            most: rules.quotas_of(index).map(|quota| quota.limit()).max().unwrap_or_default(),
        };
        Self { limits: rules.limits.iter().enumerate().map(of_limit).collect() }
    }

    /// Makes `store`, whose states were kept under `self`, keep all that `rules` may still need.
    pub fn retain_in(&self, store: &MemoryStore, rules: &Rules, now: Tick) {
        store.keep_until(now.plus(self.longest_grown(&Self::of(rules))));
    }

    fn longest_grown(&self, later: &Self) -> Duration {
        let grown = later.limits.iter().filter_map(|later| {
            let old = self.limits.iter().find(|old| old.name == later.name)?;
            let has_grown = later.window > old.window || later.token > old.token;
            let refill = later.token.saturating_mul(old.most.max(later.most).into());
            has_grown.then_some(later.window.max(refill))
        });
        Duration::from_micros(grown.max().unwrap_or_default()).min(KEPT_MAX)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use weir_common::config::document::Document;
    use weir_common::directory::Directory;
    use weir_common::limit::rolling::RollingQuota;
    use weir_common::limit::token_bucket::{BucketQuota, Rate};
    use weir_common::time::{Moment, UnixTime};

    use super::*;
    use crate::limit::key::{Key, Scope, Seed};
    use crate::limit::shared::sync_state::SyncedKeys;
    use crate::limit::{Horizon, LimitCheck, Quota, snapshot};
    use crate::rules::tenant::{Tenant, TenantEntries, TenantRefs};

    const SEED: Seed = Seed::new([4; 16]);
    const KEYS: u8 = 3;
    const RATES: [u32; 3] = [1, 7, 50];

    /// One step of a random sequence.
    #[derive(Clone, Debug)]
    enum Step {
        Wait(u64),
        /// Charges a window if there is no rate, else a bucket with the current rate of its plan.
        Charge(u8, Option<usize>, u32),
        Grow,
        Sweep,
        Restart,
        Upgrade,
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            4 => (1..3_000_000_u64).prop_map(Step::Wait),
            1 => (1..200_000_000_u64).prop_map(Step::Wait),
            6 => (0..KEYS, prop::option::of(0..RATES.len()), 1..9_u32)
                .prop_map(|(key, rate, times)| Step::Charge(key, rate, times)),
            1 => Just(Step::Grow),
            4 => Just(Step::Sweep),
            1 => Just(Step::Restart),
            1 => Just(Step::Upgrade),
        ]
    }

    fn check(name: u8, quota: Quota) -> LimitCheck {
        let limit = SEED.limit(if matches!(quota, Quota::Bucket(_)) { "bucket" } else { "window" });
        let key = Key::new(SEED.owner(Scope::Workspace, &[name]), limit);
        // As the limit of a bucket has it whose plans have all of the rates.
        let horizon = match quota {
            Quota::Bucket(_) => Horizon::of(RATES.map(rated)),
            _ => Horizon::of([quota]),
        };
        LimitCheck { known: true, horizon, ..LimitCheck::new(key, limit, quota) }
    }

    fn window(seconds: u64) -> Quota {
        let window = Duration::from_secs(seconds);
        Quota::Rolling(RollingQuota { requests: 1_000, window })
    }

    fn rated(rate: u32) -> Quota {
        Quota::Bucket(BucketQuota { rate: Rate::per_second(rate), burst: 1_000 })
    }

    fn kept_so(seconds: u64) -> Retention {
        let name = "window".to_owned();
        Retention {
            limits: vec![LimitRetention { name, window: seconds * 1_000_000, token: 0, most: 9 }],
        }
    }

    fn sweep(store: &MemoryStore, now: Tick) {
        (0..store.shards()).for_each(|nth| store.sweep(nth, now));
    }

    /// What every key has left, under each rate and under the window.
    fn usages(store: &MemoryStore, seconds: u64, now: Tick) -> Vec<u32> {
        let quotas = RATES.map(rated).into_iter().chain([window(seconds)]);
        let checks = quotas.flat_map(|quota| (0..KEYS).map(move |name| check(name, quota)));
        checks.map(|check| store.usage(&check, now).unwrap().remaining).collect()
    }

    fn upgraded(store: &MemoryStore, now: Tick) -> MemoryStore {
        let moment = Moment { tick: now, unix: UnixTime(now.0) };
        let next = MemoryStore::with_shards(100, 2);
        next.keep_until(store.kept_until());
        for closed in (0..store.shards()).map(|nth| store.close(nth).unwrap()) {
            let mut bytes = Vec::new();
            closed.each(now).for_each(|kept| snapshot::put(&mut bytes, kept, moment));
            let _ = snapshot::restore(&bytes, &next, moment).unwrap();
        }
        next
    }

    fn restarted(store: &MemoryStore, now: Tick) -> MemoryStore {
        let moment = Moment { tick: now, unix: UnixTime(now.0) };
        let bytes = snapshot::write((store, SyncedKeys::<[_; 0]>::default()), SEED, b"", moment);
        let next = MemoryStore::with_shards(100, 2);
        let _ = snapshot::read(&bytes, moment).unwrap().restore(&next);
        next
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(400))]

        /// Compares a store that is swept and transferred with one that drops states only when a
        /// window grows, and then only those that had expired.
        #[test]
        fn sweeps_restarts_and_upgrades_forget_no_state_that_could_decide_a_request(
            steps in prop::collection::vec(step(), 1..120),
        ) {
            let sharded = || MemoryStore::with_shards(100, 2);
            let (mut store, whole) = (sharded(), sharded());
            let (mut now, mut seconds) = (Tick(1_000_000_000_000), 1);
            for step in steps {
                match step {
                    Step::Wait(wait) => now = Tick(now.0 + wait),
                    Step::Charge(name, rate, times) => {
                        let quota = rate.map_or(window(seconds), |nth| rated(RATES[nth]));
                        for store in [&store, &whole] {
                            for _ in 0..times {
                                let _ = store.judge(&[check(name, quota)], now).unwrap();
                            }
                        }
                    }
                    Step::Grow => {
                        let longer = seconds * 5;
                        let kept = kept_so(seconds).longest_grown(&kept_so(longer));
                        for store in [&store, &whole] {
                            sweep(store, now);
                            store.keep_until(now.plus(kept));
                        }
                        seconds = longer.min(100_000);
                    }
                    Step::Sweep => sweep(&store, now),
                    Step::Restart => store = restarted(&store, now),
                    Step::Upgrade => store = upgraded(&store, now),
                }
                prop_assert_eq!(usages(&store, seconds, now), usages(&whole, seconds, now));
            }
        }
    }

    /// Rules with two plans, one with a slow refill; the directory file has `in_a` on `plan`.
    fn rules(plan: &str) -> Rules {
        let shipped = include_str!("../../../config/gateway.toml");
        let values = |rate| format!("limits.instance = {{ rate = {rate}, burst = 200 }}\n");
        let plans = [("[plans.free]\n", 1), ("[plans.pro]\n", 50)];
        let text = plans.iter().fold(shipped.to_owned(), |text, (head, rate)| {
            text.replacen(head, &format!("{head}{}", values(*rate)), 1)
        });
        let entries = format!(
            "[workspaces.ws_a]\nplan = \"{plan}\"\n[instances.in_a]\nworkspace = \"ws_a\"\n"
        );
        let (document, of_directory) = (Document::new("g", &text), Document::new("d", &entries));
        let raw = crate::settings::read::read(&document).made;
        let directory = Directory::read(&of_directory, &raw.settings.workspaces);
        let rules = rules::compile::check((&raw, &document), (&directory, &of_directory), SEED);
        assert_eq!((document.diagnostics(), of_directory.diagnostics()), (Vec::new(), Vec::new()));
        rules
    }

    /// What `in_a` has left by the second check, ten seconds and ten sweeps after the first check
    /// has used the whole burst of a fast plan.
    fn left_after_a_move(rules: [&Rules; 2], checks: [LimitCheck; 2]) -> u32 {
        let store = MemoryStore::with_shards(100, 2);
        let now = Tick(1_000_000_000_000);
        for _ in 0..200 {
            assert!(store.judge(&[checks[0]], now).unwrap().is_admitted());
        }
        Retention::of(rules[0]).retain_in(&store, rules[1], now);
        for second in 1..=10 {
            sweep(&store, now.plus(Duration::from_secs(second)));
        }
        store.usage(&checks[1], now.plus(Duration::from_secs(10))).unwrap().remaining
    }

    fn instance_check(rules: &Rules, known: Option<&TenantEntries>) -> LimitCheck {
        let names = TenantRefs { instance: Some("in_a"), ..TenantRefs::default() };
        let identity = rules.identify(&names, known);
        rules.key_checks("instance", "in_a", &identity, Moment::default()).unwrap().checks[0].1
    }

    #[test]
    fn a_tenant_on_a_slower_plan_has_no_fresh_burst_by_a_reload() {
        let [fast, slow] = ["pro", "free"].map(rules);
        let checks = [&fast, &slow].map(|rules| instance_check(rules, None));
        assert_eq!(left_after_a_move([&fast, &slow], checks), 10, "one a second, not two hundred");
    }

    #[test]
    fn a_tenant_on_a_slower_plan_has_no_fresh_burst_with_a_remote_directory() {
        let rules = rules("free");
        let known = |plan: &str| {
            let tenant = |name: &str, scope, parent: Option<&str>, plan| Tenant {
                name: name.into(),
                owner: SEED.owner(scope, name.as_bytes()),
                parent: parent.map(Into::into),
                plan,
                quotas: Vec::new(),
            };
            let plan = rules.plans.iter().position(|own| own.name == plan);
            TenantEntries {
                workspace: Some(tenant("ws_a", Scope::Workspace, None, plan).into()),
                instance: Some(tenant("in_a", Scope::Instance, Some("ws_a"), None).into()),
                organisation: None,
            }
        };
        let checks = ["pro", "free"].map(|plan| instance_check(&rules, Some(&known(plan))));
        assert_eq!(left_after_a_move([&rules, &rules], checks), 10);
    }

    #[test]
    fn only_a_longer_window_retains_earlier_states() {
        let kept = |old, new| kept_so(old).longest_grown(&kept_so(new));
        assert_eq!(kept(60, 600), Duration::from_secs(600));
        assert_eq!(kept(600, 60), Duration::ZERO);
        let rated = |token| {
            let name = "bucket".to_owned();
            Retention { limits: vec![LimitRetention { name, window: 0, token, most: 200 }] }
        };
        let seconds = |old, new| rated(old).longest_grown(&rated(new)).as_secs();
        assert_eq!(seconds(20_000, 1_000_000), 200, "two hundred tokens, one a second");
        assert_eq!(seconds(1_000_000, 20_000), 0);
        assert_eq!(seconds(1, 3_600_000_000 * 24), KEPT_MAX.as_secs());
        assert_eq!(Retention::default().longest_grown(&kept_so(60)), Duration::ZERO);
    }
}
