//! Says whose request it is: which workspace, organisation and instance, or else which address.
//! (core)
//!
//! Identifiers come from the route and the host; the directory adds who belongs to whom.
//!
//! # Invariants
//!
//! 1. Every limit of a route has a key to charge: a tenant, or else the client's address.
//! 2. An organisation is the one of the path, else the directory's, else the token's, else the
//!    workspace's own.
//!
//! # Not here
//!
//! How much each may use (`rules`), whether a token reaches what a request names (`auth`).

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;

use crate::limit::Quota;
use crate::limit::key::{Owner, Scope, Seed};
use crate::request::client_address::network_of;
use crate::request::route::Index;

/// What the name of a workspace's own organisation begins with: no identifier has a colon.
pub const LONE: &str = "workspace:";

/// Who the directory knows, ready to be charged.
#[derive(Clone, Default)]
pub struct Tenants {
    pub(crate) workspaces: HashMap<Box<str>, Tenant>,
    pub(crate) organisations: HashMap<Box<str>, Tenant>,
    pub(crate) instances: HashMap<Box<str>, Tenant>,
}

/// One entry of the directory.
#[derive(Clone, Debug)]
pub struct Tenant {
    /// Its identifier.
    pub name: Arc<str>,
    /// What its states are found by.
    pub owner: Owner,
    /// What it belongs to: a workspace's organisation, an instance's workspace.
    pub parent: Option<Box<str>>,
    /// Its own plan.
    pub plan: Option<Index>,
    /// Its own values, by limit.
    pub quotas: Vec<(Index, Quota)>,
}

/// The entries of those whom one request names, as a directory answered that was asked.
#[derive(Clone, Debug, Default)]
pub struct TenantEntries {
    /// The workspace's.
    pub workspace: Option<Arc<Tenant>>,
    /// The organisation's.
    pub organisation: Option<Arc<Tenant>>,
    /// The instance's.
    pub instance: Option<Arc<Tenant>>,
}

/// Whom a request's target or its token names: identifiers already.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TenantRefs<'n> {
    /// The workspace, from the path or from a token.
    pub workspace: Option<&'n str>,
    /// The organisation, from the path.
    pub organisation: Option<&'n str>,
    /// The instance, from the host.
    pub instance: Option<&'n str>,
    /// The organisation, from a token: where neither path nor directory says which.
    pub claimed_organisation: Option<&'n str>,
}

/// A tenant or address that can be charged.
#[derive(Clone)]
pub struct Subject<'t> {
    /// The identifier or the address, as logs and the admin listener have it.
    pub name: Arc<str>,
    /// What its states are found by.
    pub owner: Owner,
    /// Its entry, where the directory has one.
    pub tenant: Option<&'t Tenant>,
}

/// Everybody whom one request could be charged to.
#[derive(Clone)]
pub struct Identity<'t> {
    /// The workspace, from the route or by way of the instance.
    pub workspace: Option<Subject<'t>>,
    /// The organisation, from the route or by way of the workspace.
    pub organisation: Option<Subject<'t>>,
    /// The instance, from the host.
    pub instance: Option<Subject<'t>>,
}

impl Tenants {
    pub(super) fn rekey(&mut self, seed: &Seed) {
        for (scope, tenants) in [
            (Scope::Workspace, &mut self.workspaces),
            (Scope::Organisation, &mut self.organisations),
            (Scope::Instance, &mut self.instances),
        ] {
            for (name, tenant) in tenants {
                tenant.owner = seed.owner(scope, name.as_bytes());
            }
        }
    }

    /// Puts together whom a request names.
    #[must_use]
    pub fn identify(&self, seed: &Seed, names: &TenantRefs<'_>) -> Identity<'_> {
        Identity::of(seed, names, |scope, name| match scope {
            Scope::Workspace => self.workspaces.get(name),
            Scope::Organisation => self.organisations.get(name),
            _ => self.instances.get(name),
        })
    }
}

impl TenantEntries {
    /// Puts together whom a request names, which is whom these entries were asked for.
    #[must_use]
    pub fn identify(&self, seed: &Seed, names: &TenantRefs<'_>) -> Identity<'_> {
        Identity::of(seed, names, |scope, _| match scope {
            Scope::Workspace => self.workspace.as_deref(),
            Scope::Organisation => self.organisation.as_deref(),
            _ => self.instance.as_deref(),
        })
    }
}

impl<'t> Identity<'t> {
    fn of(
        seed: &Seed,
        names: &TenantRefs<'_>,
        find: impl Fn(Scope, &str) -> Option<&'t Tenant>,
    ) -> Self {
        let subject = |scope, name: &str| match find(scope, name) {
            Some(tenant) => Subject::known(tenant),
            None => {
                let owner = seed.owner(scope, name.as_bytes());
                Subject { name: name.into(), owner, tenant: None }
            }
        };
        let instance = names.instance.map(|name| subject(Scope::Instance, name));
        let of_instance = instance.as_ref().and_then(Subject::parent);
        let workspace = names.workspace.or(of_instance).map(|name| subject(Scope::Workspace, name));
        let of_workspace = workspace.as_ref().and_then(Subject::parent);
        let organisation = names
            .organisation
            .or(of_workspace)
            .or(names.claimed_organisation)
            .map(|name| subject(Scope::Organisation, name))
            .or_else(|| workspace.as_ref().map(|workspace| lone(seed, workspace)));
        Self { workspace, organisation, instance }
    }
}

/// Who belongs to whom, by all of a file, or by the entries that were asked for.
#[derive(Clone, Copy)]
pub enum Parents<'e> {
    /// Everybody whom a file knows.
    File(&'e Tenants),
    /// Those whom one request names.
    Directory(&'e TenantEntries),
}

impl<'e> Parents<'e> {
    /// The organisation that the directory gives a workspace to.
    #[must_use]
    pub fn organisation_of(self, workspace: &str) -> Option<&'e str> {
        let tenant = match self {
            Self::File(tenants) => tenants.workspaces.get(workspace),
            Self::Directory(known) => known.workspace.as_deref(),
        };
        parent_of(tenant, workspace)
    }

    /// The workspace that the directory gives an instance to.
    #[must_use]
    pub fn workspace_of(self, instance: &str) -> Option<&'e str> {
        let tenant = match self {
            Self::File(tenants) => tenants.instances.get(instance),
            Self::Directory(known) => known.instance.as_deref(),
        };
        parent_of(tenant, instance)
    }
}

fn parent_of<'t>(tenant: Option<&'t Tenant>, name: &str) -> Option<&'t str> {
    tenant.filter(|tenant| &*tenant.name == name)?.parent.as_deref()
}

impl<'t> Subject<'t> {
    fn known(tenant: &'t Tenant) -> Self {
        Self { name: tenant.name.clone(), owner: tenant.owner, tenant: Some(tenant) }
    }

    fn parent(&self) -> Option<&'t str> {
        self.tenant.and_then(|tenant| tenant.parent.as_deref())
    }

    /// The subject of an address: an IPv6 client owns its whole /64.
    #[must_use]
    pub fn address(seed: &Seed, address: IpAddr) -> Self {
        let (name, owner) = match address.to_canonical() {
            IpAddr::V4(address) => {
                (address.to_string(), seed.owner(Scope::Address, &address.octets()))
            }
            IpAddr::V6(address) => {
                let network = network_of(address);
                (format!("{network}/64"), seed.owner(Scope::Address, &network.octets()[..8]))
            }
        };
        Self { name: name.into(), owner, tenant: None }
    }
}

/// A workspace of unknown organisation is an organisation of its own.
fn lone<'t>(seed: &Seed, workspace: &Subject<'t>) -> Subject<'t> {
    let owner = seed.owner(Scope::LoneWorkspace, workspace.name.as_bytes());
    Subject { name: format!("{LONE}{}", workspace.name).into(), owner, tenant: workspace.tenant }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ipv6_client_owns_its_network_and_an_ipv4_client_itself() {
        let seed = Seed::new([1; 16]);
        let subject = |text: &str| Subject::address(&seed, text.parse().unwrap());
        assert_eq!(subject("2001:db8:0:1:2::3").owner, subject("2001:db8:0:1:ffff::").owner);
        assert_ne!(subject("2001:db8:0:1::").owner, subject("2001:db8:0:2::").owner);
        assert_ne!(subject("192.0.2.1").owner, subject("192.0.2.2").owner);
        assert_eq!(subject("::ffff:192.0.2.1").owner, subject("192.0.2.1").owner);
        assert_eq!(&*subject("2001:db8:0:1:2::3").name, "2001:db8:0:1::/64");
    }

    #[test]
    fn an_organisation_is_the_paths_or_the_directorys_or_the_tokens_or_its_own() {
        let seed = Seed::new([1; 16]);
        let mut tenants = Tenants::default();
        let owner = seed.owner(Scope::Workspace, b"ws_a");
        let parent = Some("org_known".into());
        let tenant = Tenant { name: "ws_a".into(), owner, parent, plan: None, quotas: Vec::new() };
        tenants.workspaces.insert("ws_a".into(), tenant);
        for (workspace, organisation, claimed, found) in [
            (Some("ws_a"), Some("org_path"), Some("org_token"), Some("org_path")),
            (Some("ws_a"), None, Some("org_token"), Some("org_known")),
            (Some("ws_b"), None, Some("org_token"), Some("org_token")),
            (Some("ws_b"), None, None, Some("workspace:ws_b")),
            (None, None, Some("org_token"), Some("org_token")),
            (None, None, None, None),
        ] {
            let names = TenantRefs {
                workspace,
                organisation,
                claimed_organisation: claimed,
                instance: None,
            };
            let identity = tenants.identify(&seed, &names);
            let name = identity.organisation.as_ref().map(|organisation| &*organisation.name);
            assert_eq!(name, found, "{names:?}");
        }
    }

    #[test]
    fn a_workspace_without_an_organisation_is_one_of_its_own() {
        let seed = Seed::new([1; 16]);
        let tenants = Tenants::default();
        let workspace = |name| TenantRefs { workspace: Some(name), ..TenantRefs::default() };
        let (one, two) = (
            tenants.identify(&seed, &workspace("ws_a")),
            tenants.identify(&seed, &workspace("ws_b")),
        );
        let organisation = TenantRefs { organisation: Some("ws_a"), ..TenantRefs::default() };
        let named = tenants.identify(&seed, &organisation);
        let owner = |identity: &Identity<'_>| identity.organisation.as_ref().unwrap().owner;
        assert_ne!(owner(&one), owner(&two));
        assert_ne!(
            owner(&one),
            owner(&named),
            "no tenant can name itself into another's allowance"
        );
    }
}
