//! Reports errors in the directory, and compiles its entries into tenants.
//!
//! The same code checks an entry of the file and one fetched over HTTP (`identity::directory`);
//! only checks that need the whole file are made for the file alone.

use weir_common::config::document::{Document, Spanned};
use weir_common::directory;
use weir_common::directory::values::Values;

use crate::limit::key::{Scope, Seed};
use crate::request::route::{Hosts, Index};
use crate::rules::compile::{Checker, lookup, names, quotas};
use crate::rules::tenant::{Tenant, Tenants};
use crate::rules::{Limit, Plan};
use crate::settings::limit_key::KeyPart;

/// Compiles entries into tenants. Errors in an entry are reported to the document.
pub struct Entries<'c> {
    /// The document of the entries.
    pub document: &'c Document,
    /// The limits that entries may override.
    pub limits: &'c [Limit],
    /// The plans that entries may name.
    pub plans: &'c [Plan],
    /// The seed of their keys.
    pub seed: Seed,
}

impl Entries<'_> {
    /// An organisation.
    pub fn organisation(&self, name: &str, entry: &directory::Organisation) -> Tenant {
        Tenant {
            plan: self.plan(&entry.plan),
            quotas: self.quotas(&entry.limits, &KeyPart::Organisation),
            ..self.bare(Scope::Organisation, name)
        }
    }

    /// A workspace.
    pub fn workspace(&self, name: &str, entry: &directory::Workspace) -> Tenant {
        Tenant {
            parent: entry.organisation.as_ref().map(|name| name.value.as_str().into()),
            plan: self.plan(&entry.plan),
            quotas: self.quotas(&entry.limits, &KeyPart::Workspace),
            ..self.bare(Scope::Workspace, name)
        }
    }

    /// An instance. [`own_values_refused`] decides whether it may have values of its own.
    pub fn instance(&self, name: &str, entry: &directory::Instance) -> Tenant {
        Tenant {
            parent: entry.workspace.as_ref().map(|name| name.value.as_str().into()),
            quotas: self.quotas(&entry.limits, &KeyPart::Instance),
            ..self.bare(Scope::Instance, name)
        }
    }

    fn bare(&self, scope: Scope, name: &str) -> Tenant {
        let owner = self.seed.owner(scope, name.as_bytes());
        Tenant { name: name.into(), owner, parent: None, plan: None, quotas: Vec::new() }
    }

    fn plan(&self, plan: &Option<Spanned<String>>) -> Option<Index> {
        let known = names(self.plans, |plan| &plan.name);
        lookup(self.document, plan.as_ref()?, "plan", known)
    }

    fn quotas(
        &self,
        values: &[(Spanned<String>, Values)],
        key: &KeyPart,
    ) -> Vec<(Index, crate::limit::Quota)> {
        quotas(self.document, values, self.limits, Some(key))
    }
}

/// The message when an instance may not have values of its own, because its workspace's plan does
/// not allow it.
pub fn own_values_refused(instance: &str, plan: Option<&Plan>) -> Option<String> {
    if plan.is_some_and(|plan| plan.per_instance_limits) {
        return None;
    }
    let plan = match plan {
        Some(plan) => format!("the plan `{}` of its workspace does not set", plan.name),
        None => "its workspace has no plan that sets".to_owned(),
    };
    let needed = "per_instance_limits = true";
    Some(format!("instance `{instance}` cannot have limits of its own: {plan} {needed}"))
}

impl Checker<'_> {
    pub(super) fn tenants(&self, limits: &[Limit], plans: &[Plan]) -> Tenants {
        let mut tenants = Tenants::default();
        let entries = Entries { document: self.of_directory, limits, plans, seed: self.seed };
        for (name, organisation) in &self.directory.organisations {
            let tenant = entries.organisation(name, organisation);
            tenants.organisations.insert(name.as_str().into(), tenant);
        }
        for (name, workspace) in &self.directory.workspaces {
            let tenant = entries.workspace(name, workspace);
            tenants.workspaces.insert(name.as_str().into(), tenant);
        }
        for (name, instance) in &self.directory.instances {
            let tenant = entries.instance(name, instance);
            let workspace = tenant.parent.as_ref().and_then(|name| tenants.workspaces.get(name));
            let plan = workspace.and_then(|workspace| workspace.plan);
            let refused = own_values_refused(name, plan.and_then(|plan| plans.get(plan)));
            for (limit, _) in &instance.limits {
                if let Some(text) = &refused {
                    self.of_directory.fault(limit.at, text.as_str());
                }
            }
            tenants.instances.insert(name.as_str().into(), tenant);
        }
        tenants
    }

    /// Adds the instances' own domains to the plane whose hosts name instances.
    pub(super) fn domains(&self, hosts: &mut Hosts) {
        let mut planes = (0..self.raw.planes.len()).filter(|plane| self.names_instance(*plane));
        let plane = planes.next().filter(|_| planes.next().is_none());
        for (name, instance) in &self.directory.instances {
            for domain in &instance.domains {
                match plane {
                    None => self.of_directory.fault(
                        domain.at,
                        "domains need exactly one plane with {instance} in its hosts",
                    ),
                    // A pattern's host is another instance's, or will be.
                    Some(plane)
                        if hosts.find(&domain.value).is_some()
                            || !hosts.add(&domain.value, plane, Some(name)) =>
                    {
                        let text = format!("`{}` is already a host of a plane", domain.value);
                        self.of_directory.fault(domain.at, text);
                    }
                    Some(_) => {}
                }
            }
        }
    }
}
