//! Flags and environment in, exit code out; nothing else.

use std::process::ExitCode;

use clap::Parser;
use weir_gateway::command::Command;

/// A quarter of Pingora's instructions are glibc's allocator: see docs/performance.md.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    // An error says that there is one already, which nothing here could have made.
    let _ = rustls::crypto::ring::default_provider().install_default();
    Command::parse().execute().into()
}
