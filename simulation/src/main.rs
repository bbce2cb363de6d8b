//! Executes seeded runs for some time, and prints the result.
//!
//! ```text
//! WEIR_SECONDS=300 weir-simulation     new seeds, for so many seconds (15)
//! WEIR_BASE=1 weir-simulation          this seed and those after it
//! WEIR_SEED=17 weir-simulation         one run again; prints its last steps if it fails
//! WEIR_TRACE=1 WEIR_SEED=17 …          the same; prints all of its steps
//! ```
//!
//! Exit code 1: a promise is broken; the last line shows how to repeat the run.

use std::env::var_os;
use std::process::ExitCode;
use std::time::Duration;

use weir_common::time::Clock;
use weir_simulation::{again, many};

/// The default of `WEIR_SECONDS`.
const SECONDS: u64 = 15;

fn number(name: &str) -> Option<u64> {
    var_os(name)?.to_str()?.parse().ok()
}

fn main() -> ExitCode {
    let trace = var_os("WEIR_TRACE").is_some();
    let figures = match number("WEIR_SEED") {
        Some(seed) => again(seed, trace),
        None => {
            let base = number("WEIR_BASE").unwrap_or(Clock::system().now().unix.0 % 1_000_000_007);
            many(base, Duration::from_secs(number("WEIR_SECONDS").unwrap_or(SECONDS)))
        }
    };
    match figures {
        Ok(figures) => {
            println!("simulation: {figures}");
            ExitCode::SUCCESS
        }
        Err(broken) => {
            eprintln!("{broken}");
            ExitCode::FAILURE
        }
    }
}
