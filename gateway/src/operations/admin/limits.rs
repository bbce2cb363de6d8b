//! Shows and changes one key of a limit: its usage, and a boost.
//!
//! # Invariants
//!
//! 1. The values shown and raised are those that apply to requests of the key; where they depend on
//!    the plan of a request's workspace, each value is shown with its plan.
//! 2. A boost never lowers an allowance.
//!
//! # Not here
//!
//! Which values there are (`rules::by_name`), which tenant a key is (`admin::tenants`).

use std::sync::Arc;
use std::time::Duration;

use log::Level;
use serde_json::{Map, Value, json};
use weir_common::admin;
use weir_common::config::document::span_of;

use weir_common::directory::values::{LimitAlgorithm, Values};
use weir_common::http_server::problems::refusal;
use weir_common::http_server::reply::Reply;
use weir_common::json;
use weir_common::limit::rolling;
use weir_common::log::events;

use crate::limit::Quota;
use crate::limit::boost::{Boost, Unset};
use crate::limit::limiter::Unreachable;
use crate::limit::warnings::WHOLE;
use crate::operations::admin::GatewayAdmin;
use crate::rules::charges::TokenChecks;

impl GatewayAdmin {
    pub(super) fn limits(&self) -> Reply {
        let active = self.shared.active.load();
        let shown = active.rules.limits.iter().enumerate().map(|(index, limit)| {
            let mode = if limit.enforced { "enforce" } else { "observe" };
            let of_plan = |(plan, quota)| json!({"plan": plan, "allowance": allowance(quota)});
            json!({
                "limit": &*limit.name,
                "key": limit.key.to_string(),
                "allowance": allowance(limit.quota),
                "mode": mode,
                "headers": limit.shown,
                "warn_at": (limit.warn_at > 0).then(|| f64::from(limit.warn_at) / f64::from(WHOLE)),
                "by_plan": active.rules.values_of_plans(index).map(of_plan).collect::<Value>(),
            })
        });
        admin::shown(&json!({"limits": shown.collect::<Value>()}))
    }

    pub(super) async fn usage(&self, limit: &str, key: &str) -> Result<Reply, Reply> {
        let resolved = self.resolve_key(limit, key).await?;
        let now = self.shared.clock.now();
        let mut shown = Vec::new();
        let mut tightest: Option<(u32, usize)> = None;
        for (nth, (plan, check)) in resolved.checks.iter().enumerate() {
            let usage = self.shared.limiter.usage(check, now.tick).await?;
            let next = (usage.remaining, nth);
            tightest = Some(tightest.map_or(next, |other| other.min(next)));
            shown.push(json!({
                "plan": plan,
                "allowance": allowance(check.quota),
                "used": usage.limit.saturating_sub(usage.remaining),
                "remaining": usage.remaining,
                "reset": now.unix_of(usage.full_at).seconds_up(),
            }));
        }
        let nth = tightest.map_or(0, |(_, nth)| nth);
        let boosts = &self.shared.limiter.boosts;
        let boost = resolved.keys().into_iter().find_map(|key| boosts.of(key, now.tick));
        let of = |name: &str| shown.get(nth).and_then(|shown| shown.get(name)).cloned();
        let mut answer = json!({
            "limit": limit,
            "key": key,
            "known": resolved.known,
            "kind": resolved.kind,
            "allowance": of("allowance"),
            "from": if boost.is_some() { "boost" } else { &*resolved.source },
            "used": of("used"),
            "remaining": of("remaining"),
            "reset": of("reset"),
            "boosted_until": boost.map(|boost| now.unix_of(boost.until).rfc3339()),
        });
        if shown.len() > 1
            && let Some(members) = answer.as_object_mut()
        {
            members.insert("by_plan".to_owned(), shown.into());
        }
        Ok(admin::shown(&answer))
    }

    pub(super) async fn reset(&self, limit: &str, key: &str) -> Result<Reply, Reply> {
        let resolved = self.resolve_key(limit, key).await?;
        let (active, now) = (self.shared.active.load_full(), self.shared.clock.now());
        let tokens = active.rules.named_token_checks(limit, key, now);
        let of_tokens = tokens.iter().flat_map(TokenChecks::each);
        let checks: Vec<_> = resolved.own_checks().chain(of_tokens).collect();
        let (store, at) = self.shared.limiter.own(now.tick);
        let is_shared = resolved.own_checks().any(|own| store.effective(own, at) != own.key);
        self.shared.limiter.reset(&checks).await?;
        events::event(Level::Info, "limit reset", &[("limit", json!(limit)), ("key", json!(key))]);
        if is_shared {
            let detail = "This gateway has used up store.max_keys, and counts the key with \
                          others, which were not reset. A boost raises this key alone; an entry in \
                          the directory gives it a count of its own.";
            return Err(refusal(409, "shared-entry", "Nothing of its own to reset", detail));
        }
        self.usage(limit, key).await
    }

    pub(super) async fn boost(&self, limit: &str, key: &str, body: &[u8]) -> Result<Reply, Reply> {
        let resolved = self.resolve_key(limit, key).await?;
        let own: Vec<Quota> = resolved.checks.iter().map(|(_, check)| check.lasting).collect();
        let (raised, ttl) = match boosted(&own, body) {
            Ok(boost) => boost,
            Err(detail) => return Err(refusal(422, "boost", "Not a boost", detail)),
        };
        let now = self.shared.clock.now().tick;
        let boost = Boost { raised, until: now.plus(ttl) };
        for own in resolved.keys() {
            match self.shared.limiter.boost(own, boost, now).await {
                Ok(()) => {
                    let name = (Arc::from(limit), Arc::from(key));
                    self.watch.name_boosted(own, name, &self.shared);
                }
                Err(Unset::Moved(_)) => return Err(Unreachable.into()),
                Err(Unset::TooMany) => {
                    let detail = "There are too many boosts. A plan or the directory lasts longer.";
                    return Err(refusal(409, "too-many-boosts", "Too many boosts", detail));
                }
            }
        }
        let mut fields = vec![("limit", json!(limit)), ("key", json!(key))];
        let raised = raised.to_json();
        fields
            .extend(RAISED.into_iter().filter_map(|name| Some((name, raised.get(name)?.clone()))));
        fields.push(("seconds", json!(ttl.as_secs_f64())));
        events::event(Level::Info, "limit boosted", &fields);
        self.usage(limit, key).await
    }

    pub(super) async fn unboost(&self, limit: &str, key: &str) -> Result<Reply, Reply> {
        for own in self.resolve_key(limit, key).await?.keys() {
            self.shared.limiter.unboost(own).await?;
        }
        events::event(Level::Info, "boost ended", &[("limit", json!(limit)), ("key", json!(key))]);
        self.usage(limit, key).await
    }
}

/// A quota as JSON for operators.
fn allowance(quota: Quota) -> Value {
    Values::of(quota).to_json().into()
}

/// The values that a boost raises.
const RAISED: [&str; 3] = ["requests", "rate", "burst"];

/// Reads the numbers and the duration of a boost from its body; `own` has the allowances without
/// it.
fn boosted(own: &[Quota], body: &[u8]) -> Result<(Values, Duration), String> {
    let members = &json::object(body).map_err(|why| format!("The body is {why}."))?;
    if let Some(other) = members.keys().find(|key| *key != "ttl" && !RAISED.contains(&&***key)) {
        let known = RAISED.join(", ");
        return Err(format!("`{other}` is not a member of a boost: {known}, ttl are."));
    }
    let mut wrong = None;
    let raised = Values::from_json(members, |name, wanted| {
        let value = members.get(name).unwrap_or(&Value::Null);
        wrong = Some(format!("`{name}` must be {wanted}, not {value}."));
    });
    if let Some(wrong) = wrong {
        return Err(wrong);
    }
    // Where plans differ, the boost raises those that have less.
    let least = own.iter().min_by_key(|quota| quota.limit());
    least.map_or(Ok(()), |least| is_raised(*least, members))?;
    let ttl = members.get("ttl").and_then(Value::as_str).and_then(span_of);
    let ttl = ttl.filter(|ttl| !ttl.is_zero() && *ttl <= rolling::WINDOW_MAX);
    let ttl = ttl.ok_or(
        "`ttl` says how long, as \"10m\" does (ms, s, m, h or d): more than nothing, and 31 days \
         at most. DELETE, or `limits unboost`, ends a boost.",
    )?;
    Ok((raised, ttl))
}

/// Whether the numbers of a boost are those of a quota's algorithm, and none is less than its own.
fn is_raised(own: Quota, boost: &Map<String, Value>) -> Result<(), String> {
    let takes: Vec<&str> =
        RAISED.into_iter().filter(|name| LimitAlgorithm::of(own).fields().contains(name)).collect();
    let given: Vec<&str> = RAISED.into_iter().filter(|name| boost.contains_key(*name)).collect();
    if given.is_empty() || given.iter().any(|name| !takes.contains(name)) {
        let algorithm = LimitAlgorithm::of(own).name();
        return Err(format!("This limit is a {algorithm}: send {}.", takes.join(" or ")));
    }
    for name in given {
        let value = boost.get(name).cloned().unwrap_or_default();
        let one = Map::from_iter([(name.to_owned(), value.clone())]);
        let one = Values::from_json(&one, |_, _| {});
        let quota = one.over(Some(own)).map_err(|error| format!("{}.", error.message()))?;
        // As values: a calendar's quota also has the period of a decision.
        if Values::of(one.raise(own)) != Values::of(quota) {
            let now = Values::of(own).to_json().get(name).cloned().unwrap_or_default();
            return Err(format!("A boost raises: `{name}` is {now} now, and {value} is less."));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_boost_whose_body_has_a_duplicate_member_is_refused() {
        let read = |body: &str| boosted(&[], body.as_bytes());
        assert!(read(r#"{"requests":120,"ttl":"10m"}"#).is_ok());
        let twice = read(r#"{"requests":120,"ttl":"10m","requests":9000}"#).unwrap_err();
        assert!(twice.contains("stands twice"), "{twice}");
        for (body, why) in [("[]", "is not an object"), ("nonsense", "is not JSON")] {
            let refused = read(body).unwrap_err();
            assert!(refused.contains(why), "{body}: {refused}");
        }
    }
}
