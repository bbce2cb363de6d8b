//! Flags and environment in, exit code out; nothing else.

use std::process::ExitCode;

use clap::Parser;
use weir_dispatcher::cli::CliCommand;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    CliCommand::parse().execute().into()
}
