//! Trains a gateway that was built to record a profile: sends it what production sends, in fixed
//! counts, and stops it in order.
//!
//! `LLVM_PROFILE_FILE` says where the gateway writes what it counted: `scripts/release` sets it.

use std::path::PathBuf;

use weir_benches::flags::{Flags, sibling};
use weir_benches::training;

const USAGE: &str = "usage: train [--gateway PATH] [--requests 150000]";

fn main() {
    let mut flags = Flags::from_env(USAGE);
    let gateway: PathBuf = flags.value("--gateway", sibling("weir-gateway"));
    let requests = flags.value("--requests", 150_000);
    let [] = flags.rest();
    training::train(&gateway, requests);
}
