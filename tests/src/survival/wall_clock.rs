//! Sets the wall clock of a running program by libfaketime; its monotonic clock is unchanged.

use std::fs;
use std::path::{Path, PathBuf};

/// Debian's path, below the folder of the architecture in `/usr/lib`.
const LIBRARY: &str = "faketime/libfaketimeMT.so.1";

/// The clock of one process and of its successors.
#[derive(Debug)]
pub struct WallClock {
    library: PathBuf,
    file: PathBuf,
}

impl WallClock {
    /// A clock with the real time, set by a file in this folder; `None` if libfaketime is not
    /// installed.
    pub fn find(folder: &Path) -> Option<Self> {
        let folders = fs::read_dir("/usr/lib").ok()?.filter_map(Result::ok);
        let library = folders.map(|one| one.path().join(LIBRARY)).find(|path| path.exists())?;
        let clock = Self { library, file: folder.join("clock") };
        clock.set(0);
        Some(clock)
    }

    /// The environment variables with which a process uses this clock.
    pub fn environment(&self) -> Vec<(&'static str, String)> {
        vec![
            ("LD_PRELOAD", self.library.display().to_string()),
            ("FAKETIME_TIMESTAMP_FILE", self.file.display().to_string()),
            ("FAKETIME_NO_CACHE", "1".to_owned()),
            ("FAKETIME_DONT_FAKE_MONOTONIC", "1".to_owned()),
            ("NO_FAKE_STAT", "1".to_owned()),
        ]
    }

    /// Sets it to `ahead` seconds ahead of the real time, or behind.
    pub fn set(&self, ahead: i64) {
        let draft = self.file.with_extension("draft");
        fs::write(&draft, format!("{ahead:+}\n")).unwrap();
        fs::rename(&draft, &self.file).unwrap();
    }
}
