//! Looks up the tenant of an operator's request: in the remote directory, where the directory is
//! not a file.

use log::Level;
use serde_json::json;
use weir_common::admin::{not_found, shown};
use weir_common::directory::response::TenantKind;
use weir_common::http_server::problems::refusal;
use weir_common::http_server::reply::Reply;
use weir_common::identifier::IdForm;
use weir_common::log::events;

use crate::identity::directory::DirectoryUnavailable;
use crate::limit::LimitCheck;
use crate::limit::key::Key;
use crate::operations::admin::GatewayAdmin;
use crate::rules::Rules;
use crate::rules::quota::QuotaSource;

/// A key of a limit, and the checks that apply to its requests now.
pub(super) struct ResolvedKey {
    /// What the limit counts by.
    pub(super) kind: String,
    /// Whether the directory knows the key.
    pub(super) known: bool,
    /// Where its value comes from, apart from boosts: the file, a plan, or its own (an override).
    pub(super) source: String,
    /// By the plan of a request's workspace, where the allowance depends on it; boosts are applied.
    pub(super) checks: Vec<(Option<String>, LimitCheck)>,
}

impl ResolvedKey {
    /// The keys of its states: several where allowances differ in more than their numbers.
    pub(super) fn keys(&self) -> Vec<Key> {
        self.own_checks().map(|check| check.key).collect()
    }

    /// One check of each state.
    pub(super) fn own_checks(&self) -> impl Iterator<Item = &LimitCheck> {
        let of = |nth: usize| self.checks.iter().take(nth).map(|(_, check)| check.key);
        let checks = self.checks.iter().map(|(_, check)| check).enumerate();
        checks.filter(move |(nth, check)| !of(*nth).any(|key| key == check.key)).map(|(_, own)| own)
    }
}

impl GatewayAdmin {
    /// The checks that apply to `key` under `limit` now; or the response when there are none.
    pub(super) async fn resolve_key(&self, limit: &str, key: &str) -> Result<ResolvedKey, Reply> {
        let active = self.shared.active.load_full();
        let unknown = || unknown(limit, key, &active.rules);
        let names = active.rules.named(limit, key).ok_or_else(unknown)?;
        let now = self.shared.clock.now();
        let known = active.known(&names, now.tick).await.map_err(|DirectoryUnavailable| {
            let detail = "The directory cannot be asked; see the log and directory_* metrics.";
            refusal(503, "directory-unavailable", "Tenants cannot be looked up now", detail)
        })?;
        let identity = active.rules.identify(&names, known.as_ref());
        let found = active.rules.key_checks(limit, key, &identity, now).ok_or_else(unknown)?;
        let boosted = |(plan, mut check): (Option<&str>, LimitCheck)| {
            self.shared.limiter.boosts.apply(std::slice::from_mut(&mut check), now.tick);
            (plan.map(str::to_owned), check)
        };
        let checks = found.checks.into_iter().map(boosted).collect();
        let source = active.rules.limit(limit).map(|(index, own)| {
            match active.rules.sourced(index, own, &identity).1 {
                QuotaSource::Tenant => "override".to_owned(),
                QuotaSource::Plan(plan) => format!("plan {plan}"),
                QuotaSource::Limit => "file".to_owned(),
            }
        });
        let (kind, source) = (found.kind.to_string(), source.unwrap_or_default());
        Ok(ResolvedKey { kind, known: found.known, source, checks })
    }

    /// Removes one tenant's entry from the cache of the remote directory, as `workspaces/ws_acme`.
    pub(super) async fn forget(&self, which: &str) -> Reply {
        let active = self.shared.active.load_full();
        let Some(remote_directory) = &active.remote_directory else {
            let detail = "The directory is a file: it is read again when it changes.";
            return refusal(409, "directory-file", "Nothing to forget", detail);
        };
        let found = which.split_once('/').and_then(|(kind, name)| {
            let kind = TenantKind::ALL.into_iter().find(|known| known.plural() == kind)?;
            let any = IdForm::default();
            let is_workspace = kind == TenantKind::Workspace;
            let form = if is_workspace { &active.settings.workspaces } else { &any };
            form.allows(name).then_some((kind, name))
        });
        let Some((kind, name)) = found else { return not_found() };
        remote_directory.forget(&active.rules, kind, name).await;
        events::event(Level::Info, "directory entry forgotten", &[("entry", json!(which))]);
        shown(&json!({"forgotten": which}))
    }
}

fn unknown(limit: &str, key: &str, rules: &Rules) -> Reply {
    let detail = match rules.limit(limit) {
        None => format!("There is no limit `{limit}`."),
        Some((_, known)) => {
            format!("`{key}` cannot be a key of the limit `{limit}`: it counts by {}.", known.key)
        }
    };
    refusal(404, "unknown-limit", "Unknown limit or key", detail)
}
