//! Reports whether this process should receive traffic, and which dependencies fail.
//!
//! A failing dependency does not make the gateway unready (docs/decisions/readiness.md): the body
//! of the response lists it.

use crate::config::active::ActiveConfig;
use crate::config::shared::Shared;

/// The body when this process should receive traffic, with the dependencies that fail; or why it
/// should not.
pub(super) fn readiness(shared: &Shared) -> Result<String, String> {
    if let Some(why) = shared.unready() {
        return Err(why);
    }
    let mut lines = vec!["ready".to_owned()];
    lines.extend(failing(&shared.active.load()).map(|what| format!("failing: {what}")));
    Ok(lines.join("\n"))
}

/// A sentence for each dependency that fails.
fn failing(active: &ActiveConfig) -> impl Iterator<Item = String> {
    let identity = active.verifier.as_ref().and_then(|verifier| verifier.trouble());
    let directory =
        active.remote_directory.as_ref().filter(|remote_directory| remote_directory.is_out()).map(
            |_| "directory.url does not answer: tenants that are not remembered are answered 503",
        );
    let upstreams = active.upstreams.iter().filter_map(|upstream| {
        let why = match (upstream.has_healthy(), upstream.is_unreachable()) {
            (false, _) => "has no healthy server: its routes are answered 503",
            (true, true) => "has no server that could be reached: its routes are answered 502",
            (true, false) => return None,
        };
        Some(format!("upstreams.{} {why}", upstream.name))
    });
    identity.into_iter().chain(directory).map(str::to_owned).chain(upstreams)
}
