//! Copies a database, which may be in use, to a file that is a database too.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use rusqlite::{Connection, OpenFlags};

use crate::store::sqlite::key_file::{folder_of, or_absent, sync_folder, with_ending};
use crate::store::sqlite::open::{self, OpenError, key};
use crate::store::sqlite::pragmas::BUSY_TIMEOUT;
use crate::store::sqlite::wal::owner;

/// Why there is no copy.
#[derive(Debug, thiserror::Error)]
pub enum BackupError {
    /// The database cannot be read.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The target exists already.
    #[error("{} is there already, and was left as it is", path.display())]
    Exists {
        /// The target.
        path: PathBuf,
    },
    /// The target's folder does not exist.
    #[error("there is no folder {}", path.display())]
    NoFolder {
        /// The folder.
        path: PathBuf,
    },
    /// The copy cannot be written.
    #[error("cannot write {}: {source}", path.display())]
    Write {
        /// The target.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// SQLite failed to copy it.
    #[error("cannot copy to {}: {source}", path.display())]
    Copy {
        /// The target.
        path: PathBuf,
        /// Why.
        source: rusqlite::Error,
    },
    /// The copy failed, and its draft cannot be removed.
    #[error("{cause}; and {} cannot be removed: {source}", path.display())]
    Left {
        /// Why there is no copy.
        cause: Box<BackupError>,
        /// The file that is left.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

/// Copies the current state of the database at `path` to `to`, which must not exist. The process
/// that has it open continues. The copy does not include the key file.
///
/// # Errors
///
/// If either cannot be used; then nothing is at `to`.
pub fn backup(path: &Path, to: &Path) -> Result<(), BackupError> {
    let (_, conn) = source(path)?;
    if fs::symlink_metadata(to).is_ok() {
        return Err(BackupError::Exists { path: to.to_owned() });
    }
    if !folder_of(to).is_dir() {
        return Err(BackupError::NoFolder { path: folder_of(to).to_owned() });
    }
    // The copy gets its name only once it is complete.
    let draft = with_ending(to, &format!(".{}.draft", std::process::id()));
    copy_to(&conn, &draft)?;
    let moved = name_new(&draft, to).and_then(|()| sync_folder(folder_of(to)));
    moved.map_err(|source| {
        let path = to.to_owned();
        let exists = source.kind() == io::ErrorKind::AlreadyExists;
        let cause =
            if exists { BackupError::Exists { path } } else { BackupError::Write { path, source } };
        discard(&draft, cause)
    })
}

/// Renames a file to a name that no other has, also if another process makes one meanwhile.
fn name_new(draft: &Path, to: &Path) -> io::Result<()> {
    match fs::hard_link(draft, to) {
        Ok(()) => fs::remove_file(draft),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Err(error),
        // Some file systems have no hard links.
        Err(_) => fs::rename(draft, to),
    }
}

/// Opens a database, which may be in use, for reading: its canonical path, and a connection.
pub(super) fn source(path: &Path) -> Result<(PathBuf, Connection), OpenError> {
    if !path.is_file() {
        return Err(OpenError::Absent { path: path.to_owned() });
    }
    let path = open::resolve(path)?;
    let sqlite = |source| OpenError::Sqlite { path: path.clone(), source };
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let conn = Connection::open_with_flags(&path, flags).map_err(sqlite)?;
    conn.busy_timeout(BUSY_TIMEOUT).map_err(sqlite)?;
    open::check_application_id(&path, &conn)?;
    match key::key_check(&conn) {
        Ok(Some(_)) => Ok((path, conn)),
        Ok(None) => Err(OpenError::Empty { path }),
        Err(source) => Err(OpenError::Sqlite { path, source }),
    }
}

/// Makes a copy that is synced to the disk, or leaves no file.
pub(super) fn copy_to(conn: &Connection, draft: &Path) -> Result<(), BackupError> {
    try_copy(conn, draft).map_err(|cause| discard(draft, cause))
}

/// Removes a draft after an error; if that fails too, the returned error reports both.
fn discard(draft: &Path, cause: BackupError) -> BackupError {
    // SQLite leaves its journal if the disk is full.
    let removed = or_absent(fs::remove_file(with_ending(draft, "-journal")));
    match or_absent(fs::remove_file(draft)).and(removed) {
        Ok(()) => cause,
        Err(source) => BackupError::Left { cause: cause.into(), path: draft.to_owned(), source },
    }
}

fn try_copy(conn: &Connection, draft: &Path) -> Result<(), BackupError> {
    let unwritten = |source| BackupError::Write { path: draft.to_owned(), source };
    // SQLite writes into an existing empty file, which keeps its mode.
    open::private(draft).map_err(unwritten)?;
    let copied =
        conn.execute("VACUUM INTO ?1", [draft.to_string_lossy()]).and_then(|_| unmark(draft));
    copied.map_err(|source| BackupError::Copy { path: draft.to_owned(), source })?;
    File::open(draft).and_then(|file| file.sync_all()).map_err(unwritten)
}

/// Removes the mark: no WAL belongs to a copy (`owner`).
fn unmark(copy: &Path) -> rusqlite::Result<()> {
    let copy = Connection::open(copy)?;
    // No journal: a crash here only loses the draft.
    copy.pragma_update_and_check(None, "journal_mode", "OFF", |_| Ok(()))?;
    copy.execute("DELETE FROM meta WHERE name = ?1", [owner::MARK])?;
    copy.close().map_err(|(_, error)| error)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::sqlite::tests::Folder;

    #[test]
    fn a_backup_replaces_no_file_that_was_made_meanwhile() {
        let folder = Folder::new();
        let [draft, other, to] = ["draft", "other", "to"].map(|name| folder.path(name));
        fs::write(&draft, "first").unwrap();
        fs::write(&other, "second").unwrap();
        name_new(&draft, &to).unwrap();
        let kind = name_new(&other, &to).unwrap_err().kind();
        assert_eq!((kind, draft.exists()), (io::ErrorKind::AlreadyExists, false));
        assert_eq!(fs::read_to_string(&to).unwrap(), "first");
    }

    #[test]
    fn a_copy_that_fails_leaves_neither_draft_nor_journal() {
        let folder = Folder::new();
        let draft = folder.path("copy.draft");
        for name in ["copy.draft", "copy.draft-journal"] {
            fs::write(folder.path(name), "half").unwrap();
        }
        let absent = || BackupError::NoFolder { path: folder.path("nowhere") };
        assert_eq!(discard(&draft, absent()).to_string(), absent().to_string());
        assert_eq!(fs::read_dir(folder.path(".")).unwrap().count(), 0);
    }
}
