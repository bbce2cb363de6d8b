//! Decides about one request: forward it, hold its body first, or refuse it.
//!
//! `target`, `route`, `auth`, `directory`, `tenant` and `limit` are asked in this order; what
//! they say is kept in the exchange. Only `auth` and `directory` may wait, and `upgrade` where
//! the states have moved; the clock is not read.
//!
//! Not here: what a head may look like (`admission::request_head`), carrying it out (`proxy`).

// core
pub mod request_head;

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use http::uri::Authority;
use http::{Method, header};
use pingora_http::RequestHeader;
use pingora_proxy::Session;
use weir_common::decision::Decision;
use weir_common::time::Tick;

use crate::config::active::Force;
use crate::config::shared::Parts;
use crate::edge::connection::Connection;
use crate::identity::auth;
use crate::identity::directory::Unsure;
use crate::identity::directory::unknown_budget::Asker;
use crate::limit::Verdict;
use crate::limit::report::{self, Named};
use crate::operations::upgrade::{self, Homeless};
use crate::proxy::context::{Exchange, Said};
use crate::request::cors::{Cors, Preflight};
use crate::request::target::Target;
use crate::response::refusal::Refusal;
use crate::response::reply::Reply;
use crate::rules::tenant::{Identity, Known, Names, Parents, client_address};
use crate::rules::{Batch, Charges, NoWay, Way};
use crate::settings::LimitKey;
use crate::upstream::Upstream;

/// What is to be done with a request.
#[derive(Debug)]
pub enum Next {
    /// Send it on.
    Forward,
    /// Read its body, count, and only then send it on.
    Hold(Batch),
    /// Answer a browser that asks what it may ask.
    Preflight(Reply),
    /// Answer it ourselves.
    Refuse(Refusal),
}

/// Decides, and keeps what was found in the exchange.
pub async fn judge(parts: &Parts, session: &mut Session, exchange: &mut Exchange) -> Next {
    let force = exchange.force.clone();
    let head_bytes = session.downstream_session.as_http1().map(|h1| h1.get_headers_raw_bytes());
    let repaired = meet(session, exchange);
    let head = session.req_header();
    let peer = exchange.peer.unwrap_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED));
    let trusted = &force.rules.settings.server.trusted_proxies;
    let address = client_address(peer, trusted, request_head::values(head, "x-forwarded-for"));
    exchange.client = Some(address);
    exchange.trusts_peer = trusted.iter().any(|network| network.contains(&peer.to_canonical()));
    exchange.given_id = request_head::given_id(head).filter(|_| exchange.trusts_peer);
    let raw_head = head_bytes.as_deref().unwrap_or_default();
    let length =
        head_bytes.as_ref().map_or_else(|| request_head::length(head), |bytes| bytes.len());
    if length as u64 > force.rules.settings.server.caps.head_bytes_max {
        return Next::Refuse(Refusal::HeadTooLarge);
    }
    if head.method == Method::CONNECT {
        return Next::Refuse(Refusal::Connect);
    }
    let target = match request_head::read_target(head, raw_head, repaired) {
        Ok(target) => target,
        Err(why) => return Next::Refuse(Refusal::Malformed(why)),
    };
    if let Some(reply) = preflight(exchange, head, &target) {
        return Next::Preflight(reply);
    }
    let way = match force.rules.lead(&target, &head.method) {
        Ok(way) => way,
        Err(no_way) => return refuse_way(exchange, no_way),
    };
    exchange.absolute =
        (head.raw_path() != target.origin_form.as_bytes()).then(|| target.origin_form.to_owned());
    exchange.whose.plane = Some(way.route.plane);
    exchange.whose.route = Some(way.index);
    let claims = auth::verify(parts, &force, way.route, head, address, exchange.began).await;
    let claims = claims.as_ref().map(Option::as_deref).map_err(Clone::clone);
    let names = claims.map(|claims| (named(&force, &way, claims), claims));
    let known = match names {
        Ok((names, claims)) => {
            let now = exchange.began.tick;
            let known = look_up(parts, &force, &way, &names, claims, address, now).await;
            known.map(|known| (names, known))
        }
        Err(refusal) => Err(refusal),
    };
    let (asked, refused) = match known {
        Ok((names, known)) => {
            let identity = force.rules.identify(&names, known.as_ref());
            let asked = ask(parts, &force, exchange, &way, &identity, address);
            let guessed = known.is_some() && way.route.exempt;
            keep(exchange, identity, guessed);
            (asked, None)
        }
        Err(refusal) => (ask_stranger(parts, &force, exchange, address), Some(refusal)),
    };
    let refusal = match asked {
        Ok(refusal) => refusal,
        // Boxed, for it is as good as never: a request has no room for it.
        Err(charges) => Box::pin(charge_elsewhere(parts, &force, exchange, *charges)).await,
    };
    let refusal = refusal.or(refused);
    let upstream = force.upstreams.get(way.route.upstream);
    let has_server = upstream.is_some_and(|upstream| upstream.has_healthy());
    match (refusal, way.route.batch) {
        (Some(refusal), _) => Next::Refuse(refusal),
        (None, _) if !has_server => Next::Refuse(no_server(upstream.map(|upstream| &**upstream))),
        (None, Some(batch)) => Next::Hold(batch),
        (None, None) => Next::Forward,
    }
}

/// Whom a request names, by its target and its token.
fn named<'n>(force: &Force, way: &Way<'n>, claims: Option<&'n auth::Claims>) -> Names<'n> {
    auth::claimed(way.names, claims, &force.rules.settings.workspaces)
}

/// What the directory says of those whom a request names, where it is one that is asked; a
/// refusal where its token does not reach them. Where nobody is to be charged whom it could know,
/// nobody waits for it.
async fn look_up(
    parts: &Parts,
    force: &Force,
    way: &Way<'_>,
    names: &Names<'_>,
    claims: Option<&auth::Claims>,
    address: IpAddr,
    now: Tick,
) -> Result<Option<Known>, Refusal> {
    let rules = &force.rules;
    let Some(lookups) = &force.lookups else {
        auth::agree(Parents::File(&rules.tenants), &way.names, claims)?;
        return Ok(None);
    };
    let is_limited_by = |key| rules.is_limited_by(way.route, key);
    let with_organisation = is_limited_by(LimitKey::Organisation);
    let tenants = [LimitKey::Workspace, LimitKey::Instance].into_iter().any(is_limited_by);
    let needed = tenants || with_organisation || auth::needs_directory(&way.names, claims);
    let known = if needed && !auth::is_foreign(&way.names, claims) {
        let allowance = rules.unknown_names(address);
        let asker = Asker { allowance: Some((&parts.store, allowance)), now };
        let known = lookups.find(rules, names, with_organisation, &asker).await;
        known.map_err(|Unsure| Refusal::DirectoryUnavailable)?
    } else {
        Known::default()
    };
    auth::agree(Parents::Asked(&known), &way.names, claims)?;
    Ok(Some(known))
}

/// Takes note of whom we talk to, and says whether the request line was mended before we saw it.
fn meet(session: &Session, exchange: &mut Exchange) -> bool {
    if let Some(connection) = Connection::of(session.stream()) {
        exchange.peer = Some(connection.peer().ip());
        exchange.secure = connection.is_secure();
        exchange.client_certificate = connection.client_certificate().cloned();
        return connection.was_repaired();
    }
    // HTTP/2 has many requests on one connection, which is always TLS here.
    exchange.peer = session.client_addr().and_then(|a| a.as_inet()).map(|peer| peer.ip());
    exchange.secure = true;
    // What `connection` has put there.
    let certificate = session.digest().and_then(|digest| digest.ssl_digest.as_ref());
    let certificate = certificate.and_then(|tls| String::from_utf8(tls.cert_digest.clone()).ok());
    exchange.client_certificate = certificate.map(Arc::from);
    false
}

/// The upstream that a request's route leads to.
#[must_use]
pub fn upstream(exchange: &Exchange) -> Option<&Arc<Upstream>> {
    let route = exchange.force.rules.routes.get(exchange.whose.route?)?;
    exchange.force.upstreams.get(route.upstream)
}

/// What a request is told whose upstream has no server that is well.
#[must_use]
pub fn no_server(upstream: Option<&Upstream>) -> Refusal {
    let wait = upstream.map(Upstream::back_in).unwrap_or_default();
    // Rounded up, so that who waits as told is not too early.
    Refusal::NoServer {
        retry_after: wait.as_millis().div_ceil(1_000).max(1).try_into().unwrap_or(1),
    }
}

/// The answer to a preflight: nothing where it is none, its origin is not allowed, or its path is
/// to be refused. It asks about a request and is none itself, so no limit counts it.
fn preflight(exchange: &mut Exchange, head: &RequestHeader, target: &Target<'_>) -> Option<Reply> {
    let asked = Preflight::read(&head.method, &head.headers)?;
    let rules = &exchange.force.rules;
    let (plane, methods) = rules.methods(target, &asked.method).ok()?;
    let lines = rules.cors(Some(plane), None)?.preflight(&asked, &methods)?;
    exchange.whose.plane = Some(plane);
    Some(Reply { lines, ..Reply::new(204, "") })
}

/// What browsers are told where this request leads, or on its host where it leads nowhere.
#[must_use]
pub fn cors<'e>(exchange: &'e Exchange, head: &RequestHeader) -> Option<&'e Cors> {
    let host = head.headers.get(header::HOST).and_then(|host| host.to_str().ok());
    let host = host.or_else(|| head.uri.authority().map(Authority::as_str))?;
    let port_at = host.rfind(':').filter(|_| !host.ends_with(']'));
    let name = host.get(..port_at.unwrap_or(host.len()))?.to_ascii_lowercase();
    exchange.force.rules.cors(exchange.whose.plane, Some(&name))
}

fn refuse_way(exchange: &mut Exchange, no_way: NoWay) -> Next {
    Next::Refuse(match no_way {
        NoWay::UnknownHost => Refusal::UnknownHost,
        NoWay::UnknownPath(plane) => {
            exchange.whose.plane = Some(plane);
            Refusal::UnknownPath
        }
        NoWay::OtherMethods(plane, methods) => {
            exchange.whose.plane = Some(plane);
            Refusal::MethodNotAllowed(methods)
        }
        NoWay::Malformed(why) => Refusal::Malformed(why),
    })
}

/// What the limits of this process said, or what to ask another one.
type Asked = Result<Option<Refusal>, Box<Charges>>;

/// Asks every limit of a way, and keeps what they said. A refusal, where one of them refuses.
fn ask(
    parts: &Parts,
    force: &Force,
    exchange: &mut Exchange,
    way: &Way<'_>,
    identity: &Identity<'_>,
    address: IpAddr,
) -> Asked {
    if way.route.exempt {
        return Ok(None);
    }
    charge(parts, force, exchange, force.rules.charges(way.route, identity, address))
}

/// Asks what nobody but an address can be charged with.
fn ask_stranger(parts: &Parts, force: &Force, exchange: &mut Exchange, address: IpAddr) -> Asked {
    let mut charges = Charges::default();
    force.rules.charge_stranger(address, &mut charges);
    charge(parts, force, exchange, charges)
}

fn charge(parts: &Parts, force: &Force, exchange: &mut Exchange, mut charges: Charges) -> Asked {
    let now = exchange.began.tick;
    parts.boosts.apply(&mut charges.asks, now);
    match parts.store.judge(&charges.asks, now) {
        Ok(verdict) => Ok(settle(parts, force, exchange, &charges, &verdict)),
        Err(_moved) => Err(Box::new(charges)),
    }
}

/// Asks the process that has the counters now.
async fn charge_elsewhere(
    parts: &Parts,
    force: &Force,
    exchange: &mut Exchange,
    mut charges: Charges,
) -> Option<Refusal> {
    match upgrade::judge(parts, &mut charges.asks).await {
        Ok(verdict) => settle(parts, force, exchange, &charges, &verdict),
        Err(Homeless) => Some(Refusal::LimitsUnavailable),
    }
}

/// Keeps what the limits said. A refusal, where one of them refuses.
fn settle(
    parts: &Parts,
    force: &Force,
    exchange: &mut Exchange,
    Charges { asks, charges }: &Charges,
    verdict: &Verdict,
) -> Option<Refusal> {
    let now = exchange.began;
    for ((ask, charge), answer) in asks.iter().zip(charges).zip(verdict.answers()) {
        let meter = force.limits.get(charge.limit);
        let Some(limit) = force.rules.limits.get(charge.limit) else { continue };
        match answer.decision {
            Decision::Admit if verdict.is_admitted() => {
                meter.inspect(|meter| meter.admit.inc());
                parts.top.admitted(ask.key, &limit.name, &charge.name, exchange.nth);
            }
            Decision::Admit => {}
            _ => {
                meter.inspect(|meter| {
                    if ask.enforced { meter.refuse.inc() } else { meter.would_refuse.inc() }
                });
                parts.top.refused(ask.key, &limit.name, &charge.name);
            }
        }
        let (limit, name) = (charge.limit, charge.name.clone());
        let said =
            Said { limit, name, decision: answer.decision, remaining: answer.standing.remaining };
        exchange.said.push(said);
    }
    let name_of = |limit: usize| force.rules.limits.get(limit).map_or("", |limit| &*limit.name);
    exchange.told = report::told(asks, verdict, now);
    if force.rules.settings.headers.ratelimit {
        let named: Vec<Named<'_>> = asks
            .iter()
            .zip(charges)
            .map(|(ask, charge)| Named { name: name_of(charge.limit), ask })
            .collect();
        exchange.ietf = Some(report::ietf(&named, verdict, now));
    }
    if verdict.is_admitted() {
        return None;
    }
    let told = exchange.told.clone()?;
    let resource = charges.get(told.binding).map_or("", |charge| name_of(charge.limit)).to_owned();
    Some(Refusal::RateLimited { resource, told })
}

/// Keeps whom a request is for; the organisation only where somebody was asked about it.
fn keep(exchange: &mut Exchange, identity: Identity<'_>, guessed: bool) {
    let whose = &mut exchange.whose;
    whose.workspace = identity.workspace.map(|subject| subject.name);
    let organisation = identity.organisation.filter(|_| !guessed);
    whose.organisation = organisation.map(|subject| subject.name);
    whose.instance = identity.instance.map(|subject| subject.name);
}
