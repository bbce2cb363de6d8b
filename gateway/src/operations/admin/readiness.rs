//! Reports whether this process should receive traffic, and which dependencies fail.
//!
//! A failing dependency does not make the gateway unready (docs/decisions/readiness.md): the body
//! of the response lists it.

use std::borrow::Cow;

use crate::config::active::ActiveConfig;
use crate::config::shared::Shared;

/// The body when this process should receive traffic, with the dependencies that fail; or why it
/// should not.
pub(super) fn readiness(shared: &Shared) -> Result<String, String> {
    if let Some(why) = shared.unready() {
        return Err(why);
    }
    let mut lines = vec!["ready".to_owned()];
    let store = shared.limiter.shared.as_ref().and_then(|store| store_trouble(store.servers()));
    let active = shared.active.load();
    let failing = store.into_iter().chain(failing(&active));
    lines.extend(failing.map(|what| format!("failing: {what}")));
    Ok(lines.join("\n"))
}

/// A sentence where a shared store has servers that requests do not ask, or slots without one.
fn store_trouble([servers, up, unserved]: [usize; 3]) -> Option<String> {
    let alone = "each limit decides by its on_store_failure";
    match (servers, up, unserved) {
        (0, ..) => Some(format!("store cannot be reached: {alone}")),
        (servers, up, _) if up < servers => {
            Some(format!("store: {} of {servers} servers away: {alone}", servers - up))
        }
        (.., unserved) if unserved > 0 => {
            Some(format!("store: {unserved} slots have no server: {alone}"))
        }
        _ => None,
    }
}

/// A sentence for each other dependency that fails.
fn failing(active: &ActiveConfig) -> impl Iterator<Item = String> {
    let identity = active.verifier.as_ref().and_then(|verifier| verifier.trouble());
    let directory =
        active.remote_directory.as_ref().filter(|remote_directory| remote_directory.is_out()).map(
            |_| "directory.url does not answer: tenants that are not remembered are answered 503",
        );
    let directory = directory.map(str::to_owned);
    let upstreams = active.upstreams.iter().filter_map(|upstream| {
        let why = match (upstream.has_healthy(), upstream.is_unreachable()) {
            (false, _) => "has no healthy server: its routes are answered 503",
            (true, true) => "has no server that could be reached: its routes are answered 502",
            (true, false) => return None,
        };
        Some(format!("upstreams.{} {why}", upstream.name))
    });
    identity.map(Cow::into_owned).into_iter().chain(directory).chain(upstreams)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shared_store_that_is_away_in_part_is_a_dependency_that_fails() {
        let of = |servers| store_trouble(servers).unwrap_or_default();
        assert_eq!(of([3, 3, 0]), "");
        assert!(of([1, 0, 0]).starts_with("store: 1 of 1 servers away: each limit"));
        assert!(of([3, 2, 5]).starts_with("store: 1 of 3 servers away"));
        assert!(of([3, 3, 5]).starts_with("store: 5 slots have no server"));
        assert!(of([0, 0, 0]).starts_with("store cannot be reached"));
    }
}
