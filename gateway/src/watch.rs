//! What goes on beside requests: names are resolved, servers asked, files looked at, states
//! swept.
//!
//! Each is a loop that `app` owns and ends. Not here: what follows from what is found.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use log::Level;
use pingora_core::connectors::http::Connector;
use serde_json::json;
use tokio::task::JoinSet;
use weir_common::files::{self, Stamp, stamp};
use weir_common::logging;
use weir_common::time::Tick;

use crate::client;
use crate::limit::memory::SHARDS;
use crate::parts::{Parts, Reload};
use crate::settings::Https;
use crate::upstream::{Pick, Upstream, credentials};

/// How often names are resolved anew. Resolvers keep answers for as long as those hold.
const RESOLVE_EVERY: Duration = Duration::from_secs(10);

/// How often one shard is swept: all of them in about ten seconds.
const SWEEP_EVERY: Duration = Duration::from_millis(40);

/// How often the counts of the busiest are halved.
const FADE_EVERY: Duration = Duration::from_secs(60);

/// How long at most until the settings are looked at for new health checks.
const HEALTH_PAUSE_MAX: Duration = Duration::from_secs(1);

/// Resolves the names of all servers, over and over.
pub async fn names(parts: Arc<Parts>) {
    loop {
        resolve(&parts).await;
        tokio::time::sleep(RESOLVE_EVERY).await;
    }
}

/// Resolves the names of all servers once.
pub async fn resolve(parts: &Parts) {
    let force = parts.force.load_full();
    let servers = force.upstreams.iter().flat_map(|upstream| &upstream.servers);
    for server in servers.filter(|server| server.is_named()) {
        match tokio::net::lookup_host(&server.name).await {
            Ok(addresses) => {
                let mut addresses: Vec<_> = addresses.collect();
                addresses.sort();
                addresses.dedup();
                server.addresses.store(Arc::new(addresses));
            }
            // What was found before may still be right, and is all there is.
            Err(error) => {
                let fields = [("server", json!(server.name)), ("error", json!(error.to_string()))];
                logging::event(Level::Warn, "cannot resolve a server's name", &fields);
            }
        }
    }
}

/// Asks servers whether they are well, where the settings say so.
pub async fn health(parts: Arc<Parts>) {
    let mut due: HashMap<(String, String), Tick> = HashMap::new();
    let mut asked = JoinSet::new();
    let connector = Arc::new(Connector::new(None));
    loop {
        let force = parts.force.load_full();
        let now = parts.clock.now().tick;
        // Made anew each time: what a reload took away, or no longer checks, is not in it.
        let mut later = HashMap::new();
        for upstream in &force.upstreams {
            let Some(health) = &upstream.settings.health else { continue };
            let after = now.plus(health.interval);
            for (nth, server) in upstream.servers.iter().enumerate() {
                let key = (upstream.name.clone(), server.name.clone());
                // A reload may have made the interval shorter.
                let mut next = due.get(&key).map_or(now, |next| after.min(*next));
                if now >= next {
                    next = after;
                    asked.spawn(ask(parts.clone(), connector.clone(), upstream.clone(), nth));
                }
                later.insert(key, next);
            }
        }
        due = later;
        while asked.try_join_next().is_some() {}
        let next = due.values().min().map_or(HEALTH_PAUSE_MAX, |next| next.since(now));
        tokio::time::sleep(next.min(HEALTH_PAUSE_MAX)).await;
    }
}

/// Asks one server whether it is well, in the way that requests are sent, and takes note.
async fn ask(parts: Arc<Parts>, connector: Arc<Connector>, upstream: Arc<Upstream>, nth: usize) {
    let Some(health) = &upstream.settings.health else { return };
    let Some(server) = upstream.servers.get(nth) else { return };
    let address = server.addresses.load().first().copied();
    let answer = match address {
        Some(address) => {
            let request = client::Request { host: &server.name, path: &health.path, ..client::GET };
            let mut peer = upstream.peer(Pick { server: nth, address }, false);
            // One that could be shared would be kept: whether the server lets us connect is asked
            // for anew each time.
            peer.options.max_h2_streams = 1;
            let answer = client::ask(&connector, &peer, &request, health.timeout).await;
            answer.map_err(|error| error.to_string())
        }
        None => Err("its name is not resolved".to_owned()),
    };
    let well = answer.as_ref().is_ok_and(|answer| (200..400).contains(&answer.status));
    if server.checked(well, health) {
        let said = match &answer {
            Ok(answer) => answer.status.to_string(),
            Err(error) => error.clone(),
        };
        let fields = [
            ("upstream", json!(upstream.name)),
            ("server", json!(server.name)),
            ("healthy", json!(well)),
            ("answer", json!(said)),
        ];
        logging::event(Level::Warn, "a server's health changed", &fields);
    }
    let gauge = parts.metrics.upstream_healthy.with_label_values(&[&upstream.name, &server.name]);
    gauge.set(i64::from(server.is_well()));
}

/// Reloads when one of the configuration's files changes.
pub async fn files(parts: Arc<Parts>) {
    files::watch(|| stamps(&parts), || async { drop(reload(&parts).await) }).await;
}

/// Reloads where nobody waits for it: a large directory takes a moment to read.
pub async fn reload(parts: &Arc<Parts>) -> Reload {
    let parts = parts.clone();
    let done = tokio::task::spawn_blocking(move || parts.reload()).await;
    // A panic there is ours to mend, and leaves the earlier configuration in force.
    done.unwrap_or(Reload::Unchanged)
}

fn stamps(parts: &Parts) -> Vec<Stamp> {
    let force = parts.force.load();
    let directory = force.rules.settings.directory.files().map(|path| Path::new(&path.value));
    let https = &force.rules.settings.server.https;
    let of_tls = https.iter().flat_map(Https::files).map(|file| Path::new(&file.value));
    let upstreams = force.rules.settings.upstreams.iter();
    let of_upstreams = upstreams.flat_map(|(_, upstream)| credentials::paths(upstream));
    let of_identity = force.rules.settings.identity.files();
    let config = parts.config.file.path().into_iter().chain(directory);
    config.chain(of_tls).chain(of_upstreams).chain(of_identity).map(stamp).collect()
}

/// Drops states that cannot be told from fresh ones, and lets the busiest fade.
pub async fn states(parts: Arc<Parts>) {
    let mut faded = parts.clock.now().tick;
    for nth in (0..SHARDS).cycle() {
        tokio::time::sleep(SWEEP_EVERY).await;
        let now = parts.clock.now().tick;
        parts.store.sweep(nth, now);
        if now.since(faded) >= FADE_EVERY {
            parts.top.fade();
            faded = now;
        }
    }
}
