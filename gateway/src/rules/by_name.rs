//! Finds a limit and one of its keys by the names that an operator gives.
//!
//! Not here: what a request is charged to (`rules`), the callers (`operations`, `cli`).

use weir_common::identifier::IdForm;

use crate::limit::key::Key;
use crate::limit::{LimitCheck, Quota};
use crate::request::route::Index;
use crate::rules::quota::value_of;
use crate::rules::tenant::{Identity, OWN_ORGANISATION, Subject, Tenant, TenantRefs};
use crate::rules::{Limit, Rules, limit_check};
use crate::settings::LimitKey;

/// The checks that a limit makes for one key.
pub struct KeyChecks<'r> {
    /// The key of its state.
    pub key: Key,
    /// What the limit counts by.
    pub kind: LimitKey,
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

    /// The tenant that `name` refers to as a key of a limit; none where `name` cannot be a key of
    /// it. For a limit by address the references are empty.
    #[must_use]
    pub fn named<'n>(&self, limit_name: &str, name: &'n str) -> Option<TenantRefs<'n>> {
        let (_, limit) = self.limit(limit_name)?;
        if limit.key == LimitKey::Address {
            return Some(TenantRefs::default());
        }
        let own = name.strip_prefix(OWN_ORGANISATION);
        let is_workspace = limit.key == LimitKey::Workspace || own.is_some();
        let any = IdForm::default();
        let form = if is_workspace { &self.workspaces } else { &any };
        if !form.allows(own.unwrap_or(name)) {
            return None;
        }
        let none = TenantRefs::default();
        Some(match (limit.key, own) {
            (LimitKey::Organisation, Some(workspace)) => {
                TenantRefs { workspace: Some(workspace), ..none }
            }
            (_, Some(_)) => return None,
            (LimitKey::Workspace, _) => TenantRefs { workspace: Some(name), ..none },
            (LimitKey::Organisation, _) => TenantRefs { organisation: Some(name), ..none },
            (LimitKey::Instance | LimitKey::Address, _) => {
                TenantRefs { instance: Some(name), ..none }
            }
        })
    }

    /// The checks that a limit makes for `name`: an address, or the tenant of `identity`. None
    /// where no request is charged to it.
    #[must_use]
    pub fn key_checks(
        &self,
        limit_name: &str,
        name: &str,
        identity: &Identity<'_>,
    ) -> Option<KeyChecks<'_>> {
        let (index, limit) = self.limit(limit_name)?;
        let subject = match limit.key {
            LimitKey::Workspace => identity.workspace.as_ref(),
            LimitKey::Organisation => identity.organisation.as_ref(),
            LimitKey::Instance => identity.instance.as_ref(),
            LimitKey::Address => {
                let network = name.strip_suffix("/64").unwrap_or(name);
                let subject = Subject::address(&self.seed, network.parse().ok()?);
                let checks = vec![(None, limit_check(limit, &subject, limit.quota))];
                return Some(KeyChecks {
                    key: Key::new(subject.owner, limit.tag),
                    kind: limit.key,
                    known: true,
                    checks,
                });
            }
        };
        // A workspace that belongs to an organisation is not charged as `workspace:<name>`.
        let subject = subject.filter(|subject| &*subject.name == name)?;
        let own = limit_check(limit, subject, self.quota(index, limit, identity));
        let mut checks = vec![(None, own)];
        for (plan, quota) in self.values_of_workspaces(index, limit, identity) {
            checks.push((Some(plan), limit_check(limit, subject, quota)));
        }
        let differs = checks.iter().any(|(_, check)| check.quota != own.quota);
        checks.truncate(if differs { checks.len() } else { 1 });
        let known = subject.tenant.is_some();
        Some(KeyChecks { key: own.key, kind: limit.key, known, checks })
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
        let Some(organisation) = organisation.filter(|_| limit.key == LimitKey::Organisation)
        else {
            return Vec::new();
        };
        let decides =
            |tenant: &Tenant| tenant.plan.is_some() || value_of(&tenant.quotas, index).is_some();
        if organisation.tenant.is_some_and(decides) {
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

    /// The plans that override a limit, by name, each with its value.
    pub fn values_of_plans(&self, limit: Index) -> impl Iterator<Item = (&str, Quota)> {
        self.plans
            .iter()
            .filter_map(move |plan| Some((&*plan.name, value_of(&plan.quotas, limit)?)))
    }
}
