//! Reads the files an operator names, and says what is wrong with them.
//!
//! Not here: what stands in them (`document`).

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

use crate::config::document::Diagnostic;
use crate::secret::Secret;

/// A settings file is no larger: a million workspaces take half of it.
const FILE_BYTES_MAX: u64 = 256 << 20;

/// How often files are looked at: a change is noticed well within five seconds.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Reads a regular file. Anything else could keep us waiting for ever.
///
/// # Errors
///
/// Where it cannot be read, is no regular file, or is larger than any settings file.
pub fn read(path: &Path) -> io::Result<String> {
    let file = fs::metadata(path)?;
    if !file.is_file() || file.len() > FILE_BYTES_MAX {
        let why = "not a regular file, or larger than 256 MiB";
        return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
    }
    fs::read_to_string(path)
}

/// The secret that stands in a file's first line.
///
/// # Errors
///
/// Where it cannot be read, or its first line is empty.
pub fn first_line(path: &Path) -> io::Result<Secret<String>> {
    let text = read(path)?;
    match text.lines().next().map(str::trim) {
        Some(line) if !line.is_empty() => Ok(Secret::new(line.to_owned())),
        _ => Err(io::Error::other("its first line is empty")),
    }
}

/// Where a file is that was named from the directory we run in.
#[must_use]
pub fn whole(path: &str) -> String {
    std::path::absolute(path).map_or_else(|_| path.to_owned(), |path| path.display().to_string())
}

/// A settings file that cannot be read, as a mistake in it.
#[must_use]
pub fn unreadable(file: &str, why: &io::Error) -> Diagnostic {
    Diagnostic { file: file.to_owned(), line: 1, column: 1, message: format!("cannot read: {why}") }
}

/// What tells one state of a file from another; `None` where it cannot be looked at.
pub type Stamp = Option<(u64, u64, i64, i64)>;

/// The state a file is in.
#[must_use]
pub fn stamp(path: &Path) -> Stamp {
    let of = |file: fs::Metadata| (file.ino(), file.len(), file.mtime(), file.mtime_nsec());
    fs::metadata(path).ok().map(of)
}

/// Runs `changed` whenever files are found in another state than `stamps` found them in before,
/// over and over.
pub async fn watch<F: Future<Output = ()>>(
    stamps: impl Fn() -> Vec<Stamp>,
    changed: impl Fn() -> F,
) {
    let mut in_force = stamps();
    let mut seen = in_force.clone();
    loop {
        tokio::time::sleep(LOOK_EVERY).await;
        let now = stamps();
        // A file that is still being written looks different each time: it is left to settle.
        if now == seen && now != in_force {
            changed().await;
            // As they were before: what has changed meanwhile was perhaps not read.
            in_force.clone_from(&now);
        }
        seen = now;
    }
}

/// Whether a file could be made at `path`, in a folder that is there or could be made itself.
///
/// # Errors
///
/// Where it could not, and why.
pub fn may_make(path: &Path) -> io::Result<()> {
    use nix::unistd::{AccessFlags, access};
    let path = std::path::absolute(path)?;
    // What is not there yet would be made; what is there must be a folder that we may write to.
    let folder = path.ancestors().skip(1).find(|folder| folder.exists()).unwrap_or(Path::new("/"));
    if !folder.is_dir() {
        let why = format!("{} is no folder", folder.display());
        return Err(io::Error::new(io::ErrorKind::NotADirectory, why));
    }
    access(folder, AccessFlags::W_OK | AccessFlags::X_OK).map_err(|why| {
        let why = io::Error::from(why);
        io::Error::new(why.kind(), format!("{}: {why}", folder.display()))
    })
}

/// Asks for as many file descriptors as `wanted`, and says how many there are.
#[must_use]
pub fn descriptors(wanted: u64) -> u64 {
    use nix::sys::resource::{Resource, getrlimit, setrlimit};
    let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_NOFILE) else { return wanted };
    let raised = wanted.min(hard).max(soft);
    let holds = setrlimit(Resource::RLIMIT_NOFILE, raised, hard).is_ok();
    if holds { raised } else { soft }
}
