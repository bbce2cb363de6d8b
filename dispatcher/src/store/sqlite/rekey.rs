//! Seals a database with another key: what a rotation and a recovery share.
//!
//! # Invariants
//!
//! 1. The database is locked: no dispatcher runs meanwhile.
//! 2. Whenever the process is killed, the key file, or the one beside it that a start looks for,
//!    opens the database; or a recovery was cut off, and can be started again.
//! 3. A dry run writes nothing.

pub mod recovery;
pub mod rotation;
mod sealed;

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use rusqlite::Connection;

use crate::domain::public_id::PublicIds;
use crate::store::encryption::{NONCE_BYTES, Sealer};
use crate::store::sqlite::backup::BackupError;
use crate::store::sqlite::error::Fault;
use crate::store::sqlite::file_owner::{OwnerError, keep_owner};
use crate::store::sqlite::key_file::KeyError;
use crate::store::sqlite::migrations::VERSION;
use crate::store::sqlite::open::key::{self, CHECKED, KEY_CHECK};
use crate::store::sqlite::open::startup::PUBLIC_ID_KEY;
use crate::store::sqlite::open::{self, OpenError};
use crate::store::sqlite::pragmas::prepare;
use crate::store::sqlite::rekey::sealed::SealedRow;
use crate::store::sqlite::wal::owner;
use crate::store::sqlite::{schema, webhooks};

/// Why the key was not changed. Unless the error says otherwise, nothing is.
#[derive(Debug, thiserror::Error)]
pub enum RekeyError {
    /// The database or the key cannot be used.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The user that runs the program could not open a file.
    #[error(transparent)]
    Owner(#[from] OwnerError),
    /// The database cannot be copied.
    #[error(transparent)]
    Copy(#[from] BackupError),
    /// A file that would be made exists.
    #[error("{} is there already, from an earlier run: move it elsewhere first", path.display())]
    Left {
        /// The file.
        path: PathBuf,
    },
    /// The next key is the one that the database has.
    #[error("{} has the key that is replaced: remove it, and a new one is made", path.display())]
    Same {
        /// The file with the next key.
        path: PathBuf,
    },
    /// A file beside the key file has the database's key.
    #[error(
        "the key of this database is in {}: nothing is lost, rename it to {}",
        path.display(), key_file.display()
    )]
    Elsewhere {
        /// The file.
        path: PathBuf,
        /// Where a start looks for it.
        key_file: PathBuf,
    },
    /// A webhook's secrets do not open with the database's key.
    #[error(
        "the secrets of {webhook} of {workspace} are damaged, and cannot be sealed with another \
         key: `weir-dispatcher recover-key` disables it until it has a new secret"
    )]
    Damaged {
        /// The webhook's public identifier.
        webhook: String,
        /// Its workspace.
        workspace: String,
    },
    /// Every secret opens.
    #[error("nothing is lost: the key file {} opens every secret", key_file.display())]
    NothingLost {
        /// The key file.
        key_file: PathBuf,
    },
    /// A dry run does not migrate.
    #[error(
        "the database {} is of an earlier version: start the program once, or leave --dry-run \
         away, which migrates it",
        path.display()
    )]
    Earlier {
        /// The database.
        path: PathBuf,
    },
    /// A file cannot be made.
    #[error("cannot make {}: {source}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The database cannot be read or written.
    #[error("cannot change the secrets in {}: {cause}", path.display())]
    Store {
        /// The database.
        path: PathBuf,
        /// Why.
        cause: String,
    },
}

impl From<KeyError> for RekeyError {
    fn from(error: KeyError) -> Self {
        Self::Open(error.into())
    }
}

/// The database, locked, with its connection.
struct LockedDatabase {
    path: PathBuf,
    conn: Connection,
    lock: File,
    check: Vec<u8>,
}

impl LockedDatabase {
    /// Opens an existing database; a run that is not dry migrates it.
    fn open(path: &Path, dry_run: bool) -> Result<Self, RekeyError> {
        if !path.is_file() {
            return Err(OpenError::Absent { path: path.to_owned() }.into());
        }
        let path = open::resolve(path)?;
        let (mut conn, mut lock) = open::connect(&path)?;
        keep_owner(&path, &[&open::lock_of(&path)])?;
        let failed = |source| OpenError::Sqlite { path: path.clone(), source };
        let Some(check) = key::key_check(&conn).map_err(failed)? else {
            return Err(OpenError::Empty { path }.into());
        };
        let version = conn.pragma_query_value(None, "user_version", |row| row.get::<_, i64>(0));
        if dry_run {
            // Without a WAL of before, SQLite removes the empty one that it has made.
            let has_log = owner::has_log(&path);
            open::checkpoint_on_close(&conn, !has_log).map_err(failed)?;
            if version.map_err(failed)? < VERSION {
                return Err(RekeyError::Earlier { path });
            }
        } else {
            open::checkpoint_on_close(&conn, true).map_err(failed)?;
            owner::forget(&mut lock).map_err(|source| open::unusable(&path, source))?;
            prepare(&mut conn).map_err(failed)?;
            // What is sealed anew leaves nothing of its earlier form in the file.
            conn.pragma_update(None, "secure_delete", true).map_err(failed)?;
        }
        Ok(Self { path, conn, lock, check })
    }

    fn failed(&self, fault: impl Into<Fault>) -> RekeyError {
        RekeyError::Store { path: self.path.clone(), cause: fault.into().to_string() }
    }

    /// The public identifiers, which the key does not change.
    fn ids(&self) -> Result<PublicIds, RekeyError> {
        let key = schema::meta(&self.conn, PUBLIC_ID_KEY).map_err(|error| self.failed(error))?;
        let key = key.and_then(|key| <[u8; 32]>::try_from(key).ok());
        let missing = || self.failed(Fault::Damaged("the key of public identifiers".to_owned()));
        key.map(PublicIds::new).ok_or_else(missing)
    }

    fn damaged(&self, row: &SealedRow) -> RekeyError {
        match self.ids() {
            Ok(ids) => RekeyError::Damaged {
                webhook: ids.webhook(row.id),
                workspace: row.workspace.clone(),
            },
            Err(why) => why,
        }
    }

    /// Checkpoints the WAL and closes.
    fn close(self) -> Result<(), RekeyError> {
        let Self { path, conn, mut lock, .. } = self;
        let failed = |source| OpenError::Sqlite { path: path.clone(), source };
        conn.close().map_err(|(_, source)| failed(source))?;
        owner::closed(&path, &mut lock).map_err(|source| open::unusable(&path, source))?;
        Ok(())
    }
}

/// Stores the value that tells which key a database is sealed with.
fn set_check(conn: &Connection, sealer: &Sealer) -> Result<(), Fault> {
    let nonce: [u8; NONCE_BYTES] =
        webhooks::nonce().map_err(|error| Fault::Damaged(error.to_string()))?;
    Ok(schema::set_meta(conn, KEY_CHECK, &sealer.seal(CHECKED.0, CHECKED.1, nonce))?)
}
