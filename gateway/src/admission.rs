//! Decides about one request: forward it, buffer its body first, or refuse it.
//!
//! Four steps, each in a file: *classify* (its form and its route), *authenticate*
//! (`identity::auth`), *resolve* (its tenants), *admit* (their limits). They receive plain values,
//! the same for every version of HTTP. A request waits only for an identity server, a remote
//! directory, or counters that another process owns. Nothing here reads the clock.
//!
//! # Invariants
//!
//! 1. A request that a limit refuses is charged by none. One refused because no server is healthy
//!    is charged: retrying does not bypass a limit.
//! 2. A request that *classify*, *authenticate* or *resolve* refuses charges no tenant. Its
//!    response charges `limits.refused` by address, which refuses nothing (`proxy::respond`).
//!
//! # Not here
//!
//! Forwarding, buffering and sending responses (`proxy`).

pub mod admit;
pub mod classify;
pub mod facts;
mod own_limits;
pub mod request_head;
pub mod resolve;

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use http::header;
use pingora_http::RequestHeader;
use weir_common::time::Moment;

use crate::admission::admit::{CheckedRequest, LimitDecision};
use crate::admission::classify::{Classified, classify};
use crate::admission::facts::{RequestFacts, TenantLabels};
use crate::admission::own_limits::OwnLimits;
use crate::admission::resolve::resolve;
use crate::config::active::ActiveConfig;
use crate::config::shared::Shared;
use crate::identity::auth;
use crate::identity::auth::address_turns::AddressTurns;
use crate::identity::auth::authorization::Claims;
use crate::request::target::Malformed;
use crate::response::refusal::Refusal;
use crate::response::reply::Reply;
use crate::rules::charges::Charges;
use crate::rules::subject::KeySources;
use crate::rules::tenant::{Identity, Subject};
use crate::rules::{Batch, RouteMatch};
use crate::settings::RouteCost;
use crate::upstream::Upstream;

/// What to do with a request.
#[derive(Debug)]
pub enum Admission {
    /// Forward it.
    Forward,
    /// Buffer its body, count the items of its batch, and only then forward it. What is charged
    /// only then, by the number of items, comes with it.
    BufferBody(Batch, Option<Box<Charges>>),
    /// Answer it, as it is no request for an upstream.
    Answer(Reply),
    /// Send a refusal.
    Refuse(Refusal),
}

/// A request whose head has been read.
pub struct Arrival<'r> {
    /// Its head.
    pub head: &'r RequestHeader,
    /// The length of its head as received, over HTTP/1 only.
    pub length: Option<usize>,
    /// Why it is refused, if two parsers could read its head differently.
    pub malformed: Option<Malformed>,
    /// When its head had been read.
    pub started_at: Moment,
    /// Its number in this process.
    pub nth: u64,
}

/// Decides about a request. `facts` starts with what its connection shows; each step adds to it.
pub async fn admit(
    shared: &Shared,
    config: &ActiveConfig,
    arrival: Arrival<'_>,
    facts: &mut RequestFacts,
) -> Admission {
    let target = match classify::read(&config.settings.server, &arrival, facts) {
        Ok(target) => target,
        Err(refusal) => return Admission::Refuse(refusal),
    };
    let route_match = match classify(&config.rules, &arrival, &target, facts) {
        Classified::Routed(route_match) => route_match,
        Classified::Preflight(reply) => return Admission::Answer(reply),
        Classified::Refused(refusal) => return Admission::Refuse(refusal),
    };
    let address = facts.client.address.unwrap_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED));
    // Filled in place: they are large to move.
    let mut charges = Charges::default();
    let resolved = authenticate_and_resolve(
        shared,
        config,
        &route_match,
        (&arrival, address),
        (facts, &mut charges),
    );
    let own_limits = match resolved.await {
        Ok(own_limits) => own_limits,
        // `proxy::respond` charges the refusal.
        Err(refusal) => return Admission::Refuse(refusal),
    };
    let checked = CheckedRequest { shared, config, now: arrival.started_at, nth: arrival.nth };
    let route = route_match.route;
    let charged = match route.cost {
        RouteCost::Fixed(_) => checked.charge(&mut charges, &mut facts.limits).await,
        RouteCost::Items => match checked.preview(&mut charges, &mut facts.limits) {
            LimitDecision::Refused(refusal) => Err(refusal),
            _ => Ok(()),
        },
    };
    if let Err(refusal) = charged {
        return Admission::Refuse(refusal);
    }
    if let Some(limits) = own_limits {
        // Boxed: it is rare, and inline it would make every request's future larger.
        let reply = Box::pin(limits.reply(shared, &config.rules, arrival.started_at)).await;
        return Admission::Answer(reply);
    }
    let too_large = |max: &u64| announced(arrival.head).is_some_and(|bytes| bytes > *max);
    if let Some(bytes_max) = route.body_bytes_max.filter(too_large) {
        return Admission::Refuse(Refusal::BodyTooLarge { bytes_max });
    }
    let upstream = config.upstreams.get(route.upstream);
    if !upstream.is_some_and(|upstream| upstream.has_healthy()) {
        return Admission::Refuse(no_server(upstream.map(|upstream| &**upstream)));
    }
    let Some(batch) = route.batch else { return Admission::Forward };
    let by_items = route.cost == RouteCost::Items;
    Admission::BufferBody(batch, by_items.then(|| Box::new(charges)))
}

/// The value of `Content-Length`, where there is one.
#[must_use]
pub fn announced(head: &RequestHeader) -> Option<u64> {
    head.headers.get(header::CONTENT_LENGTH)?.to_str().ok()?.trim().parse().ok()
}

/// Adds what a request is charged to, and returns what its route answers by itself. A refusal, and
/// no charges, if its token is not accepted or does not reach the tenants that the request names,
/// or if either cannot be checked now.
async fn authenticate_and_resolve(
    shared: &Shared,
    config: &ActiveConfig,
    route_match: &RouteMatch<'_>,
    (arrival, address): (&Arrival<'_>, IpAddr),
    (facts, charges): (&mut RequestFacts, &mut Charges),
) -> Result<Option<OwnLimits>, Refusal> {
    let rules = &config.rules;
    let mut own_limits = None;
    let claims = match route_match.route.needs_token {
        // Boxed, so that the future of a request that needs no token is smaller.
        true => Some(Box::pin(authenticate(shared, config, arrival, address)).await?),
        false => None,
    };
    let claims = claims.as_deref();
    let names = auth::authorization::claimed(route_match.names, claims, &rules.workspaces);
    let known =
        resolve(shared, config, (route_match, claims), &names, (address, arrival.started_at.tick))
            .await?;
    let identity = rules.identify(&names, known.as_ref());
    if !route_match.route.exempt {
        let untrusted = !facts.client.is_trusted_proxy;
        let sources = KeySources {
            identity: &identity,
            address,
            now: arrival.started_at,
            claims: claims.map_or(&[], |claims| &claims.keys),
            headers: &arrival.head.headers,
            dropped: untrusted.then_some(&config.settings.server.trusted_headers),
        };
        rules.charge(route_match.route, &sources, charges);
        own_limits = route_match.route.answers_limits.then(|| OwnLimits::of(rules, &sources));
    }
    label(&mut facts.tenant, identity, known.is_some() && route_match.route.exempt);
    Ok(own_limits)
}

/// Verifies the token of a request. An identity server is queried in turns of the address.
async fn authenticate(
    shared: &Shared,
    config: &ActiveConfig,
    arrival: &Arrival<'_>,
    address: IpAddr,
) -> Result<Arc<Claims>, Refusal> {
    let (verifier, now) = (config.verifier.as_deref(), arrival.started_at);
    let turns = AddressTurns {
        in_flight: &shared.identity_queries,
        address: Subject::address(config.rules.seed(), address).owner,
        limiter: &shared.limiter,
        invalid: config.rules.invalid_token(address, now),
        now: now.tick,
    };
    auth::verify(verifier, &arrival.head.headers, now, &shared.metrics, &turns).await
}

/// The refusal of a request whose upstream has no healthy server.
#[must_use]
pub fn no_server(upstream: Option<&Upstream>) -> Refusal {
    let wait = upstream.map(Upstream::back_in).unwrap_or_default();
    // Rounded up, so that a client that waits this long does not retry too early.
    Refusal::NoServer {
        retry_after: wait.as_millis().div_ceil(1_000).max(1).try_into().unwrap_or(1),
    }
}

/// Records a request's tenants; its organisation only if it was not `guessed`.
fn label(tenant: &mut TenantLabels, identity: Identity<'_>, guessed: bool) {
    tenant.workspace = identity.workspace.map(|subject| subject.name);
    let organisation = identity.organisation.filter(|_| !guessed);
    tenant.organisation = organisation.map(|subject| subject.name);
    tenant.instance = identity.instance.map(|subject| subject.name);
}
