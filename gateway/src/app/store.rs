//! Connects to the store that gateways share, before the first request.
//!
//! A store that must not be used ends the start. One that cannot be reached does not: until it is,
//! each gateway admits its share.
//!
//! Not here: the connection afterwards (`operations::background`).

use std::io;
use std::sync::Arc;

use log::Level;
use serde_json::json;
use tokio::runtime::Runtime;
use weir_common::log::events;
use weir_common::secret::Secret;
use weir_common::time::Clock;

use crate::app::RunError;
use crate::config::checked::CheckedConfig;
use crate::limit::key::Seed;
use crate::limit::shared::servers::errors::ConnectError;
use crate::limit::shared::servers::login::Tcp;
use crate::limit::shared::{Beat, SharedConfig, SharedStore};
use crate::limit::snapshot::Snapshot;
use crate::settings::store::RedisSettings;

/// The shared store of a configuration, and the seed of its keys; none where each process counts
/// alone.
pub(super) fn reach(
    checked: &CheckedConfig,
    clock: &Clock,
    control: &Runtime,
) -> Result<Option<(Seed, SharedStore)>, RunError> {
    let (Some(redis), Some(secret)) =
        (&checked.settings.store.redis, &checked.origin.shared_secret)
    else {
        return Ok(None);
    };
    let (seed, store) = unconnected(redis, secret, clock)?;
    for (server, beat) in control.block_on(store.beat(None)) {
        match beat {
            Beat::Lost(ConnectError::Unfit(why)) | Beat::Away(ConnectError::Unfit(why)) => {
                return Err(RunError::Store(server, why));
            }
            Beat::Lost(why) | Beat::Away(why) => {
                let fields = [("store", json!(server)), ("error", json!(why.to_string()))];
                events::event(Level::Error, "shared store unavailable", &fields);
            }
            Beat::Steady | Beat::Recovering | Beat::Recovered => {}
        }
    }
    Ok(Some((seed, store)))
}

/// A store that is not connected yet, and the seed of its keys.
pub(crate) fn unconnected(
    redis: &RedisSettings,
    secret: &Secret<String>,
    clock: &Clock,
) -> io::Result<(Seed, SharedStore)> {
    let (seed, fingerprint) = Seed::of_secret(secret.expose());
    let mut id = [0; 8];
    getrandom::fill(&mut id).map_err(io::Error::from)?;
    let config = SharedConfig {
        address: redis.address.clone(),
        timeout: redis.timeout,
        gateways_min: redis.gateways,
        fingerprint,
        id: format!("{:016x}", u64::from_be_bytes(id)),
    };
    Ok((seed, SharedStore::new(config, clock.clone(), Arc::<Tcp>::default())))
}

/// Whether the keys of an earlier process's states are those of this one.
pub(super) fn has_keys_of(earlier: &Snapshot, store: &Option<(Seed, SharedStore)>) -> bool {
    let same = store.as_ref().is_none_or(|(seed, _)| *seed == earlier.seed);
    if !same {
        events::event(Level::Warn, "limit snapshot of another secret not used", &[]);
    }
    same
}
