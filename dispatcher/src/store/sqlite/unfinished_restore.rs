//! The files that a restore creates beside a database, and that an interrupted restore leaves.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::store::sqlite::key_file::with_ending;
use crate::store::sqlite::wal::owner::log_of;

/// Whether the database has the second name that a restore adds, and no copy has replaced it yet.
pub(super) fn is_cut_off(path: &Path) -> bool {
    let same = |one: fs::Metadata, other: fs::Metadata| {
        (one.dev(), one.ino()) == (other.dev(), other.ino())
    };
    let both = fs::metadata(path).ok().zip(fs::symlink_metadata(aside_of(path)).ok());
    both.is_some_and(|(one, other)| same(one, other))
}

/// A file that a restore left where there is no database now.
pub(super) fn left_beside(path: &Path) -> Option<PathBuf> {
    let aside = aside_of(path);
    [aside.clone(), log_of(&aside), draft_of(path)].into_iter().find(|left| left.exists())
}

/// Where a restore moves the earlier database.
pub(super) fn aside_of(path: &Path) -> PathBuf {
    with_ending(path, ".before-restore")
}

/// Where a restore makes its copy.
pub(super) fn draft_of(path: &Path) -> PathBuf {
    with_ending(path, ".restore-draft")
}
