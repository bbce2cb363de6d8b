//! Replaces the key, by one that is made or that the operator provides.
//!
//! The next key lies beside the key file before the database is sealed with it, in one commit, and
//! is then renamed over it. Between those two a start finds that the key file does not open the
//! database, and that the one beside it does, and renames it (`open`).

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use weir_common::secret::Secret;

use crate::store::encryption::{KEY_BYTES, Sealer};
use crate::store::sqlite::file_owner::keep_owner;
use crate::store::sqlite::key_file::{self, KeyError, folder_of, former_of, next_of, sync_folder};
use crate::store::sqlite::open::key::{self, KeyFound};
use crate::store::sqlite::rekey::{LockedDatabase, RekeyError, sealed, set_check};

/// What a rotation did, or a dry run would do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RotationReport {
    /// Webhooks were sealed with another key.
    Sealed {
        /// How many.
        webhooks: u64,
        /// Where the key before is.
        former: PathBuf,
    },
    /// A rotation that was cut off after its commit has its key in place.
    Finished,
}

/// Seals the secrets of the database at `path` with another key than that in `key_path`, and
/// replaces the key file.
///
/// # Errors
///
/// If the database is in use, or sealed with another key; if a webhook's secrets do not open.
pub fn rotate(path: &Path, key_path: &Path, dry_run: bool) -> Result<RotationReport, RekeyError> {
    if dry_run {
        return dry(path, key_path);
    }
    rotate_by_steps(path, key_path, &|_| Ok(()))
}

fn dry(path: &Path, key_path: &Path) -> Result<RotationReport, RekeyError> {
    let database = LockedDatabase::open(path, true)?;
    let sealer = match key::check_key(&database.path, &database.conn, key_path)? {
        KeyFound::Next(_) => return Ok(RotationReport::Finished),
        KeyFound::Current(sealer) => sealer,
    };
    let former = check_former(key_path)?;
    let mut webhooks = 0;
    sealed::each(&database, |row| {
        webhooks += 1;
        if row.opens(&sealer) { Ok(()) } else { Err(database.damaged(&row)) }
    })?;
    Ok(RotationReport::Sealed { webhooks, former })
}

/// As [`rotate`]; `before` runs before each step, and may fail it.
pub(in crate::store::sqlite) fn rotate_by_steps(
    path: &Path,
    key_path: &Path,
    before: &dyn Fn(usize) -> io::Result<()>,
) -> Result<RotationReport, RekeyError> {
    let database = LockedDatabase::open(path, false)?;
    let at = |nth, path: &Path| {
        before(nth).map_err(|source| RekeyError::File { path: path.to_owned(), source })
    };
    let old = match key::check_key(&database.path, &database.conn, key_path)? {
        KeyFound::Next(_) => {
            key_file::put_next_in_place(key_path)?;
            database.close()?;
            return Ok(RotationReport::Finished);
        }
        KeyFound::Current(sealer) => sealer,
    };
    let former = check_former(key_path)?;
    let next = next_of(key_path);
    at(0, &next)?;
    // One that is there is used: it may be the operator's, or of a rotation that was cut off.
    let made = key_file::read_or_make(&next, true)?;
    if key::opens(&Sealer::new(&made), &database.check) {
        return Err(RekeyError::Same { path: next });
    }
    at(1, &next)?;
    keep_owner(key_path, &[&next])?;
    at(2, &former)?;
    keep(key_path, &former).map_err(|source| RekeyError::File { path: former.clone(), source })?;
    at(3, &database.path)?;
    let webhooks = seal_all(&database, &old, &made)?;
    at(4, key_path)?;
    key_file::put_next_in_place(key_path)?;
    at(5, &database.path)?;
    database.close()?;
    Ok(RotationReport::Sealed { webhooks, former })
}

/// Where the present key will be kept, unless another one is there.
fn check_former(key_path: &Path) -> Result<PathBuf, RekeyError> {
    let former = former_of(key_path);
    match key_file::read_or_make(&former, false) {
        Err(KeyError::Gone { .. }) => Ok(former),
        // A rotation that was cut off has left it.
        Ok(key) if key == key_file::read_or_make(key_path, false)? => Ok(former),
        Ok(_) | Err(_) => Err(RekeyError::Left { path: former }),
    }
}

/// Gives the present key a second name, which it keeps.
fn keep(key_path: &Path, former: &Path) -> io::Result<()> {
    match fs::hard_link(key_file::real(key_path), former) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
        _ => sync_folder(folder_of(former)),
    }
}

/// Seals everything with another key, in one commit.
fn seal_all(
    database: &LockedDatabase,
    old: &Sealer,
    key: &Secret<[u8; KEY_BYTES]>,
) -> Result<u64, RekeyError> {
    let new = Sealer::new(key);
    let failed = |error: rusqlite::Error| database.failed(error);
    let change = database.conn.unchecked_transaction().map_err(failed)?;
    let mut webhooks = 0;
    sealed::each(database, |mut row| {
        webhooks += 1;
        if !row.opens(old) {
            return Err(database.damaged(&row));
        }
        let anew = row.seal_anew(old, &new).and_then(|()| row.write(&change));
        anew.map_err(|fault| database.failed(fault))
    })?;
    set_check(&change, &new).map_err(|fault| database.failed(fault))?;
    // A thief of the key could open sessions.
    change.execute("DELETE FROM sessions", []).map_err(failed)?;
    change.commit().map_err(failed)?;
    Ok(webhooks)
}
