//! Flags and environment in, exit code out; nothing else.

use std::process::ExitCode;

use clap::Parser;
use weir_common::allocator::Allocator;
use weir_gateway::app::Environment;
use weir_gateway::cli::Command;
use weir_gateway::operations::upgrade::TAKE_OVER;

/// With glibc's allocator a quarter of Pingora's instructions are in it: see docs/performance.md.
#[global_allocator]
static ALLOCATOR: Allocator = Allocator;

fn main() -> ExitCode {
    ALLOCATOR.retain_no_full_pages();
    // Fails only where a provider is installed already, which nothing has done before.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let around = Environment {
        notify: std::env::var_os("NOTIFY_SOCKET"),
        takes_over: std::env::var_os(TAKE_OVER).is_some(),
    };
    Command::parse().execute(&around).into()
}
