//! Flags and environment in, exit code out; nothing else.

use std::process::ExitCode;

use clap::Parser;
use weir_gateway::command::Command;

/// A quarter of Pingora's instructions are glibc's allocator: see docs/performance.md.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    Command::parse().execute().into()
}
