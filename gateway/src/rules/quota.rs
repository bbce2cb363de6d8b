//! Finds how much a limit allows a request. (core)
//!
//! Invariant: a tenant's own value precedes its plan's value, which precedes the limit's default.
//!
//! Not here: what has been used (`limit`).

use crate::limit::Quota;
use crate::request::route::Index;
use crate::rules::tenant::{Identity, Subject, Tenant};
use crate::rules::{Limit, Rules};
use crate::settings::LimitKey;

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
        let workspace = tenant_of(&identity.workspace);
        let own = match limit.key {
            LimitKey::Workspace => workspace,
            LimitKey::Organisation => tenant_of(&identity.organisation),
            LimitKey::Instance => tenant_of(&identity.instance),
            LimitKey::Address => None,
        };
        if let Some(quota) = own.and_then(|own| value_of(&own.quotas, index)) {
            return (quota, QuotaSource::Tenant);
        }
        let plan = own
            .and_then(|own| own.plan)
            .or_else(|| workspace.and_then(|workspace| workspace.plan))
            .and_then(|plan| self.plans.get(plan));
        match plan.and_then(|plan| Some((value_of(&plan.quotas, index)?, plan))) {
            Some((quota, plan)) => (quota, QuotaSource::Plan(&plan.name)),
            None => (limit.quota, QuotaSource::Limit),
        }
    }
}

fn tenant_of<'t>(subject: &Option<Subject<'t>>) -> Option<&'t Tenant> {
    subject.as_ref().and_then(|subject| subject.tenant)
}

pub(super) fn value_of(quotas: &[(Index, Quota)], limit: Index) -> Option<Quota> {
    quotas.iter().find(|(index, _)| *index == limit).map(|(_, quota)| *quota)
}
