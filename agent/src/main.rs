//! Flags in, exit code out; nothing else.

use std::process::ExitCode;

use clap::Parser;
use weir_agent::cli::Command;
use weir_common::allocator::Allocator;

#[global_allocator]
static ALLOCATOR: Allocator = Allocator;

fn main() -> ExitCode {
    ALLOCATOR.retain_no_full_pages();
    // Fails only where a provider is installed already, which nothing has done before.
    let _ = rustls::crypto::ring::default_provider().install_default();
    Command::parse().execute().into()
}
