//! `--check`, `--record` and `--release`: counts what may not grow, in the programs beside this
//! one, and compares or writes the file.
//!
//! A busy machine adds to a count, for timers fire while work waits, and takes nothing away: what
//! is too much is counted again, and the lowest count is taken.

use std::path::Path;
use std::process::Command;

use weir_benches::flags::{fail, sibling};
use weir_benches::lab::Folder;
use weir_benches::report::table;
use weir_benches::targets::{Limits, Plane, weir};

use crate::counts::{self, CONNECTIONS};
use crate::recorded::{Figure, Recorded, Verdict, change, parse_why};
use crate::upstream::upstream;

/// How often a figure is counted before it is reported or recorded.
const TRIES: usize = 5;
/// Requests and refusals that are counted.
const REQUESTS: usize = 800;
/// Events and deliveries that are counted.
const EVENTS: u64 = 200;

/// Compares the figures whose names contain `only`.
pub(crate) fn check(file: &Path, only: &str) {
    let recorded = read(file);
    let tools = tools();
    if tools != recorded.tools {
        println!("not compared: recorded with {}; here: {tools}", recorded.tools);
        return;
    }
    let lab = Lab::new();
    let (mut rows, mut complaints) = (Vec::new(), Vec::new());
    for row in recorded.rows.iter().filter(|row| row.figure.name().contains(only)) {
        let grown = |counted: u64| !matches!(row.verdict(counted), Verdict::Kept | Verdict::Fallen);
        let counted = lab.count_while(row.figure, grown);
        rows.push(vec![
            row.figure.name().to_owned(),
            counted.to_string(),
            row.recorded.to_string(),
            change(counted, row.recorded),
            change(counted, row.released),
        ]);
        complaints.extend(row.complaint(counted));
    }
    let head = ["one", "counted", "recorded", "change", "since the last release"];
    println!("{}", table("Instructions", &head, &rows));
    if !complaints.is_empty() {
        fail(&complaints.join("\n"));
    }
}

/// Counts, and writes the file.
pub(crate) fn record(file: &Path, why: &str) {
    let why = parse_why(why).unwrap_or_else(|error| fail(error));
    let old = file.exists().then(|| read(file));
    let lab = Lab::new();
    let counts = Figure::ALL.map(|figure| lab.count_while(figure, |_| true));
    let tools = tools();
    let new = match old {
        Some(old) => old.update(&tools, &counts, why).unwrap_or_else(|error| fail(&error)),
        None => Recorded::first(&tools, &counts, why),
    };
    write(file, &new);
}

/// Makes the recorded figures those of a release.
pub(crate) fn release(file: &Path, version: &str) {
    write(file, &read(file).release(version));
}

/// The programs, and what they need.
struct Lab {
    folder: Folder,
}

impl Lab {
    fn new() -> Self {
        // Of another profile, counts are another's.
        if !cfg!(debug_assertions) {
            fail("--check and --record count what ./test builds: target/debug/instructions does");
        }
        Self { folder: Folder::counting("counted") }
    }

    /// Counts, and counts again while the lowest count is `too_much`.
    fn count_while(&self, figure: Figure, too_much: impl Fn(u64) -> bool) -> u64 {
        let mut lowest = u64::MAX;
        for _ in 0..TRIES {
            let counted = self.count(figure);
            eprintln!("{}: {counted}", figure.name());
            lowest = lowest.min(counted);
            if !too_much(lowest) {
                break;
            }
        }
        lowest
    }

    fn count(&self, figure: Figure) -> u64 {
        let request = |limits, access_log| {
            let row = (Plane::Control, limits, access_log);
            // A refusing limit admits one request.
            let up = upstream(if limits == Limits::Refuse { 1 } else { CONNECTIONS });
            let target = weir(&self.folder, &sibling("weir-gateway"), up, row);
            // One at a time: how many are read together would depend on the machine.
            counts::request(&target, REQUESTS / CONNECTIONS, 1)
        };
        // A folder of its own: an earlier database would be opened again.
        let folder = || Folder::counting(figure.name().split(' ').next().unwrap_or_default());
        match figure {
            Figure::Request => request(Limits::Admit, false),
            Figure::LoggedRequest => request(Limits::Admit, true),
            Figure::Refusal => request(Limits::Refuse, false),
            Figure::Decision => counts::decision(&self.folder, &sibling("decide")),
            Figure::Event => counts::event(&folder(), &sibling("weir-dispatcher"), EVENTS).1,
            Figure::Delivery => counts::delivery(&folder(), &sibling("weir-dispatcher"), EVENTS).1,
        }
    }
}

/// What counts depend on apart from the repository. Of the processor valgrind shows a program
/// little: a Haswell where there is AVX2, whatever else there is.
fn tools() -> String {
    let first_line = |program: &str, args: &[&str]| {
        let output = Command::new(program).args(args).output();
        let output = output.unwrap_or_else(|error| fail(&format!("{program}: {error}")));
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        text.lines().next().unwrap_or_default().trim().to_owned()
    };
    let [compiler, library, valgrind] = [
        first_line("cc", &["--version"]),
        first_line("getconf", &["GNU_LIBC_VERSION"]),
        first_line("valgrind", &["--version"]),
    ];
    format!("{}; {compiler}; {library}; {valgrind}", processor())
}

#[cfg(target_arch = "x86_64")]
fn processor() -> &'static str {
    if is_x86_feature_detected!("avx2") { "x86_64 with AVX2" } else { "x86_64 without AVX2" }
}

#[cfg(not(target_arch = "x86_64"))]
fn processor() -> &'static str {
    std::env::consts::ARCH
}

fn read(file: &Path) -> Recorded {
    let text = std::fs::read_to_string(file).map_err(|error| error.to_string());
    let recorded = text.and_then(|text| Recorded::parse(&text));
    recorded.unwrap_or_else(|error| fail(&format!("{}: {error}", file.display())))
}

fn write(file: &Path, recorded: &Recorded) {
    if let Err(error) = std::fs::write(file, recorded.to_string()) {
        fail(&format!("{}: {error}", file.display()));
    }
    println!("{}: written", file.display());
}
