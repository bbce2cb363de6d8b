//! Finds a limit and one of its keys by the names that an operator gives.
//!
//! Not here: what a request is charged to (`rules`), the callers (`operations`, `cli`).

use weir_common::time::Moment;

use crate::limit::{LimitCheck, Quota};
use crate::request::route::Index;
use crate::rules::charges::TokenChecks;
use crate::rules::quota::value_of;
use crate::rules::tenant::{Identity, TenantRefs};
use crate::rules::{Limit, Rules};
use crate::settings::limit_key::{KeyPart, LimitKey};

/// The checks that a limit makes for one key.
pub struct KeyChecks<'r> {
    /// What the limit counts by.
    pub kind: &'r LimitKey,
    /// Whether the directory knows the key. Always true for an address.
    pub known: bool,
    /// One check for each value that may apply, with the plan of the request's workspace that
    /// sets it. The first, without a plan, applies to all other requests.
    pub checks: Vec<(Option<&'r str>, LimitCheck)>,
}

impl Rules {
    /// The limit of this name, and its index.
    #[must_use]
    pub fn limit(&self, name: &str) -> Option<(Index, &Limit)> {
        self.limits.iter().enumerate().find(|(_, limit)| &*limit.name == name)
    }

    /// The tenants that `name` refers to as a key of a limit; none where `name` cannot be a key of
    /// it. For a limit that counts by no tenant the references are empty.
    #[must_use]
    pub fn named<'n>(&self, limit_name: &str, name: &'n str) -> Option<TenantRefs<'n>> {
        let (_, limit) = self.limit(limit_name)?;
        self.named_tenants(&limit.key, name)
    }

    /// The checks that a limit makes for `name`, whose tenants are those of `identity`. None where
    /// no request is charged to it.
    #[must_use]
    pub fn key_checks(
        &self,
        limit_name: &str,
        name: &str,
        identity: &Identity<'_>,
        now: Moment,
    ) -> Option<KeyChecks<'_>> {
        let (index, limit) = self.limit(limit_name)?;
        let subject = self.named_subject(&limit.key, name, identity)?;
        let slot = self.slot_of(limit, &subject, identity);
        let quota = self.quota(index, limit, identity);
        let own = self.check((index, limit), &subject, (quota, slot), now);
        let mut checks = vec![(None, own)];
        for (plan, quota) in self.values_of_workspaces(index, limit, identity) {
            checks.push((Some(plan), self.check((index, limit), &subject, (quota, slot), now)));
        }
        let differs = checks.iter().any(|(_, check)| check.quota != own.quota);
        checks.truncate(if differs { checks.len() } else { 1 });
        let known = limit.key.is_address() || subject.tenant.is_some();
        Some(KeyChecks { kind: &limit.key, known, checks })
    }

    /// The checks of the tokens of an address, where `limit_name` is what they are charged by.
    #[must_use]
    pub fn named_token_checks(
        &self,
        limit_name: &str,
        name: &str,
        now: Moment,
    ) -> Option<TokenChecks> {
        let (index, limit) = self.limit(limit_name)?;
        let identity = self.identify(&TenantRefs::default(), None);
        let subject = self.named_subject(&limit.key, name, &identity)?;
        let network = subject.name.strip_suffix("/64").unwrap_or(&subject.name);
        let address = network.parse().ok().filter(|_| self.refused == Some(index))?;
        self.token_checks(address, now)
    }

    /// The values that the plans of an organisation's workspaces set for it, where it has no plan
    /// of its own. A remote directory does not list workspaces, so any plan may apply.
    fn values_of_workspaces(
        &self,
        index: Index,
        limit: &Limit,
        identity: &Identity<'_>,
    ) -> Vec<(&str, Quota)> {
        let organisation = identity.organisation.as_ref().filter(|_| identity.workspace.is_none());
        let Some(organisation) =
            organisation.filter(|_| limit.key.tenant() == Some(&KeyPart::Organisation))
        else {
            return Vec::new();
        };
        if organisation.tenant.is_some_and(|own| own.decides(index)) {
            return Vec::new();
        }
        let is_met = |plan: Index| {
            let mut workspaces = self.tenants.workspaces.values();
            !self.is_file
                || workspaces.any(|workspace| {
                    workspace.plan == Some(plan)
                        && workspace.parent.as_deref() == Some(&*organisation.name)
                })
        };
        let plans = self.plans.iter().enumerate().filter(|(plan, _)| is_met(*plan));
        plans.filter_map(|(_, plan)| Some((&*plan.name, value_of(&plan.quotas, index)?))).collect()
    }

    /// Every value that a limit has in the files: its own, its plans' and its tenants'.
    pub fn quotas_of(&self, limit: Index) -> impl Iterator<Item = Quota> {
        let own = self.limits.get(limit).map(|own| own.quota);
        let of_plans = self.values_of_plans(limit).map(|(_, quota)| quota);
        let of_tenants = self.tenants.quotas().filter(move |(index, _)| *index == limit);
        own.into_iter().chain(of_plans).chain(of_tenants.map(|(_, quota)| *quota))
    }

    /// The plans that override a limit, by name, each with its value.
    pub fn values_of_plans(&self, limit: Index) -> impl Iterator<Item = (&str, Quota)> {
        self.plans
            .iter()
            .filter_map(move |plan| Some((&*plan.name, value_of(&plan.quotas, limit)?)))
    }
}
