//! Reads an upstream: its servers, timeouts, TLS, health checks and ejection.
//!
//! Not here: the files of its TLS (`upstream::credentials`), which server is picked (`upstream`).

use std::net::SocketAddr;
use std::time::Duration;

use weir_common::config::document::table::Table;
use weir_common::config::document::{Spanned, WAIT, shown};
use weir_common::directory::is_host;

use crate::settings::values::{number, plain, plain_all, small};

/// `[upstreams.<name>]`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UpstreamSettings {
    /// Its name.
    pub name: String,
    /// Its servers, each as `host:port`.
    pub servers: Vec<String>,
    /// Its version of HTTP.
    pub speaks: Speaks,
    /// TLS to its servers; plain where not given.
    pub tls: Option<Tls>,
    /// The deadline for opening a connection.
    pub connect_timeout: Duration,
    /// The longest time between two reads of a response, of which the first waits for its head.
    pub read_timeout: Duration,
    /// The longest time between two writes of a request.
    pub write_timeout: Duration,
    /// How long a connection is kept for the next request.
    pub idle_timeout: Duration,
    /// How long a tunnel, such as a WebSocket, may be silent in both directions.
    pub tunnel_timeout: Duration,
    /// The most servers tried when a connection fails.
    pub tries: usize,
    /// Health checks; none where not given.
    pub health: Option<Health>,
    /// When a server that fails requests is ejected.
    pub ejection: Ejection,
}

impl UpstreamSettings {
    /// Its servers, each with the path of its setting, as `upstreams.control.servers[0]`.
    pub fn servers(&self) -> impl Iterator<Item = (String, &String)> {
        let path = |nth| format!("upstreams.{}.servers[{nth}]", self.name);
        self.servers.iter().enumerate().map(move |(nth, server)| (path(nth), server))
    }

    pub(super) fn files(&self) -> impl Iterator<Item = &String> {
        let files = self.tls.iter().flat_map(|tls| [&tls.ca, &tls.certificate, &tls.key]);
        files.flatten()
    }
}

/// A version of HTTP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Speaks {
    /// HTTP/1.1.
    Http1,
    /// HTTP/2, without TLS by prior knowledge.
    Http2,
    /// The one that ALPN negotiates.
    Either,
}

/// TLS to the servers of an upstream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tls {
    /// The name its certificate must have; the host of `servers` where not given.
    pub server_name: Option<String>,
    /// A file with the root it must have; the system's roots where not given.
    pub ca: Option<String>,
    /// A file with the gateway's client certificate.
    pub certificate: Option<String>,
    /// A file with the private key of that certificate.
    pub key: Option<String>,
}

/// `[upstreams.<name>.health]`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Health {
    /// The path that is requested.
    pub path: String,
    /// The time between two checks.
    pub interval: Duration,
    /// How long a check may take.
    pub timeout: Duration,
    /// Consecutive failures before a server gets no requests.
    pub unhealthy_after: u32,
    /// Consecutive successes before it gets requests again.
    pub healthy_after: u32,
}

/// `[upstreams.<name>.ejection]`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ejection {
    /// Consecutive failed requests before a server is ejected; 0 is never.
    pub failures: u32,
    /// How long the first ejection lasts.
    pub pause: Duration,
    /// The longest ejection.
    pub pause_max: Duration,
    /// Whether responses 502, 503 and 504 of the server itself are failures. A tenant that knows a
    /// path with such a response can then eject the server for all tenants.
    pub gateway_errors: bool,
}

pub(super) fn upstream(name: &Spanned<String>, table: &mut Table<'_>) -> UpstreamSettings {
    let seconds = Duration::from_secs;
    table.require("servers");
    let servers = table.texts("servers", "host:port; several are balanced.");
    if table.is_given() && servers.is_empty() {
        table.fault("an upstream needs at least one server: servers = [\"127.0.0.1:9001\"]");
    }
    for server in &servers {
        if !is_server(&server.value) {
            let text = format!("`{}` is not host:port, such as \"10.0.0.1:9001\"", server.value);
            table.fault_at(server.at, text);
        }
    }
    let speaks = table.choice(
        "http",
        &[("1.1", Speaks::Http1), ("2", Speaks::Http2), ("auto", Speaks::Either)],
        "Its version of HTTP; auto: by ALPN, over TLS.",
    );
    let tls = tls(table, &servers);
    if speaks == Speaks::Either && tls.is_none() {
        table.fault("http = \"auto\" needs TLS: set tls = true, or http = \"2\"");
    }
    UpstreamSettings {
        name: name.value.clone(),
        servers: plain_all(servers),
        speaks,
        tls,
        connect_timeout: table.span_or(
            "connect_timeout",
            WAIT,
            seconds(2),
            "To open a connection.",
        ),
        read_timeout: table.span_or(
            "read_timeout",
            WAIT,
            seconds(60),
            "Between two reads of a response.",
        ),
        write_timeout: table.span_or(
            "write_timeout",
            WAIT,
            seconds(30),
            "Between two writes of a request.",
        ),
        idle_timeout: table.span_or(
            "idle_timeout",
            WAIT,
            seconds(4),
            "How long an idle connection is kept: less than the server keeps it.",
        ),
        tunnel_timeout: table.span_or(
            "tunnel_timeout",
            WAIT,
            seconds(3_600),
            "How long a tunnel, such as a WebSocket, may be silent both ways.",
        ),
        tries: number(table.number_or(
            "tries",
            1..=16,
            3,
            "Tries of one request, the first included, where it may be repeated.",
        )),
        health: table.table("health", "Health checks of servers.", health),
        ejection: table.table("ejection", "Ejection of servers that fail requests.", ejection),
    }
}

/// Reports a wrong `server_name`, and addresses without one: for these Pingora would not check the
/// name in the certificate.
fn check_names(
    table: &Table<'_>,
    servers: &[Spanned<String>],
    server_name: Option<&Spanned<String>>,
) {
    match server_name {
        Some(name) if !is_host(&name.value.to_ascii_lowercase()) => {
            table.fault_at(
                name.at,
                format!("`{}` is not a host name: use letters, digits, - and .", name.value),
            );
        }
        Some(_) => {}
        None => {
            for server in servers.iter().filter(|server| is_address(&server.value)) {
                let advice = "set server_name to the name in its certificate";
                let text = format!("`{}` is an address without a name: {advice}", server.value);
                table.fault_at(server.at, text);
            }
        }
    }
}

/// Whether the host of `text` is an address and not a name.
fn is_address(text: &str) -> bool {
    let host = text.rsplit_once(':').map_or(text, |(host, _)| host);
    text.parse::<SocketAddr>().is_ok() || host.parse::<std::net::IpAddr>().is_ok()
}

fn tls(table: &mut Table<'_>, servers: &[Spanned<String>]) -> Option<Tls> {
    let is_on = table.flag("tls", false, "Whether connections to its servers are TLS.");
    let server_name = table.text("server_name", "The name that its certificate must have.");
    if is_on {
        check_names(table, servers, server_name.as_ref());
    }
    let roots = "A PEM file with the root it must have; the system's roots where not given.";
    let certificate = "A PEM file with the gateway's client certificate and its chain.";
    let tls = Tls {
        server_name: plain(server_name),
        ca: plain(table.text("ca", roots)),
        certificate: plain(table.text("client_certificate", certificate)),
        key: plain(table.text("client_key", "A PEM file with the private key to that.")),
    };
    if tls.certificate.is_some() != tls.key.is_some() {
        table.fault("`client_certificate` and `client_key` need each other: set both or neither");
    }
    for key in ["server_name", "ca", "client_certificate", "client_key"] {
        if !is_on && table.has(key) {
            table.fault(format!("`{key}` is used only with TLS: set tls = true"));
        }
    }
    is_on.then_some(tls)
}

fn ejection(table: &mut Table<'_>) -> Ejection {
    let seconds = Duration::from_secs;
    let often = "Consecutive failed requests before a server is ejected; 0: never.";
    let failures = small(table.number_or("failures", 0..=1_000, 5, often));
    let pause =
        table.span_or("pause", WAIT, seconds(5), "The first ejection; each next one doubles.");
    let longest = "The longest ejection; `pause`, where that is longer and this is not given.";
    let pause_max = table.span_or("pause_max", WAIT, seconds(60).max(pause), longest);
    if pause > pause_max {
        let (long, most) = (shown(pause), shown(pause_max));
        table.fault(format!("`pause` must be at most `pause_max`, which is {most}, not {long}"));
    }
    // Off by default: a tenant that knows a path with such a response could eject a shared server.
    let doc = "Whether its own responses 502, 503 and 504 are failures.";
    Ejection {
        failures,
        pause,
        pause_max,
        gateway_errors: table.flag("gateway_errors", false, doc),
    }
}

fn health(table: &mut Table<'_>) -> Option<Health> {
    let path = table.text(
        "path",
        "The path to request: a status from 200 to 399 is a success. No checks without.",
    );
    let seconds = Duration::from_secs;
    let health = Health {
        path: path.as_ref().map(|path| path.value.clone()).unwrap_or_default(),
        interval: table.span_or("interval", WAIT, seconds(5), "The time between two checks."),
        timeout: table.span_or("timeout", WAIT, seconds(1), "How long a check may take."),
        unhealthy_after: small(table.number_or(
            "unhealthy_after",
            1..=100,
            3,
            "Consecutive failures before a server is unhealthy.",
        )),
        healthy_after: small(table.number_or(
            "healthy_after",
            1..=100,
            2,
            "Consecutive successes before a server is healthy again.",
        )),
    };
    let Some(path) = path else {
        if table.is_given() {
            table.fault("`path` is missing: health checks need one, as path = \"/healthz\"");
        }
        return None;
    };
    if !path.value.starts_with('/') {
        table.fault_at(path.at, format!("`path` must start with `/`, not `{}`", path.value));
    }
    Some(health)
}

/// Whether `text` is `host:port`, with an address or a name as the host.
fn is_server(text: &str) -> bool {
    text.parse::<SocketAddr>().is_ok_and(|address| address.port() > 0)
        || text.rsplit_once(':').is_some_and(|(host, port)| {
            port.parse::<u16>().is_ok_and(|port| port > 0) && is_host(&host.to_ascii_lowercase())
        })
}
