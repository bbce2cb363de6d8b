//! Finds the workspace, organisation and instance of a request, or else its address. (core)
//!
//! Identifiers come from the path, the host and the token; the directory has the organisation of a
//! workspace and the workspace of an instance.
//!
//! # Invariants
//!
//! 1. Every limit of a route has a key to charge: a tenant, or else the client's address.
//! 2. The organisation is taken from the path, else from the directory, else from the token; else
//!    the workspace counts as an organisation of its own.
//!
//! # Not here
//!
//! How much each may use (`rules::quota`), which tenants a token reaches (`identity::auth`).

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;

use crate::limit::Quota;
use crate::limit::key::{Owner, Scope, Seed};
use crate::request::client_address::{address_text, prefix_64};
use crate::request::route::Index;

/// The prefix of the name of a workspace's own organisation; no identifier has a colon.
pub const OWN_ORGANISATION: &str = "workspace:";

/// The tenants in a directory file, ready to be charged.
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
    /// Its part of the keys of its states.
    pub owner: Owner,
    /// Its parent: a workspace's organisation, an instance's workspace.
    pub parent: Option<Box<str>>,
    /// Its own plan.
    pub plan: Option<Index>,
    /// The values of limits that it overrides.
    pub quotas: Vec<(Index, Quota)>,
}

/// The entries of the tenants that one request names, from a remote directory.
#[derive(Clone, Debug, Default)]
pub struct TenantEntries {
    /// The workspace's.
    pub workspace: Option<Arc<Tenant>>,
    /// The organisation's.
    pub organisation: Option<Arc<Tenant>>,
    /// The instance's.
    pub instance: Option<Arc<Tenant>>,
}

/// The tenants that a request's target or token names; all are valid identifiers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TenantRefs<'n> {
    /// The workspace, from the path or from a token.
    pub workspace: Option<&'n str>,
    /// The organisation, from the path.
    pub organisation: Option<&'n str>,
    /// The instance, from the host.
    pub instance: Option<&'n str>,
    /// The organisation, from a token: used where neither path nor directory has one.
    pub claimed_organisation: Option<&'n str>,
}

/// A tenant or address that can be charged.
#[derive(Clone)]
pub struct Subject<'t> {
    /// The identifier or address, as in logs and on the admin listener.
    pub name: Arc<str>,
    /// Its part of the keys of its states.
    pub owner: Owner,
    /// Where those are in a Cluster: with the keys of its first part.
    pub first: Owner,
    /// Its entry in the directory, if there is one.
    pub tenant: Option<&'t Tenant>,
}

/// All tenants that one request may be charged to.
#[derive(Clone)]
pub struct Identity<'t> {
    /// The workspace, from the request or from the instance's entry.
    pub workspace: Option<Subject<'t>>,
    /// The organisation, from the request or from the workspace's entry.
    pub organisation: Option<Subject<'t>>,
    /// The instance, from the host.
    pub instance: Option<Subject<'t>>,
    /// Whether the request's path names the organisation.
    pub names_organisation: bool,
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

    /// Every value of a limit that a tenant overrides.
    pub(super) fn quotas(&self) -> impl Iterator<Item = &(Index, Quota)> {
        let all = [&self.workspaces, &self.organisations, &self.instances];
        all.into_iter().flat_map(HashMap::values).flat_map(|tenant| &tenant.quotas)
    }

    /// The values of limits that tenants override, with the kind and the name of each, by name;
    /// `most` of them, and how many more there are.
    #[must_use]
    pub fn overrides(&self, most: usize) -> (Vec<(&'static str, &str, Index, Quota)>, usize) {
        let kinds = [
            ("workspace", &self.workspaces),
            ("organisation", &self.organisations),
            ("instance", &self.instances),
        ];
        let mut all: Vec<_> = kinds
            .into_iter()
            .flat_map(|(kind, tenants)| tenants.values().map(move |tenant| (kind, tenant)))
            .flat_map(|(kind, tenant)| {
                tenant
                    .quotas
                    .iter()
                    .map(move |(index, quota)| (kind, &*tenant.name, *index, *quota))
            })
            .collect();
        all.sort_by_key(|(kind, name, index, _)| (*name, *kind, *index));
        let more = all.len().saturating_sub(most);
        all.truncate(most);
        (all, more)
    }

    /// Combines the references of a request with the entries of the file.
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
    /// Combines the references of a request with its entries, which were fetched for them.
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
                Subject { name: name.into(), owner, first: owner, tenant: None }
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
            .or_else(|| workspace.as_ref().map(|workspace| own_organisation(seed, workspace)));
        let names_organisation = names.organisation.is_some();
        Self { workspace, organisation, instance, names_organisation }
    }

    /// The organisation whose keys are beside those of the request's workspace in a store that
    /// needs them together. A path cannot move the keys of a workspace that the directory knows.
    pub(super) fn slot_owner(&self, seed: &Seed) -> Option<Owner> {
        let organisation = self.organisation.as_ref()?;
        let known = self.workspace.as_ref().filter(|workspace| workspace.tenant.is_some());
        let Some(workspace) = known.filter(|_| self.names_organisation) else {
            return Some(organisation.owner);
        };
        Some(match workspace.parent() {
            Some(parent) => seed.owner(Scope::Organisation, parent.as_bytes()),
            None => own_organisation(seed, workspace).owner,
        })
    }
}

/// The parents of tenants, from a directory file or from fetched entries.
#[derive(Clone, Copy)]
pub enum Parents<'e> {
    /// All tenants of the file.
    File(&'e Tenants),
    /// The tenants that one request names.
    Directory(&'e TenantEntries),
}

impl<'e> Parents<'e> {
    /// The organisation of a workspace, by the directory.
    #[must_use]
    pub fn organisation_of(self, workspace: &str) -> Option<&'e str> {
        let tenant = match self {
            Self::File(tenants) => tenants.workspaces.get(workspace),
            Self::Directory(known) => known.workspace.as_deref(),
        };
        parent_of(tenant, workspace)
    }

    /// The workspace of an instance, by the directory.
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
        let owner = tenant.owner;
        Self { name: tenant.name.clone(), owner, first: owner, tenant: Some(tenant) }
    }

    fn parent(&self) -> Option<&'t str> {
        self.tenant.and_then(|tenant| tenant.parent.as_deref())
    }

    /// The subject of an address; an IPv6 address is charged as its /64.
    #[must_use]
    pub fn address(seed: &Seed, address: IpAddr) -> Self {
        let (name, owner) = match address.to_canonical() {
            IpAddr::V4(address) => (
                Arc::from(&*address_text(address.into())),
                seed.owner(Scope::Address, &address.octets()),
            ),
            IpAddr::V6(address) => {
                let network = prefix_64(address);
                (format!("{network}/64").into(), seed.owner(Scope::Address, &network.octets()[..8]))
            }
        };
        Self { name, owner, first: owner, tenant: None }
    }
}

/// The organisation of its own that a workspace counts as, where its organisation is unknown.
fn own_organisation<'t>(seed: &Seed, workspace: &Subject<'t>) -> Subject<'t> {
    let owner = seed.owner(Scope::OwnOrganisation, workspace.name.as_bytes());
    Subject {
        name: format!("{OWN_ORGANISATION}{}", workspace.name).into(),
        owner,
        first: owner,
        tenant: workspace.tenant,
    }
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
