//! The limit of file descriptors (`RLIMIT_NOFILE`), raised as far as the hard limit allows.
//!
//! Not here: what a program does with fewer than it wants.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

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
