//! Checks that the files that we write are still the ones at their names.
//!
//! A file that was removed, or moved away with its folder, goes on taking what is written to it for
//! as long as it is open: what was answered as stored would be gone with the process, or lie where
//! no start finds it.
//!
//! Invariant: while a file is not at its name nothing is committed; once it is back all goes on.
//!
//! Not here: a file that is written to by others, or that the disk damages: SQLite's.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::store::sqlite::key_file::with_ending;

/// What the names of the database's files end in: itself, its WAL, what readers share.
const ENDINGS: [&str; 3] = ["", "-wal", "-shm"];

/// Which file it is, whatever its name: the disk's number, and the file's on it.
type Which = (u64, u64);

/// The files of an open database.
#[derive(Debug)]
pub(super) struct FileIdentity([(PathBuf, Which); ENDINGS.len()]);

impl FileIdentity {
    /// Of the database at `path`, which is open and was written to: its files are there.
    pub(super) fn of(path: &Path) -> io::Result<Self> {
        let there = |ending| {
            let name = with_ending(path, ending);
            which(&name).map(|which| (name, which))
        };
        let [database, log, shared] = ENDINGS.map(there);
        Ok(Self([database?, log?, shared?]))
    }

    /// The first file that is not at its name any more.
    pub(super) fn lost(&self) -> Option<&Path> {
        let there = |(name, before): &&(PathBuf, Which)| which(name).is_ok_and(|is| is == *before);
        self.0.iter().find(|file| !there(file)).map(|(name, _)| name.as_path())
    }
}

fn which(name: &Path) -> io::Result<Which> {
    fs::metadata(name).map(|file| (file.dev(), file.ino()))
}
