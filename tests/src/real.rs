//! Third-party packages that a receiver would use: where `./test` installs them, and how to run
//! them.
//!
//! Their programs stand in `tests/real/`.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::process::{Finished, Process, finish};

/// Where the repository is.
pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap()
}

/// A command that runs a file of the repository with the Python of `./test` and its packages.
#[track_caller]
pub fn python(file: &str) -> Command {
    let mut command = Command::new(set_up("target/real/python/bin/python"));
    command.arg("-u").arg(root().join(file));
    command
}

/// A program that a Python package has brought with it.
#[track_caller]
pub fn python_tool(name: &str) -> Command {
    Command::new(set_up(&format!("target/real/python/bin/{name}")))
}

/// A command that runs a file of the repository with Node, beside the packages of `./test`.
#[track_caller]
pub fn node(file: &str) -> Command {
    // Of each copy, for tests run at once.
    static DRAFTS: AtomicU64 = AtomicU64::new(0);
    let packages = set_up("target/real/node/node_modules");
    // Node looks for packages above the file it runs, so the file goes beside them.
    let name = Path::new(file).file_name().unwrap();
    let copy = packages.parent().unwrap().join(name);
    let nth = DRAFTS.fetch_add(1, Ordering::Relaxed);
    let draft = copy.with_extension(format!("{}.{nth}.draft", std::process::id()));
    std::fs::copy(root().join(file), &draft).unwrap();
    std::fs::rename(&draft, &copy).unwrap();
    let mut command = Command::new("node");
    command.arg(copy);
    command
}

/// Runs a command to its end.
#[track_caller]
pub fn run(command: &mut Command) -> Finished {
    let name = format!("{command:?}");
    finish(Process::spawn(&name, command))
}

/// What `./test` has set up.
#[track_caller]
fn set_up(path: &str) -> PathBuf {
    let path = root().join(path);
    assert!(path.exists(), "{} is missing: run scripts/real, as ./test does", path.display());
    path
}
