//! Answers a request for the limits of its own tenants.
//!
//! What is shown has been read after the request was charged, limit by limit. Limits that only
//! observe, that are hidden, or that count by anything but the request's workspace and organisation
//! are left out.
//!
//! Not here: who may read it (`rules::compile`), what it costs (`rules::charges`).

use serde_json::{Map, Value, json};
use weir_common::directory::values::Values;
use weir_common::time::Moment;

use crate::config::shared::Shared;
use crate::limit::LimitCheck;
use crate::request::route::Index;
use crate::response::reply::Reply;
use crate::rules::Rules;
use crate::rules::subject::KeySources;
use crate::settings::limit_key::KeyPart;

/// The limits of a request's tenants.
pub(super) struct OwnLimits {
    limits: Vec<OwnLimit>,
    workspace: Option<String>,
    organisation: Option<String>,
}

/// One limit, for one tenant.
struct OwnLimit {
    limit: Index,
    /// The tenant.
    key: String,
    plan: Option<String>,
    check: LimitCheck,
}

impl OwnLimits {
    /// The limits of the tenants of `sources`.
    pub(super) fn of(rules: &Rules, sources: &KeySources<'_>) -> Self {
        let is_own = |part: &KeyPart| matches!(part, KeyPart::Workspace | KeyPart::Organisation);
        let shown = rules.limits.iter().enumerate().filter(|(_, limit)| {
            limit.enforced && limit.shown && limit.key.parts().iter().all(is_own)
        });
        let limits = shown.filter_map(|(index, limit)| {
            let (check, charge) = rules.check_of(index, limit, sources)?;
            let plan = charge.plan.and_then(|plan| rules.plans.get(plan));
            let plan = plan.map(|plan| plan.name.clone());
            Some(OwnLimit { limit: index, key: charge.name.to_string(), plan, check })
        });
        let name = |subject: &Option<crate::rules::tenant::Subject<'_>>| {
            subject.as_ref().map(|subject| subject.name.to_string())
        };
        Self {
            limits: limits.collect(),
            workspace: name(&sources.identity.workspace),
            organisation: name(&sources.identity.organisation),
        }
    }

    /// The answer, as of `now`.
    pub(super) async fn reply(mut self, shared: &Shared, rules: &Rules, now: Moment) -> Reply {
        let mut limits: Vec<Value> = Vec::with_capacity(self.limits.len());
        for own in &mut self.limits {
            let Some(limit) = rules.limits.get(own.limit) else { continue };
            limits.push(own.members(shared, &limit.name, now).await.into());
        }
        let body = json!({
            "workspace": self.workspace,
            "organisation": self.organisation,
            "limits": limits,
        });
        let mut reply = Reply::new(200, body.to_string());
        reply.push("Content-Type", "application/json");
        reply.push("Cache-Control", "no-store");
        reply
    }
}

impl OwnLimit {
    async fn members(&mut self, shared: &Shared, name: &str, now: Moment) -> Map<String, Value> {
        shared.limiter.boosts.apply(std::slice::from_mut(&mut self.check), now.tick);
        // After an upgrade, on a connection of the earlier process, the usage is elsewhere.
        let usage = shared.limiter.usage(&self.check, now.tick).await.ok();
        let mut members = Map::new();
        let mut put = |name: &str, value: Value| members.insert(name.to_owned(), value);
        put("limit", json!(name));
        put("key", json!(self.key));
        put("plan", json!(self.plan));
        put("allowance", Values::of(self.check.quota).to_json().into());
        put("used", json!(usage.map(|usage| usage.limit.saturating_sub(usage.remaining))));
        put("remaining", json!(usage.map(|usage| usage.remaining)));
        put("reset", json!(usage.map(|usage| now.unix_of(usage.full_at).seconds_up())));
        members
    }
}
