//! Checks whether a store would open, without changes: creates no file and locks none.
//!
//! Invariant: `open` refuses everything that is refused here. It may refuse more: of a database
//! that has a WAL, because it is in use or was not shut down cleanly, only the key is checked.

use std::fs;
use std::io;
use std::path::Path;

use percent_encoding::{NON_ALPHANUMERIC, percent_encode};
use rusqlite::{Connection, OpenFlags};
use weir_common::config::files;

use crate::store::encryption::Sealer;
use crate::store::sqlite::key_file::{self, KeyError};
use crate::store::sqlite::open::{self, OpenError, key};
use crate::store::sqlite::wal::owner::has_log;

/// A store that would open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Previewed {
    /// Its key is the right one, or it has none yet.
    WithKey,
    /// Whether its key is the right one cannot be read now.
    WithoutKey,
}

/// Why `open` would fail with the database at `path` and the key at `key_path`.
pub(crate) fn would_open(path: &Path, key_path: &Path) -> Result<Previewed, OpenError> {
    let unusable = |source| OpenError::Folder { path: path.to_owned(), source };
    match fs::metadata(path) {
        Ok(_) => {}
        Err(why) if why.kind() == io::ErrorKind::NotFound => {
            open::refuse_dangling_link(path)?;
            open::refuse_log_alone(path)?;
            files::may_make(path).map_err(unusable)?;
            sealer_in(key_path)?;
            return Ok(Previewed::WithKey);
        }
        Err(why) => return Err(unusable(why)),
    }
    let path = open::resolve(path)?;
    let writable = fs::OpenOptions::new().read(true).append(true).open(&path);
    writable.map_err(unusable)?;
    // The lock file, the WAL and its index are created beside the database.
    files::may_make(&path).map_err(unusable)?;
    open::refuse_log_alone(&path)?;
    open::refuse_special_files(&path)?;
    let lock = open::lock_of(&path);
    match fs::OpenOptions::new().read(true).append(true).open(&lock) {
        Ok(mut lock) => open::refuse_foreign_log(&path, &mut lock)?,
        Err(why) if why.kind() == io::ErrorKind::NotFound => {}
        Err(source) => return Err(OpenError::Folder { path: lock, source }),
    }
    let sealer = sealer_in(key_path)?;
    if has_log(&path) {
        return beside_log(&path, sealer, key_path);
    }
    let sqlite = |source| OpenError::Sqlite { path: path.clone(), source };
    let conn = unchanging(&path).map_err(sqlite)?;
    open::check_application_id(&path, &conn)?;
    let Some(check) = key::key_check(&conn).map_err(sqlite)? else { return Ok(Previewed::WithKey) };
    let sealer = sealer.ok_or_else(|| KeyError::Gone { path: key_path.to_owned() })?;
    key::key_of(&path, &check, sealer, key_path).map(|_| Previewed::WithKey)
}

/// Checks the key of a database with a WAL. That is part of the database, and only the process that
/// has the database open may read it; the file alone has the check value since its first start.
fn beside_log(
    path: &Path,
    sealer: Option<Sealer>,
    key_path: &Path,
) -> Result<Previewed, OpenError> {
    let sealer = sealer.ok_or_else(|| KeyError::Gone { path: key_path.to_owned() })?;
    let read = || unchanging(path).and_then(|conn| key::key_check(&conn)).ok().flatten();
    // Another process may write it: what is the same twice was read whole.
    let Some(check) = read().filter(|check| read().as_ref() == Some(check)) else {
        return Ok(Previewed::WithoutKey);
    };
    match key::key_of(path, &check, sealer, key_path) {
        Ok(_) => Ok(Previewed::WithKey),
        // A rotation that replaced this key may be in the WAL.
        Err(OpenError::WrongKey { .. }) if is_former(key_path, &check) => Ok(Previewed::WithoutKey),
        Err(why) => Err(why),
    }
}

/// Whether a check value opens with the key that a rotation has replaced.
fn is_former(key_path: &Path, check: &[u8]) -> bool {
    key::opened_by(&key_file::former_of(key_path), check).is_ok_and(|key| key.is_some())
}

/// The key, or `None` if a start would create one.
fn sealer_in(path: &Path) -> Result<Option<Sealer>, KeyError> {
    match key_file::read_or_make(path, false) {
        Ok(key) => Ok(Some(Sealer::new(&key))),
        Err(KeyError::Gone { .. }) => {
            let unmade = |source| KeyError::Make { path: path.to_owned(), source };
            files::may_make(path).map_err(unmade).map(|()| None)
        }
        Err(why) => Err(why),
    }
}

/// A connection that creates no files. SQLite otherwise creates some beside the database also for
/// readers; created by root, they would not be accessible to the user that runs the program.
fn unchanging(path: &Path) -> rusqlite::Result<Connection> {
    use std::os::unix::ffi::OsStrExt as _;
    let name = percent_encode(path.as_os_str().as_bytes(), NON_ALPHANUMERIC);
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY
        | OpenFlags::SQLITE_OPEN_NO_MUTEX
        | OpenFlags::SQLITE_OPEN_URI;
    Connection::open_with_flags(format!("file:{name}?immutable=1"), flags)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use weir_common::time::{Clock, UnixTime};

    use super::*;
    use crate::store::Upkeep;
    use crate::store::sqlite::SqliteStore;
    use crate::store::sqlite::tests::{Folder, at_once, pipe, webhook};

    fn made(folder: &Folder, database: &str, key: &str) {
        let clock = Clock::manual(UnixTime(1));
        let opened = SqliteStore::open(&folder.path(database), &folder.path(key), clock);
        drop(opened.unwrap());
    }

    fn message(folder: &Folder, database: &str, key: &str) -> String {
        let would = would_open(&folder.path(database), &folder.path(key));
        would.map_or_else(
            |why| why.to_string(),
            |key| match key {
                Previewed::WithKey => "it opens".to_owned(),
                Previewed::WithoutKey => "it may open".to_owned(),
            },
        )
    }

    #[test]
    fn what_would_open_is_left_as_it_is() {
        let folder = Folder::new();
        assert_eq!(message(&folder, "new/dispatcher.db", "new/secrets.key"), "it opens");
        assert!(!folder.path("new").exists());
        made(&folder, "dispatcher.db", "secrets.key");
        let files = || fs::read_dir(folder.path(".")).unwrap().count();
        let before = files();
        assert_eq!(message(&folder, "dispatcher.db", "secrets.key"), "it opens");
        assert_eq!(files(), before);
    }

    #[test]
    fn what_a_start_would_refuse_is_reported() {
        let folder = Folder::new();
        made(&folder, "dispatcher.db", "secrets.key");
        made(&folder, "other.db", "other.key");
        fs::write(folder.path("text.db"), "not a database, but longer than a page's header")
            .unwrap();
        for (database, key, expected) in [
            ("dispatcher.db", "other.key", "sealed with another key"),
            ("dispatcher.db", "gone.key", "is gone"),
            ("dispatcher.db", "text.db", "the key file"),
            ("text.db", "secrets.key", "not a database of weir-dispatcher"),
            ("text.db/below.db", "secrets.key", "cannot use"),
            ("new.db", "text.db/below.key", "key file"),
        ] {
            let message = message(&folder, database, key);
            assert!(message.contains(expected), "{database} with {key}: {message}");
        }
    }

    #[test]
    fn files_of_another_kind_dangling_links_and_missing_tables_are_reported() {
        let folder = Folder::new();
        for name in ["lock.db", "shm.db", "wal.db", "table.db"] {
            made(&folder, name, "secrets.key");
        }
        fs::remove_file(folder.path("lock.db.lock")).unwrap();
        pipe(&folder.path("lock.db.lock"));
        fs::create_dir(folder.path("shm.db-shm")).unwrap();
        fs::create_dir(folder.path("wal.db-wal")).unwrap();
        symlink(folder.path("gone/dispatcher.db"), folder.path("link.db")).unwrap();
        let damaged = Connection::open(folder.path("table.db")).unwrap();
        damaged.execute_batch("DROP TABLE transcripts").unwrap();
        drop(damaged);
        for (database, expected) in [
            ("lock.db", "lock.db.lock: not a regular file"),
            ("shm.db", "shm.db-shm: not a regular file"),
            ("wal.db", "wal.db-wal: not a regular file"),
            ("link.db", "gone/dispatcher.db, whose folder is missing"),
            ("table.db", "has no table `transcripts`"),
        ] {
            let message = message(&folder, database, "secrets.key");
            assert!(message.contains(expected), "{database}: {message}");
            let [path, key] = [database, "secrets.key"].map(|name| folder.path(name));
            let refused =
                at_once(move || SqliteStore::open(&path, &key, Clock::manual(UnixTime(1))).err());
            assert_eq!(refused.map(|why| why.to_string()), Some(message), "as a start says");
        }
    }

    #[tokio::test]
    async fn a_key_is_checked_also_while_the_database_is_in_use_and_after_a_crash() {
        let folder = Folder::new();
        let [path, key] = ["dispatcher.db", "secrets.key"].map(|name| folder.path(name));
        made(&folder, "other.db", "other.key");
        let store = SqliteStore::open(&path, &key, Clock::manual(UnixTime(1))).unwrap();
        webhook(&store).await;
        // As a crash leaves it.
        for name in ["crashed.db", "crashed.db-wal"] {
            fs::copy(folder.path(&name.replace("crashed", "dispatcher")), folder.path(name))
                .unwrap();
        }
        for database in ["dispatcher.db", "crashed.db"] {
            assert!(has_log(&folder.path(database)), "{database}");
            for (key, expected) in [
                ("secrets.key", "it opens"),
                ("other.key", "sealed with another key"),
                ("gone.key", "is gone"),
            ] {
                let message = message(&folder, database, key);
                assert!(message.contains(expected), "{database} with {key}: {message}");
            }
        }
        // What a rotation leaves until its commit is in the file, which the WAL may have.
        fs::rename(&key, folder.path("kept.key")).unwrap();
        fs::copy(folder.path("other.key"), &key).unwrap();
        fs::rename(folder.path("kept.key"), key_file::former_of(&key)).unwrap();
        assert_eq!(message(&folder, "dispatcher.db", "secrets.key"), "it may open");
        store.close().await.unwrap();
    }

    #[tokio::test]
    async fn a_wal_of_another_database_is_reported_and_left_unchanged() {
        let folder = Folder::new();
        let [path, key] = ["dispatcher.db", "secrets.key"].map(|name| folder.path(name));
        let store = SqliteStore::open(&path, &key, Clock::manual(UnixTime(1))).unwrap();
        assert_eq!(
            message(&folder, "dispatcher.db", "secrets.key"),
            "it opens",
            "while it is open"
        );
        store.close().await.unwrap();
        drop(store);
        for (database, expected) in
            [("dispatcher.db", "is not of the database"), ("new.db", "there is no database at")]
        {
            let log = folder.path(&format!("{database}-wal"));
            fs::write(&log, "junk").unwrap();
            let message = message(&folder, database, "secrets.key");
            assert!(message.contains(expected), "{database}: {message}");
            let clock = Clock::manual(UnixTime(1));
            let refused = SqliteStore::open(&folder.path(database), &key, clock);
            assert_eq!(refused.err().map(|why| why.to_string()), Some(message), "as a start says");
            assert_eq!(fs::read(&log).unwrap(), b"junk");
        }
    }
}
