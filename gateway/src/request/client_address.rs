//! The address of a client, and the network that counts as one. (core)
//!
//! Invariant: `X-Forwarded-For` is read only if the peer is a trusted proxy.
//!
//! Not here: the limits of an address (`rules`), the number of its connections (`edge`).

use std::fmt::Write;
use std::net::{IpAddr, Ipv6Addr};

use arrayvec::ArrayString;
use http::HeaderName;
use ipnet::IpNet;

/// The header in which proxies name a request's earlier hops.
pub const FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");

/// The longest text of an address: an IPv6 address that ends in an IPv4 address.
const TEXT_MAX: usize = 45;

/// The client's address: the peer's own, or behind trusted proxies the right-most address that
/// is not one of theirs. An invalid entry ends the search: entries left of it cannot be trusted.
/// Lines are bytes: what a client wrote into its part of one hides no entry right of it.
#[must_use]
pub fn client_address<'h>(
    peer: IpAddr,
    trusted: &[IpNet],
    forwarded_for: impl DoubleEndedIterator<Item = &'h [u8]>,
) -> IpAddr {
    let mut client = peer.to_canonical();
    let hops = forwarded_for.rev().flat_map(|line| line.rsplit(|byte| *byte == b','));
    for hop in hops {
        if !is_of(trusted, client) {
            break;
        }
        let Some(address) = hop_address(hop.trim_ascii()) else { break };
        client = address;
    }
    client
}

/// Whether one of `networks` contains `address`.
#[must_use]
pub fn is_of(networks: &[IpNet], address: IpAddr) -> bool {
    let address = address.to_canonical();
    networks.iter().any(|network| network.contains(&address))
}

/// Parses an address as proxies write it: bare, with a port, or in brackets.
fn hop_address(hop: &[u8]) -> Option<IpAddr> {
    let hop = str::from_utf8(hop).ok()?;
    let bare = hop.parse::<IpAddr>().ok();
    let with_port = || hop.parse::<std::net::SocketAddr>().ok().map(|address| address.ip());
    let bracketed = || hop.strip_prefix('[')?.strip_suffix(']')?.parse().ok();
    bare.or_else(with_port).or_else(bracketed).map(|address| address.to_canonical())
}

/// An address as text. The standard library formats each octet of an IPv4 address with padding and
/// alignment: some 900 instructions.
#[must_use]
pub fn address_text(address: IpAddr) -> ArrayString<TEXT_MAX> {
    let mut text = ArrayString::new();
    // Every address fits.
    let _ = match address {
        IpAddr::V4(address) => address.octets().iter().enumerate().try_for_each(|(nth, octet)| {
            text.try_push_str(if nth > 0 { "." } else { "" }).ok()?;
            text.try_push_str(itoa::Buffer::new().format(*octet)).ok()
        }),
        IpAddr::V6(address) => write!(text, "{address}").ok(),
    };
    text
}

/// The network that an address counts as: itself, or for IPv6 the /64.
#[must_use]
pub fn network_of(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => prefix_64(address).into(),
        address => address,
    }
}

/// The /64 of an IPv6 address, all of which one client may have.
#[must_use]
pub fn prefix_64(address: Ipv6Addr) -> Ipv6Addr {
    Ipv6Addr::from_bits(address.to_bits() >> 64 << 64)
}

/// The network whose addresses share turns: of IPv6 the /48, all of which one client may have.
#[must_use]
pub fn prefix_48(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V4(address) => address.into(),
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() >> 80 << 80).into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_of_an_address_is_that_of_the_standard_library() {
        for address in [
            "0.0.0.0",
            "192.0.2.1",
            "255.255.255.255",
            "::",
            "2001:db8::1",
            "::ffff:255.255.255.255",
            "2001:db8:1111:2222:3333:4444:5555:6666",
        ] {
            assert_eq!(address_text(address.parse().unwrap()).as_str(), address);
        }
    }

    fn client(peer: &str, trusted: &[&str], forwarded_for: &[&str]) -> String {
        let trusted: Vec<IpNet> = trusted.iter().map(|network| network.parse().unwrap()).collect();
        let lines = forwarded_for.iter().map(|line| line.as_bytes());
        client_address(peer.parse().unwrap(), &trusted, lines).to_string()
    }

    #[test]
    fn an_untrusted_peer_is_its_own_address_whatever_it_writes() {
        assert_eq!(client("192.0.2.1", &[], &["10.0.0.1"]), "192.0.2.1");
        assert_eq!(client("192.0.2.1", &["10.0.0.0/8"], &["10.0.0.1"]), "192.0.2.1");
    }

    #[test]
    fn behind_trusted_proxies_the_right_most_untrusted_address_counts() {
        let trusted = ["10.0.0.0/8", "fd00::/8"];
        for (forwarded_for, address) in [
            (&["198.51.100.7"][..], "198.51.100.7"),
            (&["1.1.1.1, 198.51.100.7, 10.0.0.2"], "198.51.100.7"),
            (&["1.1.1.1", "198.51.100.7,10.0.0.2"], "198.51.100.7"),
            (&["198.51.100.7:4711"], "198.51.100.7"),
            (&["[2001:db8::1]:443"], "2001:db8::1"),
            (&["[2001:db8::1]"], "2001:db8::1"),
            (&["::ffff:198.51.100.7"], "198.51.100.7"),
            (&["1.1.1.1, unknown, 10.0.0.2"], "10.0.0.2"),
            (&["é, 198.51.100.7, 10.0.0.2"], "198.51.100.7"),
            (&["1.1.1.1, é, 10.0.0.2"], "10.0.0.2"),
            (&["1.1.1.1", "é"], "10.0.0.1"),
            (&["10.0.0.3, 10.0.0.2"], "10.0.0.3"),
            (&["", "198.51.100.7"], "198.51.100.7"),
            (&[], "10.0.0.1"),
        ] {
            assert_eq!(client("10.0.0.1", &trusted, forwarded_for), address, "{forwarded_for:?}");
        }
        assert_eq!(client("::ffff:10.0.0.1", &trusted, &["1.1.1.1"]), "1.1.1.1");
    }

    #[test]
    fn addresses_of_one_ipv6_48_share_turns_and_each_ipv4_address_has_its_own() {
        let network = |address: &str| prefix_48(address.parse().unwrap()).to_string();
        assert_eq!(network("192.0.2.7"), "192.0.2.7");
        assert_eq!(network("::ffff:192.0.2.7"), "192.0.2.7");
        assert_eq!(network("2001:db8:1:ffff::1"), "2001:db8:1::");
        assert_eq!(network("2001:db8:2:ffff::1"), "2001:db8:2::");
    }
}
