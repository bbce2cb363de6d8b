//! Refuses requests that a page in a browser sends to an operator's listener.
//!
//! Any site can let its name resolve to 127.0.0.1 (DNS rebinding), and its page can then read from
//! a listener there; but the browser sends the site's name in `Host`. A page can also send a write
//! to any address without reading the response (CSRF); the browser then sends the page's `Origin`.
//!
//! Invariants:
//!
//! 1. Without a token, only a request to a loopback name or address is answered, reads included.
//! 2. A write that a page sends is refused, with a token or without; the forms of our own pages
//!    are checked in `pages`.
//!
//! Not here: the token (`secret::same`), which addresses need one (the settings).

use std::net::IpAddr;

use http::HeaderMap;
use http::header::{HOST, ORIGIN};

use crate::problem::Problem;

/// The refusal of a request that a page of another site may have sent. `reads`: the request
/// changes nothing, or is checked in `pages`; `needs_token`: the listener requires a token.
#[must_use]
pub(super) fn refusal(headers: &HeaderMap, reads: bool, needs_token: bool) -> Option<Problem> {
    let refused = |kind, title, detail: &str| {
        Some(Problem { status: 403, kind, title, detail: detail.to_owned(), members: Vec::new() })
    };
    let mut hosts = headers.get_all(HOST).iter();
    let first_is_ours = hosts.next().is_some_and(|host| is_loopback(host.as_bytes()));
    let is_ours = first_is_ours && hosts.next().is_none();
    if !needs_token && !is_ours {
        let detail = "Without server.admin_token_file this listener answers only as localhost or \
                      a loopback address: call it by one of these, or set a token.";
        return refused("host", "Not a loopback host", detail);
    }
    if !reads && headers.contains_key(ORIGIN) {
        return refused("origin", "Forbidden", "A page in a browser has no business here.");
    }
    None
}

/// Whether a `Host` names this machine: `localhost` and the names below it, which no site can
/// own (RFC 6761, 6.3), or a loopback address, each with or without a port.
fn is_loopback(host: &[u8]) -> bool {
    let Ok(host) = std::str::from_utf8(host) else { return false };
    let bracketed = host.strip_prefix('[').and_then(|host| host.split_once(']'));
    let (name, port) = match bracketed {
        Some((name, port)) if name.contains(':') => (name, port),
        Some(_) => return false,
        None => host.split_at(host.find(':').unwrap_or(host.len())),
    };
    let is_port = |port: &str| port.bytes().all(|byte| byte.is_ascii_digit());
    if !port.is_empty() && !port.strip_prefix(':').is_some_and(is_port) {
        return false;
    }
    let by_address = name.parse::<IpAddr>().is_ok_and(|ip| ip.to_canonical().is_loopback());
    let name = name.to_ascii_lowercase();
    by_address || (bracketed.is_none() && (name == "localhost" || name.ends_with(".localhost")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kind(hosts: &[&str], has_origin: bool, reads: bool, needs_token: bool) -> &'static str {
        let mut headers = HeaderMap::new();
        for host in hosts {
            headers.append(HOST, host.parse().unwrap());
        }
        if has_origin {
            headers.insert(ORIGIN, "null".parse().unwrap());
        }
        refusal(&headers, reads, needs_token).map_or("", |problem| problem.kind)
    }

    #[test]
    fn without_a_token_only_a_loopback_host_is_answered() {
        for host in [
            "localhost",
            "LocalHost:8081",
            "api.localhost",
            "127.0.0.1",
            "127.9.8.7:1",
            "[::1]:8081",
            "[::ffff:127.0.0.1]",
        ] {
            assert_eq!(kind(&[host], false, true, false), "", "{host}");
        }
        for host in [
            "",
            "evil.example",
            "evil.example:8081",
            "localhost.evil.example",
            "127.0.0.1.evil.example",
            "evillocalhost",
            "192.0.2.1",
            "0.0.0.0",
            "[::]",
            "[::2]:8081",
            "[127.0.0.1]",
            "[localhost]",
            "127.0.0.1:x",
            "localhost:80:80",
            "localhost@evil.example",
            "localhost,evil.example",
            "::1",
        ] {
            assert_eq!(kind(&[host], false, true, false), "host", "{host}");
            assert_eq!(kind(&[host], false, true, true), "", "{host}, with a token");
        }
        assert_eq!(kind(&[], false, true, false), "host");
        assert_eq!(kind(&["localhost", "localhost"], false, true, false), "host");
    }

    #[test]
    fn no_write_is_done_for_a_page() {
        for needs_token in [false, true] {
            assert_eq!(kind(&["localhost"], true, false, needs_token), "origin");
            assert_eq!(kind(&["localhost"], true, true, needs_token), "");
            assert_eq!(kind(&["localhost"], false, false, needs_token), "");
        }
    }
}
