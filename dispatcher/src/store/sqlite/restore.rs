//! Restores the database from a backup.
//!
//! # Invariants
//!
//! 1. No database is overwritten: with `replace`, an existing one is moved aside with its WAL;
//!    without, the restore is refused.
//! 2. The user who could open the earlier database can open the new one.
//! 3. After an interruption at any step, a start finds a complete database, or refuses with a
//!    remedy: the earlier database has two names from the first step to the last, which renames the
//!    copy over one of them. A start refuses a database with two names.
//! 4. A failed step is undone.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use crate::store::sqlite::backup::{self, BackupError};
use crate::store::sqlite::file_owner::{OwnerError, keep_owner};
use crate::store::sqlite::key_file::{folder_of, or_absent, sync_folder, with_ending};
use crate::store::sqlite::open::{self, OpenError, key};
use crate::store::sqlite::unfinished_restore::{aside_of, draft_of, is_cut_off};
use crate::store::sqlite::wal::owner::{self, has_log, log_of};

/// The number of steps that put a copy in place.
pub(super) const STEPS: usize = 7;

/// Why nothing was restored.
#[derive(Debug, thiserror::Error)]
pub enum RestoreError {
    /// The backup, the database or the key cannot be used.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The copy cannot be made.
    #[error(transparent)]
    Copy(#[from] BackupError),
    /// The backup is the database itself.
    #[error("{} is the database itself: name a backup of it", path.display())]
    Itself {
        /// The path of both.
        path: PathBuf,
    },
    /// There is a database already.
    #[error(
        "there is a database at {}: with --replace it is moved to {} first",
        path.display(), aside.display()
    )]
    Present {
        /// Where it is.
        path: PathBuf,
        /// Where it would be moved.
        aside: PathBuf,
    },
    /// The path to which the existing database would be moved exists.
    #[error(
        "{} is there already, where the present database would go: move it elsewhere first",
        path.display()
    )]
    AsideExists {
        /// That path.
        path: PathBuf,
    },
    /// The user that runs the program could not open the restored files.
    #[error(transparent)]
    Owner(#[from] OwnerError),
    /// The copy is in place, but not synced.
    #[error(
        "{} is restored, and a loss of power may still undo it: cannot sync its folder: {source}",
        path.display()
    )]
    Unsynced {
        /// The database.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A file cannot be moved.
    #[error("cannot move {}: {source}", path.display())]
    Move {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

/// Puts a copy of the backup at `from` to `path`. Returns where the earlier database was moved,
/// which requires `replace`.
///
/// # Errors
///
/// If the backup is invalid, or sealed with another key than the one in `key_path`; if the database
/// is in use, or exists without `replace`. Then nothing has changed.
pub fn restore(
    from: &Path,
    path: &Path,
    key_path: &Path,
    replace: bool,
) -> Result<Option<PathBuf>, RestoreError> {
    restore_by_steps(from, path, key_path, replace, &|_| Ok(()))
}

/// As [`restore`]; `before` runs before each step, and may fail it.
pub(super) fn restore_by_steps(
    from: &Path,
    path: &Path,
    key_path: &Path,
    replace: bool,
    before: &dyn Fn(usize) -> io::Result<()>,
) -> Result<Option<PathBuf>, RestoreError> {
    let (from, source) = backup::source(from)?;
    key::check_key(&from, &source, key_path)?;
    let folder = folder_of(path);
    let unusable = |source| OpenError::Folder { path: folder.to_owned(), source };
    fs::create_dir_all(folder).map_err(unusable)?;
    let path = &fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    if *path == from {
        return Err(RestoreError::Itself { path: from });
    }
    let mut lock = open::lock(path)?;
    let aside = aside_of(path);
    if is_cut_off(path) {
        undo(path, &aside).map_err(|source| RestoreError::Move { path: aside.clone(), source })?;
    }
    if path.exists() {
        open::resolve(path)?;
    }
    // A failed start may leave an empty file, which is no database.
    let there = fs::metadata(path).is_ok_and(|file| file.len() > 0) || has_log(path);
    if there && !replace {
        return Err(RestoreError::Present { path: path.clone(), aside });
    }
    for existing in [aside.clone(), log_of(&aside)] {
        if there && fs::symlink_metadata(&existing).is_ok() {
            return Err(RestoreError::AsideExists { path: existing });
        }
    }
    let draft = draft_of(path);
    // A draft is left by an interrupted restore: we have the lock, so none is running.
    let removed = or_absent(fs::remove_file(&draft));
    removed.map_err(|source| RestoreError::Move { path: draft.clone(), source })?;
    backup::copy_to(&source, &draft)?;
    let owned = keep_owner(path, &[&draft, &open::lock_of(path)]).map_err(RestoreError::from);
    let placed = owned.and_then(|()| place(&draft, path, there, &mut lock, before));
    if placed.is_err() {
        // If this fails, the next restore removes it.
        let _ = fs::remove_file(&draft);
        if there {
            // If this fails too, the next start reports the remedy.
            let _ = undo(path, &aside);
        }
        placed?;
    }
    let synced = sync_folder(folder_of(path));
    synced.map_err(|source| RestoreError::Unsynced { path: path.clone(), source })?;
    Ok(there.then_some(aside))
}

/// Adds a second name to the earlier database, and renames the copy over the first one: the last
/// step, and the only one that changes what a start finds.
fn place(
    draft: &Path,
    path: &Path,
    there: bool,
    lock: &mut File,
    before: &dyn Fn(usize) -> io::Result<()>,
) -> Result<(), RestoreError> {
    let (aside, log, folder) = (&aside_of(path), &log_of(path), folder_of(path));
    let shared = &with_ending(path, "-shm");
    let link = || if there { or_absent(fs::hard_link(path, aside)) } else { Ok(()) };
    // Without a mark in the lock file, a WAL that is moved back counts as the database's own.
    let mut forget = || owner::forget(lock);
    let steps: [(&Path, &mut dyn FnMut() -> io::Result<()>); STEPS] = [
        (path, &mut { link }),
        (folder, &mut || sync_folder(folder)),
        (log, &mut || or_absent(fs::rename(log, log_of(aside)))),
        (shared, &mut || or_absent(fs::remove_file(shared))),
        (path, &mut forget),
        (folder, &mut || sync_folder(folder)),
        (path, &mut || fs::rename(draft, path)),
    ];
    for (nth, (of, step)) in steps.into_iter().enumerate() {
        let failed = |source| RestoreError::Move { path: of.to_owned(), source };
        before(nth).and_then(|()| step()).map_err(failed)?;
    }
    Ok(())
}

/// Moves the WAL of the earlier database back, and removes the database's second name.
fn undo(path: &Path, aside: &Path) -> io::Result<()> {
    let (log, kept) = (log_of(path), log_of(aside));
    if kept.exists() {
        if log.exists() {
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, "it has two -wal files"));
        }
        fs::rename(kept, log)?;
        sync_folder(folder_of(path))?;
    }
    if is_cut_off(path) {
        fs::remove_file(aside)?;
    }
    sync_folder(folder_of(path))
}
