//! Loads the counters that an earlier process saved, and saves them for the next one.
//!
//! Not here: the format of the file (`limit::snapshot`).

use std::fs;
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use log::Level;
use rustix::fs::{Mode, OFlags};
use serde_json::json;
use weir_common::config::files;
use weir_common::log::events;
use weir_common::time::Moment;

use crate::config::shared::Shared;
use crate::limit::snapshot::{self, Snapshot};
use crate::rules::retention::Retention;
use crate::settings::store::StoreSettings;

/// The counters cannot be saved for the next start.
#[derive(Debug, thiserror::Error)]
#[error("cannot write the snapshot of limits `{path}`: {source}")]
pub struct SnapshotFileError {
    path: String,
    source: io::Error,
}

/// Checks at the start that the snapshot can be written: at the end it would be too late.
pub fn check(store: &StoreSettings) -> Result<(), SnapshotFileError> {
    let Some(path) = store.snapshot.as_deref() else { return Ok(()) };
    let tried = open(path).and_then(|_| fs::remove_file(new(path)));
    tried.map_err(|source| SnapshotFileError { path: path.to_owned(), source })
}

/// Checks that the snapshot could be written, and leaves no file or directory.
pub fn check_without_writing(store: &StoreSettings) -> Result<(), SnapshotFileError> {
    let Some(path) = store.snapshot.as_deref() else { return Ok(()) };
    replaceable(path)
        .and_then(|()| replaceable(&new(path)))
        .and_then(|()| files::may_make(Path::new(path)))
        .and_then(|()| takes_files(Path::new(path)))
        .map_err(|source| SnapshotFileError { path: path.to_owned(), source })
}

/// Checks that the nearest folder above `path` takes files, as /proc does not: by one without a
/// name, or where its file system has none of those, by one that is removed at once.
fn takes_files(path: &Path) -> io::Result<()> {
    let path = std::path::absolute(path)?;
    let folder = path.ancestors().skip(1).find(|folder| folder.is_dir());
    let folder = folder.unwrap_or(Path::new("/"));
    let open = |path: &Path, flags| rustix::fs::open(path, flags | OFlags::WRONLY, Mode::RUSR);
    let named = folder.join(format!(".weir-check-{}", std::process::id()));
    let made = open(folder, OFlags::TMPFILE).map(drop).or_else(|_| {
        open(&named, OFlags::CREATE | OFlags::EXCL)?;
        rustix::fs::unlink(&named)
    });
    made.map_err(|why| {
        let why = io::Error::from(why);
        io::Error::new(why.kind(), format!("{}: {why}", folder.display()))
    })
}

/// Checks that at `path` is a snapshot, or nothing: anything else must not be renamed or replaced.
fn replaceable(path: &str) -> io::Result<()> {
    let refused = |what: &str| {
        let why = format!("`{path}` is {what}: name a file that only this gateway writes");
        Err(io::Error::new(io::ErrorKind::AlreadyExists, why))
    };
    match fs::metadata(path) {
        Err(_) => Ok(()),
        Ok(there) if !there.is_file() => refused("no regular file"),
        Ok(_) if is_snapshot(path)? => Ok(()),
        Ok(_) => refused("no snapshot of limits, and was left as it is"),
    }
}

/// Whether the file at `path` begins as a snapshot of any version does, or is empty.
fn is_snapshot(path: &str) -> io::Result<bool> {
    let mut start = Vec::new();
    fs::File::open(path)?.take(snapshot::NAME.len() as u64).read_to_end(&mut start)?;
    Ok(start.is_empty() || start == snapshot::NAME)
}

/// The file that a snapshot is written to before it replaces the earlier one.
fn new(path: &str) -> String {
    format!("{path}.new")
}

fn open(path: &str) -> io::Result<fs::File> {
    replaceable(path)?;
    // Opening a FIFO would wait for a reader.
    replaceable(&new(path))?;
    if let Some(folder) = Path::new(path).parent() {
        fs::create_dir_all(folder)?;
    }
    // Mode 0600: with the secret in the file an attacker could find keys that collide.
    fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(new(path))
}

/// The states that an earlier process saved, as they are at `now`. A file that cannot be read is
/// renamed, not deleted.
#[must_use]
pub fn earlier(store: &StoreSettings, now: Moment) -> Option<Snapshot> {
    let path = store.snapshot.as_deref()?;
    let bytes = match fs::read(path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return None,
        Err(error) => return no_states(path, &error.to_string()),
    };
    snapshot::read(&bytes, now).map_or_else(|why| no_states(path, &why.to_string()), Some)
}

fn no_states(path: &str, why: &str) -> Option<Snapshot> {
    let aside = format!("{path}.unreadable");
    let kept = fs::rename(path, &aside).is_ok();
    let fields =
        [("file", json!(path)), ("error", json!(why)), ("kept_as", json!(kept.then_some(aside)))];
    events::event(Level::Error, "limit snapshot discarded", &fields);
    None
}

/// Restores the states of `earlier`, and drops none of them while longer windows of the active
/// rules may still need it. Returns how many there are.
#[must_use]
pub fn restore(shared: &Shared, mut earlier: Snapshot) -> usize {
    shared.restore_synced(std::mem::take(&mut earlier.synced));
    // Where this cannot be parsed, another version wrote the file.
    let memory = serde_json::from_slice::<Retention>(&earlier.memory).unwrap_or_default();
    let (store, now) = shared.limiter.own(shared.clock.now().tick);
    memory.retain_in(store, &shared.active.load().rules, now);
    earlier.restore(&shared.limiter.store)
}

/// Saves the states for the next process, all or none of them, where `store.snapshot` is set.
pub fn save(shared: &Shared) -> Result<(), SnapshotFileError> {
    let active = shared.active.load();
    let Some(path) = active.settings.store.snapshot.as_deref() else { return Ok(()) };
    let memory = serde_json::to_vec(&Retention::of(&active.rules)).unwrap_or_default();
    let now = shared.limiter.earliest(shared.clock.now());
    let kept = (&shared.limiter.store, shared.limiter.synced());
    let states = snapshot::write(kept, shared.seed, &memory, now);
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
    use weir_common::time::{Clock, Tick, UnixTime};

    use super::*;
    use crate::config::checked::{CheckedConfig, Config, Origin};
    use crate::config::shared::Seeds;
    use crate::limit::key::Seed;

    const SHIPPED: &str = include_str!("../../../config/gateway.toml");

    /// The `Shared` of a process whose workspaces have this window, and whose buckets this burst.
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
        let seeds = Seeds { keys: seed, request_ids: seed };
        Shared::new(clock.clone(), Config::built_in(), checked, seeds, 10)
    }

    /// How long no state is dropped after a process with `new` rules has restored a snapshot of a
    /// process with `old` rules; `memory` replaces the retention in that snapshot.
    fn kept(old: (&str, u32), new: (&str, u32), memory: Option<&[u8]>) -> Duration {
        let clock = Clock::manual(UnixTime(1_000_000_000));
        let (left, restored) = (shared(old.0, old.1, &clock), shared(new.0, new.1, &clock));
        let own = serde_json::to_vec(&Retention::of(&left.active.load().rules)).unwrap();
        let now = clock.now();
        let kept = (&left.limiter.store, left.limiter.synced());
        let bytes = snapshot::write(kept, left.seed, memory.unwrap_or(&own), now);
        let _ = restore(&restored, snapshot::read(&bytes, now).unwrap());
        restored.limiter.store.kept_until().since(now.tick.max(Tick(0)))
    }

    #[test]
    fn a_snapshot_where_no_file_can_be_made_is_refused_by_a_check_that_leaves_nothing() {
        let folder = std::env::temp_dir().join(format!("weir-snapshot-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let shared = shared("1m", 200, &Clock::manual(UnixTime(1_000_000_000)));
        let store = &shared.active.load().settings.store;
        let checked = |path: &str| {
            let snapshot = Some(path.to_owned());
            check_without_writing(&StoreSettings { snapshot, ..store.clone() })
        };
        for name in ["limits", "missing/limits"] {
            checked(folder.join(name).to_str().unwrap()).unwrap();
        }
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 0);
        for path in ["/proc/limits", "/proc/missing/limits"] {
            let refused = checked(path).unwrap_err().to_string();
            assert!(refused.contains(path) && refused.contains("/proc:"), "{refused}");
        }
        fs::remove_dir_all(&folder).unwrap();
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
