//! Takes up the counters that an earlier process left, and leaves them to the next.
//!
//! Not here: what the file looks like (`limit::snapshot`).

use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use log::Level;
use serde_json::json;
use weir_common::config::files;
use weir_common::log::events;
use weir_common::time::Clock;

use crate::config::shared::Shared;
use crate::limit::snapshot::{self, Snapshot};
use crate::rules::retention::Retention;
use crate::settings::StoreSettings;

/// The counters cannot be kept for the next start.
#[derive(Debug, thiserror::Error)]
#[error("cannot write the snapshot of limits `{path}`: {source}")]
pub struct SnapshotFileError {
    path: String,
    source: io::Error,
}

/// Finds out at the start whether states can be left at the end, when it would be too late.
pub fn check(store: &StoreSettings) -> Result<(), SnapshotFileError> {
    let Some(path) = store.snapshot.as_deref() else { return Ok(()) };
    let tried = open(path).and_then(|_| fs::remove_file(new(path)));
    tried.map_err(|source| SnapshotFileError { path: path.to_owned(), source })
}

/// Whether states could be left there, found out without making anything: not even a folder.
pub fn could_leave(store: &StoreSettings) -> Result<(), SnapshotFileError> {
    let Some(path) = store.snapshot.as_deref() else { return Ok(()) };
    files::may_make(Path::new(path))
        .map_err(|source| SnapshotFileError { path: path.to_owned(), source })
}

/// The file that a snapshot is written to before it takes the place of an earlier one.
fn new(path: &str) -> String {
    format!("{path}.new")
}

fn open(path: &str) -> io::Result<fs::File> {
    if let Some(folder) = Path::new(path).parent() {
        fs::create_dir_all(folder)?;
    }
    // A reader of the secret in it can make keys collide.
    fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(new(path))
}

/// The states that an earlier process left. A file that cannot be read is put aside, not lost.
#[must_use]
pub fn earlier(store: &StoreSettings, clock: &Clock) -> Option<Snapshot> {
    let path = store.snapshot.as_deref()?;
    let bytes = match fs::read(path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return None,
        Err(error) => return no_states(path, &error.to_string()),
    };
    snapshot::read(&bytes, clock.now()).map_or_else(|why| no_states(path, &why.to_string()), Some)
}

fn no_states(path: &str, why: &str) -> Option<Snapshot> {
    let aside = format!("{path}.unreadable");
    let kept = fs::rename(path, &aside).is_ok();
    let fields =
        [("file", json!(path)), ("error", json!(why)), ("kept_as", json!(kept.then_some(aside)))];
    events::event(Level::Error, "limit snapshot discarded", &fields);
    None
}

/// Restores the states of `earlier`, and forgets none of them while rules with longer windows
/// may still need it. Returns how many there are.
#[must_use]
pub fn restore(shared: &Shared, earlier: Snapshot) -> usize {
    // What cannot be read is of a version whose rules had no such times.
    let memory = serde_json::from_slice::<Retention>(&earlier.memory).unwrap_or_default();
    memory.retain_in(&shared.limiter.store, &shared.active.load().rules, shared.clock.now().tick);
    earlier.restore(&shared.limiter.store)
}

/// Leaves the states for the next process, whole or not at all; nothing where none are kept.
pub fn leave(shared: &Shared) -> Result<(), SnapshotFileError> {
    let active = shared.active.load();
    let Some(path) = active.settings.store.snapshot.as_deref() else { return Ok(()) };
    let memory = serde_json::to_vec(&Retention::of(&active.rules)).unwrap_or_default();
    let states = snapshot::write(&shared.limiter.store, shared.seed, &memory, shared.clock.now());
    let written = || -> io::Result<()> {
        let mut file = open(path)?;
        file.write_all(&states)?;
        file.sync_all()?;
        fs::rename(new(path), path)
    };
    written().map_err(|source| SnapshotFileError { path: path.to_owned(), source })?;
    events::event(
        Level::Info,
        "limit snapshot saved",
        &[("file", json!(path)), ("bytes", json!(states.len()))],
    );
    Ok(())
}

#[cfg(test)]
pub(crate) mod tests {
    use std::time::Duration;

    use weir_common::config::document::Document;
    use weir_common::directory::Directory;
    use weir_common::time::{Tick, UnixTime};

    use super::*;
    use crate::config::active::{CheckedConfig, Config, Origin};
    use crate::config::shared::Seeds;
    use crate::limit::key::Seed;

    const SHIPPED: &str = include_str!("../../../config/gateway.toml");

    /// The parts of a process whose workspaces have such a window, and whose buckets such a burst.
    pub(crate) fn shared(window: &str, burst: u32, clock: &Clock) -> Shared {
        let text = SHIPPED.replacen("window = \"1m\"", &format!("window = \"{window}\""), 1);
        let text = text.replacen("burst = 200", &format!("burst = {burst}"), 1);
        let (document, nothing) = (Document::new("g", &text), Document::new("d", ""));
        let raw = crate::settings::read::read(&document).made;
        let seed = Seed::new([7; 16]);
        let rules = crate::rules::compile::check(
            (&raw, &document),
            (&Directory::default(), &nothing),
            seed,
        );
        assert!(document.diagnostics().is_empty(), "{:?}", document.diagnostics());
        let checked = CheckedConfig { rules, settings: raw.settings, origin: Origin::default() };
        let seeds = Seeds { keys: seed, names: seed };
        Shared::new(clock.clone(), Config::built_in(), checked, seeds, 10)
    }

    /// For how long nothing is dropped once rules have taken up what others left, or what left
    /// `memory` in their place.
    fn kept(old: (&str, u32), new: (&str, u32), memory: Option<&[u8]>) -> Duration {
        let clock = Clock::manual(UnixTime(1_000_000_000));
        let (left, restored) = (shared(old.0, old.1, &clock), shared(new.0, new.1, &clock));
        let own = serde_json::to_vec(&Retention::of(&left.active.load().rules)).unwrap();
        let now = clock.now();
        let bytes = snapshot::write(&left.limiter.store, left.seed, memory.unwrap_or(&own), now);
        let _ = restore(&restored, snapshot::read(&bytes, now).unwrap());
        restored.limiter.store.kept_until().since(now.tick.max(Tick(0)))
    }

    #[test]
    fn rules_that_remember_for_longer_than_those_before_them_have_nothing_dropped_meanwhile() {
        let minutes = |minutes: u64| Duration::from_secs(60 * minutes);
        assert_eq!(kept(("1m", 200), ("1m", 200), None), Duration::ZERO);
        assert_eq!(kept(("1m", 200), ("10m", 200), None), minutes(10));
        assert_eq!(kept(("10m", 200), ("1m", 200), None), Duration::ZERO);
        assert_eq!(kept(("1m", 200), ("10m", 500), Some(b"of another version")), Duration::ZERO);
    }
}
