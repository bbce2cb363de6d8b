//! The file of the key that secrets are sealed with: created once, then only read.
//!
//! Invariant: an existing key file is never written to. Without it the secrets are lost. A rotation
//! (`rekey::rotation`) renames a complete one over it, once the database is sealed with that.

use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use weir_common::secret::Secret;

use crate::store::encryption::KEY_BYTES;

/// Why there is no key.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    /// The file cannot be read.
    #[error("cannot read the key file {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The file cannot be created.
    #[error("cannot make the key file {}: {source}", path.display())]
    Make {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The next key cannot be put in its place.
    #[error(
        "cannot put {}.next in the place of the key file {}, though the database is sealed with \
         it: {source}",
        path.display(), path.display()
    )]
    Place {
        /// The key file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The file does not have the size of a key.
    #[error(
        "the key file {} has {found} bytes, not {KEY_BYTES}: put back the one that this database \
         was made with, or move it away if there is no database yet",
        path.display()
    )]
    Size {
        /// The file.
        path: PathBuf,
        /// Its size.
        found: u64,
    },
    /// Other users may read or write the file.
    #[error(
        "the key file {} is open to other users (mode {mode:03o}): run `chmod 600` on it",
        path.display()
    )]
    Open {
        /// The file.
        path: PathBuf,
        /// Its permissions.
        mode: u32,
    },
    /// The database has secrets already, but the file does not exist.
    #[error(
        "the key file {} is gone, and the secrets in the database open with nothing else: \
         put it back, or, if there is no copy, see `weir-dispatcher recover-key --help`",
        path.display()
    )]
    Gone {
        /// The file.
        path: PathBuf,
    },
}

/// The key in the file. If the file does not exist, creates it with a new key if `may_make`.
pub(super) fn read_or_make(
    path: &Path,
    may_make: bool,
) -> Result<Secret<[u8; KEY_BYTES]>, KeyError> {
    // Checks before it opens: opening a named pipe would block until it has a writer.
    match fs::metadata(path) {
        Ok(file) => read(path, &file),
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(KeyError::Read { path: path.to_owned(), source: error })
        }
        Err(_) if may_make => {
            make(path).map_err(|source| KeyError::Make { path: path.to_owned(), source })
        }
        Err(_) => Err(KeyError::Gone { path: path.to_owned() }),
    }
}

fn read(path: &Path, about: &Metadata) -> Result<Secret<[u8; KEY_BYTES]>, KeyError> {
    let unread = |source| KeyError::Read { path: path.to_owned(), source };
    if !about.is_file() {
        return Err(unread(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file")));
    }
    let mode = about.permissions().mode() & 0o777;
    if mode & 0o077 != 0 {
        return Err(KeyError::Open { path: path.to_owned(), mode });
    }
    if about.len() != KEY_BYTES as u64 {
        return Err(KeyError::Size { path: path.to_owned(), found: about.len() });
    }
    let mut key = [0; KEY_BYTES];
    File::open(path).and_then(|mut file| file.read_exact(&mut key)).map_err(unread)?;
    Ok(Secret::new(key))
}

fn make(path: &Path) -> io::Result<Secret<[u8; KEY_BYTES]>> {
    let mut key = [0; KEY_BYTES];
    getrandom::fill(&mut key)?;
    let folder = folder_of(path);
    fs::create_dir_all(folder)?;
    // The file gets its name only once it is complete: a crash leaves no partial key.
    let draft = with_ending(path, ".draft");
    or_absent(fs::remove_file(&draft))?;
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&draft)?;
    file.write_all(&key)?;
    file.sync_all()?;
    // A link, unlike a rename, never replaces a file that appeared meanwhile.
    let linked = fs::hard_link(&draft, path);
    let removed = fs::remove_file(&draft);
    linked.and(removed)?;
    sync_folder(folder)?;
    Ok(Secret::new(key))
}

/// Where a rotation keeps the next key, until the database is sealed with it.
pub(super) fn next_of(path: &Path) -> PathBuf {
    with_ending(&real(path), ".next")
}

/// Where a rotation leaves the key that it replaced.
pub(super) fn former_of(path: &Path) -> PathBuf {
    with_ending(&real(path), ".before-rotation")
}

/// Replaces the key by the next one.
pub(super) fn put_next_in_place(path: &Path) -> Result<(), KeyError> {
    let place = real(path);
    let placed = fs::rename(next_of(path), &place).and_then(|()| sync_folder(folder_of(&place)));
    placed.map_err(|source| KeyError::Place { path: path.to_owned(), source })
}

/// The path without symbolic links: a key file may be one.
pub(super) fn real(path: &Path) -> PathBuf {
    fs::canonicalize(path).unwrap_or_else(|_| path.to_owned())
}

/// The folder of a file.
pub(super) fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// The path with `ending` appended.
pub(super) fn with_ending(path: &Path, ending: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(ending);
    name.into()
}

/// Treats a file that does not exist as removed or moved.
pub(super) fn or_absent(done: io::Result<()>) -> io::Result<()> {
    match done {
        Err(source) if source.kind() == io::ErrorKind::NotFound => Ok(()),
        done => done,
    }
}

/// Makes the names in a folder durable: they survive a power failure.
pub(super) fn sync_folder(folder: &Path) -> io::Result<()> {
    File::open(folder)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::sqlite::tests::{Folder, at_once, pipe};

    #[test]
    fn the_key_is_made_once_and_is_its_owners_alone() {
        let folder = Folder::new();
        let path = folder.path("keys/secrets.key");
        let made = read_or_make(&path, true).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(read_or_make(&path, true).unwrap(), made);
        assert_ne!(read_or_make(&folder.path("other.key"), true).unwrap(), made);
    }

    #[test]
    fn no_other_file_is_removed_for_a_new_key() {
        let folder = Folder::new();
        fs::write(folder.path("secrets.draft"), "a letter").unwrap();
        read_or_make(&folder.path("secrets.key"), true).unwrap();
        assert_eq!(fs::read(folder.path("secrets.draft")).unwrap(), b"a letter");
    }

    #[test]
    fn a_key_that_others_may_read_is_refused() {
        let folder = Folder::new();
        let path = folder.path("secrets.key");
        read_or_make(&path, true).unwrap();
        fs::set_permissions(&path, PermissionsExt::from_mode(0o640)).unwrap();
        let message = read_or_make(&path, true).unwrap_err().to_string();
        assert!(message.contains("mode 640") && message.contains("chmod 600"), "{message}");
    }

    #[test]
    fn half_a_key_is_refused_and_stays_as_it_is() {
        let folder = Folder::new();
        let path = folder.path("secrets.key");
        fs::write(&path, [1; 16]).unwrap();
        fs::set_permissions(&path, PermissionsExt::from_mode(0o600)).unwrap();
        let message = read_or_make(&path, true).unwrap_err().to_string();
        assert!(message.contains("16 bytes"), "{message}");
        assert_eq!(fs::read(&path).unwrap(), [1; 16]);
    }

    #[test]
    fn a_key_that_is_no_regular_file_is_not_waited_for() {
        let folder = Folder::new();
        let path = folder.path("secrets.key");
        pipe(&path);
        let message = at_once(move || read_or_make(&path, true).unwrap_err().to_string());
        assert!(message.contains("not a regular file"), "{message}");
        let device = Path::new("/dev/zero");
        let message = read_or_make(device, true).unwrap_err().to_string();
        assert!(message.contains("not a regular file"), "{message}");
    }

    #[test]
    fn no_key_is_made_where_one_must_have_been() {
        let folder = Folder::new();
        let path = folder.path("secrets.key");
        assert!(matches!(read_or_make(&path, false), Err(KeyError::Gone { .. })));
        assert!(!path.exists());
    }
}
