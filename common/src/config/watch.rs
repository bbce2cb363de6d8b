//! Notices that files have changed, by looking at them.
//!
//! Not here: how a configuration is taken up (`reload`).

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

use crate::config::reload::Reload;

/// How often files are looked at: a change is noticed well within five seconds.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// A change that was not taken up is tried again after so many looks: perhaps only a file could not
/// be opened, or a name not be resolved.
const RETRY_AFTER_LOOKS: u32 = 60;

/// What tells one state of a file from another; `None` where it cannot be looked at.
pub type Stamp = Option<(u64, u64, [i64; 4])>;

/// The state a file is in.
#[must_use]
pub fn stamp(path: &Path) -> Stamp {
    // A change of its mode alone changes `ctime`.
    let times =
        |file: &fs::Metadata| [file.mtime(), file.mtime_nsec(), file.ctime(), file.ctime_nsec()];
    fs::metadata(path).ok().map(|file| (file.ino(), file.len(), times(&file)))
}

/// Runs `changed` whenever files are found in another state than `stamps` found them in before,
/// over and over. Where it does not take up what it finds, it runs again after a minute.
pub async fn watch<F: Future<Output = Reload>>(
    stamps: impl Fn() -> Vec<Stamp>,
    changed: impl Fn() -> F,
) {
    let mut active = stamps();
    let mut seen = active.clone();
    // Until the next try, where the last one was not taken up.
    let mut looks = None;
    loop {
        tokio::time::sleep(LOOK_EVERY).await;
        let now = stamps();
        // A file that is still being written looks different each time: it is left to settle.
        looks = looks.map(|looks: u32| looks.saturating_sub(1));
        if now == seen && (now != active || looks == Some(0)) {
            let taken_up = matches!(changed().await, Reload::Applied | Reload::Unchanged);
            looks = (!taken_up).then_some(RETRY_AFTER_LOOKS);
            // As they were before: what has changed meanwhile was perhaps not read.
            active.clone_from(&now);
        }
        seen = now;
    }
}

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_change_that_was_not_taken_up_is_tried_again_after_a_minute() {
        let (state, looks, reloads) = (Cell::new(0), Cell::new(0), RefCell::new(Vec::new()));
        let stamps = || {
            looks.set(looks.get() + 1);
            vec![Some((state.get(), 0, [0; 4]))]
        };
        let changed = || async {
            reloads.borrow_mut().push(looks.get());
            if reloads.borrow().len() < 3 { Reload::Refused(Vec::new()) } else { Reload::Unchanged }
        };
        let change = async {
            tokio::time::sleep(Duration::from_millis(9_500)).await;
            state.set(1);
            tokio::time::sleep(Duration::from_secs(600)).await;
        };
        tokio::select! {
            () = watch(stamps, changed) => {}
            () = change => {}
        }
        assert_eq!(*reloads.borrow(), [12, 72, 132]);
    }

    #[test]
    fn a_file_that_may_be_read_now_is_in_another_state() {
        let path = std::env::temp_dir().join(format!("weir-watch-{}", std::process::id()));
        fs::write(&path, "x").unwrap();
        let before = stamp(&path);
        // Times of a file have the kernel's resolution of some milliseconds.
        for _ in 0..1_000_000 {
            fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
            if stamp(&path) != before {
                break;
            }
        }
        let after = stamp(&path);
        fs::remove_file(&path).unwrap();
        assert_ne!(after, before);
    }
}
