//! The limit of file descriptors (`RLIMIT_NOFILE`), raised as far as it may be.
//!
//! Not here: what a program does with fewer than it wants.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Asks for as many file descriptors as `wanted`, and says how many there are.
#[must_use]
pub fn raise_descriptors(wanted: u64) -> u64 {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    // Nothing there is no limit.
    let (soft, hard) = (current.unwrap_or(u64::MAX), maximum.unwrap_or(u64::MAX));
    let raised = wanted.min(hard).max(soft);
    let limit = Rlimit { current: Some(raised), maximum };
    if setrlimit(Resource::Nofile, limit).is_ok() { raised } else { soft }
}
