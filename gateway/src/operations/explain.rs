//! Explains what the gateway would do with a request, without sending it.
//!
//! The same rules apply as to a real request. Not here: current usage, which only a running
//! gateway knows.

use std::fmt;
use std::net::IpAddr;

use http::{HeaderMap, HeaderName, HeaderValue, Method, header};
use serde_json::{Value, json};
use weir_common::config::document::shown;
use weir_common::limit::calendar::{CalendarQuota, CalendarUnit};
use weir_common::limit::{rolling, slots};
use weir_common::time::Moment;

use crate::admission::classify::refusal_of;
use crate::admission::request_head;
use crate::admission::resolve::{Lookups, resolve};
use crate::config::active::ActiveConfig;
use crate::identity::auth;
use crate::identity::auth::authorization::{Claims, claimed};
use crate::identity::directory::unknown_budget::UnknownBudget;
use crate::limit::Quota;
use crate::request::client_address::{FORWARDED_FOR, client_address, is_of};
use crate::request::target;
use crate::response::refusal::Refusal;
use crate::rules::charges::Charges;
use crate::rules::quota::QuotaSource;
use crate::rules::subject::{KeySources, NO_VALUE};
use crate::rules::tenant::{Identity, Subject, TenantRefs};
use crate::rules::{Route, RouteMatch, Rules};
use crate::settings::RouteCost;
use crate::settings::limit_key::KeyPart;

/// A request that is not sent.
#[derive(Clone, Debug)]
pub struct Example {
    /// Its method.
    pub method: String,
    /// Its URL, as a client would call it.
    pub url: String,
    /// Its headers, each as `X-Forwarded-For: 192.0.2.1`.
    pub headers: Vec<String>,
    /// The address that it comes from.
    pub from: IpAddr,
}

/// What the gateway would do with a request.
pub struct Explained {
    facts: Vec<(&'static str, Value)>,
}

/// Applies the rules to a request: queries the identity server and a directory over HTTP where the
/// request would. An error is about `options`.
pub async fn explain(
    active: &ActiveConfig,
    (options, now): (&Example, Moment),
) -> Result<Explained, String> {
    let rules = &active.rules;
    let method: Method =
        options.method.parse().map_err(|_| format!("`{}` is not a method", options.method))?;
    let (host, target_text) = split(&options.url)?;
    let all_headers = header_map(options)?;
    let host = all_headers.get(header::HOST).map_or(host.as_bytes(), HeaderValue::as_bytes);
    let lines = all_headers.get_all(&FORWARDED_FOR).iter().map(HeaderValue::as_bytes);
    let trusted = &active.settings.server.trusted_proxies;
    let client = client_address(options.from, trusted, lines);
    if method == Method::CONNECT {
        return Ok(refused(&Refusal::Connect, None));
    }
    if let Err(why) = request_head::check_method(&method) {
        return Ok(refused(&Refusal::Malformed(why), None));
    }
    let target = match target::read(target_text.as_bytes(), Some(host)) {
        Ok(target) => target,
        Err(why) => return Ok(refused(&Refusal::Malformed(why), None)),
    };
    let route_match = match rules.match_route(&target, &method) {
        Ok(route_match) => route_match,
        Err(route_error) => return Ok(refused(&refusal_of(route_error), None)),
    };
    let claims = match route_match.route.needs_token {
        true => auth::try_once(active.verifier.as_deref(), &all_headers, now).await,
        false => Ok(None),
    };
    let claims = match claims {
        Ok(claims) => claims,
        Err((refusal, why)) => return Ok(refused(&refusal, Some(why))),
    };
    let names = claimed(route_match.names, claims.as_ref(), &rules.workspaces);
    let operator = || UnknownBudget::unlimited(now.tick);
    let known = match resolve(active, &route_match, claims.as_ref(), &names, operator).await {
        Ok(known) => known,
        Err(refusal) => {
            let why = refusal.token_error().map(str::to_owned);
            return Ok(refused(&refusal, why));
        }
    };
    let identity = rules.identify(&names, known.as_ref());
    let sources = KeySources {
        identity: &identity,
        address: client,
        now,
        claims: claims.as_ref().map_or(&[], |claims| &claims.keys),
        headers: &all_headers,
        dropped: (!is_of(trusted, options.from)).then_some(&active.settings.server.trusted_headers),
    };
    let mut charges = Charges::default();
    rules.add_checks(route_match.route, &sources, &mut charges);
    let token = match (route_match.route.needs_token, &claims) {
        (false, _) => "not asked for",
        (true, None) => "needed",
        (true, Some(_)) => "needed, and this one is accepted",
    };
    let mut facts = facts(active, &route_match, claims.as_ref(), &sources);
    facts.extend(costs(route_match.route));
    facts.push(("limits", limits(rules, &charges, &sources, [&route_match.names, &names])));
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

/// The headers that a token and the keys of limits are read from.
fn header_map(options: &Example) -> Result<HeaderMap, String> {
    let mut all = HeaderMap::new();
    for header in &options.headers {
        let (name, value) = header.split_once(':').ok_or_else(|| {
            format!("`{header}` is not a header, as 'X-Forwarded-For: 192.0.2.1' is")
        })?;
        let name = HeaderName::from_bytes(name.trim().as_bytes())
            .map_err(|_| format!("`{name}` is not a header name"))?;
        // The value may be a secret, and is not printed.
        let value = HeaderValue::try_from(value.trim())
            .map_err(|_| format!("the value of `{name}` cannot be sent in a header"))?;
        all.append(name, value);
    }
    Ok(all)
}

fn facts(
    active: &ActiveConfig,
    route_match: &RouteMatch<'_>,
    claims: Option<&Claims>,
    sources: &KeySources<'_>,
) -> Vec<(&'static str, Value)> {
    let (rules, route, identity) = (&active.rules, route_match.route, sources.identity);
    let plane = rules.planes.get(route.plane).map(|plane| &plane.name);
    let upstream = active.upstreams.get(route.upstream).map(|upstream| &upstream.name);
    let methods: Vec<&str> = route.methods.iter().map(Method::as_str).collect();
    let mut facts = vec![
        ("plane", json!(plane)),
        ("route", json!(route.pattern.text)),
        ("methods", if methods.is_empty() { json!("all") } else { json!(methods) }),
        ("upstream", if route.answers_limits { json!("none") } else { json!(upstream) }),
        ("exempt", json!(route.exempt)),
    ];
    let lookups = match active.remote_directory {
        Some(_) => Lookups::of(rules, route_match, claims),
        None => Lookups::All,
    };
    let any = lookups != Lookups::Nothing;
    for (what, subject, is_looked_up) in [
        ("workspace", &identity.workspace, any),
        ("organisation", &identity.organisation, lookups == Lookups::All),
        ("instance", &identity.instance, any),
    ] {
        let Some(subject) = subject else { continue };
        let known = match (&subject.tenant, is_looked_up) {
            (Some(_), _) => "",
            (None, true) => " (without an entry of the directory)",
            (None, false) => " (not looked up in the directory)",
        };
        facts.push((what, json!(format!("{}{known}", subject.name))));
    }
    facts.push(("client", json!(sources.address.to_string())));
    if let Some(plan) = identity.workspace.as_ref().and_then(|w| w.tenant).and_then(|w| w.plan) {
        facts.push(("plan", json!(rules.plans.get(plan).map(|plan| plan.name.as_str()))));
    }
    if let Some(batch) = route.batch {
        facts.push((
            "batch",
            json!(format!("at most {} items, {} bytes", batch.items_max, batch.bytes_max)),
        ));
    }
    facts
}

/// Why a request has no value for a part of a key.
fn lack(part: &KeyPart, sources: &KeySources<'_>) -> &'static str {
    const NOTHING: &str = "the request has none";
    let KeyPart::Header(name) = part else { return NOTHING };
    let is_dropped = sources.dropped.is_some_and(|dropped| dropped.has(name.as_str()));
    match sources.headers.get_all(name).iter().count() {
        0 => NOTHING,
        _ if is_dropped => "only a trusted proxy may send the header",
        1 => "the header is empty",
        _ => "the request has the header more than once",
    }
}

/// The limits that a request meets, with the parts of their keys. `names` are the tenants of its
/// target alone, and those with its token's.
fn limits(
    rules: &Rules,
    charges: &Charges,
    sources: &KeySources<'_>,
    names: [&TenantRefs<'_>; 2],
) -> Value {
    let shown = charges.checks.iter().zip(&charges.charges).filter_map(|(check, charge)| {
        let limit = rules.limits.get(charge.limit)?;
        let (_, source) = rules.sourced(charge.limit, limit, sources.identity);
        let source = match source {
            QuotaSource::Tenant => "its own, in the directory".to_owned(),
            QuotaSource::Plan(plan) => format!("its plan's, {plan}"),
            QuotaSource::Limit => "the limit's own".to_owned(),
        };
        let mode = if check.enforced { "enforce" } else { "observe" };
        let mut parts = Vec::new();
        for (part, found) in limit.key.parts().iter().zip(rules.found_parts(&limit.key, sources)?) {
            let (value, from) = match part {
                _ if &*found.name == NO_VALUE => (NO_VALUE, lack(part, sources)),
                KeyPart::Header(_) => (HASHED, "the header"),
                _ => (&*found.name, origin(part, sources.identity, names)),
            };
            parts.push(json!({"part": part.to_string(), "value": value, "from": from}));
        }
        let is_hashed = |part: &Value| part["value"] == HASHED;
        let key = match parts.iter().any(is_hashed) {
            false => charge.name.to_string(),
            true => {
                let values: Vec<&str> = parts.iter().filter_map(|p| p["value"].as_str()).collect();
                values.join("/")
            }
        };
        Some(json!({
            "limit": &*limit.name,
            "key": key,
            "parts": parts,
            "values": values(check.quota),
            "from": source,
            "mode": mode,
        }))
    });
    shown.collect()
}

/// What a route does apart from forwarding, where that is not usual.
fn costs(route: &Route) -> Vec<(&'static str, Value)> {
    let mut facts = Vec::new();
    if let Some(bytes_max) = route.body_bytes_max {
        facts.push(("body", json!(format!("at most {bytes_max} bytes"))));
    }
    match route.cost {
        RouteCost::Fixed(1) => {}
        RouteCost::Fixed(cost) => facts.push(("cost", json!(cost))),
        RouteCost::Items => facts.push(("cost", json!("as much as its batch has items"))),
    }
    if route.answers_limits {
        facts.push(("answer", json!("the limits of its tenants, by the gateway itself")));
    }
    facts
}

/// What stands for a header's hash, which only the running gateway can compute.
const HASHED: &str = "header:(its hash)";

/// Where a part of a key comes from.
fn origin(
    part: &KeyPart,
    identity: &Identity<'_>,
    [target, named]: [&TenantRefs<'_>; 2],
) -> &'static str {
    let parent = |tenant: &Subject<'_>| tenant.tenant.is_some_and(|own| own.parent.is_some());
    match part {
        KeyPart::Workspace if target.workspace.is_some() => "the path",
        KeyPart::Workspace if named.workspace.is_some() => "the token",
        KeyPart::Workspace => "the directory",
        KeyPart::Organisation if target.organisation.is_some() => "the path",
        KeyPart::Organisation if identity.workspace.as_ref().is_some_and(parent) => "the directory",
        KeyPart::Organisation if named.claimed_organisation.is_some() => "the token",
        KeyPart::Organisation => "the workspace, which has no other",
        KeyPart::Instance => "the host",
        KeyPart::Address => "the client",
        KeyPart::Claim(_) => "the token",
        KeyPart::Header(_) => "the header",
    }
}

/// A quota, as a person reads it.
pub(super) fn values(quota: Quota) -> String {
    let zone = |own: CalendarQuota| format!("in {}", own.calendar.zone.name());
    match quota {
        Quota::Rolling(own) => {
            let counted = match own.requests > rolling::EXACT_MAX {
                true => format!(
                    ", counted in slots of {}",
                    format_args!("{:.3?}", slots::grain(own.window))
                ),
                false => String::new(),
            };
            format!("{} requests in any {}{counted}", own.requests, shown(own.window))
        }
        Quota::Bucket(own) => format!("{}, burst {}", own.rate, own.burst),
        Quota::Calendar(own) => match own.calendar.unit {
            CalendarUnit::Day => format!("{} requests a day {}", own.requests, zone(own)),
            CalendarUnit::Month => format!("{} requests a month {}", own.requests, zone(own)),
        },
        Quota::Concurrency(own) => format!("{} requests in flight", own.requests),
    }
}

/// The parts of a key, where the limit's name does not say them: more than a tenant or an address.
fn key_line(limit: &Value) -> Option<String> {
    let parts = limit["parts"].as_array()?;
    let is_named = |part: &Value| part["part"].as_str().is_some_and(|part| part.contains(':'));
    if parts.len() < 2 && !parts.iter().any(is_named) {
        return None;
    }
    let text = |part: &Value, name: &str| part[name].as_str().unwrap_or_default().to_owned();
    let shown = |part: &Value| {
        format!("{} {} ({})", text(part, "part"), text(part, "value"), text(part, "from"))
    };
    let parts: Vec<String> = parts.iter().map(shown).collect();
    Some(format!("{:<13} {}", "key", parts.join(", ")))
}

/// Host and target of a URL, both as a client would send them.
fn split(url: &str) -> Result<(&str, &str), String> {
    let wrong = || format!("`{url}` is not a URL, as http://api.localhost/v1/x is");
    let (_, rest) = url.split_once("://").ok_or_else(wrong)?;
    let end = rest.find(['/', '?']).unwrap_or(rest.len());
    let (host, target) = rest.split_at(end);
    Ok((host, if target.is_empty() { "/" } else { target }))
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
                        lines.extend(key_line(limit));
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
