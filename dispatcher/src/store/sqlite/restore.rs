//! Puts a backup in the place of the database.
//!
//! # Invariants
//!
//! 1. Nothing is overwritten: what was there is moved aside, with its log, and only where that was
//!    asked for.
//! 2. Who could open the database that was there can open the one that is put in its place.
//! 3. Wherever it is cut off, a start finds a whole database, or refuses.

use std::fs;
use std::io;
use std::os::unix::fs::{MetadataExt, chown};
use std::path::{Path, PathBuf};

use super::backup::{self, BackupError};
use super::key_file::{folder_of, sync_folder};
use super::log_owner::{self, has_log, log_of};
use super::open::{self, OpenError};

/// Why nothing was restored.
#[derive(Debug, thiserror::Error)]
pub enum RestoreError {
    /// One of the two cannot be used.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The copy cannot be made.
    #[error(transparent)]
    Copy(#[from] BackupError),
    /// The backup is the database.
    #[error("{} is the database itself: name a backup of it", path.display())]
    Itself {
        /// Both.
        path: PathBuf,
    },
    /// There is a database.
    #[error(
        "there is a database at {}: with --replace it is moved to {} first",
        path.display(), aside.display()
    )]
    Present {
        /// Where it is.
        path: PathBuf,
        /// Where it would go.
        aside: PathBuf,
    },
    /// There is something where the database that is there would go.
    #[error(
        "{} is there already, where the present database would go: move it elsewhere first",
        path.display()
    )]
    AsideTaken {
        /// What is there.
        path: PathBuf,
    },
    /// The program could not open what we made.
    #[error(
        "cannot give {} the owner of what was there (uid {uid}): {source}; restore as that user, \
         or as root",
        path.display()
    )]
    Owner {
        /// Which file.
        path: PathBuf,
        /// Whose it should be.
        uid: u32,
        /// Why.
        source: io::Error,
    },
    /// A file cannot be moved.
    #[error("cannot move {}: {source}", path.display())]
    Move {
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

/// Puts a copy of the backup at `from` where the database is, or was: at `path`. Says where the one
/// that was there is now, which is only moved where `replace` says so.
///
/// # Errors
///
/// Where the backup is none, or its secrets were sealed with another key than the one in
/// `key_path`; where the database is in use, or is there and was not to be replaced. Then
/// everything is as it was.
pub fn restore(
    from: &Path,
    path: &Path,
    key_path: &Path,
    replace: bool,
) -> Result<Option<PathBuf>, RestoreError> {
    let (from, source) = backup::source(from)?;
    open::check_key(&from, &source, key_path)?;
    let folder = folder_of(path);
    let unusable = |source| OpenError::Folder { path: folder.to_owned(), source };
    fs::create_dir_all(folder).map_err(unusable)?;
    let path = &if path.exists() { open::resolve(path)? } else { path.to_owned() };
    if *path == from {
        return Err(RestoreError::Itself { path: from });
    }
    let mut lock = open::lock(path)?;
    let aside = with_ending(path, ".before-restore");
    // An empty file is what a start leaves that came to nothing.
    let there = fs::metadata(path).is_ok_and(|file| file.len() > 0) || has_log(path);
    if there && !replace {
        return Err(RestoreError::Present { path: path.clone(), aside });
    }
    for taken in [aside.clone(), log_of(&aside)] {
        if there && fs::symlink_metadata(&taken).is_ok() {
            return Err(RestoreError::AsideTaken { path: taken });
        }
    }
    let draft = with_ending(path, &format!(".{}.restored", std::process::id()));
    backup::copy_to(&source, &draft)?;
    let owned = keep_owner(path, &[&draft, &open::lock_of(path)]);
    let placed = owned.and_then(|()| place(&draft, path, &aside)).and_then(|()| {
        let kept = |source| RestoreError::Move { path: path.clone(), source };
        log_owner::forget(&mut lock).and_then(|()| sync_folder(folder_of(path))).map_err(kept)
    });
    if placed.is_err() {
        let _ = fs::remove_file(&draft);
    }
    placed.map(|()| there.then_some(aside))
}

/// Gives files the owner and group of the database at `path`, or of its folder where there is none:
/// root restores, and another user runs the program.
fn keep_owner(path: &Path, files: &[&Path]) -> Result<(), RestoreError> {
    let before = fs::metadata(path);
    let is_known = before.is_ok();
    let Ok(model) = before.or_else(|_| fs::metadata(folder_of(path))) else { return Ok(()) };
    let (uid, gid) = (model.uid(), model.gid());
    for file in files {
        let Err(source) = chown(file, Some(uid), Some(gid)) else { continue };
        // In another's folder a database of one's own is no mistake, nor is a group of one's own:
        // the database is for its owner alone.
        if is_known && fs::metadata(file).is_ok_and(|made| made.uid() != uid) {
            let path = (*file).to_owned();
            return Err(RestoreError::Owner { path, uid, source });
        }
    }
    Ok(())
}

/// Moves what is there aside, and the copy in its place.
fn place(draft: &Path, path: &Path, aside: &Path) -> Result<(), RestoreError> {
    // The database first: a start that finds its log alone refuses.
    move_away(path, aside)?;
    move_away(&log_of(path), &log_of(aside))?;
    let shared = with_ending(path, "-shm");
    match fs::remove_file(&shared) {
        Err(source) if source.kind() != io::ErrorKind::NotFound => {
            return Err(RestoreError::Move { path: shared, source });
        }
        _ => {}
    }
    fs::rename(draft, path).map_err(|source| RestoreError::Move { path: path.to_owned(), source })
}

/// Moves a file that may not be there.
fn move_away(from: &Path, to: &Path) -> Result<(), RestoreError> {
    match fs::rename(from, to) {
        Err(source) if source.kind() != io::ErrorKind::NotFound => {
            Err(RestoreError::Move { path: from.to_owned(), source })
        }
        _ => Ok(()),
    }
}

fn with_ending(path: &Path, ending: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(ending);
    name.into()
}
