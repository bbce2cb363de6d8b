//! Decides whether a token reaches the tenants that a request names, and which tenants the token
//! supplies if the request names none. (core)
//!
//! # Invariants
//!
//! 1. A token with a workspace claim reaches exactly the workspaces in it. One without reaches
//!    the workspaces that the directory assigns to an organisation in its organisation claim.
//! 2. A token that names no tenant reaches none: it is valid only for requests that name none,
//!    which are charged to their address.
//! 3. A claim that is present but has no identifier reaches no tenant, never all of them.
//! 4. A tenant that a token cannot reach, whatever the directory's entries, is not looked up: a
//!    token of one tenant cannot be used to probe the names of others.
//!
//! # Not here
//!
//! Whether the token is valid (`weir_common::identity`), which tenants exist (`directory`).

use std::sync::Arc;

use weir_common::identifier::IdForm;
use weir_common::token::reach::reaches;

use crate::response::refusal::{Foreign, Refusal};
use crate::rules::subject::{CLAIM_BYTES_MAX, KeyClaim};
use crate::rules::tenant::{Parents, TenantRefs};

/// Which tenants a verified token is for, and what limits count by of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Claims {
    /// Its workspaces; without the claim, all workspaces of its organisations.
    pub workspaces: Option<Vec<Box<str>>>,
    /// Its organisations, if it has the claim.
    pub organisations: Option<Vec<Box<str>>>,
    /// The values of the claims that limits count by, of those that it has.
    pub keys: Box<[KeyClaim]>,
}

/// The names of the claims that are read from a token.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClaimNames {
    /// The claim with its workspaces.
    pub workspace: String,
    /// The claim with its organisations.
    pub organisation: String,
    /// The claims that limits count by.
    pub keys: Vec<Arc<str>>,
}

impl Claims {
    /// Reads them from a token's claims.
    pub(crate) fn of(claims: &weir_common::token::claims::Claims, names: &ClaimNames) -> Self {
        let key = |name: &Arc<str>| {
            let value = claims.scalar(name, CLAIM_BYTES_MAX)?;
            Some(KeyClaim { name: name.clone(), value })
        };
        Self {
            workspaces: claims.names(&names.workspace),
            organisations: claims.names(&names.organisation),
            keys: names.keys.iter().filter_map(key).collect(),
        }
    }

    fn has_organisation(&self, name: &str) -> bool {
        self.organisations.as_deref().is_some_and(|all| has(all, name))
    }

    fn reaches(&self, workspace: &str, directory: Parents<'_>) -> bool {
        let (workspaces, organisations) =
            (self.workspaces.as_deref(), self.organisations.as_deref());
        reaches(workspaces, organisations, workspace, || directory.organisation_of(workspace))
    }
}

/// The tenants of a request, from its target and its token; `workspaces` is the form of workspace
/// identifiers.
#[must_use]
pub fn claimed<'n>(
    names: TenantRefs<'n>,
    claims: Option<&'n Claims>,
    workspaces: &IdForm,
) -> TenantRefs<'n> {
    let Some(claims) = claims else { return names };
    let named = names.workspace.or(names.organisation).or(names.instance).is_some();
    let claimed = single(claims.workspaces.as_deref());
    let claimed = claimed.filter(|name| !named && workspaces.allows(name));
    TenantRefs {
        workspace: names.workspace.or(claimed),
        claimed_organisation: single(claims.organisations.as_deref()),
        ..names
    }
}

/// Whether the decision about a token depends on which tenant belongs to which.
#[must_use]
pub fn needs_directory(names: &TenantRefs<'_>, claims: Option<&Claims>) -> bool {
    let by_organisation =
        |claims: &Claims| claims.workspaces.is_none() && names.workspace.is_some();
    claims.is_some_and(|claims| by_organisation(claims) || names.instance.is_some())
}

/// Whether a token cannot reach what a target names, whichever tenant belongs to which.
#[must_use]
pub fn is_foreign(names: &TenantRefs<'_>, claims: Option<&Claims>) -> bool {
    let Some(claims) = claims else { return false };
    let has_any = |all: &Option<Vec<Box<str>>>| all.as_ref().is_some_and(|all| !all.is_empty());
    let may_own = match &claims.workspaces {
        Some(all) => names.workspace.map_or(!all.is_empty(), |name| has(all, name)),
        None => has_any(&claims.organisations),
    };
    let other = names.organisation.is_some_and(|name| !claims.has_organisation(name));
    other || (names.workspace.or(names.instance).is_some() && !may_own)
}

/// Refuses a request whose target names a tenant that its token does not reach.
pub fn authorize(
    directory: Parents<'_>,
    names: &TenantRefs<'_>,
    claims: Option<&Claims>,
) -> Result<(), Refusal> {
    let Some(claims) = claims else { return Ok(()) };
    // An instance that the directory does not know has no owner.
    let owner = names.instance.map(|instance| directory.workspace_of(instance).unwrap_or_default());
    let other = |workspace| !claims.reaches(workspace, directory);
    let foreign = if names.organisation.is_some_and(|name| !claims.has_organisation(name)) {
        Foreign::Organisation
    } else if names.workspace.is_some_and(other) {
        Foreign::Workspace
    } else if owner.is_some_and(other) {
        Foreign::Instance
    } else {
        return Ok(());
    };
    let is_nameless = claims.workspaces.is_none() && claims.organisations.is_none();
    Err(Refusal::ForeignToken(if is_nameless { Foreign::Everything } else { foreign }))
}

fn has(all: &[Box<str>], name: &str) -> bool {
    all.iter().any(|one| **one == *name)
}

/// The only one; with two it is ambiguous which is meant.
fn single(all: Option<&[Box<str>]>) -> Option<&str> {
    match all {
        Some([one]) => Some(one),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limit::key::{Scope, Seed};
    use crate::rules::tenant::{Tenant, TenantEntries, Tenants};

    /// ws_a and ws_b belong to org_1, ws_c to org_2, ws_d to none; in_a to ws_a, in_x to none.
    fn tenants() -> Tenants {
        let seed = Seed::new([1; 16]);
        let tenant = |name: &str, parent: &str| Tenant {
            name: name.into(),
            owner: seed.owner(Scope::Workspace, name.as_bytes()),
            parent: Some(parent).filter(|parent| !parent.is_empty()).map(Into::into),
            plan: None,
            quotas: Vec::new(),
        };
        let mut tenants = Tenants::default();
        for (name, parent) in
            [("ws_a", "org_1"), ("ws_b", "org_1"), ("ws_c", "org_2"), ("ws_d", "")]
        {
            tenants.workspaces.insert(name.into(), tenant(name, parent));
        }
        for (name, parent) in [("in_a", "ws_a"), ("in_x", "")] {
            tenants.instances.insert(name.into(), tenant(name, parent));
        }
        tenants
    }

    fn list(text: &str) -> Option<Vec<Box<str>>> {
        let names = text.split(' ').filter(|name| !name.is_empty() && *name != "()");
        (!text.is_empty()).then(|| names.map(Into::into).collect())
    }

    fn named(text: &str) -> Option<&str> {
        Some(text).filter(|text| !text.is_empty())
    }

    /// `names` are the workspace, the organisation and the instance of a target; `claims` those of
    /// a token; `makes` the workspace and the claimed organisation, `None` if it is refused.
    /// "" is absent, "()" is present and empty.
    #[track_caller]
    fn check(names: [&str; 3], claims: [&str; 2], makes: Option<[&str; 2]>) {
        let [workspace, organisation, instance] = names.map(named);
        let names = TenantRefs { workspace, organisation, instance, claimed_organisation: None };
        let [workspaces, organisations] = claims.map(list);
        let claims = Claims { workspaces, organisations, ..Claims::default() };
        let authorized = authorize(Parents::File(&tenants()), &names, Some(&claims))
            .map_err(|refusal| refusal.reason())
            .map(|()| claimed(names, Some(&claims), &IdForm::workspace()));
        let makes = makes.ok_or("foreign-token").map(|[workspace, organisation]| TenantRefs {
            workspace: named(workspace),
            claimed_organisation: named(organisation),
            ..names
        });
        assert_eq!(authorized, makes, "{names:?} {claims:?}");
        if is_foreign(&names, Some(&claims)) {
            // Then it is refused with any directory entries, and with none.
            let unasked = TenantEntries::default();
            let authorized = authorize(Parents::Directory(&unasked), &names, Some(&claims));
            assert!(matches!(authorized, Err(Refusal::ForeignToken(_))), "{names:?} {claims:?}");
            assert!(makes.is_err(), "{names:?} {claims:?}");
        }
    }

    #[test]
    fn a_token_reaches_the_workspaces_that_it_names() {
        check(["ws_a", "", ""], ["ws_a", ""], Some(["ws_a", ""]));
        check(["ws_a", "", ""], ["ws_b ws_a", ""], Some(["ws_a", ""]));
        check(["ws_new", "", ""], ["ws_new", "org_9"], Some(["ws_new", "org_9"]));
        check(["ws_a", "", ""], ["ws_b", ""], None);
        check(["ws_a", "", ""], ["()", ""], None);
        // With a workspace claim, an organisation claim adds no access.
        check(["ws_a", "", ""], ["ws_b", "org_1"], None);
        check(["ws_a", "", ""], ["()", "org_1"], None);
    }

    #[test]
    fn a_token_of_an_organisation_reaches_the_workspaces_that_the_directory_gives_it() {
        check(["ws_a", "", ""], ["", "org_1"], Some(["ws_a", "org_1"]));
        check(["ws_c", "", ""], ["", "org_1 org_2"], Some(["ws_c", ""]));
        check(["ws_c", "", ""], ["", "org_1"], None);
        check(["ws_d", "", ""], ["", "org_1"], None);
        check(["ws_new", "", ""], ["", "org_1"], None);
        check(["ws_a", "", ""], ["", "()"], None);
    }

    #[test]
    fn an_organisation_in_the_path_is_the_tokens() {
        check(["", "org_1", ""], ["", "org_1"], Some(["", "org_1"]));
        check(["", "org_1", ""], ["", "org_2 org_1"], Some(["", ""]));
        check(["", "org_1", ""], ["ws_a", "org_1"], Some(["", "org_1"]));
        check(["", "org_1", ""], ["", "org_2"], None);
        check(["", "org_1", ""], ["ws_a", ""], None);
        check(["", "org_1", ""], ["", "()"], None);
        check(["ws_a", "org_2", ""], ["ws_a", "org_1"], None);
        check(["ws_c", "org_1", ""], ["", "org_1"], None);
    }

    #[test]
    fn an_instance_is_reached_by_way_of_its_workspace() {
        check(["", "", "in_a"], ["ws_a", ""], Some(["", ""]));
        check(["", "", "in_a"], ["", "org_1"], Some(["", "org_1"]));
        check(["", "", "in_a"], ["ws_c", ""], None);
        check(["", "", "in_a"], ["", "org_2"], None);
        check(["", "", "in_x"], ["ws_a", "org_1"], None);
        check(["", "", "in_new"], ["ws_a", "org_1"], None);
        check(["ws_c", "", "in_a"], ["ws_c", ""], None);
        check(["ws_a", "", "in_a"], ["ws_c", ""], None);
    }

    #[test]
    fn where_no_tenant_is_named_a_token_names_it_if_it_names_one() {
        check(["", "", ""], ["ws_a", "org_1"], Some(["ws_a", "org_1"]));
        check(["", "", ""], ["ws_a", ""], Some(["ws_a", ""]));
        check(["", "", ""], ["", "org_1"], Some(["", "org_1"]));
        check(["", "", ""], ["ws_a ws_b", "org_1 org_2"], Some(["", ""]));
        check(["", "", ""], ["()", "()"], Some(["", ""]));
        // No workspace has another prefix.
        check(["", "", ""], ["shop_a", "org_1"], Some(["", "org_1"]));
    }

    #[test]
    fn a_token_that_names_no_tenant_reaches_none() {
        check(["", "", ""], ["", ""], Some(["", ""]));
        check(["ws_a", "", ""], ["", ""], None);
        check(["", "org_1", ""], ["", ""], None);
        check(["", "", "in_a"], ["", ""], None);
        check(["", "", "in_x"], ["", ""], None);
    }

    #[test]
    fn a_token_that_no_entry_could_authorize_is_refused_without_the_directory() {
        let foreign = |names: [&str; 3], claims: [&str; 2]| {
            let [workspace, organisation, instance] = names.map(named);
            let names =
                TenantRefs { workspace, organisation, instance, claimed_organisation: None };
            let [workspaces, organisations] = claims.map(list);
            is_foreign(&names, Some(&Claims { workspaces, organisations, ..Claims::default() }))
        };
        for (names, claims) in [
            (["ws_x", "", ""], ["ws_a", ""]),
            (["ws_x", "", ""], ["ws_a", "org_1"]),
            (["ws_x", "", ""], ["()", "org_1"]),
            (["ws_x", "", ""], ["", "()"]),
            (["ws_x", "", ""], ["", ""]),
            (["", "org_x", ""], ["ws_a", "org_1"]),
            (["", "", "in_x"], ["()", "org_1"]),
            (["", "", "in_x"], ["", ""]),
        ] {
            assert!(foreign(names, claims), "{names:?} {claims:?}");
        }
        for (names, claims) in [
            (["ws_x", "", ""], ["ws_x", ""]),
            (["ws_x", "", ""], ["", "org_1"]),
            (["", "org_1", ""], ["", "org_1"]),
            (["", "", "in_x"], ["ws_a", ""]),
            (["", "", "in_x"], ["", "org_1"]),
            (["", "", ""], ["", ""]),
        ] {
            assert!(!foreign(names, claims), "{names:?} {claims:?}");
        }
    }

    #[test]
    fn without_a_token_what_is_named_is_believed() {
        let names = TenantRefs { workspace: Some("ws_a"), ..TenantRefs::default() };
        assert_eq!(authorize(Parents::File(&tenants()), &names, None), Ok(()));
        assert_eq!(claimed(names, None, &IdForm::workspace()), names);
    }
}
