//! Copies a database that may be in use, to a file that opens as one.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use rusqlite::{Connection, OpenFlags};

use crate::store::sqlite::key_file::{folder_of, or_absent, sync_folder, with_ending};
use crate::store::sqlite::open::{self, OpenError};
use crate::store::sqlite::pragmas::BUSY_TIMEOUT;
use crate::store::sqlite::wal::owner;

/// Why there is no copy.
#[derive(Debug, thiserror::Error)]
pub enum BackupError {
    /// The database cannot be read.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// There is something there already.
    #[error("{} is there already, and was left as it is", path.display())]
    Exists {
        /// Where the copy should go.
        path: PathBuf,
    },
    /// There is nothing to put it in.
    #[error("there is no folder {}", path.display())]
    NoFolder {
        /// The folder.
        path: PathBuf,
    },
    /// The copy cannot be written.
    #[error("cannot write {}: {source}", path.display())]
    Write {
        /// Where the copy should go.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// SQLite cannot copy it.
    #[error("cannot copy to {}: {source}", path.display())]
    Copy {
        /// Where the copy should go.
        path: PathBuf,
        /// Why.
        source: rusqlite::Error,
    },
    /// What was written so far is still there.
    #[error("{cause}; and {} cannot be removed: {source}", path.display())]
    Left {
        /// Why there is no copy.
        cause: Box<BackupError>,
        /// What is left.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

/// Copies the database at `path`, as it is at this moment, to `to`, which must not be there. The
/// process that has it open goes on. The key file is not part of the copy.
///
/// # Errors
///
/// Where either cannot be used; then there is nothing at `to`.
pub fn backup(path: &Path, to: &Path) -> Result<(), BackupError> {
    let (_, conn) = source(path)?;
    if fs::symlink_metadata(to).is_ok() {
        return Err(BackupError::Exists { path: to.to_owned() });
    }
    if !folder_of(to).is_dir() {
        return Err(BackupError::NoFolder { path: folder_of(to).to_owned() });
    }
    // Under its own name only once it is whole.
    let draft = with_ending(to, &format!(".{}.draft", std::process::id()));
    copy_to(&conn, &draft)?;
    let moved = fs::rename(&draft, to).and_then(|()| sync_folder(folder_of(to)));
    moved.map_err(|source| discard(&draft, BackupError::Write { path: to.to_owned(), source }))
}

/// A database that may be in use, to be read: its one name, and a connection.
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
    match open::key_check(&conn) {
        Ok(Some(_)) => Ok((path, conn)),
        Ok(None) => Err(OpenError::Empty { path }),
        Err(source) => Err(OpenError::Sqlite { path, source }),
    }
}

/// Makes a copy that is on the disk, or leaves nothing.
pub(super) fn copy_to(conn: &Connection, draft: &Path) -> Result<(), BackupError> {
    try_copy(conn, draft).map_err(|cause| discard(draft, cause))
}

/// Removes a draft after an error; the error mentions it if that fails as well.
fn discard(draft: &Path, cause: BackupError) -> BackupError {
    // SQLite leaves its journal where the disk is full.
    let removed = or_absent(fs::remove_file(with_ending(draft, "-journal")));
    match or_absent(fs::remove_file(draft)).and(removed) {
        Ok(()) => cause,
        Err(source) => BackupError::Left { cause: cause.into(), path: draft.to_owned(), source },
    }
}

fn try_copy(conn: &Connection, draft: &Path) -> Result<(), BackupError> {
    let unwritten = |source| BackupError::Write { path: draft.to_owned(), source };
    // An empty file is filled, and keeps its mode.
    open::private(draft).map_err(unwritten)?;
    let copied =
        conn.execute("VACUUM INTO ?1", [draft.to_string_lossy()]).and_then(|_| unmark(draft));
    copied.map_err(|source| BackupError::Copy { path: draft.to_owned(), source })?;
    File::open(draft).and_then(|file| file.sync_all()).map_err(unwritten)
}

/// No log belongs to a copy.
fn unmark(copy: &Path) -> rusqlite::Result<()> {
    let copy = Connection::open(copy)?;
    // It is a draft: a crash here costs nothing but the draft.
    copy.pragma_update_and_check(None, "journal_mode", "OFF", |_| Ok(()))?;
    copy.execute("DELETE FROM meta WHERE name = ?1", [owner::MARK])?;
    copy.close().map_err(|(_, error)| error)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::sqlite::tests::Folder;

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
