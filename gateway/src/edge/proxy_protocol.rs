//! Parses the header in which a load balancer passes on the address of a connection's client.
//! (core)
//!
//! Both versions of HAProxy's PROXY protocol: a line of text, or sixteen bytes and a length.
//!
//! # Invariants
//!
//! 1. Only bytes that the header is sure to have are requested: what follows it is never read.
//! 2. Bytes that do not start like a header are refused at the first wrong one.
//! 3. No header is longer than [`HEADER_BYTES_MAX`].
//! 4. The result does not depend on the pieces in which a header arrives.
//!
//! # Not here
//!
//! Which peers send a header, and by when (`listener`).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// The longest header that is accepted: addresses take up to 216 bytes, and what load balancers add
/// to them (a client certificate in the worst case) a few thousand.
pub const HEADER_BYTES_MAX: usize = 16 + 8 * 1024;

/// The longest line of version 1, its end included.
const LINE_BYTES_MAX: usize = 107;

/// Bytes that a header of either version has at least; enough to distinguish the versions.
const BEGINNING: usize = 12;

const SIGNATURE: &[u8; BEGINNING] = b"\r\n\r\n\0\r\nQUIT\n";
const WORD: &[u8] = b"PROXY ";

/// The fixed part of version 2.
const FIXED: usize = 16;

/// The result for the bytes so far.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Progress {
    /// The header has at least so many more bytes.
    More(usize),
    /// The header is complete.
    Whole(ProxyHeader),
    /// The bytes are not a header, for this reason.
    Malformed(&'static str),
}

/// The source of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProxyHeader {
    /// The address of a client.
    Client(SocketAddr),
    /// The sender itself, or a client whose address the header does not have.
    Sender,
}

/// Parses the header that starts with `bytes`.
#[must_use]
pub fn read(bytes: &[u8]) -> Progress {
    let begins = |with: &[u8]| bytes.iter().zip(with).all(|(byte, with)| byte == with);
    if begins(SIGNATURE) {
        return if bytes.len() < BEGINNING {
            Progress::More(BEGINNING - bytes.len())
        } else {
            binary(bytes)
        };
    }
    if begins(WORD) {
        return if bytes.len() < BEGINNING {
            Progress::More(BEGINNING - bytes.len())
        } else {
            text(bytes)
        };
    }
    Progress::Malformed("does not begin with a PROXY header")
}

/// Version 1, of which at least [`BEGINNING`] bytes have arrived.
fn text(bytes: &[u8]) -> Progress {
    // Also if bytes follow already: a line that ends so is not a PROXY header.
    let line_end = bytes.iter().position(|byte| *byte == b'\n');
    if line_end.is_some_and(|at| !bytes.get(..=at).unwrap_or_default().ends_with(b"\r\n")) {
        return Progress::Malformed("its line ends without a carriage return");
    }
    let Some(line) = bytes.strip_suffix(b"\r\n") else {
        let room = LINE_BYTES_MAX.saturating_sub(bytes.len());
        return match bytes.split_last() {
            Some((b'\r', _)) if room >= 1 => Progress::More(1),
            _ if room < 2 => Progress::Malformed("its line has no end"),
            _ if bytes.contains(&b'\r') => Progress::Malformed("its line has a carriage return"),
            _ => Progress::More(2),
        };
    };
    let line = std::str::from_utf8(line).unwrap_or_default();
    let words: Vec<&str> = line.split(' ').collect();
    match words.as_slice() {
        ["PROXY", "UNKNOWN", ..] => Progress::Whole(ProxyHeader::Sender),
        ["PROXY", "TCP4", from, to, from_port, to_port] => {
            addresses::<Ipv4Addr>([from, to], [from_port, to_port])
        }
        ["PROXY", "TCP6", from, to, from_port, to_port] => {
            addresses::<Ipv6Addr>([from, to], [from_port, to_port])
        }
        _ => Progress::Malformed("its line is not PROXY, a protocol, two addresses and two ports"),
    }
}

fn addresses<A: std::str::FromStr + Into<IpAddr>>(ips: [&str; 2], ports: [&str; 2]) -> Progress {
    let [from, to] = ips.map(|ip| ip.parse::<A>().ok());
    let [from_port, to_port] = ports.map(port);
    match (from, to, from_port, to_port) {
        (Some(from), Some(_), Some(port), Some(_)) => {
            Progress::Whole(ProxyHeader::Client(SocketAddr::new(from.into(), port)))
        }
        _ => Progress::Malformed("an address or a port in it is none"),
    }
}

/// A port: digits without a leading zero.
fn port(text: &str) -> Option<u16> {
    let is_plain = text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|_| is_plain && (text == "0" || !text.starts_with('0')))
}

/// Version 2, of which at least the signature has arrived.
fn binary(bytes: &[u8]) -> Progress {
    let Some((fixed, rest)) = bytes.split_first_chunk::<FIXED>() else {
        return Progress::More(FIXED - bytes.len());
    };
    let [.., command, family, high, low] = *fixed;
    let length = usize::from(u16::from_be_bytes([high, low]));
    if FIXED + length > HEADER_BYTES_MAX {
        return Progress::Malformed("it is longer than any header");
    }
    let is_local = match command {
        0x20 => true,
        0x21 => false,
        _ => return Progress::Malformed("its version is not 2, or its command unknown"),
    };
    let needs = match family {
        0x11 => 12,
        0x21 => 36,
        // Unspecified, datagrams, or Unix sockets: there is no client address to use.
        0x00 | 0x12 | 0x22 | 0x31 | 0x32 => 0,
        _ if is_local => 0,
        _ => return Progress::Malformed("its family or protocol is unknown"),
    };
    if length < needs && !is_local {
        return Progress::Malformed("it is too short for its addresses");
    }
    if rest.len() < length {
        return Progress::More(length - rest.len());
    }
    Progress::Whole(if is_local { ProxyHeader::Sender } else { source(family, rest) })
}

/// The source in the addresses of version 2.
fn source(family: u8, rest: &[u8]) -> ProxyHeader {
    let client = |ip: IpAddr, port: [u8; 2]| {
        ProxyHeader::Client(SocketAddr::new(ip, u16::from_be_bytes(port)))
    };
    match (family, rest) {
        (0x11, &[a, b, c, d, _, _, _, _, high, low, ..]) => {
            client(Ipv4Addr::new(a, b, c, d).into(), [high, low])
        }
        (0x21, _) => match (rest.first_chunk::<16>(), rest.get(32..34)) {
            (Some(ip), Some(&[high, low])) => client(Ipv6Addr::from(*ip).into(), [high, low]),
            _ => ProxyHeader::Sender,
        },
        _ => ProxyHeader::Sender,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Feeds a header in the pieces that are requested, with an HTTP request after it. Returns the
    /// result, and how many bytes were consumed.
    fn fed(header: &[u8]) -> (Progress, usize) {
        let all = [header, b"GET / HTTP/1.1\r\n"].concat();
        let mut consumed = 0;
        loop {
            match read(&all[..consumed]) {
                Progress::More(bytes) => {
                    assert!(bytes > 0, "asks for nothing at {consumed}");
                    consumed += bytes;
                    assert!(consumed <= all.len(), "asks for more than there is");
                }
                done => return (done, consumed),
            }
        }
    }

    #[track_caller]
    fn check(header: &[u8], client: Option<&str>) {
        let origin =
            client.map_or(ProxyHeader::Sender, |c| ProxyHeader::Client(c.parse().unwrap()));
        assert_eq!(fed(header), (Progress::Whole(origin), header.len()));
        // In whatever pieces it arrives, it is complete at its last byte and not before.
        for end in 0..header.len() {
            match read(&header[..end]) {
                Progress::More(bytes) => assert!(end + bytes <= header.len(), "at {end}"),
                other => panic!("{other:?} at {end}"),
            }
        }
    }

    #[track_caller]
    fn refused(header: &[u8]) {
        let mut consumed = 0;
        while let Progress::More(bytes) = read(&header[..consumed]) {
            consumed = (consumed + bytes).min(header.len());
            if consumed == header.len() {
                break;
            }
        }
        assert!(matches!(read(&header[..consumed]), Progress::Malformed(_)), "{header:?}");
    }

    fn v2(command: u8, family: u8, rest: &[u8]) -> Vec<u8> {
        let length = u16::try_from(rest.len()).unwrap().to_be_bytes();
        [&SIGNATURE[..], &[command, family], &length, rest].concat()
    }

    #[test]
    fn a_version_1_header_names_the_client() {
        check(b"PROXY TCP4 192.0.2.1 198.51.100.2 4711 443\r\n", Some("192.0.2.1:4711"));
        check(b"PROXY TCP6 2001:db8::1 2001:db8::2 1 65535\r\n", Some("[2001:db8::1]:1"));
        check(b"PROXY TCP4 1.1.1.1 2.2.2.2 0 0\r\n", Some("1.1.1.1:0"));
        check(b"PROXY UNKNOWN\r\n", None);
        check(b"PROXY UNKNOWN whatever there is\r\n", None);
        let longest = format!("PROXY UNKNOWN {}\r\n", "f".repeat(107 - 16));
        check(longest.as_bytes(), None);
    }

    #[test]
    fn a_line_that_is_not_quite_one_is_refused() {
        for line in [
            "PROXY TCP4 192.0.2.1 198.51.100.2 4711\r\n",
            "PROXY TCP4 192.0.2.1 198.51.100.2 4711 443 1\r\n",
            "PROXY  TCP4 192.0.2.1 198.51.100.2 4711 443\r\n",
            "PROXY TCP4 192.0.2.1 198.51.100.2 4711 65536\r\n",
            "PROXY TCP4 192.0.2.1 198.51.100.2 04711 443\r\n",
            "PROXY TCP4 192.0.2.1 198.51.100.2 +4711 443\r\n",
            "PROXY TCP4 192.0.2.01 198.51.100.2 4711 443\r\n",
            "PROXY TCP4 2001:db8::1 2001:db8::2 4711 443\r\n",
            "PROXY TCP6 192.0.2.1 198.51.100.2 4711 443\r\n",
            "PROXY UDP4 192.0.2.1 198.51.100.2 4711 443\r\n",
            "PROXY TCP4 192.0.2.1 198.51.100.2 4711 443\n",
            "PROXY UNKNOWN ab\nGET / HTTP/1.1\r\n",
            "PROXY UNKNOWN abc\nGET / HTTP/1.1\r\n",
            "PROXY TCP4 192.0.2.1\r198.51.100.2 4711 443\r\n",
            "proxy TCP4 192.0.2.1 198.51.100.2 4711 443\r\n",
            "GET / HTTP/1.1\r\n",
            "\u{16}\u{3}\u{1}",
        ] {
            refused(line.as_bytes());
        }
        refused(format!("PROXY UNKNOWN {}\r\n", "f".repeat(108 - 16)).as_bytes());
        refused(&[b"PROXY UNKNOWN ".as_slice(), &[b'f'; 500]].concat());
    }

    #[test]
    fn the_first_wrong_byte_is_the_last() {
        for wrong in [b"G".as_slice(), b"PROXX", b"\r\nG", b"\x16"] {
            assert!(matches!(read(wrong), Progress::Malformed(_)), "{wrong:?}");
        }
    }

    #[test]
    fn a_version_2_header_names_the_client_and_other_fields_are_skipped() {
        let v4 = [192, 0, 2, 1, 198, 51, 100, 2, 0x12, 0x67, 1, 187];
        check(&v2(0x21, 0x11, &v4), Some("192.0.2.1:4711"));
        let more = [&v4[..], &[0x04, 0, 3, 1, 2, 3], &[0; 4_000]].concat();
        check(&v2(0x21, 0x11, &more), Some("192.0.2.1:4711"));
        let ip: [u8; 16] = "2001:db8::1".parse::<Ipv6Addr>().unwrap().octets();
        let v6 = [&ip[..], &ip[..], &[0x12, 0x67, 1, 187]].concat();
        check(&v2(0x21, 0x21, &v6), Some("[2001:db8::1]:4711"));
    }

    #[test]
    fn a_header_without_an_address_is_of_its_sender() {
        check(&v2(0x20, 0x00, &[]), None);
        check(&v2(0x20, 0x11, &[0; 12]), None);
        check(&v2(0x20, 0xff, &[1, 2, 3]), None);
        check(&v2(0x21, 0x00, &[]), None);
        check(&v2(0x21, 0x31, &[0; 216]), None);
        check(&v2(0x21, 0x12, &[0; 12]), None);
    }

    #[test]
    fn bytes_that_are_not_quite_one_are_refused() {
        refused(&v2(0x11, 0x11, &[0; 12]));
        refused(&v2(0x22, 0x11, &[0; 12]));
        refused(&v2(0x21, 0x11, &[0; 11]));
        refused(&v2(0x21, 0x21, &[0; 35]));
        refused(&v2(0x21, 0x13, &[0; 12]));
        refused(&v2(0x21, 0x41, &[0; 12]));
        refused(&v2(0x21, 0x11, &[0; HEADER_BYTES_MAX]));
        refused(b"\r\n\r\n\0\r\nQUIX\n");
    }

    #[test]
    fn noise_is_refused_or_whole_and_never_needs_more_than_the_maximum() {
        let mut state = 7_u64;
        let mut next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 33) as u8
        };
        for _ in 0..5_000 {
            let mut bytes = SIGNATURE.to_vec();
            bytes.extend((0..4).map(|_| next()));
            while let Progress::More(more) = read(&bytes) {
                assert!(bytes.len() + more <= HEADER_BYTES_MAX);
                bytes.extend((0..more).map(|_| next()));
            }
        }
    }
}
