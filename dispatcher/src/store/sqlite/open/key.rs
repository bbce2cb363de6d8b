//! Finds the key that a database is sealed with.

use std::path::Path;

use rusqlite::Connection;

use crate::domain::id::WebhookId;
use crate::store::encryption::{Content, Sealer};
use crate::store::sqlite::key_file::{self, KeyError};
use crate::store::sqlite::open::OpenError;
use crate::store::sqlite::schema;

/// The name of a `meta` value: a text that is sealed with the same key as this database's secrets.
pub(in crate::store::sqlite) const KEY_CHECK: &str = "key_check";

/// That text, and the webhook that it is sealed for, which never exists.
pub(in crate::store::sqlite) const CHECKED: ((WebhookId, Content), &str) =
    ((WebhookId(0), Content::Secret), "weir");

/// Where the key of a database is.
pub(in crate::store::sqlite) enum KeyFound {
    /// In the key file.
    Current(Sealer),
    /// Beside it: a rotation was cut off after its commit.
    Next(Sealer),
}

/// Reads the key file, or creates it for a new database; checks that it is this database's key.
pub(in crate::store::sqlite) fn check_key(
    path: &Path,
    conn: &Connection,
    key_path: &Path,
) -> Result<KeyFound, OpenError> {
    let check = key_check(conn);
    let check = check.map_err(|source| OpenError::Sqlite { path: path.to_owned(), source })?;
    let sealer = Sealer::new(&key_file::read_or_make(key_path, check.is_none())?);
    match check {
        Some(check) => key_of(path, &check, sealer, key_path),
        None => Ok(KeyFound::Current(sealer)),
    }
}

/// Finds the key of a database with this check value: it is that of `sealer`, or beside it.
pub(in crate::store::sqlite) fn key_of(
    path: &Path,
    check: &[u8],
    sealer: Sealer,
    key_path: &Path,
) -> Result<KeyFound, OpenError> {
    if opens(&sealer, check) {
        return Ok(KeyFound::Current(sealer));
    }
    if let Some(next) = opened_by(&key_file::next_of(key_path), check)? {
        return Ok(KeyFound::Next(next));
    }
    Err(OpenError::WrongKey { path: path.to_owned(), key_file: key_path.to_owned() })
}

/// The key in a file, if the file exists and the check value opens with it.
pub(in crate::store::sqlite) fn opened_by(
    file: &Path,
    check: &[u8],
) -> Result<Option<Sealer>, KeyError> {
    match key_file::read_or_make(file, false) {
        Ok(key) => Ok(Some(Sealer::new(&key)).filter(|sealer| opens(sealer, check))),
        Err(KeyError::Gone { .. }) => Ok(None),
        Err(why) => Err(why),
    }
}

/// Whether a check value was sealed with this key.
pub(in crate::store::sqlite) fn opens(sealer: &Sealer, check: &[u8]) -> bool {
    sealer.open(CHECKED.0, check).is_ok()
}

/// The sealed check value; `None` in a database that has no tables yet.
pub(in crate::store::sqlite) fn key_check(conn: &Connection) -> rusqlite::Result<Option<Vec<u8>>> {
    let sql = "SELECT 1 FROM sqlite_schema WHERE name = 'meta'";
    let made = conn.prepare(sql)?.exists([])?;
    if made { schema::meta(conn, KEY_CHECK) } else { Ok(None) }
}
