//! `[server]`: sockets, threads, deadlines, caps.

use std::net::SocketAddr;
use std::time::Duration;

use weir_common::config::document::Table;

use crate::settings::edge::https;
use crate::settings::trusted::trusted_headers;
use crate::settings::values::{WAIT, address, addresses, networks, number, small};
use crate::settings::{Caps, Server};

pub(super) fn server(table: &mut Table<'_>) -> Server {
    let seconds = Duration::from_secs;
    let admin = table.text("admin", "The operator's address. Loopback, or with a token.");
    table.set_default("admin", "127.0.0.1:8081".into());
    let admin_at = admin.as_ref().map_or(table.at(), |admin| admin.at);
    let admin = admin.and_then(|text| address(table, &text));
    Server {
        http: addresses(
            table,
            "http",
            "127.0.0.1:8080",
            "Addresses that clients call; []: none, where all call by TLS.",
        ),
        admin: admin.unwrap_or_else(|| SocketAddr::from(([127, 0, 0, 1], 8081))),
        admin_at,
        admin_token_file: table.text(
            "admin_token_file",
            "A file whose first line is the admin listener's bearer token.",
        ),
        threads: number(table.number_or(
            "threads",
            0..=1_024,
            0,
            "Worker threads; 0: one per core.",
        )),
        https: table.list("https", "Addresses that clients call by TLS.", https),
        trusted_proxies: networks(
            table,
            "trusted_proxies",
            "Networks whose X-Forwarded-For is believed.",
        ),
        trusted_headers: trusted_headers(table),
        proxy_protocol_from: networks(
            table,
            "proxy_protocol_from",
            "Networks whose connections begin with a PROXY header (v1 or v2).",
        ),
        handshake_timeout: table.span_or(
            "handshake_timeout",
            WAIT,
            seconds(10),
            "A PROXY header and a TLS handshake, together.",
        ),
        head_timeout: table.span_or("head_timeout", WAIT, seconds(10), "A whole request head."),
        body_timeout: table.span_or(
            "body_timeout",
            WAIT,
            seconds(30),
            "Between two reads of a body.",
        ),
        idle_timeout: table.span_or(
            "idle_timeout",
            WAIT,
            seconds(75),
            "A connection without a request; longer than a balancer in front keeps it.",
        ),
        caps: caps(table),
        shutdown_delay: shutdown_delay(table),
        shutdown_grace: table.span_or(
            "shutdown_grace",
            WAIT,
            seconds(30),
            "The longest a stop waits for requests in flight.",
        ),
    }
}

/// Nothing is a stop at once.
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
            "The largest request head; more is 431.",
        ),
        held_bytes_max: table.bytes_or(
            "held_bytes_max",
            1 << 10..=1 << 40,
            256 << 20,
            "Batch bodies held back at one time, together; more is 503.",
        ),
        connections_max: table.number_or(
            "connections_max",
            1..=10_000_000,
            20_000,
            "Connections at one time; more are closed at once.",
        ),
        connections_per_address_max: table.number_or(
            "connections_per_address_max",
            1..=10_000_000,
            1_000,
            "The same from one address, or one IPv6 /64; trusted proxies have no such limit.",
        ),
        requests_per_connection_max: small(table.number_or(
            "requests_per_connection_max",
            1..=u64::from(u32::MAX),
            10_000,
            "Requests on one connection, which then closes: what it takes is freed.",
        )),
        streams_max: small(table.number_or(
            "streams_max",
            1..=10_000,
            100,
            "Requests at one time on one HTTP/2 connection.",
        )),
    }
}
