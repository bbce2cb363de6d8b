//! A disk that fails to keep what a checkpoint writes: a preloaded library replaces the system's
//! syncs in a program under test.
//!
//! While the file that `FAILING_SYNC` names exists, syncs of files whose name ends in `.db` fail.

use std::path::PathBuf;

use crate::folder::Folder;
use crate::preloaded;

/// The environment variable that names the file.
pub const SWITCH: &str = "FAILING_SYNC";

const SOURCE: &str = r#"
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int fails(int file) {
    char link[64], name[4096];
    const char *on = getenv("FAILING_SYNC");
    if (on == NULL || access(on, F_OK) != 0) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    ssize_t length = readlink(link, name, sizeof name);
    return length > 3 && memcmp(name + length - 3, ".db", 3) == 0;
}

static int sync_of(const char *name, int file) {
    if (fails(file)) { errno = EIO; return -1; }
    return ((int (*)(int))dlsym(RTLD_NEXT, name))(file);
}

int fsync(int file) { return sync_of("fsync", file); }
int fdatasync(int file) { return sync_of("fdatasync", file); }
"#;

/// Builds the library in `folder`, and returns its path, for `LD_PRELOAD`.
#[track_caller]
pub fn library(folder: &Folder) -> PathBuf {
    preloaded::library(folder, "failing_sync", SOURCE)
}
