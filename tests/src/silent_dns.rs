//! DNS names whose name servers never answer: a preloaded library replaces the system's
//! resolver in a program under test.
//!
//! The lookup of a name that ends in `.silent` takes as long as the system's resolver waits for
//! servers that never answer, and then fails as it would. All other names are looked up normally.

use std::path::PathBuf;

use crate::folder::Folder;
use crate::preloaded;

/// 30 s is the timeout of the system's resolver: two tries of five seconds at each of three
/// servers.
const SOURCE: &str = r#"
#define _GNU_SOURCE
#include <dlfcn.h>
#include <netdb.h>
#include <string.h>
#include <unistd.h>

typedef int resolve(const char *, const char *, const struct addrinfo *, struct addrinfo **);

int getaddrinfo(const char *name, const char *service, const struct addrinfo *hints,
                struct addrinfo **found) {
    size_t length = name ? strlen(name) : 0;
    if (length > 7 && strcmp(name + length - 7, ".silent") == 0) {
        sleep(30);
        return EAI_AGAIN;
    }
    return ((resolve *)dlsym(RTLD_NEXT, "getaddrinfo"))(name, service, hints, found);
}
"#;

/// Builds the library in `folder`, and returns its path, for `LD_PRELOAD`.
#[track_caller]
pub fn library(folder: &Folder) -> PathBuf {
    preloaded::library(folder, "silent_names", SOURCE)
}
