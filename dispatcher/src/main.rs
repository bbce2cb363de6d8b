//! The process: parses the command line and returns the exit code.

use std::process::ExitCode;

use clap::Parser;
use weir_common::allocator::Allocator;
use weir_dispatcher::cli::CliCommand;

#[global_allocator]
static ALLOCATOR: Allocator = Allocator;

fn main() -> ExitCode {
    ALLOCATOR.retain_no_full_pages();
    ALLOCATOR.give_back_soon();
    // For requests to identity servers. Fails only where a provider is installed already.
    let _ = rustls::crypto::ring::default_provider().install_default();
    CliCommand::parse().execute().into()
}
