//! Explains what the gateway would do with a request, without sending it.
//!
//! The same rules apply as to a real request. Not here: current usage, which only a running
//! gateway knows.

use std::fmt;

use http::{HeaderMap, HeaderValue, Method, header};
use serde_json::{Value, json};
use weir_common::config::document::shown;

use crate::admission::classify::refusal_of;
use crate::admission::request_head;
use crate::cli::Explain;
use crate::config::active::ActiveConfig;
use crate::identity::auth::Unaccepted;
use crate::identity::auth::authorization::{Claims, authorize, claimed, is_foreign};
use crate::identity::directory::DirectoryUnavailable;
use crate::limit::Quota;
use crate::request::client_address::client_address;
use crate::request::target;
use crate::response::refusal::Refusal;
use crate::rules::quota::QuotaSource;
use crate::rules::tenant::{Identity, Parents, TenantEntries, TenantRefs};
use crate::rules::{Charges, RouteMatch};

/// What the gateway would do with a request.
pub struct Explained {
    facts: Vec<(&'static str, Value)>,
}

/// Applies the rules to a request. `token` verifies its token, and `directory` fetches the entries
/// that it names, unless the directory is a file. An error is about `options`.
pub fn explain(
    active: &ActiveConfig,
    options: &Explain,
    token: impl FnOnce(&HeaderMap) -> Result<Option<Claims>, Unaccepted>,
    directory: impl FnOnce(&TenantRefs<'_>) -> Result<Option<TenantEntries>, DirectoryUnavailable>,
) -> Result<Explained, String> {
    let rules = &active.rules;
    let method: Method =
        options.method.parse().map_err(|_| format!("`{}` is not a method", options.method))?;
    let (host, target_text) = split(&options.url)?;
    if let Some(header) = options.headers.iter().find(|header| !header.contains(':')) {
        return Err(format!("`{header}` is not a header, as 'X-Forwarded-For: 192.0.2.1' is"));
    }
    let authorization = authorization(options)?;
    let host = headers(options, "host").next().unwrap_or(host);
    let forwarded_for: Vec<&str> = headers(options, "x-forwarded-for").collect();
    let trusted = &active.settings.server.trusted_proxies;
    let client = client_address(options.from, trusted, forwarded_for.into_iter());
    if method == Method::CONNECT {
        return Ok(refused(&Refusal::Connect, None));
    }
    if let Err(why) = request_head::check_method(&method) {
        return Ok(refused(&Refusal::Malformed(why), None));
    }
    let target = match target::read(target_text.as_bytes(), Some(host.as_bytes())) {
        Ok(target) => target,
        Err(why) => return Ok(refused(&Refusal::Malformed(why), None)),
    };
    let route_match = match rules.match_route(&target, &method) {
        Ok(route_match) => route_match,
        Err(route_error) => return Ok(refused(&refusal_of(route_error), None)),
    };
    let claims = match route_match.route.needs_token.then(|| token(&authorization)).transpose() {
        Ok(claims) => claims.flatten(),
        Err((refusal, why)) => return Ok(refused(&refusal, Some(why))),
    };
    let names = claimed(route_match.names, claims.as_ref(), &rules.workspaces);
    // If the token cannot reach it whatever the directory has, the directory is not queried.
    let known = match is_foreign(&route_match.names, claims.as_ref()) {
        true => Ok(Some(TenantEntries::default())),
        false => directory(&names),
    };
    let Ok(known) = known else {
        return Ok(refused(&Refusal::DirectoryUnavailable, None));
    };
    let parents = known.as_ref().map_or(Parents::File(&rules.tenants), Parents::Directory);
    if let Err(refusal) = authorize(parents, &route_match.names, claims.as_ref()) {
        let why = refusal.token_error().map(str::to_owned);
        return Ok(refused(&refusal, why));
    }
    let identity = rules.identify(&names, known.as_ref());
    let mut charges = Charges::default();
    rules.charge(route_match.route, &identity, client, &mut charges);
    let token = match (route_match.route.needs_token, &claims) {
        (false, _) => "not asked for",
        (true, None) => "needed",
        (true, Some(_)) => "needed, and this one is accepted",
    };
    let mut facts = facts(active, &route_match, &identity, &charges, &client.to_string());
    facts.insert(TOKEN_AT, ("token", json!(token)));
    Ok(Explained { facts })
}

/// The index among the facts where the token's result is inserted.
const TOKEN_AT: usize = 5;

fn refused(refusal: &Refusal, reason: Option<String>) -> Explained {
    let problem = refusal.problem();
    let mut facts = vec![
        ("status", problem.status.into()),
        ("refused", problem.title.into()),
        ("why", problem.detail.into()),
    ];
    facts.extend(reason.map(|reason| ("reason", reason.into())));
    Explained { facts }
}

/// The headers that a token is read from.
fn authorization(options: &Explain) -> Result<HeaderMap, String> {
    let mut all = HeaderMap::new();
    for value in headers(options, "authorization") {
        // The value is a secret, and is not printed.
        let value = HeaderValue::try_from(value)
            .map_err(|_| "the value of `Authorization` cannot be sent in a header".to_owned())?;
        all.append(header::AUTHORIZATION, value);
    }
    Ok(all)
}

fn facts(
    active: &ActiveConfig,
    route_match: &RouteMatch<'_>,
    identity: &Identity<'_>,
    charges: &Charges,
    client: &str,
) -> Vec<(&'static str, Value)> {
    let (rules, route) = (&active.rules, route_match.route);
    let plane = rules.planes.get(route.plane).map(|plane| &plane.name);
    let upstream = active.upstreams.get(route.upstream).map(|upstream| &upstream.name);
    let methods: Vec<&str> = route.methods.iter().map(Method::as_str).collect();
    let mut facts = vec![
        ("plane", json!(plane)),
        ("route", json!(route.pattern.text)),
        ("methods", if methods.is_empty() { json!("all") } else { json!(methods) }),
        ("upstream", json!(upstream)),
        ("exempt", json!(route.exempt)),
    ];
    for (what, subject) in [
        ("workspace", &identity.workspace),
        ("organisation", &identity.organisation),
        ("instance", &identity.instance),
    ] {
        let Some(subject) = subject else { continue };
        let known = if subject.tenant.is_some() { "" } else { " (not in the directory)" };
        facts.push((what, json!(format!("{}{known}", subject.name))));
    }
    facts.push(("client", json!(client)));
    if let Some(plan) = identity.workspace.as_ref().and_then(|w| w.tenant).and_then(|w| w.plan) {
        facts.push(("plan", json!(rules.plans.get(plan).map(|plan| plan.name.as_str()))));
    }
    if let Some(batch) = route.batch {
        facts.push((
            "batch",
            json!(format!("at most {} items, {} bytes", batch.items_max, batch.bytes_max)),
        ));
    }
    let limits = charges.checks.iter().zip(&charges.charges).filter_map(|(check, charge)| {
        let limit = rules.limits.get(charge.limit)?;
        let (_, source) = rules.sourced(charge.limit, limit, identity);
        let source = match source {
            QuotaSource::Tenant => "its own, in the directory".to_owned(),
            QuotaSource::Plan(plan) => format!("its plan's, {plan}"),
            QuotaSource::Limit => "the limit's own".to_owned(),
        };
        let mode = if check.enforced { "enforce" } else { "observe" };
        Some(json!({
            "limit": &*limit.name,
            "key": &*charge.name,
            "values": values(check.quota),
            "from": source,
            "mode": mode,
        }))
    });
    facts.push(("limits", limits.collect()));
    facts
}

fn values(quota: Quota) -> String {
    match quota {
        Quota::Rolling(quota) => {
            format!("{} requests in any {}", quota.requests, shown(quota.window))
        }
        Quota::Bucket(quota) => format!("{} a second, burst {}", quota.rate, quota.burst),
    }
}

/// Host and target of a URL, both as a client would send them.
fn split(url: &str) -> Result<(&str, &str), String> {
    let wrong = || format!("`{url}` is not a URL, as http://api.localhost/v1/x is");
    let (_, rest) = url.split_once("://").ok_or_else(wrong)?;
    let end = rest.find(['/', '?']).unwrap_or(rest.len());
    let (host, target) = rest.split_at(end);
    Ok((host, if target.is_empty() { "/" } else { target }))
}

fn headers<'a>(options: &'a Explain, name: &'a str) -> impl Iterator<Item = &'a str> {
    let pairs = options.headers.iter().filter_map(|header| header.split_once(':'));
    pairs
        .filter(move |(own, _)| own.trim().eq_ignore_ascii_case(name))
        .map(|(_, value)| value.trim())
}

impl Explained {
    /// As JSON.
    #[must_use]
    pub fn json(&self) -> Value {
        self.facts.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect()
    }
}

impl fmt::Display for Explained {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut lines = Vec::new();
        for (name, value) in &self.facts {
            match value {
                Value::Array(limits) if *name == "limits" => {
                    for limit in limits {
                        let text = |name: &str| limit[name].as_str().unwrap_or_default();
                        lines.push(format!(
                            "{:<13} {} for {}: {} ({}, {})",
                            "limit",
                            text("limit"),
                            text("key"),
                            text("values"),
                            text("from"),
                            text("mode"),
                        ));
                    }
                }
                Value::String(text) => lines.push(format!("{name:<13} {text}")),
                Value::Array(all) => {
                    let all: Vec<&str> = all.iter().filter_map(Value::as_str).collect();
                    lines.push(format!("{name:<13} {}", all.join(", ")));
                }
                other => lines.push(format!("{name:<13} {other}")),
            }
        }
        f.write_str(&lines.join("\n"))
    }
}
