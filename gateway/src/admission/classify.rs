//! The first step of admission: reads a request's head and finds its route.
//!
//! # Invariants
//!
//! 1. A request that two parsers could read differently is refused.
//! 2. A CORS preflight that is answered here is charged to no tenant and never refused; its
//!    response charges `limits.refused` (`proxy::respond`).
//!
//! # Not here
//!
//! Which heads are accepted (`admission::request_head`), which routes exist (`rules`).

use http::Method;
use ipnet::IpNet;
use pingora_http::RequestHeader;

use crate::admission::Arrival;
use crate::admission::facts::{RequestFacts, TenantLabels};
use crate::admission::request_head as head;
use crate::request::client_address::{FORWARDED_FOR, client_address, is_of};
use crate::request::cors::Preflight;
use crate::request::target::Target;
use crate::response::refusal::Refusal;
use crate::response::reply::Reply;
use crate::rules::{RouteError, RouteMatch, Rules};
use crate::settings::ServerSettings;

/// The kind of a request.
pub(super) enum Classified<'r> {
    /// A route accepts it.
    Routed(RouteMatch<'r>),
    /// A CORS preflight, with the response to it.
    Preflight(Reply),
    /// No route accepts it.
    Refused(Refusal),
}

/// Reads a request's head: its client's address, and a target that every parser reads alike.
pub(super) fn read<'r>(
    server: &ServerSettings,
    arrival: &Arrival<'r>,
    facts: &mut RequestFacts,
) -> Result<Target<'r>, Refusal> {
    find_client(&server.trusted_proxies, arrival.head, facts);
    let length = arrival.length.unwrap_or_else(|| head::length(arrival.head));
    if length as u64 > server.caps.head_bytes_max {
        return Err(Refusal::HeadTooLarge);
    }
    if arrival.head.method == Method::CONNECT {
        return Err(Refusal::Connect);
    }
    let target = match arrival.malformed {
        Some(why) => Err(why),
        None => head::read_target(arrival.head),
    };
    target.map_err(Refusal::Malformed)
}

/// Finds a request's route.
pub(super) fn classify<'r>(
    rules: &'r Rules,
    arrival: &Arrival<'_>,
    target: &'r Target<'_>,
    facts: &mut RequestFacts,
) -> Classified<'r> {
    if let Some(reply) = preflight(rules, &mut facts.tenant, arrival.head, target) {
        return Classified::Preflight(reply);
    }
    let route_match = match rules.match_route(target, &arrival.head.method) {
        Ok(route_match) => route_match,
        Err(route_error) => {
            facts.tenant.plane = route_error.plane();
            return Classified::Refused(refusal_of(route_error));
        }
    };
    facts.origin_form = (arrival.head.raw_path() != target.origin_form.as_bytes())
        .then(|| target.origin_form.to_owned());
    facts.tenant.plane = Some(route_match.route.plane);
    facts.tenant.route = Some(route_match.index);
    Classified::Routed(route_match)
}

fn find_client(trusted: &[IpNet], head: &RequestHeader, facts: &mut RequestFacts) {
    let peer = facts.client.peer;
    let is_trusted = is_of(trusted, peer);
    let forwarded_for = head::values(head, &FORWARDED_FOR);
    facts.client.address = client_address(peer, trusted, forwarded_for);
    facts.client.is_trusted_proxy = is_trusted;
    facts.given_id = head::given_id(head).filter(|_| is_trusted);
}

/// The response to a CORS preflight. `None` if the request is no preflight, its origin is not
/// allowed, or its path is refused.
fn preflight(
    rules: &Rules,
    tenant: &mut TenantLabels,
    head: &RequestHeader,
    target: &Target<'_>,
) -> Option<Reply> {
    let requested = Preflight::read(&head.method, &head.headers)?;
    let (plane, methods) = rules.methods(target, &requested.method).ok()?;
    let lines = rules.cors(plane)?.preflight(&requested, &methods)?;
    tenant.plane = Some(plane);
    Some(Reply { lines, ..Reply::new(204, "") })
}

/// The refusal of a request that no route accepts.
#[must_use]
pub fn refusal_of(route_error: RouteError) -> Refusal {
    match route_error {
        RouteError::UnknownHost => Refusal::UnknownHost,
        RouteError::UnknownPath(_) => Refusal::UnknownPath,
        RouteError::OtherMethods(_, methods) => Refusal::MethodNotAllowed(methods),
        RouteError::Malformed(why) => Refusal::Malformed(why),
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::*;

    #[test]
    fn bytes_that_are_no_text_hide_no_address_that_the_proxy_appended() {
        let trusted = ["10.0.0.0/8".parse().unwrap()];
        let mut head = RequestHeader::build("GET", b"/", None).unwrap();
        head.append_header(&FORWARDED_FOR, &b"\xe9, 198.51.100.7"[..]).unwrap();
        let mut facts = RequestFacts::of([10, 0, 0, 1].into());
        find_client(&trusted, &head, &mut facts);
        assert_eq!(facts.client.address, IpAddr::from([198, 51, 100, 7]));
    }
}
