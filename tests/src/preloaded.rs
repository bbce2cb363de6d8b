//! Libraries that replace functions of the system in a program under test, which preloads them.

use std::path::PathBuf;
use std::process::Command;

use crate::folder::Folder;

/// Builds a library of this C source in `folder`, and returns its path, for `LD_PRELOAD`.
#[track_caller]
pub fn library(folder: &Folder, name: &str, source: &str) -> PathBuf {
    let source = folder.write(&format!("{name}.c"), source);
    let library = folder.path(&format!("lib{name}.so"));
    let built = Command::new("cc")
        .args(["-shared", "-fPIC", "-o"])
        .args([&library, &source])
        .arg("-ldl")
        .output()
        .unwrap_or_else(|error| panic!("cc: {error}"));
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    library
}
