//! One gateway: what ships, its limiter, the store that it shares, and heartbeats. Left out is what
//! has no part in a decision: HTTP, configuration, logs.
//!
//! Not here: its clients (`fleet`), the network (`network`).

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::sleep;
use weir_common::time::{Clock, Tick};
use weir_gateway::limit::limiter::{Limiter, NeedsWait, Unreachable};
use weir_gateway::limit::shared::servers::address::{
    ServerAddress, StoreAddress, StoreLogin, Topology,
};
use weir_gateway::limit::shared::{BEAT_EVERY, SharedConfig, SharedStore};
use weir_gateway::limit::{LimitCheck, Verdict};

use super::network::{FIRST_PORT, SENTINEL_PORT, Way};

/// How often a gateway drops states that no longer matter.
const SWEEP_EVERY: Duration = Duration::from_secs(1);

/// Room for this many unknown keys: four in each shard of a memory store.
const UNKNOWN_MAX: usize = 4 * 256;

/// One process.
pub(crate) struct Gateway {
    pub(crate) limiter: Arc<Limiter>,
    pub(crate) tasks: JoinSet<()>,
    /// Notified once clients can connect.
    pub(crate) started: Arc<Notify>,
}

impl Gateway {
    /// Starts a gateway as the program does. It counts in its memory, or shares a store that it
    /// reaches on this way.
    pub(crate) fn start(clock: &Clock, shares: Option<(SharedConfig, Way)>) -> Self {
        let mut limiter = Limiter::new(clock.clone(), UNKNOWN_MAX);
        let shared = shares
            .map(|(config, way)| Arc::new(SharedStore::new(config, clock.clone(), Arc::new(way))));
        limiter.shared = shared.clone();
        let (limiter, mut tasks) = (Arc::new(limiter), JoinSet::new());
        let (own, is_started) = (limiter.clone(), Arc::new(Notify::new()));
        let started = is_started.clone();
        tasks.spawn_local(async move {
            let Some(shared) = shared else { return is_started.notify_waiters() };
            shared.beat(None).await;
            // Clients connect once it listens.
            is_started.notify_waiters();
            loop {
                shared.beat(Some((&own.store, &own.boosts))).await;
                sleep(BEAT_EVERY).await;
            }
        });
        let (own, clock) = (limiter.clone(), clock.clone());
        tasks.spawn_local(async move {
            loop {
                sleep(SWEEP_EVERY).await;
                let now = clock.now();
                (0..own.store.shards()).for_each(|nth| own.sweep(nth, now));
            }
        });
        Self { limiter, tasks, started }
    }
}

/// How the gateway of this number shares one server with the others, so many in all.
pub(crate) fn config(nth: usize, of: usize) -> SharedConfig {
    SharedConfig {
        address: address(false, 0),
        timeout: Duration::from_secs(1),
        gateways_min: of as u32,
        fingerprint: "f".to_owned(),
        id: format!("{nth:016x}"),
    }
}

/// A store's servers as a gateway is told of them.
pub(crate) fn address(has_sentinel: bool, acknowledge: u32) -> StoreAddress {
    let (topology, port) = match has_sentinel {
        true => (Topology::Sentinel("main".to_owned()), SENTINEL_PORT),
        false => (Topology::Single, FIRST_PORT),
    };
    let login = StoreLogin::default();
    StoreAddress {
        topology,
        servers: vec![ServerAddress { host: "10.0.0.1".to_owned(), port }],
        login,
        sentinel_password_file: None,
        acknowledge,
    }
}

/// Decides a request as a gateway's proxy does.
pub(crate) async fn decide(
    limiter: &Arc<Limiter>,
    checks: &mut [LimitCheck],
    now: Tick,
) -> Result<Verdict, Unreachable> {
    match limiter.check(checks, now) {
        Ok(mut verdict) => {
            limiter.hold(&mut verdict, checks);
            Ok(verdict)
        }
        Err(NeedsWait) => limiter.check_waiting(checks).await,
    }
}
