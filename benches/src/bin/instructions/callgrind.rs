//! Switches callgrind on and off in a running process, and reads its counts.
//!
//! Invariant: a count that callgrind did not write ends the measurement; it is never 0.

use std::path::Path;
use std::process::Command;

use weir_benches::flags::fail;
use weir_benches::lab::{Folder, PLAIN_COPIES, Process};

/// Starts to count; what the process has done so far does not count.
pub(crate) fn begin(process: &Process) {
    control(process, "--instr=on");
}

/// Sets the count to 0.
pub(crate) fn reset(process: &Process) {
    control(process, "--zero");
}

/// The number of instructions since [`reset`]; `nth` is how many times this has been called for
/// this process, beginning with 1.
pub(crate) fn counted(process: &Process, nth: u32) -> u64 {
    control(process, "--dump");
    total(&process.counts(nth))
}

/// The number of instructions of a program from its start to its end.
pub(crate) fn whole(folder: &Folder, program: &Path, args: &[&str]) -> u64 {
    let counts = folder.path("whole.callgrind");
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", &format!("--callgrind-out-file={}", counts.display())])
        .arg(program)
        .args(args)
        .env("GLIBC_TUNABLES", PLAIN_COPIES)
        .output();
    match output {
        Ok(output) if output.status.success() => total(&counts),
        other => fail(&format!("valgrind {program:?}: {other:?} (Debian: apt install valgrind)")),
    }
}

fn total(counts: &Path) -> u64 {
    let counts = std::fs::read_to_string(counts).unwrap_or_default();
    let total = counts.lines().find_map(|line| line.strip_prefix("summary: "));
    total
        .and_then(|text| text.trim().parse().ok())
        .filter(|total| *total > 0)
        .unwrap_or_else(|| fail("callgrind counted nothing"))
}

fn control(process: &Process, what: &str) {
    let id = process.id().to_string();
    match Command::new("callgrind_control").args([what, &id]).output() {
        Ok(output) if output.status.success() => {}
        other => {
            fail(&format!("callgrind_control {what}: {other:?} (Debian: apt install valgrind)"))
        }
    }
}
