//! Flags and environment in, exit code out; nothing else.

use std::process::ExitCode;

use clap::Parser;
use weir_gateway::command::Command;

/// A third of Pingora's time goes into allocating: see docs/performance.md.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    Command::parse().execute().into()
}
