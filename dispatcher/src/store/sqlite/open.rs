//! Opens the database, unless it is in use, foreign, too new, or sealed with another key.

pub(super) mod key;
pub(super) mod startup;

use std::fs::{self, File, TryLockError};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use log::Level;
use rusqlite::config::DbConfig;
use rusqlite::{Connection, ErrorCode};
use weir_common::log::events;
use weir_common::time::{Clock, UnixTime};

use crate::domain::public_id::PublicIds;
use crate::store::encryption::Sealer;
use crate::store::sqlite::file_identity::FileIdentity;
use crate::store::sqlite::key_file::{self, KeyError};
use crate::store::sqlite::open::key::{KeyFound, check_key};
use crate::store::sqlite::open::startup::{Began, begin};
use crate::store::sqlite::pragmas::{ConnectionHook, LOG_BYTES_MAX, prepare};
use crate::store::sqlite::schema::{self, Found};
use crate::store::sqlite::steady_clock::{SetAhead, Steady};
use crate::store::sqlite::unfinished_restore::{aside_of, is_cut_off, left_beside};
use crate::store::sqlite::wal::limit::WalLimit;
use crate::store::sqlite::wal::owner;
use crate::store::sqlite::writer::session::WriteSession;

/// Why a store does not open. Nothing was changed.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// A file or its folder cannot be created, read or written.
    #[error("cannot use {}: {source}", path.display())]
    Folder {
        /// What cannot be used.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Another process has it open.
    #[error("the database {} is in use by another process", path.display())]
    InUse {
        /// The database.
        path: PathBuf,
    },
    /// It has hard links: another process may have it open under another name, with another lock
    /// file and another WAL.
    #[error(
        "the database {} has {names} names (hard links); remove all but one",
        path.display()
    )]
    Linked {
        /// The database.
        path: PathBuf,
        /// The number of its hard links.
        names: u64,
    },
    /// A restore that was interrupted left it with a second name.
    #[error(
        "a restore of {0} was cut off, and {0} is as it was before: run `weir-dispatcher restore \
         --replace` again; or keep what is there: move {1}-wal, if there is one, to {0}-wal, and \
         then remove {1}",
        path.display(), aside.display()
    )]
    CutOff {
        /// The database.
        path: PathBuf,
        /// Its second name.
        aside: PathBuf,
    },
    /// There is no database, but files of an interrupted restore.
    #[error(
        "there is no database at {0}, but a restore left {1}: run `weir-dispatcher restore` \
         again, or move {0}.before-restore back with its -wal; to begin with nothing, move what \
         the restore left elsewhere",
        path.display(), left.display()
    )]
    LeftByRestore {
        /// Where the database should be.
        path: PathBuf,
        /// The file that it left.
        left: PathBuf,
    },
    /// Nothing was ever written to it.
    #[error("{} is empty: it is no database and no backup of weir-dispatcher", path.display())]
    Empty {
        /// The file.
        path: PathBuf,
    },
    /// It belongs to another program.
    #[error("{} is not a database of weir-dispatcher; it was left as it is", path.display())]
    Foreign {
        /// The file.
        path: PathBuf,
    },
    /// It was damaged, or another program changed it.
    #[error("the database {} has no table `{table}`: restore a backup", path.display())]
    Incomplete {
        /// The database.
        path: PathBuf,
        /// What it does not have.
        table: &'static str,
    },
    /// The file does not exist.
    #[error("there is no database at {}", path.display())]
    Absent {
        /// Where it should be.
        path: PathBuf,
    },
    /// A later version of this program wrote it.
    #[error(
        "the database {} is of schema {version}, and this program knows {known} at most: \
         run the version that wrote it, or a later one",
        path.display()
    )]
    Newer {
        /// The database.
        path: PathBuf,
        /// Its schema version.
        version: i64,
        /// The latest version that this program knows.
        known: i64,
    },
    /// The WAL beside it belongs to a database that was at this path before.
    #[error(
        "{} is not of the database {}: it was left by the one that was there before. Move it and \
         the -shm beside it away to start without it, or put that database back (if you are \
         sure that the two belong together, remove the .lock file)",
        log.display(), path.display()
    )]
    ForeignLog {
        /// The database.
        path: PathBuf,
        /// The WAL.
        log: PathBuf,
    },
    /// There is no database, but the WAL of one.
    #[error(
        "there is no database at {}, but {} was left by one: put the database back, or move the \
         -wal and -shm away to begin with nothing",
        path.display(), log.display()
    )]
    LogAlone {
        /// Where the database should be.
        path: PathBuf,
        /// The WAL.
        log: PathBuf,
    },
    /// The key file cannot be used.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// The secrets were sealed with another key.
    #[error(
        "the secrets in the database {} were sealed with another key than the one in {}: \
         put back the key file that belongs to it, or, if there is no copy, see \
         `weir-dispatcher recover-key --help`",
        path.display(), key_file.display()
    )]
    WrongKey {
        /// The database.
        path: PathBuf,
        /// The key file.
        key_file: PathBuf,
    },
    /// SQLite returned an error.
    #[error("cannot open the database {}: {source}", path.display())]
    Sqlite {
        /// The database.
        path: PathBuf,
        /// Why.
        source: rusqlite::Error,
    },
}

/// An open store, before its threads start.
pub(super) struct Opened {
    pub(super) session: WriteSession,
    pub(super) lock: File,
    pub(super) facts: Facts,
}

/// Facts about an open store that do not change.
pub(super) struct Facts {
    /// The canonical path.
    pub(super) path: PathBuf,
    pub(super) ids: PublicIds,
    pub(super) clean_shutdown: bool,
    pub(super) unclean_shutdowns: Vec<UnixTime>,
    pub(super) sealer: Sealer,
    pub(super) steady: Steady,
    pub(super) set_ahead: SetAhead,
}

/// Creates an empty file with mode 0600, if there is none: it will contain bodies of events. SQLite
/// gives the files beside it the same mode.
pub(super) fn private(path: &Path) -> io::Result<()> {
    let mut options = fs::OpenOptions::new();
    options.create(true).append(true).mode(0o600);
    options.open(path).map(drop)
}

/// Opens the database at `path`, creating missing files; calls `hook` with its connection.
pub(super) fn open(
    path: &Path,
    key_path: &Path,
    clock: Clock,
    hook: &ConnectionHook,
) -> Result<Opened, OpenError> {
    let path = &make(path)?;
    let (mut conn, mut lock) = connect(path)?;
    let sqlite = |source| OpenError::Sqlite { path: path.clone(), source };
    let unread = |source| unusable(path, source);
    let sealer = match check_key(path, &conn, key_path)? {
        KeyFound::Current(sealer) => sealer,
        KeyFound::Next(sealer) => {
            key_file::put_next_in_place(key_path)?;
            events::event(Level::Info, "key rotation finished", &[]);
            sealer
        }
    };
    checkpoint_on_close(&conn, true).map_err(sqlite)?;
    owner::forget(&mut lock).map_err(unread)?;
    prepare(&mut conn).and_then(|()| hook(&mut conn)).map_err(sqlite)?;
    let began = begin(&conn, &sealer, &clock).map_err(sqlite)?;
    owner::note(&conn, &mut lock).map_err(unread)?;
    let folder = key_file::folder_of(path);
    key_file::sync_folder(folder).map_err(|source| unusable(folder, source))?;
    let wal = WalLimit::of(LOG_BYTES_MAX.unsigned_abs());
    let files = FileIdentity::of(path).map_err(unread)?;
    let Began { ids, clean_shutdown, unclean_shutdowns, counters, steady, set_ahead } = began;
    let facts = Facts {
        path: path.clone(),
        ids,
        clean_shutdown,
        unclean_shutdowns,
        sealer: sealer.clone(),
        steady: steady.clone(),
        set_ahead,
    };
    let session = WriteSession { conn, sealer, clock, counters, steady, job_turn: 0, wal, files };
    Ok(Opened { session, lock, facts })
}

/// Locks and opens the database at a canonical path. Until [`checkpoint_on_close`] allows it,
/// closing the connection leaves the WAL as it is: by default, SQLite would checkpoint it, even
/// that of another database, into this one and overwrite it.
pub(super) fn connect(path: &Path) -> Result<(Connection, File), OpenError> {
    let mut lock = lock(path)?;
    let sqlite = |source| OpenError::Sqlite { path: path.to_owned(), source };
    refuse_foreign_log(path, &mut lock)?;
    private(path).map_err(|source| unusable(path, source))?;
    let conn = Connection::open(path).map_err(sqlite)?;
    checkpoint_on_close(&conn, false).map_err(sqlite)?;
    check_application_id(path, &conn)?;
    Ok((conn, lock))
}

/// Sets whether SQLite checkpoints the WAL when the last connection closes.
pub(super) fn checkpoint_on_close(conn: &Connection, checkpoint: bool) -> rusqlite::Result<()> {
    conn.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, !checkpoint).map(drop)
}

/// Refuses a foreign or newer database before anything is written to it.
pub(super) fn check_application_id(path: &Path, conn: &Connection) -> Result<(), OpenError> {
    let path = path.to_owned();
    match schema::look(conn) {
        Ok(Found::Ours) => Ok(()),
        Ok(Found::Foreign) => Err(OpenError::Foreign { path }),
        Ok(Found::Incomplete { table }) => Err(OpenError::Incomplete { path, table }),
        Ok(Found::Newer { version, known }) => Err(OpenError::Newer { path, version, known }),
        Err(rusqlite::Error::SqliteFailure(error, _)) if error.code == ErrorCode::NotADatabase => {
            Err(OpenError::Foreign { path })
        }
        Err(source) => Err(OpenError::Sqlite { path, source }),
    }
}

pub(super) fn unusable(path: &Path, source: io::Error) -> OpenError {
    OpenError::Folder { path: path.to_owned(), source }
}

/// Creates an empty file if none exists, and returns its path.
fn make(path: &Path) -> Result<PathBuf, OpenError> {
    let folder = key_file::folder_of(path);
    fs::create_dir_all(folder).map_err(|source| unusable(folder, source))?;
    // Opens only what is absent: opening a named pipe would block until it has a reader.
    if fs::metadata(path).is_err() {
        refuse_dangling_link(path)?;
        refuse_log_alone(path)?;
        private(path).map_err(|source| unusable(path, source))?;
    }
    let path = resolve(path)?;
    refuse_log_alone(&path)?;
    Ok(path)
}

/// Refuses a WAL, or files of a restore, without a database: beside a new or empty database, SQLite
/// would delete the WAL.
pub(super) fn refuse_log_alone(path: &Path) -> Result<(), OpenError> {
    let there = fs::metadata(path).is_ok_and(|file| file.len() > 0);
    if !there && owner::has_log(path) {
        let (path, log) = (path.to_owned(), owner::log_of(path));
        return Err(OpenError::LogAlone { path, log });
    }
    match left_beside(path) {
        Some(left) if !there => Err(OpenError::LeftByRestore { path: path.to_owned(), left }),
        _ => Ok(()),
    }
}

/// Refuses the WAL of another database, which would restore part of that database's state.
pub(super) fn refuse_foreign_log(path: &Path, lock: &mut File) -> Result<(), OpenError> {
    if owner::is_foreign(path, lock).map_err(|source| unusable(path, source))? {
        let (path, log) = (path.to_owned(), owner::log_of(path));
        return Err(OpenError::ForeignLog { path, log });
    }
    Ok(())
}

/// Refuses a symbolic link into a folder that does not exist, where no file can be made.
pub(super) fn refuse_dangling_link(path: &Path) -> Result<(), OpenError> {
    let target = fs::read_link(path).map(|target| key_file::folder_of(path).join(target));
    match target {
        Ok(target) if !key_file::folder_of(&target).is_dir() => {
            let why = format!("it is a link to {}, whose folder is missing", target.display());
            Err(unusable(path, io::Error::new(io::ErrorKind::NotFound, why)))
        }
        _ => Ok(()),
    }
}

/// Refuses what is no file in the place of the lock file, of the WAL or of its index.
pub(super) fn refuse_special_files(path: &Path) -> Result<(), OpenError> {
    let beside = [lock_of(path), owner::log_of(path), key_file::with_ending(path, "-shm")];
    let is_special = |name: &&PathBuf| fs::metadata(name).is_ok_and(|file| !file.is_file());
    beside.iter().find(is_special).map_or(Ok(()), |name| Err(special(name)))
}

fn special(path: &Path) -> OpenError {
    unusable(path, io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"))
}

/// The path of a database without symbolic links, from which the lock file and the WAL have their
/// names.
pub(super) fn resolve(path: &Path) -> Result<PathBuf, OpenError> {
    let file = fs::metadata(path).map_err(|source| unusable(path, source))?;
    if !file.is_file() {
        return Err(special(path));
    }
    let path = fs::canonicalize(path).map_err(|source| unusable(path, source))?;
    match file.nlink() {
        0 | 1 => Ok(path),
        _ if is_cut_off(&path) => {
            let aside = aside_of(&path);
            Err(OpenError::CutOff { path, aside })
        }
        names => Err(OpenError::Linked { path, names }),
    }
}

/// The lock file of a database.
pub(super) fn lock_of(path: &Path) -> PathBuf {
    key_file::with_ending(path, ".lock")
}

/// Locks the file beside the database. The lock belongs to the open file, so that it ends with the
/// process, even after a crash.
pub(super) fn lock(path: &Path) -> Result<File, OpenError> {
    refuse_special_files(path)?;
    let name = lock_of(path);
    let mut options = File::options();
    options.create(true).truncate(false).read(true).write(true).mode(0o600);
    let file = options.open(&name).map_err(|source| unusable(&name, source))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(OpenError::InUse { path: path.to_owned() }),
        Err(TryLockError::Error(source)) => Err(unusable(&name, source)),
    }
}
