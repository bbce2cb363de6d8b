//! The limit of file descriptors.

use log::Level;
use serde_json::json;
use weir_common::log::events;
use weir_common::rlimit;

use crate::config::settings::Settings;

/// File descriptors for the database, the log and the runtime.
const OWN_DESCRIPTORS: u64 = 128;

/// Raises the limit of file descriptors to the number that connections in both directions need.
pub(crate) fn raise_limit(settings: &Settings) {
    let wanted = settings.server.connections_max * 2 + settings.egress.in_flight_max * 2;
    let wanted = wanted as u64 + OWN_DESCRIPTORS;
    let descriptors = rlimit::raise_descriptors(wanted);
    if descriptors < wanted {
        let fields = [
            ("file_descriptors", json!(descriptors)),
            ("wanted", json!(wanted)),
            ("advice", json!("raise LimitNOFILE or ulimit -n, or lower egress.in_flight_max")),
        ];
        events::event(Level::Warn, "RLIMIT_NOFILE too low", &fields);
    }
}
