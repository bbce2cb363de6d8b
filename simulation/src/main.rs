//! Lives through seeded runs for a while, and says what came of it.
//!
//! ```text
//! WEIR_SECONDS=300 weir-simulation     new seeds, for so long (15)
//! WEIR_BASE=1 weir-simulation          these and those after them
//! WEIR_SEED=17 weir-simulation         one again, with its last steps
//! WEIR_TRACE=1 WEIR_SEED=17 …          with all of its steps
//! ```
//!
//! Exit code 1: a promise is broken; the last line says how to see that again.

use std::env::var_os;
use std::process::ExitCode;
use std::time::Duration;

use weir_common::time::Clock;
use weir_simulation::{again, many};

/// Runs are made for so long, unless `WEIR_SECONDS` says otherwise.
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
