//! The keys of `[server]` that both programs have: their names, ranges, common defaults and checks.
//!
//! Each program reads them among keys of its own, and documents what each key bounds.
//!
//! Not here: keys that only one program has (its settings).

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use crate::config::document::table::Table;
use crate::config::document::{Spanned, WAIT};

/// The address of a listener; on loopback by default.
pub fn address(table: &mut Table<'_>, key: &str, port: u16, doc: &str) -> Spanned<SocketAddr> {
    let text = table.text(key, doc);
    let default = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    table.set_default(key, default.to_string().into());
    let Some(text) = text else { return Spanned { value: default, at: table.at() } };
    let value = text.value.parse().unwrap_or_else(|_| {
        let message =
            format!("server.{key} must be ip:port, as \"{default}\", not `{}`", text.value);
        table.fault_at(text.at, message);
        default
    });
    Spanned { value, at: text.at }
}

/// Whether two listeners cannot both exist on one machine. Port 0 is any free port.
#[must_use]
pub fn overlap(one: SocketAddr, other: SocketAddr) -> bool {
    // Linux binds `::` to all addresses, of IPv4 too, and `::ffff:a.b.c.d` to an IPv4 address.
    let (one_ip, other_ip) = (one.ip().to_canonical(), other.ip().to_canonical());
    let covers = |all: IpAddr, ip: IpAddr| {
        all == ip || all.is_unspecified() && (all.is_ipv6() || ip.is_ipv4())
    };
    one.port() != 0
        && one.port() == other.port()
        && (covers(one_ip, other_ip) || covers(other_ip, one_ip))
}

/// The address of the admin listener.
pub fn admin(table: &mut Table<'_>, port: u16, doc: &str) -> Spanned<SocketAddr> {
    address(table, "admin", port, doc)
}

/// The file of the admin listener's token, without which `admin` must be on loopback.
pub fn admin_token_file(
    table: &mut Table<'_>,
    admin: &Spanned<SocketAddr>,
) -> Option<Spanned<String>> {
    let doc = "A file whose first line is the admin listener's bearer token.";
    let file = table.text("admin_token_file", doc);
    if !admin.value.ip().is_loopback() && file.is_none() {
        let why = "is not on loopback: set server.admin_token_file, or an address that is";
        table.fault_at(admin.at, format!("server.admin `{}` {why}", admin.value));
    }
    file
}

/// Worker threads; 0 is one per core.
pub fn threads(table: &mut Table<'_>) -> usize {
    let threads = table.number_or("threads", 0..=1_024, 0, "Worker threads; 0: one per core.");
    usize::try_from(threads).unwrap_or(usize::MAX)
}

/// The most connections at one time.
pub fn connections_max(table: &mut Table<'_>, default: u64, doc: &str) -> u64 {
    table.number_or("connections_max", 1..=10_000_000, default, doc)
}

/// The time for a whole request head.
pub fn head_timeout(table: &mut Table<'_>, doc: &str) -> Duration {
    table.span_or("head_timeout", WAIT, Duration::from_secs(10), doc)
}

/// The time for a request body, or a piece of it.
pub fn body_timeout(table: &mut Table<'_>, doc: &str) -> Duration {
    table.span_or("body_timeout", WAIT, Duration::from_secs(30), doc)
}

/// The time that a connection may be without a request.
pub fn idle_timeout(table: &mut Table<'_>, default: Duration, doc: &str) -> Duration {
    table.span_or("idle_timeout", WAIT, default, doc)
}

/// How long a stop waits for requests in flight.
pub fn shutdown_grace(table: &mut Table<'_>, doc: &str) -> Duration {
    table.span_or("shutdown_grace", WAIT, Duration::from_secs(30), doc)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listeners_overlap_by_what_linux_binds_however_an_address_is_written() {
        let overlap =
            |one: &str, other: &str| overlap(one.parse().unwrap(), other.parse().unwrap());
        for (one, other) in [
            ("127.0.0.1:80", "[::ffff:127.0.0.1]:80"),
            ("[::ffff:0.0.0.0]:80", "192.0.2.1:80"),
            ("[::]:80", "192.0.2.1:80"),
            ("0.0.0.0:80", "192.0.2.1:80"),
        ] {
            assert!(overlap(one, other) && overlap(other, one), "{one} {other}");
        }
        for (one, other) in
            [("0.0.0.0:80", "[::1]:80"), ("127.0.0.1:80", "127.0.0.1:81"), ("[::1]:0", "[::1]:0")]
        {
            assert!(!overlap(one, other) && !overlap(other, one), "{one} {other}");
        }
    }
}
