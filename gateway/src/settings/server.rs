//! `[server]`: sockets, threads, deadlines, caps.

use std::net::SocketAddr;
use std::time::Duration;

use weir_common::config::document::WAIT;
use weir_common::config::document::table::Table;
use weir_common::config::server_keys::{self, overlap};

use crate::settings::edge::https;
use crate::settings::trusted::trusted_headers;
use crate::settings::values::{addresses, plain, small};
use crate::settings::{Caps, ServerSettings};

pub(super) fn server(table: &mut Table<'_>) -> ServerSettings {
    let admin =
        server_keys::admin(table, 8081, "The admin listener: on loopback, or with a token.");
    let server = ServerSettings {
        http: addresses(
            table,
            "http",
            "127.0.0.1:8080",
            "Addresses of listeners without TLS; []: none.",
        ),
        admin: admin.value,
        admin_token_file: plain(server_keys::admin_token_file(table, &admin)),
        threads: server_keys::threads(table),
        https: table.list("https", "Listeners with TLS.", https),
        trusted_proxies: table
            .networks("trusted_proxies", "Networks whose X-Forwarded-For is trusted."),
        trusted_headers: trusted_headers(table),
        proxy_protocol_from: table.networks(
            "proxy_protocol_from",
            "Networks whose connections begin with a PROXY header (v1 or v2).",
        ),
        handshake_timeout: table.span_or(
            "handshake_timeout",
            WAIT,
            Duration::from_secs(10),
            "A PROXY header and a TLS handshake, together.",
        ),
        head_timeout: server_keys::head_timeout(table, "A whole request head."),
        body_timeout: server_keys::body_timeout(table, "Between two reads of a body."),
        idle_timeout: server_keys::idle_timeout(
            table,
            Duration::from_secs(75),
            "A connection without a request; longer than a load balancer in front keeps it.",
        ),
        caps: caps(table),
        shutdown_delay: shutdown_delay(table),
        shutdown_grace: server_keys::shutdown_grace(
            table,
            "The longest a stop waits for requests in flight.",
        ),
    };
    check_addresses(table, &server, admin.at);
    server
}

fn check_addresses(table: &Table<'_>, server: &ServerSettings, admin_at: usize) {
    if server.http.is_empty() && server.https.is_empty() {
        let why = "there is no listener for clients: set server.http or server.https";
        table.fault_at(admin_at, why);
    }
    let named = |key: &str, nth: usize, address: SocketAddr| (format!("{key}[{nth}]"), address);
    let http = server.http.iter().enumerate().map(|(nth, address)| named("http", nth, *address));
    // Several certificates may have one address.
    let is_first = |nth: usize, address: SocketAddr| {
        server.https.iter().take(nth).all(|other| other.address != address)
    };
    let https = server.https.iter().enumerate();
    let https = https.filter(|(nth, entry)| is_first(*nth, entry.address));
    let https = https.map(|(nth, entry)| named("https", nth, entry.address));
    let mut earlier = vec![("admin".to_owned(), server.admin)];
    for (key, address) in http.chain(https) {
        if let Some((other, taken)) = earlier.iter().find(|(_, it)| overlap(*it, address)) {
            let why = format!(
                "server.{key} ({address}) and server.{other} ({taken}) cannot both listen: give \
                 each an address of its own"
            );
            table.fault_in(&key, why);
        }
        earlier.push((key, address));
    }
}

/// Zero, the default, stops at once.
fn shutdown_delay(table: &mut Table<'_>) -> Duration {
    let range = Duration::ZERO..=*WAIT.end();
    let doc = "How long a stop goes on accepting while /readyz is 503.";
    table.span_or("shutdown_delay", range, Duration::ZERO, doc)
}

fn caps(table: &mut Table<'_>) -> Caps {
    Caps {
        head_bytes_max: table.bytes_or(
            "head_bytes_max",
            1_024..=1 << 20,
            32 << 10,
            "The largest request head; a larger one is 431.",
        ),
        held_bytes_max: table.bytes_or(
            "held_bytes_max",
            1 << 10..=1 << 40,
            256 << 20,
            "Batch bodies buffered at one time, together; more is 503. Several of one owner use \
             at most what they leave to others: of a workspace that the directory has, or of all \
             others that one network names.",
        ),
        connections_max: server_keys::connections_max(
            table,
            20_000,
            "Connections at one time; further ones are closed. Each request in progress on an \
             HTTP/2 connection beyond the first counts as one; further ones wait.",
        ),
        connections_per_address_max: table.number_or(
            "connections_per_address_max",
            1..=10_000_000,
            1_000,
            "The same of one address, or one IPv6 /64; trusted proxies have no such limit.",
        ),
        requests_per_connection_max: small(table.number_or(
            "requests_per_connection_max",
            1..=u64::from(u32::MAX),
            10_000,
            "Requests on one connection, which then closes and frees its memory.",
        )),
        streams_max: small(table.number_or(
            "streams_max",
            1..=10_000,
            100,
            "Requests at one time on one HTTP/2 connection.",
        )),
    }
}
