//! What only a store in a file promises; the rest is in `conformance`.

use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

static MADE: AtomicU32 = AtomicU32::new(0);

/// A temporary directory that is removed on drop.
#[derive(Debug)]
pub(super) struct Folder(PathBuf);

impl Folder {
    pub(super) fn new() -> Self {
        let number = MADE.fetch_add(1, Ordering::Relaxed);
        let name = format!("weir-store-{}-{number}", std::process::id());
        let path = std::env::temp_dir().join(name);
        // A leftover of an earlier process with our number is nobody's any more.
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
