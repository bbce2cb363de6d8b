//! The third step of admission: finds a request's tenants and checks that its token reaches them.
//!
//! Invariant: a request waits for the directory only if a limit or its token needs an entry.
//!
//! # Not here
//!
//! What a token reaches (`identity::auth`), how entries are found (`identity::directory`).

use crate::config::active::ActiveConfig;
use crate::identity::auth::authorization::{Claims, authorize, is_foreign, needs_directory};
use crate::identity::directory::DirectoryUnavailable;
use crate::identity::directory::unknown_budget::UnknownBudget;
use crate::response::refusal::Refusal;
use crate::rules::tenant::{Parents, TenantEntries, TenantRefs};
use crate::rules::{RouteMatch, Rules};
use crate::settings::limit_key::KeyPart;

/// Which entries of a request's tenants are looked up in a directory over HTTP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lookups {
    /// None: neither a limit nor the token needs one.
    Nothing,
    /// All but its organisation's.
    NoOrganisation,
    /// All.
    All,
}

impl Lookups {
    /// What a request needs.
    #[must_use]
    pub fn of(rules: &Rules, route_match: &RouteMatch<'_>, claims: Option<&Claims>) -> Self {
        let is_limited_by = |part| rules.is_limited_by(route_match.route, part);
        let tenants = [&KeyPart::Workspace, &KeyPart::Instance].into_iter().any(is_limited_by);
        if is_limited_by(&KeyPart::Organisation) {
            Self::All
        } else if tenants || needs_directory(&route_match.names, claims) {
            Self::NoOrganisation
        } else {
            Self::Nothing
        }
    }
}

/// The entries of the tenants that a request names; `None` if the directory is a file, which needs
/// no lookup here. A refusal if the token does not reach them or the directory is unavailable.
pub async fn resolve<'b>(
    config: &ActiveConfig,
    route_match: &RouteMatch<'_>,
    claims: Option<&Claims>,
    names: &TenantRefs<'_>,
    budget: impl FnOnce() -> UnknownBudget<'b>,
) -> Result<Option<TenantEntries>, Refusal> {
    let rules = &config.rules;
    let Some(directory) = &config.remote_directory else {
        authorize(Parents::File(&rules.tenants), &route_match.names, claims)?;
        return Ok(None);
    };
    let lookups = Lookups::of(rules, route_match, claims);
    let known = if lookups != Lookups::Nothing && !is_foreign(&route_match.names, claims) {
        let with_organisation = lookups == Lookups::All;
        let budget = budget();
        // Boxed, so that the future of a request without a remote directory is smaller.
        let known = Box::pin(directory.find(rules, names, with_organisation, &budget)).await;
        known.map_err(|DirectoryUnavailable| Refusal::DirectoryUnavailable)?
    } else {
        TenantEntries::default()
    };
    authorize(Parents::Directory(&known), &route_match.names, claims)?;
    Ok(Some(known))
}
