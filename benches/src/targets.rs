//! The compared proxies, all configured alike: one worker, keep-alive on both sides, and, with
//! limits, two limits on every request (a workspace's and a wider one; on Weir's data plane one).
//!
//! An admitting limit is one that a loopback benchmark cannot reach; a refusing limit admits a
//! request now and then, and answers 429 to all others without contacting the upstream.

use std::net::SocketAddr;
use std::path::Path;

use crate::flags::sibling;
use crate::lab::{Folder, Process, free_address};
use crate::load::Aim;

const CONTROL_HOST: &str = "api.localhost";
const CONTROL_PATH: &str = "/v1/workspaces/ws_acme/users";
const DATA_HOST: &str = "in_acme.auth.localhost";
const DATA_PATH: &str = "/oauth/v2/token";

/// The upstream's response: a short JSON object.
pub const BODY: &str =
    r#"{"id":"usr_01","workspace":"ws_acme","name":"Ada Lovelace","active":true}"#;

/// The limits of a proxy in one row of the table.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Limits {
    /// No limits.
    None,
    /// Limits are checked, and admit everything.
    Admit,
    /// Limits are checked, and refuse nearly everything.
    Refuse,
}

impl Limits {
    /// The expected status of a response.
    #[must_use]
    pub fn status(self) -> u16 {
        if self == Self::Refuse { 429 } else { 200 }
    }
}

/// A running proxy, and its request.
pub struct Target {
    /// The name of its row.
    pub name: String,
    /// Its limits.
    pub limits: Limits,
    /// The address and the request.
    pub aim: Aim,
    /// The proxy's process.
    pub process: Process,
}

impl Target {
    pub(crate) fn new(
        name: &str,
        limits: Limits,
        address: SocketAddr,
        mut process: Process,
    ) -> Self {
        process.wait_for(address);
        let (host, path) = (CONTROL_HOST.to_owned(), CONTROL_PATH.to_owned());
        let aim = Aim { address, host, path, script: None };
        Self { name: name.to_owned(), limits, aim, process }
    }

    /// A gateway's TLS address.
    #[must_use]
    pub fn https(&mut self) -> SocketAddr {
        self.process.wait_for_line(|log| listening(log, "https"))
    }
}

/// nginx, which answers every request itself.
#[must_use]
pub fn upstream(folder: &Folder) -> Target {
    upstream_with(folder, "")
}

/// The same with `more` locations.
#[must_use]
pub fn upstream_with(folder: &Folder, more: &str) -> Target {
    let address = free_address();
    let server = format!("listen {address}; {more} location / {{ return 200 '{BODY}'; }}");
    let process = run_nginx(folder, "upstream", "access_log off;", &server);
    Target::new("upstream, asked directly", Limits::None, address, process)
}

/// nginx as a proxy; with limits, `limit_req` by workspace and by address.
#[must_use]
pub fn nginx(folder: &Folder, upstream: SocketAddr, limits: Limits, access_log: bool) -> Target {
    let address = free_address();
    let (name, rate, burst) = match limits {
        Limits::None => ("nginx", "1r/s", 1),
        Limits::Admit => ("nginx + limit_req", "1000000r/s", 1_000_000),
        Limits::Refuse => ("nginx + limit_req, refusing", "1r/m", 0),
    };
    let file = format!("nginx-{rate}-{access_log}").replace('/', "-");
    let log = if access_log {
        format!("access_log {};", folder.path(&format!("{file}.access")).display())
    } else {
        "access_log off;".to_owned()
    };
    let nodelay = if burst > 0 { format!("burst={burst} nodelay") } else { String::new() };
    let limit = format!(
        "limit_req_status 429; limit_req zone=ws {nodelay}; limit_req zone=addr {nodelay};"
    );
    let limit = if limits == Limits::None { "" } else { &limit };
    let http = format!(
        "{log}
        map $uri $workspace {{ ~^/v1/workspaces/(?<id>[^/]+) $id; }}
        limit_req_zone $workspace zone=ws:10m rate={rate};
        limit_req_zone $binary_remote_addr zone=addr:10m rate={rate};
        upstream up {{ server {upstream}; keepalive 128; keepalive_requests 1000000000; }}"
    );
    let server = format!(
        "listen {address}; {limit}
        location / {{
            proxy_pass http://up; proxy_http_version 1.1;
            proxy_set_header Connection ''; proxy_set_header Host $host;
        }}"
    );
    let process = run_nginx(folder, &file, &http, &server);
    let name = if access_log { format!("{name}, access log on") } else { name.to_owned() };
    Target::new(&name, limits, address, process)
}

pub(crate) fn run_nginx(folder: &Folder, file: &str, http: &str, server: &str) -> Process {
    run_nginx_with(folder, file, "", (http, server))
}

/// nginx with these modules, lines of `http` and lines of `server`.
pub(crate) fn run_nginx_with(
    folder: &Folder,
    file: &str,
    modules: &str,
    (http, server): (&str, &str),
) -> Process {
    let path = |suffix: &str| folder.path(&format!("{file}.{suffix}")).display().to_string();
    let temporary: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
        .map(|kind| format!("{kind}_temp_path {};", path(kind)))
        .concat();
    let text = format!(
        "{modules} worker_processes 1; daemon off; master_process off; pid {pid};
        error_log {log} emerg; events {{ worker_connections 4096; }}
        http {{
            {temporary} {http} keepalive_requests 1000000000;
            server {{ default_type application/json; {server} }}
        }}",
        pid = path("pid"),
        log = path("log"),
    );
    let config = folder.write(&format!("{file}.conf"), &text);
    let [config, log] = [config.display().to_string(), path("log")];
    Process::start(folder, file, Path::new("nginx"), &["-c", &config, "-e", &log])
}

/// HAProxy; with limits, a stick table by workspace and one by address.
#[must_use]
pub fn haproxy(folder: &Folder, upstream: SocketAddr, limits: Limits) -> Target {
    let address = free_address();
    let (name, file, most) = match limits {
        Limits::None => ("HAProxy", "haproxy", 0),
        Limits::Admit => ("HAProxy + stick tables", "haproxy-admit", 1_000_000),
        Limits::Refuse => ("HAProxy + stick tables, refusing", "haproxy-refuse", 1),
    };
    let track = format!(
        "http-request track-sc0 path,field(4,/) table workspaces
        http-request track-sc1 src table addresses
        http-request deny deny_status 429 if {{ sc_http_req_rate(0) gt {most} }}
        http-request deny deny_status 429 if {{ sc_http_req_rate(1) gt {most} }}"
    );
    let track = if limits == Limits::None { "" } else { &track };
    let tables = "\
    backend workspaces
        stick-table type string len 64 size 100k expire 60s store http_req_rate(1s)
    backend addresses
        stick-table type ip size 100k expire 60s store http_req_rate(1s)
";
    let process =
        run_haproxy(folder, file, &format!("{address}\n        {track}"), upstream, tables);
    Target::new(name, limits, address, process)
}

/// HAProxy with one thread, from the `bind` line to `upstream`.
pub(crate) fn run_haproxy(
    folder: &Folder,
    file: &str,
    bind: &str,
    upstream: SocketAddr,
    more: &str,
) -> Process {
    let text = format!(
        "global
        nbthread 1
        maxconn 4096
    defaults
        mode http
        timeout connect 5s
        timeout client 60s
        timeout server 60s
    frontend front
        bind {bind}
        default_backend back
    backend back
        http-reuse always
        server up {upstream}
{more}"
    );
    let config = folder.write(&format!("{file}.cfg"), &text).display().to_string();
    Process::start(folder, file, Path::new("haproxy"), &["-db", "-f", &config])
}

/// The minimal proxy with Pingora (`crate::bare`).
#[must_use]
pub fn bare(folder: &Folder, upstream: SocketAddr, limits: Limits, mimalloc: bool) -> Target {
    let address = free_address();
    let program = if mimalloc { "bare-pingora-mimalloc" } else { "bare-pingora" };
    let [listen, up] = [address, upstream].map(|address| address.to_string());
    let mut args = vec![listen.as_str(), up.as_str()];
    let mut name = "bare pingora".to_owned();
    if mimalloc {
        name += ", mimalloc";
    }
    let mut file = program.to_owned();
    if limits == Limits::Refuse {
        args.push("--refuse");
        name += ", refusing";
        file += "-refuse";
    }
    let process = Process::start(folder, &file, &sibling(program), &args);
    Target::new(&name, limits, address, process)
}

/// Which of Weir's limits a row checks.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Plane {
    /// The workspace's and its organisation's.
    Control,
    /// The instance's.
    Data,
}

/// weir-gateway; `row`: which limits it checks, whether they refuse, whether the access log is on.
#[must_use]
pub fn weir(
    folder: &Folder,
    gateway: &Path,
    upstream: SocketAddr,
    row: (Plane, Limits, bool),
) -> Target {
    weir_with(folder, gateway, upstream, row, "")
}

/// Like [`weir`], with `more`: further lines of `[server]`, and tables after it.
#[must_use]
pub fn weir_with(
    folder: &Folder,
    gateway: &Path,
    upstream: SocketAddr,
    row: (Plane, Limits, bool),
    more: &str,
) -> Target {
    let (plane, limits, access_log) = row;
    let mut name = "weir".to_owned();
    name += if plane == Plane::Data { ", data plane" } else { "" };
    name += if access_log { ", access log on" } else { "" };
    name += if limits == Limits::Refuse { ", refusing" } else { "" };
    let quota = if limits == Limits::Refuse {
        "algorithm = \"rolling_window\"\nrequests = 1\nwindow = \"1h\""
    } else {
        "algorithm = \"token_bucket\"\nrate = 1_000_000\nburst = 1_000_000"
    };
    weir_of(folder, gateway, upstream, row, (&name, quota, more))
}

/// Like [`weir_with`], as `name` and with this quota of every limit.
#[must_use]
pub fn weir_of(
    folder: &Folder,
    gateway: &Path,
    upstream: SocketAddr,
    (plane, limits, access_log): (Plane, Limits, bool),
    (name, quota, more): (&str, &str, &str),
) -> Target {
    let file = name.replace([' ', ','], "-");
    let directory = folder.write(
        &format!("{file}.directory.toml"),
        "[organisations.org_acme]\n\
        [workspaces.ws_acme]\norganisation = \"org_acme\"\nplan = \"pro\"\n\
        [instances.in_acme]\nworkspace = \"ws_acme\"\n",
    );
    let limit = |key: &str| format!("[limits.{key}]\nkey = \"{key}\"\n{quota}\n");
    let text = format!(
        "[server]\nhttp = [\"127.0.0.1:0\"]\nadmin = \"127.0.0.1:0\"\nthreads = 1\n\
        {more}\n[log]\naccess = \"{access}\"\n\
        [directory]\npath = \"{directory}\"\n\
        [planes.control]\nhosts = [\"{CONTROL_HOST}\"]\n\
        [planes.data]\nhosts = [\"{{instance}}.auth.localhost\"]\n\
        [upstreams.up]\nservers = [\"{upstream}\"]\n{limits}[plans.pro]\n\
        [[routes]]\nplane = \"control\"\npath = \"/v1/workspaces/{{workspace}}/{{*rest}}\"\n\
        limits = [\"workspace\", \"organisation\"]\nupstream = \"up\"\n\
        [[routes]]\nplane = \"data\"\npath = \"/{{*rest}}\"\n\
        limits = [\"instance\"]\nupstream = \"up\"\n",
        access = if access_log { "stdout" } else { "off" },
        directory = directory.display(),
        limits = ["workspace", "organisation", "instance", "address"].map(limit).concat(),
    );
    let (address, process) = run_weir(folder, &file, gateway, &text);
    let mut target = Target::new(name, limits, address, process);
    if plane == Plane::Data {
        DATA_HOST.clone_into(&mut target.aim.host);
        DATA_PATH.clone_into(&mut target.aim.path);
    }
    target
}

/// weir-gateway with this configuration; returns where it listens without TLS.
pub(crate) fn run_weir(
    folder: &Folder,
    file: &str,
    gateway: &Path,
    text: &str,
) -> (SocketAddr, Process) {
    let config = folder.write(&format!("{file}.toml"), text).display().to_string();
    let mut process = Process::start(folder, file, gateway, &["run", "--config", &config]);
    (process.wait_for_line(|log| listening(log, "http")), process)
}

/// The gateway's `http` or `https` address, from its log.
fn listening(log: &str, listener: &str) -> Option<SocketAddr> {
    let listener = format!(r#""listener":"{listener}""#);
    let line = log
        .lines()
        .find(|line| line.contains(r#""message":"listening""#) && line.contains(&listener))?;
    line.split_once(r#""address":""#)?.1.split_once('"')?.0.parse().ok()
}
