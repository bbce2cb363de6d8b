//! Resolves the names of servers.
//!
//! # Invariants
//!
//! 1. Names are resolved concurrently; a slow one delays no other.
//! 2. A start or a reload waits for names no longer than `LOOKUP_WAIT`.
//!
//! # Not here
//!
//! When names are resolved (`operations::background`), what happens to a server's earlier addresses
//! (`upstream`).

use std::collections::{BTreeSet, HashMap};
use std::future::Future;
use std::net::SocketAddr;
use std::pin::pin;
use std::time::Duration;

use log::Level;
use serde_json::json;
use tokio::task::JoinSet;
use tokio::time::timeout;
use weir_common::log::events;

/// How long a start or a reload waits for all names together. Resolvers commonly retry their
/// first name server after this time.
pub const LOOKUP_WAIT: Duration = Duration::from_secs(5);

/// The addresses of a name, or why it does not resolve.
pub type Resolved = Result<Vec<SocketAddr>, String>;

/// The result of each lookup, by name.
pub type ResolvedNames = HashMap<String, Resolved>;

/// Resolves a name by the system's resolver.
pub async fn look_up(name: String) -> Resolved {
    match tokio::net::lookup_host(&name).await.map(Vec::from_iter) {
        Ok(addresses) if addresses.is_empty() => Err("it has no address".to_owned()),
        found => found.map_err(|error| error.to_string()),
    }
}

/// Resolves `names` by `find`; a name that takes longer than `within` fails.
pub async fn all<F>(
    names: BTreeSet<String>,
    within: Duration,
    find: fn(String) -> F,
) -> ResolvedNames
where
    F: Future<Output = Resolved> + Send + 'static,
{
    let mut lookups = JoinSet::new();
    for name in names {
        lookups.spawn(async move {
            let found = timeout(within, find(name.clone())).await;
            (name, found.unwrap_or_else(|_| Err(no_answer(within))))
        });
    }
    lookups.join_all().await.into_iter().collect()
}

/// Resolves a name in the background: logs a late lookup, and still uses its result.
pub async fn look_up_in_background(name: String) -> (String, Resolved) {
    let mut lookup = pin!(look_up(name.clone()));
    let found = match timeout(LOOKUP_WAIT, &mut lookup).await {
        Ok(found) => found,
        Err(_) => {
            warn(&name, &no_answer(LOOKUP_WAIT));
            lookup.await
        }
    };
    (name, found)
}

/// Logs that a name does not resolve.
pub fn warn(name: &str, why: &str) {
    let fields = [("server", json!(name)), ("error", json!(why))];
    events::event(Level::Warn, "upstream name resolution failed", &fields);
}

fn no_answer(within: Duration) -> String {
    format!("no answer within {within:?}")
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn find(name: String) -> Resolved {
        match &*name {
            "slow:80" => std::future::pending().await,
            "nowhere:80" => Err("no such host".to_owned()),
            _ => Ok(vec![SocketAddr::from(([127, 0, 0, 1], 80))]),
        }
    }

    #[tokio::test]
    async fn a_slow_name_delays_no_other_and_has_a_deadline() {
        let names = ["a:80", "slow:80", "b:80", "nowhere:80"].map(str::to_owned).into();
        let within = Duration::from_millis(50);
        let places = timeout(Duration::from_secs(20), all(names, within, find)).await.unwrap();
        assert!(places["a:80"].is_ok() && places["b:80"].is_ok());
        assert_eq!(places["slow:80"].as_ref().unwrap_err(), "no answer within 50ms");
        assert_eq!(places["nowhere:80"].as_ref().unwrap_err(), "no such host");
    }
}
