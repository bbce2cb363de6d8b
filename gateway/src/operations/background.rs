//! Background tasks: resolves names, checks the health of servers, watches files and certificates,
//! sweeps states.
//!
//! Each is a loop that `app` starts and stops. Not here: how requests use the results.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use log::Level;
use pingora_core::connectors::http::Connector;
use serde_json::json;
use tokio::task::JoinSet;
use weir_common::config::reload::{Reload, run_blocking};
use weir_common::config::shown_certificate::log_expiring;
use weir_common::config::watch::{Stamp, stamp, watch};
use weir_common::identity::keyless;
use weir_common::log::events;
use weir_common::time::{Tick, UnixTime};

use crate::config::shared::Shared;
use crate::limit::memory::SHARDS;
use crate::limit::shared::BEAT_EVERY;
use crate::upstream::address::Address;
use crate::upstream::names::{self, LOOKUP_WAIT};
use crate::upstream::{Pick, Upstream, single_request};

/// How often names are resolved again. DNS resolvers cache answers for their TTL.
const RESOLVE_EVERY: Duration = Duration::from_secs(10);

/// The longest time until a new name in the settings is resolved.
const NAMES_PAUSE: Duration = Duration::from_secs(1);

/// How often one shard is swept; a round through all shards takes about ten seconds.
const SWEEP_EVERY: Duration = Duration::from_millis(40);

/// How often the counts of the busiest keys are halved.
const FADE_EVERY: Duration = Duration::from_secs(60);

/// The longest time until a new health check in the settings starts.
const HEALTH_PAUSE_MAX: Duration = Duration::from_secs(1);

/// Resolves the names of all servers in a loop: each in its own task, one lookup of a name at a
/// time.
pub async fn names(shared: Arc<Shared>) {
    // When each name is due; `None` while its lookup is in flight.
    let mut due: HashMap<String, Option<Tick>> = HashMap::new();
    let mut lookups = JoinSet::new();
    loop {
        let now = shared.clock.now().tick;
        let names = shared.active.load().names();
        due.retain(|name, due| due.is_none() || names.contains(name));
        for name in names {
            let next = due.entry(name.clone()).or_insert(Some(now));
            if next.take_if(|next| now >= *next).is_some() {
                lookups.spawn(names::look_up_in_background(name));
            }
        }
        tokio::select! {
            // A panic in a lookup is a bug; that name is not looked up again.
            Some(Ok((name, found))) = lookups.join_next() => {
                due.insert(name.clone(), Some(shared.clock.now().tick.plus(RESOLVE_EVERY)));
                shared.active.load().set_addresses(&[(name, found)].into());
            }
            () = tokio::time::sleep(NAMES_PAUSE) => {}
        }
    }
}

/// Resolves the names of all servers once, before the first request.
pub async fn resolve(shared: &Shared) {
    let active = shared.active.load_full();
    active.set_addresses(&names::all(active.names(), LOOKUP_WAIT, names::look_up).await);
}

/// Checks the health of servers of upstreams that have health checks configured.
pub async fn health(shared: Arc<Shared>) {
    let mut due: HashMap<(String, String), Tick> = HashMap::new();
    let mut checks = JoinSet::new();
    let connector = Arc::new(Connector::new(None));
    loop {
        let active = shared.active.load_full();
        let now = shared.clock.now().tick;
        // Built from the active settings: servers that a reload removed are not in it.
        let mut later = HashMap::new();
        for upstream in &active.upstreams {
            let Some(health) = &upstream.settings.health else { continue };
            let after = now.plus(health.interval);
            for (nth, server) in upstream.servers.iter().enumerate() {
                let key = (upstream.name.clone(), server.name.clone());
                // A reload may have made the interval shorter.
                let mut next = due.get(&key).map_or(now, |next| after.min(*next));
                if now >= next {
                    next = after;
                    for address in server.addresses().iter().cloned() {
                        let (connector, upstream) = (connector.clone(), upstream.clone());
                        checks.spawn(check(connector, upstream, nth, address));
                    }
                }
                later.insert(key, next);
            }
        }
        due = later;
        while checks.try_join_next().is_some() {}
        let next = due.values().min().map_or(HEALTH_PAUSE_MAX, |next| next.since(now));
        tokio::time::sleep(next.min(HEALTH_PAUSE_MAX)).await;
    }
}

/// Checks the health of a server at one of its addresses, over the same kind of connection as
/// requests, and records the result.
async fn check(
    connector: Arc<Connector>,
    upstream: Arc<Upstream>,
    nth: usize,
    address: Arc<Address>,
) {
    let Some(health) = &upstream.settings.health else { return };
    let Some(server) = upstream.servers.get(nth) else { return };
    let request =
        single_request::Request { host: &server.name, path: &health.path, ..single_request::GET };
    let mut peer = upstream.peer(Pick { server: nth, address: address.socket }, false);
    // Pingora would keep a connection that allows more streams; each check opens its own.
    peer.options.max_h2_streams = 1;
    let answer = single_request::send(&connector, &peer, &request, health.timeout).await;
    let healthy = answer.as_ref().is_ok_and(|answer| (200..400).contains(&answer.status));
    if address.checked(healthy, health) {
        let outcome = match &answer {
            Ok(answer) => answer.status.to_string(),
            Err(error) => single_request::cause(error),
        };
        let fields = [
            ("upstream", json!(upstream.name)),
            ("server", json!(server.name)),
            ("address", json!(address.socket.to_string())),
            ("healthy", json!(healthy)),
            ("answer", json!(outcome)),
        ];
        events::event(Level::Warn, "upstream server health changed", &fields);
    }
}

/// Reloads when one of the configuration's files changes. They began to be read at `began`.
pub async fn files(shared: Arc<Shared>, began: UnixTime) {
    watch(|| stamps(&shared), || reload(&shared), began).await;
}

/// Logs certificates that expire.
pub async fn certificates(shared: Arc<Shared>) {
    let active = || shared.active.load().origin.certificates().cloned().collect();
    log_expiring(&shared.clock, active).await;
}

/// Reads the configuration again, and activates all of it or nothing. Parsing runs on a blocking
/// thread; the names of new servers are resolved, and the keys of a new identity server fetched,
/// before the new configuration is active.
pub async fn reload(shared: &Arc<Shared>) -> Reload {
    let attempt = async {
        let read_anew = |shared: &Shared| {
            let new = shared.read_anew()?;
            Ok((shared.verifier(&new), new))
        };
        let (verifier, new) = match run_blocking(shared, read_anew).await? {
            Ok(read) => read,
            Err(outcome) => return Some(outcome),
        };
        let (earlier, file) = (shared.active.load_full(), shared.config.file.name());
        let names = new.names_to_resolve(&earlier);
        let (resolved, keyless) = tokio::join!(
            names::all(names, LOOKUP_WAIT, names::look_up),
            keyless(verifier.as_deref(), earlier.verifier.as_deref(), || new
                .origin
                .document(&file)),
        );
        if !keyless.is_empty() {
            return Some(Reload::Refused(keyless));
        }
        drop(earlier);
        run_blocking(shared, move |shared| shared.apply(new, verifier, &resolved)).await
    };
    // Boxed: the future contains a whole configuration while it waits for the lookups.
    shared.reloads.run(Box::pin(attempt)).await
}

fn stamps(shared: &Shared) -> Vec<Stamp> {
    let active = shared.active.load();
    let config = shared.config.file.path();
    config.into_iter().chain(active.settings.files()).map(stamp).collect()
}

/// Sweeps the states of limits in a loop, and halves the counts of the busiest keys.
pub async fn states(shared: Arc<Shared>) {
    let mut faded = shared.clock.now();
    for nth in (0..SHARDS).cycle() {
        tokio::time::sleep(SWEEP_EVERY).await;
        let now = shared.clock.now();
        shared.limiter.sweep(nth, now);
        if now.tick.since(faded.tick) >= FADE_EVERY {
            shared.top.fade();
            faded = now;
        }
    }
}

/// Keeps the connection to the shared store, where there is one, and logs when it is lost.
pub async fn shared_store(shared: Arc<Shared>) {
    let Some(store) = shared.limiter.shared.clone() else { return };
    loop {
        let limiter = &shared.limiter;
        store.beat_and_log((&limiter.store, &limiter.boosts)).await;
        tokio::time::sleep(BEAT_EVERY).await;
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;
    use weir_common::config::document::Document;
    use weir_common::directory::Directory;
    use weir_common::time::Clock;

    use super::*;
    use crate::config::checked::{CheckedConfig, Config, Origin};
    use crate::config::shared::Seeds;
    use crate::limit::key::Seed;
    use crate::upstream::names::Resolved;

    const SETTINGS: &str = "[upstreams.only]\nservers = [\"backend.test:80\"]\n\
        health = { path = \"/\", interval = \"20ms\", timeout = \"5s\", unhealthy_after = 1 }";

    fn shared() -> Arc<Shared> {
        let clock = Clock::system();
        let (document, nothing) = (Document::new("g", SETTINGS), Document::new("d", ""));
        let raw = crate::settings::read::read(&document).made;
        let seed = Seed::new([7; 16]);
        let rules = crate::rules::compile::check(
            (&raw, &document),
            (&Directory::default(), &nothing),
            seed,
        );
        let checked = CheckedConfig { rules, settings: raw.settings, origin: Origin::default() };
        let seeds = Seeds { keys: seed, request_ids: seed };
        Arc::new(Shared::new(clock, Config::built_in(), checked, seeds, 10))
    }

    fn place(shared: &Shared, found: Resolved) {
        shared.active.load().set_addresses(&[("backend.test:80".to_owned(), found)].into());
    }

    /// Answers every connection with 200.
    async fn serve(listener: TcpListener) {
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut head = [0; 1024];
            let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n";
            // The client may have closed the connection.
            let _ = stream.read(&mut head).await;
            let _ = stream.write_all(answer).await;
        }
    }

    async fn listener() -> (SocketAddr, TcpListener) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        (listener.local_addr().unwrap(), listener)
    }

    #[tokio::test]
    async fn of_a_name_with_a_dead_address_the_others_stay_healthy() {
        let shared = shared();
        let ((dead, unused), (one, first), (two, second)) =
            (listener().await, listener().await, listener().await);
        drop(unused);
        place(&shared, Ok(vec![dead, one, two]));
        let mut beside = JoinSet::new();
        beside.spawn(serve(first));
        beside.spawn(serve(second));
        beside.spawn(health(shared.clone()));
        let active = shared.active.load_full();
        let server = &active.upstreams[0].servers[0];
        let found_out = async {
            while server.healthy() == 3 {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            // Further rounds change nothing.
            tokio::time::sleep(Duration::from_millis(100)).await;
        };
        tokio::time::timeout(Duration::from_secs(20), found_out).await.unwrap();
        let of = |address: &Arc<Address>| (address.socket, address.is_healthy());
        let mut expected = vec![(dead, false), (one, true), (two, true)];
        expected.sort();
        assert_eq!(server.addresses().iter().map(of).collect::<Vec<_>>(), expected);
    }

    #[test]
    fn a_name_that_no_longer_resolves_keeps_its_addresses() {
        let shared = shared();
        assert_eq!(shared.active.load().unreachable(), ["only"]);
        place(&shared, Ok(vec![SocketAddr::from(([127, 0, 0, 1], 80))]));
        assert!(shared.active.load().unreachable().is_empty());
        place(&shared, Err("no answer".to_owned()));
        assert!(shared.active.load().unreachable().is_empty());
    }
}
