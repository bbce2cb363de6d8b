//! A wall clock that is set while a program runs, by libfaketime; the monotonic one stays as it is.

use std::fs;
use std::path::{Path, PathBuf};

/// Where Debian puts it, below a folder for each architecture.
const LIBRARY: &str = "faketime/libfaketimeMT.so.1";

/// The clock of one process and of those that take its place.
#[derive(Debug)]
pub struct WallClock {
    library: PathBuf,
    file: PathBuf,
}

impl WallClock {
    /// A clock that goes right so far, kept in this folder; nothing where there is no libfaketime.
    pub fn find(folder: &Path) -> Option<Self> {
        let folders = fs::read_dir("/usr/lib").ok()?.filter_map(Result::ok);
        let library = folders.map(|one| one.path().join(LIBRARY)).find(|path| path.exists())?;
        let clock = Self { library, file: folder.join("clock") };
        clock.set(0);
        Some(clock)
    }

    /// What a process needs in its environment to go by it.
    pub fn environment(&self) -> Vec<(&'static str, String)> {
        vec![
            ("LD_PRELOAD", self.library.display().to_string()),
            ("FAKETIME_TIMESTAMP_FILE", self.file.display().to_string()),
            ("FAKETIME_NO_CACHE", "1".to_owned()),
            ("FAKETIME_DONT_FAKE_MONOTONIC", "1".to_owned()),
            ("NO_FAKE_STAT", "1".to_owned()),
        ]
    }

    /// From now on it is so many seconds ahead, or behind.
    pub fn set(&self, ahead: i64) {
        let draft = self.file.with_extension("draft");
        fs::write(&draft, format!("{ahead:+}\n")).unwrap();
        fs::rename(&draft, &self.file).unwrap();
    }
}
