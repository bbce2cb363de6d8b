//! The limit of file descriptors (`RLIMIT_NOFILE`), raised as far as the hard limit allows.
//!
//! Not here: what a program does with fewer than it wants.

use log::Level;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde_json::json;

use crate::log::events;

/// Raises the limit to `wanted` if it is lower, and returns the limit that then applies.
#[must_use]
pub fn raise_descriptors(wanted: u64) -> u64 {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    // `None` is no limit.
    let (soft, hard) = (current.unwrap_or(u64::MAX), maximum.unwrap_or(u64::MAX));
    let raised = wanted.min(hard).max(soft);
    let limit = Rlimit { current: Some(raised), maximum };
    if setrlimit(Resource::Nofile, limit).is_ok() { raised } else { soft }
}

/// Raises the limit to `wanted`, and logs `advice` where it stays lower.
pub fn raise_or_warn(wanted: u64, advice: &str) {
    let descriptors = raise_descriptors(wanted);
    if descriptors < wanted {
        let fields = [
            ("file_descriptors", json!(descriptors)),
            ("wanted", json!(wanted)),
            ("advice", json!(advice)),
        ];
        events::event(Level::Warn, "RLIMIT_NOFILE too low", &fields);
    }
}
