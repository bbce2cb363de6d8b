//! Detects that a file of the open database was removed, moved or replaced.
//!
//! A file that was removed, or moved with its folder, still accepts writes while it is open.
//! Acknowledged events would be lost at the end of the process, or be where no start finds them.
//!
//! Invariant: while a file is not at its path nothing is committed; once it is back commits resume.
//!
//! Not here: files that others write to or that the disk damages, which is left to SQLite.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::store::sqlite::key_file::with_ending;

/// The endings of the files' names: the database, its WAL, the index of the WAL.
const ENDINGS: [&str; 3] = ["", "-wal", "-shm"];

/// A file's device and inode number.
type Inode = (u64, u64);

/// The files of an open database.
#[derive(Debug)]
pub(super) struct FileIdentity([(PathBuf, Inode); ENDINGS.len()]);

impl FileIdentity {
    /// For the database at `path`, which is open and was written to, so that its files exist.
    pub(super) fn of(path: &Path) -> io::Result<Self> {
        let there = |ending| {
            let name = with_ending(path, ending);
            inode(&name).map(|inode| (name, inode))
        };
        let [database, log, shared] = ENDINGS.map(there);
        Ok(Self([database?, log?, shared?]))
    }

    /// The first file that is not at its path any more.
    pub(super) fn lost(&self) -> Option<&Path> {
        let there = |(name, before): &&(PathBuf, Inode)| inode(name).is_ok_and(|is| is == *before);
        self.0.iter().find(|file| !there(file)).map(|(name, _)| name.as_path())
    }
}

fn inode(name: &Path) -> io::Result<Inode> {
    fs::metadata(name).map(|file| (file.dev(), file.ino()))
}
