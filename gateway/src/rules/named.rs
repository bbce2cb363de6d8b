//! Finds a limit, and whom it is kept for, by the names that an operator gives.
//!
//! Not here: what a request is charged with (`rules`), who asks (`admin`, `explain`).

use super::{Limit, Rules, ask};
use crate::identify::{Identity, LONE, Names, Subject};
use crate::limit::Ask;
use crate::route::Index;
use crate::settings::LimitKey;

impl Rules {
    /// The limit of this name, and its place.
    #[must_use]
    pub fn limit(&self, name: &str) -> Option<(Index, &Limit)> {
        self.limits.iter().enumerate().find(|(_, limit)| &*limit.name == name)
    }

    /// Whom `name` names as the key of a limit; nobody where it cannot be one. An address is
    /// nobody's name.
    #[must_use]
    pub fn named<'n>(&self, limit_name: &str, name: &'n str) -> Option<Names<'n>> {
        let (_, limit) = self.limit(limit_name)?;
        if limit.key == LimitKey::Address {
            return Some(Names::default());
        }
        let lone = name.strip_prefix(LONE);
        if !weir_common::ids::is_identifier(lone.unwrap_or(name)) {
            return None;
        }
        let nobody = Names::default();
        Some(match (limit.key, lone) {
            (LimitKey::Organisation, Some(workspace)) => {
                Names { workspace: Some(workspace), ..nobody }
            }
            (_, Some(_)) => return None,
            (LimitKey::Workspace, _) => Names { workspace: Some(name), ..nobody },
            (LimitKey::Organisation, _) => Names { organisation: Some(name), ..nobody },
            (LimitKey::Instance | LimitKey::Address, _) => Names { instance: Some(name), ..nobody },
        })
    }

    /// The question that a limit asks about `name`: an address, or whom `identity` was made of.
    #[must_use]
    pub fn ask(&self, limit_name: &str, name: &str, identity: &Identity<'_>) -> Option<Ask> {
        let (index, limit) = self.limit(limit_name)?;
        let subject = match limit.key {
            LimitKey::Workspace => identity.workspace.as_ref(),
            LimitKey::Organisation => identity.organisation.as_ref(),
            LimitKey::Instance => identity.instance.as_ref(),
            LimitKey::Address => {
                let network = name.strip_suffix("/64").unwrap_or(name);
                let subject = Subject::address(&self.seed, network.parse().ok()?);
                return Some(ask(limit, &subject, limit.quota));
            }
        };
        Some(ask(limit, subject?, self.quota(index, limit, identity)))
    }
}
