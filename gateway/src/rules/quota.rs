//! Finds how much a limit allows a request. (core)
//!
//! # Invariants
//!
//! 1. A tenant's own value precedes its plan's value, which precedes the limit's default.
//! 2. A key has a tenant's values only if it has exactly one tenant among its parts.
//!
//! Not here: what has been used (`limit`).

use weir_common::time::Moment;

use crate::limit::{LimitCheck, Quota};
use crate::request::route::Index;
use crate::rules::tenant::{Identity, Subject, Tenant};
use crate::rules::{Limit, Rules};
use crate::settings::limit_key::KeyPart;

/// Where a limit's value comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QuotaSource<'r> {
    /// From the tenant's entry in the directory.
    Tenant,
    /// From this plan.
    Plan(&'r str),
    /// From the limit's default.
    Limit,
}

impl Rules {
    /// Replaces the allowance of an earlier process's check if its limit now has only others: other
    /// windows, algorithms or calendars.
    pub fn adapt(&self, check: &mut LimitCheck, now: Moment) {
        let Some(limit) = self.limits.iter().find(|limit| limit.tag == check.limit) else { return };
        let then = check.lasting;
        check.horizon = limit.horizon.with(then);
        // The key of requests in flight is another one: such a check is made as it came.
        let is_kept = |now: &Quota| {
            let in_flight = |quota: &Quota| matches!(quota, Quota::Concurrency(_));
            now.is_alike(&then) || in_flight(&then) || in_flight(now)
        };
        if !limit.shapes.iter().any(is_kept) {
            let quota = limit.quota.at(now);
            (check.quota, check.lasting) = (quota, quota);
        }
    }

    /// How much a limit allows the tenants of a request, by the most specific value.
    #[must_use]
    pub fn quota(&self, index: Index, limit: &Limit, identity: &Identity<'_>) -> Quota {
        self.sourced(index, limit, identity).0
    }

    /// Like [`Rules::quota`], with the source of the value.
    #[must_use]
    pub fn sourced<'r>(
        &'r self,
        index: Index,
        limit: &Limit,
        identity: &Identity<'r>,
    ) -> (Quota, QuotaSource<'r>) {
        let own = match limit.key.tenant() {
            Some(KeyPart::Workspace) => &identity.workspace,
            Some(KeyPart::Organisation) => &identity.organisation,
            Some(KeyPart::Instance) => &identity.instance,
            _ => &None,
        };
        match own {
            Some(own) => self.quota_of(index, limit, own, identity),
            None => (limit.quota, QuotaSource::Limit),
        }
    }

    /// How much a limit allows `own`, the only tenant of its key, and the source of the value.
    pub(super) fn quota_of<'r>(
        &'r self,
        index: Index,
        limit: &Limit,
        own: &Subject<'r>,
        identity: &Identity<'r>,
    ) -> (Quota, QuotaSource<'r>) {
        if let Some(quota) = own.tenant.and_then(|own| value_of(&own.quotas, index)) {
            return (quota, QuotaSource::Tenant);
        }
        let workspace = identity.workspace.as_ref().and_then(|workspace| workspace.tenant);
        let plan = own
            .tenant
            .and_then(|own| own.plan)
            .or_else(|| workspace.and_then(|workspace| workspace.plan))
            .and_then(|plan| self.plans.get(plan));
        match plan.and_then(|plan| Some((value_of(&plan.quotas, index)?, plan))) {
            Some((quota, plan)) => (quota, QuotaSource::Plan(&plan.name)),
            None => (limit.quota, QuotaSource::Limit),
        }
    }
}

impl Tenant {
    /// Whether its own entry decides the value of a limit, whatever the plans of others are.
    #[must_use]
    pub fn decides(&self, limit: Index) -> bool {
        self.plan.is_some() || value_of(&self.quotas, limit).is_some()
    }
}

pub(super) fn value_of(quotas: &[(Index, Quota)], limit: Index) -> Option<Quota> {
    quotas.iter().find(|(index, _)| *index == limit).map(|(_, quota)| *quota)
}
