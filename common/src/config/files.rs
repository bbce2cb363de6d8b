//! Reads the files that an operator names, and reports why one cannot be used.
//!
//! Not here: what they contain (`document`).

use std::fs;
use std::io::{self, ErrorKind::NotFound};
use std::path::Path;

use rustix::fs::{Access, access, statvfs};

use crate::config::document::{Diagnostic, Document};
use crate::secret::Secret;

/// The largest settings file: a directory of a million workspaces takes half of it.
const FILE_BYTES_MAX: u64 = 256 << 20;

/// Reads a regular file. Reading any other kind, such as a pipe, could block forever.
///
/// # Errors
///
/// If it cannot be read, is not a regular file, is too large, or is not UTF-8.
pub fn read(path: &Path) -> io::Result<String> {
    let file = fs::metadata(path)?;
    let refused = |why| Err(io::Error::new(io::ErrorKind::InvalidInput, why));
    if !file.is_file() {
        return refused("it is not a regular file");
    }
    if file.len() > FILE_BYTES_MAX {
        return refused("it is larger than 256 MiB");
    }
    String::from_utf8(fs::read(path)?).map_err(|error| {
        let before = error.as_bytes().get(..error.utf8_error().valid_up_to()).unwrap_or_default();
        let before = String::from_utf8_lossy(before);
        let line = before.rsplit('\n').next().unwrap_or_default();
        let (line, column) = (before.matches('\n').count() + 1, line.chars().count() + 1);
        io::Error::new(io::ErrorKind::InvalidData, NotUtf8 { line, column })
    })
}

/// Where a file stops to be text.
#[derive(Debug, thiserror::Error)]
#[error("it is not UTF-8 at line {line}, column {column}")]
struct NotUtf8 {
    line: usize,
    column: usize,
}

/// What `of` makes of the text of the file at `path`.
///
/// # Errors
///
/// A sentence that names the file: it cannot be read, or what `of` says of it.
pub fn read_as<T>(path: &str, of: impl FnOnce(&str) -> Result<T, String>) -> Result<T, String> {
    let text = read(path.as_ref()).map_err(|why| format!("cannot read `{path}`: {why}"))?;
    of(&text).map_err(|why| format!("`{path}` {why}"))
}

/// The secret in a file's first line, without a byte order mark.
///
/// # Errors
///
/// If it cannot be read, or its first line is empty.
pub fn first_line(path: &Path) -> io::Result<Secret<String>> {
    let text = read(path)?;
    // Editors of Windows begin a file with a byte order mark.
    match text.trim_start_matches('\u{feff}').lines().next().map(str::trim) {
        Some(line) if !line.is_empty() => Ok(Secret::new(line.to_owned())),
        _ => Err(io::Error::other("its first line is empty")),
    }
}

/// The secret in the first line of the file at `path`, which the setting `key` names; if there is
/// none, an error at that key.
#[must_use]
pub fn secret(path: &str, key: &str, document: &Document) -> Option<Secret<String>> {
    let unreadable = |why| document.fault_in(key, format!("cannot read `{path}`: {why}"));
    first_line(Path::new(path)).map_err(unreadable).ok()
}

/// The bearer token in the first line of the file at `path`, as [`secret`]; in visible ASCII.
#[must_use]
pub fn bearer_token(path: &str, key: &str, document: &Document) -> Option<Secret<String>> {
    let token = secret(path, key, document)?;
    if token.expose().bytes().all(|byte| byte.is_ascii_graphic()) {
        return Some(token);
    }
    let why = "has other characters in its first line than visible ASCII: no Authorization header \
               can carry them";
    document.fault_in(key, format!("`{path}` {why}"));
    None
}

/// The absolute path of a file that is named relative to the working directory.
#[must_use]
pub fn whole(path: &str) -> String {
    std::path::absolute(path).map_or_else(|_| path.to_owned(), |path| path.display().to_string())
}

/// The error for a settings file that cannot be read.
#[must_use]
pub fn unreadable(file: &str, why: &io::Error) -> Diagnostic {
    let not_utf8 = why.get_ref().and_then(|why| why.downcast_ref());
    let (line, column) = not_utf8.map_or((1, 1), |NotUtf8 { line, column }| (*line, *column));
    Diagnostic { file: file.to_owned(), line, column, message: format!("cannot read: {why}") }
}

/// The longest ending of the names that programs give to files beside one: SQLite's `-journal`.
const ENDING_BYTES: usize = 8;

/// Checks that a file can be created at `path`, with the folders that are missing. Where a link
/// leads to nothing, it is created there.
///
/// # Errors
///
/// If it cannot, with the reason.
pub fn may_make(path: &Path) -> io::Result<()> {
    let path = std::path::absolute(path)?;
    let wrong = |why: String| Err(io::Error::new(io::ErrorKind::InvalidInput, why));
    if [&b"/"[..], b"/."].iter().any(|end| path.as_os_str().as_encoded_bytes().ends_with(end)) {
        return wrong("it ends in a slash, as a folder".to_owned());
    }
    if path.is_symlink() && fs::metadata(&path).is_err_and(|why| why.kind() == NotFound) {
        let beside = path.parent().unwrap_or(Path::new("/"));
        return may_make(&beside.join(fs::read_link(&path)?));
    }
    // Missing folders would be created; the nearest that exists must be a writable folder.
    let folder = path.ancestors().skip(1).find(|folder| folder.symlink_metadata().is_ok());
    let folder = folder.unwrap_or(Path::new("/"));
    if !folder.is_dir() {
        let why = format!("{} is no folder", folder.display());
        return Err(io::Error::new(io::ErrorKind::NotADirectory, why));
    }
    let missing = path.strip_prefix(folder).into_iter().flat_map(Path::iter);
    let longest = usize::try_from(statvfs(folder)?.f_namemax).unwrap_or(usize::MAX);
    for name in missing {
        if name == "~" {
            return wrong("`~` is not expanded: write the whole path".to_owned());
        }
        if name.len() + ENDING_BYTES > longest {
            let most = longest.saturating_sub(ENDING_BYTES);
            return wrong(format!("a name in it has more than {most} bytes"));
        }
    }
    access(folder, Access::WRITE_OK | Access::EXEC_OK).map_err(|why| {
        let why = io::Error::from(why);
        io::Error::new(why.kind(), format!("{}: {why}", folder.display()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_at_which_no_file_can_be_made_is_refused_with_the_reason() {
        let folder = std::env::temp_dir().join(format!("weir-files-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let at = |name: &str| folder.join(name);
        std::os::unix::fs::symlink(at("absent/file"), at("leads_on")).unwrap();
        std::os::unix::fs::symlink(at("nowhere"), at("dangling")).unwrap();
        for name in ["new", "a/b/new", "leads_on", &"x".repeat(240)] {
            assert!(may_make(&at(name)).is_ok(), "{name}");
        }
        for (name, why) in [
            ("new/", "it ends in a slash, as a folder"),
            ("~/new", "`~` is not expanded: write the whole path"),
            (&"x".repeat(250), "a name in it has more than 247 bytes"),
            ("dangling/new", "dangling is no folder"),
        ] {
            let refused = may_make(&at(name)).unwrap_err().to_string();
            assert!(refused.ends_with(why), "{name}: {refused}");
        }
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn a_secret_is_the_first_line_without_what_editors_add() {
        let path = std::env::temp_dir().join(format!("weir-first-line-{}", std::process::id()));
        for text in ["hidden", "hidden\r\nmore", " hidden \n", "\u{feff}hidden\n"] {
            fs::write(&path, text).unwrap();
            assert_eq!(first_line(&path).unwrap().expose(), "hidden", "{text:?}");
        }
        for text in ["", "\nhidden", "\u{feff}\n"] {
            fs::write(&path, text).unwrap();
            assert!(first_line(&path).is_err(), "{text:?}");
        }
        fs::remove_file(&path).unwrap();
    }

    #[test]
    fn a_file_that_is_not_regular_or_too_large_is_refused_with_its_own_reason() {
        let path = std::env::temp_dir().join(format!("weir-large-{}", std::process::id()));
        // A hole takes no space.
        fs::File::create(&path).unwrap().set_len(FILE_BYTES_MAX + 1).unwrap();
        assert_eq!(read(&path).unwrap_err().to_string(), "it is larger than 256 MiB");
        fs::remove_file(&path).unwrap();
        let folder = read(&std::env::temp_dir()).unwrap_err().to_string();
        assert_eq!(folder, "it is not a regular file");
    }

    #[test]
    fn a_file_that_is_not_utf8_is_reported_where_it_stops_to_be() {
        let path = std::env::temp_dir().join(format!("weir-not-utf8-{}", std::process::id()));
        for (bytes, place) in [
            (&b"a = 1\n# \xc3\xa4 \xe4\n"[..], "f.toml:2:5: "),
            (b"\xff\xfea", "f.toml:1:1: "),
            (b"a = 1\n\xc3", "f.toml:2:1: "),
        ] {
            fs::write(&path, bytes).unwrap();
            let found = unreadable("f.toml", &read(&path).unwrap_err()).to_string();
            assert!(found.starts_with(place) && found.contains("not UTF-8"), "{found}");
        }
        fs::remove_file(&path).unwrap();
        let missing = unreadable("f.toml", &read(&path).unwrap_err());
        assert_eq!((missing.line, missing.column), (1, 1));
    }
}
