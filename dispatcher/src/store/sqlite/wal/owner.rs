//! Detects a WAL that belongs to another database.
//!
//! SQLite applies any WAL next to a file. If a copy replaced the file, the WAL of the earlier file
//! would restore half of the old state. So each start marks the database, and writes the same mark
//! into the lock file: a WAL belongs to the database with that mark. A copy made by `backup` has no
//! mark. A closed database has no WAL.
//!
//! Invariant: if in doubt, a WAL is treated as the database's own, because acknowledged events may
//! exist only in it.

use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use rusqlite::{Connection, OpenFlags};

use crate::store::sqlite::key_file::{folder_of, sync_folder, with_ending};
use crate::store::sqlite::schema;

/// The name of a `meta` value: the mark that the last start wrote.
pub(crate) const MARK: &str = "log_mark";

/// Bytes of a mark.
pub(crate) const MARK_BYTES: usize = 16;

/// Written instead of a mark: the database was closed, and has no WAL.
const CLOSED: &[u8] = b"closed";

/// The path of a database's WAL.
pub(crate) fn log_of(path: &Path) -> PathBuf {
    with_ending(path, "-wal")
}

/// Bytes of a database on disk without its WAL, and those of its WAL.
pub(crate) fn bytes_on_disk(path: &Path) -> [u64; 2] {
    let size = |file: &Path| file.metadata().map_or(0, |file| file.len());
    [size(path), size(&log_of(path))]
}

/// Whether a WAL with content exists.
pub(crate) fn has_log(path: &Path) -> bool {
    fs::metadata(log_of(path)).is_ok_and(|log| log.len() > 0)
}

/// Whether the WAL beside a database certainly belongs to another one; `lock` is the database's
/// lock file, which we have locked.
pub(crate) fn is_foreign(path: &Path, lock: &mut File) -> io::Result<bool> {
    if !has_log(path) {
        return Ok(false);
    }
    let mut noted = Vec::new();
    lock.seek(SeekFrom::Start(0))?;
    (&*lock).take(MARK_BYTES as u64 + 1).read_to_end(&mut noted)?;
    // For an unreadable database, SQLite reports a better error later.
    let Ok(mark) = mark_of(path) else { return Ok(false) };
    let closed = noted == CLOSED;
    Ok(closed || (noted.len() == MARK_BYTES && mark != Some(noted)))
}

/// The mark in the database file, without its WAL.
fn mark_of(path: &Path) -> rusqlite::Result<Option<Vec<u8>>> {
    let mut uri = "file:".to_owned();
    let name = path.to_string_lossy();
    uri.extend(percent_encoding::utf8_percent_encode(&name, percent_encoding::NON_ALPHANUMERIC));
    uri.push_str("?immutable=1");
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY
        | OpenFlags::SQLITE_OPEN_NO_MUTEX
        | OpenFlags::SQLITE_OPEN_URI;
    schema::meta(&Connection::open_with_flags(uri, flags)?, MARK)
}

/// Removes the mark from the lock file, so that any WAL counts as the database's own.
pub(crate) fn forget(lock: &mut File) -> io::Result<()> {
    write(lock, &[])
}

/// Records that the database has no WAL, if that is so. No process has it open.
pub(crate) fn closed(path: &Path, lock: &mut File) -> io::Result<()> {
    if log_of(path).exists() {
        return Ok(());
    }
    // First, the removal of the WAL must be on disk.
    sync_folder(folder_of(path))?;
    write(lock, CLOSED)
}

fn write(lock: &mut File, note: &[u8]) -> io::Result<()> {
    lock.set_len(0)?;
    lock.seek(SeekFrom::Start(0))?;
    lock.write_all(note)?;
    lock.sync_all()
}

/// Writes the database's mark into the lock file, after a checkpoint of the WAL.
pub(crate) fn note(conn: &Connection, lock: &mut File) -> io::Result<()> {
    // While another process reads the WAL, the mark may not be in the database file yet.
    let busy = conn.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |row| row.get::<_, i64>(0));
    let Ok(0) = busy else { return Ok(()) };
    let Ok(Some(mark)) = schema::meta(conn, MARK) else { return Ok(()) };
    write(lock, &mark)
}
