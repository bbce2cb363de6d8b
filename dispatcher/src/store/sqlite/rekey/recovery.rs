//! A way back from a lost key: everything stays but what was sealed with it.
//!
//! A webhook whose secrets do not open is stopped until its owner makes a new one; what waits for
//! it stays queued, and its owners get a mail, in the same commit. Before that commit the database
//! is copied: should the key turn up, the copy opens with it.

use std::fs;
use std::path::{Path, PathBuf};

use weir_common::time::UnixTime;

use crate::domain::id::WebhookId;
use crate::store::encryption::Sealer;
use crate::store::mail::QueuedMail;
use crate::store::sqlite::backup::copy_to;
use crate::store::sqlite::error::Fault;
use crate::store::sqlite::file_owner::keep_owner;
use crate::store::sqlite::key_file::{
    self, KeyError, folder_of, former_of, next_of, or_absent, sync_folder, with_ending,
};
use crate::store::sqlite::open::key;
use crate::store::sqlite::rekey::{LockedDatabase, RekeyError, sealed, set_check};
use crate::store::sqlite::{outbox, rows};

/// A webhook whose secrets were lost.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "plain data: the names of fields say what they are")]
pub struct LostSecret {
    pub id: WebhookId,
    /// Its public identifier.
    pub webhook: String,
    pub workspace: String,
    pub url: String,
    /// Whether custom headers were lost with them.
    pub headers: bool,
    /// Whether an Ed25519 key was.
    pub signing_key: bool,
    /// Whether a client certificate was.
    pub certificate: bool,
}

/// Makes the mails about a lost secret.
pub type Mails<'a> = &'a dyn Fn(&LostSecret) -> Vec<QueuedMail>;

/// What a recovery did, or a dry run would do.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RecoveryReport {
    /// Webhooks that need a new secret.
    pub lost: u64,
    /// Webhooks whose secrets open.
    pub kept: u64,
    /// Mails to owners.
    pub mails: u64,
    /// Where the database as it was is.
    pub copy: PathBuf,
}

/// Gives the database at `path` the key in `key_path`, which is made if there is none, and stops
/// the webhooks whose secrets do not open with it, from `now` on.
///
/// # Errors
///
/// If the database is in use; if every secret opens, or the key is in a file beside `key_path`; if
/// a copy from an earlier recovery is there.
pub fn recover(
    path: &Path,
    key_path: &Path,
    mails: Mails<'_>,
    now: UnixTime,
    dry_run: bool,
) -> Result<RecoveryReport, RekeyError> {
    let database = LockedDatabase::open(path, dry_run)?;
    let found = match key_file::read_or_make(key_path, false) {
        Ok(key) => Some(Sealer::new(&key)),
        Err(KeyError::Gone { .. }) => None,
        Err(why) => return Err(why.into()),
    };
    let is_its_key = found.as_ref().is_some_and(|found| key::opens(found, &database.check));
    if !is_its_key {
        refuse_elsewhere(&database, key_path)?;
    }
    let mut lost = Vec::new();
    let mut kept = 0;
    let ids = database.ids()?;
    sealed::each(&database, |row| {
        if found.as_ref().is_some_and(|key| row.opens(key)) {
            kept += 1;
        } else {
            lost.push(LostSecret {
                id: row.id,
                webhook: ids.webhook(row.id),
                workspace: row.workspace,
                url: row.url,
                headers: row.headers.is_some(),
                signing_key: row.signing_key.is_some(),
                certificate: row.certificate.is_some(),
            });
        }
        Ok(())
    })?;
    if is_its_key && lost.is_empty() {
        return Err(RekeyError::NothingLost { key_file: key_path.to_owned() });
    }
    let copy = with_ending(&database.path, ".before-recovery");
    if fs::symlink_metadata(&copy).is_ok() {
        return Err(RekeyError::Left { path: copy });
    }
    let mut report = RecoveryReport { lost: lost.len() as u64, kept, mails: 0, copy };
    let mails: Vec<QueuedMail> = lost.iter().flat_map(mails).collect();
    report.mails = mails.len() as u64;
    if dry_run {
        return Ok(report);
    }
    let sealer = Sealer::new(&key_file::read_or_make(key_path, true)?);
    if found.is_none() {
        keep_owner(&database.path, &[key_path])?;
    }
    keep_copy(&database, &report.copy)?;
    let stop = || -> Result<(), Fault> {
        let change = database.conn.unchecked_transaction()?;
        let sql = "UPDATE webhooks SET secret = x'', secrets_before = NULL, \
            secret_created_at = NULL, headers = NULL, signing_key = NULL, \
            client_certificate = NULL, secret_lost_at = ?2 WHERE id = ?1";
        for LostSecret { id, .. } in &lost {
            change.prepare_cached(sql)?.execute((id.0, rows::at(now)))?;
        }
        mails.iter().try_for_each(|mail| outbox::store(&change, mail, now))?;
        set_check(&change, &sealer)?;
        Ok(change.commit()?)
    };
    stop().map_err(|fault| database.failed(fault))?;
    database.close()?;
    Ok(report)
}

/// Refuses if the key is where a rotation leaves it.
fn refuse_elsewhere(database: &LockedDatabase, key_path: &Path) -> Result<(), RekeyError> {
    for path in [next_of(key_path), former_of(key_path)] {
        if key::opened_by(&path, &database.check)?.is_some() {
            return Err(RekeyError::Elsewhere { path, key_file: key_path.to_owned() });
        }
    }
    Ok(())
}

/// Copies the database as it is.
fn keep_copy(database: &LockedDatabase, copy: &Path) -> Result<(), RekeyError> {
    let draft = with_ending(copy, ".draft");
    let failed = |source| RekeyError::File { path: copy.to_owned(), source };
    // One is left by a recovery that was cut off.
    or_absent(fs::remove_file(&draft)).map_err(failed)?;
    copy_to(&database.conn, &draft)?;
    keep_owner(&database.path, &[&draft])?;
    let placed = fs::rename(&draft, copy).and_then(|()| sync_folder(folder_of(copy)));
    placed.map_err(failed)
}
