//! Writes log lines about a directory and its entries.
//!
//! Not here: how often that is logged (`log::limiter`).

use log::Level;
use serde_json::json;

use crate::directory::response::TenantKind;
use crate::log::events;

/// Logs an invalid entry.
pub fn unusable(kind: TenantKind, name: &str, why: &str) {
    let fields = [("entry", json!(kind.path(name))), ("error", json!(why))];
    events::event(Level::Error, "directory entry invalid", &fields);
}

/// Logs the start of an outage.
pub(super) fn outage(url: &str, why: &str) {
    let fields = [("url", json!(url)), ("error", json!(why))];
    events::event(Level::Error, "directory unavailable", &fields);
}

/// Logs the end of an outage.
pub(super) fn outage_over() {
    events::event(Level::Info, "directory available again", &[]);
}
