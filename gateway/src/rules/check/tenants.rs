//! Finds what is wrong in the directory, and makes tenants of the rest.

use weir_common::reader::At;

use super::{Checker, lookup, names};
use crate::identify::{Tenant, Tenants};
use crate::limit::key::Scope;
use crate::route::Hosts;
use crate::rules::{Limit, Plan};
use crate::settings::LimitKey;

impl Checker<'_> {
    pub(super) fn tenants(&self, limits: &[Limit], plans: &[Plan]) -> Tenants {
        let mut tenants = Tenants::default();
        let plan_of = |plan: &Option<At<String>>| {
            let plan = plan.as_ref()?;
            lookup(self.of_directory, plan, "plan", names(plans, |plan| &plan.name))
        };
        let quotas = |values: &[_], key| self.quotas(self.of_directory, values, limits, Some(key));
        for (name, organisation) in &self.directory.organisations {
            let tenant = Tenant {
                name: name.as_str().into(),
                owner: self.seed.owner(Scope::Organisation, name.as_bytes()),
                parent: None,
                plan: plan_of(&organisation.plan),
                quotas: quotas(&organisation.limits, LimitKey::Organisation),
            };
            tenants.organisations.insert(name.as_str().into(), tenant);
        }
        for (name, workspace) in &self.directory.workspaces {
            let tenant = Tenant {
                name: name.as_str().into(),
                owner: self.seed.owner(Scope::Workspace, name.as_bytes()),
                parent: workspace.organisation.as_ref().map(|name| name.value.as_str().into()),
                plan: plan_of(&workspace.plan),
                quotas: quotas(&workspace.limits, LimitKey::Workspace),
            };
            tenants.workspaces.insert(name.as_str().into(), tenant);
        }
        for (name, instance) in &self.directory.instances {
            let workspace = instance.workspace.as_ref().map(|name| name.value.as_str());
            let tenant = Tenant {
                name: name.as_str().into(),
                owner: self.seed.owner(Scope::Instance, name.as_bytes()),
                parent: workspace.map(Into::into),
                plan: None,
                quotas: quotas(&instance.limits, LimitKey::Instance),
            };
            let plan = workspace.and_then(|name| tenants.workspaces.get(name)).and_then(|w| w.plan);
            let plan = plan.and_then(|plan| plans.get(plan));
            if !plan.is_some_and(|plan| plan.per_instance_limits) {
                for (limit, _) in &instance.limits {
                    let plan = plan.map_or("no plan", |plan| &plan.name);
                    let text = format!("`{name}` is on {plan}, which has no per_instance_limits");
                    self.of_directory.fault(limit.at, text);
                }
            }
            tenants.instances.insert(name.as_str().into(), tenant);
        }
        tenants
    }

    /// Adds the domains that instances have of their own to the plane that names instances.
    pub(super) fn domains(&self, hosts: &mut Hosts) {
        let mut planes =
            (0..self.settings.planes.len()).filter(|plane| self.names_instance(*plane));
        let plane = planes.next().filter(|_| planes.next().is_none());
        for (name, instance) in &self.directory.instances {
            for domain in &instance.domains {
                match plane {
                    None => self.of_directory.fault(
                        domain.at,
                        "domains need one plane, and no more, with {instance} in its hosts",
                    ),
                    Some(plane) if !hosts.add(&domain.value, plane, Some(name)) => {
                        let text = format!("`{}` is a host of a plane already", domain.value);
                        self.of_directory.fault(domain.at, text);
                    }
                    Some(_) => {}
                }
            }
        }
    }
}
