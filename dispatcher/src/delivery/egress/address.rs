//! Decides whether an address may be called: only globally reachable ones. (core)
//!
//! # Invariants
//!
//! 1. Networks that IANA's special-purpose registries list as not globally reachable are refused,
//!    unless the operator allows them.
//! 2. An IPv6 address with an embedded IPv4 address is refused if the IPv4 address is. A network
//!    that the operator allows is allowed as written and IPv4-mapped, in no other form.
//!
//! Not here: name resolution (`egress`).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;

/// Why an address may not be called; `None` if it may.
#[must_use]
pub fn forbidden(address: IpAddr, permitted: &[IpNet]) -> Option<&'static str> {
    let plain = address.to_canonical();
    if permitted.iter().any(|net| net.contains(&address) || net.contains(&plain)) {
        return None;
    }
    match plain {
        IpAddr::V4(four) => forbidden_v4(four),
        IpAddr::V6(six) => forbidden_v6(six),
    }
}

/// IPv4 networks that are not globally reachable.
const NETWORKS_V4: [([u8; 4], u32, &str); 16] = [
    ([0, 0, 0, 0], 8, "of this network"),
    ([10, 0, 0, 0], 8, "a private address"),
    ([100, 64, 0, 0], 10, "an address shared by a carrier's customers"),
    ([127, 0, 0, 0], 8, "a loopback address"),
    ([169, 254, 0, 0], 16, "a link-local address"),
    ([172, 16, 0, 0], 12, "a private address"),
    ([192, 0, 0, 0], 24, "reserved for protocols"),
    ([192, 0, 2, 0], 24, "reserved for documentation"),
    ([192, 88, 99, 0], 24, "a 6to4 relay"),
    ([192, 168, 0, 0], 16, "a private address"),
    ([198, 18, 0, 0], 15, "reserved for benchmarks"),
    ([198, 51, 100, 0], 24, "reserved for documentation"),
    ([203, 0, 113, 0], 24, "reserved for documentation"),
    ([224, 0, 0, 0], 4, "a multicast address"),
    ([240, 0, 0, 0], 4, "reserved for the future"),
    // A public address, but on Azure the host of the calling virtual machine.
    ([168, 63, 129, 16], 32, "a cloud's own service"),
];

fn forbidden_v4(address: Ipv4Addr) -> Option<&'static str> {
    let bits = address.to_bits();
    let contains = |net: [u8; 4], length: u32| {
        (bits ^ Ipv4Addr::from(net).to_bits()).leading_zeros() >= length
    };
    NETWORKS_V4.iter().find(|(net, length, _)| contains(*net, *length)).map(|(_, _, why)| *why)
}

/// IPv6 networks that are refused, narrower ones first.
const NETWORKS_V6: [([u16; 3], u32, &str); 12] = [
    ([0x0064, 0xff9b, 1], 48, "a translated address"),
    ([0x0100, 0, 0], 64, "reserved for what is thrown away"),
    ([0x2001, 0, 0], 32, "a Teredo address"),
    ([0x2001, 0, 0], 23, "reserved for protocols"),
    ([0x2001, 0x0db8, 0], 32, "reserved for documentation"),
    ([0x2002, 0, 0], 16, "a 6to4 address"),
    ([0x3fff, 0, 0], 20, "reserved for documentation"),
    ([0x5f00, 0, 0], 16, "reserved for segment routing"),
    ([0xfc00, 0, 0], 7, "a private address"),
    ([0xfe80, 0, 0], 10, "a link-local address"),
    ([0xfec0, 0, 0], 10, "a site-local address"),
    ([0xff00, 0, 0], 8, "a multicast address"),
];

/// The only range of public addresses: 2000::/3.
const PUBLIC_V6: [u16; 3] = [0x2000, 0, 0];

fn forbidden_v6(address: Ipv6Addr) -> Option<&'static str> {
    let contains = |net: [u16; 3], length: u32| {
        let [first, second, third] = net;
        let net = Ipv6Addr::new(first, second, third, 0, 0, 0, 0, 0).to_bits();
        (address.to_bits() ^ net).leading_zeros() >= length
    };
    if address.is_unspecified() {
        return Some("of this network");
    }
    if address.is_loopback() {
        return Some("a loopback address");
    }
    let [first, second, third, fourth, fifth, sixth, ..] = address.segments();
    let embedded = Ipv4Addr::from_bits((address.to_bits() & u128::from(u32::MAX)) as u32);
    if [first, second, third, fourth, fifth, sixth] == [0x0064, 0xff9b, 0, 0, 0, 0] {
        // NAT64: a translator calls the IPv4 address.
        return forbidden_v4(embedded);
    }
    if let Some((_, _, why)) = NETWORKS_V6.iter().find(|(net, length, _)| contains(*net, *length)) {
        return Some(why);
    }
    if !contains(PUBLIC_V6, 3) {
        // Includes the obsolete forms of IPv4: compatible, and translated.
        return Some("not public");
    }
    // ISATAP: any router may unwrap the address; two bits vary.
    let isatap = fifth & 0xfcff == 0 && sixth == 0x5efe;
    if isatap { forbidden_v4(embedded) } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn check(refused: bool, addresses: &str) {
        for text in addresses.split_whitespace() {
            let address = text.parse().expect("an address");
            assert_eq!(forbidden(address, &[]).is_some(), refused, "{text}");
        }
    }

    #[test]
    fn both_ends_of_every_reserved_v4_network_are_refused_and_their_neighbours_are_not() {
        check(true, "0.0.0.0 0.255.255.255 10.0.0.0 10.255.255.255 100.64.0.0 100.127.255.255");
        check(true, "127.0.0.0 127.255.255.255 169.254.0.0 169.254.169.254 169.254.255.255");
        check(true, "172.16.0.0 172.31.255.255 192.0.0.0 192.0.0.255 192.0.2.0 192.0.2.255");
        check(true, "192.88.99.0 192.88.99.255 192.168.0.0 192.168.255.255 198.18.0.0");
        check(true, "198.19.255.255 198.51.100.0 198.51.100.255 203.0.113.0 203.0.113.255");
        check(true, "224.0.0.0 239.255.255.255 240.0.0.0 255.255.255.255 168.63.129.16");
        check(false, "1.0.0.0 9.255.255.255 11.0.0.0 100.63.255.255 100.128.0.0 126.255.255.255");
        check(false, "128.0.0.0 169.253.255.255 169.255.0.0 172.15.255.255 172.32.0.0");
        check(false, "191.255.255.255 192.0.1.0 192.0.3.0 192.88.98.255 192.88.100.0");
        check(false, "192.167.255.255 192.169.0.0 198.17.255.255 198.20.0.0 198.51.99.255");
        check(false, "198.51.101.0 203.0.112.255 203.0.114.0 223.255.255.255 8.8.8.8");
        check(false, "168.63.129.15 168.63.129.17");
    }

    #[test]
    fn both_ends_of_every_reserved_v6_network_are_refused_and_their_neighbours_are_not() {
        check(true, ":: ::1 ::2 ::ffff:127.0.0.1 ::ffff:10.0.0.1 ::8.8.8.8 ::127.0.0.1");
        check(true, "64:ff9b:1:: 64:ff9b:1:ffff:ffff:ffff:ffff:ffff 64:ff9b:1::808:808");
        check(true, "64:ff9b::127.0.0.1 64:ff9b::10.0.0.1 64:ff9b::169.254.169.254");
        check(true, "64:ff9b:0:0:0:1:808:808 64:ff9a::8.8.8.8 0:0:0:0:ffff:0:808:808");
        check(true, "100:: 100:0:0:0:ffff:: 2001:: 2001:1ff:ffff:ffff:: 2001:20::1 2001:10::1");
        check(true, "2001:db8:: 2001:db8:ffff:: 2002:: 2002:808:808:: 2002:ffff:ffff::");
        check(true, "3fff:: 3fff:fff:ffff:: 5f00:: 5f00:ffff:: fc00:: fd00:ec2::254 fdff::");
        check(true, "fe80:: fe80::1 febf:ffff:: fec0:: feff:: ff00:: ff02::1 ffff::");
        check(true, "4000:: 8000:: 1fff:: fbff:: fe00:: 2a00::5efe:10.0.0.1");
        check(true, "2a00::200:5efe:10.0.0.1 2a00::100:5efe:127.0.0.1 2a00::300:5efe:0.0.0.0");
        check(false, "2001:200:: 2001:db7:ffff:: 2001:db9:: 2003:: 2000::1 3fff:1000:: 3ffe::1");
        check(false, "2a00::5efe:8.8.8.8 2a00::5eff:10.0.0.1 2a00::1:5efe:10.0.0.1");
        check(false, "::ffff:8.8.8.8 64:ff9b::8.8.8.8 2606:4700:4700::1111 2a00:1450::1");
    }

    #[test]
    fn an_allowed_network_is_allowed_mapped_and_in_no_other_form() {
        let permitted = ["10.1.0.0/16", "fd00::/8"].map(|net| net.parse().expect("a network"));
        let allowed =
            |text: &str| forbidden(text.parse().expect("an address"), &permitted).is_none();
        for text in ["10.1.2.3", "::ffff:10.1.2.3", "fd12::1"] {
            assert!(allowed(text), "{text}");
        }
        for text in ["10.2.0.1", "64:ff9b::10.1.2.3", "2002:a01:203::", "::10.1.2.3", "fc00::1"] {
            assert!(!allowed(text), "{text}");
        }
    }

    #[test]
    fn allowing_mapped_addresses_allows_no_plain_ones() {
        let permitted = ["::ffff:10.0.0.0/104"].map(|net| net.parse().expect("a network"));
        let plain = "10.0.0.1".parse().expect("an address");
        assert!(forbidden(plain, &permitted).is_some());
    }

    /// Every form of an IPv6 address with an embedded IPv4 address that a router may unwrap.
    fn disguises(four: u32, noise: u64) -> Vec<Ipv6Addr> {
        let low = u128::from(four);
        let noise = u128::from(noise);
        let public = 0x2a00_u128 << 112 | (noise & 0xffff_ffff) << 64;
        [
            low,
            0xffff << 32 | low,
            0xffff << 48 | low,
            0x0064_ff9b << 96 | low,
            0x0064_ff9b_0001 << 80 | low,
            // RFC 6052 splits the address around the bits 64 to 71 of shorter prefixes.
            0x0064_ff9b_0001 << 80 | (low >> 16) << 64 | (low & 0xffff) << 40,
            0x2002 << 112 | low << 80 | noise,
            0x2001_0000 << 96 | (noise & 0xffff_ffff) << 64 | u128::from(!four),
            0x2001_0000 << 96 | low << 64 | noise,
            public | 0x5efe << 32 | low,
            public | 0x0200_5efe << 32 | low,
            0xfe80 << 112 | 0x5efe << 32 | low,
        ]
        .map(Ipv6Addr::from_bits)
        .to_vec()
    }

    proptest! {
        #[test]
        fn no_embedding_hides_a_private_address(
            net in 0..NETWORKS_V4.len(), host: u32, noise: u64,
        ) {
            let (net, length, _) = NETWORKS_V4[net];
            let mask = u32::MAX.checked_shr(length).unwrap_or(0);
            let four = Ipv4Addr::from(net).to_bits() | host & mask;
            prop_assert!(forbidden(Ipv4Addr::from_bits(four).into(), &[]).is_some());
            for six in disguises(four, noise) {
                prop_assert!(forbidden(six.into(), &[]).is_some(), "{six}");
            }
        }
    }
}
