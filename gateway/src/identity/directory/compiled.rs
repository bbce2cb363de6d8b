//! What is kept of a directory's entry: as it came, and compiled by the active rules.
//!
//! An entry has at most one set of values for each limit in the settings. Its size is bounded, so
//! the cache limits the number of entries, not their bytes.
//!
//! # Not here
//!
//! How long it is valid (`weir_common::directory::cache`).

use std::sync::Arc;

use arc_swap::ArcSwap;
use weir_common::config::document::Document;
use weir_common::directory::response::{RawEntry, faults};

use crate::rules::Rules;
use crate::rules::compile::tenants::Entries;
use crate::rules::tenant::Tenant;

/// A tenant that the directory knows.
#[derive(Debug)]
pub(super) struct TenantEntry {
    name: Box<str>,
    raw: RawEntry,
    compiled: ArcSwap<Compiled>,
}

/// An entry as compiled by one configuration.
#[derive(Debug)]
struct Compiled {
    version: u64,
    tenant: Result<Arc<Tenant>, String>,
}

impl TenantEntry {
    /// An entry; or why it is invalid by these rules.
    pub(super) fn new(
        (rules, version): (&Rules, u64),
        name: &str,
        raw: RawEntry,
    ) -> Result<Self, String> {
        let tenant = Arc::new(tenant(rules, name, &raw)?);
        let compiled = ArcSwap::from_pointee(Compiled { version, tenant: Ok(tenant) });
        Ok(Self { name: name.into(), raw, compiled })
    }

    /// The tenant of this entry, compiled again if `version` has changed since the last call.
    pub(super) fn tenant(&self, rules: &Rules, version: u64) -> Result<Arc<Tenant>, String> {
        let compiled = self.compiled.load();
        if compiled.version == version {
            return compiled.tenant.clone();
        }
        let tenant = tenant(rules, &self.name, &self.raw).map(Arc::new);
        self.compiled.store(Arc::new(Compiled { version, tenant: tenant.clone() }));
        tenant
    }
}

/// Compiles an entry into a tenant by the rules for the directory file.
fn tenant(rules: &Rules, name: &str, raw: &RawEntry) -> Result<Tenant, String> {
    let document = Document::new("", "");
    let entries = Entries {
        document: &document,
        limits: &rules.limits,
        plans: &rules.plans,
        seed: *rules.seed(),
    };
    let tenant = match raw {
        RawEntry::Organisation(entry) => entries.organisation(name, entry),
        RawEntry::Workspace(entry) => entries.workspace(name, entry),
        RawEntry::Instance(entry) => entries.instance(name, entry),
    };
    faults(&document).map_or(Ok(tenant), Err)
}

#[cfg(test)]
mod tests {
    use weir_common::directory::Directory;
    use weir_common::directory::response::{TenantKind, read};
    use weir_common::identifier::IdForm;

    use super::*;
    use crate::limit::key::Seed;

    const SEED: Seed = Seed::new([3; 16]);
    const SHIPPED: &str = include_str!("../../../../config/gateway.toml");

    fn rules(text: &str) -> Rules {
        let (document, nothing) = (Document::new("g", text), Document::new("d", ""));
        let raw = crate::settings::read::read(&document).made;
        crate::rules::compile::check((&raw, &document), (&Directory::default(), &nothing), SEED)
    }

    fn entry(body: &str) -> Result<TenantEntry, String> {
        let raw = read(TenantKind::Workspace, body.as_bytes(), &IdForm::workspace())?;
        TenantEntry::new((&rules(SHIPPED), 1), "ws_a", raw)
    }

    #[test]
    fn an_answer_is_checked_as_the_file_is() {
        for (body, wrong) in [
            (r#"{"plan": "por"}"#, "unknown plan `por`; did you mean `pro`?"),
            (r#"{"limits": {"wrokspace": {"requests": 1}}}"#, "unknown limit `wrokspace`"),
            (r#"{"limits": {"instance": {"rate": 1}}}"#, "is kept by instance, not by workspace"),
            (r#"{"limits": {"workspace": {"rate": 1}}}"#, "only with algorithm"),
            (r#"{"limits": {"workspace": {}}}"#, "takes requests and window: none"),
        ] {
            let found = entry(body).err().unwrap_or_default();
            assert!(found.contains(wrong), "{body}: {found}");
        }
        let entry = entry(r#"{"plan": "pro", "limits": {"workspace": {"requests": 7}}}"#).unwrap();
        let tenant = entry.tenant(&rules(SHIPPED), 1).unwrap();
        assert_eq!(tenant.quotas.len(), 1);
    }

    #[test]
    fn other_rules_look_an_entry_up_again() {
        let entry = entry(r#"{"plan": "pro"}"#).unwrap();
        let plan = |text: &str, version| {
            let rules = rules(text);
            let tenant = entry.tenant(&rules, version)?;
            Ok::<_, String>(rules.plans[tenant.plan.unwrap()].name.clone())
        };
        assert_eq!(plan(SHIPPED, 1).as_deref(), Ok("pro"));
        // Another plan precedes it, so its index changes.
        let more = SHIPPED.replace("[plans.free]", "[plans.free]\n[plans.basic]");
        assert_eq!(plan(&more, 2).as_deref(), Ok("pro"));
        let fewer = SHIPPED.replace("[plans.pro]", "[plans.plus]");
        assert!(plan(&fewer, 3).unwrap_err().contains("unknown plan `pro`"));
        assert_eq!(plan(SHIPPED, 4).as_deref(), Ok("pro"));
    }
}
