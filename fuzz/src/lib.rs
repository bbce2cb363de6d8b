//! What the fuzzer runs: see `scripts/fuzz`.

pub mod checks;
