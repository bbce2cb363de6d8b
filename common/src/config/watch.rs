//! Notices that files have changed, by looking at them.
//!
//! Not here: what follows from a change (`reload`).

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

/// How often files are looked at: a change is noticed well within five seconds.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// What tells one state of a file from another; `None` where it cannot be looked at.
pub type Stamp = Option<(u64, u64, i64, i64)>;

/// The state a file is in.
#[must_use]
pub fn stamp(path: &Path) -> Stamp {
    let of = |file: fs::Metadata| (file.ino(), file.len(), file.mtime(), file.mtime_nsec());
    fs::metadata(path).ok().map(of)
}

/// Runs `changed` whenever files are found in another state than `stamps` found them in before,
/// over and over.
pub async fn watch<F: Future<Output = ()>>(
    stamps: impl Fn() -> Vec<Stamp>,
    changed: impl Fn() -> F,
) {
    let mut active = stamps();
    let mut seen = active.clone();
    loop {
        tokio::time::sleep(LOOK_EVERY).await;
        let now = stamps();
        // A file that is still being written looks different each time: it is left to settle.
        if now == seen && now != active {
            changed().await;
            // As they were before: what has changed meanwhile was perhaps not read.
            active.clone_from(&now);
        }
        seen = now;
    }
}
