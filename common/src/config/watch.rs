//! Detects changed files by polling their metadata.
//!
//! Not here: how a configuration is reloaded (`reload`).

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

use crate::config::reload::Reload;
use crate::time::UnixTime;

/// How often files are polled: a change is detected well within five seconds.
const POLL_EVERY: Duration = Duration::from_secs(1);

/// A change that was refused is tried again after so many polls: the cause may be temporary, such
/// as a file that could not be opened or a name that did not resolve.
const RETRY_AFTER_POLLS: u32 = 60;

/// Distinguishes states of a file; `None` if its metadata cannot be read.
pub type Stamp = Option<(u64, u64, [i64; 4])>;

/// The present state of a file.
#[must_use]
pub fn stamp(path: &Path) -> Stamp {
    // `ctime` changes with the mode, too: the file may have become readable.
    let times =
        |file: &fs::Metadata| [file.mtime(), file.mtime_nsec(), file.ctime(), file.ctime_nsec()];
    fs::metadata(path).ok().map(|file| (file.ino(), file.len(), times(&file)))
}

/// Whether a file has changed since this time.
fn is_newer(stamp: &Stamp, than: UnixTime) -> bool {
    stamp.is_some_and(|(_, _, [_, _, seconds, nanos])| {
        let micros = seconds.saturating_mul(1_000_000).saturating_add(nanos / 1_000);
        u64::try_from(micros).is_ok_and(|changed| changed >= than.0)
    })
}

/// Runs `changed` whenever `stamps` differ from those at its last run, without end; and at first if
/// a file has changed since `began`, when the files began to be read. If it refuses or fails, it
/// runs again after a minute.
pub async fn watch<F: Future<Output = Reload>>(
    stamps: impl Fn() -> Vec<Stamp>,
    changed: impl Fn() -> F,
    began: UnixTime,
) {
    let mut seen = stamps();
    let is_read = !seen.iter().any(|stamp| is_newer(stamp, began));
    let mut active = if is_read { seen.clone() } else { Vec::new() };
    // Polls until the next try, if the last one was refused or failed.
    let mut polls = None;
    loop {
        tokio::time::sleep(POLL_EVERY).await;
        let now = stamps();
        // A file that is still being written differs at each poll: wait until two polls agree.
        polls = polls.map(|polls: u32| polls.saturating_sub(1));
        if now == seen && (now != active || polls == Some(0)) {
            let taken_up = matches!(changed().await, Reload::Applied | Reload::Unchanged);
            polls = (!taken_up).then_some(RETRY_AFTER_POLLS);
            // The stamps from before the reload, which may not have read what changed during it.
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
        let (state, polls, reloads) = (Cell::new(0), Cell::new(0), RefCell::new(Vec::new()));
        let stamps = || {
            polls.set(polls.get() + 1);
            vec![Some((state.get(), 0, [0; 4]))]
        };
        let changed = || async {
            reloads.borrow_mut().push(polls.get());
            if reloads.borrow().len() < 3 { Reload::Refused(Vec::new()) } else { Reload::Unchanged }
        };
        let change = async {
            tokio::time::sleep(Duration::from_millis(9_500)).await;
            state.set(1);
            tokio::time::sleep(Duration::from_secs(600)).await;
        };
        tokio::select! {
            () = watch(stamps, changed, UnixTime(1)) => {}
            () = change => {}
        }
        assert_eq!(*reloads.borrow(), [12, 72, 132]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_change_while_the_files_were_read_is_taken_up_at_first() {
        // Changed 5 seconds and 7 µs after 1970.
        let stamps = || vec![None, Some((1, 0, [0, 0, 5, 7_000]))];
        for (began, expected) in [(5_000_007, 1), (5_000_008, 0)] {
            let reloads = Cell::new(0);
            let changed = || async {
                reloads.set(reloads.get() + 1);
                Reload::Applied
            };
            let watching = watch(stamps, changed, UnixTime(began));
            assert!(tokio::time::timeout(Duration::from_secs(60), watching).await.is_err());
            assert_eq!(reloads.get(), expected, "{began}");
        }
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
