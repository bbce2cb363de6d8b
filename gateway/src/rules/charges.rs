//! What a request is charged: one check for each of its limits. (core)
//!
//! # Invariants
//!
//! 1. Each limit of a route is checked, or the request is charged to its address instead.
//! 2. A limit is checked once for a request.
//!
//! # Not here
//!
//! The key of a request under a limit (`rules::subject`), how much it allows (`rules::quota`), the
//! check itself (`limit`).

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use arrayvec::ArrayVec;
use weir_common::limit::rolling::RollingQuota;
use weir_common::time::Moment;

use crate::limit::key::Key;
use crate::limit::{CHECKS_MAX, LimitCheck, Quota};
use crate::request::route::Index;
use crate::rules::subject::KeySources;
use crate::rules::tenant::{Identity, Subject};
use crate::rules::{Limit, Route, Rules};
use crate::settings::RouteCost;
use crate::settings::limit_key::KeyPart;

/// The name of what invalid tokens have used: no configured limit has a space in its name.
const INVALID_TOKENS: &str = "invalid tokens";

/// The name of what tokens have used that an identity server gave no answer about.
const UNANSWERED_TOKENS: &str = "unanswered tokens";

/// How long a token without an answer counts.
const UNANSWERED_WINDOW: Duration = Duration::from_secs(10);

/// How many tokens without an answer an address may send in that time, where its limit allows as
/// many in its own window: what it may have in flight at once.
const UNANSWERED_MIN: u32 = 16;

/// What tokens of an address are charged to.
#[derive(Clone, Copy, Debug)]
pub struct TokenChecks {
    /// One that is not valid.
    pub invalid: LimitCheck,
    /// One that the identity server gives no answer about.
    pub unanswered: LimitCheck,
}

/// The limit of a check, and the tenant or address that is charged.
#[derive(Clone, Debug)]
pub struct Charge {
    /// The limit.
    pub limit: Index,
    /// The tenant or address, as in logs and on the admin listener.
    pub name: Arc<str>,
    /// The plan of the tenant, or of the request's workspace.
    pub plan: Option<Index>,
}

/// The checks of one request, and what each is charged to.
#[derive(Clone, Debug, Default)]
pub struct Charges {
    /// The checks.
    pub checks: ArrayVec<LimitCheck, CHECKS_MAX>,
    /// What each check is charged to, in the same order.
    pub charges: ArrayVec<Charge, CHECKS_MAX>,
}

impl TokenChecks {
    /// Both.
    #[must_use]
    pub fn each(&self) -> [&LimitCheck; 2] {
        [&self.invalid, &self.unanswered]
    }
}

impl Rules {
    /// Adds the checks of a request on this route.
    pub fn add_checks(&self, route: &Route, sources: &KeySources<'_>, charges: &mut Charges) {
        let mut by_address = false;
        for index in &route.limits {
            let Some(limit) = self.limits.get(*index) else { continue };
            match limit.key.parts() {
                [KeyPart::Address] => {
                    self.add_of_address(*index, sources.address, sources.now, charges);
                }
                // One tenant is the frequent key: it is charged without an allocation.
                [part] if let Some(subject) = self.tenant_of(part, sources.identity) => {
                    let (quota, _) = self.quota_of(*index, limit, subject, sources.identity);
                    let slot = self.slot_of(limit, subject, sources.identity);
                    let check = self.check((*index, limit), subject, (quota, slot), sources.now);
                    let plan = plan_of(subject, sources.identity);
                    let name = subject.name.clone();
                    charges.push(check, Charge { limit: *index, name, plan });
                }
                _ => by_address |= !self.add_combined((*index, limit), sources, charges),
            }
        }
        if by_address {
            self.add_by_address(sources.address, sources.now, charges);
        }
        // Each costs 1 already.
        if let RouteCost::Fixed(cost @ 2..) = route.cost {
            charges.cost(cost);
        }
    }

    /// Charges a key of claims, headers or several parts, or one that the request lacks. False
    /// where it is charged to its address.
    #[inline(never)]
    fn add_combined(
        &self,
        (index, limit): (Index, &Limit),
        sources: &KeySources<'_>,
        charges: &mut Charges,
    ) -> bool {
        let Some((check, charge)) = self.check_of(index, limit, sources) else { return false };
        charges.push(check, charge);
        true
    }

    /// The check that a limit makes for the key of a request, whatever its route; none where the
    /// request lacks a part of it.
    #[must_use]
    pub fn check_of(
        &self,
        index: Index,
        limit: &Limit,
        sources: &KeySources<'_>,
    ) -> Option<(LimitCheck, Charge)> {
        let subject = self.combined(&limit.key, sources)?;
        let quota = self.quota(index, limit, sources.identity);
        let plan = plan_of(&subject, sources.identity);
        let slot = self.slot_of(limit, &subject, sources.identity);
        let check = self.check((index, limit), &subject, (quota, slot), sources.now);
        Some((check, Charge { limit: index, name: subject.name, plan }))
    }

    /// Charges a request that has no tenant to its address.
    fn add_by_address(&self, address: IpAddr, now: Moment, charges: &mut Charges) {
        for index in &self.unknown_limits {
            self.add_of_address(*index, address, now, charges);
        }
    }

    /// Charges a request that the gateway refuses, or answers itself, to its address.
    pub fn add_of_refusal(&self, address: IpAddr, now: Moment, charges: &mut Charges) {
        if let Some(index) = self.refused {
            self.add_of_address(index, address, now, charges);
        }
    }

    /// What a token that is not valid charges to its address in addition to its refusal: by the
    /// quota of `limits.refused`, counted apart. None where that is not enforced.
    #[must_use]
    pub fn token_checks(&self, address: IpAddr, now: Moment) -> Option<TokenChecks> {
        let index = self.refused?;
        let limit = self.limits.get(index).filter(|limit| limit.enforced)?;
        let subject = Subject::address(&self.seed, address);
        let slot = subject.owner.slot();
        let check = |quota, name| {
            let check = self.check((index, limit), &subject, (quota, slot), now);
            let tag = self.seed.limit(name);
            LimitCheck { key: Key::new(subject.owner, tag), limit: tag, ..check }
        };
        Some(TokenChecks {
            invalid: check(limit.quota, INVALID_TOKENS),
            unanswered: check(briefly(limit.quota), UNANSWERED_TOKENS),
        })
    }

    fn add_of_address(&self, index: Index, address: IpAddr, now: Moment, to: &mut Charges) {
        let Some(limit) = self.limits.get(index) else { return };
        if !to.charges.iter().any(|charge| charge.limit == index) {
            let subject = Subject::address(&self.seed, address);
            let slot = subject.owner.slot();
            let check = self.check((index, limit), &subject, (limit.quota, slot), now);
            to.push(check, Charge { limit: index, name: subject.name, plan: None });
        }
    }

    /// The slot of a key in a shared store, which has all that one call can charge. In a Cluster
    /// workspaces share their organisation's; other keys share that of their first part.
    pub(super) fn slot_of(
        &self,
        limit: &Limit,
        subject: &Subject<'_>,
        identity: &Identity<'_>,
    ) -> u64 {
        let by_organisation =
            |part: &KeyPart| matches!(part, KeyPart::Workspace | KeyPart::Organisation);
        let shares = self.is_cluster && limit.key.parts().iter().any(by_organisation);
        let owner = if shares { identity.slot_owner(&self.seed) } else { None };
        owner.unwrap_or(subject.first).slot()
    }

    /// Checks whether a request of `subject` that costs 1 fits a limit, which allows it `quota`.
    /// Its key is in the slot `slot` of a shared store.
    pub(super) fn check(
        &self,
        (index, limit): (Index, &Limit),
        subject: &Subject<'_>,
        (quota, slot): (Quota, u64),
        now: Moment,
    ) -> LimitCheck {
        let quota = quota.at(now);
        let varies = limit.key.tenant() == Some(&KeyPart::Organisation)
            && !subject.tenant.is_some_and(|own| own.decides(index));
        LimitCheck {
            key: Key::new(subject.owner, self.tag_of(limit, quota, varies)),
            limit: limit.tag,
            quota,
            lasting: quota,
            // A remote directory may have values that the settings do not know.
            horizon: match self.is_file {
                true => limit.horizon,
                false => limit.horizon.with(quota),
            },
            cost: 1,
            enforced: limit.enforced,
            shown: limit.shown,
            known: subject.tenant.is_some(),
            on_failure: limit.on_failure,
            slot,
        }
    }
}

/// A quota's share of [`UNANSWERED_WINDOW`], if its own window is longer: no valid token is refused
/// for long because the identity server did not answer for a while.
fn briefly(quota: Quota) -> Quota {
    let (limit, window) = (quota.limit(), quota.window());
    if window <= UNANSWERED_WINDOW {
        return quota;
    }
    let share = u128::from(limit) * UNANSWERED_WINDOW.as_micros() / window.as_micros();
    let requests = u32::try_from(share).unwrap_or(limit).max(limit.min(UNANSWERED_MIN));
    Quota::Rolling(RollingQuota { requests, window: UNANSWERED_WINDOW })
}

/// The plan of a tenant, or else of the request's workspace.
fn plan_of(subject: &Subject<'_>, identity: &Identity<'_>) -> Option<Index> {
    let own = subject.tenant.and_then(|own| own.plan);
    let workspace = || identity.workspace.as_ref().and_then(|workspace| workspace.tenant);
    own.or_else(|| workspace().and_then(|workspace| workspace.plan))
}

impl Charges {
    /// Sets what the request costs in each of its limits.
    pub fn cost(&mut self, cost: u32) {
        self.checks.iter_mut().for_each(|check| check.cost = cost);
    }

    fn push(&mut self, check: LimitCheck, charge: Charge) {
        // `rules::compile` allows at most `CHECKS_MAX` limits per request.
        if !self.checks.is_full() {
            self.checks.push(check);
            self.charges.push(charge);
        }
    }
}

#[cfg(test)]
mod tests {
    use weir_common::limit::token_bucket::{BucketQuota, Rate};

    use super::*;

    #[test]
    fn tokens_without_an_answer_are_limited_at_the_rate_of_the_limit_for_ten_seconds() {
        let rolling = |requests, seconds| {
            Quota::Rolling(RollingQuota { requests, window: Duration::from_secs(seconds) })
        };
        for (own, brief) in [
            (rolling(600, 60), rolling(100, 10)),
            (rolling(60, 60), rolling(16, 10)),
            (rolling(5, 60), rolling(5, 10)),
            (rolling(u32::MAX, 60), rolling(u32::MAX / 6, 10)),
            (rolling(9, 10), rolling(9, 10)),
        ] {
            assert_eq!(briefly(own), brief, "{own:?}");
        }
        let bucket =
            |rate, burst| Quota::Bucket(BucketQuota { rate: Rate::per_second(rate), burst });
        assert_eq!(briefly(bucket(10, 100)), bucket(10, 100), "full again in ten seconds");
        assert_eq!(briefly(bucket(1, 100)), rolling(16, 10));
    }
}
