//! Ignores an instance's own values where its workspace's plan does not allow them.
//!
//! # Invariants
//!
//! 1. Values that a plan does not allow refuse no request: those of the plan or of the limit apply.
//! 2. Values are not ignored because the workspace's cached entry is older than the instance's:
//!    that entry is looked up again first, once for all instances while what is found is good.
//!
//! # Not here
//!
//! The same for a directory file, where such values are an error (`rules::compile::tenants`).

use std::sync::Arc;

use weir_common::directory::error_log;
use weir_common::directory::response::TenantKind;

use crate::identity::directory::unknown_budget::UnknownBudget;
use crate::identity::directory::{DirectoryUnavailable, Lookup, RemoteDirectory};
use crate::rules::Rules;
use crate::rules::compile::tenants::own_values_refused;
use crate::rules::tenant::{Tenant, TenantEntries};

impl RemoteDirectory {
    /// Removes the instance's own values if its workspace's plan does not allow them.
    pub(super) async fn check_own_values(
        &self,
        rules: &Rules,
        known: &mut TenantEntries,
        budget: &UnknownBudget<'_>,
    ) -> Result<(), DirectoryUnavailable> {
        let Some(instance) = &known.instance else { return Ok(()) };
        if refused(rules, instance, known.workspace.as_deref()).is_none() {
            return Ok(());
        }
        let lookup = Lookup::new(rules, budget, TenantKind::Instance, &instance.name);
        // Boxed: this is rare, and inline it would make every request's future larger.
        let workspace = Box::pin(self.parent(lookup, instance)).await?;
        if let Some(why) = refused(rules, instance, workspace.as_deref()) {
            self.shared.metrics.directory_unusable.inc();
            if self.shared.ignored_log.due(lookup.owner, lookup.now).is_some() {
                error_log::unusable(lookup.kind, lookup.name, &why);
            }
            let bare = Tenant { quotas: Vec::new(), ..Tenant::clone(instance) };
            known.instance = Some(Arc::new(bare));
        }
        // A path may name another workspace than the instance's.
        let name = |tenant: &Option<Arc<Tenant>>| Some(tenant.as_ref()?.name.clone());
        if name(&known.workspace) == name(&workspace) {
            known.workspace = workspace;
        }
        Ok(())
    }

    /// The workspace of an instance, from an entry that is no older than the instance's.
    async fn parent(
        &self,
        instance: Lookup<'_>,
        tenant: &Tenant,
    ) -> Result<Option<Arc<Tenant>>, DirectoryUnavailable> {
        let Some(name) = tenant.parent.as_deref() else { return Ok(None) };
        let Lookup { rules, budget, .. } = instance;
        let lookup = Lookup::new(rules, budget, TenantKind::Workspace, name);
        self.shared.cache.expire_if_older(&lookup.owner, &instance.owner).await;
        self.one(Lookup { referenced: true, ..lookup }).await
    }
}

/// Why an instance may not have the values of its own that it has; `None` if it has none, or may.
fn refused(rules: &Rules, instance: &Tenant, workspace: Option<&Tenant>) -> Option<String> {
    if instance.quotas.is_empty() {
        return None;
    }
    let parent = workspace.filter(|found| Some(&*found.name) == instance.parent.as_deref());
    let plan = parent.and_then(|workspace| rules.plans.get(workspace.plan?));
    own_values_refused(&instance.name, plan)
}
