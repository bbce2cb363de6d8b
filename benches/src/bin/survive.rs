//! Searches for acknowledged events that weir-dispatcher loses: kills it, stops it, fills its
//! disk and sets its clock at random times under load, for a given time, and compares the
//! acknowledged events with those that arrived. `weir_tests::survival` has the faults and the
//! checks.

use std::cell::Cell;
use std::path::PathBuf;
use std::time::Duration;

use weir_benches::flags::{Flags, fail, sibling};
use weir_tests::survival::faults::{Part, Scale};
use weir_tests::survival::history::History;
use weir_tests::survival::{Plan, Skipped, folder_of, run};

const USAGE: &str = "usage: survive [--minutes 60] [--seed N] [--folder DIR] \
    [--only kill|stop|full|refuse|clock] [--dispatcher PATH]";

/// Each part's share of the time; kills matter most.
const SHARES: [(Part, f64); 5] = [
    (Part::Kill, 0.5),
    (Part::Stop, 0.2),
    (Part::Full, 0.1),
    (Part::Refuse, 0.1),
    (Part::Clock, 0.1),
];

/// How often it prints its progress.
const PRINT_EVERY: Duration = Duration::from_secs(60);

fn main() {
    let mut flags = Flags::from_env(USAGE);
    let minutes: f64 = flags.value("--minutes", 60.0);
    let seed: u64 = flags.value("--seed", u64::from(std::process::id()));
    let temporary = std::env::temp_dir().join(format!("weir-survive-{}", std::process::id()));
    let root: PathBuf = flags.value("--folder", temporary.clone());
    let keeps = root != temporary;
    let only: String = flags.value("--only", String::new());
    let program: PathBuf = flags.value("--dispatcher", sibling("weir-dispatcher"));
    let [] = flags.rest();
    if !only.is_empty() && !Part::ALL.iter().any(|part| part.name() == only) {
        fail(USAGE);
    }
    // The dispatcher runs in another working directory.
    let absolute = |path: PathBuf| {
        let found = path.canonicalize();
        found.unwrap_or_else(|error| fail(&format!("{}: {error}", path.display())))
    };
    if let Err(error) = std::fs::create_dir_all(&root) {
        fail(&format!("{}: {error}", root.display()));
    }
    let (program, root) = (absolute(program), absolute(root));
    println!("seed {seed}, files in {}", root.display());
    let mut violations = 0;
    for (part, share) in SHARES {
        if !only.is_empty() && part.name() != only {
            continue;
        }
        let share = if only.is_empty() { share } else { 1.0 };
        let plan = Plan {
            program: program.clone(),
            folder: folder_of(&root, part),
            part,
            time: Duration::from_secs_f64(minutes * 60.0 * share),
            faults: 1,
            scale: Scale::HOURS,
            seed,
        };
        violations += one(&plan);
    }
    if violations > 0 {
        fail(&format!("{violations} violations; see the files in {}", root.display()));
    }
    if !keeps {
        let _ = std::fs::remove_dir_all(&root);
    }
}

/// Runs one part, prints its result, and returns the number of violations.
fn one(plan: &Plan) -> usize {
    println!("\n## {}, {:.0} s\n", plan.part.name(), plan.time.as_secs_f64());
    let printed = Cell::new(Duration::ZERO);
    let progress = |history: &History| {
        let now = history.elapsed();
        if now.saturating_sub(printed.get()) >= PRINT_EVERY {
            printed.set(now);
            let state = history.state();
            let (owed, settled, ends) = (state.owed, state.settled, state.ends.len());
            let violations = state.violations.len();
            eprintln!(
                "{:>5} s: {ends} kills, {owed} deliveries expected, {settled} delivered, \
                 {violations} violations",
                now.as_secs()
            );
        }
    };
    let ran = match run(plan, &progress) {
        Ok(ran) => ran,
        Err(Skipped::NoFaketime) => {
            println!("SKIPPED: libfaketime is not installed (Debian: apt install faketime)");
            return 0;
        }
    };
    println!("Disk: {}.\n\n| | |\n|---|--:|\n{}", ran.disk, ran.verdict);
    for violation in ran.verdict.violations.iter().take(50) {
        println!("- {violation}");
    }
    ran.verdict.violations.len()
}
