//! Reads the configuration, and with `--online` tries what it names: what would fail at a start, a
//! reload or the first request is reported with its place in the file.
//!
//! # Invariants
//!
//! 1. Servers, the directory, the identity server and the shared store are tried concurrently, each
//!    with a deadline.
//! 2. A check changes nothing outside of the process, and leaves nothing there.
//!
//! # Not here
//!
//! What a configuration may say (`settings`, `rules::compile`).

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use pingora_core::connectors::TransportConnector;
use pingora_core::connectors::http::Connector;
use pingora_core::protocols::{ALPN, Stream};
use serde_json::Value;
use tokio::io::AsyncReadExt;
use tokio::task::JoinSet;
use tokio::time::timeout;
use weir_common::cli::{EXIT_FAILURE, fail, print, refuse, runtime, warn};
use weir_common::config::document::{Document, lines, suggestion};
use weir_common::config::files;
use weir_common::time::Clock;

use crate::app::store::unconnected;
use crate::cli::load;
use crate::config::active::ActiveConfig;
use crate::config::checked::Config;
use crate::identity::directory::RemoteDirectory;
use crate::operations::persistence;
use crate::rules::Route;
use crate::settings::ServerSettings;
use crate::settings::upstream::Speaks;
use crate::upstream::single_request::{self, Request};
use crate::upstream::{Pick, Upstream};
use weir_common::http_client;
use weir_common::http_server::listeners::bind;
use weir_common::identity::settings::Verify;

/// How long a name may take to resolve, and a running gateway to return its settings.
const WAIT: Duration = Duration::from_secs(5);

/// How long a server may take to refuse our certificate: a round trip around the world, and some.
const ALERT_WAIT: Duration = Duration::from_millis(500);

/// Reports every problem, and returns the exit code.
pub(super) fn check(config: &Config, online: bool) -> u8 {
    let checked = match load(config) {
        Ok(checked) => checked,
        Err(diagnostics) => return refuse(&diagnostics),
    };
    let clock = Clock::system();
    let now = clock.now().unix;
    warn(checked.settings.warnings().into_iter());
    warn(misspelt_methods(&checked.rules.routes));
    warn(checked.origin.certificates().filter_map(|certificate| certificate.expired(now)));
    let name = config.file.name();
    if !online {
        return print(&format!("{name}: no problems"));
    }
    let runtime = match runtime() {
        Ok(runtime) => runtime,
        Err(why) => return fail(EXIT_FAILURE, &why),
    };
    let active = ActiveConfig::new(checked, None, &Arc::default(), &clock);
    let document = active.origin.document(&name);
    let running = runtime.block_on(try_all(&active, &document)).unwrap_or_default();
    if !running.is_null() {
        warn(active.origin.restart_needed(&name, &running).iter());
    }
    let problems = document.diagnostics();
    if problems.is_empty() {
        return print(&format!("{name}: no problems, and what it names works"));
    }
    fail(EXIT_FAILURE, &lines(&problems))
}

/// The methods of HTTP itself (RFC 9110, 9.3; RFC 5789). A route may have others.
const METHODS: [&str; 8] = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE"];

/// Methods of routes that are nearly ones of HTTP.
fn misspelt_methods(routes: &[Route]) -> impl Iterator<Item = String> {
    let methods = routes.iter().flat_map(|route| route.methods.iter().map(move |own| (route, own)));
    methods.filter_map(|(route, method)| {
        let method = Some(method.as_str()).filter(|method| !METHODS.contains(method))?;
        let hint = suggestion(method, &METHODS)?;
        let path = &route.pattern.text;
        Some(format!("the route `{path}` takes `{method}`, which is no method of HTTP; {hint}"))
    })
}

/// Tries everything, and adds what fails to `document`. Returns the settings of a running gateway.
async fn try_all(active: &ActiveConfig, document: &Document) -> Option<Value> {
    let settings = &active.settings;
    let running = running(&settings.server).await;
    try_addresses(&settings.server, running.as_ref(), document);
    if let Err(why) = persistence::check_without_writing(&settings.store) {
        document.fault(document.place("store.snapshot"), why.to_string());
    }
    tokio::join!(
        try_identity(active, document),
        try_directory(active.remote_directory.as_ref(), document),
        try_upstreams(active, document),
        try_store(active, document),
    );
    running
}

/// The settings of the gateway that runs with the same admin listener, if there is one; null where
/// it does not return them.
async fn running(server: &ServerSettings) -> Option<Value> {
    let live = Request { path: "/livez", ..single_request::GET };
    let live = single_request::call(server.admin, &live, WAIT).await.ok()?;
    if live.status != 200 || live.body != b"ok\n" {
        return None;
    }
    let token = server.admin_token_file.as_ref();
    let token = token.and_then(|file| files::first_line(file.as_ref()).ok());
    let token = token.as_ref().map(|token| token.expose().as_str());
    let request = Request { path: "/config", token, ..single_request::GET };
    let answer = single_request::call(server.admin, &request, WAIT).await.ok()?;
    let shown: Value = serde_json::from_slice(&answer.body).unwrap_or_default();
    // Another program's admin listener has the same probes, but another configuration.
    let settings = shown.get("settings").cloned();
    settings.or((answer.status != 200).then_some(Value::Null))
}

fn try_addresses(server: &ServerSettings, running: Option<&Value>, document: &Document) {
    let http = server.http.iter().map(|address| (document.place("server.http"), *address));
    let at = |nth| document.value_place(&format!("server.https[{nth}]"));
    let https = server.https.iter().enumerate().map(|(nth, entry)| (at(nth), entry.address));
    let mut https: Vec<_> = https.collect();
    https.sort_by_key(|(_, address)| *address);
    https.dedup_by_key(|(_, address)| *address);
    let has = |address| {
        running.is_some_and(|running| address == server.admin || listens(running, address))
    };
    let admin = (document.value_place("server.admin"), server.admin);
    for (at, address) in http.chain(https).chain([admin]) {
        match bind(address) {
            // Of the running gateway, which the next one replaces. Its supervisor may allow it
            // ports that this user may not bind.
            Err(why) if is_refused(&why.source) && has(address) => {}
            Err(why) => document.fault(at, why.to_string()),
            Ok(_) => {}
        }
    }
}

fn is_refused(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::AddrInUse | io::ErrorKind::PermissionDenied)
}

/// Whether a gateway that runs with these settings listens at this address.
fn listens(settings: &Value, address: SocketAddr) -> bool {
    let server = &settings["server"];
    let entries = |key: &str| server[key].as_array().into_iter().flatten();
    let https = entries("https").map(|entry| &entry["address"]);
    let texts = entries("http").chain(https).chain([&server["admin"]]).filter_map(Value::as_str);
    texts
        .filter_map(|text| text.parse::<SocketAddr>().ok())
        .any(|own| own == address || (own.ip().is_unspecified() && own.port() == address.port()))
}

async fn try_identity(active: &ActiveConfig, document: &Document) {
    let (key, what, url) = match &active.settings.identity.verify {
        Verify::Nothing => return,
        Verify::Jwt(jwt) => ("jwt.jwks_url", "keys cannot be fetched from", &jwt.jwks_url),
        Verify::Introspection(introspection) => {
            ("introspection.url", "tokens cannot be introspected at", &introspection.url)
        }
    };
    let Some(verifier) = &active.verifier else { return };
    if let Err(why) = verifier.reach().await {
        let why = format!("{what} `{}`: {why}", http_client::shown(url));
        document.fault_in(&format!("identity.{key}"), why);
    }
}

async fn try_directory(remote_directory: Option<&RemoteDirectory>, document: &Document) {
    let Some(remote_directory) = remote_directory else { return };
    if let Err(why) = remote_directory.try_out().await {
        document.fault_in("directory.url", why);
    }
}

/// Connects to the store that gateways share, where there is one.
async fn try_store(active: &ActiveConfig, document: &Document) {
    let redis = active.settings.store.redis.as_deref();
    let Some((redis, secret)) = redis.zip(active.origin.shared_secret.as_ref()) else { return };
    let (_, store) = match unconnected(redis, secret, &Clock::system()) {
        Ok(made) => made,
        Err(why) => return document.fault_in("store", why.to_string()),
    };
    for (server, why) in store.try_servers().await {
        document.fault_in("store.url", format!("cannot use the shared store {server}: {why}"));
    }
}

async fn try_upstreams(active: &ActiveConfig, document: &Document) {
    let mut trials = JoinSet::new();
    for upstream in &active.upstreams {
        for (nth, (path, _)) in upstream.settings.servers().enumerate() {
            let upstream = upstream.clone();
            trials.spawn(async move { (path, try_server(&upstream, nth).await) });
        }
    }
    while let Some(tried) = trials.join_next().await {
        if let Ok((path, Err(why))) = tried {
            document.fault_in(&path, why);
        }
    }
}

/// Connects to each address of a server, as requests do.
async fn try_server(upstream: &Upstream, nth: usize) -> Result<(), String> {
    let name = upstream.settings.servers.get(nth).map_or("", |server| server);
    let found = timeout(WAIT, tokio::net::lookup_host(name)).await;
    let found = found.map_err(|_| format!("`{name}` is not resolved within {WAIT:?}"))?;
    let addresses = found.map_err(|why| format!("`{name}` cannot be resolved: {why}"))?;
    for address in addresses {
        let peer = upstream.peer(Pick { server: nth, address }, false);
        let wait = upstream.settings.connect_timeout;
        let late = |_| format!("`{name}`: {address} does not let us connect within {wait:?}");
        let refused = |why: Box<pingora_core::Error>| {
            format!("`{name}`: cannot connect to {address}: {}", single_request::cause(&why))
        };
        if !peer.is_tls() {
            let connector = Connector::new(None);
            let connected = timeout(wait, connector.get_http_session(&*peer)).await;
            connected.map_err(late)?.map_err(refused)?;
            continue;
        }
        let connected = timeout(wait, TransportConnector::new(None).new_stream(&*peer)).await;
        let mut stream = connected.map_err(late)?.map_err(refused)?;
        let speaks_http2 = stream.selected_alpn_proto() == Some(ALPN::H2);
        if upstream.settings.speaks == Speaks::Http2 && !speaks_http2 {
            let why = "does not offer HTTP/2 (ALPN): requests would go there over HTTP/1.1";
            return Err(format!("`{name}`: {address} {why}"));
        }
        if let Some(why) = end_of(&mut stream).await {
            return Err(format!("`{name}`: {address} ends the connection: {why}"));
        }
    }
    Ok(())
}

/// Why a server ends a connection that it has just accepted, if it does: a server verifies our
/// certificate after our side of the handshake is complete (TLS 1.3).
async fn end_of(stream: &mut Stream) -> Option<io::Error> {
    let mut bytes = [0; 1024];
    let ended = async {
        loop {
            match stream.read(&mut bytes).await {
                // It may close a connection without a request as it likes.
                Ok(0) => return None,
                Err(why) if why.kind() == io::ErrorKind::UnexpectedEof => return None,
                Ok(_) => {}
                Err(why) => return Some(why),
            }
        }
    };
    timeout(ALERT_WAIT, ended).await.ok().flatten()
}
