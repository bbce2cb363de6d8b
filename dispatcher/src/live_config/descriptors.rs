//! The limit of file descriptors.

use weir_common::rlimit;

use crate::config::settings::Settings;

/// File descriptors for the database, the log and the runtime.
const OWN_DESCRIPTORS: u64 = 128;

/// Raises the limit of file descriptors to the number that connections in both directions need.
pub(crate) fn raise_limit(settings: &Settings) {
    let wanted = settings.server.connections_max * 2 + settings.egress.in_flight_max * 2;
    let wanted = wanted as u64 + OWN_DESCRIPTORS;
    let advice = "raise LimitNOFILE or ulimit -n, or lower egress.in_flight_max";
    rlimit::raise_or_warn(wanted, advice);
}
